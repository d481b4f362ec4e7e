//! Failed writes of the log lose nothing: only a failed flush may lose what the device had
//! completed.
//!
//! No locks.

use crate::Volume;
use crate::format::place::Place;
use crate::map::overlay::Where;
use crate::tests::faults::{failing, found, synced_at_last};
use crate::tests::reuse::{create, open, read, setup, write};
use crate::tests::setup::Setup;
use crate::tests::sums_off::blank;
use forebay_base::buf::AlignedBuf;
use forebay_base::sim_world::SimWorld;
use forebay_base::task::oneshot;
use forebay_base::world::World;
use forebay_base::{ErrorKind, IoFlags, Result};
use forebay_block::BioOp;
use forebay_sim::{Fault, FaultRule, SimDisk};
use forebay_vfs::{FileSystem, Ino, OpenFileRef, OpenFlags, Privileges, SetAttr};
use std::time::Duration;

const BLOCK: usize = 4096;
const SEGMENT: u64 = 64 << 10;
const DIRECT: IoFlags = IoFlags::DIRECT;
const DIRECT_DSYNC: IoFlags = IoFlags::DIRECT.union(IoFlags::DSYNC);

/// The next write of a record fails.
fn failing_log(volume: &Volume, kind: ErrorKind) -> FaultRule {
    let segment = volume.0.log.ctl.lock().head.segment.expect("a record was written");
    let at = volume.0.layout.device_offset(Place::new(segment, 0));
    FaultRule::on(BioOp::Write, Fault::Fail(kind)).within(at..at + SEGMENT)
}

/// Requests that the disk has failed.
fn failed(disk: &SimDisk) -> u64 {
    let counts = disk.fault_counts();
    counts.failed + counts.no_space
}

async fn write_block(file: &OpenFileRef, fill: u8, flags: IoFlags) -> Result<()> {
    let block = AlignedBuf::copy_of(&[fill; BLOCK]);
    file.write(0, block, flags, Privileges::Keep).await.1.map(drop)
}

/// Where the block of a file is on the device.
async fn place_of(volume: &Volume, ino: Ino) -> u64 {
    let data_id = volume.0.state.lock().names().node(ino.0).unwrap().inode.data_id;
    let found = volume.0.piece_at(data_id, 0).await.unwrap().0.at;
    let Where::Run(place) = found else { panic!("a run, not {found:?}") };
    volume.0.layout.device_offset(place)
}

/// A file of one block that a sync has made durable.
async fn synced(volume: &Volume, name: &str) -> (Ino, OpenFileRef) {
    let (ino, file) = create(volume, name).await.unwrap();
    write(&file, 0, &[1; BLOCK]).await.unwrap();
    file.sync(true).await.unwrap();
    (ino, file)
}

/// The story: without checksums, on a full host, a direct write was flushed, then the write of its
/// record failed. The repair took that for a failed flush, could not verify the block, and dropped
/// it; the volume turned read-only at the next checkpoint.
#[test]
fn failed_log_write_without_sums_keeps_flushed_direct_write() {
    let kinds = [ErrorKind::NoSpace, ErrorKind::Io];
    for (kind, fua) in kinds.into_iter().flat_map(|kind| [(kind, false), (kind, true)]) {
        let setup = Setup { fua, ..setup(0) };
        let disk = blank(&setup, false);
        disk.world().run(async {
            let volume = open(&setup, &disk).await.unwrap();
            let (_, file) = synced(&volume, "f").await;
            disk.inject(failing_log(&volume, kind));
            // A write that finds no space is tried again when space may have become free.
            let done = write_block(&file, 2, DIRECT_DSYNC).await;
            assert!(done.is_err() || kind == ErrorKind::NoSpace, "no record");
            assert_eq!(failed(&disk), 1, "the log's write failed");
            disk.heal();
            volume.checkpoint().await.unwrap_or_else(|error| panic!("{kind:?}, {fua}: {error}"));
            assert!(volume.stopped().is_none() && volume.damage().is_none());
            assert_eq!(read(&file, BLOCK).await, [2; BLOCK]);
            // The first sync may report the error of the write, once.
            synced_at_last(&file).await;
        });
        disk.world().stop();
        for seed in 0..4 {
            assert_eq!(found(&setup, &disk.power_cut(seed), "f"), [2; BLOCK], "{kind:?}, {fua}");
        }
    }
}

/// The story: a client that requested no sync wrote while the group of another client was in
/// flight, and got success. The write of the group failed, and the block of this client was gone.
#[test]
fn failed_log_write_keeps_direct_write_of_other_file() {
    let cases = [(ErrorKind::NoSpace, false), (ErrorKind::NoSpace, true), (ErrorKind::Io, false)];
    for (kind, fua) in cases {
        let setup = Setup { fua, ..setup(0) };
        let disk = blank(&setup, false);
        disk.world().run(async {
            let volume = open(&setup, &disk).await.unwrap();
            let (_, file) = synced(&volume, "f").await;
            let (_, other) = synced(&volume, "other").await;
            disk.inject(failing_log(&volume, kind));
            // Slows the flush before the other's record (commit.K13).
            disk.inject(FaultRule::on(BioOp::Flush, Fault::Slow(50_000_000)));
            let (tx, rx) = oneshot();
            let task = async move { tx.send(write_block(&other, 2, DIRECT_DSYNC).await) };
            disk.world().spawn("other", Box::pin(task));
            disk.world().sleep(Duration::from_millis(10)).await;
            write_block(&file, 3, DIRECT).await.expect("its data needs no log");
            let queued = volume.0.state.lock().queue().len();
            assert_eq!(queued, 1, "the other's record was taken, this one was not");
            let done = rx.await.expect("it ends");
            assert!(done.is_err() || kind == ErrorKind::NoSpace, "no record of it");
            assert_eq!(failed(&disk), 1, "the log's write failed");
            disk.heal();
            volume.checkpoint().await.unwrap_or_else(|error| panic!("{kind:?}, {fua}: {error}"));
            assert!(volume.stopped().is_none() && volume.damage().is_none());
            assert_eq!(read(&file, BLOCK).await, [3; BLOCK]);
            file.sync(true).await.expect("nothing of it has failed");
        });
        disk.world().stop();
        for (name, fill) in [("f", 3), ("other", 2)] {
            assert_eq!(found(&setup, &disk.power_cut(1), name), [fill; BLOCK], "{kind:?}, {fua}");
        }
    }
}

/// The story: a record of one file could not be written. That counted as a failed flush of the
/// device: all writes of all files since the last successful flush counted as lost. A file with
/// direct writes failed every sync from then on, and cached content was written a second time.
#[test]
fn failed_log_write_fails_sync_of_its_file_alone() {
    for kind in [ErrorKind::NoSpace, ErrorKind::Io] {
        let setup = setup(0);
        let disk = setup.blank();
        disk.world().run(async {
            let volume = open(&setup, &disk).await.unwrap();
            let (_, direct) = synced(&volume, "direct").await;
            let (ino, cached) = synced(&volume, "cached").await;
            let (_, other) = synced(&volume, "other").await;
            write_block(&direct, 2, DIRECT).await.unwrap();
            write(&cached, 0, &[3; BLOCK]).await.unwrap();
            volume.0.files.content("test", ino).unwrap().file.write_out().await.unwrap();
            let before = place_of(&volume, ino).await;
            write(&other, 0, &[4; BLOCK]).await.unwrap();
            disk.inject(failing_log(&volume, kind));
            let error = other.sync(true).await.expect_err("no record");
            assert_eq!(error.kind(), kind, "{error}");
            disk.heal();
            for file in [&direct, &cached, &other, &direct, &cached] {
                file.sync(true).await.unwrap_or_else(|error| panic!("{kind:?}: {error}"));
            }
            assert_eq!(place_of(&volume, ino).await, before, "not written a second time");
        });
        disk.world().stop();
        for (name, fill) in [("direct", 2), ("cached", 3), ("other", 4)] {
            assert_eq!(found(&setup, &disk.power_cut(1), name), [fill; BLOCK], "{kind:?}");
        }
    }
}

/// The story: a sync of a file did not write that file while another one could not be written, one
/// that had been truncated, written and closed. Only syncs of that one and of the volume may fail.
#[test]
fn unwritable_truncated_file_fails_no_sync_of_another_file() {
    for kind in [ErrorKind::NoSpace, ErrorKind::Io] {
        // Small content goes into the log, larger content elsewhere, and only that fails.
        let setup = setup(BLOCK as u32);
        let disk = setup.blank();
        let state = disk.world().run(async {
            let volume = open(&setup, &disk).await.unwrap();
            let (_, other) = synced(&volume, "other").await;
            let (ino, cut) = synced(&volume, "cut").await;
            let segment = volume.0.log.ctl.lock().head.segment.expect("a record was written");
            let at = volume.0.layout.device_offset(Place::new(segment, 0));
            let works = FaultRule::on(BioOp::Write, Fault::Slow(1)).within(at..at + SEGMENT);
            disk.inject(works.sticky());
            disk.inject(FaultRule::on(BioOp::Write, Fault::Fail(kind)).sticky());
            volume.setattr(ino, &SetAttr::size(0)).await.unwrap();
            write(&cut, 0, &[3; 4 * BLOCK]).await.unwrap();
            drop(cut);
            for data_only in [true, false] {
                write(&other, 0, &[2; BLOCK]).await.unwrap();
                other.sync(data_only).await.expect("the other file concerns it not");
            }
            let directory = volume.open(Ino::ROOT, OpenFlags::READ).await.unwrap();
            directory.sync(false).await.expect("the other file concerns it not");
            let state = disk.cut_state(1);
            let later = volume.open(ino, OpenFlags::READ).await.unwrap();
            for _ in 0..2 {
                assert_eq!(later.sync(true).await.expect_err("its content").kind(), kind);
                assert_eq!(volume.syncfs().await.expect_err("its content").kind(), kind);
            }
            disk.heal();
            synced_at_last(&later).await;
            volume.syncfs().await.expect("it is written");
            state
        });
        disk.world().stop();
        assert_eq!(found(&setup, &state.mount(SimWorld::new(2)), "other"), [2; BLOCK], "{kind:?}");
        assert_eq!(found(&setup, &disk.power_cut(1), "cut"), [3; 4 * BLOCK], "{kind:?}");
    }
}

/// The story: writes of all files counted as lost although no flush had failed. No record could be
/// written, and a truncated, written and closed file was outstanding.
#[test]
fn unwritable_truncation_fails_syncs_only_while_it_lasts() {
    let setup = setup(0);
    let disk = setup.blank();
    disk.world().run(async {
        let volume = open(&setup, &disk).await.unwrap();
        let (_, file) = synced(&volume, "f").await;
        let (_, other) = synced(&volume, "other").await;
        let (ino, cut) = synced(&volume, "cut").await;
        write_block(&file, 2, DIRECT).await.unwrap();
        let full = FaultRule::on(BioOp::Write, Fault::Fail(ErrorKind::NoSpace));
        disk.inject(full.sticky());
        volume.setattr(ino, &SetAttr::size(0)).await.unwrap();
        write(&cut, 0, &[3; BLOCK]).await.unwrap();
        drop(cut);
        let error = other.sync(true).await.expect_err("the truncation cannot be recorded");
        assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
        disk.heal();
        for file in [&file, &other, &file] {
            file.sync(true).await.expect("there is space again");
        }
    });
    disk.world().stop();
    for (name, fill) in [("f", 2), ("other", 1), ("cut", 3)] {
        assert_eq!(found(&setup, &disk.power_cut(1), name), [fill; BLOCK]);
    }
}

/// A flush fails that is not part of a sync, and the place of one block cannot be written again.
/// The repair leaves that block out of its record. The cache still has the block, so the next sync
/// of the file reports the failure and writes the block again.
#[test]
fn block_that_repair_omitted_is_written_from_cache() {
    let setup = setup(0);
    let disk = setup.blank();
    disk.world().run(async {
        let volume = open(&setup, &disk).await.unwrap();
        let (ino, file) = synced(&volume, "f").await;
        let (_, other) = synced(&volume, "other").await;
        write(&file, 0, &[2; BLOCK]).await.unwrap();
        volume.0.files.content("test", ino).unwrap().file.write_out().await.unwrap();
        write_block(&other, 3, DIRECT).await.unwrap();
        let at = place_of(&volume, ino).await;
        disk.inject(failing(BioOp::Write).within(at..at + BLOCK as u64).sticky());
        disk.inject(failing(BioOp::Flush));
        volume.0.flush_all().await.expect_err("the flush fails");
        volume.0.commit_queue().await.expect("the rest of the device works");
        file.sync(true).await.expect_err("its block is not in the log");
        synced_at_last(&file).await;
        other.sync(true).await.expect("the repair wrote it again");
        assert_ne!(place_of(&volume, ino).await, at);
        volume.checkpoint().await.expect("nothing is lost");
    });
    disk.world().stop();
    disk.heal();
    for (name, fill) in [("f", 2), ("other", 3)] {
        assert_eq!(found(&setup, &disk.power_cut(1), name), [fill; BLOCK]);
    }
}

/// A direct write first writes out the dirty blocks that it replaces. The story: a full host
/// refused this write-out, and the caller got EIO.
#[test]
fn direct_write_over_refused_blocks_reports_no_space() {
    let setup = setup(0);
    let disk = setup.blank();
    disk.world().run(async {
        let volume = open(&setup, &disk).await.unwrap();
        let (_, file) = synced(&volume, "f").await;
        write(&file, 0, &[2; BLOCK]).await.unwrap();
        let full = FaultRule::on(BioOp::Write, Fault::Fail(ErrorKind::NoSpace));
        disk.inject(full.sticky());
        let error = write_block(&file, 3, DIRECT).await.expect_err("the host is full");
        assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
        disk.heal();
        write_block(&file, 3, DIRECT).await.expect("there is space again");
        synced_at_last(&file).await;
    });
    disk.world().stop();
    assert_eq!(found(&setup, &disk.power_cut(1), "f"), [3; BLOCK]);
}

/// After a failed flush a directly written block without a checksum counts as lost.
#[test]
fn failed_flush_without_sums_loses_direct_write() {
    for fua in [false, true] {
        let setup = Setup { fua, ..setup(0) };
        let disk = blank(&setup, false);
        disk.world().run(async {
            let volume = open(&setup, &disk).await.unwrap();
            let (ino, file) = synced(&volume, "f").await;
            disk.inject(failing(BioOp::Flush));
            write_block(&file, 2, DIRECT_DSYNC).await.expect_err("the flush fails");
            disk.heal();
            volume.checkpoint().await.expect("one file is concerned");
            assert!(volume.stopped().is_none());
            let error = file.sync(true).await.expect_err("its block is lost");
            assert_eq!(error.kind(), ErrorKind::Io, "{error}");
            let block = AlignedBuf::new(BLOCK);
            let error = file.read(0, block, IoFlags::empty()).await.1.expect_err("it is lost");
            assert!(error.to_string().contains(&format!("inode {}", ino.0)), "{error}");
        });
        disk.world().stop();
        assert_eq!(found(&setup, &disk.power_cut(1), "f"), [1; BLOCK], "fua {fua}");
    }
}

/// The story: after a failed flush every sync of a file failed that had been written past the
/// cache, until its last close. The log had read its blocks back and written them again, or the
/// program had replaced what was lost.
#[test]
fn failed_flush_fails_syncs_until_nothing_is_lost() {
    let mut intact = 0;
    for (seed, flags) in (1..40).flat_map(|seed| [(seed, DIRECT), (seed, IoFlags::UNCACHED)]) {
        let setup = setup(0);
        let disk = setup.blank_of(seed);
        let is_intact = disk.world().run(async {
            let volume = open(&setup, &disk).await.unwrap();
            let (_, file) = synced(&volume, "f").await;
            write_block(&file, 2, flags).await.unwrap();
            disk.inject(failing(BioOp::Flush));
            file.sync(true).await.expect_err("the flush fails");
            volume.0.commit_queue().await.expect("the repair");
            let is_intact = volume.lost_content(1).files.is_empty();
            if !is_intact {
                // The story: this sync, too, made the file fail until its last close.
                let next = AlignedBuf::copy_of(&[3; BLOCK]);
                file.write(BLOCK as u64, next, flags, Privileges::Keep).await.1.unwrap();
                file.sync(true).await.expect_err("a block is lost");
                write_block(&file, 2, flags).await.unwrap();
            }
            file.sync(true).await.expect("nothing is lost, or it is replaced");
            is_intact
        });
        disk.world().stop();
        let there = found(&setup, &disk.power_cut(seed), "f");
        assert_eq!(there[..BLOCK], [2; BLOCK], "seed {seed}, {flags:?}");
        intact += u32::from(is_intact);
    }
    assert!((1..78).contains(&intact), "{intact} of 78 runs");
}

/// The repair after a failed flush writes intact blocks again in their places. A host that copies
/// on write may have no space for that. The story: the blocks were dropped then, like those of a
/// bad place.
#[test]
fn repair_without_host_space_drops_no_block() {
    let mut intact = 0;
    for seed in 1..17 {
        let setup = setup(0);
        let disk = setup.blank_of(seed);
        let is_intact = disk.world().run(async {
            let volume = open(&setup, &disk).await.unwrap();
            let (ino, file) = synced(&volume, "f").await;
            let (_, other) = synced(&volume, "other").await;
            write_block(&file, 2, DIRECT).await.unwrap();
            write_block(&other, 3, DIRECT_DSYNC).await.unwrap();
            write_block(&file, 4, DIRECT).await.unwrap();
            let at = place_of(&volume, ino).await;
            let full = FaultRule::on(BioOp::Write, Fault::Fail(ErrorKind::NoSpace));
            disk.inject(full.within(at..at + BLOCK as u64).sticky());
            disk.inject(failing(BioOp::Flush));
            volume.0.flush_all().await.expect_err("the flush fails");
            if disk.peek(at, BLOCK) != [4; BLOCK] {
                // The flush has lost it.
                return false;
            }
            for _ in 0..3 {
                let error = volume.0.commit_queue().await.expect_err("the host is full");
                assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
            }
            disk.heal();
            volume.0.commit_queue().await.expect("there is space again");
            volume.checkpoint().await.expect("nothing is lost");
            assert_eq!(read(&file, BLOCK).await, [4; BLOCK]);
            true
        });
        disk.world().stop();
        intact += u32::from(is_intact);
        if is_intact {
            assert_eq!(found(&setup, &disk.power_cut(1), "f"), [4; BLOCK], "seed {seed}");
        }
    }
    assert!(intact > 3, "{intact} flushes left the block readable");
}
