//! Residency of an image in the process that serves it.

use crate::common::{Folder, number};

#[test]
fn read_data_is_resident_until_dropped() {
    let folder = Folder::new();
    folder.image("disk.img", 4 << 20);
    let server = folder.export(&["disk.img", "--cache-size", "16M"]);
    let ask = |name: &str| {
        number(&folder.ok(&["fincore", "disk.img", "--json", "--control", "ctl"]), name)
    };
    assert_eq!((ask("resident_blocks"), ask("total_blocks")), (0, 1024));
    let mut client = server.client("");
    client.read(1 << 20, 65536).unwrap();
    assert!(ask("resident_blocks") >= 16);
    client.write(3 << 20, &[1; 4096]).unwrap();
    client.flush().unwrap();
    assert_eq!(ask("dirty_blocks"), 0);
    let shown = folder.ok(&["fincore", "disk.img", "--runs", "--control", "ctl"]);
    assert!(shown.contains("PINNED") && ask("pinned_blocks") == 0, "{shown}");
    assert!(shown.contains("RESIDENT") && shown.contains(" + "), "{shown}");
    folder.ok(&["tune", "--drop-clean", "--control", "ctl"]);
    assert_eq!(ask("resident_blocks"), 0);
    client.disconnect();
    server.stop();
}

#[test]
fn another_file_is_not_found_there() {
    let folder = Folder::new();
    folder.image("disk.img", 1 << 20);
    folder.image("other.img", 1 << 20);
    let server = folder.export(&["disk.img", "--cache-size", "16M"]);
    let output = folder.forebay(&["fincore", "other.img", "--control", "ctl"]);
    assert_eq!(output.status.code(), Some(3));
    server.stop();
}
