//! How evenly writers progress, and what a request costs other writers: lineage.A2, lineage.A4,
//! lineage.A6, lineage.A10. All in simulated time.
//!
//! No locks.

use super::lab::{DIRECT, KIB, LARGE, Lab, READ_WRITE, appends, create, run_concurrently, write};
use crate::space::alloc::AllocMode;
use crate::tests::seeds;
use crate::volume::Volume;
use forebay_base::IoFlags;
use forebay_base::buf::AlignedBuf;
use forebay_base::sync::Mutex;
use forebay_base::task::BoxFuture;
use forebay_base::world::World;
use forebay_block::{Bio, BioOp, BlockDevice, DeviceRef, Limits};
use forebay_testkit::target::{DelayDevice, DelayOptions};
use forebay_vfs::{FileSystem, Ino, SetAttr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Eight readers and eight writers of 4 KiB at random offsets, 60 requests each. Returns requests
/// per second of simulated time.
fn small_mix(seed: u64, mode: AllocMode, pages: u32) -> f64 {
    let lab = Lab { pages, ..Lab::new(seed, 24, mode) };
    lab.run(async |volume| {
        let mut files = Vec::new();
        for n in 0..8 {
            let (ino, file) = create(&volume, &format!("f{n}")).await;
            volume.setattr(ino, &SetAttr::size(1024 * KIB)).await.unwrap();
            files.push(file);
        }
        let start = lab.disk.world().now();
        let one = |job: usize| -> BoxFuture<'static, ()> {
            let file = files[job % 8].clone();
            Box::pin(async move {
                for n in 0..60u64 {
                    let at = (n * 97 + job as u64 * 31) % 256 * 4 * KIB;
                    if job < 8 {
                        write(&file, job as u64, at, 4 * KIB, DIRECT).await.unwrap();
                    } else {
                        let buf = AlignedBuf::new(4096);
                        file.read(at, buf, DIRECT).await.1.unwrap();
                    }
                }
            })
        };
        lab.run_concurrently((0..16).map(one).collect()).await;
        16.0 * 60.0 / ((lab.disk.world().now() - start) as f64 / 1e9)
    })
}

/// Small writers are as fast as with the baseline `Interleaved`: `Reserve` holds the lock as often,
/// and with `Serialized` and a threshold of 64 pages no small writer takes a turn.
#[test]
fn a2_small_readers_and_writers_are_as_fast_as_without() {
    let rate = |mode, pages| -> f64 { seeds(6).map(|seed| small_mix(seed, mode, pages)).sum() };
    let without = rate(AllocMode::Interleaved, 64);
    for (mode, pages) in [(AllocMode::Reserve, 64), (AllocMode::Serialized, 64)] {
        let ratio = rate(mode, pages) / without;
        assert!(ratio >= 0.95, "{mode} reaches {ratio} of what there is without it");
    }
}

/// A small write allocates in one hold of the state lock, with each strategy.
#[test]
fn a2_small_write_takes_lock_once() {
    for (mode, pages, turns) in [
        (AllocMode::Interleaved, 64, 0),
        (AllocMode::Serialized, 64, 0),
        (AllocMode::Serialized, 1, 40),
        (AllocMode::Reserve, 64, 0),
    ] {
        let lab = Lab { pages, ..Lab::new(1, 12, mode) };
        lab.run(async |volume| {
            let (ino, file) = create(&volume, "f").await;
            volume.setattr(ino, &SetAttr::size(1024 * KIB)).await.unwrap();
            let before = volume.alloc_stats();
            for n in 0..40 {
                write(&file, 1, n * 7 % 40 * 8 * KIB, 4 * KIB, DIRECT).await.unwrap();
            }
            let after = volume.alloc_stats();
            assert_eq!(after.holds - before.holds, 40, "{mode}");
            assert_eq!(after.turns - before.turns, turns, "{mode}, threshold {pages}");
        });
    }
}

/// A device that holds writes back until `wanted` of them have arrived.
struct Gate {
    lower: DeviceRef,
    wanted: usize,
    closed: AtomicBool,
    waiting: Mutex<Vec<Bio>>,
}

impl BlockDevice for Gate {
    fn name(&self) -> String {
        "gate".into()
    }

    fn limits(&self) -> Limits {
        self.lower.limits()
    }

    fn size(&self) -> u64 {
        self.lower.size()
    }

    fn submit(&self, bio: Bio) {
        if bio.op != BioOp::Write || !self.closed.load(Ordering::Relaxed) {
            return self.lower.submit(bio);
        }
        let mut waiting = self.waiting.lock();
        waiting.push(bio);
        if waiting.len() == self.wanted {
            self.closed.store(false, Ordering::Relaxed);
            let all = std::mem::take(&mut *waiting);
            drop(waiting);
            all.into_iter().for_each(|bio| self.lower.submit(bio));
        }
    }
}

/// The requests of eight writers are at the device at the same time, before any of them ends. A
/// writer that holds a lock or a turn meanwhile would block the others, and the world would report
/// a deadlock.
#[test]
fn a4_no_lock_is_held_while_device_serves_request() {
    for (mode, pages) in [(AllocMode::Serialized, 0), (AllocMode::Reserve, 64)] {
        let mut lab = Lab { pages, ..Lab::new(1, 12, mode) };
        let gate = Arc::new(Gate {
            lower: lab.device.clone(),
            wanted: 8,
            closed: AtomicBool::new(false),
            waiting: Mutex::default(),
        });
        lab.device = gate.clone();
        lab.run(async |volume| {
            // Opening writes a slot.
            gate.closed.store(true, Ordering::Relaxed);
            let jobs = (0..8).map(|tag| appends(&volume, tag, 1, 64 * KIB, DIRECT)).collect();
            lab.run_concurrently(jobs).await;
        });
        assert!(!gate.closed.load(Ordering::Relaxed), "{mode}: all eight were there at once");
    }
}

/// Ten writers of large requests for two seconds of simulated time on a disk with seeks. Returns
/// the number of requests of the fastest writer over that of the slowest one.
fn spread(seed: u64, mode: AllocMode) -> f64 {
    let mut lab = Lab::new(seed, 160, mode);
    let delays = DelayOptions {
        bandwidth: Some(100_000_000),
        seek: Duration::from_millis(1),
        ..DelayOptions::default()
    };
    let world = lab.world();
    lab.device = DelayDevice::new(lab.device.clone(), &world, delays);
    lab.run(async |volume| {
        let end = world.now() + 2_000_000_000;
        let one = |tag: u64| -> BoxFuture<'static, u64> {
            let (volume, world) = (volume.clone(), world.clone());
            Box::pin(async move {
                let (_, file) = create(&volume, &format!("w{tag}")).await;
                let mut done = 0;
                while world.now() < end {
                    write(&file, tag, done * LARGE, LARGE, DIRECT).await.unwrap();
                    done += 1;
                }
                done
            })
        };
        let done = run_concurrently(&world, (0..10).map(one).collect()).await;
        let (most, least) = (*done.iter().max().unwrap(), *done.iter().min().unwrap());
        most as f64 / least as f64
    })
}

/// All writers complete about the same number of requests.
#[test]
fn a6_writers_share_evenly() {
    for seed in seeds(2) {
        let serialized = spread(seed, AllocMode::Serialized);
        let ours = spread(seed, AllocMode::Reserve);
        assert!(serialized <= 1.2, "seed {seed}: {serialized}");
        assert!(ours <= 1.2, "seed {seed}: {ours}");
    }
}

/// Allocations by `writers` concurrent tasks, for each step of the simulated world.
fn given_out_per_step(seed: u64, mode: AllocMode, writers: u64) -> f64 {
    let lab = Lab { pages: 0, ..Lab::new(seed, 60, mode) };
    lab.run(async |volume| {
        let mut inodes: Vec<Ino> = Vec::new();
        let mut files = Vec::new();
        for n in 0..writers {
            let (ino, file) = create(&volume, &format!("f{n}")).await;
            inodes.push(ino);
            files.push(file);
        }
        let before = lab.disk.world().steps();
        let one = |n: usize| -> BoxFuture<'static, ()> { give_out(volume.clone(), inodes[n]) };
        lab.run_concurrently((0..writers as usize).map(one).collect()).await;
        let steps = lab.disk.world().steps() - before;
        (writers * REQUESTS) as f64 / steps as f64
    })
}

const REQUESTS: u64 = 20;

/// Allocates blocks for many requests, and returns those of each at once.
fn give_out(volume: Volume, ino: Ino) -> BoxFuture<'static, ()> {
    Box::pin(async move {
        for n in 0..REQUESTS {
            let run = n * LARGE..(n + 1) * LARGE;
            let taken = volume
                .0
                .take_places(ino.0, &[run], (forebay_iomap::Class::Direct, false))
                .await
                .unwrap();
            drop(taken);
        }
    })
}

/// With eight writers a request takes no more steps than with one: no writer is woken in vain or
/// waits for another one. `Interleaved` takes the lock once for each block of a request.
#[test]
fn a10_giving_out_scales_with_writers() {
    for seed in seeds(3) {
        let (one, eight) = (
            given_out_per_step(seed, AllocMode::Reserve, 1),
            given_out_per_step(seed, AllocMode::Reserve, 8),
        );
        assert!(eight >= 0.8 * one, "seed {seed}: {eight} against {one}");
        let torn = given_out_per_step(seed, AllocMode::Interleaved, 8);
        assert!(eight > 10.0 * torn, "seed {seed}: {eight} against {torn} block by block");
    }
    let lab = Lab::new(1, 12, AllocMode::Reserve);
    lab.run(async |volume| {
        let (_, file) = create(&volume, "f").await;
        write(&file, 1, 0, 8 * LARGE, DIRECT).await.unwrap();
        assert_eq!(volume.alloc_stats().holds, 1, "T22: whatever its length");
        let _ = volume.open(file.ino(), READ_WRITE).await.unwrap();
        write(&file, 1, 8 * LARGE, LARGE, DIRECT | IoFlags::DSYNC).await.unwrap();
    });
}
