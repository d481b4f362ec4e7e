//! `--offset` and `--size-limit`: a window into the image, and nothing outside is touched.

use crate::common::{Folder, bytes};

#[test]
fn export_with_offset_and_limit_serves_that_range() {
    let folder = Folder::new();
    let image = folder.image("disk.img", 4 << 20);
    let before = bytes(&image);
    let words = ["disk.img", "--cache-size", "16M", "--offset", "1M", "--size-limit", "1M"];
    let server = folder.export(&words);
    let mut client = server.client("");
    assert_eq!(client.size, 1 << 20);
    assert_eq!(client.read(0, 4096).unwrap(), before[1 << 20..][..4096]);
    client.write(0, &[1; 4096]).unwrap();
    client.write((1 << 20) - 4096, &[2; 4096]).unwrap();
    assert!(client.read(1 << 20, 4096).is_err(), "beyond the end");
    assert!(client.write((1 << 20) - 2048, &[3; 4096]).is_err(), "over the end");
    client.disconnect();
    server.stop();
    let mut expected = before;
    expected[1 << 20..][..4096].fill(1);
    expected[(2 << 20) - 4096..2 << 20].fill(2);
    assert!(bytes(&image) == expected);
}

#[test]
fn size_limit_beyond_end_is_clamped() {
    let folder = Folder::new();
    folder.image("disk.img", 2 << 20);
    let words = ["disk.img", "--cache-size", "16M", "--offset", "1M", "--size-limit", "1G"];
    let server = folder.export(&words);
    assert_eq!(server.client("").size, 1 << 20);
    server.stop();
}

#[test]
fn odd_size_is_served_to_last_byte() {
    let folder = Folder::new();
    let image = folder.image("disk.img", (1 << 20) + 1000);
    let server = folder.export(&["disk.img", "--cache-size", "16M"]);
    let mut client = server.client("");
    let end = client.size;
    client.write(end - 10, &[5; 10]).unwrap();
    assert_eq!(client.read(end - 10, 10).unwrap(), [5; 10]);
    client.disconnect();
    server.stop();
    let bytes = bytes(&image);
    assert_eq!(bytes.len() as u64, end, "the image keeps its size");
    assert_eq!(bytes[bytes.len() - 10..], [5; 10]);
}
