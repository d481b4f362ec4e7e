//! Stable writes: bytes in flight do not change where the device needs it, and nobody pays where it
//! does not.

use crate::lab::{Lab, NONE, at_once, both};
use forebay_base::world::{World, split_mix};
use forebay_base::{ErrorKind, IoFlags};
use forebay_block::BioOp;
use forebay_cache::strategy::StableStrategy;
use forebay_cache::{Config, State};
use forebay_sim::{Fault, FaultRule, SimConfig};

const START: IoFlags = IoFlags::START_WRITEBACK;

fn lab(budget: u64, block_size: u32, stable: StableStrategy, needed: bool) -> Lab {
    let sim = SimConfig { stable_writes: needed, latency: (500_000, 900_000), ..Lab::sim(4 << 20) };
    Lab::new(Config { stable, ..Config::with_budget(budget) }, block_size, sim)
}

const BOTH: [StableStrategy; 2] = [StableStrategy::Wait, StableStrategy::Cow];

#[test]
fn s1_nobody_waits_or_copies_where_the_device_does_not_need_it() {
    for strategy in BOTH {
        let lab = lab(8 << 20, 4096, strategy, false);
        lab.run(async {
            lab.write(0, &[1; 65536], START).await;
            assert_eq!(lab.blocks(State::Writing).len(), 16);
            for block in 0..16u64 {
                let done = at_once(lab.try_write(block * 4096 + 5, &[2; 100], NONE));
                assert!(matches!(done, Some(Ok(100))), "{strategy:?} {block}");
            }
            let stats = lab.cache.stats();
            assert_eq!((stats.stable_waits, stats.stable_copies), (0, 0));
        });
    }
}

#[test]
fn s2_bytes_in_flight_do_not_change() {
    for (strategy, block_size) in BOTH.into_iter().flat_map(|s| [512, 4096].map(|b| (s, b))) {
        let lab = lab(8 << 20, block_size, strategy, true);
        let mut rng = 5;
        lab.run(async {
            let mut model = vec![0; 65536];
            lab.write(0, &model, NONE).await;
            for round in 0..600u64 {
                let at = split_mix(&mut rng) % 65000;
                let len = 1 + split_mix(&mut rng) % (65536 - at).min(9000);
                let flags = if round % 3 == 0 { START } else { NONE };
                let data = vec![round as u8; len as usize];
                lab.write(at, &data, flags).await;
                model[at as usize..(at + len) as usize].copy_from_slice(&data);
                if round % 50 == 0 {
                    lab.zero(at, len, false).await.unwrap();
                    model[at as usize..(at + len) as usize].fill(0);
                }
                assert_eq!(lab.read(0, 65536, NONE).await, model);
            }
            lab.sync().await.unwrap();
            assert_eq!(lab.disk.peek_durable(0, 65536), model);
        });
        assert_eq!(lab.disk.unstable_writes(), 0, "{strategy:?} {block_size}");
        let stats = lab.cache.stats();
        let (waits, copies) = (stats.stable_waits, stats.stable_copies);
        match strategy {
            StableStrategy::Wait => assert!(waits > 10 && copies == 0, "{waits} {copies}"),
            _ => assert!(waits == 0 && copies > 10, "{waits} {copies}"),
        }
    }
}

#[test]
fn s3_every_way_to_change_a_block_waits_before_it_changes() {
    for entry in 0..4 {
        let lab = lab(8 << 20, 4096, StableStrategy::Wait, true);
        lab.run(async {
            lab.write(0, &[1; 4096], START).await;
            let start = lab.world.now();
            match entry {
                0 => lab.write(0, &[2; 4096], NONE).await,
                1 => lab.write(5, &[2; 10], IoFlags::UNCACHED).await,
                2 => lab.zero(5, 10, false).await.unwrap(),
                _ => lab.write(0, &[2; 4096], IoFlags::DIRECT).await,
            }
            assert!(lab.world.now() - start > 100_000, "entry {entry} did not wait");
            lab.sync().await.unwrap();
        });
        assert_eq!(lab.disk.unstable_writes(), 0, "entry {entry}");
    }
}

#[test]
fn s8_without_frames_the_writer_waits_and_all_goes_on() {
    let lab = lab(1 << 20, 4096, StableStrategy::Cow, true);
    lab.cache.dirty.limit.store(1 << 20, std::sync::atomic::Ordering::Relaxed);
    lab.cache.dirty.background.store(1 << 20, std::sync::atomic::Ordering::Relaxed);
    let frames = lab.cache.stats().frames_total;
    lab.run(async {
        for round in 1..6u8 {
            // All frames dirty, then in flight, then hit by two writers.
            for i in 0..frames - 8 {
                lab.write(i * 4096, &[round; 4096], NONE).await;
            }
            let first = [round; 4096];
            let pass = lab.write(0, &first, START);
            let again = async {
                for i in 0..frames - 8 {
                    lab.write(i * 4096 + 7, &[round + 50; 5], START).await;
                }
            };
            both(pass, again).await;
        }
        lab.sync().await.unwrap();
        let want = [vec![5; 7], vec![55; 5], vec![5; 4084]].concat();
        for i in 1..frames - 8 {
            assert_eq!(lab.disk.peek_durable(i * 4096, 4096), want, "block {i}");
        }
    });
    assert_eq!(lab.disk.unstable_writes(), 0);
    lab.cache.drop_clean();
    assert_eq!(lab.cache.stats().frames_free, frames, "every frame came back");
}

#[test]
fn s10_a_retry_is_stable_too() {
    for strategy in BOTH {
        let lab = lab(8 << 20, 4096, strategy, true);
        lab.run(async {
            let rule = FaultRule::on(BioOp::Write, Fault::Fail(ErrorKind::Io));
            lab.disk.inject(rule.times(1000).one_in(2));
            for round in 1..60u8 {
                lab.write(0, &[round; 8192], START).await;
                lab.write(4096, &[round + 100; 10], NONE).await;
            }
            lab.disk.heal();
            while lab.sync().await.is_err() {}
            assert_eq!(lab.disk.peek_durable(0, 4096), [59; 4096]);
            assert_eq!(lab.disk.peek_durable(4096, 10), [159; 10]);
        });
        assert_eq!(lab.disk.unstable_writes(), 0, "{strategy:?}");
    }
}

#[test]
fn s11_dirt_made_in_flight_is_counted_once() {
    for strategy in BOTH {
        let lab = lab(8 << 20, 4096, strategy, true);
        lab.run(async {
            lab.write(0, &[1; 4096], START).await;
            assert_eq!(lab.cache.stats().dirty_bytes, 0);
            assert_eq!(lab.cache.stats().writeback_bytes, 4096);
            lab.write(0, &[2; 4096], NONE).await;
            lab.write(9, &[3; 10], NONE).await;
            assert_eq!(lab.cache.stats().dirty_bytes, 4096);
            lab.sync().await.unwrap();
            let stats = lab.cache.stats();
            assert_eq!((stats.dirty_bytes, stats.writeback_bytes), (0, 0));
            assert_eq!(lab.disk.peek_durable(9, 10), [3; 10]);
        });
    }
}

#[test]
fn x2_other_blocks_of_the_page_go_on() {
    for strategy in BOTH {
        let lab = lab(8 << 20, 512, strategy, true);
        lab.run(async {
            lab.write(1024, &[1; 512], START).await;
            for at in [0u64, 512, 1536, 4096] {
                let done = at_once(lab.try_write(at, &[2; 512], NONE));
                assert!(matches!(done, Some(Ok(512))), "{strategy:?} {at}");
            }
            let stats = lab.cache.stats();
            assert_eq!((stats.stable_waits, stats.stable_copies), (0, 0), "{strategy:?}");
            lab.sync().await.unwrap();
        });
        assert_eq!(lab.disk.unstable_writes(), 0);
    }
}
