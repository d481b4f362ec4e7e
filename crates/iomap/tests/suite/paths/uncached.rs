//! Uncached reads and writes: cached data is served and stays as it is, the rest passes through.

use super::harness::{Lab, NONE, at_once};
use forebay_base::{ErrorKind, IoFlags};
use forebay_block::BioOp;
use forebay_cache::strategy::UncachedStrategy;
use forebay_cache::{Config, State};
use forebay_sim::{Fault, FaultRule};
use std::collections::BTreeSet;

const UNCACHED: IoFlags = IoFlags::UNCACHED;
const FALLBACK: IoFlags = IoFlags::DIRECT.union(IoFlags::FALLBACK);

fn old(at: u64, len: usize) -> Vec<u8> {
    (at..at + len as u64).map(Lab::old).collect()
}

/// Offsets and lengths of every kind: aligned, within a block, across blocks and folios.
const PLACES: [(u64, usize); 8] = [
    (1 << 20, 4096),
    ((1 << 20) + 8192, 65536),
    ((1 << 20) + 100, 50),
    ((1 << 20) + 4000, 200),
    ((1 << 20) + 65000, 2000),
    ((1 << 20) + 65536, 1),
    ((2 << 20) - 512, 1024),
    ((4 << 20) - 5000, 5000),
];

#[test]
fn u1_u2_reads_leave_the_cache_as_it_was() {
    for block_size in [512, 4096] {
        for flags in [UNCACHED, FALLBACK] {
            let lab = Lab::plain(block_size);
            lab.run(async {
                // A hot block here and there, some of it touched twice.
                for at in [1u64 << 20, (1 << 20) + 69632, 2 << 20, 3 << 20] {
                    lab.read(at, 3000, NONE).await;
                }
                lab.sleep_ms(50).await;
                let before = lab.residency();
                for (at, len) in PLACES {
                    assert_eq!(lab.read(at, len, flags).await, old(at, len));
                    lab.sleep_ms(5).await;
                    assert_eq!(lab.residency(), before, "{flags:?} {at}+{len}");
                }
            });
        }
    }
}

/// A request that is longer than the device takes at once is cut in pieces.
#[test]
fn u2_long_requests_are_cut() {
    for flags in [UNCACHED, IoFlags::DIRECT] {
        let lab = Lab::plain(4096);
        lab.run(async {
            assert_eq!(lab.read(0, 3 << 20, flags).await, old(0, 3 << 20));
            let data = vec![5; (2 << 20) + 4096];
            lab.write(4096, &data, flags).await;
            lab.sync().await.unwrap();
            assert!(lab.disk.peek_durable(4096, data.len()) == data);
            assert_eq!(lab.blocks(State::Uptodate), BTreeSet::new());
        });
    }
}

#[test]
fn u1_u2_writes_leave_the_cache_as_it_was() {
    for block_size in [512, 4096] {
        for flags in [UNCACHED, FALLBACK] {
            let lab = Lab::plain(block_size);
            lab.run(async {
                for at in [1u64 << 20, (1 << 20) + 69632, 2 << 20, 3 << 20] {
                    lab.read(at, 3000, NONE).await;
                }
                lab.sleep_ms(50).await;
                let before = lab.residency();
                for (i, (at, len)) in PLACES.into_iter().enumerate() {
                    if flags == FALLBACK && at % 512 == 0 && len % 512 == 0 {
                        // That one is direct, and direct writes drop what they pass by.
                        continue;
                    }
                    let data = vec![100 + i as u8; len];
                    lab.write(at, &data, flags).await;
                    assert_eq!(lab.read(at, len, flags).await, data);
                    lab.sync().await.unwrap();
                    assert_eq!(lab.residency(), before, "{flags:?} {block_size} {at}+{len}");
                    assert_eq!(lab.disk.peek(at, len), data);
                }
            });
        }
    }
}

#[test]
fn u3_mixed_range_is_served_block_by_block() {
    let lab = Lab::plain(4096);
    lab.run(async {
        let at = 1 << 20;
        // Blocks 1, 3 and 9 are cached and newer than the disk.
        for block in [1u64, 3, 9] {
            lab.write(at + block * 4096, &[block as u8; 4096], NONE).await;
        }
        let before = lab.residency();
        lab.disk.clear_log();
        let got = lab.read(at + 100, 65536, UNCACHED).await;
        let mut want = old(at, 65536 + 4096);
        for block in [1usize, 3, 9] {
            want[block * 4096..][..4096].fill(block as u8);
        }
        assert_eq!(got, want[100..65636]);
        assert_eq!(lab.residency(), before);
        // What was cached was not read.
        for (start, len) in lab.reads() {
            for block in [1u64, 3, 9] {
                let cached = at + block * 4096;
                assert!(start >= cached + 4096 || start + len <= cached, "{start}+{len}");
            }
        }
    });
}

#[test]
fn u4_blocks_touched_by_ordinary_access_become_ordinary() {
    let lab = Lab::plain(4096);
    lab.run(async {
        lab.write(8192, &[7; 8192], UNCACHED).await;
        assert_eq!(lab.blocks(State::Uncached), BTreeSet::from([2, 3]));
        lab.read(8192, 10, NONE).await;
        lab.write(12288 + 5, &[8; 10], NONE).await;
        assert!(lab.blocks(State::Uncached).is_empty());
        lab.sync().await.unwrap();
        let there = lab.blocks(State::Uptodate);
        assert!(there.contains(&2) && there.contains(&3), "{there:?}");
    });
}

#[test]
fn u5_blocks_dirty_or_in_write_out_are_never_dropped() {
    let lab = Lab::plain(4096);
    lab.run(async {
        for round in 1..40u8 {
            // A second write during the write-out of the first, with concurrent readers and
            // reclaim.
            lab.write(8192, &[round; 4096], UNCACHED | IoFlags::START_WRITEBACK).await;
            lab.sleep_ms(u64::from(round % 2)).await;
            lab.write(8192, &[round + 100; 4096], UNCACHED).await;
            lab.cache.drop_clean();
            assert_eq!(lab.read(8192, 4096, UNCACHED).await, [round + 100; 4096]);
            lab.cache.drop_clean();
            assert_eq!(lab.read(8192, 4096, FALLBACK).await, [round + 100; 4096]);
        }
        lab.sync().await.unwrap();
        assert_eq!(lab.disk.peek(8192, 4096), [139; 4096]);
        assert!(lab.blocks(State::Uptodate).is_empty());
    });
}

#[test]
fn u9_write_out_starts_within_the_window_without_a_sync() {
    for (at, len) in [(0u64, 65536usize), (4096, 4096), (100, 50), (4000, 9000)] {
        for block_size in [512, 4096] {
            let lab = Lab::plain(block_size);
            lab.run(async {
                // The call itself does not wait for a write.
                if at % 4096 == 0 {
                    let done = at_once(lab.try_write(at, &vec![9; len], UNCACHED));
                    assert!(matches!(done, Some(Ok(n)) if n == len));
                } else {
                    lab.write(at, &vec![9; len], UNCACHED).await;
                }
                assert_eq!(lab.writes().0, 0);
                lab.sleep_ms(300).await;
                assert_eq!(lab.disk.peek(at, len), vec![9; len], "{at}+{len} {block_size}");
                assert!(lab.blocks(State::Uptodate).is_empty(), "{at}+{len} {block_size}");
            });
        }
    }
}

#[test]
fn u9_full_window_is_written_at_once() {
    let window = 256 << 10;
    let config = Config { uncached_window_bytes: window, ..Config::with_budget(8 << 20) };
    let lab = Lab::new(config, 4096, Lab::sim(4 << 20));
    lab.run(async {
        for i in 0..(window as u64 / 16384) {
            lab.write(i * 16384, &[3; 16384], UNCACHED).await;
        }
        // Far less than the time limit.
        lab.sleep_ms(5).await;
        assert!(lab.writes().0 >= u64::from(window) / 4, "{:?}", lab.writes());
    });
}

#[test]
fn u12_nowait_leaves_nothing_half_made() {
    let lab = Lab::plain(4096);
    lab.run(async {
        let flags = UNCACHED | IoFlags::NOWAIT;
        lab.read(0, 4096, NONE).await;
        lab.sleep_ms(20).await;
        let before = lab.residency();
        let error = lab.try_read(1 << 20, 4096, flags).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::WouldBlock);
        let error = lab.try_write((1 << 20) + 5, &[1; 100], flags).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::WouldBlock);
        assert_eq!(lab.residency(), before);
        assert!(lab.blocks(State::Reading).is_empty() && lab.blocks(State::Dirty).is_empty());
        // What needs no waiting is done: cached, and just written by an uncached writer.
        assert_eq!(lab.try_read(10, 100, flags).await.unwrap(), old(10, 100));
        lab.write(2 << 20, &[5; 4096], flags).await;
        assert_eq!(lab.try_read(2 << 20, 4096, flags).await.unwrap(), [5; 4096]);
        assert_eq!(lab.try_read(2 << 20, 4096, IoFlags::NOWAIT).await.unwrap(), [5; 4096]);
    });
}

#[test]
fn u14_write_error_is_reported_after_uncached_write() {
    let lab = Lab::plain(4096);
    lab.run(async {
        lab.disk.inject(FaultRule::on(BioOp::Write, Fault::Fail(ErrorKind::Io)));
        lab.write(4096, &[6; 4096], UNCACHED).await;
        lab.sleep_ms(300).await;
        assert!(lab.sync().await.is_err(), "the error was lost");
        lab.sync().await.unwrap();
        assert_eq!(lab.disk.peek_durable(4096, 4096), [6; 4096]);
        assert!(lab.blocks(State::Uptodate).is_empty());
    });
}

#[test]
fn u2_readahead_goes_when_the_stream_moves_or_closes() {
    for moves in [true, false] {
        let lab = Lab::plain(4096);
        lab.run(async {
            for i in 0..8u64 {
                assert_eq!(lab.read(i * 16384, 16384, UNCACHED).await, old(i * 16384, 16384));
            }
            lab.sleep_ms(20).await;
            assert!(!lab.blocks(State::Uptodate).is_empty(), "a stream is read ahead");
            if moves {
                for i in 1..12u64 {
                    lab.read((1 << 20) + i * 200_704, 4096, UNCACHED).await;
                }
            } else {
                lab.file.close_handle(&lab.handle);
            }
            lab.sleep_ms(20).await;
            assert_eq!(lab.blocks(State::Uptodate), BTreeSet::new(), "moves: {moves}");
        });
    }
}

#[test]
fn u2_stream_read_to_end_leaves_nothing() {
    let lab = Lab::plain(4096);
    lab.run(async {
        for (at, len) in (0..4u64 << 20).step_by(24576).map(|at| (at, 24576)) {
            let want = old(at, len.min((4 << 20) - at as usize));
            assert_eq!(lab.read(at, len, UNCACHED).await, want);
        }
        lab.sleep_ms(20).await;
        assert_eq!(lab.blocks(State::Uptodate), BTreeSet::new());
    });
}

#[test]
fn x3_only_clean_idle_blocks_of_a_folio_go() {
    let lab = Lab::plain(512);
    lab.run(async {
        // In one frame: an uncached block, a normal dirty one, a normal clean one.
        lab.read(1024, 512, NONE).await;
        lab.sleep_ms(20).await;
        lab.file.close_handle(&lab.handle);
        lab.cache.drop_range(&lab.file.mapping, 2048..u64::MAX >> 1);
        lab.write(0, &[1; 512], UNCACHED | IoFlags::START_WRITEBACK).await;
        lab.write(512, &[2; 512], NONE).await;
        lab.sleep_ms(20).await;
        let there = lab.blocks(State::Uptodate);
        assert!(!there.contains(&0) && there.contains(&1) && there.contains(&2), "{there:?}");
        assert_eq!(lab.blocks(State::Dirty), BTreeSet::from([1]));
        assert_eq!(lab.read(0, 1024, NONE).await, [[1; 512], [2; 512]].concat());
    });
}

/// The story: each request took private memory in addition to the budget, however many there were.
/// Reads that are not aligned need it.
#[test]
fn v1_unaligned_reads_share_their_part_of_budget() {
    let config = forebay_cache::Config::with_budget(4 << 20);
    let lab = Lab::new(config, 4096, Lab::sim(4 << 20));
    let limit = lab.cache.private_limit();
    lab.run(async {
        let mut all: Vec<std::pin::Pin<Box<dyn Future<Output = ()> + '_>>> = Vec::new();
        for i in 0..24u64 {
            let lab = &lab;
            all.push(Box::pin(async move {
                let (at, len) = (i * 150_000 + 77, 120_000);
                assert_eq!(lab.read(at, len, UNCACHED).await, old(at, len));
            }));
        }
        std::future::poll_fn(|cx| {
            all.retain_mut(|one| one.as_mut().poll(cx).is_pending());
            if all.is_empty() { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
        })
        .await;
    });
    let stats = lab.cache.stats();
    assert!(stats.private_bytes == 0 && stats.private_bytes_max > limit / 4, "{stats:?}");
    assert!(stats.private_bytes_max <= limit, "{} of {limit}", stats.private_bytes_max);
}

/// The bytes of uncached writes were counted only where a write had to wait for something: those
/// that went through at once, most of them, did not show in `stat`.
#[test]
fn uncached_writes_are_counted_on_every_path() {
    for &strategy in UncachedStrategy::ALL {
        let lab = Lab::plain(4096);
        lab.cache.strategies.set_uncached(strategy);
        lab.run(async {
            lab.write(0, &[1; 8192], NONE).await;
            let counted = || lab.cache.stats().uncached_write_bytes;
            assert_eq!(counted(), 0, "{strategy}: an ordinary write");
            let mut want = 0;
            // At once, after a read of both edges, and over what is cached.
            for (at, len) in [(1 << 20, 8192), (65_000, 5000), (100, 200)] {
                lab.write(at, &vec![2; len], UNCACHED).await;
                want += len as u64;
                assert_eq!(counted(), want, "{strategy} {at}+{len}");
            }
            lab.sync().await.unwrap();
            if let Ok(len) = lab.try_write(2 << 20, &[3; 4096], UNCACHED | IoFlags::NOWAIT).await {
                assert_eq!(counted(), want + len as u64, "{strategy}");
            }
        });
    }
}
