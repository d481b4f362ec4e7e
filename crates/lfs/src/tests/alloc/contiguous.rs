//! Requests and files in one piece: lineage.A1, lineage.A3, lineage.A4, lineage.A8, lineage.X6,
//! lineage.X7.
//!
//! No locks.

use super::lab::{
    BUFFERED, DIRECT, KIB, LARGE, Lab, appends, create, extents, per_request, verify, write,
};
use crate::space::alloc::AllocMode;
use crate::tests::seeds;
use crate::volume::Volume;
use forebay_base::IoFlags;
use forebay_base::task::BoxFuture;
use forebay_base::world::split_mix;
use forebay_vfs::{FileSystem, Ino, OpenFileRef, SetAttr};

/// Pages of a large request. As the threshold of `Serialized` it makes large requests take the
/// turn.
const PAGES: u32 = (LARGE / (4 * KIB)) as u32;

/// Ten writers, each with its own file. Returns extents for each request, and of each file.
fn ten_writers(seed: u64, mode: AllocMode, count: u64, len: u64) -> (f64, Vec<u64>) {
    let lab = Lab { pages: PAGES, ..Lab::new(seed, 40, mode) };
    lab.run(async |volume| {
        let jobs = (0..10).map(|tag| appends(&volume, tag, count, len, DIRECT)).collect();
        let inodes = lab.run_concurrently(jobs).await;
        let stats = volume.alloc_stats();
        assert_eq!((stats.direct_requests, stats.direct_bytes), (10 * count, 10 * count * len));
        (per_request(&stats), extents(&volume, &inodes).await)
    })
}

/// Each request is one extent, and a file has one extent for each window. Windows double from 128
/// to 512 KiB. The baselines in the same world: `Interleaved` splits requests into many extents,
/// and `Serialized` splits one only at the end of a segment.
#[test]
fn a1_each_large_request_is_one_extent() {
    let (count, size) = (16, 16 * LARGE);
    // Windows of 128, 128, 256, 512, .. KiB; a window may be shorter where a segment ends.
    let most = 3 + size / (512 * KIB);
    for seed in seeds(3) {
        let (each, files) = ten_writers(seed, AllocMode::Reserve, count, LARGE);
        assert_eq!(each, 1.0, "seed {seed}");
        assert!(files.iter().all(|n| *n <= most), "seed {seed}: {files:?}");
        let (each, _) = ten_writers(seed, AllocMode::Serialized, count, LARGE);
        assert!(each < 1.1, "seed {seed}: {each}");
        let (each, files) = ten_writers(seed, AllocMode::Interleaved, count, LARGE);
        assert!(each > 8.0, "seed {seed}: {each}");
        assert!(files.iter().all(|n| *n > 64), "seed {seed}: {files:?}");
    }
}

/// Requests that are no power of two, that begin anywhere, or that are longer than the largest
/// window: one extent each, but for the ends of segments.
#[test]
fn a1_requests_of_any_length_stay_whole() {
    for seed in seeds(3) {
        let (each, _) = ten_writers(seed, AllocMode::Reserve, 5, 100 * KIB);
        assert!(each <= 1.5, "seed {seed}: {each}, each within a window or over the end of one");
        let (each, files) = ten_writers(seed, AllocMode::Reserve, 3, 800 * KIB);
        assert_eq!(each, 1.0, "seed {seed}");
        assert!(files.iter().all(|n| *n <= 3), "seed {seed}: {files:?}");
    }
}

/// A direct write of 2 MiB is one reservation of the map, and one bio for each MiB, which is the
/// longest that the disk takes.
#[test]
fn a1_two_mib_are_one_reservation_and_one_place() {
    let lab = Lab::new(1, 12, AllocMode::Reserve);
    lab.run(async |volume| {
        let (ino, file) = create(&volume, "one").await;
        lab.disk.clear_log();
        write(&file, 1, 0, 2048 * KIB, DIRECT).await.unwrap();
        let stats = volume.alloc_stats();
        assert_eq!((stats.direct_requests, stats.direct_extents), (1, 1));
        let writes = lab.disk.log().iter().map(|entry| entry.len).collect::<Vec<_>>();
        assert_eq!(writes, [1 << 20, 1 << 20], "the simulated disk takes 1 MiB at a time");
        assert_eq!(volume.extents(ino).await.unwrap().len(), 1);
        verify(&file, 1, 0, 2048 * KIB).await;
    });
}

/// With a threshold of `n`, requests of `n - 1` pages are not serialised, and those of `n` are. A
/// threshold of 0 serialises all, the largest number none. A change counts from the next request
/// on.
#[test]
fn a3_turns_are_taken_from_the_threshold_on_live() {
    let lab = Lab { pages: 9, ..Lab::new(1, 12, AllocMode::Serialized) };
    lab.run(async |volume| {
        let (_, file) = create(&volume, "f").await;
        let mut offset = 0;
        let steps = [(9, 8, 0), (9, 9, 1), (8, 8, 1), (0, 1, 1), (u32::MAX, 64, 0), (64, 63, 0)];
        for (threshold, pages, turns) in steps {
            volume.set_serialized_dio_pages(threshold);
            assert_eq!(volume.serialized_dio_pages(), threshold);
            let before = volume.alloc_stats().turns;
            write(&file, 1, offset, pages * 4 * KIB, DIRECT).await.unwrap();
            offset += pages * 4 * KIB;
            let taken = volume.alloc_stats().turns - before;
            assert_eq!(taken, turns, "{pages} pages, threshold {threshold}");
        }
        volume.set_serialized_dio_pages(u32::MAX);
        let before = volume.alloc_stats().turns;
        write(&file, 1, 0, LARGE, IoFlags::START_WRITEBACK).await.unwrap();
        assert!(volume.alloc_stats().turns > before, "write-back always takes its turn");
    });
}

/// Requests below the threshold are interleaved with those of concurrent writers, requests from it
/// on are not. The writers are the same.
#[test]
fn a3_threshold_decides_which_requests_interleave() {
    for seed in seeds(3) {
        let torn = |pages| {
            let lab = Lab { pages, ..Lab::new(seed, 20, AllocMode::Serialized) };
            lab.run(async |volume| {
                let jobs = (0..8).map(|tag| appends(&volume, tag, 4, LARGE, DIRECT)).collect();
                lab.run_concurrently(jobs).await;
                per_request(&volume.alloc_stats())
            })
        };
        assert!(torn(PAGES) < 1.1, "seed {seed}");
        assert!(torn(PAGES + 1) > 8.0, "seed {seed}");
    }
}

/// Large direct writers, small ones, and buffered ones whose write-back comes in between.
async fn mixed(lab: &Lab, volume: &Volume) -> Vec<Ino> {
    let mut jobs: Vec<BoxFuture<'static, Ino>> = Vec::new();
    for tag in 0..6 {
        jobs.push(appends(volume, tag, 6, LARGE, DIRECT));
    }
    for tag in 6..9 {
        jobs.push(appends(volume, tag, 12, 64 * KIB, IoFlags::START_WRITEBACK));
    }
    for tag in 9..11 {
        let volume = volume.clone();
        jobs.push(Box::pin(async move {
            let (ino, file) = create(&volume, &format!("small{tag}")).await;
            for n in 0..24u64 {
                let at = n * 7 % 24 * 8 * KIB;
                write(&file, tag, at, 4 * KIB, DIRECT).await.unwrap();
            }
            ino
        }));
    }
    lab.run_concurrently(jobs).await
}

/// A large request is one piece, whatever else is written concurrently: with `Reserve`, and with
/// `Serialized` if all writers take turns.
#[test]
fn a4_giving_out_a_request_is_one_step_for_all_others() {
    for seed in seeds(4) {
        let extents_of_large = |mode, pages| {
            let lab = Lab { pages, ..Lab::new(seed, 20, mode) };
            lab.run(async |volume| {
                let inodes = mixed(&lab, &volume).await;
                extents(&volume, &inodes[..6]).await
            })
        };
        let ours = extents_of_large(AllocMode::Reserve, 64);
        assert!(ours.iter().all(|n| *n <= 6), "seed {seed}: {ours:?}");
        let all = extents_of_large(AllocMode::Serialized, 0);
        // Six requests of each file, and a few that the end of a segment splits.
        assert!(all.iter().sum::<u64>() <= 6 * 6 + 4, "seed {seed}: {all:?}");
        let none = extents_of_large(AllocMode::Interleaved, 64);
        assert!(none.iter().all(|n| *n > 24), "seed {seed}: {none:?}");
    }
}

/// Writes the parts of a file in this order, all of them at once; each part is its own task.
async fn out_of_order(lab: &Lab, file: &OpenFileRef, order: &[u64], len: u64) {
    let one = |n: u64| -> BoxFuture<'static, ()> {
        let file = file.clone();
        Box::pin(async move { write(&file, 1, n * len, len, DIRECT).await.unwrap() })
    };
    lab.run_concurrently(order.iter().map(|n| one(*n)).collect()).await;
}

fn shuffled(seed: u64, count: u64) -> Vec<u64> {
    let (mut rng, mut order) = (seed, (0..count).collect::<Vec<_>>());
    for last in (1..count).rev() {
        order.swap(last as usize, (split_mix(&mut rng) % (last + 1)) as usize);
    }
    order
}

/// Appends that arrive out of order, as those of a server do: a block's offset in the file decides
/// its window and its place there, so the order makes no difference. 64 parts of half a window.
#[test]
fn a8_appends_out_of_order_do_not_fragment_a_file() {
    for seed in seeds(4) {
        let count = |mode| {
            let lab = Lab { pages: PAGES / 2, ..Lab::new(seed, 80, mode) };
            lab.run(async |volume| {
                let (ino, file) = create(&volume, "f").await;
                for batch in shuffled(seed, 64).chunks(8) {
                    out_of_order(&lab, &file, batch, LARGE / 2).await;
                }
                for n in 0..64 {
                    verify(&file, 1, n * LARGE / 2, LARGE / 2).await;
                }
                volume.extents(ino).await.unwrap().len()
            })
        };
        let ours = count(AllocMode::Reserve);
        assert!(ours <= 32, "seed {seed}: {ours} extents of 32 windows");
        assert!(count(AllocMode::Serialized) > 40, "seed {seed}");
        assert!(count(AllocMode::Interleaved) > 200, "seed {seed}");
    }
}

/// A request that a front end splits in two, in either order, is one extent.
#[test]
fn a8_split_request_becomes_one_extent() {
    for order in [[0, 1], [1, 0]] {
        let lab = Lab::new(1, 12, AllocMode::Reserve);
        lab.run(async |volume| {
            let (ino, file) = create(&volume, "f").await;
            for n in order {
                write(&file, 1, n * LARGE / 2, LARGE / 2, DIRECT).await.unwrap();
            }
            assert_eq!(volume.extents(ino).await.unwrap().len(), 1, "{order:?}");
        });
    }
}

/// Writers of one image, each in its own part and with requests that overtake each other, are
/// separate streams: no writer splits the part of another one.
#[test]
fn x7_writers_of_one_image_are_streams_of_their_own() {
    for seed in seeds(3) {
        let count = |mode| {
            let lab = Lab::new(seed, 40, mode);
            lab.run(async |volume| {
                let (ino, file) = create(&volume, "image").await;
                let (part, clients) = (16 * LARGE, 4u64);
                volume.setattr(ino, &SetAttr::size(part * clients)).await.unwrap();
                let client = |tag: u64| -> BoxFuture<'static, ()> {
                    let file = file.clone();
                    Box::pin(async move {
                        for n in 0..32u64 {
                            let at = tag * part + (n ^ 1) * (LARGE / 2);
                            write(&file, tag, at, LARGE / 2, DIRECT).await.unwrap();
                        }
                    })
                };
                lab.run_concurrently((0..clients).map(client).collect()).await;
                for tag in 0..clients {
                    verify(&file, tag, tag * part, part).await;
                }
                volume.extents(ino).await.unwrap().len()
            })
        };
        let (ours, torn) = (count(AllocMode::Reserve), count(AllocMode::Interleaved));
        // Each client has windows of 128, 128, 256, 512, 512 and 512 KiB.
        assert!(ours <= 4 * 6, "seed {seed}: {ours}");
        assert!(torn > 150, "seed {seed}: {torn}");
    }
}

/// Concurrent uncached writers: when a write returns, its window exists, although none of it is
/// written out yet. The map finds nothing in the window until it is written out. The file of each
/// writer has as many extents as windows.
#[test]
fn x6_uncached_writes_find_their_window_at_write_time() {
    for seed in seeds(3) {
        let lab = Lab::new(seed, 80, AllocMode::Reserve);
        lab.run(async |volume| {
            let (ino, file) = create(&volume, "first").await;
            write(&file, 1, 0, LARGE, IoFlags::UNCACHED).await.unwrap();
            let stats = volume.alloc_stats();
            assert_eq!((stats.windows, stats.written_back), (1, 0), "seed {seed}: at write time");
            assert_eq!(stats.held_bytes, LARGE, "a window, of which nothing is used");
            assert!(volume.extents(ino).await.unwrap().is_empty(), "and nothing is found in it");
            file.sync(true).await.unwrap();
            let stats = volume.alloc_stats();
            assert_eq!((stats.windows, stats.written_back_extents), (1, 1), "it was used");
            let jobs = (2..8).map(|tag| appends(&volume, tag, 32, LARGE / 2, IoFlags::UNCACHED));
            let inodes = lab.run_concurrently(jobs.collect()).await;
            volume.syncfs().await.unwrap();
            let files = extents(&volume, &inodes).await;
            // Windows of 128, 128, 256, 512, .. KiB; write-out while a window is being found may
            // add two.
            assert!(files.iter().all(|n| *n <= 2 + 4 + 2), "seed {seed}: {files:?}");
            assert!(files.iter().sum::<u64>() <= 6 * (2 + 4), "seed {seed}: {files:?}");
        });
    }
}

/// Small random writes are no stream: their blocks are placed one after another, and no window is
/// held for them.
#[test]
fn a2_small_random_writes_open_no_windows() {
    for flags in [DIRECT, BUFFERED | IoFlags::START_WRITEBACK] {
        let lab = Lab::new(3, 12, AllocMode::Reserve);
        lab.run(async |volume| {
            let (ino, file) = create(&volume, "f").await;
            volume.setattr(ino, &SetAttr::size(4096 * KIB)).await.unwrap();
            for n in 0..64u64 {
                write(&file, 1, n * 37 % 64 * 64 * KIB, 4 * KIB, flags).await.unwrap();
            }
            volume.syncfs().await.unwrap();
            let stats = volume.alloc_stats();
            assert_eq!(stats.windows, 0);
            let mut found: Vec<u64> =
                volume.extents(ino).await.unwrap().iter().filter_map(|e| e.physical).collect();
            found.sort_unstable();
            assert_eq!(found.len(), 64);
            let near = found.windows(2).filter(|w| w[1] - w[0] == 4 * KIB).count();
            assert!(near >= 60, "{near} of 63 lie one behind the other");
        });
    }
}
