//! A volume on a block device, which has its size already: made, used, checked, and grown when the
//! device was.

use crate::common::Folder;
use crate::common::place::{forebay_umount, may_run};
use crate::common::volume::{look, make_tree};
use std::os::unix::fs::FileExt;
use std::process::Command;

/// A loop device, detached on drop.
struct Loop(String);

impl Loop {
    fn new(folder: &Folder, image: &str) -> Self {
        let mut command = Command::new("losetup");
        command.args(["--find", "--show"]).arg(folder.path(image));
        let out = command.output().expect("losetup");
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        Self(String::from_utf8(out.stdout).expect("a path").trim().to_string())
    }

    /// Takes the file's new size.
    fn grow(&self) {
        assert!(Command::new("losetup").args(["-c", &self.0]).status().expect("losetup").success());
    }
}

impl Loop {
    /// Flushes that the device has completed.
    fn flushes(&self) -> u64 {
        let name = self.0.strip_prefix("/dev/").expect("a device");
        let stat = std::fs::read_to_string(format!("/sys/block/{name}/stat")).expect("counters");
        stat.split_whitespace().nth(15).and_then(|n| n.parse().ok()).expect("a count of flushes")
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _detached = Command::new("losetup").args(["-d", &self.0]).status();
    }
}

/// A sync on a mount costs one flush of the block device below. The story: the log wrote its record
/// with FUA, and the kernel flushes a block device once more after such a write.
#[test]
fn sync_on_block_device_flushes_it_once() {
    if !may_run() {
        return;
    }
    const SYNCS: u64 = 20;
    let folder = Folder::new();
    std::fs::File::create(folder.path("disk")).unwrap().set_len(256 << 20).unwrap();
    std::fs::create_dir(folder.path("mnt")).unwrap();
    let device = Loop::new(&folder, "disk");
    folder.ok(&["create", &device.0]);
    folder.ok(&["mount", &device.0, "mnt", "-o", "cache_size=64M"]);
    let file = std::fs::File::create(folder.path("mnt/file")).unwrap();
    file.write_all_at(&[1; 1 << 20], 0).unwrap();
    file.sync_all().unwrap();
    // Where the log is idle for 10 ms between two syncs, it writes a mark, with a flush. So on a
    // slow machine each round may have a mark for most of its syncs, but not for all of them.
    let rounds = (0..20).map(|round| {
        let before = device.flushes();
        for n in 0..SYNCS {
            file.write_all_at(&[round; 4096], n * 8192).unwrap();
            file.sync_all().unwrap();
        }
        device.flushes() - before
    });
    let least = rounds.min().expect("rounds");
    drop(file);
    forebay_umount(&folder, "mnt");
    assert!(least < 2 * SYNCS - 2, "{least} flushes for {SYNCS} syncs");
}

/// `create` on a block device failed with "unaligned request": what it looks for signatures with
/// was not aligned as direct I/O needs it.
#[test]
fn volume_on_block_device_works_and_grows() {
    if !may_run() {
        return;
    }
    let folder = Folder::new();
    make_tree(&folder.path("tree"));
    let file = std::fs::File::create(folder.path("disk")).unwrap();
    file.set_len(256 << 20).unwrap();
    let device = Loop::new(&folder, "disk");
    let (at, root) = (device.0.clone(), format!("{}:/", device.0));
    folder.ok(&["create", &at]);
    folder.refused(1, &["create", &at]);
    folder.ok(&["cp", "-r", "--compare", "tree", &root]);
    folder.ok(&["fsck", &at]);
    let size = |json: String| -> u64 {
        let json: serde_json::Value = serde_json::from_str(&json).unwrap();
        json["size"].as_u64().unwrap_or_else(|| panic!("{json}"))
    };
    let before = size(folder.ok(&["stat", &at, "--json"]));
    file.set_len(512 << 20).unwrap();
    device.grow();
    folder.ok(&["grow", &at]);
    let after = size(folder.ok(&["stat", &at, "--json"]));
    assert!(before <= 256 << 20 && after > 500 << 20, "{before} {after}");
    folder.ok(&["cp", "-r", &format!("{root}tree"), "back"]);
    assert_eq!(look(&folder.path("tree")), look(&folder.path("back")));
    folder.ok(&["fsck", &at]);
}
