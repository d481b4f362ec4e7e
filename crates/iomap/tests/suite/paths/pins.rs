//! Pinned reads: the bytes stay as they were, and nothing waits for a pin. Frames are poisoned when
//! they are given back, so that a pin of a free frame shows.

use super::harness::{Lab, NONE, at_once};
use forebay_base::world::World;
use forebay_base::{ErrorKind, IoFlags};
use forebay_cache::strategy::StableStrategy;
use forebay_cache::{Config, Pinned, State};
use forebay_iomap::PinRequest;
use forebay_sim::SimConfig;
use std::future::Future;

const START: IoFlags = IoFlags::START_WRITEBACK;

fn config(budget: u64) -> Config {
    Config { poison_frames: true, ..Config::with_budget(budget) }
}

fn lab(block_size: u32, stable: StableStrategy, needed: bool) -> Lab {
    let sim = SimConfig { stable_writes: needed, latency: (500_000, 900_000), ..Lab::sim(4 << 20) };
    Lab::new(Config { stable, ..config(8 << 20) }, block_size, sim)
}

fn plain(block_size: u32) -> Lab {
    lab(block_size, StableStrategy::Auto, false)
}

/// The file can change its size.
fn growing(block: u32) -> Lab {
    growing_to(config(8 << 20), block, 4 << 20)
}

/// The same, of any size: what was not written takes no place on the disk.
fn growing_to(config: Config, block: u32, size: u64) -> Lab {
    Lab::with_map(config, block, Lab::sim(4 << 20), size, |disk| {
        use forebay_testkit::remap::{Remap, RemapOptions};
        Remap::with_options(disk, block, RemapOptions { grows: true, sums: false, waits: None })
    })
}

impl Lab {
    async fn try_pin(
        &self,
        offset: u64,
        len: usize,
        flags: IoFlags,
        may_copy: bool,
    ) -> forebay_base::Result<Option<Pinned>> {
        let request = PinRequest { offset, len, flags, may_copy, blocking: false };
        match self.file.try_pin(&self.handle, &request) {
            Some(done) => done.map(Some),
            None => self.file.pin(&self.handle, request).await,
        }
    }

    async fn pin(&self, offset: u64, len: usize) -> Pinned {
        let pinned = self.try_pin(offset, len, NONE, false).await.unwrap();
        pinned.expect("pins are plenty")
    }
}

fn old(range: std::ops::Range<u64>) -> Vec<u8> {
    range.map(Lab::old).collect()
}

/// pin.P1 under each strategy, for blocks at rest and in write-out: the writer is done at its first
/// poll, and the pin shows the version that it was taken of.
#[test]
fn write_to_pinned_block_keeps_old_version_and_never_waits() {
    use StableStrategy::{Auto, Cow, Snapshot, Wait};
    for stable in [Auto, Wait, Snapshot, Cow] {
        for (needed, block, in_flight) in
            (0..8).map(|i| (i & 1 != 0, if i & 2 != 0 { 512 } else { 4096 }, i & 4 != 0))
        {
            let lab = lab(block, stable, needed);
            lab.run(async {
                let flags = if in_flight { START } else { NONE };
                lab.write(0, &[1; 16384], flags).await;
                assert_eq!(!lab.blocks(State::Writing).is_empty(), in_flight);
                let pinned = lab.pin(100, 10_000).await;
                assert!(pinned.to_vec() == [1; 10_000]);
                for value in 2..5u8 {
                    let done = at_once(lab.try_write(500, &[value; 9000], NONE));
                    let case = format!("{stable:?}, needed {needed}, {block}, {in_flight}");
                    assert!(matches!(done, Some(Ok(9000))), "{case}: waits for a pin");
                    assert!(pinned.to_vec() == [1; 10_000], "pin.P1: {case}");
                    assert!(lab.read(500, 9000, NONE).await == [value; 9000], "{case}");
                }
                assert_eq!(lab.cache.stats().pinned_orphans, 3);
                lab.sync().await.unwrap();
                assert_eq!(lab.disk.peek_durable(500, 9000), [4; 9000]);
                drop(pinned);
                assert_eq!(lab.disk.unstable_writes(), 0);
                assert_eq!(lab.cache.stats().pinned_frames, 0);
                lab.cache.check_books();
                lab.cache.drop_clean();
                assert_eq!(lab.cache.stats().frames_free, lab.cache.stats().frames_total);
            });
        }
    }
}

/// The end of file moves into a pinned block: its tail becomes zero in the cache, not in the pin.
#[test]
fn truncate_within_pinned_block_zeroes_tail_of_new_frame() {
    for (block, size) in [(512, 5000), (4096, 5000), (512, 4608), (4096, 4096)] {
        let lab = growing(block);
        lab.run(async {
            lab.write(0, &[7; 12288], NONE).await;
            let pinned = lab.pin(0, 12288).await;
            lab.file.set_len(size).await.unwrap();
            assert!(pinned.to_vec() == [7; 12288], "pin.P1: {block} {size}");
            lab.file.set_len(12288).await.unwrap();
            let mut model = [7; 12288];
            model[size as usize..].fill(0);
            assert!(lab.read(0, 12288, NONE).await == model, "E1: {block} {size}");
            assert!(pinned.to_vec() == [7; 12288], "pin.P1: {block} {size}");
            drop(pinned);
            lab.cache.check_books();
        });
    }
}

/// Punching and direct writes take pinned frames out of their folio; the end of the pin gives them
/// back, and not before (pin.P3).
#[test]
fn punch_and_direct_write_orphan_pinned_frames_until_unpin() {
    for direct in [false, true] {
        let lab = plain(4096);
        lab.run(async {
            let free = lab.cache.stats().frames_free;
            let pinned = lab.pin(0, 8192).await;
            match direct {
                true => lab.write(0, &[9; 8192], IoFlags::DIRECT).await,
                false => lab.zero(0, 8192, false).await.unwrap(),
            }
            lab.file.wait_fills().await;
            lab.cache.drop_clean();
            let stats = lab.cache.stats();
            assert_eq!((stats.pinned_frames, stats.pinned_orphans), (2, 2), "direct: {direct}");
            assert_eq!(stats.frames_free, free - 2, "pin.P3");
            assert!(pinned.to_vec() == old(0..8192), "pin.P1");
            lab.cache.check_books();
            drop(pinned);
            assert_eq!(lab.cache.stats().frames_free, free, "pin.P3");
            let now = if direct { 9 } else { 0 };
            assert_eq!(lab.read(0, 8192, NONE).await, [now; 8192]);
        });
    }
}

/// A block of a pinned frame is dropped, and read again: its new bytes go to another frame.
#[test]
fn fill_next_to_pinned_block_goes_to_new_frame() {
    let lab = plain(512);
    lab.run(async {
        let pinned = lab.pin(0, 4096).await;
        lab.write(1536, &[9; 512], IoFlags::DIRECT).await;
        assert!(!lab.blocks(State::Uptodate).contains(&3), "dropped by the direct write");
        assert_eq!(lab.read(1536, 512, NONE).await, [9; 512]);
        assert!(pinned.to_vec() == old(0..4096), "pin.P1: a fill went to a pinned frame");
        assert_eq!(lab.cache.stats().pin_detached_frames, 1);
        drop(pinned);
        lab.cache.check_books();
    });
}

/// A pinned frame has several holes. A fill counted a new frame for each, took one, and planned
/// nothing: the read went past the cache each time.
#[test]
fn fill_of_several_holes_in_pinned_frame_takes_one_frame() {
    let lab = plain(512);
    lab.run(async {
        let pinned = lab.pin(0, 4096).await;
        let mut model = old(0..4096);
        for block in [1, 3, 6] {
            lab.write(block * 512, &[9; 512], IoFlags::DIRECT).await;
            model[block as usize * 512..][..512].fill(9);
        }
        let free = lab.cache.stats().frames_free;
        assert_eq!(lab.read(0, 4096, NONE).await, model);
        assert!((0..8).all(|block| lab.blocks(State::Uptodate).contains(&block)), "not cached");
        let stats = lab.cache.stats();
        assert_eq!((stats.pin_detached_frames, free - stats.frames_free), (1, 1));
        assert!(pinned.to_vec() == old(0..4096), "pin.P1: a fill went to a pinned frame");
        drop(pinned);
        lab.cache.check_books();
    });
}

/// A neighbour of the wanted blocks is being read into their frame: the pin waits for that
/// (pin.P2).
#[test]
fn pin_waits_for_a_fill_of_the_same_frame() {
    let lab = plain(512);
    lab.run(async {
        lab.read(0, 512, NONE).await;
        lab.cache.drop_clean();
        lab.write(0, &[5; 512], NONE).await;
        let mut reading = std::pin::pin!(lab.read(1024, 512, NONE));
        let waker = std::task::Waker::noop();
        let mut cx = std::task::Context::from_waker(waker);
        assert!(reading.as_mut().poll(&mut cx).is_pending());
        assert!(!lab.blocks(State::Reading).is_empty());
        let mut pin = std::pin::pin!(lab.pin(0, 512));
        assert!(pin.as_mut().poll(&mut cx).is_pending(), "pin.P2");
        assert_eq!(pin.await.to_vec(), [5; 512]);
        assert_eq!(reading.await, old(1024..1536));
    });
}

/// A pin of more than an operation's window that begins within a frame held the frame on the edge
/// of the window twice and gave it up once: the frame stayed pinned for ever.
#[test]
fn cold_pin_from_within_a_frame_gives_all_frames_back() {
    let lab = plain(4096);
    lab.run(async {
        let window = lab.cache.frames_per_operation() * 4096;
        assert!(window < 700_000, "one window holds it");
        let pinned = lab.pin(100, 700_000).await;
        assert!(pinned.to_vec() == old(100..700_100));
        drop(pinned);
        assert_eq!(lab.cache.stats().pinned_frames, 0, "pin.P3");
        lab.sleep_ms(50).await;
        lab.cache.drop_clean();
        assert_eq!(lab.cache.stats().frames_free, lab.cache.stats().frames_total, "pin.P3");
    });
}

/// The file is cut within a part of a pin, and grows again before the next part: bytes from behind
/// the gap followed those from before it, so they stood at the wrong offsets.
#[test]
fn pin_across_truncate_and_regrowth_ends_at_the_cut() {
    let lab = growing(4096);
    lab.run(async {
        lab.write(0, &old(0..700_416), NONE).await;
        lab.sync().await.unwrap();
        lab.cache.drop_clean();
        let mut pin = std::pin::pin!(lab.pin(0, 700_000));
        let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
        assert!(pin.as_mut().poll(&mut cx).is_pending(), "the first part is being read");
        lab.file.set_len(8192).await.unwrap();
        let bytes = vec![9; 700_416];
        let mut write = std::pin::pin!(lab.write(8192, &bytes, IoFlags::DIRECT));
        while lab.file.end() < 700_000 {
            assert!(write.as_mut().poll(&mut cx).is_pending());
            lab.world.sleep(std::time::Duration::from_micros(1)).await;
        }
        assert_eq!(lab.file.size(), 8192, "the write is not seen yet");
        // The first part ends at 8192; the next one would wait for the write.
        let pinned = match pin.as_mut().poll(&mut cx) {
            std::task::Poll::Ready(pinned) => pinned,
            std::task::Poll::Pending => {
                write.await;
                pin.await
            }
        };
        let model = [old(0..8192), vec![9; 700_000 - 8192]].concat();
        assert_eq!(pinned.len(), 8192, "bytes at wrong offsets, or not of one file");
        assert!(pinned.to_vec() == model[..8192]);
    });
}

/// Reclaim passes pinned frames over: evicting them would free nothing.
#[test]
fn reclaim_leaves_pinned_blocks_cached() {
    let lab = Lab::new(config(1 << 20), 4096, Lab::sim(4 << 20));
    lab.run(async {
        let pinned = lab.pin(8192, 16384).await;
        for at in (65536..4 << 20).step_by(65536) {
            lab.read(at, 65536, NONE).await;
        }
        lab.cache.drop_clean();
        let there = lab.blocks(State::Uptodate);
        assert!((2..6).all(|block| there.contains(&block)), "evicted: {there:?}");
        assert_eq!(lab.cache.stats().pinned_orphans, 0);
        assert!(pinned.to_vec() == old(8192..24576), "pin.P1");
        drop(pinned);
        lab.cache.drop_clean();
        assert_eq!(lab.cache.stats().frames_free, lab.cache.stats().frames_total);
    });
}

/// pin.P5: pins and orphans hold an eighth of the frames at most. Beyond that a pin is a copy that
/// says so, or nothing.
#[test]
fn pin_beyond_the_limit_is_a_copy_or_refused() {
    let lab = Lab::new(config(1 << 20), 4096, Lab::sim(4 << 20));
    lab.run(async {
        let limit = lab.cache.stats().frames_total / 8;
        assert_eq!(lab.cache.pin_limit(), limit);
        let mut pins = Vec::new();
        for block in 0..limit {
            pins.push(lab.pin(block * 4096, 4096).await);
            // Also as orphans they count.
            lab.write(block * 4096, &[3; 4096], NONE).await;
        }
        assert_eq!(lab.cache.stats().pinned_orphans, limit);
        let at = 1 << 20;
        let copy = lab.try_pin(at, 5000, NONE, true).await.unwrap().unwrap();
        assert!(copy.is_copy() && !pins[0].is_copy(), "pin.P5");
        assert_eq!(copy.as_slice().unwrap(), old(at..at + 5000));
        assert!(lab.try_pin(at, 5000, NONE, false).await.unwrap().is_none(), "pin.P5");
        let stats = lab.cache.stats();
        assert_eq!((stats.pinned_frames, stats.pin_copies, stats.pin_refusals), (limit, 1, 1));
        let rows = lab.cache.budget();
        let row = rows.iter().find(|row| row.0 == "pinned frames").unwrap();
        assert_eq!(row.1, limit * 4096);
        assert!(rows.iter().map(|row| row.2).sum::<u64>() <= 1 << 20, "{rows:?}");
        pins.pop();
        assert!(lab.try_pin(at, 4096, NONE, false).await.unwrap().is_some());
        // More than could ever be pinned; a copy is at most as large as the budget.
        let half = lab.try_pin(0, 512 << 10, NONE, true).await.unwrap().unwrap();
        assert!(half.is_copy() && half.len() == 512 << 10);
        let refused = lab.try_pin(0, 4 << 20, NONE, true).await.map(drop).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::NoMemory, "{refused}");
    });
}

/// Large folios have fewer descriptors than pins may hold frames. One frame of each folio pinned
/// took them all, and a write to another folio waited for the thread's own pins.
#[test]
fn write_after_pins_of_one_block_per_folio_ends() {
    let folio = 1 << 20;
    let config = Config { folio_size: folio, ..config(8 << 20) };
    let lab = growing_to(config, 4096, 1 << 30);
    lab.run(async {
        let folio = u64::from(folio);
        let mut pins = Vec::new();
        for index in 0..lab.cache.pin_limit() {
            pins.extend(lab.try_pin(index * folio, 10, NONE, false).await.unwrap());
        }
        let fresh = 1000 * folio;
        let mut write = std::pin::pin!(lab.write(fresh, &[6; 4096], NONE));
        let mut timer = std::pin::pin!(lab.sleep_ms(2000));
        let done = std::future::poll_fn(|cx| match write.as_mut().poll(cx) {
            std::task::Poll::Ready(()) => std::task::Poll::Ready(true),
            std::task::Poll::Pending => timer.as_mut().poll(cx).map(|()| false),
        });
        let (folios, held) = (lab.cache.stats().folios, pins.len() as u64);
        assert!(done.await, "it waits for {held} pins, which are of {folios} folios");
        assert!(held > 0 && held < lab.cache.pin_limit(), "{held} pins");
        let copy = lab.try_pin(900 * folio, 10, NONE, true).await.unwrap().unwrap();
        assert!(copy.is_copy());
        // More folios than pins may ever hold.
        let count = usize::try_from(held).unwrap() + 1;
        pins.clear();
        assert_eq!(lab.cache.stats().pinned_frames, 0);
        let nowait = lab.try_pin(0, count << 20, IoFlags::NOWAIT, false).await.unwrap();
        assert!(nowait.is_none(), "refused: it can never be pinned");
        for _ in 0..2 * held {
            assert!(!lab.pin(0, 10).await.is_copy(), "the end of a pin gives its folio back");
        }
        lab.sync().await.unwrap();
        lab.cache.check_books();
    });
}

/// All frames that are not pinned are dirty: a writer to a pinned block waits for the write-out of
/// others, and the pin stays.
#[test]
fn write_to_pinned_block_among_dirty_ones_completes_despite_pin() {
    let dirty = Some(700 << 10);
    let config = Config { dirty_bytes: dirty, dirty_background_bytes: dirty, ..config(1 << 20) };
    let lab = Lab::new(config, 4096, Lab::sim(4 << 20));
    lab.run(async {
        let limit = lab.cache.pin_limit();
        let mut pins = Vec::new();
        for block in 0..limit {
            pins.push(lab.pin(block * 4096, 4096).await);
        }
        for at in (1 << 20..3 << 20).step_by(4096) {
            lab.write(at, &[4; 4096], NONE).await;
        }
        for block in 0..limit {
            lab.write(block * 4096, &[5; 4096], NONE).await;
        }
        for (block, pinned) in (0..limit).zip(&pins) {
            let bytes = old(block * 4096..(block + 1) * 4096);
            assert!(pinned.as_slice().unwrap() == bytes, "pin.P1");
        }
        lab.sync().await.unwrap();
    });
}

#[test]
fn pin_flags_and_ends_match_those_of_read() {
    let lab = plain(4096);
    lab.run(async {
        let size = 4 << 20;
        let nowait = lab.try_pin(0, 10, IoFlags::NOWAIT, false).await.unwrap_err();
        assert_eq!(nowait.kind(), ErrorKind::WouldBlock);
        let nowait = lab.try_pin(0, 10, IoFlags::NOWAIT, true).await.unwrap_err();
        assert_eq!(nowait.kind(), ErrorKind::WouldBlock);
        let direct = lab.try_pin(0, 10, IoFlags::DIRECT, true).await.unwrap_err();
        assert_eq!(direct.kind(), ErrorKind::Unsupported);
        let write = lab.try_pin(0, 10, IoFlags::DSYNC, true).await.unwrap_err();
        assert_eq!(write.kind(), ErrorKind::Unsupported);
        let uncached = lab.try_pin(40_960, 10, IoFlags::UNCACHED, true).await.unwrap().unwrap();
        assert!(uncached.is_copy() && lab.blocks(State::Uptodate).is_empty(), "it left something");
        assert!(lab.try_pin(0, 10, IoFlags::UNCACHED, false).await.unwrap().is_none());
        let last = lab.pin(size - 10, 100).await;
        assert_eq!(last.as_slice().unwrap(), old(size - 10..size));
        let behind = lab.pin(size + 1, 100).await;
        assert!(behind.is_empty() && behind.as_slice() == Some(&[]) && behind.extents().is_empty());
        let uncached = lab.try_pin(size - 10, 10, IoFlags::UNCACHED, false).await.unwrap().unwrap();
        assert!(!uncached.is_copy());
        let nowait = lab.try_pin(size - 10, 10, IoFlags::NOWAIT, false).await.unwrap();
        assert_eq!(nowait.unwrap().len(), 10);
    });
}

/// Shrinking the cache says what pins hold, leaves the size as it was, and works once they end.
#[test]
fn resize_below_pinned_frames_reports_them_and_works_after_unpin() {
    let config = Config { budget_max: Some(16 << 20), ..config(16 << 20) };
    let lab = Lab::new(config, 4096, Lab::sim(16 << 20));
    lab.run(async {
        let mut pins = Vec::new();
        for at in (0..1 << 20).step_by(65536) {
            pins.push(lab.pin(at, 65536).await);
        }
        let start = lab.world.now();
        let error = lab.cache.resize(4 << 20).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Busy);
        assert!(error.to_string().contains("pins hold 256 frames"), "{error}");
        assert!(lab.world.now() - start < 3_000_000_000, "it waits for pins");
        assert_eq!(lab.cache.stats().budget_bytes, 16 << 20, "Y4");
        let bytes: Vec<u8> = pins.iter().flat_map(Pinned::to_vec).collect();
        assert!(bytes == old(0..1 << 20), "pin.P1");
        drop(pins);
        lab.cache.resize(4 << 20).await.unwrap();
        lab.cache.check_books();
    });
}

/// Pinned frames above the limit of a smaller cache are neither moved nor given back.
#[test]
fn resize_leaves_pinned_frames_above_the_new_limit_in_place() {
    let config = Config { budget_max: Some(16 << 20), ..config(16 << 20) };
    let lab = Lab::new(config, 4096, Lab::sim(16 << 20));
    lab.run(async {
        // Frames are taken from the lowest on.
        for at in (0..12 << 20).step_by(65536) {
            lab.read(at, 65536, NONE).await;
        }
        let pinned = lab.pin((12 << 20) - 65536, 65536).await;
        let error = lab.cache.resize(6 << 20).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Busy);
        assert!(error.to_string().contains("pins hold 16 frames"), "{error}");
        for at in (0..12 << 20).step_by(65536) {
            lab.write(at, &[9; 65536], NONE).await;
        }
        let bytes = old((12 << 20) - 65536..12 << 20);
        assert!(pinned.to_vec() == bytes, "pin.P1: a pinned frame was moved");
        drop(pinned);
        lab.sync().await.unwrap();
        lab.cache.resize(6 << 20).await.unwrap();
        lab.cache.check_books();
    });
}

/// A pin outlives its file and the last other user of the cache.
#[test]
fn pin_outlives_file_and_cache() {
    let lab = plain(4096);
    let pinned = lab.run(lab.pin(4096, 20_000));
    drop(lab);
    assert_eq!(pinned.to_vec(), old(4096..24_096));
    assert_eq!(pinned.extents().iter().map(|run| run.len()).sum::<usize>(), 20_000);
    std::thread::spawn(move || drop(pinned)).join().unwrap();
}
