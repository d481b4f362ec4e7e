//! `forebay create`, `stat VOLUME` and `ls`: what is made, what is refused, and with which status.

use crate::common::Folder;
use std::os::unix::fs::MetadataExt;

#[test]
fn created_volume_is_sparse_and_shown() {
    let folder = Folder::new();
    let said = folder.ok(&["create", "v", "--size", "1G", "--segment-size", "16M"]);
    assert!(said.contains("63 segments of 16 MiB") && said.contains("CRC-32C"), "{said}");
    let meta = std::fs::metadata(folder.path("v")).unwrap();
    assert_eq!(meta.size(), 1 << 30);
    assert!(meta.blocks() * 512 < 8 << 20, "{} blocks", meta.blocks());
    let stat: serde_json::Value =
        serde_json::from_str(&folder.ok(&["stat", "v", "--json"])).unwrap();
    assert_eq!((&stat["size"], &stat["segments"]), (&(1_u64 << 30).into(), &63.into()));
    assert_eq!((&stat["checksum"], &stat["pid"]), (&"crc32c".into(), &serde_json::Value::Null));
    assert!(stat["space"]["available"].as_u64().unwrap() > 750 << 20, "{stat}");
    assert_eq!(folder.ok(&["ls", "v"]), "");
    let shown = folder.ok(&["stat", "v:/"]);
    assert!(shown.contains("kind       directory") && shown.contains("0755"), "{shown}");
    folder.ok(&["create", "w", "--size", "16M", "--block-size", "512", "--checksum", "none"]);
    let stat: serde_json::Value =
        serde_json::from_str(&folder.ok(&["stat", "w", "--json"])).unwrap();
    assert_eq!((&stat["block_size"], &stat["checksum"]), (&512.into(), &"none".into()));
}

#[test]
fn nothing_is_lost_without_force() {
    let folder = Folder::new();
    std::fs::write(folder.path("precious"), b"precious").unwrap();
    let said = folder.refused(1, &["create", "precious", "--size", "16M"]);
    assert!(
        said.contains("precious") && said.contains("not empty") && said.contains("--force"),
        "{said}"
    );
    assert_eq!(std::fs::read(folder.path("precious")).unwrap(), b"precious");
    folder.ok(&["create", "v", "--size", "16M"]);
    let said = folder.refused(1, &["create", "v", "--size", "16M"]);
    assert!(said.contains("a volume already"), "{said}");
    folder.ok(&["create", "v", "--size", "32M", "--force"]);
    assert_eq!(std::fs::metadata(folder.path("v")).unwrap().size(), 32 << 20);
}

#[test]
fn create_with_invalid_options_is_refused_and_leaves_nothing() {
    let folder = Folder::new();
    for words in [
        &["create", "v"][..],
        &["create", "v", "--size", "100k"],
        &["create", "v", "--size", "16M", "--block-size", "3000"],
        &["create", "v", "--size", "16M", "--block-size", "8k"],
        &["create", "v", "--size", "16M", "--segment-size", "16M"],
        &["create", "v", "--size", "16M", "--segment-size", "100000"],
    ] {
        folder.refused(2, words);
        assert!(!folder.path("v").exists(), "{words:?}");
    }
    folder.refused(3, &["stat", "v"]);
    folder.refused(3, &["ls", "v:/"]);
    std::fs::write(folder.path("noise"), vec![7; 1 << 20]).unwrap();
    let said = folder.refused(5, &["stat", "noise"]);
    assert!(said.contains("noise"), "{said}");
    folder.ok(&["create", "v", "--size", "16M"]);
    let said = folder.refused(3, &["ls", "v:/not/there"]);
    assert!(said.contains("v:/not/there"), "{said}");
}
