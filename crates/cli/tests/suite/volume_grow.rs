//! `forebay grow`: more room, and everything that was there.

use crate::common::Folder;
use crate::common::volume::bytes_of;
use std::os::unix::fs::MetadataExt;

#[test]
fn full_volume_takes_more_after_growth() {
    let folder = Folder::new();
    folder.ok(&["create", "v", "--size", "32M"]);
    std::fs::write(folder.path("first"), bytes_of(1, 20 << 20)).unwrap();
    std::fs::write(folder.path("second"), bytes_of(2, 40 << 20)).unwrap();
    folder.ok(&["cp", "first", "v:/"]);
    folder.refused(1, &["cp", "second", "v:/"]);
    folder.refused(2, &["grow", "v", "--size", "32M"]);
    folder.refused(2, &["grow", "v", "--size", "16M"]);
    folder.refused(3, &["grow", "w", "--size", "64M"]);
    folder.refused(5, &["grow", "first", "--size", "64M"]);
    assert_eq!(std::fs::metadata(folder.path("first")).unwrap().size(), 20 << 20);
    let said = folder.ok(&["grow", "v", "--size", "128M", "--json"]);
    let said: serde_json::Value = serde_json::from_str(&said).unwrap();
    assert_eq!(
        (&said["size_before"], &said["size"]),
        (&(32_u64 << 20).into(), &(128_u64 << 20).into())
    );
    folder.ok(&["cp", "second", "v:/"]);
    folder.ok(&["cp", "v:/first", "v:/second", "."]);
    folder.ok(&["cp", "v:/first", "first again"]);
    assert!(crate::common::bytes(&folder.path("first again")) == bytes_of(1, 20 << 20));
    assert!(crate::common::bytes(&folder.path("second")) == bytes_of(2, 40 << 20));
    folder.ok(&["fsck", "v"]);
    // A file that another program made longer: as large as it is.
    let image = std::fs::OpenOptions::new().write(true).open(folder.path("v")).unwrap();
    image.set_len(256 << 20).unwrap();
    assert!(folder.ok(&["grow", "v"]).contains("256 MiB"));
    folder.ok(&["fsck", "v"]);
}
