//! Syncs that lied, and dirty blocks that were lost: docs/reference/failure-protocol.md with
//! several files, several syncs, or a concurrent truncate.

use super::gates::{Flushes, Gated};
use super::harness::{Lab, NONE, both};
use forebay_base::buf::AlignedBuf;
use forebay_base::task::FutureSlot;
use forebay_base::{ErrorKind, IoFlags, Result};
use forebay_block::{BioOp, DeviceRef};
use forebay_cache::strategy::DirtyTracking;
use forebay_cache::writeback::{Which, WriteOut, WriteOutPass};
use forebay_cache::{Config, State};
use forebay_iomap::file::Geometry;
use forebay_iomap::identity::Identity;
use forebay_iomap::{Handle, Lookup, MappedFile, Source};
use forebay_sim::{Fault, FaultRule, SimConfig};
use forebay_testkit::remap::{Remap, RemapOptions};
use std::cell::Cell;
use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, OnceLock};
use std::task::Poll;

const MIB: u64 = 1 << 20;
/// Where the second file of a disk writes.
const OTHER: u64 = MIB / 2;

fn flush_fails() -> FaultRule {
    FaultRule::on(BioOp::Flush, Fault::Fail(ErrorKind::Io))
}

/// Another file on the same device object, and of the same domain.
struct Other {
    file: Arc<MappedFile>,
    handle: Handle,
}

impl Other {
    fn new(lab: &Lab) -> Self {
        let ops = Arc::new(Identity::new(lab.file.device().clone()));
        let geometry = Geometry { block_size: 4096, size: MIB, read_only: false };
        let domain = lab.file.mapping.domain.clone();
        let file = MappedFile::open_in(&lab.cache, domain, ops, geometry, None).unwrap();
        let handle = file.open_handle();
        Self { file, handle }
    }

    async fn write(&self, flags: IoFlags) {
        let mut data = AlignedBuf::copy_of(&[9; 4096]);
        self.file.write(&self.handle, OTHER, Source::Owned(&mut data), flags).await.unwrap();
    }

    async fn sync(&self) -> Result<()> {
        self.file.sync(&self.handle).await
    }
}

/// A lab whose flushes can be kept back.
fn with_held_flushes() -> (Lab, Arc<Flushes>) {
    let keep = OnceLock::new();
    let lab = Lab::with_map(Config::with_budget(8 << 20), 4096, Lab::sim(MIB), MIB, |disk| {
        let device = keep.get_or_init(|| Flushes::new(disk)).clone();
        Arc::new(Identity::new(device as DeviceRef))
    });
    (lab, keep.into_inner().expect("set above"))
}

/// A lab on a map that moves blocks, can grow, and stops at gates.
fn gated(config: Config) -> (Lab, Arc<Gated>) {
    gated_on(config, Lab::sim(MIB))
}

fn gated_on(config: Config, sim: SimConfig) -> (Lab, Arc<Gated>) {
    let keep = OnceLock::new();
    let lab = Lab::with_map(config, 4096, sim, MIB / 2, |disk| {
        let options = RemapOptions { grows: true, ..RemapOptions::default() };
        keep.get_or_init(|| Gated::new(Remap::with_options(disk, 4096, options))).clone()
    });
    (lab, keep.into_inner().expect("set above"))
}

/// The bytes of a file block that the device holds durably.
async fn durable(lab: &Lab, map: &Gated, at: u64, len: usize) -> Vec<u8> {
    let range = at / 4096 * 4096..at / 4096 * 4096 + 4096;
    let extent = map.map.map(range, Lookup::Read).await.unwrap();
    let place = extent.device_offset.expect("written");
    lab.disk.peek_durable(place + at % 4096, len)
}

/// Polls `a` until `b` is done, then drops it.
async fn dropped_after<A>(a: impl Future<Output = A>, b: impl Future<Output = ()>) {
    let (mut a, mut b) = (pin!(a), pin!(b));
    std::future::poll_fn(move |cx| {
        if b.as_mut().poll(cx).is_ready() {
            return Poll::Ready(());
        }
        assert!(a.as_mut().poll(cx).is_pending(), "over before it could be dropped");
        Poll::Pending
    })
    .await;
}

/// The story: a flush for one file failed. Another file on the same device had written, too: its
/// next sync flushed with success, and returned success.
#[test]
fn flush_failure_of_one_file_fails_syncs_of_others() {
    for flags in [IoFlags::START_WRITEBACK, IoFlags::DIRECT] {
        let lab = Lab::new(Config::with_budget(8 << 20), 4096, Lab::sim(MIB));
        lab.run(async {
            let other = Other::new(&lab);
            lab.write(0, &[1; 4096], flags).await;
            lab.sleep_ms(10).await;
            other.write(NONE).await;
            lab.disk.inject(flush_fails());
            assert!(other.sync().await.is_err());
            assert!(lab.sync().await.is_err(), "{flags:?}");
            // What is held is written anew; what is not is never certified.
            let healed = lab.sync().await;
            assert_eq!(healed.is_ok(), flags == IoFlags::START_WRITEBACK);
            if healed.is_ok() {
                assert_eq!(lab.disk.peek_durable(0, 4096), [1; 4096]);
            }
            other.sync().await.unwrap();
            assert_eq!(lab.disk.peek_durable(OTHER, 4096), [9; 4096]);
        });
    }
}

/// A file that has written nothing since its last good sync is not concerned.
#[test]
fn flush_failure_spares_file_without_writes() {
    let lab = Lab::new(Config::with_budget(8 << 20), 4096, Lab::sim(MIB));
    lab.run(async {
        let other = Other::new(&lab);
        lab.write(0, &[1; 4096], NONE).await;
        lab.sync().await.unwrap();
        other.write(NONE).await;
        lab.disk.inject(flush_fails());
        assert!(other.sync().await.is_err());
        lab.sync().await.unwrap();
        // Written after it: that is not lost.
        lab.write(4096, &[2; 4096], IoFlags::DIRECT).await;
        lab.sync().await.unwrap();
    });
}

/// Now the file's own flush is in progress, and its success arrives before or after the other's
/// failure: the device may have carried them out in either order.
#[test]
fn flush_success_during_failed_one_certifies_nothing() {
    for failure_first in [true, false] {
        let (lab, device) = with_held_flushes();
        lab.run(async {
            let other = Other::new(&lab);
            lab.write(0, &[1; 4096], NONE).await;
            other.write(NONE).await;
            device.hold(true);
            let news = async {
                device.held(1).await;
                let own = async {
                    device.held(2).await;
                    device.hold(false);
                    // The other file's came first.
                    if failure_first {
                        device.fail(0);
                        lab.sleep_ms(10).await;
                        device.send(0);
                    } else {
                        device.send(1);
                        lab.sleep_ms(10).await;
                        device.fail(0);
                    }
                };
                both(lab.sync(), own).await.0
            };
            let (others, own) = both(other.sync(), news).await;
            assert!(others.is_err() && own.is_err(), "{failure_first}");
            lab.sync().await.unwrap();
            assert_eq!(lab.disk.peek_durable(0, 4096), [1; 4096]);
        });
    }
}

/// The story: a flush of another file failed during a write-out, which so counted as failed, and no
/// sync reported it. The flusher wrote the block once more during the flush of the sync that had
/// waited for it. The sync succeeded though its flush had begun before that.
#[test]
fn sync_reports_awaited_write_out_counted_as_failed() {
    let (lab, device) = with_held_flushes();
    lab.run(async {
        let other = Other::new(&lab);
        other.write(IoFlags::START_WRITEBACK).await;
        lab.sleep_ms(10).await;
        lab.write(0, &[1; 4096], NONE).await;
        lab.disk.inject(FaultRule::on(BioOp::Write, Fault::Slow(5_000_000)));
        let meanwhile = async {
            lab.sleep_ms(1).await;
            lab.disk.inject(flush_fails());
            assert!(other.sync().await.is_err());
            assert_eq!(lab.blocks(State::Writing).len(), 1, "it is still on its way");
            device.hold(true);
            device.held(1).await;
            lab.sleep_ms(50).await;
            assert!(lab.blocks(State::Dirty).is_empty(), "it was written once more");
            assert_eq!(lab.disk.peek_durable(0, 4096)[0], Lab::old(0), "and is not durable");
            device.hold(false);
            device.send(0);
        };
        let (sync, ()) = both(lab.sync(), meanwhile).await;
        assert!(sync.is_err());
        lab.sync().await.unwrap();
        assert_eq!(lab.disk.peek_durable(0, 4096), [1; 4096]);
    });
}

/// On a map without FUA a durable direct write commits. That commit failed: the writer was told,
/// and the next sync certified what the failed flush had dropped of all that was written before.
#[test]
fn commit_failure_of_durable_direct_write_counts_as_failed_flush() {
    let (lab, map) = gated(Config::with_budget(8 << 20));
    lab.run(async {
        lab.write(0, &[1; 4096], IoFlags::START_WRITEBACK).await;
        lab.sleep_ms(10).await;
        lab.disk.inject(flush_fails());
        let direct = IoFlags::DIRECT | IoFlags::DSYNC;
        assert!(lab.try_write(65536, &[2; 4096], direct).await.is_err());
        assert!(lab.sync().await.is_err(), "it may have lost block 0");
        lab.sync().await.unwrap();
        assert_eq!(durable(&lab, &map, 0, 4096).await, [1; 4096]);
        lab.write(65536, &[3; 4096], direct).await;
        assert_eq!(durable(&lab, &map, 65536, 4096).await, [3; 4096]);
    });
}

/// The story: no sync saw dirty blocks that a truncate had taken: they were not dirty, and not in
/// write-out. And when a sync waited for the truncate, it did not write the block of the new end,
/// which is dirty again.
#[test]
fn sync_waits_for_truncate_and_writes_remaining_blocks() {
    for fails in [None, Some(ErrorKind::Io)] {
        let (lab, map) = gated(Config::with_budget(8 << 20));
        lab.run(async {
            // Once synced, so that the size is published and no sync has to look below it.
            lab.sync().await.unwrap();
            lab.write(0, &[7; 65536], NONE).await;
            map.truncate.close();
            map.truncate.fail(fails);
            let synced = Cell::new(false);
            let sync = async {
                map.truncate.arrived(1).await;
                let done = lab.sync().await;
                synced.set(true);
                done
            };
            let open = async {
                map.truncate.arrived(1).await;
                lab.sleep_ms(50).await;
                assert!(!synced.get(), "a truncate has taken dirty blocks");
                map.truncate.open();
            };
            let (cut, (done, ())) = both(lab.file.set_len(100), both(sync, open)).await;
            assert_eq!(cut.is_err(), fails.is_some());
            done.unwrap();
            assert_eq!(durable(&lab, &map, 0, 100).await, [7; 100]);
            if fails.is_some() {
                assert_eq!(durable(&lab, &map, 12 * 4096, 4096).await, [7; 4096]);
            }
        });
    }
}

/// The story: a failed trim gives its blocks back as dirty; a sync that had waited for the trim did
/// not write them.
#[test]
fn sync_writes_blocks_returned_by_failed_trim() {
    let (lab, map) = gated(Config::with_budget(8 << 20));
    lab.run(async {
        lab.sync().await.unwrap();
        lab.write(0, &[7; 65536], NONE).await;
        map.zero.close();
        map.zero.fail(Some(ErrorKind::Io));
        let sync = async {
            map.zero.arrived(1).await;
            lab.sync().await
        };
        let open = async {
            map.zero.arrived(1).await;
            lab.sleep_ms(50).await;
            map.zero.open();
        };
        let (trimmed, (done, ())) = both(lab.zero(0, 65536, false), both(sync, open)).await;
        assert!(trimmed.is_err());
        done.unwrap();
        for block in 0..16 {
            assert_eq!(durable(&lab, &map, block * 4096, 4096).await, [7; 4096]);
        }
    });
}

/// The story: where folios are written as a whole, a pass took all of a folio, and gave the blocks
/// without space back as dirty, also clean ones.
#[test]
fn folio_pass_without_space_leaves_clean_blocks_clean() {
    let tracking = DirtyTracking::Folio;
    let config = Config { dirty_tracking: tracking, ..Config::with_budget(8 << 20) };
    let (lab, map) = gated(config);
    lab.run(async {
        lab.write(0, &[1; 4096], NONE).await;
        map.reserve.close();
        let meanwhile = async {
            map.reserve.arrived(1).await;
            // Room is asked for block 0. Block 1 becomes dirty, block 2 is read.
            lab.write(4096, &[2; 4096], NONE).await;
            lab.read(8192, 4096, NONE).await;
            assert!(lab.blocks(State::Uptodate).contains(&2), "the test tests nothing");
            map.reserve.open();
        };
        let (range, which, max_bytes) = (0..MIB, Which::All, u64::MAX);
        let pass = WriteOutPass { range, which, max_bytes, sync: false };
        let mut slot = FutureSlot::default();
        lab.file.clone().write_out(pass, &mut slot);
        let (issued, ()) = both(&mut slot, meanwhile).await;
        assert_eq!((issued, lab.blocks(State::Dirty)), (4096, [1].into()), "block 2 was clean");
        lab.sync().await.unwrap();
        assert_eq!(durable(&lab, &map, 4096, 4096).await, [2; 4096]);
    });
}

/// A write-out for which there is no room leaves what is clean of its folio clean, and says of the
/// rest that it failed.
#[test]
fn write_out_without_space_fails_dirty_blocks_only() {
    for tracking in [DirtyTracking::Block, DirtyTracking::Folio] {
        let config = Config { dirty_tracking: tracking, ..Config::with_budget(8 << 20) };
        let (lab, map) = gated(config);
        lab.run(async {
            lab.read(0, 65536, NONE).await;
            lab.write(4096, &[2; 4096], NONE).await;
            map.reserve.fail(Some(ErrorKind::NoSpace));
            assert_eq!(lab.sync().await.unwrap_err().kind(), ErrorKind::NoSpace);
            assert_eq!(lab.blocks(State::Dirty), [1].into(), "{tracking}");
            assert_eq!(lab.file.mapping.failed_bytes(), 4096);
            map.reserve.fail(None);
            while lab.sync().await.is_err() {}
            assert_eq!(durable(&lab, &map, 4096, 4096).await, [2; 4096]);
            assert_eq!(lab.file.mapping.failed_bytes(), 0);
        });
    }
}

/// Two syncs on one handle at once: the flush of the first failed, and told it. What it covered was
/// written again, but not flushed, while the second one's flush, begun before that, was under way:
/// and the second had nothing left to tell.
#[test]
fn concurrent_syncs_on_one_handle_both_see_error() {
    let lab = Lab::new(Config::with_budget(8 << 20), 4096, Lab::sim(MIB));
    lab.run(async {
        lab.write(0, &[1; 4096], NONE).await;
        lab.disk.inject(flush_fails());
        let slow = 1_000_000_000;
        lab.disk.inject(FaultRule::on(BioOp::Flush, Fault::Slow(slow)));
        let (first, second) = both(lab.sync(), lab.sync()).await;
        assert_eq!(lab.file.mapping.failed_bytes(), 0, "not written again: the test tests nothing");
        assert!(first.is_err() && second.is_err(), "{first:?} {second:?}");
        lab.sync().await.unwrap();
        assert_eq!(lab.disk.peek_durable(0, 4096), [1; 4096]);
    });
}

/// The story: a file whose flush was in progress seemed durable, and was closed: no opener got the
/// failure.
#[test]
fn flush_in_progress_keeps_file_unsettled() {
    let (lab, device) = with_held_flushes();
    lab.run(async {
        let mapping = &lab.file.mapping;
        lab.write(0, &[1; 4096], NONE).await;
        assert!(!mapping.is_settled());
        device.hold(true);
        let looks = async {
            device.held(1).await;
            assert!(!mapping.is_settled(), "its outcome is not known");
            device.hold(false);
            device.send(0);
        };
        both(lab.sync(), looks).await.0.unwrap();
        assert!(mapping.is_settled());
    });
}

/// The task that had a flush made was dropped before the flush was over: its outcome was not
/// observed, and what it covered was certified by the next one, for all files of the device.
#[test]
fn failed_flush_of_dropped_task_fails_its_files() {
    let (lab, device) = with_held_flushes();
    lab.run(async {
        let other = Other::new(&lab);
        lab.write(0, &[1; 4096], NONE).await;
        other.write(IoFlags::START_WRITEBACK).await;
        lab.sleep_ms(10).await;
        device.hold(true);
        dropped_after(lab.sync(), device.held(1)).await;
        device.hold(false);
        device.fail(0);
        lab.sleep_ms(1).await;
        assert_eq!(lab.blocks(State::Dirty), [0].into());
        assert!(lab.sync().await.is_err() && other.sync().await.is_err());
        lab.sync().await.unwrap();
        other.sync().await.unwrap();
        assert_eq!(lab.disk.peek_durable(0, 4096), [1; 4096]);
        assert_eq!(lab.disk.peek_durable(OTHER, 4096), [9; 4096]);
    });
}

/// A flush whose task was dropped counted as failed whatever the device made of it: each sync of
/// the file failed from then on if it had written bytes that no frame holds.
#[test]
fn successful_flush_of_dropped_task_counts() {
    let (lab, device) = with_held_flushes();
    lab.run(async {
        lab.write(0, &[1; 4096], NONE).await;
        lab.write(8192, &[2; 4096], IoFlags::DIRECT).await;
        device.hold(true);
        dropped_after(lab.sync(), device.held(1)).await;
        device.hold(false);
        device.send(0);
        lab.sync().await.unwrap();
        assert!(lab.file.mapping.is_settled());
    });
}

/// A direct write that was refused for its alignment had made the file longer already.
#[test]
fn direct_write_refused_does_not_grow_file() {
    let (lab, _map) = gated(Config::with_budget(8 << 20));
    lab.run(async {
        let size = lab.file.size();
        for (at, len) in [(size + 100, 4096), (size - 100, 8192), (size + 4096, 4096 + 100)] {
            let error = lab.try_write(at, &vec![1; len], IoFlags::DIRECT).await;
            match error {
                Err(error) => assert_eq!(error.kind(), ErrorKind::Unaligned),
                // It may end where the file will.
                Ok(done) => assert!(done == len && at % 4096 == 0),
            }
            let grown = if at % 4096 == 0 { at + len as u64 } else { size };
            assert_eq!(lab.file.size(), grown, "{at} {len}");
        }
    });
}

/// The story: a write held private memory while it waited for space on the device. With enough of
/// them no other task got as far as asking for space. A map that needs such memory to make space,
/// or waits for several requests, waited for ever. Direct writes that the device takes in pieces
/// are copied to such memory.
#[test]
fn v1_split_direct_write_waiting_for_space_holds_no_memory() {
    let sim = SimConfig { max_transfer: 8192, ..Lab::sim(MIB) };
    let (lab, map) = gated_on(Config::with_budget(4 << 20), sim);
    const LEN: usize = 32768;
    let writers = 8u64;
    let (limit, written) = (lab.cache.private_limit(), Cell::new(0));
    lab.run(async {
        map.reserve.close();
        let write = |i: u64| {
            let lab = &lab;
            let (written, bytes) = (&written, AlignedBuf::copy_of(&[1; LEN]));
            async move {
                let (at, bytes) = (i * 65536, Source::Slice(&bytes));
                lab.file.write(&lab.handle, at, bytes, IoFlags::DIRECT).await.unwrap();
                written.set(written.get() + 1);
            }
        };
        let mut all: Vec<_> = (0..writers).map(|i| Box::pin(write(i))).collect();
        let all = std::future::poll_fn(|cx| {
            all.retain_mut(|one| one.as_mut().poll(cx).is_pending());
            if all.is_empty() { Poll::Ready(()) } else { Poll::Pending }
        });
        let space = async {
            map.reserve.arrived(writers).await;
            // The task that makes space can have all of the memory.
            let held = lab.cache.private(limit).await;
            map.reserve.open();
            lab.sleep_ms(10).await;
            assert_eq!(written.get(), 0, "a write has memory that is not counted");
            drop(held);
        };
        both(all, space).await;
        for i in 0..writers {
            assert_eq!(lab.read(i * 65536, LEN, NONE).await, [1; LEN]);
        }
    });
    let stats = lab.cache.stats();
    assert!(stats.private_bytes == 0 && stats.private_bytes_max <= limit, "{stats:?}");
}
