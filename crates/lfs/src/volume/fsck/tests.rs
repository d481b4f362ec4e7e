//! Tests of fsck: each check of names, links, usage and places reports its defect, and reports
//! nothing on a healthy volume.

use super::*;
use crate::tests::reuse::{check, create, open, setup, write};
use crate::transaction::state::State;
use forebay_base::sim_world::SimWorld;
use std::sync::Arc;

const DIR: u32 = 4;
const FILE: u32 = 8;

fn inode(kind: u32, nlink: u32, parent: u64) -> Inode {
    Inode { mode: kind << 12 | 0o644, nlink, parent, ..Inode::default() }
}

/// The root with a directory, a file in the directory, and an orphan.
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

/// Checks each way in which names, links, parents and orphans can contradict each other.
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

/// Inodes of a damaged volume may have any number of stored bytes. Earlier, their sum overflowed.
#[test]
fn stored_bytes_of_damaged_inodes_sum_without_overflow() {
    let mut tree = healthy();
    assert_eq!(tree.total_bytes(), 0);
    tree.inodes.values_mut().for_each(|inode| inode.stored_bytes = u64::MAX / 2);
    assert_eq!(tree.total_bytes(), u64::MAX);
}

/// The usage table is compared with the trees segment by segment. No two data ids share a byte.
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
        let (superblock, _) = crate::device::slots::read_newest(&device).await.unwrap();
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
            assert_eq!(finding.figures.map(|(said, found)| found - said), Some(512));
            // For trees that could not be read completely nothing can be reported.
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

/// The findings of fsck on a volume with a file of three blocks, after a checkpoint has stored the
/// effect of `change`. Returns the inode of the file, and the findings.
fn told(change: impl FnOnce(&mut State, u64)) -> (u64, Vec<Finding>) {
    let setup = setup(0);
    let disk = setup.blank();
    let ino = disk.world().run(async {
        let volume = open(&setup, &disk).await.unwrap();
        let (ino, file) = create(&volume, "f").await.unwrap();
        write(&file, 0, &[5; 3 * 4096]).await.unwrap();
        file.sync(false).await.unwrap();
        volume.checkpoint().await.unwrap();
        change(&mut volume.0.state.lock(), ino.0);
        volume.checkpoint().await.unwrap();
        ino.0
    });
    disk.world().stop();
    (ino, check(&disk.in_world(SimWorld::new(2))).findings)
}

/// stored.E15. The story: the stored bytes of an inode were larger or smaller than those of its
/// extents. No check found it, because the blocks in stat(2) were compared with nothing.
#[test]
fn inode_disagreeing_with_its_extents_is_found() {
    assert_eq!(told(|_, _| ()).1, []);
    for said in [0, 2 * 4096, 4 * 4096] {
        let (ino, findings) = told(|state, ino| {
            let change = |inode: &mut Inode| inode.stored_bytes = said;
            state.change_node(ino, change);
        });
        let [finding] = &findings[..] else { panic!("{findings:?}") };
        assert_eq!((finding.kind, finding.ino), (FindingKind::Usage, Some(ino)));
        assert_eq!(finding.path.as_deref(), Some(&b"/f"[..]));
        assert_eq!(finding.figures, Some((said, 3 * 4096)));
        let text = format!(
            "inode {ino} says that {said} bytes of it are stored, its extents have {}",
            3 * 4096
        );
        assert_eq!(finding.text, text);
    }
}

/// The story: extents whose inode was gone counted as live for ever, and no check reported them.
#[test]
fn extents_without_owner_are_found() {
    let mut data_id = 0;
    let (ino, findings) = told(|state, ino| {
        data_id = state.names().node(ino).unwrap().inode.data_id;
        state.remove_item(Key::Inode(ino).to_bytes());
    });
    let text = format!("data {data_id} has extents of {} bytes, and no inode has it", 3 * 4096);
    let of_data: Vec<&Finding> =
        findings.iter().filter(|finding| finding.kind == FindingKind::Tree).collect();
    let [finding] = of_data[..] else { panic!("{findings:?}") };
    assert_eq!((&finding.text, finding.figures), (&text, Some((0, 3 * 4096))));
    // The remaining name is reported, too.
    assert!(
        findings.iter().any(|f| f.text == format!("`f` names inode {ino}, which is not there"))
    );
}

/// stored.E14: nothing is reported until the whole tree was read. stored.E15: an inode that the log
/// has changed since the checkpoint is compared with its extents, too (`fsck/stored.rs`).
#[test]
fn stored_bytes_are_reported_only_after_complete_tree() {
    let mut stored = Stored::default();
    let mut tree = healthy();
    for (n, (ino, inode)) in (1..).zip(&mut tree.inodes) {
        inode.data_id = 10 * n;
        stored.inode(*ino, inode);
    }
    let said = |stored: &Stored, tree: &Tree| {
        let mut report = FsckReport::default();
        check_stored(stored, (tree, &Names::new()), &mut report);
        report.findings.iter().map(|finding| finding.ino).collect::<Vec<_>>()
    };
    stored.extent(30, 4096);
    stored.extent(7, 4096);
    assert_eq!(said(&stored, &tree), []);
    stored.is_complete = true;
    assert_eq!(said(&stored, &tree), [Some(3), None]);
    tree.inodes.get_mut(&4).unwrap().stored_bytes = 1;
    assert_eq!(said(&stored, &tree), [Some(3), Some(4), None]);
}
