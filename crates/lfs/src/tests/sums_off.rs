//! Volumes without checksums: no record is durable before the data that it names, whatever a power
//! loss keeps.
//!
//! No locks.

use crate::tests::reuse::{create, open, setup, write};
use crate::tests::setup::Setup;
use crate::volume::{CreateOptions, Volume};
use forebay_base::buf::AlignedBuf;
use forebay_base::sim_world::SimWorld;
use forebay_base::world::WorldRef;
use forebay_base::{ErrorKind, IoFlags};
use forebay_block::{BioFlags, BioOp, DeviceRef};
use forebay_sim::{Fault, FaultRule, SimConfig, SimDisk};
use forebay_vfs::{OpenFileRef, Privileges, Timestamp};
use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;

const BLOCK: usize = 4096;
const FILE: usize = 3 * BLOCK;

/// Ways to write a file and make it durable.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Route {
    Buffered,
    BufferedDsync,
    Direct,
    DirectDsync,
    Uncached,
}

impl Route {
    const ALL: [Self; 5] =
        [Self::Buffered, Self::BufferedDsync, Self::Direct, Self::DirectDsync, Self::Uncached];

    fn flags(self) -> IoFlags {
        match self {
            Self::Buffered => IoFlags::empty(),
            Self::BufferedDsync => IoFlags::DSYNC,
            Self::Direct => IoFlags::DIRECT,
            Self::DirectDsync => IoFlags::DIRECT | IoFlags::DSYNC,
            Self::Uncached => IoFlags::UNCACHED,
        }
    }

    /// Overwrites the file and makes it durable.
    async fn overwrite(self, file: &OpenFileRef, fill: u8) {
        let buf = AlignedBuf::copy_of(&[fill; FILE]);
        file.write(0, buf, self.flags(), Privileges::Keep).await.1.unwrap();
        if !self.flags().contains(IoFlags::DSYNC) {
            file.sync(true).await.unwrap();
        }
    }
}

/// A disk with an empty volume, everything durable.
pub fn blank(setup: &Setup, sums: bool) -> SimDisk {
    let config = SimConfig { size: setup.volume_bytes, ..SimConfig::default() };
    with_volume(setup, sums, SimDisk::new(SimWorld::new(1), config))
}

fn with_volume(setup: &Setup, sums: bool, disk: SimDisk) -> SimDisk {
    let world = disk.world().clone();
    let device: DeviceRef = Arc::new(disk.clone());
    let options = CreateOptions {
        block_bytes: setup.block_bytes,
        segment_bytes: 64 << 10,
        sums,
        ..CreateOptions::new([7; 16], [9; 16], Timestamp::new(1, 0))
    };
    let asked: WorldRef = world.clone();
    world.run(Volume::create(&device, &asked, &options)).expect("space for a volume");
    world.stop();
    disk
}

/// Content of the file after a power loss left this disk.
fn recovered(setup: &Setup, disk: &SimDisk) -> Vec<u8> {
    let bytes = disk.world().run(async {
        let volume = open(setup, disk).await.unwrap();
        let (_, file) = create(&volume, "f").await.unwrap();
        let (buf, done) = file.read(0, AlignedBuf::new(2 * FILE), IoFlags::empty()).await;
        buf[..done.unwrap()].to_vec()
    });
    disk.world().stop();
    bytes
}

/// Recovery finds the end of the log by its records. Without sums it accepts the data that a record
/// names as the device has it. So if a record was durable before its data, a synced block read as
/// the old bytes of its place: zeros here, bytes of another file in general
/// (`docs/reference/crash-contract.md`, point 2).
#[test]
fn power_loss_without_sums_keeps_old_or_new_blocks() {
    let mut all_lost = 0;
    for (route, fua) in Route::ALL.into_iter().flat_map(|route| [(route, false), (route, true)]) {
        let setup = Setup { fua, ..setup(0) };
        let disk = blank(&setup, false);
        disk.world().run(async {
            let volume = open(&setup, &disk).await.unwrap();
            let (_, file) = create(&volume, "f").await.unwrap();
            Route::Buffered.overwrite(&file, 1).await;
            disk.record_cuts();
            disk.tag_cuts(1);
            for fill in 2..4 {
                route.overwrite(&file, fill).await;
                disk.tag_cuts(u64::from(fill));
            }
        });
        disk.world().stop();
        let (mut states, mut lost) = (0, 0);
        for cut in disk.take_cuts() {
            for state in cut.states(6) {
                (states, lost) = (states + 1, lost + usize::from(state.lost()));
                let bytes = recovered(&setup, &state.mount(SimWorld::new(2)));
                assert_eq!(bytes.len(), FILE, "{route:?}, fua {fua}");
                let acked = cut.tag() as u8;
                for (n, block) in bytes.chunks(BLOCK).enumerate() {
                    let is_one_write = block.iter().all(|byte| *byte == block[0]);
                    let allowed = is_one_write && (acked..=acked + 1).contains(&block[0]);
                    let first = block[0];
                    assert!(
                        allowed,
                        "K13: {route:?}, fua {fua}, write {acked} acknowledged: block {n} begins with {first}"
                    );
                }
            }
        }
        // If every write has FUA, no state loses a write.
        assert!(states > 4, "{route:?}, fua {fua}: {states} states");
        all_lost += lost;
    }
    assert!(all_lost > 20, "{all_lost} states lost a write");
}

/// The story: a failed flush lost content that was written past the cache, and the file showed what
/// its place held before: repair.Q4.
#[test]
fn flush_failure_without_sums_shows_no_foreign_bytes() {
    let mut refused = [0; 2];
    for seed in 0..24 {
        let setup = setup(0);
        let config = SimConfig { size: setup.volume_bytes, ..SimConfig::default() };
        let disk = SimDisk::new(SimWorld::new(seed), config);
        disk.poke(0, &vec![0x66; setup.volume_bytes as usize]);
        let disk = with_volume(&setup, false, disk);
        disk.world().run(async {
            let volume = open(&setup, &disk).await.unwrap();
            let (_, file) = create(&volume, "f").await.unwrap();
            let direct = async |fill| {
                let buf = AlignedBuf::copy_of(&[fill; FILE]);
                file.write(0, buf, IoFlags::DIRECT, Privileges::Keep).await.1.unwrap();
            };
            let read = async |fill: u8| {
                let (buf, done) = file.read(0, AlignedBuf::new(FILE), IoFlags::empty()).await;
                if let Err(error) = &done {
                    assert_eq!(error.kind(), ErrorKind::Io, "seed {seed}: {error}");
                }
                let is_own = buf.iter().all(|byte| *byte == fill);
                assert!(done.is_err() || is_own, "Q4: seed {seed}: begins with {}", buf[0]);
                done.is_ok()
            };
            direct(1).await;
            disk.inject(FaultRule::on(BioOp::Flush, Fault::Fail(ErrorKind::Io)));
            file.sync(true).await.unwrap_err();
            refused[0] += usize::from(!read(1).await);
            file.sync(true).await.unwrap_err();
            refused[1] += usize::from(!read(1).await);
            direct(2).await;
            assert!(read(2).await, "seed {seed}: it was written again");
        });
        disk.world().stop();
    }
    assert_eq!(refused, [24, 24], "before the repair, and after it");
}

/// The story: a read of lost content was in progress while the flush failed. It showed what the
/// place held before, and the cache kept that. repair.Q4.
#[test]
fn flush_failure_during_read_without_sums_shows_no_foreign_bytes() {
    let mut refused = [0; 2];
    for (seed, flags) in (0..24).flat_map(|n| [(n, IoFlags::empty()), (n, IoFlags::DIRECT)]) {
        let setup = setup(0);
        let config = SimConfig { size: setup.volume_bytes, ..SimConfig::default() };
        let disk = SimDisk::new(SimWorld::new(seed), config);
        disk.poke(0, &vec![0x66; setup.volume_bytes as usize]);
        let disk = with_volume(&setup, false, disk);
        disk.world().run(async {
            let volume = open(&setup, &disk).await.unwrap();
            let (_, file) = create(&volume, "f").await.unwrap();
            let buf = AlignedBuf::copy_of(&[1; FILE]);
            file.write(0, buf, IoFlags::DIRECT, Privileges::Keep).await.1.unwrap();
            disk.inject(FaultRule::on(BioOp::Flush, Fault::Fail(ErrorKind::Io)));
            disk.inject(FaultRule::on(BioOp::Read, Fault::Slow(10_000_000)));
            let mut reading = file.read(0, AlignedBuf::new(FILE), flags);
            let mut read = None;
            let mut sync = file.sync(true);
            let mut synced = None;
            poll_fn(|cx| {
                if read.is_none()
                    && let Poll::Ready(done) = reading.as_mut().poll(cx)
                {
                    read = Some(done);
                }
                if synced.is_none()
                    && let Poll::Ready(done) = sync.as_mut().poll(cx)
                {
                    synced = Some(done);
                }
                if read.is_some() && synced.is_some() { Poll::Ready(()) } else { Poll::Pending }
            })
            .await;
            synced.expect("polled to its end").unwrap_err();
            drop((reading, sync));
            let again = file.read(0, AlignedBuf::new(FILE), IoFlags::empty()).await;
            for (n, (buf, done)) in [read.expect("polled to its end"), again].iter().enumerate() {
                let is_own = buf.iter().all(|byte| *byte == 1);
                assert!(done.is_err() || is_own, "Q4: seed {seed}, {flags:?}, read {n}");
                refused[n] += usize::from(done.is_err());
            }
        });
        disk.world().stop();
    }
    assert!(refused.iter().all(|count| *count > 0), "{refused:?}");
}

/// What a sync costs: flushes of the device, and writes with FUA.
fn cost_of_sync(sums: bool, fua: bool, names_data: bool) -> (usize, usize) {
    let setup = Setup { fua, ..setup(0) };
    let disk = blank(&setup, sums);
    disk.world().run(async {
        let volume = open(&setup, &disk).await.unwrap();
        let (_, file) = create(&volume, "f").await.unwrap();
        Route::Buffered.overwrite(&file, 1).await;
        disk.clear_log();
        match names_data {
            true => Route::Buffered.overwrite(&file, 2).await,
            false => {
                let (_, other) = create(&volume, "g").await.unwrap();
                other.sync(true).await.unwrap();
            }
        }
    });
    let log = disk.log();
    disk.world().stop();
    let flushes = log.iter().filter(|entry| entry.op == BioOp::Flush).count();
    let is_fua = |op: BioOp, flags: BioFlags| op == BioOp::Write && flags.contains(BioFlags::FUA);
    let fua_writes = log.iter().filter(|entry| is_fua(entry.op, entry.flags)).count();
    (flushes, fua_writes)
}

/// Without sums, data before records costs one more flush for each group that names data, and
/// nothing for other groups. After that flush nothing is unflushed, so a device that offers FUA
/// needs no second one.
#[test]
fn sync_without_sums_costs_extra_flush_where_record_names_data() {
    let (sums, fua, names_data) = (true, true, true);
    assert_eq!(cost_of_sync(sums, fua, names_data), (1, 0), "write, flush");
    assert_eq!(cost_of_sync(sums, !fua, names_data), (1, 0), "write, flush");
    assert_eq!(cost_of_sync(!sums, fua, names_data), (1, 1), "flush, FUA write");
    assert_eq!(cost_of_sync(!sums, !fua, names_data), (2, 0), "flush, write, flush");
    for sums in [true, false] {
        assert_eq!(cost_of_sync(sums, fua, !names_data), (0, 1), "FUA write");
        assert_eq!(cost_of_sync(sums, !fua, !names_data), (1, 0), "write, flush");
    }
}

/// Flushes of the device for one sync, and for syncs of `others` more files that begin while it is
/// in progress.
fn flushes_of_syncs(others: usize, sums: bool) -> usize {
    let setup = setup(0);
    let disk = blank(&setup, sums);
    disk.world().run(async {
        let volume = open(&setup, &disk).await.unwrap();
        let mut opened = Vec::new();
        for n in 0..=others {
            let (_, file) = create(&volume, &format!("f{n}")).await.unwrap();
            write(&file, 0, &[1 + n as u8; FILE]).await.unwrap();
            opened.push(file);
        }
        disk.clear_log();
        let has_flushed = || disk.log().iter().any(|entry| entry.op == BioOp::Flush);
        let mut syncs: Vec<_> = opened.iter().map(|file| file.sync(true)).collect();
        poll_fn(|cx| {
            let begun = if has_flushed() { syncs.len() } else { 1 };
            let mut n = 0;
            syncs.retain_mut(|sync| {
                n += 1;
                n > begun || sync.as_mut().poll(cx).map(Result::unwrap).is_pending()
            });
            if syncs.is_empty() { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    });
    let flushes = disk.log().iter().filter(|entry| entry.op == BioOp::Flush).count();
    disk.world().stop();
    flushes
}

/// Syncs that begin while another one is in progress share the flushes of a group, which are two
/// without sums. How many groups there are depends on when their data is written.
#[test]
fn syncs_that_wait_for_another_share_flushes() {
    for (sums, each) in [(true, 1), (false, 2)] {
        assert_eq!(flushes_of_syncs(0, sums), each, "a lone sync");
        let flushes = flushes_of_syncs(8, sums);
        println!("sums {sums}: {flushes} flushes for 9 syncs");
        assert!(flushes <= 4 * each, "{flushes} flushes for 9 syncs");
    }
}
