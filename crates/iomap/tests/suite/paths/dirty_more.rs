//! The rest of the dirty-tracking list: state that cannot get lost, ends of file, writes that stop
//! half way, reads and maps that race with write-out.

use super::harness::{Lab, NONE, both};
use forebay_base::task::block_on;
use forebay_base::world::World;
use forebay_base::{ErrorKind, IoFlags};
use forebay_block::BioOp;
use forebay_cache::strategy::DirtyTracking;
use forebay_cache::{Config, State};
use forebay_iomap::MapOps;
use forebay_sim::{Fault, FaultRule, SimConfig};
use forebay_testkit::remap::{Remap, RemapOptions};
use std::collections::BTreeSet;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

fn io_error(op: BioOp) -> FaultRule {
    FaultRule::on(op, Fault::Fail(ErrorKind::Io))
}

/// A file on a map that writes elsewhere each time, and the map.
fn remapped(block_size: u32, size: u64) -> (Lab, Arc<Remap>) {
    let keep = OnceLock::new();
    let config = Config::with_budget(8 << 20);
    let lab = Lab::with_map(config, block_size, Lab::sim(2 << 20), size, |disk| {
        let map = Remap::new(disk, block_size);
        keep.get_or_init(|| map.clone());
        map
    });
    (lab, keep.into_inner().expect("set above"))
}

fn data_bytes(map: &Remap, size: u64) -> u64 {
    block_on(map.extents(0..size, usize::MAX)).unwrap().iter().filter(|e| e.2).map(|e| e.1).sum()
}

/// A hole that was punched is not allocated again by the write-out of its folio.
#[test]
fn d4_punched_hole_is_not_allocated_again() {
    let (lab, map) = remapped(4096, 1 << 20);
    lab.run(async {
        lab.write(0, &[7; 65536], NONE).await;
        lab.zero(4096, 10 * 4096, false).await.unwrap();
        lab.write(0, &[8; 100], NONE).await;
        lab.sync().await.unwrap();
        assert_eq!(data_bytes(&map, 1 << 20), 6 * 4096);
        lab.cache.drop_clean();
        assert_eq!(lab.read(4096, 10 * 4096, NONE).await, [0; 10 * 4096]);
        assert_eq!(lab.read(11 * 4096, 4096, NONE).await, [7; 4096]);
    });
}

/// Truncated bytes are neither written nor allocated later, also when the file grows again: dirty
/// blocks behind the new end are dropped, the block of the new end is written.
#[test]
fn d4_truncated_blocks_are_not_written_or_allocated() {
    for to in [2 * 4096, 2 * 4096 + 100] {
        let keep = OnceLock::new();
        let lab =
            Lab::with_map(Config::with_budget(8 << 20), 4096, Lab::sim(2 << 20), 1 << 20, |disk| {
                let options = RemapOptions { grows: true, ..RemapOptions::default() };
                let map = Remap::with_options(disk, 4096, options);
                keep.get_or_init(|| map.clone());
                map
            });
        let map = keep.into_inner().expect("set above");
        lab.run(async {
            lab.write(0, &[7; 65536], NONE).await;
            lab.write(65536, &[7; 4096], IoFlags::START_WRITEBACK).await;
            lab.file.set_len(to).await.unwrap();
            let left: BTreeSet<u64> = (0..to.div_ceil(4096)).collect();
            assert_eq!(lab.blocks(State::Dirty), left);
            assert!(lab.blocks(State::Writing).is_empty(), "what was on its way is waited for");
            lab.disk.clear_log();
            lab.sync().await.unwrap();
            assert_eq!(lab.writes().0, left.len() as u64 * 4096);
            lab.file.set_len(1 << 20).await.unwrap();
            lab.write(0, &[8; 100], NONE).await;
            lab.sync().await.unwrap();
            assert_eq!(data_bytes(&map, 1 << 20), left.len() as u64 * 4096);
            lab.cache.drop_clean();
            let mut want = vec![7; to as usize];
            want[..100].fill(8);
            want.resize(80 << 10, 0);
            assert_eq!(lab.read(0, want.len(), NONE).await, want);
        });
    }
}

/// In Linux a page could lose its state object while dirty, and a new one forgot the dirty bits.
/// Here the state is part of the folio's descriptor, and a descriptor with dirty blocks is never
/// freed: not under memory pressure, not by dropping clean blocks, not by a change of the mode.
#[test]
fn d5_dirty_folio_state_is_never_lost_or_invented() {
    let lab = Lab::new(Config::with_budget(4 << 20), 512, Lab::sim(24 << 20));
    lab.run(async {
        let dirty: BTreeSet<u64> = (0..40).map(|i| i * 128 + i % 128).collect();
        for &block in &dirty {
            lab.write(block * 512, &[9; 512], NONE).await;
        }
        for pass in 0..3u64 {
            lab.read((4 << 20) + pass * (6 << 20), 6 << 20, NONE).await;
            lab.cache.drop_clean();
            lab.cache.strategies.set_dirty_tracking(DirtyTracking::ALL[pass as usize % 2]);
        }
        assert!(lab.cache.stats().evicted_blocks > 0, "no pressure: the test tests nothing");
        assert_eq!(lab.blocks(State::Dirty), dirty);
        lab.cache.strategies.set_dirty_tracking(DirtyTracking::Block);
        lab.disk.clear_log();
        lab.sync().await.unwrap();
        assert_eq!(lab.writes(), (40 * 512, 40));
    });
}

/// There is no page fault here that dirties a page as a whole; what is kept of the rule: a write at
/// the end of file dirties its last block and nothing behind it, and of a write that fails half
/// way, what was taken before stays dirty and is written.
#[test]
fn d7_dirty_blocks_end_with_file_and_survive_error() {
    let size = (1 << 20) + 1000;
    let (lab, _) = remapped(4096, size);
    lab.run(async {
        lab.write(size - 10, &[5; 10], NONE).await;
        assert_eq!(lab.blocks(State::Dirty), [256].into());
        assert_eq!(lab.cache.stats().dirty_bytes, 4096);
        lab.sync().await.unwrap();
    });
    let lab = Lab::plain(4096);
    lab.run(async {
        // The last block of the write has to be read first, and cannot be.
        lab.disk.inject(io_error(BioOp::Read).within(2 * 65536..2 * 65536 + 4096).sticky());
        let failed = lab.try_write(65536 - 4096, &[6; 65536 + 4096 + 100], NONE).await;
        assert_eq!(failed.unwrap_err().kind(), ErrorKind::Io);
        let taken: BTreeSet<u64> = (15..32).collect();
        assert_eq!(lab.blocks(State::Dirty), taken);
        lab.sync().await.unwrap();
        assert_eq!(lab.disk.peek_durable(65536 - 4096, 65536 + 4096), [6; 65536 + 4096]);
    });
}

/// A copy out of a caller's slice cannot stop half way; a write can: with `NOWAIT` where it would
/// have to wait, or because a block that it changes in part cannot be read. What it did not copy is
/// neither up to date nor dirty.
#[test]
fn d10_short_write_dirties_only_copied_blocks() {
    let lab = Lab::plain(4096);
    lab.run(async {
        let start = 65536 - 2 * 4096;
        let wrote = lab.try_write(start, &[1; 3 * 4096 + 10], IoFlags::NOWAIT).await.unwrap();
        assert_eq!(wrote, 2 * 4096, "up to the folio whose last block would have to be read");
        assert_eq!(lab.blocks(State::Dirty), [14, 15].into());
        assert_eq!(lab.blocks(State::Uptodate), [14, 15].into());
        lab.disk.inject(io_error(BioOp::Read));
        assert!(lab.try_write(200_000, &[2; 10], NONE).await.is_err());
        assert_eq!(lab.blocks(State::Uptodate), [14, 15].into());
        // Into a block that is there: its block alone.
        lab.write(start + 100, &[3; 10], NONE).await;
        lab.sync().await.unwrap();
        assert_eq!(lab.writes().0, 2 * 4096);
    });
}

/// A folio's blocks are read by several requests; each block is up to date when its own is in, not
/// sooner, whatever happens to the folio meanwhile.
#[test]
fn d11_block_is_uptodate_after_its_own_read() {
    let size = (1 << 20) + 1000;
    let (lab, _) = remapped(4096, size);
    lab.run(async {
        let tail = 256 * 4096;
        lab.write(tail, &[4; 1000], NONE).await;
        lab.write(tail - 8 * 4096, &[3; 8 * 4096], NONE).await;
        lab.sync().await.unwrap();
        lab.cache.drop_clean();
        lab.disk.inject(FaultRule::on(BioOp::Read, Fault::Slow(5_000_000)).times(2));
        let reading = lab.read(tail - 4096, 4096 + 1000, NONE);
        let watching = async {
            lab.sleep_ms(1).await;
            assert!(!lab.blocks(State::Reading).is_empty(), "the read is over: nothing tested");
            // Zeroing behind the end, and a write of another block of the folio.
            lab.write(tail + 990, &[9; 10], NONE).await;
            let up = lab.blocks(State::Uptodate);
            assert!(lab.blocks(State::Reading).is_disjoint(&up));
        };
        let (bytes, ()) = both(reading, watching).await;
        assert_eq!(bytes[..4096], [3; 4096]);
        assert_eq!(bytes[4096..4096 + 990], [4; 990]);
        assert_eq!(lab.read(tail + 980, 20, NONE).await, [[4; 10], [9; 10]].concat());
        assert!(lab.blocks(State::Reading).is_empty());
    });
}

/// The two halves of a folio are read by two requests, one much slower: each half is there when its
/// own request is over, the folio as a whole not before the last, and a request that fails takes
/// nothing with it but its own blocks.
#[test]
fn d11_last_request_makes_folio_uptodate() {
    for (fails, slow_first) in [(false, true), (false, false), (true, true), (true, false)] {
        let sim = SimConfig { max_transfer: 32768, ..Lab::sim(4 << 20) };
        let lab = Lab::new(Config::with_budget(8 << 20), 4096, sim);
        lab.run(async {
            let (slow, fast) = if slow_first { (0u64, 32768u64) } else { (32768, 0) };
            let rule = FaultRule::on(BioOp::Read, Fault::Slow(5_000_000));
            lab.disk.inject(rule.within(slow..slow + 32768));
            if fails {
                lab.disk.inject(io_error(BioOp::Read).within(fast..fast + 32768));
            }
            let reading = lab.try_read(0, 65536, NONE);
            let watching = async {
                lab.sleep_ms(2).await;
                let blocks = |at: u64| (at / 4096..(at + 32768) / 4096).collect::<BTreeSet<_>>();
                let there = lab.blocks(State::Uptodate);
                let half: BTreeSet<_> = there.into_iter().filter(|b| *b < 16).collect();
                assert_eq!(half, if fails { BTreeSet::new() } else { blocks(fast) });
                let reading = lab.blocks(State::Reading);
                assert!(reading.is_superset(&blocks(slow)) && reading.is_disjoint(&blocks(fast)));
                let now = lab.try_read(slow, 4096, IoFlags::NOWAIT).await;
                assert_eq!(now.unwrap_err().kind(), ErrorKind::WouldBlock);
                let now = lab.try_read(fast, 4096, IoFlags::NOWAIT).await;
                assert_eq!(now.is_ok(), !fails);
            };
            let (done, ()) = both(reading, watching).await;
            assert_eq!(done.is_err(), fails);
            lab.sleep_ms(10).await;
            assert!(lab.blocks(State::Reading).is_empty());
            let want: Vec<u8> = (0..65536).map(Lab::old).collect();
            assert_eq!(lab.read(0, 65536, NONE).await, want);
        });
    }
}

/// A reader that looked at the map when there was a hole, or another place, does not put that over
/// what was written since: whole blocks, parts, uncached and direct writes, all while the map's
/// answer is on its way.
#[test]
fn d13_stale_map_answer_never_replaces_new_data() {
    let writes = [NONE, IoFlags::DSYNC, IoFlags::UNCACHED, IoFlags::DIRECT | IoFlags::FALLBACK];
    let reads = [NONE, IoFlags::UNCACHED, IoFlags::DIRECT | IoFlags::FALLBACK];
    for seed in 0..48usize {
        let (write, read) = (writes[seed % 4], reads[seed % 3]);
        let config = Config::with_budget(8 << 20);
        let lab = Lab::with_late_map(seed as u64, config, 1 << 20);
        lab.run(async {
            let mut want = vec![0; 65536];
            for round in 1..30u8 {
                let delay = Duration::from_nanos(lab.world.random() % 300_000);
                // Whole blocks, which need no read first, and parts.
                let (at, len) = match round % 2 {
                    0 => (lab.world.random() % 12 * 4096, (1 + lab.world.random() % 4) * 4096),
                    _ => (lab.world.random() % 60_000, 1 + lab.world.random() % 5000),
                };
                let (from, upto) = (at as usize, (at + len) as usize);
                let reader = lab.read(0, 65536, read);
                let writer = async {
                    lab.world.sleep(delay).await;
                    lab.write(at, &vec![round; len as usize], write).await;
                };
                let (seen, ()) = both(reader, writer).await;
                let (before, after) = (want.clone(), &mut want);
                after[from..upto].fill(round);
                for (i, byte) in seen.iter().enumerate() {
                    assert!([before[i], after[i]].contains(byte), "seed {seed} round {round} {i}");
                }
                assert!(lab.read(0, 65536, NONE).await == want, "seed {seed} round {round}");
                if round % 3 == 0 {
                    lab.sync().await.unwrap();
                    lab.cache.drop_clean();
                }
            }
        });
    }
}

/// A failed write-out gives its reservation back, and nothing else: the blocks stay dirty, what the
/// map holds stays mapped, no space is lost.
#[test]
fn d19_failed_write_out_releases_reservations_only() {
    let (lab, map) = remapped(4096, 1 << 20);
    let all = map.accounted();
    lab.run(async {
        lab.write(0, &[1; 65536], NONE).await;
        lab.sync().await.unwrap();
        for (i, kind) in [ErrorKind::Io, ErrorKind::NoSpace].into_iter().enumerate() {
            lab.write(4096, &[2 + i as u8; 8192], NONE).await;
            lab.write(40960, &[2 + i as u8; 4096], NONE).await;
            lab.disk.inject(FaultRule::on(BioOp::Write, Fault::Fail(kind)).sticky());
            assert!(lab.sync().await.is_err());
            assert_eq!(lab.blocks(State::Dirty), [1, 2, 10].into());
            assert_eq!((map.accounted(), data_bytes(&map, 1 << 20)), (all, 65536));
            lab.disk.heal();
            // The flusher may have tried in between, and failed.
            while lab.sync().await.is_err() {}
            lab.cache.drop_clean();
            let mut want = vec![1; 65536];
            want[4096..3 * 4096].fill(2 + i as u8);
            want[40960..45056].fill(2 + i as u8);
            assert_eq!(lab.read(0, 65536, NONE).await, want);
            assert_eq!(map.accounted(), all);
        }
    });
}

/// A failed write-out is reported to every opener, once, also when its blocks are gone since:
/// trimmed, their folio evicted.
#[test]
fn x8_write_error_survives_folio_eviction() {
    let lab = Lab::plain(4096);
    lab.run(async {
        let other = lab.file.open_handle();
        lab.disk.inject(io_error(BioOp::Write));
        lab.write(0, &[1; 65536], IoFlags::START_WRITEBACK).await;
        lab.sleep_ms(10).await;
        lab.zero(0, 65536, false).await.unwrap();
        lab.cache.drop_clean();
        assert!(lab.blocks(State::Uptodate).is_empty() && lab.blocks(State::Dirty).is_empty());
        assert!(lab.sync().await.is_err());
        assert!(lab.file.sync(&other).await.is_err());
        for handle in [&lab.handle, &other] {
            lab.file.sync(handle).await.unwrap();
        }
    });
}

/// The flusher is not woken for each write between syncs. It still finds due blocks, whenever
/// between two of its timers they became dirty.
#[test]
fn dirty_block_expires_whenever_it_was_written() {
    let expire = 5_000;
    for pause in (0..=6_000).step_by(500) {
        let lab = Lab::plain(4096);
        lab.run(async {
            for _ in 0..3 {
                lab.write(0, &[1; 4096], NONE).await;
                lab.sync().await.unwrap();
            }
            lab.sleep_ms(pause).await;
            lab.write(4096, &[2; 4096], NONE).await;
            lab.sleep_ms(expire - 100).await;
            assert_eq!(lab.blocks(State::Dirty), [1].into(), "not before its time, {pause}");
            lab.sleep_ms(200).await;
            assert!(lab.blocks(State::Dirty).is_empty(), "after {pause} ms");
        });
    }
}

/// A long request was let past the limit by one look at it, and dirtied all of it at once: 8 MiB
/// where 1 MiB was allowed. And what it has dirtied itself it cannot wait for unless it wakes the
/// flusher.
#[test]
fn long_request_exceeds_limit_by_one_portion() {
    let (limit, portion, len) = (1u64 << 20, 256u64 << 10, 8u64 << 20);
    for folio_size in [65536, 2 << 20] {
        let config = Config {
            folio_size,
            dirty_bytes: Some(limit),
            dirty_background_bytes: Some(limit),
            ..Config::with_budget(32 << 20)
        };
        let lab = Lab::new(config, 4096, Lab::sim(2 * len));
        let data = vec![7; len as usize - 100];
        let most = std::cell::Cell::new(0);
        let writer = |at: u64, flags: IoFlags| {
            let mut write = Box::pin(lab.try_write(at, &data, flags));
            let (lab, most) = (&lab, &most);
            std::future::poll_fn(move |cx| {
                let polled = std::future::Future::poll(write.as_mut(), cx);
                let stats = lab.cache.stats();
                most.set(stats.dirty_bytes.saturating_add(stats.writeback_bytes).max(most.get()));
                polled
            })
        };
        lab.run(async {
            assert_eq!(writer(50, NONE).await.unwrap(), data.len());
            assert!(most.get() <= limit + portion, "{} bytes dirty", most.get());
            // As far as it goes without waiting.
            lab.sync().await.unwrap();
            let done = writer(50, IoFlags::NOWAIT).await.unwrap() as u64;
            assert!((limit..=limit + portion).contains(&(done + 50)), "{done} bytes");
            lab.sync().await.unwrap();
            most.set(0);
            let (one, two) =
                super::harness::both(writer(0, NONE), writer(len, IoFlags::UNCACHED)).await;
            assert_eq!((one.unwrap(), two.unwrap()), (data.len(), data.len()));
            assert!(most.get() <= limit + 2 * portion, "{} bytes dirty", most.get());
            lab.sync().await.unwrap();
            assert_eq!(lab.disk.peek_durable(0, data.len()), data);
        });
    }
}

/// A block that is dirtied while it is in write-out cannot be written before that ends, however
/// long that takes. The flusher looks less and less often meanwhile; when it ends, it and a sync go
/// on at once.
#[test]
fn waiters_for_slow_write_out_continue_at_its_end() {
    for syncs in [false, true] {
        let config = Config { dirty_expire_centisecs: 1, ..Config::with_budget(8 << 20) };
        let lab = Lab::new(config, 4096, Lab::sim(4 << 20));
        lab.run(async {
            let slow = FaultRule::on(BioOp::Write, Fault::Slow(900_000_000));
            lab.disk.inject(slow.within(0..4096).times(1));
            lab.write(0, &[1; 4096], IoFlags::START_WRITEBACK).await;
            let end = lab.world.now() + 900_000_000;
            lab.write(0, &[2; 4096], NONE).await;
            // The flusher's next look would be at 1023 ms.
            lab.sleep_ms(600).await;
            if syncs {
                lab.sync().await.unwrap();
                let late = lab.world.now().saturating_sub(end);
                assert!(late < 1_000_000, "synced {late} ns after the write-out that it waits for");
            } else {
                lab.sleep_ms(302).await;
                assert!(lab.blocks(State::Dirty).is_empty(), "not written by now");
            }
            lab.sync().await.unwrap();
            assert_eq!(lab.disk.peek_durable(0, 4096), [2; 4096]);
        });
    }
}

/// A write that has to read the blocks at both of its ends is an ordinary one. Only if one of them
/// is gone when the other is there memory is short, and all that is dirty is written to make room:
/// done for each such write, it would send to the device at once what is overwritten a moment
/// later.
#[test]
fn write_with_two_edges_flushes_no_other_dirty_blocks() {
    let lab = Lab::plain(4096);
    lab.run(async {
        lab.write(1 << 20, &[1; 4096], NONE).await;
        lab.disk.clear_log();
        lab.write(100, &[2; 9000], NONE).await;
        lab.sleep_ms(50).await;
        assert_eq!(lab.reads().len(), 2, "both edges");
        assert_eq!(lab.writes(), (0, 0));
        assert_eq!(lab.blocks(State::Dirty).len(), 4);
    });
}
