//! Ranges that are held exclusively are taken in the order of arrival: wide requests during streams
//! of narrow ones, in the simulated world.

use super::harness::{Lab, NONE, both};
use forebay_base::IoFlags;
use forebay_base::world::World;
use forebay_cache::Config;
use forebay_testkit::remap::{Remap, RemapOptions};
use std::cell::Cell;

const BLOCK: u64 = 4096;
/// Writes of a stream at most. A request that is starved ends when its streams have ended.
const STREAM: u64 = 200;
/// Writes of both streams that may end while a wide request waits: one of each was under way, and
/// one of each may have been placed before it.
const FEW: u64 = 6;

/// Two streams of direct writes, each to a block of its own or both to the same, and `wide` while
/// they run. Returns how many writes ended from the begin of `wide` to its end.
async fn during_streams(lab: &Lab, blocks: [u64; 2], wide: impl Future<Output = ()>) -> u64 {
    during_streams_of(lab, blocks, BLOCK, wide).await
}

/// The same with writes of `len` bytes.
async fn during_streams_of(
    lab: &Lab,
    blocks: [u64; 2],
    len: u64,
    wide: impl Future<Output = ()>,
) -> u64 {
    let bytes = vec![7; len as usize];
    let (ended, done) = (Cell::new(0), Cell::new(None));
    let stream = async |block: u64, pause: u64| {
        lab.world.sleep(std::time::Duration::from_nanos(pause)).await;
        for _ in 0..STREAM {
            lab.write(block * BLOCK, &bytes, IoFlags::DIRECT | IoFlags::FALLBACK).await;
            ended.set(ended.get() + 1);
        }
    };
    let [first, second] = blocks;
    let other = async {
        lab.sleep_ms(1).await;
        let before = ended.get();
        assert!(before > 0, "the streams run: otherwise nothing is tested");
        wide.await;
        done.set(Some(ended.get() - before));
    };
    both(both(stream(first, 1), stream(second, 17_000)), other).await;
    done.get().expect("both have ended")
}

/// The story: a trim over two streams of direct writes found a block of its range held each time it
/// looked, because a stream took its block again in the moment it had given it back.
#[test]
fn zero_during_two_direct_streams_is_not_starved() {
    let lab = Lab::plain(BLOCK as u32);
    lab.run(async {
        let zero = async { lab.zero(0, 2 * BLOCK, false).await.unwrap() };
        let meanwhile = during_streams(&lab, [0, 1], zero).await;
        assert!(meanwhile <= FEW, "{meanwhile} writes went ahead of the trim");
    });
}

/// A file of `size` bytes that may grow, all of it a hole.
fn growing_lab(size: u64) -> Lab {
    let sim = Lab::sim(8 << 20);
    Lab::with_map(Config::with_budget(8 << 20), BLOCK as u32, sim, size, |disk| {
        let options = RemapOptions { grows: true, sums: false, waits: None };
        Remap::with_options(disk, BLOCK as u32, options)
    })
}

/// A truncate waits for the same blocks, and holds the right to move the size meanwhile: appends
/// waited behind it for as long as the streams went on.
#[test]
fn truncate_and_append_during_two_direct_streams_are_not_starved() {
    let lab = growing_lab(1 << 20);
    lab.run(async {
        let cut_and_append = async {
            let cut = async { lab.file.set_len(BLOCK).await.unwrap() };
            let append = async { lab.write(0, &[9; 10], NONE | IoFlags::APPEND).await };
            both(cut, append).await;
        };
        let meanwhile = during_streams(&lab, [64, 65], cut_and_append).await;
        assert!(meanwhile <= 2 * FEW, "{meanwhile} writes went ahead of the truncate");
    });
}

/// The story: a truncate to a size within a block that is not cached gave its range back to read
/// the block. A direct write took the range and dropped the block again, each time, so the truncate
/// never found it in the cache. It held the right to move the size all the while.
#[test]
fn truncate_within_block_of_two_direct_writers_completes() {
    let lab = growing_lab(1 << 20);
    lab.run(async {
        let cut_and_append = async {
            let cut = async { lab.file.set_len(64 * BLOCK + 100).await.unwrap() };
            let append = async { lab.write(0, &[9; 10], NONE | IoFlags::APPEND).await };
            both(cut, append).await;
        };
        let meanwhile = during_streams(&lab, [64, 64], cut_and_append).await;
        assert!(meanwhile <= 2 * FEW, "{meanwhile} writes went ahead of the truncate");
    });
}

/// The same of a file that is found with an end within a block, as after a crash: that block is
/// written with zeros behind the end before the file grows for the first time.
#[test]
fn append_to_block_of_two_direct_writers_completes() {
    let lab = growing_lab(65 * BLOCK - 100);
    lab.run(async {
        let end = lab.file.size() - 64 * BLOCK;
        // When the file has grown the streams pass through the cache, and hold nothing.
        let direct = || lab.cache.stats().direct_write_bytes / end;
        let meanwhile = Cell::new(0);
        let append = async {
            let before = direct();
            lab.write(0, &[9; 10], NONE | IoFlags::APPEND).await;
            meanwhile.set(direct() - before);
        };
        during_streams_of(&lab, [64, 64], end, append).await;
        assert!(direct() > FEW, "the streams held the block: otherwise nothing is tested");
        let meanwhile = meanwhile.get();
        assert!(meanwhile <= FEW, "{meanwhile} writes went ahead of the append");
    });
}

/// The truncate reads the block itself while it holds the range. If no frame is free it gives the
/// range back before it waits for one, because others may need the range to free memory.
#[test]
fn truncate_that_waits_for_a_frame_holds_no_range() {
    let lab = growing_lab(1 << 20);
    lab.run(async {
        lab.write(64 * BLOCK, &[7; BLOCK as usize], IoFlags::DIRECT).await;
        let free = lab.cache.stats().frames_free as usize;
        let frames = lab.cache.take_frames(free).expect("they are free");
        let cut = async { lab.file.set_len(64 * BLOCK + 100).await.unwrap() };
        let other = async {
            lab.sleep_ms(1).await;
            let bounds = &lab.file.mapping.bounds;
            assert!(bounds.try_resize().is_none() && lab.file.size() == 1 << 20, "it waits");
            assert!(!bounds.is_exclusive(&(0..1 << 20)), "it holds no range");
            lab.write(64 * BLOCK, &[8; BLOCK as usize], IoFlags::DIRECT).await;
            lab.sync().await.unwrap();
            drop(frames);
        };
        both(cut, other).await;
        assert_eq!(lab.file.size(), 64 * BLOCK + 100);
        lab.file.set_len(65 * BLOCK).await.unwrap();
        let mut want = vec![8; 100];
        want.resize(BLOCK as usize, 0);
        assert!(lab.read(64 * BLOCK, 2 * BLOCK as usize, NONE).await == want);
    });
}
