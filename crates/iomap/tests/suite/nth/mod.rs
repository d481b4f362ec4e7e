//! One write or flush of the device fails, each one in turn, while several tasks write to two files
//! of one flush domain and others sync, on both maps. Whichever fails: a sync that succeeds has
//! made durable all bytes accepted before it, as the medium shows after a power loss at that point.
//! The caller of a failed direct write gets its error, or all openers of the file get it. All bytes
//! that were not lost for good are written and durable in the end
//! (docs/reference/failure-protocol.md).
//!
//! `FOREBAY_NTH_RUNS` sets the number of seeds of each kind (default 1), each swept over all
//! operations of its workload; `FOREBAY_NTH_SEED` the first.

mod part;
mod work;

use forebay_base::sim_world::SimWorld;
use forebay_base::task::WaitQueue;
use forebay_base::world::{World, WorldRef, split_mix};
use forebay_cache::strategy::UncachedStrategy;
use forebay_cache::{Config, PageCache};
use forebay_iomap::file::Geometry;
use forebay_iomap::identity::Identity;
use forebay_iomap::{MapOps, MappedFile};
use forebay_sim::{SimConfig, SimDisk};
use forebay_testkit::remap::{Remap, RemapOptions};
use part::{NthFault, Part};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use work::{BLOCK, SLOTS, Shared, Subject, settle, sync_on, write_on};

/// Bytes of a file, and of the part of the disk that is its own: out of place needs more.
const SIZE: u64 = 64 * BLOCK;
const PART: u64 = 8 * SIZE;
/// Writers of a file, each in its own way, and openers who sync.
const WRITERS: usize = 3;
const SYNCERS: usize = 2;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Map {
    Identity,
    Remap,
}

/// How the files lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Lie {
    /// On a disk each: a flush that fails says nothing of the other.
    Apart,
    /// On one disk: a failed flush may lose writes of the other file, too, and its openers get the
    /// error.
    Together,
}

fn env(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |v| v.parse().expect("a number"))
}

fn subjects(
    seed: u64,
    map: Map,
    lie: Lie,
    world: &Arc<SimWorld>,
    cache: &forebay_base::sync::Arc<PageCache>,
    fault: &Arc<NthFault>,
) -> Vec<Subject> {
    let sim = SimConfig { size: 2 * PART, latency: (20_000, 90_000), ..SimConfig::default() };
    let one = SimDisk::new(world.clone(), sim.clone());
    let domain = cache.dirty.domain(None);
    (0..2)
        .map(|number| {
            let disk = match lie {
                Lie::Together => one.clone(),
                Lie::Apart => SimDisk::new(world.clone(), sim.clone()),
            };
            let part = Part { disk, base: number as u64 * PART, fault: fault.clone(), number };
            let (disk, base, device) = (part.disk.clone(), part.base, Arc::new(part));
            let ops: Arc<dyn MapOps> = match map {
                Map::Identity => Arc::new(Identity::new(device)),
                Map::Remap => {
                    let waits = seed.is_multiple_of(2).then(|| world.clone() as WorldRef);
                    let options = RemapOptions { grows: false, sums: false, waits };
                    Remap::with_options(device, BLOCK as u32, options)
                }
            };
            let geometry = Geometry { block_size: BLOCK as u32, size: SIZE, read_only: false };
            let file = MappedFile::open_in(cache, domain.clone(), ops, geometry, None).unwrap();
            Subject::new(file, number, disk, base..base + PART)
        })
        .collect()
}

/// One run in which operation `nth` fails, none if that is 0; returns how many there were.
fn run(seed: u64, map: Map, lie: Lie, nth: u64) -> u64 {
    let mut rng = seed;
    let world = SimWorld::new(seed);
    let config = Config {
        folio_size: [4096, 16384][(split_mix(&mut rng) % 2) as usize],
        huge_pages: false,
        dirty_bytes: Some(64 << 10),
        dirty_background_bytes: Some(4 << 10),
        ..Config::with_budget(1 << 20)
    };
    let cache = PageCache::new(config, world.clone()).unwrap();
    let all = UncachedStrategy::ALL;
    cache.strategies.set_uncached(all[(split_mix(&mut rng) % all.len() as u64) as usize]);
    let fault = Arc::new(NthFault::new(nth));
    let files = subjects(seed, map, lie, &world, &cache, &fault);
    let (left, done) = (AtomicUsize::new(2 * (WRITERS + SYNCERS)), WaitQueue::new());
    let shared = Arc::new(Shared { world: world.clone(), files, left, done });
    for file in 0..2 {
        for way in 0..WRITERS {
            world
                .spawn("write", Box::pin(write_on(shared.clone(), file, way, split_mix(&mut rng))));
        }
        for opener in 0..SYNCERS {
            let task = sync_on(shared.clone(), file, opener, split_mix(&mut rng));
            world.spawn("sync", Box::pin(task));
        }
    }
    let over = || (shared.left.load(Ordering::Acquire) == 0).then_some(());
    world.run(shared.done.wait_until(over));
    let count = fault.seen();
    for subject in &shared.files {
        world.run(settle(&world, subject));
    }
    let mut wrong: Vec<String> = shared.files.iter().flat_map(Subject::lies).collect();
    if let Some(fired) = fault.fired() {
        wrong.extend(shared.files[fired.number].unreported(&fired));
    }
    assert!(wrong.is_empty(), "seed {seed}, {map:?}, {lie:?}, operation {nth}: {wrong:#?}");
    world.stop();
    count
}

fn sweep(map: Map, lie: Lie) {
    let first = env("FOREBAY_NTH_SEED", 1);
    for seed in first..first + env("FOREBAY_NTH_RUNS", 1) {
        let count = run(seed, map, lie, 0);
        assert!(count > 2 * SLOTS as u64, "the workload is none: {count} operations");
        for nth in 1..=count {
            run(seed, map, lie, nth);
        }
    }
}

#[test]
fn each_operation_fails_in_place() {
    sweep(Map::Identity, Lie::Apart);
}

#[test]
fn each_operation_fails_out_of_place() {
    sweep(Map::Remap, Lie::Apart);
}

#[test]
fn each_operation_fails_in_place_on_one_disk() {
    sweep(Map::Identity, Lie::Together);
}

#[test]
fn each_operation_fails_out_of_place_on_one_disk() {
    sweep(Map::Remap, Lie::Together);
}
