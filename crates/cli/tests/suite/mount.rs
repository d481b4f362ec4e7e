//! `forebay mount` and `forebay umount`: a volume as a file system that programs use as any other,
//! ended in each way that there is.

use crate::common::place::{Place, may_run};
use crate::common::{number, until};

/// Programs that people use work on a mount, and umount(8) leaves everything on the volume.
#[test]
fn programs_work_and_umount_makes_it_durable() {
    if !may_run() {
        return;
    }
    let place = Place::new(512 << 20);
    place.mount("");
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
    assert!(mounts.contains("fuseblk.forebay"), "{mounts}");
    // A tree of files by git: made, cloned, checked.
    std::fs::create_dir(place.folder.path("source")).unwrap();
    for n in 0..200_u32 {
        let path = place.folder.path(&format!("source/file-{n}"));
        std::fs::write(path, format!("line {n}\n").repeat(n as usize)).unwrap();
    }
    std::os::unix::fs::symlink("file-7", place.folder.path("source/link")).unwrap();
    place.run("git", &["-C", "source", "init", "-q", "-b", "main"]);
    place.run("git", &["-C", "source", "add", "-A"]);
    let who = ["-c", "user.name=x", "-c", "user.email=x@y", "-C", "source"];
    place.run("git", &[&who[..], &["commit", "-q", "-m", "all"]].concat());
    place.run("git", &["clone", "-q", "source", "mnt/clone"]);
    place.run("git", &["-C", "mnt/clone", "gc", "-q"]);
    // A copy with all attributes, twice: the second time there is nothing to do.
    place.run("rsync", &["-aHAX", "--exclude=.git", "source/", "mnt/copy/"]);
    let again = place.run("rsync", &["-aHAXi", "--exclude=.git", "source/", "mnt/copy/"]);
    assert_eq!(again, "", "rsync finds a difference");
    let make = "pragma journal_mode=wal; create table t(a integer primary key, b blob);
        with recursive n(i) as (select 1 union all select i+1 from n where i < 5000)
        insert into t select i, randomblob(100) from n; update t set b = randomblob(200) where a % 3 = 0;";
    place.run("sqlite3", &["mnt/db", make]);
    let sum = "select count(*), sum(length(b)), hex(sum(a * length(b))) from t";
    let before = place.run("sqlite3", &["mnt/db", sum]);
    place.umount();
    // The image is free at once, and what was written is there.
    place.mount("ro");
    place.run("diff", &["-r", "--exclude=.git", "source", "mnt/copy"]);
    place.run("diff", &["-r", "--exclude=.git", "source", "mnt/clone"]);
    assert_eq!(place.run("sqlite3", &["file:mnt/db?immutable=1", sum]), before);
    let refused = std::fs::write(place.mnt("new"), b"x").unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(30), "read-only");
    place.umount();
    place.mount("");
    place.run("git", &["-C", "mnt/clone", "fsck", "--full", "--strict"]);
    assert_eq!(place.run("sqlite3", &["mnt/db", "pragma integrity_check"]), "ok\n");
    place.forebay_umount();
    assert!(!place.is_mounted());
}

/// Random operations in every mode on several files at a time, in a cache that is smaller than
/// their working set; the next mount finds the same content.
#[test]
fn files_are_what_was_written() {
    if !may_run() {
        return;
    }
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../fuse/tests/mount/fsx.py");
    let place = Place::new(256 << 20);
    for words in ["kernel_cache=small", "kernel_cache=never", "kernel_cache=always,via=plain"] {
        place.mount(words);
        let run = |seed: u32| {
            let file = format!("mnt/file-{seed}");
            place.run("python3", &[script, &file, &seed.to_string(), "1500"]);
        };
        std::thread::scope(|scope| {
            for seed in 1..=4 {
                scope.spawn(move || run(seed));
            }
        });
        let files = ["mnt/file-1", "mnt/file-2", "mnt/file-3", "mnt/file-4"];
        let sums = place.run("sha256sum", &files);
        place.forebay_umount();
        place.mount("ro");
        assert_eq!(place.run("sha256sum", &files), sums, "{words}");
        place.forebay_umount();
    }
}

/// The story: a file's cached data was dropped with its last close. Programs that open, read and
/// close had no cache, and the image was read each time.
#[test]
fn closed_file_stays_cached() {
    if !may_run() {
        return;
    }
    let place = Place::new(128 << 20);
    place.mount("kernel_cache=never");
    let path = place.mnt("file");
    let want: Vec<u8> = (0..3_000_000_u32).map(|n| (n / 7) as u8).collect();
    std::fs::write(&path, &want).unwrap();
    place.forebay_umount();
    place.mount("kernel_cache=never");
    let misses = || {
        let stat = place.folder.ok(&["stat", "mnt", "--json"]);
        number(&stat, "miss_bytes") + number(&stat, "readahead_bytes")
    };
    let nothing = misses();
    assert!(std::fs::read(&path).unwrap() == want);
    let read = misses();
    assert!(read > nothing, "it was on the image");
    for _ in 0..3 {
        assert!(std::fs::read(&path).unwrap() == want);
    }
    assert_eq!(misses(), read, "each time it was opened anew");
    std::fs::remove_file(&path).unwrap();
    std::fs::write(&path, vec![7; 100_000]).unwrap();
    assert!(std::fs::read(&path).unwrap() == [7; 100_000]);
    place.umount();
}

/// mount.P1: what is wrong is said before anything stays.
#[test]
fn p1_invalid_mount_is_refused_and_leaves_nothing() {
    if !may_run() {
        return;
    }
    let place = Place::new(64 << 20);
    let fails = |words: &[&str], status: i32, what: &str| {
        let done = place.folder.forebay(words);
        let text = String::from_utf8_lossy(&done.stderr).into_owned();
        assert_eq!(done.status.code(), Some(status), "{words:?}: {text}");
        assert!(text.contains(what), "{words:?}: {text}");
    };
    fails(&["mount", "missing", "mnt"], 3, "missing");
    fails(&["mount", "vol", "nowhere"], 3, "nowhere");
    fails(&["mount", "vol", "vol"], 2, "not a directory");
    fails(&["mount", "vol", "."], 2, "hide its own image");
    fails(&["mount", "vol", "mnt", "-o", "rw,magic"], 2, "magic");
    std::fs::write(place.folder.path("other"), vec![7; 1 << 20]).unwrap();
    fails(&["mount", "other", "mnt"], 5, "other");
    fails(&["umount", "mnt"], 2, "not a mount of Forebay");
    fails(&["umount", "nowhere"], 3, "nowhere");
    assert!(!place.is_mounted());
    place.mount("kernel_cache=never,nodev");
    std::fs::create_dir(place.folder.path("mnt2")).unwrap();
    fails(&["mount", "vol", "mnt2"], 4, "vol");
    let held = std::fs::File::create(place.mnt("held")).unwrap();
    fails(&["umount", "mnt"], 4, "in use");
    drop(held);
    place.forebay_umount();
}

/// mount.P2, mount.P3: a signal ends a mount as umount does, on either type; afterwards the image
/// is free.
#[test]
fn p2_p3_signal_unmounts_with_all_data_durable() {
    if !may_run() {
        return;
    }
    let place = Place::new(64 << 20);
    for (round, words) in ["via=block", "via=plain"].iter().enumerate() {
        place.mount(words);
        std::fs::write(place.mnt(&format!("file-{round}")), vec![round as u8; 300_000]).unwrap();
        place.signal("TERM");
        until("the mount is gone", || !place.is_mounted());
        until("the image is free", || {
            place.folder.forebay(&["mount", "vol", "mnt"]).status.success()
        });
        for n in 0..=round {
            let bytes = std::fs::read(place.mnt(&format!("file-{n}"))).unwrap();
            assert!(bytes.len() == 300_000 && bytes.iter().all(|b| *b == n as u8), "file-{n}");
        }
        place.forebay_umount();
        assert!(!place.is_mounted());
    }
}

/// A daemon that is killed: every call fails at once, and what was synced is there after a new
/// mount.
#[test]
fn after_kill_9_what_was_synced_is_there() {
    if !may_run() {
        return;
    }
    let place = Place::new(64 << 20);
    place.mount("");
    let mut held = std::fs::File::create(place.mnt("synced")).unwrap();
    std::io::Write::write_all(&mut held, &[5; 100_000]).unwrap();
    held.sync_all().unwrap();
    std::fs::File::open(place.mnt("")).unwrap().sync_all().unwrap();
    place.signal("KILL");
    until("calls fail", || {
        let failed = std::fs::metadata(place.mnt("synced")).err().and_then(|e| e.raw_os_error());
        matches!(failed, Some(107 | 103))
    });
    assert_eq!(held.sync_all().unwrap_err().raw_os_error(), Some(107));
    drop(held);
    place.forebay_umount();
    place.mount("");
    assert_eq!(std::fs::read(place.mnt("synced")).unwrap(), [5; 100_000]);
    place.umount();
}

/// sync(1) and syncfs(2) reach a mount of root's: names and content that no program has synced by
/// fsync(2) are there after a kill.
#[test]
fn sync_makes_everything_durable() {
    if !may_run() {
        return;
    }
    let place = Place::new(64 << 20);
    for (n, words) in [&["-f", "mnt"][..], &[]].into_iter().enumerate() {
        place.mount("via=block");
        let dir = place.mnt(&format!("d{n}"));
        std::fs::create_dir(&dir).unwrap();
        for file in 0..20_u8 {
            std::fs::write(dir.join(file.to_string()), vec![file; 10_000]).unwrap();
        }
        // Without words it waits for all file systems of the machine: no limit of ours holds.
        let mut sync = std::process::Command::new("sync");
        let status = sync.args(words).current_dir(place.folder.path("")).status();
        assert!(status.is_ok_and(|status| status.success()), "sync {words:?}");
        place.signal("KILL");
        until("calls fail", || {
            std::fs::metadata(place.mnt("x"))
                .is_err_and(|e| matches!(e.raw_os_error(), Some(107 | 103)))
        });
        place.forebay_umount();
        place.mount("");
        for file in 0..20_u8 {
            let bytes = std::fs::read(dir.join(file.to_string()))
                .unwrap_or_else(|e| panic!("sync {words:?}: {e}"));
            assert!(bytes.len() == 10_000 && bytes.iter().all(|b| *b == file), "sync {words:?}");
        }
        place.umount();
    }
}

/// As mount(8) and umount(8) call it: by other names, with words of their own.
#[test]
fn by_the_names_of_helpers() {
    if !may_run() {
        return;
    }
    let place = Place::new(64 << 20);
    for name in ["mount.forebay", "umount.fuse.forebay"] {
        let link = place.folder.path(name);
        std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_forebay"), link).unwrap();
    }
    let words = ["vol", "mnt", "-s", "-n", "-o", "rw,cache_size=64M,via=plain,nofail"];
    place.run("./mount.forebay", &words);
    assert!(place.is_mounted());
    std::fs::write(place.mnt("f"), b"x").unwrap();
    let mnt = place.folder.path("mnt").display().to_string();
    place.run("./umount.fuse.forebay", &[&mnt, "-n", "-t", "fuse.forebay"]);
    assert!(!place.is_mounted());
    place.mount("ro");
    assert_eq!(std::fs::read(place.mnt("f")).unwrap(), b"x");
}

/// The option and the word of the same name; the option overrules, and a value that makes no sense
/// is refused by name.
#[test]
fn kernel_cache_mode_is_option_and_mount_word() {
    if !may_run() {
        return;
    }
    let place = Place::new(64 << 20);
    let shown = || place.folder.ok(&["stat", "mnt"]);
    for (words, wanted) in [
        (&["--cache", "own"][..], "cache own"),
        (&["--kernel-cache", "never"], "cache own"),
        (&["-o", "cache=own", "--cache=kernel"], "cache kernel"),
        (&["-o", "kernel_cache=never", "--kernel-cache=always"], "cache kernel"),
        (&["-o", "cache=kernel"], "cache kernel"),
        (&["-o", "kernel_cache=never"], "cache own"),
        (&[], "cache kernel"),
    ] {
        place.folder.ok(&[&["mount", "vol", "mnt"], words].concat());
        assert!(shown().contains(wanted), "{words:?}: {}", shown());
        place.umount();
    }
    let out = place.folder.forebay(&["mount", "vol", "mnt", "--kernel-cache", "some"]);
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.code() == Some(2) && said.contains("--kernel-cache"), "{said}");
    assert!(!place.is_mounted());
}
