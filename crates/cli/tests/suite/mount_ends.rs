//! How mounts begin and end where something is in the way: an address that is taken, a device that
//! is full, another mount in the same place, a mount that others still have, a process that does
//! not answer.

use crate::common::place::{Place, forebay_umount, may_run, umount, until_stopped};
use crate::common::{PATIENCE, stderr, until};
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};

/// Something to be taken away, whatever becomes of the test.
struct Mounted(PathBuf);

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).stderr(Stdio::null()).status();
    }
}

/// A process that ends with its test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The system's log, as far as one process is concerned.
struct Log(Receiver<String>);

impl Log {
    fn new(place: &Place) -> Self {
        let socket = UnixDatagram::bind(place.folder.path("log")).unwrap();
        let (sender, lines) = channel();
        // It takes few messages without a reader.
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(len) = socket.recv(&mut bytes) {
                let line = String::from_utf8_lossy(&bytes[..len]).into_owned();
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        Self(lines)
    }

    /// Mounts with this log.
    fn mount(place: &Place, volume: &str) -> Self {
        let log = Self::new(place);
        let mut command = place.folder.command(&["mount", volume, "mnt", "-o", "cache_size=64M"]);
        command.env("FOREBAY_SYSLOG", place.folder.path("log"));
        let done = crate::common::output(command);
        assert!(done.status.success(), "{}", stderr(&done));
        log
    }

    fn until(&self, what: &str) -> String {
        loop {
            let line = self.0.recv_timeout(PATIENCE).unwrap_or_else(|e| panic!("{what}: {e}"));
            if line.contains(what) {
                return line;
            }
        }
    }
}

fn ours(path: &str) -> rustix::process::Pid {
    rustix::process::Pid::from_raw(path.parse().unwrap()).unwrap()
}

/// With an address that was in use the mount was made, and could not be served: the process that
/// had made it waited for ever for its own answer when it took it away. It could not be killed, and
/// held the image.
#[test]
fn p1_mount_with_address_in_use_ends_cleanly() {
    if !may_run() {
        return;
    }
    let place = Place::new(64 << 20);
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let said = place.folder.refused(1, &["mount", "vol", "mnt", "--http", &address]);
    assert!(said.contains(&address), "{said}");
    assert!(!place.is_mounted());
    place.mount("");
    place.umount();
}

/// Files were written, closed, and the mount taken away with status 0; that they had not got to the
/// device, which was full, no caller learned of it (umount.E1).
#[test]
fn e1_failed_write_out_fails_the_unmount() {
    if !may_run() {
        return;
    }
    let place = Place::new(64 << 20);
    std::fs::create_dir(place.folder.path("small")).unwrap();
    place.run("mount", &["-t", "tmpfs", "-o", "size=32M", "none", "small"]);
    let _small = Mounted(place.folder.path("small"));
    place.folder.ok(&["create", "small/vol", "--size", "64M"]);
    let log = Log::mount(&place, "small/vol");
    let filler = place.folder.path("small/filler");
    let mut full = std::fs::File::create(filler).unwrap();
    while std::io::Write::write_all(&mut full, &[1; 4096]).is_ok() {}
    std::fs::write(place.mnt("file"), vec![7; 300_000]).unwrap();
    let said = place.folder.refused(1, &["umount", "mnt"]);
    assert!(said.contains("still there"), "{said}");
    assert!(place.is_mounted(), "nothing is lost yet");
    assert_eq!(std::fs::read(place.mnt("file")).unwrap(), vec![7; 300_000]);
    place.folder.ok(&["umount", "--lazy", "mnt"]);
    let line = log.until("older than what programs wrote");
    assert!(line.starts_with("<27>forebay["), "{line}");
}

/// `mount --bind` made a second place; `umount` of one waited for a process that went on for the
/// other.
#[test]
fn e2_another_place_of_the_same_mount() {
    if !may_run() {
        return;
    }
    let place = Place::new(64 << 20);
    place.mount("");
    std::fs::create_dir(place.folder.path("bound")).unwrap();
    place.run("mount", &["--bind", "mnt", "bound"]);
    let _bound = Mounted(place.folder.path("bound"));
    std::fs::write(place.folder.path("bound/f"), b"x").unwrap();
    let said = forebay_umount(&place.folder, "bound");
    assert!(said.contains("also mounted on"), "{said}");
    assert_eq!(std::fs::read(place.mnt("f")).unwrap(), b"x");
    place.forebay_umount();
}

/// umount(8) is over before the process of a plain mount is: a user who mounted again at once was
/// refused, as the image was still locked. Who is to stay is not waited for.
#[test]
fn e3_mounted_again_at_once() {
    if !may_run() {
        return;
    }
    let place = Place::new(512 << 20);
    let bytes = vec![9; 8 << 20];
    for round in 0..4 {
        place.mount("via=plain");
        (0..16).for_each(|n| std::fs::write(place.mnt(&format!("f{n}")), &bytes).unwrap());
        place.umount();
        let done = place.folder.forebay(&["mount", "vol", "mnt"]);
        assert!(done.status.success(), "round {round}: {}", stderr(&done));
        assert!((0..16).all(|n| std::fs::read(place.mnt(&format!("f{n}"))).unwrap() == bytes));
        std::fs::create_dir_all(place.folder.path("other")).unwrap();
        let said = place.folder.refused(4, &["mount", "vol", "other"]);
        assert!(said.contains("holds this file"), "{said}");
        place.umount();
    }
}

/// A container has a copy of the mount: `umount` waited for its end, and did not say so.
#[test]
fn e2_umount_names_what_it_waits_for() {
    if !may_run() {
        return;
    }
    let place = Place::new(64 << 20);
    place.mount("");
    let mut command = Command::new("unshare");
    command.args(["-m", "--propagation", "private", "sleep", "1000"]).stdin(Stdio::null());
    let mut container = Running(command.spawn().expect("unshare, of util-linux"));
    let table = format!("/proc/{}/ns/mnt", container.0.id());
    let own = std::fs::read_link("/proc/self/ns/mnt").unwrap();
    until("it has a namespace of its own", || std::fs::read_link(&table).is_ok_and(|t| t != own));
    let mut command = place.folder.command(&["umount", "mnt"]);
    let mut umount = Running(command.stderr(Stdio::piped()).spawn().unwrap());
    let mut line = String::new();
    BufReader::new(umount.0.stderr.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.contains("waiting for process") && line.contains("namespace"), "{line}");
    assert!(!place.is_mounted());
    container.0.kill().unwrap();
    assert!(umount.0.wait().unwrap().success());
    place.mount("");
}

/// A signal took away whatever was mounted there by then; the mount's own process lived on, and the
/// next signal ended it without a write-out.
#[test]
fn n1_signal_leaves_other_mounts_alone() {
    if !may_run() {
        return;
    }
    let place = Place::new(64 << 20);
    let log = Log::mount(&place, "vol");
    std::fs::write(place.mnt("f"), vec![5; 100_000]).unwrap();
    let pid = place.pid();
    place.run("mount", &["-t", "tmpfs", "-o", "size=1M", "none", "mnt"]);
    let over = Mounted(place.folder.path("mnt"));
    std::fs::write(place.mnt("other"), b"x").unwrap();
    place.run("kill", &[&pid.to_string()]);
    log.until("not mounted in its place");
    assert!(place.mnt("other").exists(), "it belongs to another mount");
    umount(&place.folder, "mnt");
    std::mem::forget(over);
    assert!(place.mnt("f").exists(), "the mount below is served");
    // That was no signal yet: this is the first.
    place.run("kill", &[&pid.to_string()]);
    until("the mount is gone", || !place.is_mounted());
    until("the image is free", || place.folder.forebay(&["mount", "vol", "mnt"]).status.success());
    assert_eq!(std::fs::read(place.mnt("f")).unwrap(), vec![5; 100_000]);
}

/// The watchdog had the directory open in which `mount` was typed: what was mounted there could not
/// be unmounted. And a signal to all processes of a service ended it before the one that it
/// watches.
#[test]
fn watchdog_blocks_no_unmount_and_outlives_signal() {
    if !may_run() {
        return;
    }
    let place = Place::new(64 << 20);
    place.mount("");
    let children = format!("/proc/{0}/task/{0}/children", place.pid());
    let dog = std::fs::read_to_string(children).unwrap().trim().to_string();
    assert_eq!(std::fs::read_link(format!("/proc/{dog}/cwd")).unwrap().to_str(), Some("/"));
    let status = std::fs::read_to_string(format!("/proc/{dog}/status")).unwrap();
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap();
    let caught = u64::from_str_radix(caught.trim(), 16).unwrap();
    for signal in [1, 2, 15] {
        assert_eq!(caught >> (signal - 1) & 1, 1, "signal {signal} ends it");
    }
    place.umount();
}

/// One process that was stopped held up each caller that asked all.
#[test]
fn m1_q1_stopped_process_delays_no_query() {
    if !may_run() {
        return;
    }
    let (place, other) = (Place::new(64 << 20), Place::new(64 << 20));
    place.mount("");
    other.mount("");
    let daemon = place.pid();
    let pid = ours(&daemon.to_string());
    rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
    until_stopped(daemon);
    let list = other.folder.forebay(&["list"]);
    let busy = other.folder.forebay(&["ls", "vol"]);
    rustix::process::kill_process(pid, rustix::process::Signal::CONT).unwrap();
    assert!(list.status.success(), "{}", stderr(&list));
    let said = String::from_utf8_lossy(&list.stdout).into_owned();
    assert!(said.contains(other.folder.path("mnt").to_str().unwrap()), "{said}");
    assert!(busy.status.success(), "{}", stderr(&busy));
}

/// Words behind `--`, and mount(8) that only tries.
#[test]
fn words_of_the_command_line() {
    if !may_run() {
        return;
    }
    let place = Place::new(64 << 20);
    place.folder.ok(&["mount", "-o", "ro", "--", "vol", "mnt"]);
    assert!(place.is_mounted());
    place.forebay_umount();
    let link = place.folder.path("mount.forebay");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_forebay"), link).unwrap();
    place.run("./mount.forebay", &["vol", "mnt", "-f", "-o", "rw"]);
    assert!(!place.is_mounted());
}

/// A file of a volume that is mounted cannot be served by a second process: that names the first
/// one, and the way that there is.
#[test]
fn export_of_mounted_volume_file_names_owner_process() {
    if !may_run() {
        return;
    }
    let place = Place::new(64 << 20);
    place.mount("");
    std::fs::write(place.mnt("disk"), vec![3; 1 << 20]).unwrap();
    let pid = format!("process {}", place.pid());
    let (there, cache) = (place.mnt("disk").display().to_string(), ["--cache-size", "32M"]);
    for words in [&["export", "vol:/disk", "-U", "sock"][..], &["attach", "vol:/disk"]] {
        let said = place.folder.refused(4, &[words, &cache].concat());
        assert!(said.contains(&pid) && said.contains(&there), "{words:?}: {said}");
    }
    // By that name it is served: through the process that has the volume.
    let server = place.folder.export(&["mnt/disk", "--cache-size", "32M"]);
    let mut client = server.client("");
    client.write(4096, &[9; 4096]).unwrap();
    client.disconnect();
    server.stop();
    let bytes = std::fs::read(place.mnt("disk")).unwrap();
    assert_eq!((bytes[4095], bytes[4096], bytes[8191], bytes[8192]), (3, 9, 9, 3));
    place.umount();
}
