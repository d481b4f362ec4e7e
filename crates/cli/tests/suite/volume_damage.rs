//! A damaged volume: `fsck` names what is wrong and writes nothing, `recover` brings out the rest.

use crate::common::Folder;
use crate::common::volume::{bytes_of, look, make_tree};
use forebay_lfs::format::superblock::{FILES_TREE, Superblock};
use std::os::unix::fs::FileExt;

const BLOCK: usize = 4096;

/// Where these bytes are in the image.
fn places(image: &[u8], wanted: &[u8]) -> Vec<usize> {
    (0..image.len() / 512).map(|n| n * 512).filter(|at| image[*at..].starts_with(wanted)).collect()
}

/// Turns a bit of the image wherever `block` is stored; returns how often that was.
fn damage(folder: &Folder, block: &[u8]) -> usize {
    let image = crate::common::bytes(&folder.path("v"));
    let found = places(&image, block);
    let file = std::fs::OpenOptions::new().write(true).open(folder.path("v")).unwrap();
    for at in &found {
        file.write_all_at(&[image[at + 100] ^ 4], *at as u64 + 100).unwrap();
    }
    found.len()
}

#[test]
fn bad_block_is_named_and_rest_recovered() {
    let folder = Folder::new();
    make_tree(&folder.path("tree"));
    let big = bytes_of(77, 3 << 20);
    std::fs::write(folder.path("tree/a/big"), &big).unwrap();
    folder.ok(&["create", "v", "--size", "256M"]);
    folder.ok(&["cp", "-r", "tree", "v:/"]);
    folder.ok(&["fsck", "v"]);
    let bad = [37_usize, 38, 500];
    for block in bad {
        let count = damage(&folder, &big[block * BLOCK..(block + 1) * BLOCK]);
        assert_eq!(count, 1, "block {block} is stored once");
    }
    let before = crate::common::bytes(&folder.path("v"));
    let said = folder.refused(5, &["fsck", "v", "--json"]);
    assert!(said.contains("v:/tree/a/big") && said.contains("problems"), "{said}");
    // Each reader gets an error, and never wrong bytes.
    let said = folder.refused(1, &["cp", "v:/tree/a/big", "big"]);
    assert!(said.contains("v:/tree/a/big") && said.contains("corrupt"), "{said}");
    assert!(!folder.path("big").exists(), "D2: half a file is none");
    let output = folder.forebay(&["recover", "v", "--to", "out", "--json"]);
    assert_eq!(output.status.code(), Some(5));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let named: Vec<(u64, u64)> = report["problems"]
        .as_array()
        .unwrap()
        .iter()
        .inspect(|p| assert_eq!(p["path"], "v:/tree/a/big"))
        .map(|p| (p["offset"].as_u64().unwrap(), p["len"].as_u64().unwrap()))
        .collect();
    assert_eq!(named, [(37 * 4096, 2 * 4096), (500 * 4096, 4096)]);
    let mut wanted = big;
    for block in bad {
        wanted[block * BLOCK..(block + 1) * BLOCK].fill(0);
    }
    assert!(crate::common::bytes(&folder.path("out/tree/a/big")) == wanted, "the rest of it");
    std::fs::remove_file(folder.path("out/tree/a/big")).unwrap();
    std::fs::remove_file(folder.path("tree/a/big")).unwrap();
    let (mut ours, mut theirs) = (look(&folder.path("tree")), look(&folder.path("out/tree")));
    // Removing has moved its time.
    ours.remove(std::path::Path::new("a"));
    theirs.remove(std::path::Path::new("a"));
    assert_eq!(ours, theirs);
    assert!(crate::common::bytes(&folder.path("v")) == before, "neither writes");
    let said = folder.refused(1, &["recover", "v", "--to", "out"]);
    assert!(said.contains("not empty"), "{said}");
}

/// One superblock slot after the other is lost; the volume opens with those that are left.
#[test]
fn lost_slots_are_no_loss() {
    let folder = Folder::new();
    std::fs::write(folder.path("one"), b"1").unwrap();
    folder.ok(&["create", "v", "--size", "64M"]);
    folder.ok(&["cp", "one", "v:/"]);
    let file = std::fs::OpenOptions::new().write(true).open(folder.path("v")).unwrap();
    for slot in 0..4 {
        file.write_all_at(&[0; 4096], slot * 4096).unwrap();
        folder.ok(&["fsck", "v"]);
    }
    assert_eq!(folder.ok(&["ls", "v"]), "one\n");
    for slot in 1..=4 {
        file.write_all_at(&[0; 4096], (64 << 20) - slot * 4096).unwrap();
    }
    let said = folder.refused(5, &["ls", "v"]);
    assert!(said.contains("recover"), "{said}");
}

/// The tree of names of the newest checkpoint is gone, in both copies: the one before it, and the
/// log behind that, have everything still.
#[test]
fn lost_tree_is_recovered_from_earlier_checkpoint() {
    let folder = Folder::new();
    make_tree(&folder.path("tree"));
    folder.ok(&["create", "v", "--size", "256M"]);
    folder.ok(&["cp", "-r", "tree", "v:/"]);
    std::fs::write(folder.path("last"), b"last").unwrap();
    folder.ok(&["cp", "last", "v:/"]);
    let image = crate::common::bytes(&folder.path("v"));
    let slots = (0..4).map(|n| Superblock::decode(&image[n * 4096..(n + 1) * 4096], n as u32));
    let newest = slots.flatten().max_by_key(|slot| slot.checkpoint).unwrap();
    let file = std::fs::OpenOptions::new().write(true).open(folder.path("v")).unwrap();
    let root = newest.trees.iter().find(|root| root.tree == FILES_TREE).unwrap();
    for place in root.places.expect("it has names") {
        let segment = u64::from(newest.geometry.segment_bytes()) * u64::from(place.segment);
        let at = newest.data_start_bytes + segment + u64::from(place.offset);
        file.write_all_at(&[0; 4096], at).unwrap();
    }
    for words in [&["ls", "v"][..], &["fsck", "v"]] {
        folder.refused(5, words);
    }
    // That it is older is a problem: something may be missing. The status was 0.
    let output = folder.forebay(&["recover", "v", "--to", "out", "--json"]);
    let said = crate::common::stderr(&output);
    assert_eq!(output.status.code(), Some(5), "{said}");
    assert!(said.contains("an older checkpoint is read"), "{said}");
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["problems"][0]["path"], "v", "{report}");
    assert_eq!(look(&folder.path("tree")), look(&folder.path("out/tree")), "{said}");
    assert_eq!(
        crate::common::bytes(&folder.path("out/last")),
        b"last",
        "the log behind it: {said}"
    );
}

/// recover.Y1. A log that is damaged below what it calls durable is read up to there. Everything
/// behind is missing, and `recover` ended with status 0 and a line in the log alone.
#[test]
fn damaged_log_is_reported_as_problem() {
    let folder = Folder::new();
    folder.ok(&["create", "v", "--size", "256M"]);
    {
        let config = forebay::CacheConfig::with_budget(32 << 20);
        let cache = forebay::Cache::new(config).unwrap();
        let options = forebay::VolumeOptions::default();
        let volume = cache.open_volume(folder.path("v"), &options).unwrap();
        for n in 0..8 {
            volume.write(format!("/f{n}"), &[n; 5000]).unwrap();
            volume.sync().unwrap();
        }
        // As a kill leaves it: nothing closed.
        std::fs::copy(folder.path("v"), folder.path("killed")).unwrap();
    }
    let image = crate::common::bytes(&folder.path("killed"));
    let slots = (0..4).map(|n| Superblock::decode(&image[n * 4096..(n + 1) * 4096], n as u32));
    let newest = slots.flatten().max_by_key(|slot| (slot.checkpoint, slot.generation)).unwrap();
    let segment = u64::from(newest.geometry.segment_bytes()) * u64::from(newest.log_head.segment);
    let at = newest.data_start_bytes + segment + u64::from(newest.log_head.offset);
    let file = std::fs::OpenOptions::new().write(true).open(folder.path("killed")).unwrap();
    file.write_all_at(&[image[at as usize + 40] ^ 1], at + 40).unwrap();
    folder.refused(5, &["fsck", "killed"]);
    let output = folder.forebay(&["recover", "killed", "--to", "out", "--json"]);
    let said = crate::common::stderr(&output);
    assert_eq!(output.status.code(), Some(5), "{said}");
    assert!(said.contains("its log is read up to a damaged place"), "{said}");
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["volume"]["damaged"], true, "{report}");
    // `stat` says why the volume is read-only, to programs and to people.
    let about: serde_json::Value =
        serde_json::from_str(&folder.ok(&["stat", "killed", "--json"])).unwrap();
    let damage = about["damage"].as_str().unwrap_or_else(|| panic!("no damage: {about}"));
    assert!(damage.contains("says it was durable"), "{damage}");
    assert_eq!((&about["damaged"], &about["read_only"]), (&true.into(), &true.into()), "{about}");
    let shown = folder.ok(&["stat", "killed"]);
    assert!(shown.contains(&format!("{damage}; read-only")), "{shown}");
    assert!(!folder.path("out/f7").exists(), "what is behind it");
}
