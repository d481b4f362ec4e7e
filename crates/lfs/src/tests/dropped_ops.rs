//! Every operation on a file of a volume, and the close of the volume, is dropped after each of its
//! polls in the simulated world, and after some of its polls on both real engines.
//!
//! No locks.

use crate::names::lookup::Stop;
use crate::tests::reuse::{check, create, read, setup, write};
use crate::tests::setup::Setup;
use crate::{CreateOptions, FsckReport, OpenOptions, Volume, fsck};
use forebay_base::IoFlags;
use forebay_base::buf::AlignedBuf;
use forebay_base::task::block_on;
use forebay_base::world::{RealWorld, WorldRef};
use forebay_block::{Aio, DeviceRef, DirectIo, Engine, FileDevice, FileOptions};
use forebay_cache::strategy::UncachedStrategy;
use forebay_cache::{Config, PageCache};
use forebay_testkit::dropped_ops::{
    Checked, Drops, Op, Outcome, SIZE, Subject, WAITING_KINDS, ended_after,
};
use forebay_vfs::{
    Fallocate, FileSystem, Ino, Name, OpenFileRef, OpenFlags, Privileges, SetAttr, Timestamp,
};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Opens the volume with a cache that is large enough for the file, and can be made smaller.
async fn open(
    setup: &Setup,
    (device, world): (&DeviceRef, &WorldRef),
    strategy: UncachedStrategy,
) -> Volume {
    let config = Config {
        huge_pages: false,
        folio_size: 65536,
        budget_max: Some(8 << 20),
        ..Config::with_budget(1 << 20)
    };
    let cache = PageCache::new(config, world.clone()).unwrap();
    cache.resize(4 << 20).await.unwrap();
    cache.strategies.set_uncached(strategy);
    let options = OpenOptions { cache: Some(cache), ..setup.options(world) };
    Volume::open(device, world, &options).await.unwrap()
}

/// Carries the operation out on an open file, by the calls of the volume. Its result does not
/// matter. `Shrink` resizes the cache, and `Close` is a sync with all metadata.
async fn run_on(volume: &Volume, file: &OpenFileRef, subject: &Subject, op: Op) {
    let keep = Privileges::Keep;
    let bytes = |len| AlignedBuf::copy_of(&vec![2; len]);
    let change = async |how, at: usize, len: usize| {
        drop(file.fallocate(how, at as u64, len as u64, keep).await);
    };
    match op {
        Op::Read(flags) => drop(file.read(0, AlignedBuf::new(SIZE), flags).await),
        Op::Write(flags, at, len) => drop(file.write(at as u64, bytes(len), flags, keep).await),
        Op::Append(flags) | Op::AppendDuringAppend(flags) => {
            drop(file.write(0, bytes(8192), flags | IoFlags::APPEND, keep).await)
        }
        Op::Trim(at, len) => change(Fallocate::PunchHole, at, len).await,
        Op::Zero(at, len) => change(Fallocate::ZeroRange { keep_size: true }, at, len).await,
        Op::Truncate(to) | Op::TruncateDuringAppend(to) => {
            drop(volume.setattr(file.ino(), &SetAttr::size(to as u64)).await);
        }
        Op::Grow(to) | Op::GrowDuringAppend(to) => {
            change(Fallocate::Allocate { keep_size: false }, 0, to).await
        }
        Op::Sync => drop(file.sync(true).await),
        Op::Close => drop(file.sync(false).await),
        Op::Shrink => subject.run(op).await,
    }
}

/// Which layer carries an operation out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Layer {
    /// The mapping layer, below the volume's calls.
    Mapped,
    /// The volume, as a front end calls it.
    Volume,
}

/// Drops an operation on a new file of a volume, and closes the volume.
async fn drop_on(
    layer: Layer,
    (device, world): (&DeviceRef, &WorldRef),
    (op, polls, strategy): (Op, u32, UncachedStrategy),
) -> Checked<Outcome> {
    let volume = open(&setup(0), (device, world), strategy).await;
    let (ino, opened) = create(&volume, "f").await.unwrap();
    let content = volume.0.files.content("drop", ino).map_err(Stop::open).unwrap();
    let (file, world) = (content.file.clone(), world.clone());
    let handle = file.open_handle();
    let subject = Subject { file, handle, world };
    let done = match layer {
        Layer::Mapped => subject.drop_one(op, polls).await,
        Layer::Volume => {
            let running = run_on(&volume, &opened, &subject, op);
            subject.drop_running(op, polls, running).await
        }
    };
    drop((subject, content, opened));
    volume.close().await.map_err(|error| format!("close: {error}"))?;
    done
}

fn checked(report: &FsckReport) -> Checked<()> {
    match report.findings.is_empty() {
        true => Ok(()),
        false => Err(format!("fsck finds {:?}", report.findings)),
    }
}

fn drop_one(
    layer: Layer,
    seed: u64,
    (op, polls, strategy): (Op, u32, UncachedStrategy),
) -> Checked<Outcome> {
    let disk = setup(0).blank_of(seed);
    let (device, world): (DeviceRef, WorldRef) = (Arc::new(disk.clone()), disk.world().clone());
    let done = disk.world().run(drop_on(layer, (&device, &world), (op, polls, strategy)));
    disk.world().stop();
    checked(&check(&disk))?;
    done.map_err(|what| format!("{layer:?}, seed {seed}: {what}"))
}

fn drop_all(layer: Layer) {
    let mut all = Drops::default();
    for seed in 1..5 {
        all.add_all(true, |op, polls, strategy| drop_one(layer, seed, (op, polls, strategy)));
    }
    println!("{layer:?}: {all:?}");
    assert_eq!(all.on_device_dropped, all.on_device, "what waits for the device is dropped");
    assert!(all.drops > all.operations, "{all:?}");
    assert_eq!(all.never_dropped(&WAITING_KINDS), None, "{layer:?}: {all:?}");
    assert_eq!(all.never_dropped_later(&WAITING_KINDS), None, "{layer:?}: {all:?}");
}

#[test]
fn mapped_file_operation_dropped_at_any_poll_leaves_nothing_behind() {
    drop_all(Layer::Mapped);
}

#[test]
fn volume_operation_dropped_at_any_poll_leaves_nothing_behind() {
    drop_all(Layer::Volume);
}

/// An empty volume in a file of the host.
fn blank_real((engine, path): (&Engine, &Path), direct_io: DirectIo) -> (DeviceRef, WorldRef) {
    let _ = std::fs::remove_file(path);
    let options = FileOptions {
        direct_io,
        create_size: Some(setup(0).volume_bytes),
        ..FileOptions::default()
    };
    let device: DeviceRef = FileDevice::open(path, &options, engine).unwrap();
    let world: WorldRef = RealWorld::with_seed(1);
    let create = CreateOptions {
        block_bytes: setup(0).block_bytes,
        segment_bytes: 64 << 10,
        ..CreateOptions::new([7; 16], [9; 16], Timestamp::new(1, 0))
    };
    block_on(Volume::create(&device, &world, &create)).unwrap();
    (device, world)
}

/// One operation on a file of a volume in a file of the host, dropped after `polls` polls.
fn drop_one_real(
    on: (&Engine, &Path),
    direct_io: DirectIo,
    (op, polls, strategy): (Op, u32, UncachedStrategy),
) -> Checked<Outcome> {
    let (device, world) = blank_real(on, direct_io);
    let done = block_on(drop_on(Layer::Volume, (&device, &world), (op, polls, strategy)));
    checked(&block_on(fsck(&device, &world, &mut |_| ())).unwrap())?;
    done.map_err(|what| format!("{direct_io:?}: {what}"))
}

/// The least number of operations to drop on a real engine.
const DROPS: u32 = 32;
/// Longest time to reach the least number of drops. One round or two are enough as a rule.
const PATIENCE: Duration = Duration::from_secs(300);

/// Kinds of operations that must all be dropped on a real engine. Trim and zero are not among them:
/// the caller's thread reads the edges of their range, so they never wait.
const KINDS_REAL: [&str; 7] = ["read", "write", "append", "truncate", "sync", "close", "shrink"];

/// The engine, and a file of the host for the test of that name. None: this machine lacks the
/// engine, and the caller of the tests allows that.
fn engine_and_path(aio: Aio, test: &str) -> Option<(Engine, PathBuf)> {
    let engine = match Engine::new(aio) {
        Ok(engine) => engine,
        Err(error) => {
            let allowed = std::env::var("FOREBAY_ALLOW_SKIP").is_ok_and(|v| v == "1");
            assert!(aio == Aio::IoUring && allowed, "the engine {aio} is needed: {error}");
            eprintln!("skipped: needs the engine {aio}: {error}");
            return None;
        }
    };
    let name = format!("forebay-dropped-{test}-{}-{aio}.img", std::process::id());
    Some((engine, std::env::temp_dir().join(name)))
}

/// The kernel completes requests in any order, so the polls at which an operation is dropped are
/// only a sample. On a busy machine many operations end before they can be dropped.
fn drop_all_real(aio: Aio) {
    let Some((engine, path)) = engine_and_path(aio, "volume") else { return };
    for direct_io in [DirectIo::Auto, DirectIo::Off] {
        let mut all = Drops::default();
        let end = Instant::now() + PATIENCE;
        while Instant::now() < end {
            all.add_all(true, |op, polls, strategy| {
                drop_one_real((&engine, &path), direct_io, (op, polls, strategy))
            });
            let each = all.never_dropped(&KINDS_REAL).is_none();
            if all.drops >= DROPS && all.on_device_dropped >= DROPS / 4 && each {
                break;
            }
        }
        println!("{aio}, {direct_io:?}: {all:?}");
        assert!(all.drops >= DROPS && all.on_device_dropped >= DROPS / 4, "{all:?}");
        assert_eq!(all.never_dropped(&KINDS_REAL), None, "{direct_io:?}: {all:?}");
    }
    let _ = std::fs::remove_file(&path);
}

#[test]
fn operation_of_a_volume_dropped_on_threads_leaves_nothing_behind() {
    drop_all_real(Aio::Threads);
}

#[test]
fn volume_operation_dropped_on_io_uring_leaves_nothing_behind() {
    drop_all_real(Aio::IoUring);
}

/// Content of the file `f` when the close of its volume is dropped.
fn content() -> Vec<u8> {
    vec![7; 100_000]
}

/// Writes content and drops the close of the volume after `polls` polls; true if the close ended
/// before. A second close works.
async fn close_on((device, world): (&DeviceRef, &WorldRef), polls: u32) -> bool {
    let volume = open(&setup(0), (device, world), UncachedStrategy::Ours).await;
    let (_, file) = create(&volume, "f").await.unwrap();
    write(&file, 0, &content()).await.unwrap();
    drop(file);
    let ended = ended_after(polls, volume.close()).await;
    // A commit that the dropped close had begun is completed without that close.
    let again = volume.close().await;
    again.unwrap_or_else(|error| panic!("dropped after {polls} polls: {error}"));
    ended
}

async fn content_on((device, world): (&DeviceRef, &WorldRef)) -> Vec<u8> {
    let volume = open(&setup(0), (device, world), UncachedStrategy::Ours).await;
    let ino = volume.lookup(Ino::ROOT, Name::new(b"f").unwrap()).await.unwrap().ino;
    let file = volume.open(ino, OpenFlags::READ).await.unwrap();
    let found = read(&file, 1 << 17).await;
    drop(file);
    volume.close().await.unwrap();
    found
}

fn close_dropped(polls: u32) -> bool {
    let disk = setup(0).blank();
    let (device, world): (DeviceRef, WorldRef) = (Arc::new(disk.clone()), disk.world().clone());
    let ended = disk.world().run(close_on((&device, &world), polls));
    disk.world().stop();
    assert!(check(&disk).is_clean(), "dropped after {polls} polls");
    let found = disk.world().run(content_on((&device, &world)));
    disk.world().stop();
    assert!(found == content(), "dropped after {polls} polls");
    ended
}

#[test]
fn volume_close_dropped_at_any_poll_can_be_repeated() {
    let drops = (1..1000).take_while(|&polls| !close_dropped(polls)).count();
    assert!(drops > 4, "it waits: {drops} drops");
}

/// The least number of closes to drop on a real engine.
const CLOSES: usize = 8;

fn drop_closes_real(aio: Aio) {
    let Some((engine, path)) = engine_and_path(aio, "close") else { return };
    for direct_io in [DirectIo::Auto, DirectIo::Off] {
        let close_dropped = |polls| {
            let (device, world) = blank_real((&engine, &path), direct_io);
            let ended = block_on(close_on((&device, &world), polls));
            let report = block_on(fsck(&device, &world, &mut |_| ())).unwrap();
            assert!(report.is_clean(), "dropped after {polls} polls: {report:?}");
            let found = block_on(content_on((&device, &world)));
            assert!(found == content(), "dropped after {polls} polls");
            ended
        };
        let mut drops = 0;
        let end = Instant::now() + PATIENCE;
        while Instant::now() < end {
            drops += (1..1000).take_while(|&polls| !close_dropped(polls)).count();
            if drops >= CLOSES {
                break;
            }
        }
        println!("{aio}, {direct_io:?}: {drops} closes dropped");
        assert!(drops >= CLOSES, "{direct_io:?}: {drops} closes dropped");
    }
    let _ = std::fs::remove_file(&path);
}

#[test]
fn close_of_a_volume_dropped_on_threads_can_be_repeated() {
    drop_closes_real(Aio::Threads);
}

#[test]
fn volume_close_dropped_on_io_uring_can_be_repeated() {
    drop_closes_real(Aio::IoUring);
}
