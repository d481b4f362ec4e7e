//! A volume on a block device, which has its size already: made, used, checked, and grown when the
//! device was.

use crate::common::Folder;
use crate::common::place::may_run;
use crate::common::volume::{look, make_tree};
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

impl Drop for Loop {
    fn drop(&mut self) {
        let _detached = Command::new("losetup").args(["-d", &self.0]).status();
    }
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
