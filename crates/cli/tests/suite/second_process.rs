//! An image belongs to one process; readers may share it.

use crate::common::{Folder, stderr};

#[test]
fn second_writer_is_refused_as_in_use() {
    let folder = Folder::new();
    folder.image("disk.img", 1 << 20);
    let server = folder.export(&["disk.img", "--cache-size", "16M"]);
    for extra in [&[][..], &["--read-only"]] {
        let mut words = vec!["export", "disk.img", "-U", "other", "--cache-size", "16M"];
        words.extend(extra);
        let output = folder.forebay(&words);
        assert_eq!(output.status.code(), Some(4), "{}", stderr(&output));
        assert!(stderr(&output).contains("disk.img"), "{}", stderr(&output));
        assert!(!folder.path("other").exists());
    }
    server.stop();
    let server = folder.export(&["disk.img", "--cache-size", "16M"]);
    server.stop();
}

#[test]
fn two_readers_share_it() {
    let folder = Folder::new();
    folder.image("disk.img", 1 << 20);
    let server = folder.export(&["disk.img", "--cache-size", "16M", "--read-only"]);
    let run = "nbdinfo --size \"$uri\"";
    folder.ok(&["export", "disk.img", "--read-only", "--cache-size", "16M", "--run", run]);
    server.stop();
}

#[test]
fn socket_of_killed_process_is_replaced() {
    let folder = Folder::new();
    folder.image("disk.img", 1 << 20);
    let server = folder.export(&["disk.img", "--cache-size", "16M"]);
    server.signal("KILL");
    assert!(!server.wait().0.success());
    assert!(folder.path("sock").exists());
    let server = folder.export(&["disk.img", "--cache-size", "16M"]);
    assert_eq!(server.client("").size, 1 << 20);
    server.stop();
    assert!(!folder.path("sock").exists() && !folder.path("ctl").exists());
}
