//! Volumes that an earlier version made (`tests/data/volumes-*`) open with this one: every path is
//! as its list says, the volume can be changed, and it is intact afterwards.

use crate::common::{Folder, output, stderr};
use std::path::Path;
use std::process::Command;

/// Unpacks the image `name` into the folder as `v`, with the data folder that it came from.
fn unpack(folder: &Folder, name: &str) -> std::path::PathBuf {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/volumes-d15dd77");
    let image = std::fs::File::create(folder.path("v")).expect("an image");
    let mut gunzip = Command::new("gzip");
    gunzip.arg("-dc").arg(data.join(format!("{name}.img.gz"))).stdout(image);
    assert!(gunzip.status().expect("gzip").success());
    data
}

/// Copies the whole volume out to `to`.
fn copy_out(folder: &Folder, to: &str) {
    folder.ok(&["cp", "-r", "v:/", to]);
}

/// The tree below `root` in the words of the script that made the lists.
fn list(data: &Path, root: &Path) -> String {
    let mut command = Command::new(data.join("list"));
    command.arg(root);
    let done = output(command);
    assert!(done.status.success(), "{}", stderr(&done));
    String::from_utf8(done.stdout).expect("UTF-8")
}

/// Opens the volume `name` for reading, compares it, adds a file, compares and checks it again.
/// Returns how many records the opening for writing replayed.
fn open_and_change(name: &str) -> u64 {
    let folder = Folder::new();
    let data = unpack(&folder, name);
    folder.ok(&["fsck", "v"]);
    let wanted = std::fs::read_to_string(data.join(format!("{name}.list"))).expect("a list");
    copy_out(&folder, "first");
    assert!(list(&data, &folder.path("first")) == wanted, "{name} differs from its list");
    std::fs::write(folder.path("added"), vec![7; 10_000]).expect("a file");
    let done = folder.forebay(&["-vv", "cp", "--compare", "added", "v:/added"]);
    assert!(done.status.success(), "{}", stderr(&done));
    folder.ok(&["fsck", "v"]);
    copy_out(&folder, "second");
    std::fs::remove_file(folder.path("second/added")).expect("the added file is there");
    let found = list(&data, &folder.path("second"));
    assert!(found == wanted, "{name} differs from its list after a change");
    records_applied(&stderr(&done))
}

/// The number in "N records of the log applied".
fn records_applied(log: &str) -> u64 {
    let before = log.split(" records of the log applied").next().expect("a first part");
    before.rsplit(' ').next().and_then(|n| n.parse().ok()).unwrap_or_else(|| panic!("{log}"))
}

#[test]
fn volume_of_d15dd77_closed_cleanly_opens() {
    assert_eq!(open_and_change("clean"), 0, "a closed volume has nothing to replay");
}

#[test]
fn volume_of_d15dd77_killed_after_a_sync_replays_its_log() {
    assert!(open_and_change("crash") > 0, "the volume was killed with records in its log");
}

#[test]
fn volume_of_d15dd77_that_is_full_opens_and_can_grow() {
    let folder = Folder::new();
    let data = unpack(&folder, "full");
    folder.ok(&["fsck", "v"]);
    copy_out(&folder, "first");
    let wanted = std::fs::read_to_string(data.join("full.list")).expect("a list");
    assert!(list(&data, &folder.path("first")) == wanted, "the full volume differs from its list");
    std::fs::write(folder.path("added"), vec![7; 4 << 20]).expect("a file");
    let said = folder.refused(1, &["cp", "added", "v:/added"]);
    assert!(said.contains("no space left"), "{said}");
    folder.ok(&["grow", "v", "--size", "32M"]);
    folder.ok(&["cp", "--compare", "added", "v:/added"]);
    folder.ok(&["fsck", "v"]);
    copy_out(&folder, "second");
    std::fs::remove_file(folder.path("second/added")).expect("the added file is there");
    assert!(list(&data, &folder.path("second")) == wanted, "the volume differs after growing");
}
