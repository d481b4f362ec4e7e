//! What goes past the cache on a mount: openings by ioctl, files by their policy.

use crate::common::place::{Place, may_run};
use crate::common::volume::bytes_of;
use serde_json::Value;
use std::fs::File;
use std::io::{Read, Write};

/// Sets the mode of its standard input, says what it is then, and reads it all.
const BY_IOCTL: &str = "\
import fcntl, os, sys, struct
fcntl.ioctl(0, 0x4004fb01, struct.pack('=I', int(sys.argv[1])))
print(struct.unpack('=I', fcntl.ioctl(0, 0x8004fb02, b'0000'))[0])
while os.read(0, 100000): pass";

fn json(text: &str) -> Value {
    serde_json::from_str(text).expect("JSON")
}

/// Blocks of a file on the mount that are in the cache.
fn resident(place: &Place, name: &str) -> u64 {
    let found = json(&place.folder.ok(&["fincore", &format!("mnt/{name}"), "--json"]));
    found["resident_blocks"].as_u64().expect("a number")
}

fn counter(place: &Place, name: &str) -> u64 {
    let stat = json(&place.folder.ok(&["stat", "mnt", "--json"]));
    stat["stats"][name].as_u64().unwrap_or_else(|| panic!("no counter {name}: {stat}"))
}

/// A file of so many bytes that is durable, open, and not in the cache.
fn made(place: &Place, name: &str, len: usize) -> File {
    let mut options = File::options();
    let mut file =
        options.read(true).write(true).create_new(true).open(place.mnt(name)).expect("new");
    file.write_all(&bytes_of(len as u64, len)).expect("room");
    file.sync_all().expect("durable");
    place.folder.ok(&["tune", "mnt", "--drop-clean"]);
    assert_eq!(resident(place, name), 0);
    file
}

#[test]
fn open_file_becomes_uncached_by_ioctl() {
    if !may_run() {
        return;
    }
    let place = Place::new(128 << 20);
    place.mount("cache=own");
    let held = made(&place, "file", 4 << 20);
    for (mode, blocks) in [(1, 0), (2, 0), (0, 1024)] {
        let line = format!("exec python3 -c \"$0\" {mode} < mnt/file");
        assert_eq!(place.run("sh", &["-c", &line, BY_IOCTL]), format!("{mode}\n"));
        assert_eq!(resident(&place, "file"), blocks, "mode {mode}");
    }
    let refused = "python3 -c \"$0\" 3 < mnt/file 2>&1 | grep -c 'Errno 95'";
    assert_eq!(place.run("sh", &["-c", refused, BY_IOCTL]), "1\n");
    drop(held);
    place.umount();
}

/// What the command says, what is inherited, and what stays as it was.
#[test]
fn policies_are_set_shown_and_inherited() {
    if !may_run() {
        return;
    }
    let place = Place::new(64 << 20);
    let folder = &place.folder;
    place.mount("");
    std::fs::create_dir(place.mnt("dir")).unwrap();
    std::fs::write(place.mnt("dir/before"), b"x").unwrap();
    std::os::unix::fs::symlink("before", place.mnt("dir/link")).unwrap();
    let of = |path: &str| folder.ok(&["policy", &format!("mnt/{path}")]);
    assert_eq!(of("dir"), "default\n");
    folder.ok(&["policy", "mnt/dir", "uncached"]);
    assert_eq!((of("dir"), of("dir/before")), ("uncached\n".into(), "default\n".into()));
    // By open, by mkdir, by mknod, without a name at first, by a rename from elsewhere.
    std::fs::write(place.mnt("dir/file"), b"x").unwrap();
    std::fs::create_dir_all(place.mnt("dir/a/b")).unwrap();
    std::fs::write(place.mnt("dir/a/b/file"), b"x").unwrap();
    let unnamed = "import os
fd = os.open('mnt/dir', os.O_TMPFILE | os.O_RDWR)
assert os.getxattr(fd, 'user.forebay.policy') == b'uncached'
os.mknod('mnt/dir/node')";
    place.run("python3", &["-c", unnamed]);
    std::fs::write(place.mnt("elsewhere"), b"x").unwrap();
    std::fs::rename(place.mnt("elsewhere"), place.mnt("dir/moved")).unwrap();
    for path in ["dir/file", "dir/a", "dir/a/b", "dir/a/b/file", "dir/node"] {
        assert_eq!(of(path), "uncached\n", "{path}");
    }
    assert_eq!(of("dir/moved"), "default\n", "it was not made there");
    // Times of what was made are what the file system has, not what they were before it had a
    // policy.
    let changed = |path: &str| place.run("stat", &["-c", "%z", &format!("mnt/{path}")]);
    let told = changed("dir/file");
    place.forebay_umount();
    place.mount("");
    assert_eq!(changed("dir/file"), told);
    let of = |path: &str| folder.ok(&["policy", &format!("mnt/{path}")]);
    assert_eq!(of("dir/a/b/file"), "uncached\n", "it is on the volume");

    folder.ok(&["policy", "-R", "mnt/dir", "direct"]);
    assert_eq!((of("dir/before"), of("dir/a/b")), ("direct\n".into(), "direct\n".into()));
    for policy in ["cached", "default"] {
        folder.ok(&["policy", "-R", "mnt/dir", policy]);
        let all = folder.ok(&["policy", "-R", "mnt/dir"]);
        assert!(all.lines().count() == 8 && all.lines().all(|l| l.starts_with(policy)), "{all}");
        std::fs::write(place.mnt("dir/later"), b"x").unwrap();
        assert_eq!(of("dir/later"), format!("{policy}\n"));
        std::fs::remove_file(place.mnt("dir/later")).unwrap();
    }

    assert!(folder.refused(2, &["policy", "mnt/dir", "sometimes"]).contains("sometimes"));
    assert!(folder.refused(3, &["policy", "run", "uncached"]).contains("not on a mount"));
    assert!(folder.refused(3, &["policy", "mnt/nowhere"]).contains("nowhere"));
    let none = rustix::fs::XattrFlags::empty();
    let odd = rustix::fs::setxattr(place.mnt("dir/file"), "user.forebay.policy", b"odd", none);
    assert_eq!(odd, Err(rustix::io::Errno::OPNOTSUPP));
    place.umount();
}

/// The headline of uncached reading, through a mount: a backup by GNU tar of a file many times the
/// cache evicts nothing of what is hot, leaves nothing of its own, and reads each byte from the
/// device about once: tar reads 10,240 bytes at 9,728 + n x 10,240, which no block begins or ends
/// with.
#[test]
fn tar_backup_evicts_no_hot_data() {
    if !may_run() {
        return;
    }
    let place = Place::new(256 << 20);
    let mut hot = {
        place.mount("kernel_cache=never,cache_size=32M");
        made(&place, "hot", 4 << 20)
    };
    std::fs::create_dir(place.mnt("backup")).unwrap();
    place.folder.ok(&["policy", "mnt/backup", "uncached"]);
    let len = 72 << 20;
    // It is written uncached, too: the policy is there when it is made.
    let held = made(&place, "backup/big", len);
    let warm = |hot: &mut File| {
        use std::os::unix::fs::FileExt;
        let mut buf = vec![0; 1 << 16];
        for _ in 0..3 {
            for n in 0..64 {
                hot.read_exact_at(&mut buf, n << 16).expect("it is there");
            }
        }
    };
    warm(&mut hot);
    assert_eq!(resident(&place, "hot"), 1024);
    let names = ["uncached_read_bytes", "readahead_bytes", "evicted_blocks"];
    let before = names.map(|name| counter(&place, name));
    let sum = place.run("sh", &["-c", "tar -cf - -C mnt backup | cat >/dev/null"]);
    assert_eq!(sum, "");
    let after = names.map(|name| counter(&place, name));
    assert_eq!(resident(&place, "hot"), 1024, "all of it");
    assert_eq!(resident(&place, "backup/big"), 0);
    assert_eq!(after[2], before[2], "nothing was evicted");
    let read = after[0] - before[0] + after[1] - before[1];
    assert!((len as u64..len as u64 * 11 / 10).contains(&read), "{read} bytes for {len}");
    // What tar reads is what is there.
    place.run("sh", &["-c", "tar -cf - -C mnt backup/big | tar -xOf - | cmp - mnt/backup/big"]);
    let mut all = Vec::new();
    File::open(place.mnt("backup/big")).unwrap().read_to_end(&mut all).unwrap();
    assert!(all == bytes_of(len as u64, len), "and that is what was written");
    drop((held, hot));
    place.umount();
}
