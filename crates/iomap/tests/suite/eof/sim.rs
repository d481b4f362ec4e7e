//! In the simulated world, on both maps.

use super::device::EndDevice;
use super::driver::{Driver, Subject, verify};
use super::first_size;
use super::history::History;
use super::waiting::Waiting;
use forebay_base::sim_world::SimWorld;
use forebay_base::task::WaitQueue;
use forebay_base::world::{World, WorldRef, split_mix};
use forebay_cache::{Config, PageCache};
use forebay_iomap::identity::Identity;
use forebay_iomap::{MapOps, MappedFile};
use forebay_sim::{SimConfig, SimDisk};
use forebay_testkit::remap::{Remap, RemapOptions};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

fn env(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |v| v.parse().expect("a number"))
}

struct Shared {
    left: AtomicUsize,
    done: WaitQueue,
    wrong: Mutex<Option<String>>,
}

async fn work(shared: Arc<Shared>, mut driver: Driver, steps: u32) {
    for _ in 0..steps {
        if let Err(wrong) = driver.step().await {
            shared.wrong.lock().unwrap().get_or_insert(wrong);
            break;
        }
    }
    driver.close();
    shared.left.fetch_sub(1, Ordering::AcqRel);
    shared.done.wake_all();
}

fn subjects(
    rng: &mut u64,
    world: &Arc<SimWorld>,
    cache: &forebay_base::sync::Arc<PageCache>,
    remap: bool,
) -> Vec<Subject> {
    let sector = [512, 4096][(split_mix(rng) % 2) as usize];
    let block = sector.max([512, 1024, 4096][(split_mix(rng) % 3) as usize]);
    let truncates = split_mix(rng).is_multiple_of(2);
    (0..2)
        .map(|i| {
            let size = first_size(rng);
            let stable = split_mix(rng).is_multiple_of(2);
            let ops: Arc<dyn MapOps> = if remap {
                let config = SimConfig {
                    size: 16 << 20,
                    sector,
                    stable_writes: stable,
                    latency: (5_000, 65_000),
                    ..SimConfig::default()
                };
                let options = RemapOptions {
                    grows: true,
                    sums: split_mix(rng).is_multiple_of(2),
                    waits: split_mix(rng).is_multiple_of(2).then(|| world.clone() as WorldRef),
                };
                Remap::with_options(Arc::new(SimDisk::new(world.clone(), config)), block, options)
            } else {
                let map =
                    Arc::new(Identity::new(EndDevice::new(world.clone(), sector, stable, size)));
                Arc::new(Waiting { map, world: world.clone() })
            };
            let file = MappedFile::new(cache, ops, block, size, false).unwrap();
            let history = History::new(i as u8, size);
            Subject { file, history, truncates }
        })
        .collect()
}

fn run(seed: u64, remap: bool) -> u64 {
    let mut rng = seed;
    let world = SimWorld::new(seed);
    let config = Config {
        folio_size: [4096, 16384, 65536][(split_mix(&mut rng) % 3) as usize],
        huge_pages: false,
        poison_frames: true,
        ..Config::with_budget(1 << 20)
    };
    let cache = PageCache::new(config, world.clone()).unwrap();
    let files = Arc::new(subjects(&mut rng, &world, &cache, remap));
    let tasks = 2 + (split_mix(&mut rng) % 4) as usize;
    let (left, done, wrong) = (AtomicUsize::new(tasks), WaitQueue::new(), Mutex::default());
    let shared = Arc::new(Shared { left, done, wrong });
    let unit =
        u64::from(files[0].file.ops.info().unit.max(files[0].file.device().limits().logical_block));
    for _ in 0..tasks {
        let driver = Driver::new(&cache, &files, (split_mix(&mut rng), unit, false));
        world.spawn("work", Box::pin(work(shared.clone(), driver, 40)));
    }
    let over = || (shared.left.load(Ordering::Acquire) == 0).then_some(());
    world.run(shared.done.wait_until(over));
    let mut wrong = shared.wrong.lock().unwrap().take();
    if wrong.is_none() {
        let all = async {
            for subject in files.iter() {
                verify(subject, &cache).await?;
            }
            Ok(())
        };
        wrong = world.run(all).err();
    }
    if let Some(wrong) = wrong {
        panic!("seed {seed}, remap {remap}: {wrong}");
    }
    world.stop();
    world.digest()
}

fn many(remap: bool) {
    let default = if cfg!(debug_assertions) { 200 } else { 2_000 };
    let first = env("FOREBAY_EOF_SEED", 1);
    for seed in first..first + env("FOREBAY_EOF_RUNS", default) {
        run(seed, remap);
    }
}

#[test]
fn d4_d14_no_foreign_and_no_lost_byte_in_place() {
    many(false);
}

#[test]
fn d4_d14_no_foreign_and_no_lost_byte_out_of_place() {
    many(true);
}

#[test]
fn same_seed_same_digest() {
    for remap in [false, true] {
        assert_eq!(run(7, remap), run(7, remap));
    }
}
