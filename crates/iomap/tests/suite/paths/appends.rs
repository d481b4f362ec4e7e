//! Writes that make the file longer: readers see their bytes when they are there, and a failed one
//! leaves the size as it was.

use super::gates::{Gated, Refuses};
use super::harness::{Lab, NONE, both};
use crate::eof::device::EndDevice;
use forebay_base::buf::AlignedBuf;
use forebay_base::sim_world::SimWorld;
use forebay_base::{ErrorKind, IoFlags};
use forebay_block::{BioOp, BlockDevice};
use forebay_cache::Config;
use forebay_cache::strategy::UncachedStrategy;
use forebay_iomap::Source;
use forebay_iomap::identity::Identity;
use forebay_sim::{Fault, FaultRule};
use forebay_testkit::remap::{Remap, RemapOptions};
use std::future::Future;
use std::pin::pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::task::Poll;

const BLOCK: usize = 4096;
/// Ends within a block.
const OLD: usize = BLOCK + 904;

/// A file of [`OLD`] bytes, none of them cached, on a map with gates before it.
fn lab_of(len: usize, strategy: UncachedStrategy) -> (Lab, Arc<Gated>) {
    let keep = OnceLock::new();
    let config = Config { folio_size: 65536, ..Config::with_budget(8 << 20) };
    let lab = Lab::with_map(config, BLOCK as u32, Lab::sim(1 << 20), 0, |disk| {
        let options = RemapOptions { grows: true, ..RemapOptions::default() };
        keep.get_or_init(|| Gated::new(Remap::with_options(disk, BLOCK as u32, options))).clone()
    });
    lab.cache.strategies.set_uncached(strategy);
    lab.run(async {
        lab.write(0, &vec![7; len], NONE).await;
        lab.sync().await.unwrap();
    });
    lab.cache.drop_clean();
    (lab, keep.into_inner().expect("set above"))
}

/// Every way in which a file becomes longer: flags, strategy, length before, and where the bytes
/// go.
fn ways() -> Vec<(IoFlags, UncachedStrategy, usize, usize)> {
    let mut ways = Vec::new();
    for &strategy in UncachedStrategy::ALL {
        for gap in [0, 3000] {
            ways.push((IoFlags::UNCACHED, strategy, OLD, gap));
        }
        ways.push((IoFlags::UNCACHED | IoFlags::APPEND, strategy, OLD, 0));
    }
    let ours = UncachedStrategy::Ours;
    for flags in [IoFlags::APPEND, NONE, IoFlags::DSYNC, IoFlags::START_WRITEBACK] {
        ways.push((flags, ours, OLD, 0));
    }
    for flags in
        [IoFlags::DIRECT, IoFlags::DIRECT | IoFlags::APPEND, IoFlags::DIRECT | IoFlags::DSYNC]
    {
        ways.push((flags, ours, 2 * BLOCK, 0));
    }
    ways.push((NONE, ours, OLD, 3 * BLOCK));
    ways
}

async fn write_behind(lab: &Lab, at: usize, flags: IoFlags) -> forebay_base::Result<usize> {
    let mut buf = AlignedBuf::copy_of(&vec![9; 3 * BLOCK]);
    lab.file.write(&lab.handle, at as u64, Source::Owned(&mut buf), flags).await
}

/// The size moved before the bytes: a reader saw zeros where an append was on its way.
#[test]
fn reader_during_an_append_sees_only_bytes_that_were_written() {
    let mut waited = 0;
    for (flags, strategy, old, gap) in ways() {
        let (lab, _) = lab_of(old, strategy);
        let way = format!("{flags:?}, {strategy:?}, gap of {gap}");
        let mut want = vec![7; old];
        want.resize(old + gap, 0);
        want.resize(old + gap + 3 * BLOCK, 9);
        let mut saw_old = 0;
        lab.run(async {
            let mut write = pin!(write_behind(&lab, old + gap, flags));
            std::future::poll_fn(|cx| {
                let done = write.as_mut().poll(cx);
                let size = lab.file.size() as usize;
                saw_old += usize::from(size == old && done.is_pending());
                assert!(size == old || size == want.len(), "a size of {size}, {way}");
                let mut read = pin!(lab.try_read(old as u64, want.len(), NONE));
                let now = read
                    .as_mut()
                    .poll(&mut std::task::Context::from_waker(std::task::Waker::noop()));
                if let Poll::Ready(bytes) = now {
                    assert!(
                        bytes.unwrap() == want[old..size],
                        "bytes that were not written, {way}"
                    );
                }
                done
            })
            .await
            .unwrap();
            assert_eq!(lab.read(0, 1 << 20, NONE).await, want, "{way}");
        });
        waited += usize::from(saw_old > 0);
    }
    assert!(waited >= 10, "most of them wait before their bytes are there: {waited}");
}

/// An append that failed, for want of space or because the block of the end could not be read, or
/// that was dropped, left zeros behind for good.
#[test]
fn failed_append_keeps_size_and_next_starts_at_old_end() {
    // Of the appends that fail, and of those dropped after so many polls: how many were judged.
    let mut judged = [0; 3];
    for (flags, strategy, old, gap) in ways() {
        for polls in [None, Some(1), Some(2)] {
            let judged = &mut judged[polls.unwrap_or(0) as usize];
            let (lab, map) = lab_of(old, strategy);
            let way = format!("{flags:?}, {strategy:?}, gap of {gap}, dropped after {polls:?}");
            lab.run(async {
                if polls.is_none() && flags.contains(IoFlags::DIRECT) {
                    map.reserve.fail(Some(ErrorKind::NotFound));
                } else if polls.is_none() {
                    lab.disk
                        .inject(FaultRule::on(BioOp::Read, Fault::Fail(ErrorKind::Io)).sticky());
                }
                let failed = drop_after(polls, write_behind(&lab, old + gap, flags)).await;
                if let Some(done) = failed {
                    assert!(polls.is_some() == done.is_ok() || gap > 0, "{done:?}, {way}");
                    if done.is_ok() {
                        return;
                    }
                }
                // Once the bytes are there they stay, also if they are not durable yet.
                let later = flags.intersects(IoFlags::DSYNC | IoFlags::START_WRITEBACK);
                if later && lab.file.size() as usize == old + gap + 3 * BLOCK {
                    return;
                }
                assert_eq!(lab.file.size() as usize, old, "{way}");
                map.reserve.fail(None);
                lab.disk.heal();
                lab.sleep_ms(50).await;
                lab.sync().await.unwrap();
                assert_eq!(lab.file.end() as usize, old, "nothing is left behind the end, {way}");
                lab.write(old as u64, &[5; 100], NONE).await;
                lab.file.set_len(old as u64 + 3 * BLOCK as u64).await.unwrap();
                lab.sync().await.unwrap();
                lab.cache.drop_clean();
                let mut want = vec![7; old];
                want.resize(old + 100, 5);
                want.resize(old + 3 * BLOCK, 0);
                assert!(lab.read(0, 1 << 20, NONE).await == want, "{way}");
                *judged += 1;
            });
        }
    }
    println!("judged: {judged:?}");
    assert!(judged.iter().zip(JUDGED).all(|(of, least)| *of >= least), "{judged:?}");
}

/// How many ways have to be judged: of the appends that fail, and of those that are dropped after
/// one poll and after two. None of them waits for a third one.
const JUDGED: [u32; 3] = [16, 16, 3];

/// Polls a future as often as it is woken, up to a number; none: to its end.
async fn drop_after<T>(polls: Option<u32>, future: impl Future<Output = T>) -> Option<T> {
    let (mut future, mut polled) = (pin!(future), 0);
    std::future::poll_fn(|cx| {
        polled += 1;
        match future.as_mut().poll(cx) {
            Poll::Ready(value) => Poll::Ready(Some(value)),
            Poll::Pending if Some(polled) == polls => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

/// Several append at once, by all flags, and some of them are dropped: what the others wrote lies
/// side by side.
#[test]
fn concurrent_appends_partly_dropped_leave_no_gap() {
    for seed in 0..8 {
        let (lab, _) = lab_of(0, UncachedStrategy::Ours);
        let flags = [NONE, IoFlags::UNCACHED, IoFlags::DIRECT | IoFlags::FALLBACK, IoFlags::DSYNC];
        lab.run(async {
            let lab = &lab;
            let one = |who: usize| async move {
                let mut done = 0;
                for round in 0..6 {
                    // The block of the end has to be read.
                    lab.sync().await.unwrap();
                    lab.cache.drop_clean();
                    let len = 700 + 900 * ((who + round + seed) % 5);
                    let mut buf = AlignedBuf::copy_of(&vec![1 + who as u8; len]);
                    let flags = flags[(who + round) % 4] | IoFlags::APPEND;
                    let polls = (who + round + seed)
                        .is_multiple_of(3)
                        .then_some(1 + (round + seed) as u32 % 3);
                    let write = lab.file.write(&lab.handle, 0, Source::Owned(&mut buf), flags);
                    if drop_after(polls, write).await.is_some_and(|done| done.is_ok()) {
                        done += len;
                    }
                }
                done
            };
            let ((a, b), (c, d)) = both(both(one(0), one(1)), both(one(2), one(3))).await;
            lab.sleep_ms(50).await;
            lab.sync().await.unwrap();
            lab.cache.drop_clean();
            let bytes = lab.read(0, 1 << 20, NONE).await;
            let zeros = bytes.iter().filter(|&&byte| byte == 0).count();
            assert_eq!(zeros, 0, "bytes that no append wrote, seed {seed}");
            for (who, len) in [a, b, c, d].into_iter().enumerate() {
                let there = bytes.iter().filter(|&&byte| byte == 1 + who as u8).count();
                assert!(there >= len, "appender {who} wrote {len}, seed {seed}: {there}");
            }
        });
    }
}

/// A raw image of two blocks, on a device that refuses what it is told to.
fn raw_lab() -> (Lab, Arc<Refuses>) {
    let old = 2 * BLOCK as u64;
    let world = SimWorld::new(7);
    let device = Refuses::new(EndDevice::new(world.clone(), 512, false, old));
    let map = device.clone();
    let config = Config { folio_size: 65536, ..Config::with_budget(8 << 20) };
    let sim = Lab::sim(1 << 20);
    let lab =
        Lab::in_world(world, config, BLOCK as u32, sim, old, |_, _| Arc::new(Identity::new(map)));
    (lab, device)
}

/// The story: an append to a raw image failed, and so did cutting off the bytes that it had made
/// the image longer by. A later sync tried that again and only logged the failure, so the caller
/// was told that all is well, and the image stayed longer.
#[test]
fn failed_append_not_truncated_fails_syncs_until_it_is() {
    let (lab, device) = raw_lab();
    let old = 2 * BLOCK as u64;
    lab.run(async {
        let (later, mut failed) = (lab.file.open_handle(), 0);
        device.writes.store(true, Ordering::SeqCst);
        device.truncates.store(true, Ordering::SeqCst);
        let append = write_behind(&lab, old as usize, IoFlags::DIRECT | IoFlags::APPEND).await;
        assert_eq!(append.unwrap_err().kind(), ErrorKind::Io);
        device.writes.store(false, Ordering::SeqCst);
        assert_eq!((lab.file.size(), device.size()), (old, old + 3 * BLOCK as u64));
        for _ in 0..2 {
            assert!(lab.sync().await.is_err(), "the image is longer than the file");
            failed += 1;
        }
        // Another write has the right to move the size, so this sync cannot cut.
        let growing = lab.file.mapping.bounds.resize().await;
        assert!(lab.sync().await.is_err(), "the image is longer while another write grows it");
        drop(growing);
        // The last opener closes the file, and is told nothing: the next one is.
        assert!(lab.file.sync_deferring_errors().await.is_err());
        assert!(lab.file.mapping.unreported().is_some(), "an error is left to tell");
        device.truncates.store(false, Ordering::SeqCst);
        lab.file.sync(&later).await.expect_err("an opener of then hears of it once");
        assert_eq!(device.size(), old, "cut off by the sync");
        lab.file.sync(&later).await.unwrap();
        assert_eq!((failed, lab.file.end()), (2, old));
    });
}

/// A truncate to less takes the bytes away that no earlier cut took: the image is as long as the
/// file.
#[test]
fn failed_append_truncated_fails_no_later_sync() {
    let (lab, device) = raw_lab();
    let (old, less) = (2 * BLOCK as u64, BLOCK as u64);
    lab.run(async {
        device.writes.store(true, Ordering::SeqCst);
        device.truncates.store(true, Ordering::SeqCst);
        let append = write_behind(&lab, old as usize, IoFlags::DIRECT | IoFlags::APPEND).await;
        assert_eq!(append.unwrap_err().kind(), ErrorKind::Io);
        device.writes.store(false, Ordering::SeqCst);
        lab.sync().await.expect_err("the image is longer than the file");
        device.truncates.store(false, Ordering::SeqCst);
        lab.file.set_len(less).await.unwrap();
        assert_eq!((lab.file.size(), device.size()), (less, less));
        let handle = lab.file.open_handle();
        lab.file.sync(&handle).await.expect("nothing is behind the end of the image");
    });
}

/// Cutting off is tried again by the next sync: if that works nothing is wrong.
#[test]
fn dropped_append_to_raw_image_is_truncated_by_next_sync() {
    let (lab, device) = raw_lab();
    let old = 2 * BLOCK as u64;
    lab.run(async {
        let write = write_behind(&lab, old as usize, IoFlags::DIRECT | IoFlags::APPEND);
        assert!(drop_after(Some(1), write).await.is_none(), "dropped on its way");
        assert_eq!((lab.file.size(), device.size()), (old, old + 3 * BLOCK as u64));
        lab.sync().await.unwrap();
        assert_eq!((lab.file.end(), device.size()), (old, old));
    });
}
