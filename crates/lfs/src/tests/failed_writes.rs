//! Failed writes of the log lose nothing: only a failed flush may lose what the device had completed.
//!
//! No locks.

use crate::Volume;
use crate::format::place::Place;
use crate::map::overlay::Where;
use crate::tests::faults::{failing, found};
use crate::tests::reuse::{create, open, read, setup, write};
use crate::tests::setup::Setup;
use crate::tests::sums_off::blank;
use forebay_base::buf::AlignedBuf;
use forebay_base::task::oneshot;
use forebay_base::world::World;
use forebay_base::{ErrorKind, IoFlags, Result};
use forebay_block::BioOp;
use forebay_sim::{Fault, FaultRule};
use forebay_vfs::{FileSystem, Ino, OpenFileRef, Privileges};
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

async fn write_block(file: &OpenFileRef, fill: u8, flags: IoFlags) -> Result<()> {
    let block = AlignedBuf::copy_of(&[fill; BLOCK]);
    file.write(0, block, flags, Privileges::Keep).await.1.map(drop)
}

/// A file of one block that a sync has made durable.
async fn synced(volume: &Volume, name: &str) -> (Ino, OpenFileRef) {
    let (ino, file) = create(volume, name).await.unwrap();
    write(&file, 0, &[1; BLOCK]).await.unwrap();
    file.sync(true).await.unwrap();
    (ino, file)
}

/// Host full, no checksums: a direct write was flushed, then the write of its record failed. The
/// repair took that for a failed flush, could not verify the block, and dropped it; the volume
/// turned read-only at the next checkpoint.
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
            let error = write_block(&file, 2, DIRECT_DSYNC).await.expect_err("no record");
            assert_eq!(error.kind(), kind, "{error}");
            disk.heal();
            volume.checkpoint().await.unwrap_or_else(|error| panic!("{kind:?}, {fua}: {error}"));
            assert!(volume.stopped().is_none() && volume.damage().is_none());
            assert_eq!(read(&file, BLOCK).await, [2; BLOCK]);
        });
        disk.world().stop();
        for seed in 0..4 {
            assert_eq!(found(&setup, &disk.power_cut(seed), "f"), [2; BLOCK], "{kind:?}, {fua}");
        }
    }
}

/// The same for a client that asked for no sync: it wrote while the group of another client was on
/// its way to the device, and was told success. The group's write failed, and its block was gone.
#[test]
fn failed_log_write_of_one_file_keeps_direct_write_of_another() {
    let cases = [(ErrorKind::NoSpace, false), (ErrorKind::NoSpace, true), (ErrorKind::Io, false)];
    for (kind, fua) in cases {
        let setup = Setup { fua, ..setup(0) };
        let disk = blank(&setup, false);
        disk.world().run(async {
            let volume = open(&setup, &disk).await.unwrap();
            let (_, file) = synced(&volume, "f").await;
            let (_, other) = synced(&volume, "other").await;
            disk.inject(failing_log(&volume, kind));
            // K13: the flush before the other's record.
            disk.inject(FaultRule::on(BioOp::Flush, Fault::Slow(50_000_000)));
            let (tx, rx) = oneshot();
            let task = async move { tx.send(write_block(&other, 2, DIRECT_DSYNC).await) };
            disk.world().spawn("other", Box::pin(task));
            disk.world().sleep(Duration::from_millis(10)).await;
            write_block(&file, 3, DIRECT).await.expect("its data needs no log");
            let queued = volume.0.state.lock().queue.len();
            assert_eq!(queued, 1, "the other's record was taken, this one was not");
            let error = rx.await.expect("it ends").expect_err("no record of it");
            assert_eq!(error.kind(), kind, "{error}");
            disk.heal();
            volume.checkpoint().await.unwrap_or_else(|error| panic!("{kind:?}, {fua}: {error}"));
            assert!(volume.stopped().is_none() && volume.damage().is_none());
            assert_eq!(read(&file, BLOCK).await, [3; BLOCK]);
        });
        disk.world().stop();
        for (name, fill) in [("f", 3), ("other", 2)] {
            assert_eq!(found(&setup, &disk.power_cut(1), name), [fill; BLOCK], "{kind:?}, {fua}");
        }
    }
}

/// A flush that failed is another matter: without checksums the block counts as lost.
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
            let error = volume.checkpoint().await.expect_err("its block is lost");
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
            assert!(error.to_string().contains(&format!("inode {}", ino.0)), "{error}");
            assert!(volume.stopped().is_some());
        });
        disk.world().stop();
        assert_eq!(found(&setup, &disk.power_cut(1), "f"), [1; BLOCK], "fua {fua}");
    }
}

/// The repair after a failed flush writes intact blocks again in their places. A host that copies
/// on write may have no space for that. The blocks were dropped then, like those of a bad place.
#[test]
fn repair_without_host_space_drops_no_block() {
    let setup = setup(0);
    let disk = setup.blank();
    disk.world().run(async {
        let volume = open(&setup, &disk).await.unwrap();
        let (ino, file) = synced(&volume, "f").await;
        let (_, other) = synced(&volume, "other").await;
        write_block(&file, 2, DIRECT).await.unwrap();
        write_block(&other, 3, DIRECT).await.unwrap();
        let data_id = volume.0.state.lock().nodes.get(ino.0).unwrap().inode.data_id;
        let found = volume.0.piece_at(data_id, 0).await.unwrap().0.at;
        let Where::Run(place) = found else { panic!("a run, not {found:?}") };
        let at = volume.0.layout.device_offset(place);
        let full = FaultRule::on(BioOp::Write, Fault::Fail(ErrorKind::NoSpace));
        disk.inject(full.within(at..at + BLOCK as u64).sticky());
        disk.inject(failing(BioOp::Flush));
        volume.0.flush_all().await.expect_err("the flush fails");
        for _ in 0..3 {
            let error = volume.0.commit_queue().await.expect_err("the host is full");
            assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
        }
        disk.heal();
        volume.0.commit_queue().await.expect("there is space again");
        volume.checkpoint().await.expect("nothing is lost");
        assert_eq!(read(&file, BLOCK).await, [2; BLOCK]);
    });
    disk.world().stop();
    for (name, fill) in [("f", 2), ("other", 3)] {
        assert_eq!(found(&setup, &disk.power_cut(1), name), [fill; BLOCK]);
    }
}
