//! Sync tells the truth: docs/reference/failure-protocol.md, sentence by sentence.

use super::harness::{Lab, NONE, both};
use forebay_base::sync::Mutex;
use forebay_base::task::FutureSlot;
use forebay_base::{Error, ErrorKind, IoFlags};
use forebay_block::{Bio, BioFlags, BioOp, BlockDevice, DeviceRef, Limits};
use forebay_cache::writeback::WriteOut;
use forebay_cache::{Config, State};
use forebay_iomap::file::ZeroFlags;
use forebay_iomap::identity::Identity;
use forebay_sim::{Fault, FaultRule, SimConfig};
use std::sync::Arc;

fn fail(op: BioOp) -> FaultRule {
    FaultRule::on(op, Fault::Fail(ErrorKind::Io))
}

#[test]
fn error_is_reported_once_to_each_opener() {
    let lab = Lab::plain(4096);
    lab.run(async {
        let other = lab.file.open_handle();
        lab.disk.inject(fail(BioOp::Write));
        lab.write(0, &[1; 4096], IoFlags::START_WRITEBACK).await;
        lab.sleep_ms(10).await;
        // No opener has seen the error: a new opener gets it, too.
        let late = lab.file.open_handle();
        assert!(lab.sync().await.is_err());
        let later = lab.file.open_handle();
        assert!(lab.file.sync(&other).await.is_err() && lab.file.sync(&late).await.is_err());
        for handle in [&lab.handle, &other, &late, &later] {
            lab.file.sync(handle).await.unwrap();
        }
    });
}

#[test]
fn failed_write_out_is_retried_until_durable() {
    let lab = Lab::plain(4096);
    lab.run(async {
        lab.write(0, &[1; 8192], NONE).await;
        lab.disk.inject(fail(BioOp::Write).sticky());
        for _ in 0..5 {
            assert!(lab.sync().await.is_err(), "not durable, so no success");
            assert_eq!(lab.blocks(State::Dirty), [0, 1].into());
        }
        lab.cache.drop_clean();
        assert_eq!(lab.read(0, 8192, NONE).await, [1; 8192]);
        lab.disk.heal();
        lab.sync().await.unwrap();
        assert_eq!(lab.disk.peek_durable(0, 8192), [1; 8192]);
    });
}

#[test]
fn no_space_below_is_its_own_error_and_loses_nothing() {
    let lab = Lab::plain(4096);
    lab.run(async {
        lab.write(0, &[1; 8192], NONE).await;
        lab.disk.inject(FaultRule::on(BioOp::Write, Fault::Fail(ErrorKind::NoSpace)).sticky());
        assert_eq!(lab.sync().await.unwrap_err().kind(), ErrorKind::NoSpace);
        lab.disk.heal();
        lab.sync().await.unwrap();
        assert_eq!(lab.disk.peek_durable(0, 8192), [1; 8192]);
    });
}

#[test]
fn flush_failure_rewrites_kept_blocks() {
    let lab = Lab::plain(4096);
    lab.run(async {
        for round in 1..30u8 {
            lab.write(0, &[round; 16 * 4096], NONE).await;
            lab.disk.inject(fail(BioOp::Flush));
            assert!(lab.sync().await.is_err());
            assert_eq!(lab.blocks(State::Dirty).len(), 16);
            lab.disk.clear_log();
            lab.sync().await.unwrap();
            assert_eq!(lab.writes().0, 16 * 4096);
            assert_eq!(lab.disk.peek_durable(0, 16 * 4096), [round; 16 * 4096]);
        }
    });
}

#[test]
fn blocks_not_kept_make_later_syncs_fail() {
    for flags in [IoFlags::UNCACHED, IoFlags::DIRECT] {
        let lab = Lab::plain(4096);
        lab.run(async {
            lab.write(0, &[1; 4096], flags).await;
            lab.sleep_ms(300).await;
            lab.disk.inject(fail(BioOp::Flush));
            for _ in 0..3 {
                assert!(lab.sync().await.is_err(), "{flags:?}");
            }
            let fresh = lab.file.open_handle();
            assert!(lab.file.sync(&fresh).await.is_err());
        });
    }
}

#[test]
fn failed_data_at_half_the_dirty_limit_refuses_more() {
    let config = Config {
        dirty_bytes: Some(1 << 20),
        dirty_background_bytes: Some(256 << 10),
        ..Config::with_budget(8 << 20)
    };
    let lab = Lab::new(config, 4096, Lab::sim(4 << 20));
    lab.run(async {
        lab.disk.inject(fail(BioOp::Write).sticky());
        let mut accepted = 0u64;
        for i in 0..1024u64 {
            match lab.try_write(i * 4096, &[1; 4096], NONE).await {
                Ok(_) => accepted += 4096,
                Err(e) => {
                    assert_eq!(e.kind(), ErrorKind::Io);
                    break;
                }
            }
        }
        assert!((512 << 10..=(1 << 20) + 4096).contains(&accepted), "{accepted}");
        // Reads of cached data go on, and so does everything after the device has healed.
        assert_eq!(lab.read(0, 4096, NONE).await, [1; 4096]);
        lab.disk.heal();
        let _told = lab.sync().await;
        lab.sync().await.unwrap();
        assert_eq!(lab.disk.peek_durable(0, accepted as usize), vec![1; accepted as usize]);
        lab.write(3 << 20, &[2; 4096], NONE).await;
    });
}

/// The story: write-out that a sync waits for was submitted as background work, and so queued
/// behind all other requests. Now a sync's writes are marked as waited for; those of the flusher,
/// and those that a caller only started, are not.
#[test]
fn writes_of_sync_are_sync_class_of_flusher_background() {
    let lab = Lab::plain(4096);
    lab.run(async {
        let seen = || -> Vec<BioFlags> {
            let log = lab.disk.log();
            lab.disk.clear_log();
            log.iter().filter(|e| e.op == BioOp::Write).map(|e| e.flags).collect()
        };
        lab.write(0, &[1; 8192], NONE).await;
        assert_eq!(seen(), [], "no write-out has begun");
        lab.sync().await.unwrap();
        let waited_for = BioFlags::SYNC | BioFlags::BACKGROUND;
        assert_eq!(seen(), [waited_for]);
        lab.write(0, &[2; 8192], NONE).await;
        lab.sleep_ms(60_000).await;
        assert_eq!(seen(), [BioFlags::BACKGROUND], "the flusher's, of what has become old");
        lab.write(0, &[3; 8192], IoFlags::START_WRITEBACK).await;
        lab.sleep_ms(10).await;
        assert_eq!(seen(), [BioFlags::BACKGROUND], "the caller does not wait");
        lab.write(0, &[4; 8192], IoFlags::DSYNC).await;
        assert_eq!(seen(), [waited_for], "a write that syncs itself");
    });
}

/// The story: a trim was noted as written before it had run. A flush of the flusher in between
/// removed the note, the next flush lost the trim and failed, and the sync after that succeeded.
/// Syncs wait for the trim; the flusher does not.
#[test]
fn flush_during_trim_does_not_certify_it() {
    for keep_allocated in [false, true] {
        let lab = Lab::plain(4096);
        lab.run(async {
            lab.disk.inject(FaultRule::on(BioOp::WriteZeroes, Fault::Slow(5_000_000)));
            let trim = async {
                let flags = ZeroFlags { keep_allocated, fast_only: false };
                lab.file.zero(0, 8192, flags).await.unwrap();
            };
            let flush = async {
                lab.sleep_ms(1).await;
                let mut slot = FutureSlot::default();
                WriteOut::flush(lab.file.clone(), &mut slot);
                (&mut slot).await;
                assert_eq!(lab.disk.peek(0, 8192), lab.disk.peek_durable(0, 8192), "it is early");
            };
            both(trim, flush).await;
            assert!(!lab.file.mapping.unflushed.is_empty(), "the trim is not durable");
            lab.disk.inject(fail(BioOp::Flush));
            for _ in 0..3 {
                assert!(lab.sync().await.is_err(), "a lost trim cannot be repeated");
            }
        });
    }
}

/// The story: a sync had taken blocks for write-out, and then waited for others before it issued
/// them. A second sync did not see that: it flushed and returned before the first one's writes were
/// issued.
#[test]
fn sync_waits_for_blocks_taken_by_another() {
    let lab = Lab::plain(4096);
    lab.run(async {
        let second = 65536;
        lab.disk.inject(FaultRule::on(BioOp::Write, Fault::Slow(5_000_000)).within(0..4096));
        lab.write(second, &[1; 4096], IoFlags::START_WRITEBACK).await;
        lab.write(second, &[2; 4096], NONE).await;
        lab.write(0, &[3; 4096], NONE).await;
        let other = lab.file.open_handle();
        let late = async {
            lab.sleep_ms(0).await;
            lab.file.sync(&other).await.unwrap();
            assert!(lab.disk.peek_durable(0, 4096) == [3; 4096], "synced is durable");
            assert!(lab.disk.peek_durable(second, 4096) == [2; 4096]);
        };
        both(late, async { lab.sync().await.unwrap() }).await;
    });
}

/// A direct write drops the cached block around it. What that block had written out before, and
/// not flushed yet, was forgotten: a flush that failed afterwards was followed by one that worked.
#[test]
fn direct_write_keeps_unflushed_neighbours() {
    let mut lost = 0;
    for blocks in 1..40u64 {
        let lab = Lab::plain(4096);
        lab.run(async {
            for i in 0..blocks {
                lab.write(i * 8192, &[7; 4096], IoFlags::START_WRITEBACK).await;
            }
            lab.sleep_ms(20).await;
            for i in 0..blocks {
                lab.write(i * 8192, &[9; 512], IoFlags::DIRECT | IoFlags::DSYNC).await;
            }
            lab.disk.inject(fail(BioOp::Flush));
            assert!(lab.sync().await.is_err());
            let again = lab.sync().await;
            let want = [vec![9; 512], vec![7; 3584]].concat();
            let durable = (0..blocks).all(|i| lab.disk.peek_durable(i * 8192, 4096) == want);
            assert!(durable || again.is_err(), "{blocks} blocks: success without the data");
            lost += u64::from(!durable);
        });
    }
    assert!(lost > 0, "the disk lost nothing: the test tests nothing");
}

/// Zeroing dropped dirty blocks first and asked the device then: when the device refused, data
/// that had been accepted was gone.
#[test]
fn zero_failure_keeps_dirty_blocks() {
    for kind in [ErrorKind::Io, ErrorKind::Unsupported] {
        let lab = Lab::plain(4096);
        lab.run(async {
            lab.write(0, &[7; 16384], NONE).await;
            lab.disk.inject(FaultRule::on(BioOp::WriteZeroes, Fault::Fail(kind)));
            assert_eq!(lab.zero(0, 16384, true).await.unwrap_err().kind(), kind);
            assert_eq!(lab.blocks(State::Dirty), [0, 1, 2, 3].into());
            assert_eq!(lab.read(0, 16384, NONE).await, [7; 16384]);
            lab.sync().await.unwrap();
            assert_eq!(lab.disk.peek_durable(0, 16384), [7; 16384]);
            // A trim that succeeds drops the dirty blocks without writing them.
            lab.write(0, &[8; 16384], NONE).await;
            lab.disk.clear_log();
            lab.zero(0, 16384, false).await.unwrap();
            assert_eq!(lab.read(0, 16384, NONE).await, [0; 16384]);
            lab.sync().await.unwrap();
            assert_eq!(lab.writes().0, 0);
            let stats = lab.cache.stats();
            assert_eq!((stats.dirty_bytes, stats.writeback_bytes), (0, 0));
        });
    }
}

/// A device that cannot zero gets zeros written, in steps; one that must be fast is refused, and
/// nothing changes.
#[test]
fn zeros_are_written_where_the_device_cannot_zero() {
    const STEP: usize = 256 << 10;
    let sim = SimConfig { write_zeroes: false, ..Lab::sim(4 << 20) };
    let lab = Lab::new(Config::with_budget(8 << 20), 4096, sim);
    lab.run(async {
        let len = 3 * STEP + 8192;
        lab.write(4096, &[7; 4096], NONE).await;
        let refused = lab.zero(4096, len as u64, true).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Unsupported);
        assert_eq!(lab.read(4096, 4096, NONE).await, [7; 4096]);
        lab.disk.clear_log();
        lab.zero(4096, len as u64, false).await.unwrap();
        assert_eq!(lab.writes(), (len as u64, 4), "steps of 256 KiB");
        lab.sync().await.unwrap();
        let (end, old) = (4096 + len, |from: usize| (from..).map(|at| Lab::old(at as u64)));
        let durable = lab.disk.peek_durable(0, end + 4096);
        assert!(durable[..4096].iter().copied().eq(old(0).take(4096)));
        assert!(durable[4096..end].iter().all(|byte| *byte == 0));
        assert!(durable[end..].iter().copied().eq(old(end).take(4096)));
        assert_eq!(lab.read(0, end + 4096, NONE).await, durable);
    });
}

/// The story: failed blocks became dirty, which woke the flusher, and it retried at once: as often
/// as the device could fail.
#[test]
fn retries_back_off_and_succeed() {
    let config = Config { dirty_background_bytes: Some(64 << 10), ..Config::with_budget(8 << 20) };
    let lab = Lab::new(config, 4096, Lab::sim(4 << 20));
    lab.run(async {
        lab.disk.inject(fail(BioOp::Write).sticky());
        lab.write(0, &[1; 128 << 10], NONE).await;
        lab.sleep_ms(20_000).await;
        let (_, tries) = lab.writes();
        assert!((5..100).contains(&tries), "{tries} tries in 20 s");
        lab.disk.heal();
        lab.sleep_ms(10_000).await;
        assert!(lab.disk.peek(0, 128 << 10) == [1; 128 << 10], "the blocks were not retried");
    });
}

/// Its first flush fails late, and takes a write with it that completed while it was running.
struct LateFailure {
    lower: DeviceRef,
    flush: Mutex<(u32, Option<Bio>)>,
}

impl BlockDevice for LateFailure {
    fn name(&self) -> String {
        "late failure".into()
    }
    fn limits(&self) -> Limits {
        self.lower.limits()
    }
    fn size(&self) -> u64 {
        self.lower.size()
    }
    fn submit(&self, bio: Bio) {
        let mut state = self.flush.lock();
        if bio.op == BioOp::Flush {
            state.0 += 1;
            if state.0 == 1 {
                state.1 = Some(bio);
                return;
            }
        }
        let held = state.1.take_if(|_| bio.op == BioOp::Write);
        drop(state);
        match held {
            Some(flush) => {
                bio.complete(Ok(()));
                flush.complete(Err(Error::new(ErrorKind::Io, "flush", "late")));
            }
            None => self.lower.submit(bio),
        }
    }
}

/// A flush that failed was answered by writing again what had been written out before it began; a
/// write that ended while it was running was thought to be covered by the next flush.
#[test]
fn flush_failure_may_lose_writes_during_it() {
    let late = |lower| {
        let device = Arc::new(LateFailure { lower, flush: Mutex::default() });
        Arc::new(Identity::new(device)) as Arc<dyn forebay_iomap::MapOps>
    };
    let config = Config::with_budget(8 << 20);
    let lab = Lab::with_map(config, 4096, Lab::sim(1 << 20), 1 << 20, late);
    lab.run(async {
        lab.write(0, &[1; 4096], NONE).await;
        let other = async {
            lab.sleep_ms(10).await;
            lab.write(65536, &[2; 4096], IoFlags::START_WRITEBACK).await;
        };
        assert!(both(lab.sync(), other).await.0.is_err());
        while lab.sync().await.is_err() {}
        assert!(lab.disk.peek_durable(0, 4096) == [1; 4096]);
        assert!(lab.disk.peek_durable(65536, 4096) == [2; 4096]);
    });
}
