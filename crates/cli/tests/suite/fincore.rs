//! Residency of an image in the process that serves it.

use crate::common::{Folder, number};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::UnixListener;

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

/// `fincore` asks each running process. When one of them ended meanwhile, the command failed.
#[test]
fn process_that_closes_the_connection_does_not_hide_another() {
    let folder = Folder::new();
    folder.image("disk.img", 1 << 20);
    folder.image("other.img", 1 << 20);
    let sockets = folder.path("run/forebay");
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&sockets).unwrap();
    // Its process is this one, which is asked before a younger one.
    let ending = UnixListener::bind(sockets.join("1.sock")).unwrap();
    std::thread::spawn(move || ending.incoming().for_each(drop));
    let server = folder.serve(&["disk.img", "--cache-size", "16M"]);
    assert_eq!(number(&folder.ok(&["fincore", "disk.img", "--json"]), "total_blocks"), 256);
    let said = folder.refused(3, &["fincore", "other.img"]);
    assert!(said.contains("no running process") && said.contains("did not answer"), "{said}");
    server.stop();
}
