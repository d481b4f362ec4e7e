//! `forebay run --uncached`: whatever a command starts, and however, leaves nothing in the cache of
//! a mount.

use crate::common::place::{Place, may_run};
use crate::common::volume::bytes_of;
use crate::common::{output, stderr, until};
use serde_json::Value;
use std::fs::File;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::process::Child;

/// Bytes of the file that is read.
const LEN: usize = 2 << 20;

/// A mount with a file on it that is open and not in the cache.
struct Lab {
    place: Place,
    held: Option<File>,
}

impl Lab {
    fn new(words: &str) -> Self {
        let place = Place::new(128 << 20);
        place.mount(&format!("cache=own,{words}"));
        let mut held = File::create_new(place.mnt("file")).expect("new");
        held.write_all(&bytes_of(1, LEN)).expect("room");
        held.sync_all().expect("durable");
        let lab = Self { place, held: Some(held) };
        lab.drop_clean();
        lab
    }

    fn drop_clean(&self) {
        self.place.folder.ok(&["tune", "mnt", "--drop-clean"]);
        assert_eq!(self.resident("file"), 0);
    }

    fn resident(&self, name: &str) -> u64 {
        let found = self.place.folder.ok(&["fincore", &format!("mnt/{name}"), "--json"]);
        let found: Value = serde_json::from_str(&found).expect("JSON");
        found["resident_blocks"].as_u64().expect("a number")
    }

    /// Runs a shell's line uncached; its output.
    fn run(&self, line: &str) -> String {
        self.place.folder.ok(&["run", "--uncached", "--on", "mnt", "--", "sh", "-ec", line])
    }

    fn end(mut self) {
        self.held = None;
        self.place.forebay_umount();
    }
}

/// A process and what it has started, which end with the test.
struct Group(Child);

impl Group {
    fn end(&mut self) {
        let group = rustix::process::Pid::from_child(&self.0);
        let _gone = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
        let _ended = self.0.wait();
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.end();
    }
}

/// run.U1, run.U2: By a child, a grandchild whose parents are gone, in a session of its own, in
/// namespaces: users, processes, mounts. Each says that it has read all.
#[test]
fn all_that_a_command_starts_is_uncached() {
    if !may_run() {
        return;
    }
    let lab = Lab::new("kernel_cache=always");
    let read = "test $(cat mnt/file | wc -c) = 2097152 && echo done";
    let orphan = format!("( ( sleep 0.2; {read} ) & )");
    let session = format!("( setsid sh -c 'sleep 0.2; {read}' & )");
    let spaces = format!(
        "unshare --user --map-root-user --pid --fork --mount-proc --mount \
         sh -c '( sleep 0.2; {read} ) & wait'"
    );
    let nested = format!("unshare --pid --fork {}", spaces);
    let python = "exec python3 -c \"
import os
if os.fork(): os._exit(0)
os.setsid()
if os.fork(): os._exit(0)
os.chdir('/proc/self/cwd/mnt')
assert os.getppid() != 1
assert len(open('file', 'rb').read()) == 2097152
print('done')\"";
    for line in [read, &orphan, &session, &spaces, &nested, python] {
        assert_eq!(lab.run(line), "done\n", "{line}");
        assert_eq!(lab.resident("file"), 0, "{line}");
    }
    lab.end();
    // By the same means, and without it: what is seen above is no accident.
    let lab = Lab::new("kernel_cache=never");
    for line in [&orphan, &spaces] {
        let line = format!("{line}\nwait; sleep 1");
        lab.drop_clean();
        assert_eq!(lab.place.run("sh", &["-ec", &line]), "done\n");
        assert_eq!(lab.resident("file"), 512, "{line}");
    }
    lab.end();
}

/// run.U3: What is cached is served and stays; what is made is not kept; files that were open
/// before it, as standard input and output, count as well, and are as they were afterwards.
#[test]
fn run_uncached_covers_open_files_and_restores_them() {
    if !may_run() {
        return;
    }
    let lab = Lab::new("kernel_cache=never");
    lab.place.run("sh", &["-c", "cat mnt/file > /dev/null"]);
    assert_eq!(lab.resident("file"), 512);
    lab.run("cat mnt/file > /dev/null");
    assert_eq!(lab.resident("file"), 512, "what was cached stays");
    lab.drop_clean();
    let forebay = env!("CARGO_BIN_EXE_forebay");
    let out = File::create(lab.place.mnt("out")).unwrap();
    let line =
        format!("{forebay} run --uncached --on mnt -- cat < mnt/file > mnt/out; sync mnt/out");
    lab.place.run("sh", &["-c", &line]);
    assert_eq!(std::fs::metadata(lab.place.mnt("out")).unwrap().len(), LEN as u64);
    until("nothing of it stays", || lab.resident("out") == 0);
    assert_eq!(lab.resident("file"), 0);
    drop(out);
    // One opening, first by the command and then by others.
    let line = format!(
        "exec < mnt/file; {forebay} run --uncached --on mnt -- head -c 1048576 > /dev/null; cat > /dev/null"
    );
    lab.place.run("sh", &["-c", &line]);
    until("the second half is cached", || lab.resident("file") >= 256);
    assert!(lab.resident("file") < 400, "the first half is not");
    lab.end();
}

/// `--direct`: its openings begin past the cache, and what they read is not kept.
#[test]
fn run_direct_command_bypasses_cache() {
    if !may_run() {
        return;
    }
    let lab = Lab::new("kernel_cache=never");
    let counter = || {
        let stat = lab.place.folder.ok(&["stat", "mnt", "--json"]);
        let stat: Value = serde_json::from_str(&stat).expect("JSON");
        stat["stats"]["direct_read_bytes"].as_u64().expect("a number")
    };
    let (before, line) = (counter(), "dd if=mnt/file of=/dev/null bs=64k status=none");
    lab.place.folder.ok(&["run", "--direct", "--on", "mnt", "--", "sh", "-ec", line]);
    assert_eq!(counter() - before, LEN as u64);
    assert_eq!(lab.resident("file"), 0);
    lab.run(line);
    assert_eq!(counter() - before, LEN as u64, "uncached is another mode");
    lab.end();
}

/// Reads of other processes are cached meanwhile; a policy of a file's own counts more; and when it
/// was killed it is over.
#[test]
fn others_are_not_affected() {
    if !may_run() {
        return;
    }
    let lab = Lab::new("kernel_cache=never");
    let mode = "exec python3 -c 'import fcntl
print(fcntl.ioctl(open(\"mnt/file\"), 0x8004fb02, b\"0000\")[0])'";
    assert_eq!(lab.run(mode), "1\n");
    lab.place.folder.ok(&["policy", "mnt/file", "direct"]);
    assert_eq!(lab.run(mode), "2\n");
    lab.place.folder.ok(&["policy", "mnt/file", "cached"]);
    assert_eq!(lab.place.run("sh", &["-c", mode]), "0\n");
    let mut running =
        lab.place.folder.command(&["run", "--uncached", "--on", "mnt", "sleep", "600"]);
    let mut running = Group(running.process_group(0).spawn().unwrap());
    let trees = || {
        let stat = lab.place.folder.ok(&["stat", "mnt", "--json"]);
        let stat: Value = serde_json::from_str(&stat).unwrap();
        stat["mounts"][0]["process_trees"].as_u64().unwrap()
    };
    until("it is registered", || trees() == 1);
    lab.place.run("sh", &["-c", "cat mnt/file > /dev/null"]);
    assert_eq!(lab.resident("file"), 512, "another process");
    running.end();
    until("it is not registered any more", || trees() == 0);
    lab.end();
}

/// Its status is the command's; what cannot be is refused.
#[test]
fn its_status_is_the_commands() {
    if !may_run() {
        return;
    }
    let lab = Lab::new("");
    let status = |words: &[&str]| {
        let done = lab
            .place
            .folder
            .forebay(&[&["run", "--uncached", "--on", "mnt", "--"], words].concat());
        (done.status.code(), stderr(&done))
    };
    assert_eq!(status(&["sh", "-c", "exit 7"]), (Some(7), String::new()));
    assert_eq!(status(&["sh", "-c", "kill -KILL $$"]).0, Some(137));
    assert_eq!(status(&["sh", "-c", "(sleep 0.3; exit 3) & exit 0"]).0, Some(0));
    let (code, said) = status(&["./no-such-command"]);
    assert!(code == Some(127) && said.contains("no-such-command"), "{code:?} {said}");
    assert_eq!(status(&["/etc/passwd"]).0, Some(126));
    lab.place.folder.refused(2, &["run", "sh"]);
    lab.place.folder.refused(2, &["run", "--uncached"]);
    // A signal goes on to the command, which decides.
    let trap = "trap 'exit 9' TERM; echo ready; while :; do sleep 0.05; done";
    let words = ["run", "--uncached", "--on", "mnt", "sh", "-c", trap];
    let mut command = lab.place.folder.command(&words);
    command.stdout(std::process::Stdio::piped()).process_group(0);
    let mut running = Group(command.spawn().unwrap());
    let mut out = std::io::BufReader::new(running.0.stdout.take().unwrap());
    std::io::BufRead::read_line(&mut out, &mut String::new()).unwrap();
    let pid = rustix::process::Pid::from_child(&running.0);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert_eq!(running.0.wait().unwrap().code(), Some(9));
    lab.end();
}

/// From where the process of the mount cannot see us there is no such thing, and that is said.
#[test]
fn from_another_world_of_processes_it_refuses() {
    if !may_run() {
        return;
    }
    let place = Place::new(64 << 20);
    // Its process is in a world of its own, the mount is in ours.
    let forebay = env!("CARGO_BIN_EXE_forebay");
    let mut daemon = std::process::Command::new("unshare");
    daemon.args(["--pid", "--fork", "--kill-child", forebay, "mount", "-f", "vol", "mnt"]);
    daemon.args(["-o", "cache_size=64M,via=plain"]).current_dir(place.folder.path(""));
    daemon.env("XDG_RUNTIME_DIR", place.folder.path("run"));
    daemon.stdout(std::process::Stdio::null()).process_group(0);
    let mut daemon = Group(daemon.spawn().unwrap());
    until("it is mounted", || place.is_mounted() && std::fs::read_dir(place.mnt("")).is_ok());
    let said = place.folder.refused(1, &["run", "--uncached", "--on", "mnt", "true"]);
    assert!(said.contains("another container") && said.contains("forebay policy"), "{said}");
    // It waited for ever: for the process of ours that has the number of the mount's in its world.
    place.forebay_umount();
    assert!(daemon.0.wait().unwrap().success());
}

/// Where only a part of the mount can be seen, bound elsewhere, as containers have it.
#[test]
fn run_uncached_covers_bind_mount_of_subtree() {
    if !may_run() {
        return;
    }
    let lab = Lab::new("kernel_cache=never");
    std::fs::create_dir_all(lab.place.folder.path("data")).unwrap();
    std::fs::write(lab.place.folder.path("alone"), "").unwrap();
    std::fs::create_dir(lab.place.mnt("part")).unwrap();
    std::fs::hard_link(lab.place.mnt("file"), lab.place.mnt("part/file")).unwrap();
    // First without the rest of the mount, then with the file alone.
    for (bind, read) in [("mnt/part data", "data/file"), ("mnt/file alone", "alone")] {
        let line = format!(
            "mount --bind {bind}; umount -l mnt; \"$0\" run --uncached --on {} sh -c 'cat {read} | wc -c'",
            read.trim_end_matches("/file")
        );
        let mut command = std::process::Command::new("unshare");
        command.args(["--mount", "sh", "-ec", &line, env!("CARGO_BIN_EXE_forebay")]);
        command.current_dir(lab.place.folder.path(""));
        let done = output(command);
        assert_eq!(
            String::from_utf8_lossy(&done.stdout).trim(),
            LEN.to_string(),
            "{}",
            stderr(&done)
        );
        assert_eq!(lab.resident("file"), 0, "{bind}");
    }
    lab.end();
}

/// Where there is no mount there is nothing to run it on.
#[test]
fn without_a_mount_it_says_so() {
    if !may_run() {
        return;
    }
    let folder = crate::common::Folder::new();
    let line = "umount -a -l -t fuse.forebay,fuseblk.forebay; exec \"$0\" run --uncached true";
    let mut command = std::process::Command::new("unshare");
    command.args(["--mount", "sh", "-c", line, env!("CARGO_BIN_EXE_forebay")]);
    command.current_dir(folder.path(""));
    let done = output(command);
    assert_eq!(done.status.code(), Some(3), "{}", stderr(&done));
    assert!(stderr(&done).contains("no mount of Forebay"), "{}", stderr(&done));
}
