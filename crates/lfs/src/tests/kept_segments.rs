//! Segments that a failure or a dropped task leaves behind: each one becomes free again in the same
//! life of the volume.
//!
//! No locks.

use crate::Volume;
use crate::checkpoint::How;
use crate::format::place::Place;
use crate::format::usage::Stream;
use crate::map::overlay::Where;
use crate::space::segment::Phase;
use crate::tests::dropped::polled;
use crate::tests::faults::failing;
use crate::tests::reuse::{create, open, setup, write};
use forebay_base::IoFlags;
use forebay_base::buf::AlignedBuf;
use forebay_base::world::World;
use forebay_block::BioOp;
use forebay_sim::{Fault, FaultRule};
use forebay_vfs::Privileges;
use std::time::Duration;

const BLOCK: usize = 4096;
/// How long a late write takes, nanoseconds.
const LATE: u64 = 1_000_000_000;

/// Segments that the log has and that are in this phase, if a phase is given.
fn log_segments(volume: &Volume, phase: Option<Phase>) -> usize {
    let state = volume.0.state.lock();
    let is_in = |this: Phase| this != Phase::Free && phase.is_none_or(|phase| phase == this);
    let segments = state.space().segments().iter();
    segments.filter(|(_, this)| this.stream == Stream::Log && is_in(this.phase)).count()
}

/// The story: while a device failed, each checkpoint that wanted to leave its log segment left a
/// mark in the queue. When the device worked again, each of these marks took a segment of its own.
/// And each kept its grant, so that after a minute of failures no log space was left to grant.
#[test]
fn marks_of_failed_checkpoints_take_one_segment_together() {
    const FAILED: usize = 8;
    let setup = setup(0);
    let disk = setup.blank();
    disk.world().run(async {
        let volume = open(&setup, &disk).await.unwrap();
        let (_, file) = create(&volume, "f").await.unwrap();
        file.sync(false).await.unwrap();
        let before = log_segments(&volume, None);
        disk.inject(failing(BioOp::Write).sticky());
        let mut granted = Vec::new();
        for _ in 0..FAILED {
            volume.0.checkpoints.make(How::Moving).await.expect_err("no write works");
            granted.push(volume.granted_log_bytes());
        }
        assert_eq!(granted.first(), granted.last(), "one mark holds a grant: {granted:?}");
        disk.heal();
        // One segment for the records that the repair lays out again, and one after the last mark.
        volume.0.commit_queue().await.unwrap();
        let taken = log_segments(&volume, None) - before;
        assert!(taken <= 2, "{FAILED} marks took {taken} segments");
        volume.0.checkpoints.make(How::Moving).await.expect("its own mark still moves the log");
        file.sync(false).await.unwrap();
    });
    disk.world().stop();
}

/// log.L9. The story: the segments that a dropped write turn had opened were in use until two
/// checkpoints had been made. They are free when its records are laid out anew, because its last
/// write has ended by then.
#[test]
fn segment_of_dropped_write_turn_becomes_free() {
    let setup = setup(0);
    let mut opened = 0;
    for polls in 1..9 {
        let disk = setup.blank();
        disk.world().run(async {
            let volume = open(&setup, &disk).await.unwrap();
            let (_, file) = create(&volume, "f").await.unwrap();
            write(&file, 0, &[1; BLOCK]).await.unwrap();
            file.sync(false).await.unwrap();
            let before = log_segments(&volume, None);
            disk.inject(FaultRule::on(BioOp::Write, Fault::Slow(LATE)).sticky());
            let ended = polled(polls, volume.0.checkpoints.make(How::Moving)).await;
            opened += u32::from(!ended && log_segments(&volume, None) > before);
            disk.heal();
            World::sleep(&**disk.world(), Duration::from_nanos(2 * LATE)).await;
            write(&file, 0, &[2; BLOCK]).await.unwrap();
            file.sync(false).await.unwrap();
            // The log has moved once, for the mark of the dropped checkpoint.
            let after = log_segments(&volume, None);
            assert!(after <= before + 1, "dropped after {polls} polls: {before}, {after}");
        });
        disk.world().stop();
    }
    assert!(opened > 0, "no turn that had opened a segment was dropped");
}

/// The story: the repair after a failed flush asked whether the device takes any write, in a free
/// segment. Its task was dropped meanwhile, and the segment was in use until the next opening.
#[test]
fn segment_of_dropped_repair_becomes_free() {
    let setup = setup(0);
    let mut asked = 0;
    for polls in 1..12 {
        let disk = setup.blank();
        disk.world().run(async {
            let volume = open(&setup, &disk).await.unwrap();
            let (ino, file) = create(&volume, "f").await.unwrap();
            file.sync(false).await.unwrap();
            let before = log_segments(&volume, Some(Phase::Open));
            let (direct, keep) = (AlignedBuf::copy_of(&[2; BLOCK]), Privileges::Keep);
            file.write(0, direct, IoFlags::DIRECT, keep).await.1.unwrap();
            let data_id = volume.0.state.lock().names().node(ino.0).unwrap().inode.data_id;
            let found = volume.0.piece_at(data_id, 0).await.unwrap().0.at;
            let Where::Run(place) = found else { panic!("a run, not {found:?}") };
            disk.inject(failing(BioOp::Flush));
            volume.0.flush_all().await.expect_err("the flush fails");
            // The data cannot be written where it is, and each other write is slow.
            let at = volume.0.layout.device_offset(Place::new(place.segment, 0));
            let segment = at..at + volume.0.layout.segment_bytes();
            disk.inject(failing(BioOp::Write).within(segment).sticky());
            disk.inject(FaultRule::on(BioOp::Write, Fault::Slow(LATE)).sticky());
            let ended = polled(polls, volume.0.commit_queue()).await;
            asked += u32::from(!ended && log_segments(&volume, Some(Phase::Open)) > before);
            disk.heal();
            World::sleep(&**disk.world(), Duration::from_nanos(2 * LATE)).await;
            volume.0.commit_queue().await.expect("the device works");
            let after = log_segments(&volume, Some(Phase::Open));
            assert_eq!(after, before, "dropped after {polls} polls");
        });
        disk.world().stop();
    }
    assert!(asked > 0, "no task was dropped while it asked");
}
