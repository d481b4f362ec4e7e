//! `forebay cp`: everything goes in and comes out as it was, compared by the command and by this
//! test.

use crate::common::Folder;
use crate::common::volume::{look, make_tree};
use std::os::unix::fs::MetadataExt;

/// copy.D3, fsck.K1: directories have their times, too; and a check of what came in finds nothing.
#[test]
fn copied_tree_comes_back_unchanged() {
    let folder = Folder::new();
    make_tree(&folder.path("tree"));
    folder.ok(&["create", "v", "--size", "512M"]);
    let said = folder.ok(&["cp", "-r", "--compare", "tree", "v:/"]);
    assert!(said.contains("copied 12 files") && said.contains("compared 12 files"), "{said}");
    assert!(!said.contains("problem"), "{said}");
    let json = folder.ok(&["cp", "-r", "--compare", "--json", "v:/tree", "back"]);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["compared"]["problem_count"], 0);
    assert_eq!(look(&folder.path("tree")), look(&folder.path("back")));
    let sparse = std::fs::metadata(folder.path("back/a/sparse")).unwrap();
    assert!(sparse.size() == 64 << 20 && sparse.blocks() * 512 < 1 << 20, "holes are kept");
    // From volume to volume, and within one.
    folder.ok(&["create", "w", "--size", "512M", "--block-size", "1k"]);
    folder.ok(&["cp", "-r", "--compare", "v:/tree/a", "v:/tree/empty directory", "w:/"]);
    folder.ok(&["cp", "-r", "--compare", "w:/a", "w:/copy of a"]);
    folder.ok(&["cp", "-r", "w:/copy of a", "a"]);
    let (mut whole, part) = (look(&folder.path("tree/a")), look(&folder.path("a")));
    // Its third name is not part of this one.
    for text in whole.values_mut() {
        *text = text.split(" one of ").next().unwrap().to_string();
    }
    assert_eq!(part.len(), whole.len());
    for (path, text) in &part {
        assert_eq!(text.split(" one of ").next().unwrap(), whole[path], "{}", path.display());
    }
    folder.ok(&["fsck", "v"]);
    folder.ok(&["fsck", "w"]);
}

#[test]
fn files_go_where_they_are_told() {
    let folder = Folder::new();
    folder.ok(&["create", "v", "--size", "64M"]);
    std::fs::write(folder.path("one"), b"1").unwrap();
    std::fs::write(folder.path("two"), b"22").unwrap();
    folder.ok(&["cp", "one", "two", "v:/"]);
    folder.ok(&["cp", "one", "v:/renamed"]);
    folder.ok(&["cp", "two", "v:/renamed"]);
    assert_eq!(folder.ok(&["ls", "v"]), "one\nrenamed\ntwo\n");
    folder.ok(&["cp", "v:/renamed", "back"]);
    assert_eq!(std::fs::read(folder.path("back")).unwrap(), b"22", "the later one");
    let long = folder.ok(&["ls", "-l", "v:/two"]);
    assert!(long.starts_with("-rw-r--r--") && long.contains(" 2 "), "{long}");
    std::fs::create_dir(folder.path("dir")).unwrap();
    std::fs::write(folder.path("dir/x"), b"x").unwrap();
    folder.ok(&["cp", "-r", "dir", "v:/"]);
    folder.ok(&["cp", "-r", "dir/.", "v:/dir"]);
    assert_eq!(folder.ok(&["ls", "-R", "v"]), "v:/:\ndir\none\nrenamed\ntwo\n\nv:/dir:\nx\n");
    let lines = folder.ok(&["ls", "-R", "--json", "v"]);
    let paths: Vec<String> = lines
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap())
        .map(|entry| entry["path"].as_str().unwrap().to_string())
        .collect();
    assert_eq!(paths, ["/dir", "/one", "/renamed", "/two", "/dir/x"]);
}

/// copy.D1: the command names what it cannot copy, and copies the rest.
#[test]
fn uncopyable_source_is_named_and_rest_copied() {
    let folder = Folder::new();
    folder.ok(&["create", "v", "--size", "64M"]);
    std::fs::write(folder.path("one"), b"1").unwrap();
    std::fs::create_dir_all(folder.path("dir/sub")).unwrap();
    let said = folder.refused(1, &["cp", "dir", "one", "v:/"]);
    assert!(said.contains("dir") && said.contains("--recursive"), "{said}");
    assert_eq!(folder.ok(&["ls", "v"]), "one\n");
    folder.refused(2, &["cp", "one", "two"]);
    folder.refused(3, &["cp", "one", "v:/no/such/place"]);
    folder.refused(3, &["cp", "v:/nothing", "x"]);
    folder.refused(1, &["cp", "one", "dir", "v:/one"]);
    folder.ok(&["cp", "-r", "dir", "v:/"]);
    let said = folder.refused(1, &["cp", "-r", "v:/dir", "v:/dir/sub"]);
    assert!(said.contains("into itself"), "{said}");
    let said = folder.refused(1, &["cp", "v:/one", "v:/one"]);
    assert!(said.contains("onto itself"), "{said}");
    let said = folder.refused(1, &["cp", "-r", "dir", "v:/one"]);
    assert!(said.contains("something else") && said.contains("dir"), "{said}");
    let said = folder.refused(1, &["cp", "one", "v:/dir/../one/x"]);
    assert!(said.contains("v:/dir/../one/x"), "{said}");
    folder.ok(&["cp", "v:/one", "back"]);
    assert_eq!(std::fs::read(folder.path("back")).unwrap(), b"1", "what failed changed nothing");
}

/// A copy that does not fit says so, names the file, of which nothing is left (copy.D2), and what
/// was copied before is there.
#[test]
fn copy_into_full_volume_names_failed_file() {
    let folder = Folder::new();
    folder.ok(&["create", "v", "--size", "16M"]);
    std::fs::create_dir(folder.path("dir")).unwrap();
    std::fs::write(folder.path("dir/a small one"), b"small").unwrap();
    let big = crate::common::volume::bytes_of(1, 24 << 20);
    std::fs::write(folder.path("dir/big"), &big).unwrap();
    let said = folder.refused(1, &["cp", "-r", "dir", "v:/"]);
    assert!(said.contains("big") && said.contains("no space"), "{said}");
    assert_eq!(folder.ok(&["ls", "v:/dir"]), "a small one\n", "D2");
    folder.ok(&["cp", "v:/dir/a small one", "back"]);
    assert_eq!(std::fs::read(folder.path("back")).unwrap(), b"small");
    folder.ok(&["fsck", "v"]);
}

/// Of several sources in a volume one that was not there ended the command: the others were not
/// copied, the volume that they should go into was not synced, and the status was 3. A source on
/// the host was named and passed over.
#[test]
fn missing_source_is_named_and_others_copied() {
    let folder = Folder::new();
    for volume in ["v", "w"] {
        folder.ok(&["create", volume, "--size", "64M"]);
    }
    std::fs::write(folder.path("one"), b"1").unwrap();
    folder.ok(&["cp", "one", "v:/"]);
    std::fs::create_dir(folder.path("out")).unwrap();
    for target in ["out", "w:/", "v:/copies"] {
        if target == "v:/copies" {
            std::fs::create_dir(folder.path("copies")).unwrap();
            folder.ok(&["cp", "-r", "copies", "v:/"]);
        }
        let said = folder.refused(1, &["cp", "v:/none", "v:/one", target]);
        assert!(said.contains("v:/none") && said.contains("not found"), "{said}");
    }
    assert_eq!(std::fs::read(folder.path("out/one")).unwrap(), b"1");
    for there in ["w:/one", "v:/copies/one"] {
        folder.ok(&["cp", there, "again"]);
        assert_eq!(std::fs::read(folder.path("again")).unwrap(), b"1", "{there}");
    }
    folder.refused(1, &["cp", "nowhere", "one", "w:/"]);
}
