//! `--read-only`: clients see it, writes are refused, the image is not touched.

use crate::common::{Folder, bytes, tool};

#[test]
fn writes_are_refused() {
    let folder = Folder::new();
    let image = folder.image("disk.img", 1 << 20);
    let before = bytes(&image);
    let server = folder.export(&["disk.img", "--cache-size", "16M", "--read-only"]);
    let info = tool("nbdinfo", &[&server.uri]);
    assert!(info.contains("is_read_only: true"), "{info}");
    let mut client = server.client("");
    assert!(client.flags & 2 != 0, "the read-only flag");
    let error = client.write(0, &[1; 4096]).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(1), "EPERM, as the protocol wants: {error}");
    assert!(client.trim(0, 4096).is_err());
    assert_eq!(client.read(0, 4096).unwrap(), before[..4096]);
    client.disconnect();
    server.stop();
    assert!(bytes(&image) == before);
}

#[test]
fn file_without_write_permission_is_served_read_only() {
    let folder = Folder::new();
    let image = folder.image("disk.img", 1 << 20);
    let mut rights = std::fs::metadata(&image).unwrap().permissions();
    rights.set_readonly(true);
    std::fs::set_permissions(&image, rights).unwrap();
    let server = folder.export(&["disk.img", "--cache-size", "16M", "--read-only"]);
    assert_eq!(server.client("").size, 1 << 20);
    server.stop();
}
