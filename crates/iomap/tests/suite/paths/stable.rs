//! Stable writes: bytes in flight do not change where the device needs it, and writers do not pay
//! where it does not.

use super::harness::{Lab, NONE, at_once, both};
use forebay_base::buf::AlignedBuf;
use forebay_base::world::{World, split_mix};
use forebay_base::{ErrorKind, IoFlags};
use forebay_block::{Bio, BioOp, BlockDevice, DeviceRef, Limits};
use forebay_cache::strategy::{StablePages, StableStrategy};
use forebay_cache::{Config, State};
use forebay_iomap::identity::Identity;
use forebay_iomap::{MappedFile, Source};
use forebay_sim::{Fault, FaultRule, SimConfig, SimDisk};
use forebay_testkit::remap::{Remap, RemapOptions};
use std::sync::{Arc, Mutex};

const START: IoFlags = IoFlags::START_WRITEBACK;

fn lab(budget: u64, block_size: u32, stable: StableStrategy, needed: bool) -> Lab {
    let sim = SimConfig { stable_writes: needed, latency: (500_000, 900_000), ..Lab::sim(4 << 20) };
    Lab::new(Config { stable, ..Config::with_budget(budget) }, block_size, sim)
}

const ALL: [StableStrategy; 4] =
    [StableStrategy::Auto, StableStrategy::Wait, StableStrategy::Snapshot, StableStrategy::Cow];
/// Those that never make a writer wait while frames are plentiful.
const FREE: [StableStrategy; 3] =
    [StableStrategy::Auto, StableStrategy::Snapshot, StableStrategy::Cow];

#[test]
fn s1_no_wait_or_copy_without_device_need() {
    for strategy in ALL {
        let lab = lab(8 << 20, 4096, strategy, false);
        lab.run(async {
            lab.write(0, &[1; 65536], START).await;
            assert_eq!(lab.blocks(State::Writing).len(), 16);
            for block in 0..16u64 {
                let done = at_once(lab.try_write(block * 4096 + 5, &[2; 100], NONE));
                assert!(matches!(done, Some(Ok(100))), "{strategy:?} {block}");
            }
            assert_eq!(paid(&lab), [0; 4], "{strategy:?}");
        });
    }
}

/// Waits, copies, snapshots, copied bytes.
fn paid(lab: &Lab) -> [u64; 4] {
    let s = lab.cache.stats();
    [s.stable_waits, s.stable_copies, s.stable_snapshots, s.stable_copied_bytes]
}

#[test]
fn s1_writer_without_frames_waits_for_frames_only() {
    // Half of the folio is in flight, the other half is not cached: frames are what is missing.
    let lab = lab(8 << 20, 4096, StableStrategy::Wait, false);
    lab.run(async {
        lab.write(0, &[1; 32768], START).await;
        let start = lab.world.now();
        lab.write(0, &[2; 65536], NONE).await;
        assert!(lab.world.now() - start < 100_000, "it waited for the device");
        assert_eq!(paid(&lab), [0; 4]);
    });
}

#[test]
fn s2_bytes_in_flight_do_not_change() {
    for (strategy, block_size) in ALL.into_iter().flat_map(|s| [512, 4096].map(|b| (s, b))) {
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
            StableStrategy::Wait => {
                assert!(waits > 10 && copies == 0, "{waits} {copies}");
                assert!(stats.stable_wait_nanos > waits * 1000, "{}", stats.stable_wait_nanos);
            }
            StableStrategy::Snapshot => {
                assert_eq!((waits, copies), (0, 0));
                assert!(stats.stable_snapshots * u64::from(block_size) == stats.written_bytes);
                assert_eq!(stats.stable_copied_bytes, stats.written_bytes);
            }
            _ => {
                assert!(waits == 0 && copies > 10, "{waits} {copies}");
                assert!(stats.stable_hits <= copies && stats.stable_copied_bytes > 0);
                // Overwritten blocks are not copied, so fewer bytes are copied than frames were
                // allocated.
                assert!(stats.stable_copied_bytes < copies * u64::from(block_size));
            }
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

/// A truncate changes the tail of the last block, and gives the frames of those behind it away:
/// both wait for what is in flight.
#[test]
fn s3_truncate_waits_before_changing_blocks_in_flight() {
    for (strategy, to) in ALL.into_iter().flat_map(|s| [0, 100, 4096].map(|to| (s, to))) {
        let sim =
            SimConfig { stable_writes: true, latency: (500_000, 900_000), ..Lab::sim(4 << 20) };
        let config = Config { stable: strategy, ..Config::with_budget(8 << 20) };
        let lab = Lab::with_map(config, 4096, sim, 8192, |disk| {
            Remap::with_options(disk, 4096, RemapOptions { grows: true, ..RemapOptions::default() })
        });
        lab.run(async {
            lab.write(0, &[1; 8192], START).await;
            let start = lab.world.now();
            lab.file.set_len(to).await.unwrap();
            let waited = lab.world.now() - start;
            assert!(waited > 100_000, "{strategy:?} {to}: it did not wait");
            lab.file.set_len(8192).await.unwrap();
            lab.write(5000, &[2; 100], NONE).await;
            lab.sync().await.unwrap();
            lab.cache.drop_clean();
            let mut want = vec![0; 8192];
            want[..to as usize].fill(1);
            want[5000..5100].fill(2);
            assert_eq!(lab.read(0, 8192, NONE).await, want, "{strategy:?} {to}");
        });
        assert_eq!(lab.disk.unstable_writes(), 0, "{strategy:?} {to}");
    }
}

/// The kernel write-protects mapped pages before their checksum is taken. There are no mapped pages
/// here. The equivalent is a writer that found a block idle before its write-out began. It is
/// excluded, because blocks are taken for write-out under the lock under which writers change them.
#[test]
fn s4_writer_before_write_out_is_excluded_by_it() {
    for strategy in ALL {
        let lab = lab(8 << 20, 4096, strategy, true);
        lab.run(async {
            lab.write(0, &[1; 8192], NONE).await;
            // The writer is at its first block, which has to be read, when the second goes out.
            let slow = lab.write(65536 - 100, &[2; 200], NONE);
            let out = async {
                lab.write(65536, &[3; 4096], START).await;
            };
            both(slow, out).await;
            lab.sync().await.unwrap();
            assert_eq!(lab.disk.peek_durable(65536 - 100, 100), [2; 100]);
        });
        assert_eq!(lab.disk.unstable_writes(), 0, "{strategy:?}");
    }
}

#[test]
fn s5_changed_stable_need_reaches_open_file() {
    let lab = lab(8 << 20, 4096, StableStrategy::Wait, true);
    let hit = async |value: u8| {
        lab.sync().await.unwrap();
        lab.write(0, &[value; 4096], START).await;
        lab.write(0, &[value + 1; 4096], NONE).await;
        lab.cache.stats().stable_waits
    };
    lab.run(async {
        assert!(lab.file.stable_need().required);
        assert_eq!(hit(1).await, 1);
        lab.file.set_stable_pages(StablePages::Off).unwrap();
        assert_eq!(lab.file.stable_need().reason, "switched off");
        assert_eq!(hit(3).await, 1, "no writer waits");
        lab.file.set_stable_pages(StablePages::On).unwrap();
        assert_eq!(hit(5).await, 2);
        lab.file.set_stable_pages(StablePages::Auto).unwrap();
        assert_eq!(hit(7).await, 3);
        // The strategy too changes while blocks are in flight.
        lab.sync().await.unwrap();
        lab.write(0, &[9; 4096], START).await;
        lab.cache.strategies.set_stable(StableStrategy::Cow);
        lab.write(0, &[10; 4096], NONE).await;
        assert_eq!(lab.cache.stats().stable_waits, 3);
        assert_eq!(lab.cache.stats().stable_copies, 1);
        lab.sync().await.unwrap();
    });
    // With the need forced off the disk, which asks for it, got changed bytes.
    assert_eq!(lab.disk.unstable_writes(), 1);
}

#[test]
fn s6_files_of_one_cache_pay_for_themselves_only() {
    for strategy in ALL {
        let lab = lab(8 << 20, 4096, strategy, true);
        let idle = SimConfig { latency: (500_000, 900_000), ..Lab::sim(1 << 20) };
        let other = SimDisk::new(lab.world.clone(), idle);
        let ops = Arc::new(Identity::new(Arc::new(other)));
        let plain = MappedFile::new(&lab.cache, ops, 4096, 1 << 20, false).unwrap();
        let handle = plain.open_handle();
        lab.run(async {
            for value in [1, 2] {
                let flags = if value == 1 { START } else { NONE };
                let bytes = Source::Slice(&[value; 4096]);
                plain.write(&handle, 0, bytes, flags).await.unwrap();
            }
            assert_eq!(paid(&lab), [0; 4], "the file that needs nothing paid: {strategy:?}");
            lab.write(0, &[1; 4096], START).await;
            lab.write(9, &[2; 10], NONE).await;
            assert_ne!(paid(&lab), [0; 4], "{strategy:?}");
            plain.sync(&handle).await.unwrap();
            lab.sync().await.unwrap();
        });
        assert_eq!(lab.disk.unstable_writes(), 0);
    }
}

/// A mirror whose second leg is written when the first is done, out of the same memory: what a
/// resend after an error does as well.
struct Mirror {
    lower: DeviceRef,
    legs: Arc<Mutex<[Vec<u8>; 2]>>,
}

impl BlockDevice for Mirror {
    fn name(&self) -> String {
        "mirror".into()
    }
    fn limits(&self) -> Limits {
        self.lower.limits()
    }
    fn size(&self) -> u64 {
        self.lower.size()
    }
    fn submit(&self, mut bio: Bio) {
        if bio.op == BioOp::Write {
            let (at, len, legs) = (bio.offset as usize, bio.len as usize, self.legs.clone());
            bio.data.copy_out(0, &mut legs.lock().unwrap()[0][at..at + len]);
            bio.replace_end(|end| {
                Box::new(move |mut done| {
                    done.data.copy_out(0, &mut legs.lock().unwrap()[1][at..at + len]);
                    end(done);
                })
            });
        }
        self.lower.submit(bio);
    }
}

/// Writers race with write-outs to a mirror; whether the legs are the same at the end.
fn legs_agree(strategy: StableStrategy, stable: StablePages) -> bool {
    let legs = Arc::new(Mutex::new([vec![0; 1 << 20], vec![0; 1 << 20]]));
    let sim = SimConfig { latency: (500_000, 900_000), ..Lab::sim(1 << 20) };
    let config = Config { stable: strategy, ..Config::with_budget(8 << 20) };
    let theirs = legs.clone();
    let lab = Lab::with_map(config, 4096, sim, 1 << 20, |lower| {
        Arc::new(Identity::new(Arc::new(Mirror { lower, legs: theirs })))
    });
    lab.file.set_stable_pages(stable).unwrap();
    let mut rng = 11;
    lab.run(async {
        let mut same = true;
        for round in 0..100u64 {
            let at = split_mix(&mut rng) % 60_000;
            let flags = if round % 2 == 0 { START } else { NONE };
            lab.write(at, &[round as u8; 3000], flags).await;
            if round % 10 == 9 {
                // All is out, and nothing but write-outs that were hit can have parted the legs.
                lab.file.mapping.wait_write_outs().await;
                let legs = legs.lock().unwrap();
                same &= legs[0] == legs[1];
            }
        }
        lab.sync().await.unwrap();
        same
    })
}

#[test]
fn s7_mirror_legs_get_same_bytes() {
    for strategy in ALL {
        assert!(legs_agree(strategy, StablePages::On), "{strategy:?}");
    }
    assert!(!legs_agree(StableStrategy::Cow, StablePages::Off), "the test cannot fail");
}

#[test]
fn s8_snapshots_are_bounded_and_the_rest_is_waited_for() {
    let lab = lab(8 << 20, 4096, StableStrategy::Snapshot, true);
    let frames = lab.cache.stats().frames_total;
    // The writer must meet the blocks in flight: it is not to pause for the dirty limits.
    for limit in [&lab.cache.dirty.limit, &lab.cache.dirty.background] {
        limit.store(frames / 2 * 4096, std::sync::atomic::Ordering::Relaxed);
    }
    lab.run(async {
        let all = frames / 4 * 4096;
        lab.write(0, &vec![1; all as usize], NONE).await;
        let out = lab.sync();
        let hit = async {
            let held = frames - lab.cache.stats().frames_free - frames / 4;
            assert!(held <= frames / 16, "{held} of {frames} frames are copies");
            for at in (0..all).step_by(4096) {
                lab.write(at + 9, &[2; 10], NONE).await;
            }
        };
        both(out, hit).await.0.unwrap();
        lab.sync().await.unwrap();
        let stats = lab.cache.stats();
        assert!(stats.stable_snapshots > 0 && stats.stable_fallbacks > 0 && stats.stable_waits > 0);
    });
    assert_eq!(lab.disk.unstable_writes(), 0);
    lab.cache.drop_clean();
    assert_eq!(lab.cache.stats().frames_free, frames, "every copy came back");
}

#[test]
fn s8_auto_waits_where_frames_are_scarce() {
    for (spare, waits) in [(400, false), (2, true)] {
        let lab = lab(8 << 20, 4096, StableStrategy::Auto, true);
        lab.run(async {
            lab.write(0, &[1; 4096], START).await;
            // Frames that reclaim cannot free.
            let free = lab.cache.stats().frames_free as usize;
            let held = lab.cache.take_frames(free - spare).unwrap();
            lab.write(5, &[2; 10], NONE).await;
            drop(held);
            let stats = lab.cache.stats();
            assert_eq!((stats.stable_waits > 0, stats.stable_copies == 0), (waits, waits));
            lab.sync().await.unwrap();
        });
        assert_eq!(lab.disk.unstable_writes(), 0);
    }
}

/// Private memory goes to the device as it is, whether stable writes are needed or not: no other
/// task can write it.
#[test]
fn s9_direct_write_from_private_memory_is_not_bounced() {
    for needed in [false, true] {
        let lab = lab(8 << 20, 4096, StableStrategy::Snapshot, needed);
        lab.run(async {
            let mut buf = AlignedBuf::copy_of(&[7; 8192]);
            let (memory, private) = (buf.as_ptr(), lab.cache.stats().private_bytes_max);
            let source = Source::Owned(&mut buf);
            lab.file.write(&lab.handle, 0, source, IoFlags::DIRECT).await.unwrap();
            assert_eq!(buf.as_ptr(), memory, "the very buffer went to the device and back");
            assert_eq!(lab.cache.stats().private_bytes_max, private);
            assert_eq!(paid(&lab), [0; 4]);
            assert_eq!(lab.disk.peek(0, 8192), [7; 8192]);
        });
        assert_eq!(lab.disk.unstable_writes(), 0);
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
fn s10_retried_write_is_stable() {
    for strategy in ALL {
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
fn s11_block_dirtied_in_flight_is_counted_once() {
    for strategy in ALL {
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
fn s11_block_dirtied_in_flight_is_written_again() {
    for strategy in FREE {
        let lab = lab(8 << 20, 512, strategy, true);
        lab.run(async {
            lab.write(0, &[1; 4096], START).await;
            lab.write(512, &[2; 512], NONE).await;
            assert_eq!(lab.blocks(State::Dirty).len(), 1, "{strategy:?}");
            lab.sync().await.unwrap();
            assert_eq!(lab.writes().0, 4096 + 512, "{strategy:?}: that block once more");
            assert_eq!(lab.disk.peek_durable(512, 512), [2; 512]);
            assert_eq!(lab.disk.peek_durable(1024, 512), [1; 512]);
        });
        assert_eq!(lab.disk.unstable_writes(), 0);
    }
}

#[test]
fn x5_uncached_block_is_stable_until_dropped_next_writer_waits() {
    for strategy in ALL {
        let lab = lab(8 << 20, 4096, strategy, true);
        lab.run(async {
            let uncached = IoFlags::UNCACHED | START;
            lab.write(0, &[1; 4096], uncached).await;
            assert_eq!(lab.blocks(State::Writing).len(), 1);
            // Used again while it is on its way out, by a cached and by an uncached writer.
            lab.write(5, &[2; 10], NONE).await;
            lab.write(20, &[3; 10], IoFlags::UNCACHED).await;
            lab.write(8192, &[4; 4096], uncached).await;
            lab.write(8192, &[5; 4096], uncached).await;
            lab.sync().await.unwrap();
            assert_eq!(
                lab.disk.peek_durable(0, 31),
                [vec![1; 5], vec![2; 10], vec![1; 5], vec![3; 10], vec![1; 1]].concat()
            );
            assert_eq!(lab.disk.peek_durable(8192, 4096), [5; 4096]);
            assert!(!lab.blocks(State::Uptodate).contains(&2), "dropped when it was written");
        });
        assert_eq!(lab.disk.unstable_writes(), 0, "{strategy:?}");
    }
}

#[test]
fn x2_only_hit_block_is_counted() {
    let lab = lab(8 << 20, 512, StableStrategy::Cow, true);
    lab.run(async {
        lab.write(0, &[9; 8192], NONE).await;
        lab.sync().await.unwrap();
        // Two frames in flight in part; the write hits blocks of the second only.
        lab.write(512, &[1; 512], START).await;
        lab.write(4096, &[1; 1024], START).await;
        lab.write(1024, &[2; 4096], NONE).await;
        let stats = lab.cache.stats();
        assert_eq!((stats.stable_hits, stats.stable_waits), (2, 0));
        assert_eq!(stats.stable_copies, 8, "the blocks of one frame");
        lab.sync().await.unwrap();
        assert_eq!(lab.disk.peek_durable(1024, 4096), [2; 4096]);
    });
    assert_eq!(lab.disk.unstable_writes(), 0);
}

#[test]
fn x2_other_blocks_of_the_page_go_on() {
    for strategy in ALL {
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
