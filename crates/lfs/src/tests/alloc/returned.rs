//! The space that is held for a stream is returned: lineage.A5, lineage.A7, lineage.A9.
//!
//! No locks.

use super::lab::{BUFFERED, DIRECT, KIB, LARGE, Lab, SEGMENT, appends, create, verify, write};
use crate::space::alloc::AllocMode;
use crate::tests::seeds;
use crate::volume::Volume;
use forebay_base::task::BoxFuture;
use forebay_base::world::{World, split_mix};
use forebay_base::{Error, ErrorKind, IoFlags};
use forebay_block::BioOp;
use forebay_iomap::Class;
use forebay_sim::{Fault, FaultRule};
use forebay_vfs::{FileSystem, Ino, Name, SetAttr};
use std::future::Future;
use std::task::{Context, Waker};
use std::time::Duration;

/// Bytes that `statfs` reports as available.
async fn available(volume: &Volume) -> u64 {
    let statfs = volume.statfs().await.unwrap();
    statfs.blocks_available * u64::from(statfs.block_size)
}

fn held(volume: &Volume) -> u64 {
    volume.alloc_stats().held_bytes
}

/// A stream with a window of which most is free.
async fn stream(volume: &Volume, name: &str) -> (Ino, forebay_vfs::OpenFileRef) {
    let (ino, file) = create(volume, name).await;
    for n in 0..3 {
        write(&file, 1, n * LARGE, LARGE, DIRECT).await.unwrap();
    }
    assert!(held(volume) > 0, "a window is open");
    (ino, file)
}

/// Windows are returned on close, truncate and unlink, and after 30 idle seconds.
/// `statfs` reports the same with and without an open window, and only the content counts as used.
#[test]
fn a7_windows_are_returned_and_statfs_is_honest() {
    let lab = Lab::new(1, 12, AllocMode::Reserve);
    lab.run(async |volume| {
        create(&volume, "first").await;
        volume.syncfs().await.unwrap();
        let before = available(&volume).await;
        let (_, file) = stream(&volume, "closed").await;
        assert_eq!(available(&volume).await, before - 3 * LARGE, "what is held is not used");
        drop(file);
        assert_eq!(held(&volume), 0, "closed by the last opener");
        assert_eq!(available(&volume).await, before - 3 * LARGE);

        let (ino, file) = stream(&volume, "cut").await;
        volume.setattr(ino, &SetAttr::size(LARGE)).await.unwrap();
        assert_eq!(held(&volume), 0, "cut");
        drop(file);

        let (_, first) = stream(&volume, "idle").await;
        let idle = held(&volume);
        lab.disk.world().sleep(Duration::from_secs(31)).await;
        let (_, second) = create(&volume, "other").await;
        write(&second, 1, 0, LARGE, DIRECT).await.unwrap();
        assert!(held(&volume) < idle, "not used for 30 s, and another window was opened");
        drop((first, second));

        let (_, file) = stream(&volume, "removed").await;
        volume.unlink(Ino::ROOT, Name::new(b"removed").unwrap()).await.unwrap();
        drop(file);
        assert_eq!(held(&volume), 0, "gone");
        assert_eq!(
            volume.0.state.lock().space().room().windows.files(),
            0,
            "no window is kept without a file"
        );
    });
}

/// Windows of many files hold at most an eighth of the free space. A writer that needs
/// this space gets it: a write is refused only when all space is used.
#[test]
fn a7_no_space_only_when_windows_are_gone() {
    for seed in seeds(3) {
        let lab = Lab::new(seed, 10, AllocMode::Reserve);
        lab.run(async |volume| {
            let mut files = Vec::new();
            for n in 0..24 {
                let (_, file) = create(&volume, &format!("f{n}")).await;
                write(&file, n, 0, LARGE, DIRECT).await.unwrap();
                write(&file, n, LARGE, 64 * KIB, DIRECT).await.unwrap();
                files.push(file);
                let room = volume.room_bytes();
                assert!(held(&volume) <= room / 8 + SEGMENT / 64, "{} of {room}", held(&volume));
            }
            let (_, large) = create(&volume, "large").await;
            let mut at = 0;
            let refused = loop {
                match write(&large, 99, at, LARGE, DIRECT).await {
                    Ok(()) => at += LARGE,
                    Err(error) => break error,
                }
            };
            assert_eq!(refused.kind(), ErrorKind::NoSpace, "{refused}");
            // Less than a request with its part of the tree: no space is left in windows.
            let left = volume.0.state.lock().new_room();
            assert!(
                left < LARGE + LARGE / 8,
                "seed {seed}: {left} bytes were left when it was refused"
            );
            volume.syncfs().await.unwrap();
            verify(&large, 99, 0, at).await;
        });
    }
}

/// Makes checkpoints and cleans until the cleaner finds nothing to do.
async fn quiet(volume: &Volume) {
    loop {
        for _ in 0..3 {
            volume.checkpoint().await.unwrap();
        }
        if !volume.clean().await.unwrap() {
            return;
        }
    }
}

/// A request that finds space for a part of it only is refused and gives that part
/// back, in each mode and concurrently with others like it. Older content stays readable.
#[test]
fn a5_no_space_in_the_middle_gives_back_what_was_taken() {
    for mode in AllocMode::ALL {
        for seed in seeds(3) {
            let lab = Lab::new(seed, 10, mode);
            lab.run(async |volume| {
                let (_, file) = create(&volume, "f").await;
                let mut files = Vec::new();
                for n in 0..4 {
                    files.push(create(&volume, &format!("big{n}")).await.1);
                }
                let mut at = 0;
                while volume.room_bytes() > SEGMENT {
                    write(&file, 1, at, LARGE, DIRECT).await.unwrap();
                    at += LARGE;
                }
                quiet(&volume).await;
                let overwrite_room =
                    || volume.0.state.lock().data_room(crate::space::Need::Overwrite);
                let room = overwrite_room();
                let wanted = room / 2 + 64 * KIB;
                let one = |n: usize| -> BoxFuture<'static, Result<(), Error>> {
                    let (file, tag) = (files[n].clone(), 10 + n as u64);
                    Box::pin(async move { write(&file, tag, 0, wanted, DIRECT).await })
                };
                let done = lab.run_concurrently((0..4).map(one).collect()).await;
                let served = done.iter().filter(|done| done.is_ok()).count() as u64;
                for error in done.into_iter().filter_map(Result::err) {
                    assert_eq!(error.kind(), ErrorKind::NoSpace, "{mode} {error}");
                }
                assert!(served < 4, "{mode}, seed {seed}: not all fitted");
                quiet(&volume).await;
                let back = overwrite_room() + served * wanted;
                // The cleaner may have moved some; no refused request has kept its half.
                assert!(back.abs_diff(room) < 64 * KIB, "{mode}, seed {seed}: {back} of {room}");
                assert!(volume.0.state.lock().space().reservations().is_empty());
                verify(&file, 1, 0, at).await;
                volume.syncfs().await.unwrap();
            });
        }
    }
}

/// A write that is dropped while it waits releases its turn, and gives back its blocks.
#[test]
fn a5_dropped_write_returns_turn_and_blocks() {
    for mode in AllocMode::ALL {
        let lab = Lab { pages: 0, ..Lab::new(1, 12, mode) };
        lab.run(async |volume| {
            let (_, file) = create(&volume, "f").await;
            volume.syncfs().await.unwrap();
            let room = volume.room_bytes();
            let mut at_the_disk = false;
            lab.disk.clear_log();
            for polls in 1.. {
                let mut request = Box::pin(write(&file, 1, 0, LARGE, DIRECT));
                let mut context = Context::from_waker(Waker::noop());
                for _ in 0..polls {
                    // The disk completes nothing between these polls.
                    assert!(request.as_mut().poll(&mut context).is_pending());
                    at_the_disk = !lab.disk.log().is_empty();
                    if at_the_disk {
                        break;
                    }
                }
                drop(request);
                if at_the_disk {
                    break;
                }
                assert_eq!(volume.room_bytes(), room, "{mode}: all is back after {polls} steps");
            }
            assert!(volume.room_bytes() < room, "{mode}: the disk still has it");
            lab.disk.world().sleep(Duration::from_millis(20)).await;
            assert_eq!(volume.room_bytes(), room, "{mode}: all is back");
            let (_, other) = create(&volume, "other").await;
            write(&other, 2, 0, LARGE, DIRECT).await.unwrap();
            verify(&other, 2, 0, LARGE).await;
        });
    }
}

/// places.T21: a request of which only a part found space, and one that is dropped while it takes
/// blocks, return what they took.
#[test]
fn t21_places_of_request_that_fails_or_is_dropped_are_returned() {
    for mode in AllocMode::ALL {
        let lab = Lab { pages: 0, ..Lab::new(1, 12, mode) };
        lab.run(async |volume| {
            let (ino, _file) = create(&volume, "f").await;
            let room = || volume.0.state.lock().data_room(crate::space::Need::Overwrite);
            let (before, more, run) = (room(), 0..64 * SEGMENT, 0..LARGE);
            let taken = volume.0.take_places(ino.0, &[more], (Class::Background, false)).await;
            assert_eq!(taken.err().map(|error| error.kind()), Some(ErrorKind::NoSpace), "{mode}");
            assert_eq!(room(), before, "T21: {mode}: it failed");
            let runs = [run];
            for polls in 1..20 {
                let mut taking =
                    Box::pin(volume.0.take_places(ino.0, &runs, (Class::Direct, false)));
                let mut context = Context::from_waker(Waker::noop());
                let is_over = (0..polls).any(|_| taking.as_mut().poll(&mut context).is_ready());
                // The strategy `reserve` takes all in one step, and these places are dropped, too.
                assert!(is_over || polls < 4 || room() < before, "{mode}: it takes block by block");
                drop(taking);
                assert_eq!(room(), before, "T21: {mode}: dropped after {polls} polls");
            }
        });
    }
}

/// Syncs, group commits and write-back run concurrently with requests in each mode. No task waits
/// for ever: the world would report a deadlock.
#[test]
fn a5_requests_concurrent_with_syncs_do_not_deadlock() {
    for mode in AllocMode::ALL {
        for seed in seeds(2) {
            let lab = Lab { pages: 4, ..Lab::new(seed, 20, mode) };
            lab.run(async |volume| {
                let mut jobs: Vec<BoxFuture<'static, Ino>> = Vec::new();
                for tag in 0..4 {
                    jobs.push(appends(&volume, tag, 6, LARGE, DIRECT | IoFlags::DSYNC));
                    jobs.push(appends(&volume, tag + 10, 6, LARGE, BUFFERED));
                }
                for tag in 20..23u64 {
                    let (volume, world) = (volume.clone(), lab.world());
                    jobs.push(Box::pin(async move {
                        let (ino, _) = create(&volume, &format!("s{tag}")).await;
                        for _ in 0..8 {
                            volume.syncfs().await.unwrap();
                            world.sleep(Duration::from_micros(300)).await;
                        }
                        ino
                    }));
                }
                lab.run_concurrently(jobs).await;
                volume.syncfs().await.unwrap();
            });
        }
    }
}

/// A file that gets the blocks of a failed write does not show what that write left on the device:
/// the parts that it did not write read as zeros.
#[test]
fn a5_blocks_of_a_failed_write_show_nothing() {
    let lab = Lab::new(1, 12, AllocMode::Reserve);
    lab.run(async |volume| {
        let (ino, file) = create(&volume, "failed").await;
        // The failed write is torn: some of its bytes are on the medium.
        lab.disk.inject(FaultRule::on(BioOp::Write, Fault::Fail(ErrorKind::Io)).nth(1));
        assert!(write(&file, 1, 0, LARGE, DIRECT).await.is_err());
        assert!(volume.extents(ino).await.unwrap().is_empty());
        let (_, other) = create(&volume, "other").await;
        write(&other, 2, 0, 4 * KIB, DIRECT).await.unwrap();
        write(&other, 2, 2 * LARGE, LARGE, DIRECT).await.unwrap();
        let len = 2 * LARGE - 4 * KIB;
        let buf = forebay_base::buf::AlignedBuf::new(len as usize);
        let (buf, read) = other.read(4 * KIB, buf, BUFFERED).await;
        assert!(buf[..read.unwrap()].iter().all(|byte| *byte == 0), "a hole");
    });
}

/// Free runs between what is live in data segments: how many, and their mean length.
async fn free_runs(volume: &Volume, inodes: &[Ino]) -> (usize, u64) {
    let mut live: Vec<(u64, u64)> = Vec::new();
    for ino in inodes {
        for extent in volume.extents(*ino).await.unwrap() {
            live.extend(extent.physical.map(|at| (at, at + extent.len)));
        }
    }
    live.sort_unstable();
    let gaps: Vec<u64> = live.windows(2).map(|w| w[1].0 - w[0].1).filter(|gap| *gap > 0).collect();
    (gaps.len(), gaps.iter().sum::<u64>() / gaps.len().max(1) as u64)
}

/// For some rounds, files are written concurrently and some are removed. The free runs between live
/// content are fewer and longer than with `Interleaved`, and little space that windows left unused
/// lies idle in segments.
#[test]
fn a9_free_space_fragments_no_more_than_with_interleaved_allocator() {
    for seed in seeds(3) {
        let free = |mode| {
            let lab = Lab::new(seed, 60, mode);
            lab.run(async |volume| {
                let (mut rng, mut live, mut serial) = (seed, Vec::new(), 0u64);
                for _ in 0..4 {
                    let jobs: Vec<_> = (0..8)
                        .map(|n| appends(&volume, serial + n, 3 + n % 4, LARGE, DIRECT))
                        .collect();
                    let inodes = lab.run_concurrently(jobs).await;
                    live.extend(inodes.into_iter().zip(serial..));
                    serial += 8;
                    for _ in 0..4 {
                        let (_, tag) = live.swap_remove(split_mix(&mut rng) as usize % live.len());
                        let name = format!("w{tag}");
                        volume
                            .unlink(Ino::ROOT, Name::new(name.as_bytes()).unwrap())
                            .await
                            .unwrap();
                    }
                }
                let inodes: Vec<Ino> = live.iter().map(|(ino, _)| *ino).collect();
                let idle = volume.alloc_stats().left_bytes;
                (free_runs(&volume, &inodes).await, idle)
            })
        };
        let ((ours, length), idle) = free(AllocMode::Reserve);
        let ((plain, plain_length), _) = free(AllocMode::Interleaved);
        assert!(ours * 2 < plain, "seed {seed}: {ours} runs, {plain} with the plain one");
        assert!(length > 2 * plain_length, "seed {seed}: {length} bytes, {plain_length}");
        // The leftovers of one round's windows only: each round uses those of the round before.
        assert!(idle <= 8 * 256 * KIB, "seed {seed}: {idle} bytes lie idle");
    }
}

/// alloc.A12: while the device is slow with the write of one request, another request gets its
/// blocks and writes them. Neither the turn of `serialized` nor a lock is held during I/O.
#[test]
fn a12_nothing_is_held_during_io() {
    for mode in AllocMode::ALL {
        let lab = Lab { pages: 0, ..Lab::new(1, 10, mode) };
        lab.run(async |volume| {
            let second = Duration::from_secs(1).as_nanos() as u64;
            let mut writers = Vec::new();
            for tag in 0..2 {
                let (_, file) = create(&volume, &format!("f{tag}")).await;
                let world = lab.world();
                let writer: BoxFuture<'static, u64> = Box::pin(async move {
                    write(&file, tag, 0, LARGE, DIRECT).await.unwrap();
                    world.now()
                });
                writers.push(writer);
            }
            lab.disk.inject(FaultRule::on(BioOp::Write, Fault::Slow(second)));
            let began = lab.world().now();
            let mut ends = lab.run_concurrently(writers).await;
            ends.sort_unstable();
            let [quick, slow] = [ends[0] - began, ends[1] - began];
            assert!(slow >= second && quick < second / 2, "{mode}: {quick} and {slow} ns");
        });
    }
}
