//! The maintenance task where tasks could wait for one another in a circle: a full volume with
//! concurrent writers and unlinkers, a close during cleaning, files whose write-out needs a
//! checkpoint, callers that are dropped while they wait, and a world that stops. The simulated
//! world panics when all tasks wait.
//!
//! No locks.

use crate::tests::alloc::lab::run_concurrently;
use crate::tests::clean::sparse_of;
use crate::tests::reuse::{check, create, open, read, setup, write};
use crate::tests::seeds;
use crate::tests::setup::Setup;
use crate::{CreateOptions, OpenOptions, Volume};
use forebay_base::sim_world::SimWorld;
use forebay_base::task::{BoxFuture, block_on};
use forebay_base::world::{RealWorld, World, WorldRef, split_mix};
use forebay_base::{ErrorKind, Result};
use forebay_block::{DeviceRef, RamDevice};
use forebay_cache::{Config, PageCache};
use forebay_sim::{SimConfig, SimDisk};
use forebay_vfs::{FileSystem, Ino, Name, OpenFlags, SetAttr, Timestamp};
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

const BLOCK: usize = 4096;

/// `NoSpace` is an answer; each other error is a failure.
fn unless_full<T>(done: Result<T>) -> Option<T> {
    match done {
        Ok(value) => Some(value),
        Err(error) if error.kind() == ErrorKind::NoSpace => None,
        Err(error) => panic!("{error}"),
    }
}

async fn unlink(volume: &Volume, name: &str) -> bool {
    let done = volume.unlink(Ino::ROOT, Name::new(name.as_bytes()).unwrap()).await;
    match done {
        Ok(()) => true,
        Err(error) if error.kind() == ErrorKind::NotFound => false,
        Err(error) => panic!("unlink {name}: {error}"),
    }
}

/// Creates, writes, syncs and truncates `files` files of its own until it was refused three times.
async fn writer(volume: Volume, number: u64, seed: u64, files: u64) {
    let (mut rng, mut refused, mut n) = (seed ^ number << 32, 0, 0u64);
    while refused < 3 {
        n += 1;
        let name = format!("w{number}-{}", n % files);
        let Some((_, file)) = unless_full(create(&volume, &name).await) else {
            refused += 1;
            continue;
        };
        let blocks = 1 + split_mix(&mut rng) % 24;
        for at in 0..blocks {
            let bytes = vec![n as u8; BLOCK];
            if unless_full(write(&file, at * BLOCK as u64, &bytes).await).is_none() {
                refused += 1;
                break;
            }
        }
        match split_mix(&mut rng) % 4 {
            0 => file.sync(true).await.unwrap(),
            1 => file.sync(false).await.unwrap(),
            2 => drop(volume.setattr(file.ino(), &SetAttr::size(BLOCK as u64)).await),
            _ => {}
        }
        assert!(n < 4000, "it fills up");
    }
}

/// Unlinks files of all writers.
async fn unlinker(volume: Volume, (writers, files): (u64, u64), seed: u64) {
    let mut rng = seed;
    for _ in 0..60 {
        let name = format!("w{}-{}", split_mix(&mut rng) % writers, split_mix(&mut rng) % files);
        unlink(&volume, &name).await;
        if split_mix(&mut rng).is_multiple_of(8) {
            volume.syncfs().await.unwrap();
        }
    }
}

/// After all files are removed there is space again.
async fn emptied(volume: &Volume, (writers, files): (u64, u64)) {
    for number in 0..writers {
        for n in 0..files {
            unlink(volume, &format!("w{number}-{n}")).await;
        }
    }
    let (_, file) = create(volume, "after").await.unwrap();
    for at in 0..64 {
        write(&file, at * BLOCK as u64, &[1; BLOCK]).await.expect("space is back");
    }
    file.sync(false).await.unwrap();
}

/// Writers and an unlinker fill a volume at the same time. Each gets an answer, what was accepted
/// can be synced, the space comes back when all is unlinked, and fsck finds nothing.
fn all_are_answered(setup: &Setup, disk: &SimDisk, (writers, files): (u64, u64), seed: u64) {
    disk.world().run(async {
        let volume = open(setup, disk).await.unwrap();
        let world: WorldRef = disk.world().clone();
        let mut tasks: Vec<BoxFuture<'static, ()>> = Vec::new();
        for number in 0..writers {
            tasks.push(Box::pin(writer(volume.clone(), number, seed, files)));
        }
        tasks.push(Box::pin(unlinker(volume.clone(), (writers, files), seed)));
        run_concurrently(&world, tasks).await;
        volume.syncfs().await.expect("what was accepted has space");
        emptied(&volume, (writers, files)).await;
        volume.close().await.unwrap();
    });
    disk.world().stop();
    let report = check(&disk.in_world(SimWorld::new(seed)));
    assert!(report.is_clean(), "seed {seed}: {:?}", report.findings);
}

/// maintenance.Z11, requests.J1, requests.J4: tasks that find a volume full wait for the
/// maintenance, while others write, sync and unlink, and each gets an answer.
#[test]
fn full_volume_with_writers_and_unlinkers_answers_all() {
    const WRITERS: u64 = 4;
    const FILES: u64 = 40;
    for seed in seeds(12) {
        let setup = setup(if seed % 2 == 0 { 0 } else { 64 << 10 });
        let disk = setup.blank_of(seed);
        all_are_answered(&setup, &disk, (WRITERS, FILES), seed);
    }
}

/// The volume is closed while the cleaner moves blocks and writers still need space. Whether an
/// attempt works depends on the writers; the last one does.
#[test]
fn close_during_cleaning_ends() {
    for seed in seeds(6) {
        let setup = setup(0);
        let disk = setup.blank_of(seed);
        disk.world().run(async {
            let (volume, file, model) = sparse_of(&setup, &disk, None, 144).await;
            let world: WorldRef = disk.world().clone();
            let other = volume.clone();
            let cleaning = async move { while other.clean().await.is_ok_and(|any| any) {} };
            let (blocks, mut rng) = ((model.len() / BLOCK) as u64, seed);
            let writing = async move {
                for n in 0..60u8 {
                    let at = split_mix(&mut rng) % blocks * BLOCK as u64;
                    match write(&file, at, &[n; BLOCK]).await {
                        Err(error) if error.kind() == ErrorKind::Shutdown => break,
                        done => drop(done.unwrap()),
                    }
                }
            };
            let (clock, closed) = (world.clone(), volume.clone());
            let closing = async move {
                clock.sleep(Duration::from_micros(seed * 150)).await;
                closed.close().await.unwrap();
            };
            let tasks: Vec<BoxFuture<'static, ()>> =
                vec![Box::pin(cleaning), Box::pin(writing), Box::pin(closing)];
            run_concurrently(&world, tasks).await;
            volume.close().await.unwrap();
        });
        disk.world().stop();
        let report = check(&disk.in_world(SimWorld::new(seed)));
        assert!(report.is_clean(), "seed {seed}: {:?}", report.findings);
    }
}

/// maintenance.Z15: a checkpoint by age writes outstanding content first. That write-out waits for
/// a checkpoint itself, because the changes in memory exceed their bound. One job for both would
/// wait for itself.
#[test]
fn write_out_before_a_checkpoint_may_need_a_checkpoint() {
    let setup = Setup { volume_bytes: 8 << 20, ..setup(0) };
    let disk = setup.blank();
    disk.world().run(async {
        let (device, world): (DeviceRef, WorldRef) = (Arc::new(disk.clone()), disk.world().clone());
        let age = Duration::from_secs(10);
        let (overlay_bytes, checkpoint_age) = (24 << 10, age);
        let options = OpenOptions { overlay_bytes, checkpoint_age, ..setup.options(&world) };
        let volume = Volume::open(&device, &world, &options).await.unwrap();
        for n in 0..40 {
            let (ino, file) = create(&volume, &format!("f{n}")).await.unwrap();
            write(&file, 0, &[1; 8 * BLOCK]).await.unwrap();
            file.sync(true).await.unwrap();
            drop(file);
            let again = volume.open(ino, OpenFlags::WRITE | OpenFlags::TRUNCATE).await.unwrap();
            for at in 0..4 {
                write(&again, at * 2 * BLOCK as u64, &[2; BLOCK]).await.unwrap();
            }
            drop(again);
        }
        let outstanding = || volume.0.state.lock().files().outstanding().len();
        assert!(outstanding() > 0, "closed files have content that is not written");
        let before = volume.0.checkpoints.number();
        World::sleep(&**disk.world(), 5 * age).await;
        assert!(volume.0.checkpoints.number() > before, "Z14");
        assert_eq!(outstanding(), 0, "Z15");
        volume.close().await.unwrap();
    });
    disk.world().stop();
    assert!(check(&disk).is_clean());
}

/// Polls a future up to `times` times, each when it is woken; true if it ended.
async fn poll_times(times: u32, future: impl Future) -> bool {
    let (mut future, mut polls) = (pin!(future), 0);
    poll_fn(|cx| {
        polls += 1;
        match future.as_mut().poll(cx) {
            Poll::Ready(_) => Poll::Ready(true),
            Poll::Pending if polls >= times => Poll::Ready(false),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

/// requests.J3: a caller that requested maintenance is dropped while it waits. The job goes on,
/// other callers of the same job and those that come later are answered.
#[test]
fn dropped_request_stops_no_job() {
    for which in 0..3 {
        let setup = setup(0);
        let disk = setup.blank();
        disk.world().run(async {
            let (volume, _file, _) = sparse_of(&setup, &disk, None, 96).await;
            let requests = &volume.0.requests;
            let request = || -> BoxFuture<'_, bool> {
                match which {
                    0 => Box::pin(requests.make_space()),
                    1 => Box::pin(async { requests.checkpoint().await.is_ok() }),
                    _ => Box::pin(async {
                        requests.free_removed().await;
                        true
                    }),
                }
            };
            let before = volume.0.checkpoints.number();
            assert!(!poll_times(1, request()).await, "it waits");
            let (mut kept, dropped) = (request(), request());
            assert!(!poll_times(1, dropped).await);
            assert!(kept.as_mut().await, "answered");
            assert!(request().await, "a later one is answered, too");
            assert!(which == 2 || volume.0.checkpoints.number() > before);
            volume.close().await.unwrap();
        });
        disk.world().stop();
        assert!(check(&disk).is_clean());
    }
}

/// requests.J5: a request that wants no pass to be in progress is answered when the pass has ended.
#[test]
fn request_that_ends_pass_waits_for_pass() {
    let setup = setup(0);
    let disk = setup.blank();
    disk.world().run(async {
        let volume = open(&setup, &disk).await.unwrap();
        let turn = volume.0.cleaning.take_turn().await;
        let mut request = Box::pin(volume.0.requests.make_space_and_end_pass());
        assert!(!poll_times(1, request.as_mut()).await);
        World::sleep(&**disk.world(), Duration::from_secs(1)).await;
        let polled = poll_fn(|cx| Poll::Ready(request.as_mut().poll(cx))).await;
        assert!(polled.is_pending(), "the pass is in progress");
        drop(turn);
        request.await;
        volume.close().await.unwrap();
    });
    disk.world().stop();
}

/// requests.J2, maintenance.Z16: the world stops with a request in the queue. The caller that still
/// waits is refused.
#[test]
fn request_is_refused_when_the_world_stops() {
    let setup = setup(0);
    let disk = setup.blank();
    let volume = disk.world().run(open(&setup, &disk)).unwrap();
    let mut request = Box::pin(volume.0.requests.checkpoint());
    let polled = disk.world().run(poll_fn(|cx| Poll::Ready(request.as_mut().poll(cx))));
    assert!(polled.is_pending());
    disk.world().stop();
    let done = request.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    let Poll::Ready(Err(error)) = done else { panic!("{done:?}") };
    assert_eq!(error.kind(), ErrorKind::Shutdown, "{error}");
    drop(request);
    // The volume works in a world that goes on.
    let again = disk.world().run(volume.0.requests.checkpoint());
    again.unwrap();
    disk.world().stop();
}

/// Bytes of a volume whose device pads each record to 4 KiB: then a small record takes 12 KiB of
/// the log with its padding and its mark, and a segment has space for 14.
const PADDED_BYTES: u64 = 16 << 20;

fn create_padded() -> CreateOptions {
    CreateOptions {
        segment_bytes: 256 << 10,
        ..CreateOptions::new([1; 16], [2; 16], Timestamp::new(1, 0))
    }
}

/// An empty volume on a simulated disk with sectors of 4 KiB.
fn padded_disk(seed: u64) -> SimDisk {
    let world = SimWorld::new(seed);
    let config = SimConfig { size: PADDED_BYTES, sector: 4096, ..SimConfig::default() };
    let disk = SimDisk::new(world.clone(), config);
    let (device, asked): (DeviceRef, WorldRef) = (Arc::new(disk.clone()), world.clone());
    world.run(Volume::create(&device, &asked, &create_padded())).unwrap();
    world.stop();
    disk
}

/// maintenance.Z17: the mark of a checkpoint takes a block of this device, which is as much log as
/// makes a checkpoint due here. The story: each checkpoint made the next one due, and the volume
/// could not be closed.
#[test]
fn checkpoint_by_size_makes_no_other_one_due() {
    let setup = setup(0);
    let disk = padded_disk(1);
    disk.world().run(async {
        let (device, world): (DeviceRef, WorldRef) = (Arc::new(disk.clone()), disk.world().clone());
        let options = OpenOptions { checkpoint_bytes: 4096, ..setup.options(&world) };
        let volume = Volume::open(&device, &world, &options).await.unwrap();
        let before = volume.0.checkpoints.number();
        let (_, file) = create(&volume, "f").await.unwrap();
        write(&file, 0, &[1; BLOCK]).await.unwrap();
        file.sync(true).await.unwrap();
        World::sleep(&**disk.world(), Duration::from_millis(200)).await;
        let made = volume.0.checkpoints.number() - before;
        assert!((1..4).contains(&made), "{made} checkpoints for one sync");
        drop(file);
        volume.close().await.unwrap();
    });
    disk.world().stop();
    assert!(check(&disk).is_clean());
}

/// reserve.M14, relief.Q14: a sync of a full volume also writes the times of files that were read.
/// The story: each inode had a separate record, and after two requests for space the sync was
/// refused.
#[test]
fn sync_of_many_times_on_full_volume_is_not_refused() {
    const FILES: u64 = 900;
    let setup = Setup { inode_cache_bytes: 2 << 20, ..setup(0) };
    let disk = padded_disk(1);
    disk.world().run(async {
        let volume = open(&setup, &disk).await.unwrap();
        let mut files = Vec::new();
        for n in 0..FILES {
            let (_, file) = create(&volume, &format!("f{n}")).await.unwrap();
            write(&file, 0, &[1; BLOCK]).await.unwrap();
            files.push(file);
        }
        volume.syncfs().await.unwrap();
        let (_, large) = create(&volume, "large").await.unwrap();
        let mut at = 0;
        while unless_full(write(&large, at, &[2; 8 * BLOCK]).await).is_some() {
            at += 8 * BLOCK as u64;
        }
        large.sync(true).await.unwrap();
        for file in &files {
            assert_eq!(read(file, BLOCK).await, [1; BLOCK]);
        }
        assert!(volume.0.state.lock().names().moved().count() as u64 >= FILES, "their times moved");
        volume.syncfs().await.expect("it has space for times");
        assert!(volume.0.state.lock().names().moved().next().is_none());
        drop((files, large));
        volume.close().await.unwrap();
    });
    disk.world().stop();
    assert!(check(&disk).is_clean());
}

/// maintenance.Z11, reserve.M14, relief.Q14: a full volume on a device that pads records, so that
/// few records find space in the log at a time and tasks take it from one another.
#[test]
fn full_volume_with_padded_records_answers_all() {
    const WRITERS: u64 = 3;
    const FILES: u64 = 200;
    for seed in seeds(4) {
        let setup = Setup { inode_cache_bytes: 2 << 20, ..setup(0) };
        let disk = padded_disk(seed);
        all_are_answered(&setup, &disk, (WRITERS, FILES), seed);
    }
}

fn real_volume() -> Volume {
    let (device, world): (DeviceRef, WorldRef) =
        (Arc::new(RamDevice::new(PADDED_BYTES)), RealWorld::with_seed(1));
    block_on(Volume::create(&device, &world, &create_padded())).unwrap();
    let config = Config { huge_pages: false, ..Config::with_budget(4 << 20) };
    let cache = Some(PageCache::new(config, world.clone()).unwrap());
    let options = OpenOptions { cache, ..OpenOptions::default() };
    block_on(Volume::open(&device, &world, &options)).unwrap()
}

/// A full volume with real threads: each caller blocks, and the maintenance runs on the threads of
/// the world.
#[test]
fn full_volume_with_threads_answers_all() {
    const WRITERS: u64 = 3;
    const FILES: u64 = 200;
    for seed in seeds(4) {
        let volume = real_volume();
        std::thread::scope(|scope| {
            for number in 0..WRITERS {
                let volume = volume.clone();
                scope.spawn(move || block_on(writer(volume, number, seed, FILES)));
            }
            scope.spawn(|| block_on(unlinker(volume.clone(), (WRITERS, FILES), seed)));
        });
        block_on(volume.syncfs()).unwrap();
        block_on(emptied(&volume, (WRITERS, FILES)));
        block_on(volume.close()).unwrap();
    }
}
