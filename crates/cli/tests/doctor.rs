//! `forebay doctor`: something about each part, for people and as JSON.

mod common;

use common::Folder;

#[test]
fn it_says_what_it_found() {
    let folder = Folder::new();
    folder.image("disk.img", 1 << 20);
    let text = folder.ok(&["doctor", "disk.img"]);
    for part in [
        "kernel",
        "memory",
        "cgroup",
        "engine",
        "huge pages",
        "open files",
        "write-out",
        "direct-io",
    ] {
        assert!(text.contains(part), "{part} is not in:\n{text}");
    }
    let json = folder.ok(&["doctor", "--json"]);
    let value: serde_json::Value = serde_json::from_str(&json).unwrap();
    let list = value.as_array().unwrap();
    assert!(list.len() >= 10 && list.iter().all(|f| f["level"].is_string()), "{json}");
}
