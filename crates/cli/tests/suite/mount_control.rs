//! The control socket of a mount: `stat`, `tune`, `fincore`, and `ls`, `cp`, `stat`, `extents` of a
//! volume that is mounted, which go through the process that has it open.

use crate::common::place::{Place, may_run};
use crate::common::volume::{bytes_of, look, make_tree};
use crate::common::{stderr, until};
use forebay_base::ErrorKind;
use serde_json::Value;
use std::io::Read;

fn json(text: &str) -> Value {
    serde_json::from_str(text).expect("JSON")
}

/// Numbers and knobs of a mount, by its directory, by a path on it, by its process, by its socket.
#[test]
fn stat_and_tune_find_a_mount() {
    if !may_run() {
        return;
    }
    let place = Place::new(64 << 20);
    place.mount("control=sock,inodes=5000");
    std::fs::create_dir(place.mnt("dir")).unwrap();
    std::fs::write(place.mnt("dir/file"), bytes_of(1, 1 << 20)).unwrap();
    let (pid, folder) = (place.pid().to_string(), &place.folder);
    for words in [
        &["stat", "mnt", "--json"][..],
        &["stat", "mnt/dir", "--json"],
        &["stat", "--control", "sock", "--json"],
    ] {
        let stat = json(&folder.ok(words));
        assert_eq!(stat["pid"].to_string(), pid, "{words:?}");
        let mount = &stat["mounts"][0];
        assert_eq!(mount["volume"], folder.path("vol").display().to_string());
        assert_eq!(mount["dir"], folder.path("mnt").display().to_string());
        assert_eq!((&mount["kind"], &mount["cache"]), (&"block".into(), &"kernel".into()));
        assert!(mount["inodes_known"].as_u64().unwrap() >= 2, "{mount}");
        assert!(stat["stats"]["dirty_bytes"].is_u64());
    }
    let held = std::fs::File::open(place.mnt("dir/file")).unwrap();
    // The kernel sends RELEASE after close(2) has returned: the count follows.
    until("one open file, the one that is held", || {
        json(&folder.ok(&["stat", "mnt", "--json"]))["mounts"][0]["open_files"] == 1
    });
    drop(held);
    assert!(folder.ok(&["stat", "mnt"]).contains("cache kernel"));
    until("no open file, in the metrics too", || {
        folder.ok(&["stat", "mnt", "--prometheus"]).contains("forebay_mount_open_files 0")
    });
    // What the front end takes of the one number was in no row.
    let budget = folder.ok(&["stat", "mnt", "--budget"]);
    for row in ["sum", "buffers of the mount's threads", "requests of the mount that wait"] {
        assert!(budget.contains(row), "{row}: {budget}");
    }
    assert!(folder.refused(3, &["stat", "run"]).contains("not on a mount of Forebay"));
    assert!(folder.refused(2, &["stat", "vol", "--budget"]).contains("about a process"));

    assert_eq!(
        folder.ok(&["tune", "mnt", "dirty_expire_centisecs=321"]),
        "dirty_expire_centisecs=321\n"
    );
    assert!(folder.ok(&["tune", "mnt"]).contains("dirty_expire_centisecs=321\n"));
    // The one number is what it was mounted with: the cache and the front end.
    assert!(folder.ok(&["tune", "mnt"]).contains(&format!("cache_size={}\n", 64 << 20)));
    folder.ok(&["tune", "mnt", "cache_size=48M"]);
    assert!(folder.ok(&["tune", "mnt"]).contains(&format!("cache_size={}\n", 48 << 20)));
    assert!(folder.refused(2, &["tune", "mnt", "cache_size=1M"]).contains("at least"));
    assert!(folder.refused(2, &["tune", "mnt", "no_such=1"]).contains("no_such"));
    assert_eq!(std::fs::read(place.mnt("dir/file")).unwrap(), bytes_of(1, 1 << 20));
    place.umount();
    assert!(!folder.path("sock").exists(), "it goes with the mount");
}

/// A script that unmounts and mounts again found the control socket of the mount before: umount(2)
/// returned while the process still had to join its threads and end its watchdog, and only then
/// removed the socket.
#[test]
fn control_socket_after_umount_returns_is_gone() {
    if !may_run() {
        return;
    }
    let place = Place::new(64 << 20);
    for round in 0..5 {
        place.mount("control=sock");
        assert!(place.folder.path("sock").exists());
        // The call itself: the end of umount(8) would give the process some time.
        // It is busy while a child that another test has forked holds copies of its files.
        until("umount(2)", || {
            let done = forebay_fuse::mount::unmount(&place.folder.path("mnt"), false);
            done.map_err(|e| assert_eq!(e.kind(), ErrorKind::Busy, "{e}")).is_ok()
        });
        assert!(!place.folder.path("sock").exists(), "round {round}: umount(2) has returned");
    }
}

/// How much of a file on a mount is cached, and that `--drop-clean` evicts it.
#[test]
fn fincore_of_a_file_on_a_mount() {
    if !may_run() {
        return;
    }
    let place = Place::new(64 << 20);
    place.mount("kernel_cache=never");
    std::fs::write(place.mnt("file"), bytes_of(2, 3 << 20)).unwrap();
    let mut file = std::fs::File::open(place.mnt("file")).unwrap();
    file.sync_all().unwrap();
    let resident = || {
        let found = json(&place.folder.ok(&["fincore", "mnt/file", "--json"]));
        assert_eq!(found["total_blocks"], (3 << 20) / 4096);
        found["resident_blocks"].as_u64().unwrap()
    };
    place.folder.ok(&["tune", "mnt", "--drop-clean"]);
    assert_eq!(resident(), 0);
    file.read_to_end(&mut Vec::new()).unwrap();
    assert_eq!(resident(), (3 << 20) / 4096);
    drop(file);
    assert!(place.folder.refused(3, &["fincore", "vol"]).contains("no running process"));
    place.umount();
}

/// at.A1, remote.R4: commands on a volume that is mounted go through its process: both see what the
/// other does, and it is durable when the mount has ended.
#[test]
fn commands_go_through_the_process_of_the_mount() {
    if !may_run() {
        return;
    }
    let place = Place::new(256 << 20);
    let folder = &place.folder;
    place.mount("");
    make_tree(&folder.path("tree"));
    std::fs::write(place.mnt("file"), b"of a program").unwrap();
    assert_eq!(folder.ok(&["ls", "vol"]), "file\n");
    let stat = json(&folder.ok(&["stat", "vol", "--json"]));
    assert_eq!(stat["pid"].to_string(), place.pid().to_string());
    assert_eq!(stat["mounted_on"], folder.path("mnt").display().to_string());
    assert!(folder.ok(&["stat", "vol"]).contains(&folder.path("mnt").display().to_string()));
    folder.ok(&["cp", "vol:/file", "out"]);
    assert_eq!(std::fs::read(folder.path("out")).unwrap(), b"of a program");
    folder.ok(&["cp", "-r", "--compare", "tree", "vol:/"]);
    until("the mount shows what was copied", || place.mnt("tree/a/file 7").exists());
    assert_eq!(look(&folder.path("tree")), look(&place.mnt("tree")));
    let found = folder.ok(&["extents", "vol:/tree/a/file 7", "--json"]);
    assert_eq!(json(&found)["size"], (3 << 20) + 17, "{found}");
    // A client with another runtime directory finds the socket through the mount itself.
    let mut elsewhere = folder.command(&["ls", "vol"]);
    elsewhere.env("XDG_RUNTIME_DIR", folder.path("tree"));
    let listed = crate::common::output(elsewhere);
    assert_eq!(String::from_utf8_lossy(&listed.stdout), "file\ntree\n", "{}", stderr(&listed));
    for words in [&["fsck", "vol"][..], &["grow", "vol"], &["export", "vol", "-U", "s"]] {
        let said = folder.refused(4, words);
        assert!(said.contains(&format!("process {}", place.pid())), "{words:?}: {said}");
    }
    place.umount();
    assert!(folder.ok(&["stat", "vol"]).contains("not open"));
    folder.ok(&["cp", "-r", "vol:/tree", "after"]);
    assert_eq!(look(&folder.path("tree")), look(&folder.path("after")), "it was durable");
    folder.ok(&["fsck", "vol"]);
}
