//! Several seeded workloads at once on one file, each with a span of its own. Borders are multiples
//! of a sector only, so that neighbours share a block, a frame, a folio. Concurrently a task drops
//! clean data, syncs and changes the dirty limits. lineage.U8, lineage.D8, lineage.D17.
//!
//! Half as many seeds as in `fsx.rs`, set by the same variables.

use crate::common::{File, Map, Setup};
use crate::seeds::{each, seeds};
use forebay_base::sim_world::SimWorld;
use forebay_base::task::WaitQueue;
use forebay_base::world::{World, split_mix};
use forebay_sim::SimDisk;
use forebay_testkit::workload::{self, Runner, Subject};
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Cuts the file into `count` spans: some as small as a sector or two, at random borders.
fn spans(seed: u64, size: u64, count: usize) -> Vec<Range<u64>> {
    let mut rng = seed ^ 0x5eed;
    let sectors = size.div_ceil(512);
    let first = 1 + split_mix(&mut rng) % (sectors - 64);
    let mut borders = vec![0, size];
    while borders.len() <= count {
        // Half of the borders lie within the same 64 KiB.
        let near = split_mix(&mut rng) & 1 == 0;
        let sector = if near { first + split_mix(&mut rng) % 63 } else { split_mix(&mut rng) };
        let border = sector % sectors * 512;
        if !borders.contains(&border) {
            borders.push(border);
        }
    }
    borders.sort_unstable();
    borders.windows(2).map(|w| w[0]..w[1]).collect()
}

/// What the tasks share.
struct Shared {
    file: File,
    left: AtomicUsize,
    done: WaitQueue,
    wrong: Mutex<Option<String>>,
}

/// Drops, syncs and tunes until the workloads are done.
async fn disturb(shared: Arc<Shared>, world: Arc<SimWorld>, arena: u64) {
    let file = &shared.file;
    let handle = file.file.open_handle();
    while shared.left.load(Ordering::Acquire) > 0 {
        world.sleep(Duration::from_micros(50 + world.random() % 20_000)).await;
        match world.random() % 6 {
            0 | 1 => drop(file.cache.drop_clean()),
            2 => file.file.sync(&handle).await.expect("no faults here"),
            3 => {
                let limit = arena / (2 + world.random() % 40);
                file.cache.dirty.limit.store(limit, Ordering::Relaxed);
                let background = limit / (1 + world.random() % 4);
                file.cache.dirty.background.store(background, Ordering::Relaxed);
            }
            4 => file.cache.dirty.wake_all_flushers(),
            _ => {
                let from = world.random() % file.size();
                file.file.prefetch(from, 100_000).await;
            }
        }
    }
    shared.done.wake_all();
}

/// Runs one workload and reports.
async fn work(shared: Arc<Shared>, seed: u64, config: workload::Config, ops: u64) {
    let size = shared.file.size() as usize;
    let mut runner = Runner::new(seed, config, vec![0; size]);
    if let Err(mismatch) = runner.run(&shared.file, ops).await {
        shared.wrong.lock().unwrap().get_or_insert(mismatch.to_string());
    }
    shared.left.fetch_sub(1, Ordering::AcqRel);
    shared.done.wake_all();
}

fn run(setup: &Setup, count: usize, ops: u64) -> (u64, u64) {
    let world = SimWorld::new(setup.seed);
    let disk = Arc::new(SimDisk::new(world.clone(), setup.sim_config()));
    let file = File::open(setup, &world, &disk);
    let arena = file.cache.stats().arena_bytes;
    let (left, done) = (AtomicUsize::new(count), WaitQueue::new());
    let shared = Arc::new(Shared { file, left, done, wrong: Mutex::default() });
    for (i, span) in spans(setup.seed, setup.size(), count).into_iter().enumerate() {
        let config = workload::Config { span, ..setup.workload() };
        let seed = setup.seed.wrapping_mul(1000) + i as u64;
        world.spawn("work", Box::pin(work(shared.clone(), seed, config, ops)));
    }
    world.spawn("disturb", Box::pin(disturb(shared.clone(), world.clone(), arena)));
    let over = || (shared.left.load(Ordering::Acquire) == 0).then_some(());
    world.run(shared.done.wait_until(over));
    if let Some(wrong) = shared.wrong.lock().unwrap().take() {
        panic!("{setup:?}, {count} workloads\n{wrong}");
    }
    if setup.stable {
        assert_eq!(disk.unstable_writes(), 0, "bytes changed in flight (S2): {setup:?}");
    }
    if setup.map == Map::Identity {
        assert_eq!(disk.overlapping_writes(), 0, "two writes of a block in flight: {setup:?}");
    }
    world.stop();
    (world.digest(), disk.content_digest())
}

#[test]
fn identity_agrees_with_the_models() {
    each(seeds(2), |seed| {
        run(&Setup::from_seed(seed, Map::Identity), 2 + seed as usize % 5, 120);
    });
}

#[test]
fn remap_agrees_with_the_models() {
    each(seeds(2), |seed| {
        run(&Setup::from_seed(seed, Map::Remap), 2 + seed as usize % 5, 120);
    });
}

#[test]
fn same_seed_same_digest() {
    for seed in 1..4 {
        for map in [Map::Identity, Map::Remap] {
            let setup = Setup::from_seed(seed, map);
            assert_eq!(run(&setup, 4, 60), run(&setup, 4, 60), "{setup:?}");
        }
    }
}
