//! Replay of a log whose changes take more memory than there is for them (rollforward.bounded).
//!
//! No locks.

use crate::format::COUNT_MAX;
use crate::format::key::Key;
use crate::format::place::Place;
use crate::format::superblock::slot_offsets;
use crate::tests::read_only::spoil_leaf;
use crate::tests::reuse::{self, check, create, setup, write};
use crate::tests::setup::Setup;
use crate::{OpenOptions, Volume};
use forebay_base::sim_world::SimWorld;
use forebay_base::world::WorldRef;
use forebay_base::{ErrorKind, Result};
use forebay_block::{BioOp, BlockDevice, DeviceRef};
use forebay_sim::{Fault, FaultRule, LogEntry, SimDisk};
use forebay_vfs::{FileSystem, Ino, Name, OpenFlags, SetAttr};
use std::sync::Arc;

const LARGE_OVERLAY: u64 = 32 << 20;

/// Content goes into records up to `inline_max` bytes, else into runs.
fn fixture(inline_max: u32) -> Setup {
    Setup { volume_bytes: 16 << 20, ..setup(inline_max) }
}

async fn open(disk: &SimDisk, overlay_bytes: u64, read_only: bool) -> Result<Volume> {
    let device: DeviceRef = Arc::new(disk.clone());
    let world: WorldRef = disk.world().clone();
    let options = OpenOptions { overlay_bytes, read_only, ..fixture(0).options(&world) };
    Volume::open(&device, &world, &options).await
}

/// A disk after a power loss, whose log has names and content of `count` files behind the
/// checkpoint; and a place in that log, three quarters of the way.
fn crashed(count: usize, inline_max: u32) -> (SimDisk, Place) {
    let (disk, place, _) = crashed_with(count, inline_max, 0, async |_, _| {});
    (disk, place)
}

/// As [`crashed`], with `older` inodes in the checkpoint. Three quarters of the way it runs `late`.
/// The last result: the inodes in the checkpoint.
fn crashed_with(
    count: usize,
    inline_max: u32,
    older: usize,
    late: impl AsyncFn(&Volume, &[Ino]),
) -> (SimDisk, Place, Vec<Ino>) {
    let setup = fixture(inline_max);
    let disk = setup.blank();
    let (place, inos) = disk.world().run(async {
        let volume = reuse::open(&setup, &disk).await.unwrap();
        let mut inos = Vec::new();
        for n in 0..older {
            let (ino, file) = create(&volume, &format!("older {n}")).await.unwrap();
            write(&file, 0, &[1; 4096]).await.unwrap();
            inos.push(ino);
        }
        if older > 0 {
            volume.syncfs().await.unwrap();
            volume.checkpoint().await.unwrap();
        }
        let (mut place, merged) = (None, volume.0.checkpoints.merged());
        for n in 0..count {
            let (_, file) = create(&volume, &format!("file {n}")).await.unwrap();
            if n % 8 == 0 {
                write(&file, 0, &vec![n as u8; 3 * 4096]).await.unwrap();
                file.sync(true).await.unwrap();
            }
            if n == count / 2 {
                // Removed again, so that later records do not name everything that the tree has.
                let name = Name::new(b"file 1").unwrap();
                volume.unlink(Ino::ROOT, name).await.unwrap();
            }
            if n == count / 4 * 3 {
                volume.syncfs().await.unwrap();
                let head = volume.0.log.ctl.lock().head;
                place = Some(Place::new(head.segment.unwrap(), head.offset));
                late(&volume, &inos).await;
            }
        }
        volume.syncfs().await.unwrap();
        assert_eq!(volume.0.checkpoints.merged(), merged, "the log has all of it");
        (place.unwrap(), inos)
    });
    disk.world().stop();
    (disk.power_cut(1).in_world(SimWorld::new(2)), place, inos)
}

/// Opens the disk. Returns the digest, the number of the checkpoint, and the peak of changes.
fn found(disk: &SimDisk, overlay_bytes: u64) -> Result<(u64, u64, u64)> {
    let found = disk.world().run(async {
        let volume = open(disk, overlay_bytes, false).await?;
        let digest = volume.digest().await?;
        Ok((digest, volume.0.checkpoints.number(), volume.0.memory.replay_peak()))
    });
    disk.world().stop();
    found
}

/// Number of the newest checkpoint of a disk. Nothing is written.
fn checkpoint(disk: &SimDisk) -> u64 {
    let disk = disk.in_world(SimWorld::new(9));
    let number = disk.world().run(async {
        let volume = open(&disk, LARGE_OVERLAY, true).await.unwrap();
        volume.0.checkpoints.number()
    });
    disk.world().stop();
    number
}

/// The story: a replay kept all changes of the log in memory. A log of a volume with much memory
/// could not be opened with little. bounded.R28, bounded.R29: a replay in parts finds the same, and
/// fsck finds nothing.
#[test]
fn replay_of_long_log_stays_in_its_bound() {
    [0, 64 << 10].into_iter().for_each(replay_in_parts);
}

fn replay_in_parts(inline_max: u32) {
    let (disk, _) = crashed(1200, inline_max);
    let before = checkpoint(&disk);
    let (wanted, last, peak) = found(&disk.in_world(SimWorld::new(3)), LARGE_OVERLAY).unwrap();
    assert_eq!(last, before + 1);
    let bound = 2 * (32 << 10);
    assert!(peak > 6 * bound, "{peak} bytes at once");
    let disk = disk.in_world(SimWorld::new(4));
    let (digest, last, peak) = found(&disk, 32 << 10).unwrap();
    assert_eq!(digest, wanted);
    assert!(peak < bound + (16 << 10), "{peak} bytes, and one record may exceed the bound");
    assert!(last > before + 5, "R29: {} checkpoints", last - before);
    let report = check(&disk.in_world(SimWorld::new(5)));
    assert!(report.is_clean(), "R28: {:?}", report.findings);
}

/// bounded.R28: the power fails at writes of an opening that replays in parts, in the middle of its
/// checkpoints: the next opening, with much memory or little, finds the same.
#[test]
fn power_loss_in_bounded_replay_loses_nothing() {
    [0, 64 << 10].into_iter().for_each(lose_power_in_parts);
}

fn lose_power_in_parts(inline_max: u32) {
    let (disk, _) = crashed(300, inline_max);
    let (wanted, ..) = found(&disk.in_world(SimWorld::new(3)), LARGE_OVERLAY).unwrap();
    let (mut cuts, mut nth) = (0, 1);
    loop {
        let opening = disk.in_world(SimWorld::new(4 + nth));
        let rule = FaultRule::on(BioOp::Write, Fault::Fail(ErrorKind::Io));
        opening.inject(rule.nth(nth).sticky());
        if found(&opening, 8 << 10).is_ok() {
            break;
        }
        let cut = opening.power_cut(nth);
        for overlay_bytes in [LARGE_OVERLAY, 8 << 10] {
            let again = cut.in_world(SimWorld::new(500 + nth));
            let (digest, ..) = found(&again, overlay_bytes).unwrap();
            assert_eq!(digest, wanted, "cut at write {nth}, then {overlay_bytes} bytes");
            // The digest has no content, so fsck checks it. A torn slot is harmless.
            let report = check(&again.in_world(SimWorld::new(900 + nth)));
            let is_sound = report.findings.iter().all(|finding| finding.kind.is_harmless());
            assert!(is_sound, "cut at write {nth}: {:?}", report.findings);
        }
        (cuts, nth) = (cuts + 1, nth + 1 + nth / 8);
    }
    assert!(cuts > 10, "{cuts}");
}

/// Number of slots of the superblock that an opening has written, up to the request that failed, if
/// any. Each checkpoint writes two.
fn slots_written(opening: &SimDisk) -> usize {
    let log = opening.log();
    let end = log.iter().position(|entry| entry.fault.is_some()).unwrap_or(log.len());
    let slots = slot_offsets(opening.size());
    let is_slot = |entry: &&LogEntry| entry.op == BioOp::Write && slots.contains(&entry.offset);
    log[..end].iter().filter(is_slot).count()
}

/// The device fails one request of an opening that replays in parts, and recovers: at many places,
/// before the first checkpoint, between checkpoints, and behind the last one. The opening may fail.
/// If it succeeds, it serves the same state. The next opening finds the same.
#[test]
fn device_failure_in_bounded_replay_loses_nothing() {
    let (disk, _) = crashed(300, 64 << 10);
    let (wanted, last, _) = found(&disk.in_world(SimWorld::new(3)), LARGE_OVERLAY).unwrap();
    let healthy = disk.in_world(SimWorld::new(3));
    let (_, number, _) = found(&healthy, 8 << 10).unwrap();
    let slots = slots_written(&healthy);
    assert!(number > last + 5 && slots as u64 > 2 * (number - last), "{number}, {slots} slots");
    for op in [BioOp::Read, BioOp::Write, BioOp::Flush] {
        let (mut between, mut failed_between, mut nth) = (0, 0, 1);
        loop {
            let opening = disk.in_world(SimWorld::new(4 + nth));
            opening.inject(FaultRule::on(op, Fault::Fail(ErrorKind::Io)).nth(nth));
            let first = found(&opening, 8 << 10);
            if opening.fault_counts().failed == 0 {
                break;
            }
            let is_between = (1..slots).contains(&slots_written(&opening));
            between += usize::from(is_between);
            match &first {
                Ok((digest, ..)) => assert_eq!(*digest, wanted, "over {op:?} {nth}"),
                Err(_) => failed_between += usize::from(is_between),
            }
            for overlay_bytes in [LARGE_OVERLAY, 8 << 10] {
                let again = opening.in_world(SimWorld::new(500 + nth));
                let (digest, ..) = found(&again, overlay_bytes).unwrap();
                assert_eq!(digest, wanted, "after {op:?} {nth}, {overlay_bytes} bytes: {first:?}");
                let report = check(&again.in_world(SimWorld::new(900 + nth)));
                let is_sound = report.findings.iter().all(|finding| finding.kind.is_harmless());
                assert!(is_sound, "after {op:?} {nth}: {:?}", report.findings);
            }
            nth += 1 + nth / 8;
        }
        assert!(between > 8, "{op:?}: {between} failures between the parts");
        // A failed read is tried again, or the other copy is read.
        let (is_read, what) = (op == BioOp::Read, "failures ended the opening there");
        assert!(is_read || failed_between > 8, "{op:?}: {failed_between} {what}");
    }
}

/// bounded.R27: a log that is damaged far behind the bound refuses an opening for writing before
/// anything is written.
#[test]
fn damaged_log_is_refused_before_replay_writes() {
    let (disk, place) = crashed(1200, 0);
    let before = checkpoint(&disk);
    let layout = disk.world().run(async {
        let volume = open(&disk, LARGE_OVERLAY, true).await.unwrap();
        volume.0.layout
    });
    disk.world().stop();
    let disk = disk.in_world(SimWorld::new(3));
    disk.poke(layout.device_offset(place), &[0; 512]);
    let refused = found(&disk, 32 << 10).expect_err("R27");
    assert_eq!(refused.kind(), ErrorKind::Corrupt, "{refused}");
    let disk = disk.in_world(SimWorld::new(4));
    assert_eq!(checkpoint(&disk), before, "R27: no checkpoint was made");
}

/// Checks that an opening with little memory is refused, and has made no checkpoint (bounded.R27).
fn assert_refused_before_writes(disk: &SimDisk) {
    let before = checkpoint(disk);
    let disk = disk.in_world(SimWorld::new(3));
    let refused = found(&disk, 32 << 10).expect_err("R27");
    assert_eq!(refused.kind(), ErrorKind::Corrupt, "{refused}");
    let disk = disk.in_world(SimWorld::new(4));
    assert_eq!(checkpoint(&disk), before, "R27: no checkpoint was made");
}

/// The story: the rest of the log was scanned for damaged records only. The opening was refused
/// when it applied a late record, and had overwritten older states by then. bounded.R27: here a
/// late record has a sequence number that no slot can hold.
#[test]
fn late_number_out_of_range_is_refused_before_replay_writes() {
    let draw = async |volume: &Volume, _: &[Ino]| {
        volume.0.state.lock().skip_sequences(COUNT_MAX);
    };
    assert_refused_before_writes(&crashed_with(1200, 0, 0, draw).0);
}

/// bounded.R27: both copies of a leaf are lost that only a late record needs: the leaf of an inode,
/// or the leaf of an extent.
#[test]
fn lost_leaf_of_late_record_is_refused_before_replay_writes() {
    for is_inode in [true, false] {
        let late = async |volume: &Volume, inos: &[Ino]| {
            if is_inode {
                let set = SetAttr { perm: Some(0o600), ..SetAttr::default() };
                volume.setattr(inos[300], &set).await.unwrap();
            } else {
                let file = volume.open(inos[300], OpenFlags::WRITE).await.unwrap();
                write(&file, 0, &[7; 4096]).await.unwrap();
                file.sync(true).await.unwrap();
            }
        };
        let (disk, _, inos) = crashed_with(1200, 0, 600, late);
        disk.world().run(async {
            let volume = open(&disk, LARGE_OVERLAY, true).await.unwrap();
            let ino = inos[300];
            let _file = volume.open(ino, OpenFlags::READ).await.unwrap();
            let data_id = volume.0.state.lock().names().node(ino.0).unwrap().inode.data_id;
            let key = if is_inode { Key::Inode(ino.0) } else { Key::Extent(data_id, 0) };
            spoil_leaf(&volume, &disk, key).await;
        });
        disk.world().stop();
        assert_refused_before_writes(&disk);
    }
}

/// The story: the host had no space for the first checkpoint of a replay in parts. The opening then
/// replayed the complete log in memory, as if the volume had too few free segments, and failed at
/// the same write.
#[test]
fn full_host_does_not_lift_the_bound_of_a_replay() {
    let (disk, _) = crashed(1200, 0);
    disk.inject(FaultRule::on(BioOp::Write, Fault::Fail(ErrorKind::NoSpace)).sticky());
    disk.clear_log();
    let refused = found(&disk, 32 << 10).expect_err("the host is full");
    assert_eq!(refused.kind(), ErrorKind::NoSpace, "{refused}");
    let slot = slot_offsets(disk.size())[0];
    let is_slot = |entry: &LogEntry| entry.op == BioOp::Read && entry.offset == slot;
    let passes = disk.log().iter().filter(|entry| is_slot(entry)).count();
    assert_eq!(passes, 1, "the log was read once");
}
