//! Every operation is dropped after each of its polls, on maps in place and on one that moves what
//! is written, in the simulated world; and after some of its polls on both real engines.

use super::harness::Lab;
use crate::engines::engine;
use crate::eof::device::EndDevice;
use forebay_base::sim_world::SimWorld;
use forebay_base::task::block_on;
use forebay_base::world::{RealWorld, WorldRef};
use forebay_block::{Aio, DeviceRef, DirectIo, Engine, FileDevice, FileOptions};
use forebay_cache::strategy::UncachedStrategy;
use forebay_cache::{Config, PageCache};
use forebay_iomap::identity::Identity;
use forebay_iomap::{MapOps, MappedFile};
use forebay_sim::SimDisk;
use forebay_testkit::dropped_ops::{
    Checked, Drops, GROWING_KINDS, KINDS_WITHOUT_WAIT, Op, Outcome, SIZE, Subject, WAITING_KINDS,
};
use forebay_testkit::remap::{Remap, RemapOptions};
use std::sync::Arc;
use std::time::{Duration, Instant};

const BLOCK: u32 = 4096;

/// Where the bytes of the file are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Map {
    /// In place, on a device of a fixed size.
    InPlace,
    /// In place, on a device that becomes longer and shorter with the file.
    RawImage,
    /// Elsewhere after each write, with sums.
    Moving,
}

fn subject(map: Arc<dyn MapOps>, world: WorldRef, strategy: UncachedStrategy) -> Subject {
    let config = Config {
        huge_pages: false,
        folio_size: 65536,
        budget_max: Some(8 << 20),
        ..Config::with_budget(1 << 20)
    };
    let cache = PageCache::new(config, world.clone()).unwrap();
    block_on(cache.resize(4 << 20)).unwrap();
    cache.strategies.set_uncached(strategy);
    let file = MappedFile::new(&cache, map, BLOCK, SIZE as u64, false).unwrap();
    let handle = file.open_handle();
    Subject { file, handle, world }
}

fn remap(device: DeviceRef, waits: Option<WorldRef>) -> Arc<dyn MapOps> {
    Remap::with_options(device, BLOCK, RemapOptions { grows: true, sums: true, waits })
}

fn simulated(
    seed: u64,
    map: Map,
    op: Op,
    polls: u32,
    strategy: UncachedStrategy,
) -> Checked<Outcome> {
    let world = SimWorld::new(seed);
    let own: WorldRef = world.clone();
    let disk = || Arc::new(SimDisk::new(world.clone(), Lab::sim(1 << 20)));
    let ops: Arc<dyn MapOps> = match map {
        Map::InPlace => {
            let sim = forebay_sim::SimConfig { size: SIZE as u64, ..Lab::sim(0) };
            Arc::new(Identity::new(Arc::new(SimDisk::new(world.clone(), sim))))
        }
        Map::RawImage => {
            Arc::new(Identity::new(EndDevice::new(world.clone(), 512, false, SIZE as u64)))
        }
        Map::Moving => remap(disk(), Some(own.clone())),
    };
    let subject = subject(ops, own, strategy);
    let done = world.run(subject.drop_one(op, polls));
    done.map_err(|what| format!("{map:?}, seed {seed}: {what}"))
}

fn drop_simulated(map: Map) {
    let mut all = Drops::default();
    for seed in 0..4 {
        all.add_all(map != Map::InPlace, |op, polls, strategy| {
            simulated(seed, map, op, polls, strategy)
        });
    }
    println!("{map:?}: {all:?}");
    assert_eq!(all.on_device_dropped, all.on_device, "what waits for the device is dropped");
    assert!(all.on_device * 4 > all.operations && all.drops > all.operations, "{all:?}");
    let grows = |kind: &&str| map == Map::InPlace && GROWING_KINDS.contains(kind);
    let kinds = |all: &[&'static str]| -> Vec<_> {
        all.iter().copied().filter(|kind| !grows(kind)).collect()
    };
    let waiting = kinds(&WAITING_KINDS);
    assert_eq!(all.never_dropped(&waiting), None, "{map:?}: {all:?}");
    assert_eq!(all.never_dropped_later(&waiting), None, "{map:?}: {all:?}");
    assert_eq!(all.dropped_of(&KINDS_WITHOUT_WAIT), None, "{map:?}: {all:?}");
    // A moving map trims and zeroes by records: the device works for their edges at most.
    if map != Map::Moving {
        let (trims, zeros) = (all.on_device_of("trim"), all.on_device_of("zero"));
        assert!(trims > 0 && zeros > 0, "{map:?}: {all:?}");
    }
}

#[test]
fn operation_dropped_at_any_poll_in_place_leaves_nothing_behind() {
    drop_simulated(Map::InPlace);
}

#[test]
fn operation_dropped_at_any_poll_leaves_nothing_on_raw_image() {
    drop_simulated(Map::RawImage);
}

#[test]
fn operation_dropped_at_any_poll_leaves_nothing_on_moving_map() {
    drop_simulated(Map::Moving);
}

/// One operation on a file of the host, dropped after so many polls.
fn real(
    (engine, path): (&Engine, &std::path::Path),
    (map, direct): (Map, bool),
    (op, polls, strategy): (Op, u32, UncachedStrategy),
) -> Checked<Outcome> {
    let _ = std::fs::remove_file(path);
    let size = if map == Map::Moving { 1 << 20 } else { SIZE as u64 };
    let options = FileOptions {
        direct_io: if direct { DirectIo::Auto } else { DirectIo::Off },
        create_size: Some(size),
        logical_block: 512,
        ..FileOptions::default()
    };
    let device: DeviceRef = FileDevice::open(path, &options, engine).unwrap();
    let ops: Arc<dyn MapOps> = match map {
        Map::Moving => remap(device, None),
        _ => Arc::new(Identity::new(device)),
    };
    let subject = subject(ops, RealWorld::with_seed(1), strategy);
    let done = block_on(subject.drop_one(op, polls));
    done.map_err(|what| format!("{map:?}, direct I/O {direct}: {what}"))
}

/// Operations that are to be dropped on a real engine, at least.
const DROPS: u32 = 32;
/// Time within which that has to happen. One round is enough as a rule. On a raw image with direct
/// I/O by threads a close is dropped in one of four.
const PATIENCE: Duration = Duration::from_secs(300);

/// Operations each of which is to be dropped on a real engine.
fn kinds_real(map: Map) -> &'static [&'static str] {
    match map {
        // The caller's thread carries out a close, and reads the edges of a range to trim or zero.
        // This map waits for nothing else.
        Map::Moving => &["read", "write", "append", "truncate", "sync", "shrink"],
        _ => &["read", "write", "append", "trim", "zero", "truncate", "sync", "close", "shrink"],
    }
}

fn drop_real(aio: Aio, name: &str) {
    let Some(engine) = engine(aio) else { return };
    let name = format!("forebay-dropped-{}-{name}.img", std::process::id());
    let path = std::env::temp_dir().join(name);
    for (map, direct) in [(Map::RawImage, true), (Map::RawImage, false), (Map::Moving, true)] {
        let mut all = Drops::default();
        // The kernel answers in an order of its own, so the polls at which an operation is dropped
        // are a sample of those that it may take. On a busy machine many operations end before
        // they can be dropped.
        let end = Instant::now() + PATIENCE;
        while Instant::now() < end {
            all.add_all(true, |op, polls, strategy| {
                real((&engine, &path), (map, direct), (op, polls, strategy))
            });
            let each = all.never_dropped(kinds_real(map)).is_none();
            if all.drops >= DROPS && all.on_device_dropped >= DROPS / 4 && each {
                break;
            }
        }
        println!("{aio}, {map:?}, direct I/O {direct}: {all:?}");
        assert!(all.on_device_dropped >= DROPS / 4, "dropped on its way: {all:?}");
        assert!(all.drops >= DROPS, "{all:?}");
        assert_eq!(
            all.never_dropped(kinds_real(map)),
            None,
            "{map:?}, direct I/O {direct}: {all:?}"
        );
    }
    let _ = std::fs::remove_file(&path);
}

#[test]
fn operation_dropped_on_threads_leaves_nothing_behind() {
    drop_real(Aio::Threads, "threads");
}

#[test]
fn operation_dropped_on_io_uring_leaves_nothing_behind() {
    drop_real(Aio::IoUring, "uring");
}
