//! Words after `-o` do what they say: seen in the system's table of mounts, in `stat`, and in the
//! process.

use crate::common::place::{Place, may_run};
use crate::common::until;
use serde_json::Value;
use std::collections::BTreeSet;

/// Options of the mount in the system's table: those of the mount, and those of its file system.
fn in_table(place: &Place) -> (Vec<String>, Vec<String>) {
    let table = std::fs::read_to_string("/proc/self/mountinfo").expect("a table of mounts");
    let dir = place.folder.path("mnt").display().to_string();
    let line = table.lines().find(|line| line.split(' ').nth(4) == Some(&dir)).expect("mounted");
    let of = |word: Option<&str>| word.expect("a field").split(',').map(str::to_string).collect();
    (of(line.split(' ').nth(5)), of(line.split(' ').next_back()))
}

fn stat(place: &Place) -> Value {
    serde_json::from_str(&place.folder.ok(&["stat", "mnt", "--json"])).expect("JSON")
}

#[test]
fn mount_table_shows_kernel_options() {
    if !may_run() {
        return;
    }
    let place = Place::new(64 << 20);
    for (words, there, absent) in [
        ("noexec,nosuid,nodev,noatime", &["noexec", "nosuid", "nodev", "noatime"][..], &[][..]),
        ("exec,suid,dev,atime", &["rw"], &["noexec", "nosuid", "nodev", "noatime", "ro"]),
        ("ro,noexec", &["ro", "noexec"], &["rw", "nosuid"]),
    ] {
        place.mount(words);
        let (of_mount, _) = in_table(&place);
        for word in there {
            assert!(of_mount.contains(&word.to_string()), "-o {words}: no {word} in {of_mount:?}");
        }
        for word in absent {
            assert!(!of_mount.contains(&word.to_string()), "-o {words}: {word} in {of_mount:?}");
        }
        place.umount();
    }
}

/// A program on it starts, or does not; its time of reading moves, or does not.
#[test]
fn noexec_and_noatime_are_kept_to() {
    if !may_run() {
        return;
    }
    let place = Place::new(64 << 20);
    place.mount("");
    place.run("sh", &["-c", "cp /bin/true mnt/true && touch -a -d 2001-01-01 mnt/true"]);
    place.umount();
    for (words, starts, moves) in [("noexec,noatime", false, false), ("", true, true)] {
        place.mount(words);
        let line = "cat mnt/true > /dev/null; stat -c %X mnt/true";
        let read = place.run("sh", &["-c", line]).trim().parse::<i64>().expect("seconds");
        assert_eq!(read > 1_100_000_000, moves, "-o {words}: {read}");
        let line = "mnt/true 2> /dev/null; echo $?";
        assert_eq!(place.run("sh", &["-c", line]) == "0\n", starts, "-o {words}");
        place.umount();
    }
}

#[test]
fn engine_direct_io_and_threads_are_those_of_the_process() {
    if !may_run() {
        return;
    }
    let place = Place::new(64 << 20);
    let readers = || {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", place.pid())).expect("a process");
        let names = tasks.flatten().map(|t| std::fs::read_to_string(t.path().join("comm")));
        let found = names.flatten().filter(|name| name.starts_with("forebay-fuse"));
        found.collect::<BTreeSet<_>>().len()
    };
    for (threads, aio, direct) in [(1, "threads", "off"), (3, "threads", "on")] {
        place.mount(&format!("threads={threads},aio={aio},direct_io={direct}"));
        let stat = stat(&place);
        assert_eq!(stat["aio"], aio, "{stat}");
        assert_eq!(stat["mounts"][0]["direct_io"], direct == "on", "{stat}");
        // A thread has the name of another one until it first runs.
        until(&format!("{threads} threads read requests"), || readers() == threads);
        place.umount();
    }
}

/// Root's mounts are for all. By the helper a mount is its owner's, and of the plain type.
#[test]
fn allow_other_and_the_helper() {
    if !may_run() {
        return;
    }
    let place = Place::new(64 << 20);
    for (words, shared, kind) in [
        ("", true, "block"),
        ("via=plain", true, "plain"),
        ("via=helper", false, "plain"),
        ("via=helper,allow_other", true, "plain"),
    ] {
        place.mount(words);
        let (_, of_fs) = in_table(&place);
        assert_eq!(of_fs.contains(&"allow_other".to_string()), shared, "-o {words}: {of_fs:?}");
        assert_eq!(stat(&place)["mounts"][0]["kind"], kind, "-o {words}");
        place.forebay_umount();
    }
}
