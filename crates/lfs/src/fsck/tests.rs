//! What is wrong is found: each of the checks of names, links, usage and places fires, and on what is right
//! none does.

use super::*;
use crate::tests::reuse::{create, open, setup, write};
use forebay_base::sim_world::SimWorld;
use std::sync::Arc;

const DIR: u32 = 4;
const FILE: u32 = 8;

fn inode(kind: u32, nlink: u32, parent: u64) -> Inode {
    Inode { mode: kind << 12 | 0o644, nlink, parent, ..Inode::default() }
}

/// The root with a directory, in it a file, and one that has no name any more.
fn healthy() -> Tree {
    let inodes = [
        (ROOT_INO, inode(DIR, 3, ROOT_INO)),
        (2, inode(DIR, 2, ROOT_INO)),
        (3, inode(FILE, 1, 0)),
        (4, inode(FILE, 0, 0)),
    ];
    Tree {
        inodes: inodes.into(),
        entries: vec![
            (ROOT_INO, (*b"d").into(), 2, FileType::Directory),
            (2, (*b"f").into(), 3, FileType::Regular),
        ],
        orphans: [4].into(),
    }
}

fn found(change: impl FnOnce(&mut Tree)) -> Vec<Finding> {
    let (mut tree, mut report) = (healthy(), FsckReport::default());
    change(&mut tree);
    check_names(&tree, &mut report);
    report.findings
}

type Change = fn(&mut Tree);

/// Each of the ways in which names, links, parents and orphans do not go together.
#[test]
fn names_that_do_not_go_together_are_found() {
    assert_eq!(found(|_| ()), []);
    let wrong: [(Change, u64, &str); 11] = [
        (|t| t.inodes.retain(|ino, _| *ino != 3), 2, "`f` names inode 3, which is not there"),
        (|t| t.inodes.retain(|ino, _| *ino != 2), 3, "`f` lies in inode 2, which is not there"),
        (|t| t.entries[1].3 = FileType::Symlink, 3, "`f` says it is a Symlink"),
        (|t| t.inodes.get_mut(&2).unwrap().parent = 3, 2, "its parent is 3, and it lies in 1"),
        (|t| t.inodes.get_mut(&3).unwrap().nlink = 2, 3, "2 links, there are 1"),
        (|t| t.inodes.get_mut(&2).unwrap().nlink = 3, 2, "3 links, there are 2"),
        (|t| t.inodes.get_mut(&ROOT_INO).unwrap().nlink = 2, 1, "2 links, there are 3"),
        (|t| drop(t.entries.pop()), 3, "no name, and no orphan"),
        (|t| t.orphans.clear(), 4, "no name, and no orphan"),
        (|t| t.orphans.extend([3]), 3, "an orphan with a name"),
        (|t| t.inodes.retain(|ino, _| *ino != 4), 4, "an orphan that is not there"),
    ];
    for (change, ino, text) in wrong {
        let findings = found(change);
        let named = |f: &Finding| f.ino == Some(ino) && f.text == text;
        assert!(findings.iter().any(named), "{text}: {findings:?}");
        assert!(findings.iter().all(|f| f.kind == FindingKind::Name), "{findings:?}");
        assert!(!FsckReport { findings, ..FsckReport::default() }.is_complete());
    }
    let path = found(|t| t.inodes.get_mut(&3).unwrap().nlink = 2).remove(0).path;
    assert_eq!(path.as_deref(), Some(&b"/d/f"[..]));
}

/// The usage table is held against what the trees say, segment by segment; and no two pieces of data share a
/// byte.
#[test]
fn usage_and_places_that_are_wrong_are_found() {
    let (setup, world) = (setup(0), SimWorld::new(1));
    let disk = setup.blank();
    disk.world().run(async {
        let volume = open(&setup, &disk).await.unwrap();
        let (_, file) = create(&volume, "f").await.unwrap();
        write(&file, 0, &[5; 3 * 4096]).await.unwrap();
        drop(file);
        volume.close().await.unwrap();
    });
    disk.world().stop();
    let disk = disk.in_world(world.clone());
    world.run(async {
        let device: DeviceRef = Arc::new(disk.clone());
        let (superblock, _) = crate::slots::read_newest(&device).await.unwrap();
        let volume = open(&setup, &disk).await.unwrap();
        let entries = usage_entries(&volume.0.tree, &superblock).await.unwrap();
        let live: BTreeMap<u32, u64> =
            (0..).zip(&entries).map(|(at, entry)| (at, u64::from(entry.live_bytes))).collect();
        let said = async |live: &BTreeMap<u32, u64>, complete| {
            let mut report = FsckReport::default();
            check_usage(&volume, &superblock, live, complete, &mut report).await;
            report.findings
        };
        assert!(live.values().any(|bytes| *bytes > 0));
        assert_eq!(said(&live, true).await, []);
        for segment in 0..entries.len() as u32 {
            let mut live = live.clone();
            *live.get_mut(&segment).unwrap() += 512;
            let findings = said(&live, true).await;
            let [finding] = &findings[..] else { panic!("{findings:?}") };
            let at = volume.0.layout.device_offset(Place::new(segment, 0));
            assert_eq!((finding.kind, finding.offset), (FindingKind::Usage, Some(at)));
            // Of trees that could not be read whole nothing can be said.
            assert_eq!(said(&live, false).await, []);
        }
        let mut report = FsckReport::default();
        let runs = |second| vec![(Place::new(1, second), 4096, 8), (Place::new(1, 4096), 4096, 7)];
        check_runs(&volume.0.layout, runs(8192), &mut report);
        assert!(report.is_clean());
        check_runs(&volume.0.layout, runs(8191), &mut report);
        let [finding] = &report.findings[..] else { panic!("{report:?}") };
        assert!(finding.kind == FindingKind::Tree && finding.text.contains("overlap"));
    });
    world.stop();
}
