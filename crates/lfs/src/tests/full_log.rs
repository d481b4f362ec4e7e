//! The log of a volume that is so full that it may take no segment: places that take no write, and
//! flushes that fail.
//!
//! No locks.

use super::full::{available, file, filled, open, setup, write};
use super::outage::{
    after_power_loss, disturbed, failing_flushes, failing_writes, heals, outage, unlink,
};
use crate::Volume;
use crate::format::place::Place;
use crate::format::usage::Stream;
use crate::space::Leave;
use crate::tests::faults::found;
use crate::tests::reuse::write as overwrite;
use crate::tests::setup::Setup;
use forebay_base::sim_world::SimWorld;
use forebay_sim::SimDisk;
use forebay_vfs::{FileSystem, SetAttr};
use std::ops::Range;

const UNIT: u64 = 4096;

/// Files by name, with their sizes.
type Made = Vec<(String, u64)>;

/// Fills the volume, and lets the log take segments as after failed writes, until it may take no
/// more.
async fn exhausted(volume: &Volume) -> Made {
    let mut made = filled(volume).await;
    unlink(volume, &made[0].0).await.unwrap();
    volume.syncfs().await.unwrap();
    made.remove(0);
    while may_move(volume) {
        moved(volume).await;
    }
    made
}

fn may_move(volume: &Volume) -> bool {
    volume.0.state.lock().can_move_log(0, 0, Leave::Failed)
}

/// The log moves to another segment, as behind the mark of a checkpoint.
async fn moved(volume: &Volume) {
    let mark = volume.0.state.lock().append_cut(true);
    volume.0.commit(mark, false).await.expect("a record of the log");
}

/// From now on the sectors at the end of the log take no write. Returns their offsets.
fn spoil_log_end(disk: &SimDisk, volume: &Volume) -> Option<Range<u64>> {
    let head = volume.0.log.ctl.lock().head;
    // None: the log is about to begin another segment.
    let at = volume.0.layout.device_offset(Place::new(head.segment?, head.offset));
    disk.inject(failing_writes().within(at..at + UNIT));
    Some(at..at + UNIT)
}

/// log.L17. The story: the end of the log was at a sector that takes no write, and no free segment
/// could be taken. All changes and syncs failed until the volume was opened again.
#[test]
fn l17_bad_place_at_end_of_log_is_left() {
    for fua in [false, true] {
        let setup = Setup { fua, ..setup(0) };
        let disk = setup.blank();
        disk.world().run(async {
            let volume = open(&setup, &disk).await.unwrap();
            let empty = available(&volume).await;
            let made = exhausted(&volume).await;
            let (name, last) = (&made[1].0, file(&volume, &made[1].0).await.unwrap());
            spoil_log_end(&disk, &volume).expect("the log has a segment");
            let mut failed = 0;
            write(&last, name, 0, UNIT).await.unwrap();
            while last.sync(false).await.is_err() {
                failed += 1;
                assert!(failed <= 3, "L17: {failed} syncs failed");
            }
            assert!(failed > 0, "a sector takes no write");
            drop(last);
            heals(&volume, &made, empty).await;
        });
        disk.world().stop();
    }
}

/// The end of the log takes no write, and the next checkpoint may need all free segments for its
/// nodes: so many changes were accepted while writes failed. Then changes and syncs may fail, but
/// no longer than until the volume is opened again, even if the place stays bad.
#[test]
fn l17_bad_place_after_outage_fails_nothing_after_opening() {
    for seed in 0..2 {
        let setup = Setup { fua: seed % 2 == 1, ..setup(0) };
        let disk = setup.blank();
        let (made, empty, bad) = disk.world().run(async {
            let volume = open(&setup, &disk).await.unwrap();
            let empty = available(&volume).await;
            let made = disturbed(&disk, &volume, failing_writes().every(5), seed).await;
            disk.heal();
            let bad = spoil_log_end(&disk, &volume);
            for _ in 0..4 {
                let mark = volume.0.state.lock().append_mark();
                let _refused = volume.0.commit(mark, false).await;
            }
            (made, empty, bad)
        });
        disk.world().stop();
        let cut = disk.power_cut(seed);
        bad.into_iter().for_each(|bad| cut.inject(failing_writes().within(bad)));
        after_power_loss(&setup, &cut, &made, empty);
    }
}

/// space.P26, log.L18. The story: the log moved to another segment after each failed flush, until
/// no segment was free. Removals and syncs were refused for good.
#[test]
fn p26_failed_flushes_leave_segments_for_nodes() {
    let setup = setup(0);
    let disk = setup.blank();
    disk.world().run(async {
        let volume = open(&setup, &disk).await.unwrap();
        let empty = available(&volume).await;
        let made = exhausted(&volume).await;
        let free = || volume.0.state.lock().space().segments().free();
        let before = free();
        let (name, last) = (&made[1].0, file(&volume, &made[1].0).await.unwrap());
        for n in 0..20 {
            write(&last, name, 0, UNIT).await.unwrap();
            disk.inject(failing_flushes());
            assert!(last.sync(false).await.is_err(), "{n}: the flush fails");
            disk.heal();
            last.sync(false).await.unwrap_or_else(|error| panic!("{n}: {error}"));
            assert!(free() + 1 >= before, "P26: {n}: {} of {before} segments are free", free());
        }
        drop(last);
        heals(&volume, &made, empty).await;
    });
    disk.world().stop();
}

/// space.P26: a device that fails many flushes for a minute, and completes some in between.
#[test]
fn nearly_full_volume_works_at_once_after_failing_flushes() {
    let rules = [failing_flushes().every(2), failing_flushes().one_in(2), failing_flushes()];
    for (seed, rule) in (0..).zip(rules) {
        outage(&setup(0), seed, rule);
    }
}

/// log.L18: after a failed flush the log stays where its durable part ends. A power loss at any
/// request leaves what the last good sync has made durable, or something newer.
#[test]
fn l18_log_that_stays_after_failed_flush_keeps_synced_content() {
    const BLOCKS: u64 = 8;
    let setup = setup(0);
    let disk = setup.blank();
    let bytes: Vec<u8> = (0..BLOCKS).flat_map(|n| vec![n as u8; UNIT as usize]).collect();
    let mut stays = 0;
    disk.world().run(async {
        let volume = open(&setup, &disk).await.unwrap();
        let file = file(&volume, "f").await.unwrap();
        overwrite(&file, 0, &bytes).await.unwrap();
        file.sync(false).await.unwrap();
        // No segment is left for a log that has failed, and none becomes free.
        while may_move(&volume) {
            volume.0.state.lock().take_segment(Stream::Data).unwrap();
        }
        disk.record_cuts();
        let head = || {
            let head = volume.0.log.ctl.lock().durable;
            (head.segment, head.generation)
        };
        for n in 1..BLOCKS {
            let before = head();
            let cut = SetAttr::size((BLOCKS - n) * UNIT);
            volume.setattr(file.ino(), &cut).await.unwrap();
            disk.inject(failing_flushes());
            for try_ in 0..=n % 3 {
                assert!(file.sync(false).await.is_err(), "{n}: a flush fails");
                // The records of the next try are in other groups.
                let mode = SetAttr { perm: Some(0o600 + try_ as u16), ..SetAttr::default() };
                let _accepted = volume.setattr(file.ino(), &mode).await;
            }
            disk.heal();
            let _report = file.sync(false).await;
            file.sync(false).await.unwrap_or_else(|error| panic!("{n}: {error}"));
            stays += u32::from(head() == before);
            disk.tag_cuts(n);
        }
    });
    disk.world().stop();
    assert!(stays >= 5, "L18: the log stayed {stays} times");
    let mut states = 0;
    for cut in disk.take_cuts() {
        for state in cut.states(2).step_by(2) {
            states += 1;
            let left = found(&setup, &state.mount(SimWorld::new(2)), "f");
            let synced = ((BLOCKS - cut.tag()) * UNIT) as usize;
            let is_whole = left.len().is_multiple_of(UNIT as usize) && bytes.starts_with(&left);
            assert!(is_whole && left.len() <= synced, "{}: {} bytes", state.label, left.len());
        }
    }
    assert!(states > 50, "{states} states");
}
