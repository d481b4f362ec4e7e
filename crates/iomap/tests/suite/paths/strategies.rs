//! The three strategies of uncached requests: what each leaves behind, who waits, and what none of
//! them may do.

use super::harness::{Lab, NONE, at_once, both};
use forebay_base::world::World;
use forebay_base::{ErrorKind, IoFlags};
use forebay_block::BioOp;
use forebay_cache::strategy::UncachedStrategy::{self, DropBehind, NoAccess, Ours};
use forebay_cache::{Config, State};
use forebay_iomap::{Lookup, MapOps, MappedFile, Source};
use forebay_sim::{Fault, FaultRule};
use forebay_testkit::remap::Remap;
use std::collections::BTreeSet;
use std::sync::Arc;

const UNCACHED: IoFlags = IoFlags::UNCACHED;
const ALL: &[UncachedStrategy] = UncachedStrategy::ALL;
/// Those that leave nothing.
const PASSING: [UncachedStrategy; 2] = [DropBehind, Ours];

fn old(at: u64, len: usize) -> Vec<u8> {
    (at..at + len as u64).map(Lab::old).collect()
}

fn lab(strategy: UncachedStrategy, block_size: u32) -> Lab {
    let lab = Lab::plain(block_size);
    lab.cache.strategies.set_uncached(strategy);
    lab
}

const PLACES: [(u64, usize); 7] = [
    (1 << 20, 4096),
    ((1 << 20) + 8192, 65536),
    ((1 << 20) + 100, 50),
    ((1 << 20) + 4000, 200),
    ((1 << 20) + 65000, 2000),
    ((2 << 20) - 512, 1024),
    ((4 << 20) - 5000, 5000),
];

/// Reads a block here and there, some of it twice, so that there is something to keep.
async fn warm(lab: &Lab) {
    for at in [1u64 << 20, (1 << 20) + 69632, 2 << 20, 3 << 20] {
        lab.read(at, 3000, NONE).await;
    }
    lab.sleep_ms(50).await;
}

#[test]
fn u1_cached_blocks_stay_and_keep_age() {
    for &strategy in ALL {
        let lab = lab(strategy, 4096);
        lab.run(async {
            warm(&lab).await;
            let (there, touched) = lab.residency();
            for (i, (at, len)) in PLACES.into_iter().enumerate() {
                assert_eq!(lab.read(at, len, UNCACHED).await, old(at, len), "{strategy}");
                let data = vec![100 + i as u8; len];
                lab.write(at, &data, UNCACHED).await;
                assert_eq!(lab.read(at, len, NONE.union(UNCACHED)).await, data);
                lab.write(at, &old(at, len), UNCACHED).await;
            }
            lab.sync().await.unwrap();
            let after = lab.residency();
            assert!(there.is_subset(&after.0), "{strategy}");
            assert_eq!(touched, after.1, "{strategy}: nothing became younger");
        });
    }
}

#[test]
fn u2_nothing_is_left_behind() {
    for strategy in PASSING {
        for block_size in [512, 4096] {
            let lab = lab(strategy, block_size);
            lab.run(async {
                warm(&lab).await;
                let (before, ghosts) = (lab.residency(), lab.cache.stats().ghosts);
                for (i, (at, len)) in PLACES.into_iter().enumerate() {
                    assert_eq!(lab.read(at, len, UNCACHED).await, old(at, len));
                    let data = vec![100 + i as u8; len];
                    lab.write(at, &data, UNCACHED).await;
                    lab.sync().await.unwrap();
                    assert_eq!(lab.disk.peek_durable(at, len), data, "{strategy} {at}+{len}");
                    assert_eq!(lab.residency(), before, "{strategy} {block_size} {at}+{len}");
                    lab.write(at, &old(at, len), UNCACHED).await;
                }
                lab.sync().await.unwrap();
                lab.cache.drop_clean();
                let left = lab.cache.stats();
                assert_eq!(left.frames_free, left.frames_total, "{strategy}");
                // The four folios of `warm` at most: no ghosts of what passed through.
                assert!(left.ghosts <= ghosts + 4, "{strategy}: {} ghosts", left.ghosts);
            });
        }
    }
}

#[test]
fn u2_noaccess_caches_and_never_activates() {
    let lab = lab(NoAccess, 4096);
    lab.run(async {
        for _ in 0..4 {
            assert_eq!(lab.read(1 << 20, 65536, UNCACHED).await, old(1 << 20, 65536));
            lab.write(2 << 20, &[3; 65536], UNCACHED).await;
        }
        assert_eq!(lab.blocks(State::Referenced), BTreeSet::new());
        assert!(lab.blocks(State::Uptodate).len() >= 32);
        assert_eq!(lab.cache.stats().promoted, 0);
        // Its dirty blocks are ordinary ones: the age limit decides when they are written.
        lab.sleep_ms(1000).await;
        assert_eq!(lab.writes().0, 0);
        assert_eq!(lab.cache.dirty.dirty_bytes(), 65536);
        lab.sync().await.unwrap();
        lab.cache.drop_clean();
        assert_eq!(lab.cache.stats().ghosts, 0, "no ordinary request touched it");
    });
}

/// While an uncached request has a block in the cache, an ordinary one finds it there. The block
/// stays when the uncached one is over; its neighbours, which only the uncached one used, are
/// dropped. For `dropbehind` in both directions; the write-out, or the read of the last block, is
/// held up meanwhile.
#[test]
fn u4_ordinary_touch_keeps_dropbehind_blocks() {
    for writes in [false, true] {
        for touch_writes in [false, true] {
            let lab = lab(DropBehind, 4096);
            lab.run(async {
                let (at, len) = (1u64 << 20, 4 * 65536);
                let (op, held) = match writes {
                    true => (BioOp::Write, at..at + len as u64),
                    false => (BioOp::Read, at + 3 * 65536..at + len as u64),
                };
                let rule = FaultRule::on(op, Fault::Slow(5_000_000));
                lab.disk.inject(rule.within(held).sticky());
                let uncached = async {
                    match writes {
                        true => lab.write(at, &vec![9; len], UNCACHED).await,
                        false => assert_eq!(lab.read(at, len, UNCACHED).await, old(at, len)),
                    }
                };
                let ordinary = async {
                    lab.sleep_ms(2).await;
                    match touch_writes {
                        true => lab.write(at + 4096, &[7; 4096], NONE).await,
                        false => drop(lab.read(at + 4096, 4096, NONE).await),
                    }
                };
                both(uncached, ordinary).await;
                lab.disk.heal();
                lab.sync().await.unwrap();
                lab.sleep_ms(20).await;
                let there = lab.blocks(State::Uptodate);
                let what = format!("writes {writes}, touched by a write {touch_writes}");
                assert!(there.contains(&257), "{what}: {there:?}");
                assert!(lab.blocks(State::Uncached).is_empty(), "{what}");
                assert!(!there.contains(&256) && !there.contains(&300), "{what}: {there:?}");
            });
        }
    }
}

#[test]
fn u6_block_is_dropped_once_at_io_end() {
    for strategy in [DropBehind, Ours] {
        let lab = lab(strategy, 512);
        lab.run(async {
            for round in 0..30u64 {
                // Streams that are left while their windows are still being read: completions drop,
                // readers drop, reclaim drops.
                let at = round * 98_304;
                for i in 0..4 {
                    lab.read(at + i * 16384, 16384, UNCACHED).await;
                }
                lab.write(at + 700, &[1; 3000], UNCACHED).await;
                lab.file.close_handle(&lab.handle);
                if round % 3 == 0 {
                    lab.cache.drop_clean();
                }
            }
            lab.sync().await.unwrap();
            lab.sleep_ms(50).await;
            assert_eq!(lab.blocks(State::Uptodate), BTreeSet::new(), "{strategy}");
            let stats = lab.cache.stats();
            assert_eq!(stats.frames_free, stats.frames_total, "{strategy}: each frame back, once");
        });
    }
}

#[test]
fn u7_small_reads_of_a_big_folio_read_nothing_twice() {
    let lab = lab(Ours, 512);
    lab.run(async {
        let len = 1u64 << 20;
        for at in (0..len).step_by(700) {
            let n = 700.min((len - at) as usize);
            assert_eq!(lab.read(at, n, UNCACHED).await, old(at, n));
        }
        lab.sleep_ms(20).await;
        let mut reads = lab.reads();
        reads.sort_unstable();
        let inside: u64 = reads.iter().map(|&(at, n)| (at + n).min(len).saturating_sub(at)).sum();
        // A sector may be read once more where the stream begins, before it is known for one.
        assert!(inside <= len + 4096, "{inside} bytes read of {len}");
    });
}

#[test]
fn u9_each_strategy_waits_as_defined() {
    for &strategy in ALL {
        let lab = lab(strategy, 4096);
        lab.run(async {
            let now = at_once(lab.try_write(8192, &[9; 8192], UNCACHED));
            let waits = strategy == DropBehind;
            assert_eq!(now.is_none(), waits, "{strategy}");
            if waits {
                lab.write(8192, &[9; 8192], UNCACHED).await;
                assert_eq!(lab.disk.peek(8192, 8192), [9; 8192], "{strategy}: at the device");
                assert_eq!(lab.blocks(State::Uptodate), BTreeSet::new(), "{strategy}: and gone");
            } else {
                assert_eq!(lab.writes().0, 0, "{strategy}: the caller submits nothing");
            }
        });
    }
}

/// Blocks that were cached or dirty before: the write-out of what is written onto them starts
/// within the window too, and they stay.
#[test]
fn u9_write_out_onto_cached_blocks_starts_within_the_window() {
    for dirty_before in [false, true] {
        let lab = lab(Ours, 4096);
        lab.run(async {
            lab.read(65536, 16384, NONE).await;
            if dirty_before {
                lab.write(65536, &[1; 16384], NONE).await;
            }
            lab.sleep_ms(20).await;
            let before = lab.residency();
            lab.write(65536 + 100, &[7; 9000], UNCACHED).await;
            assert_eq!(lab.writes().0, 0);
            lab.sleep_ms(300).await;
            assert_eq!(lab.disk.peek(65536 + 100, 9000), [7; 9000], "{dirty_before}");
            assert_eq!(lab.residency(), before);
        });
    }
}

#[test]
fn u10_writer_submits_nothing_and_dirty_bytes_are_bounded() {
    let window = 256u32 << 10;
    let config = Config {
        uncached_window_bytes: window,
        dirty_bytes: Some(4 << 20),
        dirty_background_bytes: Some(4 << 20),
        ..Config::with_budget(8 << 20)
    };
    let lab = Lab::new(config, 4096, Lab::sim(4 << 20));
    lab.run(async {
        let mut most = 0;
        for i in 0..64u64 {
            let issued = lab.writes().1;
            let done = at_once(lab.try_write(i * 65536, &[3; 65536], UNCACHED));
            assert!(matches!(done, Some(Ok(65536))), "below the limit no writer waits");
            assert_eq!(lab.writes().1, issued, "the writer submits");
            most = most.max(lab.cache.dirty.dirty_bytes());
            lab.sleep_ms(1).await;
        }
        // A quarter of the window starts write-out; what comes while the flusher is on its way is
        // little.
        assert!(most <= u64::from(window), "{most} bytes dirty");
        lab.sync().await.unwrap();
        let (bytes, bios) = lab.writes();
        assert_eq!(bytes, 4 << 20);
        assert!(bios <= 64, "{bios} bios: a sequential run leaves in large ones");
    });
}

/// Each flag that there is not, each that has no meaning for the request, each request that the
/// file cannot take: an error of its own kind, no I/O, nothing in the cache.
#[test]
fn u11_unsupported_flags_are_refused() {
    for &strategy in ALL {
        let lab = lab(strategy, 4096);
        let ops = Arc::new(forebay_iomap::identity::Identity::new(lab.disk.clone()));
        let readable = MappedFile::new(&lab.cache, ops, 4096, 4 << 20, true).unwrap();
        lab.run(async {
            let unknown = (0..32).map(|n| IoFlags::from_bits_retain(1 << n));
            let unknown: Vec<_> = unknown.filter(|f| !IoFlags::all().contains(*f)).collect();
            assert!(unknown.len() > 16);
            let kind = |r: forebay_base::Result<usize>| r.expect_err("refused").kind();
            for &odd in &unknown {
                let read = lab.try_read(0, 4096, UNCACHED | odd).await;
                assert_eq!(kind(read.map(|b| b.len())), ErrorKind::Unsupported, "{odd:?}");
                let write = lab.try_write(0, &[1; 4096], UNCACHED | odd).await;
                assert_eq!(kind(write), ErrorKind::Unsupported, "{odd:?}");
            }
            for of_writes in
                [IoFlags::DSYNC, IoFlags::SYNC, IoFlags::APPEND, IoFlags::START_WRITEBACK]
            {
                let read = lab.try_read(0, 4096, UNCACHED | of_writes).await;
                assert_eq!(kind(read.map(|b| b.len())), ErrorKind::Unsupported, "{of_writes:?}");
            }
            let beyond = lab.try_write((4 << 20) - 10, &[1; 20], UNCACHED).await;
            assert_eq!(kind(beyond), ErrorKind::NoSpace);
            let handle = readable.open_handle();
            let data = Source::Slice(&[1; 4096]);
            let refused = readable.write(&handle, 0, data, UNCACHED).await;
            assert_eq!(kind(refused), ErrorKind::ReadOnly);
            assert!(lab.disk.log().is_empty(), "{strategy}: I/O for what was refused");
            let stats = lab.cache.stats();
            assert_eq!(stats.frames_free, stats.frames_total, "{strategy}: silently cached");
        });
    }
}

#[test]
fn u12_nowait_would_block_only_where_the_strategy_waits() {
    for &strategy in ALL {
        let lab = lab(strategy, 4096);
        lab.run(async {
            let flags = UNCACHED | IoFlags::NOWAIT;
            lab.read(0, 4096, NONE).await;
            lab.sleep_ms(20).await;
            let before = lab.residency();
            let error = lab.try_read(1 << 20, 4096, flags).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::WouldBlock);
            assert_eq!(lab.try_read(10, 100, flags).await.unwrap(), old(10, 100));
            assert_eq!(lab.residency(), before, "{strategy}");
            assert!(lab.blocks(State::Reading).is_empty());
            let absent = lab.try_write(1 << 20, &[1; 4096], flags).await;
            let cached = lab.try_write(0, &old(0, 4096), flags).await;
            let would = |r: &forebay_base::Result<usize>| {
                r.as_ref().is_err_and(|e| e.kind() == ErrorKind::WouldBlock)
            };
            assert_eq!(would(&absent), strategy == DropBehind, "{strategy}");
            assert_eq!(would(&cached), strategy == DropBehind, "{strategy}");
        });
    }
}

/// Out of place: what a reader or a snapshot still holds is not written over, as in a normal write.
/// (A raw image shares no extents; the map that moves stands for a file system that does.)
#[test]
fn u13_shared_places_are_not_written_over() {
    for &strategy in ALL {
        let mut map = None;
        let lab =
            Lab::with_map(Config::with_budget(8 << 20), 4096, Lab::sim(4 << 20), 1 << 20, |disk| {
                let remap = Remap::new(disk, 4096);
                map = Some(remap.clone());
                remap
            });
        let map = map.expect("made above");
        lab.cache.strategies.set_uncached(strategy);
        lab.run(async {
            lab.write(0, &[1; 16384], NONE).await;
            lab.sync().await.unwrap();
            let extent = map.map(4096..8192, Lookup::Read).await.unwrap();
            let place = extent.device_offset.expect("written");
            for round in 2..6u8 {
                lab.write(4000, &[round; 5000], UNCACHED).await;
                lab.sync().await.unwrap();
                assert_eq!(lab.disk.peek(place, 4096), [1; 4096], "{strategy}");
                assert_eq!(lab.read(4000, 5000, UNCACHED).await, vec![round; 5000]);
                assert_eq!(lab.read(0, 4000, UNCACHED).await, [1; 4000]);
            }
            drop(extent);
        });
    }
}

#[test]
fn u14_write_failure_is_reported_by_next_sync() {
    for &strategy in ALL {
        let lab = lab(strategy, 4096);
        lab.run(async {
            lab.disk.inject(FaultRule::on(BioOp::Write, Fault::Fail(ErrorKind::Io)));
            lab.write(4096, &[6; 4096], UNCACHED).await;
            lab.sleep_ms(300).await;
            assert!(lab.sync().await.is_err(), "{strategy}: the error was lost");
            lab.sync().await.unwrap();
            assert!(lab.disk.peek_durable(4096, 4096) == [6; 4096], "{strategy}");
            assert!(lab.read(4096, 4096, UNCACHED).await == [6; 4096], "{strategy}");
        });
    }
}

/// Another task holds all frames: reads, which need none, continue. Writes wait and then continue,
/// and none fails.
#[test]
fn u15_without_frames_reads_go_on_and_writes_wait() {
    for &strategy in ALL {
        let lab = lab(strategy, 4096);
        lab.run(async {
            let free = lab.cache.stats().frames_free as usize;
            let held = std::cell::Cell::new(Some(lab.cache.take_frames(free).unwrap()));
            let start = lab.world.now();
            let reading = async {
                assert_eq!(lab.read(1 << 20, 300_000, UNCACHED).await, old(1 << 20, 300_000));
                lab.world.now() - start
            };
            let writing = async {
                lab.write(8192, &[6; 65536], UNCACHED).await;
                lab.world.now() - start
            };
            let release = async {
                lab.sleep_ms(10).await;
                drop(held.take());
                lab.cache.wake_frame_waiters();
            };
            let ((read, wrote), ()) = both(both(reading, writing), release).await;
            assert!(read < 10_000_000, "{strategy}: {read} ns: a read needs no frames");
            assert!(wrote >= 10_000_000, "{strategy}: {wrote} ns: a write needs frames");
            lab.sync().await.unwrap();
            assert_eq!(lab.disk.peek_durable(8192, 65536), [6; 65536], "{strategy}");
        });
    }
}

/// Requests longer than the cache, with dirty and pinned blocks in the way; the dirty limit is
/// checked throughout.
#[test]
fn u15_pressure_is_fallen_back_from() {
    for &strategy in ALL {
        let config = Config {
            dirty_bytes: Some(128 << 10),
            dirty_background_bytes: Some(64 << 10),
            ..Config::with_budget(1 << 20)
        };
        let lab = Lab::new(config, 4096, Lab::sim(4 << 20));
        lab.cache.strategies.set_uncached(strategy);
        lab.run(async {
            let over = std::cell::Cell::new(false);
            // Not by the way of requests that need no waiting, which look at the limits once.
            let write = async |at, bytes: &[u8], flags| {
                let source = Source::Slice(bytes);
                lab.file.write(&lab.handle, at, source, flags).await.unwrap();
            };
            let busy = async {
                write(0, &[1; 400_000], NONE).await;
                for round in 2..6u8 {
                    assert_eq!(lab.read(1 << 20, 2 << 20, UNCACHED).await, old(1 << 20, 2 << 20));
                    let (new, read) = (vec![round; 1_500_000], lab.read(0, 400_000, UNCACHED));
                    let (_, got) = both(write(2_000_000, &new, UNCACHED), read).await;
                    assert_eq!(got, [1; 400_000]);
                    assert_eq!(lab.read(2_000_000, 1_500_000, UNCACHED).await, new, "{strategy}");
                    write(2_000_000, &old(2_000_000, 1_500_000), UNCACHED).await;
                }
                over.set(true);
            };
            let watching = async {
                let mut most = 0;
                while !over.get() {
                    let stats = lab.cache.stats();
                    most = most.max(stats.dirty_bytes + stats.writeback_bytes);
                    lab.world.sleep(std::time::Duration::from_micros(5)).await;
                }
                most
            };
            let ((), most) = both(busy, watching).await;
            // The limit, and one folio that passed before it was reached.
            assert!(most <= (128 << 10) + 65536, "{strategy}: {most} bytes dirty");
            assert!(most > 64 << 10, "{strategy}: {most}: nothing tested");
            lab.sync().await.unwrap();
            assert_eq!(lab.disk.peek_durable(0, 400_000), [1; 400_000]);
        });
    }
}

/// A scan of ten times the cache, concurrent with a hot set of half of it, counted: no hot block is
/// evicted, and all hot reads hit. Where the scan is cached (`noaccess`) ageing protects the hot
/// set, and a hundredth may miss.
#[test]
fn u16_uncached_scan_evicts_no_hot_block() {
    for &strategy in ALL {
        let lab = Lab::new(Config::with_budget(2 << 20), 4096, Lab::sim(20 << 20));
        lab.cache.strategies.set_uncached(strategy);
        lab.run(async {
            let hot = 0..(1u64 << 20);
            for _ in 0..3 {
                for at in hot.clone().step_by(4096) {
                    lab.read(at, 4096, NONE).await;
                }
            }
            // Old enough that the hot set's place is in the main queue, were there any pressure.
            let (before, evicted) = (lab.blocks(State::Uptodate), lab.cache.stats().evicted_blocks);
            let (mut hits, mut misses) = (0u64, 0u64);
            for at in ((1u64 << 20)..(20 << 20)).step_by(65536) {
                lab.read(at, 65536, UNCACHED).await;
                for _ in 0..64 {
                    let hit = ((hits + misses) * 4096 * 7) % hot.end;
                    match lab.try_read(hit, 4096, IoFlags::NOWAIT).await {
                        Ok(_) => hits += 1,
                        Err(_) => {
                            misses += 1;
                            lab.read(hit, 4096, NONE).await;
                        }
                    }
                }
            }
            let allowed = if strategy == NoAccess { hits / 100 } else { 0 };
            assert!(misses <= allowed, "{strategy}: {misses} misses, {hits} hits");
            lab.sleep_ms(50).await;
            let there = lab.blocks(State::Uptodate);
            let hot_there = |set: &BTreeSet<u64>| set.range(..256).count();
            if strategy != NoAccess {
                assert_eq!(hot_there(&there), hot_there(&before), "{strategy}");
                let more = lab.cache.stats().evicted_blocks - evicted;
                assert_eq!(more, 0, "{strategy}: nothing had to be reclaimed");
            }
        });
    }
}

/// In spirit: what a flush has yet to make durable is not dropped, so that a flush that fails can
/// be made good. (Upstream: drop only after the server's commit.)
#[test]
fn u17_unflushed_blocks_are_not_dropped() {
    for &strategy in ALL {
        let lab = lab(strategy, 4096);
        lab.run(async {
            lab.write(8192, &[5; 8192], NONE | IoFlags::START_WRITEBACK).await;
            lab.sleep_ms(20).await;
            assert_eq!(lab.disk.peek(8192, 8192), [5; 8192]);
            assert_eq!(lab.blocks(State::Unflushed), BTreeSet::from([2, 3]));
            // Uncached readers and a scan pass by.
            lab.read(8192, 8192, UNCACHED).await;
            lab.read(4096, 65536, UNCACHED).await;
            lab.cache.drop_clean();
            assert_eq!(lab.blocks(State::Unflushed), BTreeSet::from([2, 3]), "{strategy}");
            lab.disk.inject(FaultRule::on(BioOp::Flush, Fault::Fail(ErrorKind::Io)));
            assert!(lab.sync().await.is_err());
            lab.sync().await.unwrap();
            assert_eq!(lab.disk.peek_durable(8192, 8192), [5; 8192], "{strategy}");
        });
    }
}

#[test]
fn x3_partly_written_missing_block_is_read_written_dropped() {
    for strategy in PASSING {
        let lab = lab(strategy, 4096);
        lab.run(async {
            lab.write(20_000, &[9; 100], NONE).await;
            let dirty = lab.blocks(State::Dirty);
            // The same folio: another block, missing, in part.
            lab.write(40_000, &[8; 100], UNCACHED).await;
            lab.sleep_ms(300).await;
            let mut want = old(36_864, 4096);
            want[40_000 - 36_864..][..100].fill(8);
            assert_eq!(lab.disk.peek(36_864, 4096), want, "{strategy}");
            assert!(!lab.blocks(State::Uptodate).contains(&9), "{strategy}: it goes");
            let still: BTreeSet<_> = lab.blocks(State::Uptodate);
            assert!(dirty.is_subset(&still), "{strategy}: its dirty neighbour stays");
        });
    }
}
