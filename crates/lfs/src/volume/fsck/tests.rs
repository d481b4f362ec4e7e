//! Tests of fsck: each check of names, links, usage and places reports its defect, and reports
//! nothing on a healthy volume.

mod damage;
mod names;
mod space;

use super::report::MAX_FINDINGS;
use super::*;
use crate::format::inode::{FileType, Inode, ROOT_INO};
use crate::format::item::Item;
use crate::format::key::Key;
use crate::map::overlay::Where;
use crate::tests::reuse::{create, open, setup, write};
use crate::transaction::state::State;
use forebay_base::sim_world::SimWorld;
use forebay_sim::SimDisk;
use std::sync::Arc;

/// The least memory: one segment, one inode and one data id at a time.
const LEAST: FsckOptions = FsckOptions { table_bytes: 0, node_cache_bytes: 0 };

fn sorted(findings: &[Finding]) -> Vec<String> {
    let mut all: Vec<String> = findings.iter().map(|finding| format!("{finding:?}")).collect();
    all.sort_unstable();
    all
}

/// The findings on a disk. The order aside, they are the same with any memory (fsck.E16).
fn findings(disk: &SimDisk) -> Vec<Finding> {
    let report = |options: FsckOptions| {
        let disk = disk.in_world(SimWorld::new(2));
        let device: DeviceRef = Arc::new(disk.clone());
        let world: WorldRef = disk.world().clone();
        let report = disk.world().run(fsck_with(&device, &world, &options, &mut |_| ()));
        disk.world().stop();
        report.unwrap()
    };
    let all = report(FsckOptions::default());
    for table_bytes in [LEAST.table_bytes, 600, 3000] {
        let few = report(FsckOptions { table_bytes, ..LEAST });
        let same = sorted(&few.findings) == sorted(&all.findings);
        assert!(same, "{table_bytes} bytes: {:#?}\n{:#?}", few.findings, all.findings);
        assert_eq!((few.nodes, few.inodes), (all.nodes, all.inodes));
        assert_eq!(few.content_bytes, all.content_bytes);
    }
    all.findings
}

/// A disk with a file of three blocks, after a checkpoint has stored the effect of `change`, which
/// gets the inode of the file. Returns that inode, too.
fn changed(change: impl FnOnce(&mut State, u64)) -> (u64, SimDisk) {
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
    (ino, disk)
}

/// The findings of fsck after [`changed`].
fn told(change: impl FnOnce(&mut State, u64)) -> (u64, Vec<Finding>) {
    let (ino, disk) = changed(change);
    (ino, findings(&disk))
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

/// stored.E15. The story: two inodes had one data id. A check found out that their sums differ from
/// those of the extents, compared each of them with the extents, and reported nothing.
#[test]
fn inodes_with_one_data_id_are_found() {
    let mut data_id = 0;
    let (ino, findings) = told(|state, ino| {
        let mut inode = state.names().node(ino).unwrap().inode;
        data_id = inode.data_id;
        inode.nlink = 0;
        state.put_item(Key::Inode(ino + 1), &Item::Inode(inode));
        state.note_orphan(ino + 1);
    });
    let [finding] = &findings[..] else { panic!("{findings:?}") };
    assert_eq!((finding.kind, finding.ino), (FindingKind::Tree, Some(ino)));
    assert_eq!(finding.text, format!("2 inodes have data {data_id}"));
    assert_eq!(finding.figures, Some((1, 2)));
}

/// The story: each bad block of a dead region of the disk was a finding, with a path.
#[test]
fn adjacent_bad_blocks_are_one_finding() {
    let setup = setup(0);
    let disk = setup.blank();
    let places = disk.world().run(async {
        let volume = open(&setup, &disk).await.unwrap();
        let (ino, file) = create(&volume, "f").await.unwrap();
        write(&file, 0, &[5; 10 * 4096]).await.unwrap();
        file.sync(false).await.unwrap();
        volume.checkpoint().await.unwrap();
        let data_id = volume.0.state.lock().names().node(ino.0).unwrap().inode.data_id;
        let mut places = Vec::new();
        for block in [2, 3, 4, 7] {
            let (piece, _) = volume.0.piece_at(data_id, block).await.unwrap();
            let Where::Run(place) = piece.at else { panic!("{piece:?}") };
            places.push(volume.0.layout.device_offset(place));
        }
        places
    });
    disk.world().stop();
    places.iter().for_each(|at| crate::tests::reuse::flip(&disk, *at));
    let found: Vec<_> =
        findings(&disk).into_iter().map(|f| (f.kind, f.path, f.offset, f.bytes)).collect();
    let of = |block: u64, blocks: u64| {
        let (offset, bytes) = (Some(block * 4096), Some(blocks * 4096));
        (FindingKind::Content, Some(b"/f".to_vec()), offset, bytes)
    };
    assert_eq!(found, [of(2, 3), of(7, 1)]);
}

/// fsck.E16: a report lists a limited number of findings of each kind, and counts the others.
#[test]
fn report_counts_findings_beyond_its_limit() {
    let mut report = FsckReport::default();
    for n in 0..MAX_FINDINGS as u64 + 5 {
        report.add(FindingKind::Content, "bad").ino = Some(n);
    }
    let mut names = FsckReport::default();
    names.add(FindingKind::Name, "wrong").ino = Some(9);
    report.append(names);
    assert_eq!(report.added(), MAX_FINDINGS + 6);
    report.end();
    let end: Vec<&str> =
        report.findings[MAX_FINDINGS - 1..].iter().map(|finding| finding.text.as_str()).collect();
    assert_eq!(end, ["bad", "wrong", "5 more findings of this kind"]);
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
