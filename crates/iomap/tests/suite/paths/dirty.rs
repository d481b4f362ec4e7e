//! Dirty tracking: exactly the blocks that were touched are written, and nothing dirty is lost.

use super::harness::{Lab, NONE, at_once};
use forebay_base::{ErrorKind, IoFlags};
use forebay_block::BioOp;
use forebay_cache::strategy::DirtyTracking;
use forebay_cache::{Config, State};
use forebay_iomap::{Lookup, MapOps};
use forebay_sim::{Fault, FaultRule};
use forebay_testkit::remap::Remap;
use std::collections::BTreeSet;

#[test]
fn d2_empty_write_changes_nothing() {
    for (block_size, tracking) in
        [(512, DirtyTracking::Block), (4096, DirtyTracking::Block), (512, DirtyTracking::Folio)]
    {
        let config = Config { dirty_tracking: tracking, ..Config::with_budget(8 << 20) };
        let lab = Lab::new(config, block_size, Lab::sim(4 << 20));
        lab.run(async {
            lab.read(0, 65536, NONE).await;
            lab.sleep_ms(20).await;
            let before = lab.blocks(State::Uptodate);
            for at in [0, 1, 511, 512, 4095, 4096, 65535, 65536, (4 << 20) - 1, 4 << 20] {
                for flags in [NONE, IoFlags::UNCACHED, IoFlags::DSYNC, IoFlags::DIRECT] {
                    lab.write(at, &[], flags).await;
                }
                lab.zero(at, 0, false).await.unwrap();
            }
            assert!(lab.blocks(State::Dirty).is_empty());
            lab.sync().await.unwrap();
            assert_eq!((lab.writes().0, lab.cache.stats().dirtied_bytes), (0, 0));
            assert_eq!(lab.blocks(State::Uptodate), before);
        });
    }
}

#[test]
fn d4_zeroing_drops_dirty_state_of_whole_blocks_only() {
    let lab = Lab::plain(4096);
    lab.run(async {
        lab.write(0, &[7; 5 * 4096], NONE).await;
        // From the middle of block 0 to the middle of block 4.
        lab.zero(100, 4 * 4096, false).await.unwrap();
        assert_eq!(lab.blocks(State::Dirty), [0, 4].into());
        lab.disk.clear_log();
        lab.sync().await.unwrap();
        assert_eq!(lab.writes().0, 2 * 4096);
        let mut want = vec![7; 5 * 4096];
        want[100..100 + 4 * 4096].fill(0);
        assert_eq!(lab.disk.peek_durable(0, want.len()), want);
        // Less than a block: it is not cleared, it is written.
        lab.zero(5, 7, false).await.unwrap();
        assert_eq!(lab.blocks(State::Dirty), [0].into());
    });
}

#[test]
fn d6_every_way_to_dirty_a_block_counts() {
    let lab = Lab::plain(4096);
    lab.run(async {
        lab.write(0, &[1; 4096], NONE).await;
        lab.write(4096, &[1; 4096], IoFlags::UNCACHED).await;
        lab.zero(8192 + 5, 10, false).await.unwrap();
        assert_eq!(lab.blocks(State::Dirty), [0, 1, 2].into());
        lab.disk.inject(FaultRule::on(BioOp::Write, Fault::Fail(ErrorKind::Io)));
        assert!(lab.sync().await.is_err());
        assert_eq!(lab.blocks(State::Dirty), [0, 1, 2].into(), "after a failed write-out");
        assert_eq!(lab.cache.stats().dirty_bytes, 3 * 4096);
    });
}

#[test]
fn d8_write_during_write_out_stays_dirty_and_wins() {
    for block_size in [512, 4096] {
        let lab = Lab::plain(block_size);
        lab.run(async {
            for round in 1..100u8 {
                lab.write(0, &[round; 4096], IoFlags::START_WRITEBACK).await;
                lab.write(100, &[round + 100; 50], NONE).await;
                assert!(lab.blocks(State::Dirty).contains(&0));
                lab.sync().await.unwrap();
                let mut want = vec![round; 4096];
                want[100..150].fill(round + 100);
                assert_eq!(lab.disk.peek_durable(0, 4096), want);
            }
        });
        assert_eq!(lab.disk.overlapping_writes(), 0);
    }
}

#[test]
fn d9_only_partly_written_blocks_are_read() {
    let lab = Lab::plain(4096);
    lab.run(async {
        // Whole blocks: no read.
        lab.write(1 << 20, &[1; 3 * 4096], NONE).await;
        assert!(lab.reads().is_empty());
        // The first and the last block are partly written: these two are read.
        let at = (2 << 20) + 100;
        lab.write(at, &[2; 3 * 4096], NONE).await;
        assert_eq!(lab.reads(), [(2 << 20, 4096), ((2 << 20) + 3 * 4096, 4096)]);
        // A read of the folio reads what is not there.
        lab.disk.clear_log();
        lab.read(2 << 20, 65536, NONE).await;
        let read: u64 = lab.reads().iter().filter(|r| r.0 < (2 << 20) + 65536).map(|r| r.1).sum();
        assert_eq!(read, 12 * 4096);
    });
}

#[test]
fn d14_bytes_behind_end_are_zero_in_cache_and_device() {
    let size = 3 * 65536 + 1000;
    let config = Config::with_budget(8 << 20);
    let lab = Lab::with_map(config, 4096, Lab::sim(1 << 20), size, |d| Remap::new(d, 4096));
    lab.run(async {
        for at in [size - 10, size - 900, size - 1000] {
            let tail = vec![9; (size - at) as usize];
            lab.write(at, &tail, NONE).await;
            assert_eq!(lab.read(at, 5000, NONE).await, tail);
            lab.sync().await.unwrap();
            let (place, _) = last_write(&lab);
            let stored = lab.disk.peek_durable(place, 4096);
            let end = (size % 4096) as usize;
            assert_eq!(stored[end - tail.len()..end], tail);
            assert!(stored[end..1024].iter().all(|b| *b == 0), "behind the end, same sector");
            lab.cache.drop_clean();
            assert_eq!(lab.read(at, 5000, NONE).await, tail);
        }
    });
}

/// A last block that is written from its start up to the end of file is not read first, so what
/// lies behind comes out of a frame that was another file's: zeros in the device's last block and
/// in memory.
#[test]
fn d14_last_block_written_unread_shows_no_old_frame() {
    for block_size in [1024, 4096] {
        for tail in [1u64, 511, 513, 1000] {
            let size = 3 * 65536 + tail;
            let (config, sim) = (Config::with_budget(2 << 20), Lab::sim(1 << 20));
            let lab =
                Lab::with_map(config, block_size, sim, size, |disk| Remap::new(disk, block_size));
            lab.run(async {
                lab.foul_frames().await;
                lab.disk.clear_log();
                lab.write(size - tail, &vec![9; tail as usize], NONE).await;
                assert!(lab.reads().is_empty(), "read first: the test tests nothing");
                lab.sync().await.unwrap();
                let (place, len) = last_write(&lab);
                let stored = lab.disk.peek_durable(place, len as usize);
                let (data, behind) = stored.split_at(tail as usize);
                assert!(
                    data.iter().all(|b| *b == 9) && behind.len() < block_size as usize,
                    "{len}"
                );
                assert!(behind.iter().all(|b| *b == 0), "{block_size} {tail}: {behind:?}");
            });
        }
    }
}

/// Another program left bytes behind the end, in the device's last block: a fill does not take them
/// for the file's, so the next write-out does not keep them.
#[test]
fn d14_device_bytes_behind_end_are_not_read_in() {
    let size = 3 * 65536 + 1000;
    let config = Config::with_budget(8 << 20);
    let lab = Lab::with_map(config, 4096, Lab::sim(1 << 20), size, |d| Remap::new(d, 4096));
    lab.run(async {
        lab.write(size - 1000, &[9; 1000], NONE).await;
        lab.sync().await.unwrap();
        let (place, _) = last_write(&lab);
        let mut last = lab.disk.peek(place + 512, 512);
        last[1000 - 512..].fill(0xee);
        lab.disk.poke(place + 512, &last);
        lab.cache.drop_clean();
        lab.disk.clear_log();
        lab.write(size - 10, &[8; 10], NONE).await;
        assert!(!lab.reads().is_empty(), "not read first: the test tests nothing");
        lab.sync().await.unwrap();
        let (place, _) = last_write(&lab);
        let want = [vec![9; 990], vec![8; 10], vec![0; 24]].concat();
        assert_eq!(lab.disk.peek_durable(place, 1024), want);
    });
}

fn last_write(lab: &Lab) -> (u64, u64) {
    let log = lab.disk.log();
    let write = log.iter().rev().find(|e| e.op == BioOp::Write).expect("something was written");
    (write.offset, write.len)
}

#[test]
fn d12_blocks_that_failed_stay_dirty_the_others_are_clean() {
    let lab = Lab::plain(4096);
    lab.run(async {
        for block in [0u64, 2, 4, 6] {
            lab.write(block * 4096, &[block as u8 + 1; 4096], NONE).await;
        }
        let rule = FaultRule::on(BioOp::Write, Fault::Fail(ErrorKind::Io));
        lab.disk.inject(rule.within(4 * 4096..5 * 4096).sticky());
        let other = lab.file.open_handle();
        assert!(lab.sync().await.is_err());
        assert_eq!(lab.blocks(State::Dirty), [4].into());
        assert!(lab.file.sync(&other).await.is_err(), "each opener is told");
        lab.disk.heal();
        lab.disk.clear_log();
        // Of the second failed try the first opener was not told yet.
        assert!(lab.sync().await.is_err());
        lab.sync().await.unwrap();
        assert_eq!(lab.writes().0, 4096, "what worked is not written again");
        assert_eq!(lab.disk.peek_durable(4 * 4096, 4096), [5; 4096]);
    });
}

/// The write-out of three blocks fails in one of them: each current opener gets the error once,
/// later openers do not. The block is written again, with bytes written to it since.
#[test]
fn d12_error_reaches_each_opener_once_and_folio_is_dirty_again() {
    for expire in [1, 500] {
        let config = Config { dirty_expire_centisecs: expire, ..Config::with_budget(8 << 20) };
        let lab = Lab::new(config, 4096, Lab::sim(4 << 20));
        lab.run(async {
            let other = lab.file.open_handle();
            for block in [0u64, 2, 4] {
                lab.write(block * 4096, &[block as u8 + 1; 4096], NONE).await;
            }
            let rule = FaultRule::on(BioOp::Write, Fault::Fail(ErrorKind::Io));
            lab.disk.inject(rule.within(2 * 4096..3 * 4096));
            assert_eq!(lab.sync().await.unwrap_err().kind(), ErrorKind::Io);
            lab.sync().await.expect("told once, and written by now");
            assert_eq!(lab.disk.peek_durable(2 * 4096, 4096), [3; 4096]);
            let later = lab.file.open_handle();
            lab.file.sync(&later).await.expect("it was not there when it happened");
            assert_eq!(lab.file.sync(&other).await.unwrap_err().kind(), ErrorKind::Io);
            lab.file.sync(&other).await.expect("told once");
            lab.disk.clear_log();
            lab.write(2 * 4096 + 5, &[9; 10], NONE).await;
            assert_eq!(lab.blocks(State::Dirty), [2].into());
            lab.sync().await.unwrap();
            assert_eq!(lab.writes().0, 4096);
            assert_eq!(lab.disk.peek_durable(2 * 4096 + 5, 10), [9; 10]);
        });
    }
}

#[test]
fn d16_neighbours_are_one_write_others_are_not() {
    let lab = Lab::plain(4096);
    lab.run(async {
        for (blocks, writes) in [(vec![0u64, 1, 2], 1), (vec![0, 2, 4], 3), (vec![15, 16, 40], 2)] {
            lab.disk.clear_log();
            for block in &blocks {
                lab.write(block * 4096, &[1; 4096], NONE).await;
            }
            lab.sync().await.unwrap();
            assert_eq!(lab.writes(), (4096 * blocks.len() as u64, writes), "{blocks:?}");
        }
    });
}

/// Neighbours in the file whose places on the device are no neighbours are no single write, and
/// each goes to its own place.
#[test]
fn d16_neighbours_at_places_apart_are_written_apart() {
    let mut map = None;
    let lab =
        Lab::with_map(Config::with_budget(8 << 20), 4096, Lab::sim(1 << 20), 1 << 19, |disk| {
            let remap = Remap::new(disk, 4096);
            map = Some(remap.clone());
            remap
        });
    let map = map.expect("made above");
    lab.run(async {
        // All places are taken, then every other one is given back.
        lab.write(0, &[1; 1 << 19], NONE).await;
        lab.sync().await.unwrap();
        for block in (0..128u64).step_by(2) {
            lab.write(block * 4096, &[2; 4096], NONE).await;
        }
        lab.sync().await.unwrap();
        lab.cache.drop_clean();
        lab.disk.clear_log();
        for round in 3..20u8 {
            let at = u64::from(round) % 5 * 4096 * 3;
            let blocks: Vec<u8> = (0..24).flat_map(|i| [round * 8 + i % 8; 4096]).collect();
            lab.write(at, &blocks, NONE).await;
            lab.sync().await.unwrap();
            let mut apart = 1;
            let mut last = None;
            for block in 0..24u64 {
                let range = at + block * 4096..at + block * 4096 + 4096;
                let extent = map.map(range, Lookup::Read).await.unwrap();
                let place = extent.device_offset.expect("written");
                let want = [round * 8 + block as u8 % 8; 4096];
                assert_eq!(lab.disk.peek_durable(place, 4096), want, "round {round} block {block}");
                apart += usize::from(last.is_some_and(|l| l + 4096 != place));
                last = Some(place);
            }
            assert_eq!(lab.writes(), (24 * 4096, apart), "round {round}");
            assert!(apart > 1, "all in one place: the test tests nothing");
            lab.disk.clear_log();
        }
    });
}

#[test]
fn d17_dirty_bytes_count_blocks_in_large_folios() {
    let config = Config {
        folio_size: 2 << 20,
        dirty_bytes: Some(128 << 10),
        dirty_background_bytes: Some(128 << 10),
        ..Config::with_budget(24 << 20)
    };
    let lab = Lab::new(config, 4096, Lab::sim(16 << 20));
    lab.run(async {
        // One block in each of eight large folios is far below the limit: no writer waits.
        for i in 0..8u64 {
            let done = at_once(lab.try_write(i << 21, &[1; 4096], NONE));
            assert!(matches!(done, Some(Ok(4096))), "{i}");
        }
        assert_eq!(lab.cache.stats().dirty_bytes, 8 * 4096);
        assert_eq!(lab.blocks(State::Dirty), (0..8).map(|i| i * 512).collect::<BTreeSet<_>>());
    });
}
