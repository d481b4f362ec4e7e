//! The budget goes up and down under seeded loads of every flag, in the simulated world, on both
//! maps: the content agrees with the model, no frame and no folio is lost or owned twice
//! (frames.A1, frames.A3, slots.B1, slots.B2, queues.Q1), and the tables end up as they should.
//!
//! `FOREBAY_FSX_RUNS` sets the number of seeds (default 60 each), `FOREBAY_FSX_SEED` the first.

use crate::common::{File, Map, Setup};
use crate::seeds::{each, seeds};
use forebay_base::sim_world::SimWorld;
use forebay_base::sync::Arc as CacheArc;
use forebay_base::world::{World, split_mix};
use forebay_cache::{PageCache, State};
use forebay_sim::SimDisk;
use forebay_testkit::dropped_ops::ended_after;
use forebay_testkit::workload::{Runner, Subject};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

const LARGEST: u64 = 16 << 20;

/// Changes the budget until it is told to stop.
struct Resizer {
    stop: Arc<AtomicBool>,
    ended: Arc<AtomicBool>,
    resized: Arc<AtomicU64>,
}

impl Resizer {
    fn start(world: &Arc<SimWorld>, cache: &CacheArc<PageCache>, seed: u64) -> Self {
        let resizer = Self { stop: Arc::default(), ended: Arc::default(), resized: Arc::default() };
        let (stop, ended, resized) =
            (resizer.stop.clone(), resizer.ended.clone(), resizer.resized.clone());
        let (own, cache, mut state) = (world.clone(), cache.clone(), seed);
        let task = async move {
            let (least, most) = cache.budget_range();
            while !stop.load(Ordering::SeqCst) {
                let pause = Duration::from_micros(split_mix(&mut state) % 20_000);
                own.sleep(pause).await;
                // As often to one of the ends as to somewhere in between.
                let to = match split_mix(&mut state) % 4 {
                    0 => least,
                    1 => most,
                    _ => least + split_mix(&mut state) % (most - least),
                };
                cache.resize(to).await.expect("nothing here is stuck");
                assert_eq!(cache.stats().budget_bytes, to);
                let sum: u64 = cache.budget().iter().map(|(_, _, bound)| bound).sum();
                assert!(sum <= to, "the parts of {to} add up to {sum}");
                resized.fetch_add(1, Ordering::Relaxed);
            }
            ended.store(true, Ordering::SeqCst);
        };
        world.spawn("resizer", Box::pin(task));
        resizer
    }

    async fn stop(&self, world: &SimWorld) {
        self.stop.store(true, Ordering::SeqCst);
        while !self.ended.load(Ordering::SeqCst) {
            world.sleep(Duration::from_millis(1)).await;
        }
    }
}

fn run(seed: u64, map: Map) -> u64 {
    let drawn = Setup::from_seed(seed, map);
    // The least that the folio size allows: that is where it can be made smaller to.
    let least = if drawn.folio_size == 2 << 20 { [3 << 20, 7 << 19] } else { [1 << 20, 3 << 19] };
    let setup = Setup { budget: least[seed as usize % 2], budget_max: Some(LARGEST), ..drawn };
    let world = SimWorld::new(seed);
    let disk = Arc::new(SimDisk::new(world.clone(), setup.sim_config()));
    let file = File::open(&setup, &world, &disk);
    let mut runner = Runner::new(seed, setup.workload(), vec![0; setup.size() as usize]);
    let resized = world.run(async {
        let resizer = Resizer::start(&world, &file.cache, seed ^ 0x7e51);
        if let Err(mismatch) = runner.run(&file, 400).await {
            panic!("{setup:?}\n{mismatch}");
        }
        resizer.stop(&world).await;
        file.sync().await.unwrap();
        world.sleep(Duration::from_secs(1)).await;
        file.cache.check_books();
        resizer.resized.load(Ordering::Relaxed)
    });
    if setup.stable {
        assert_eq!(disk.unstable_writes(), 0, "bytes changed in flight (S2): {setup:?}");
    }
    resized
}

fn all(map: Map) {
    let (seeds, resized) = (seeds(1), AtomicU64::new(0));
    let count = seeds.end - seeds.start;
    each(seeds, |seed| {
        resized.fetch_add(run(seed, map), Ordering::Relaxed);
    });
    let resized = resized.into_inner();
    assert!(resized > count, "only {resized} resizes in {count} runs");
}

#[test]
fn identity_agrees_with_the_model_while_the_budget_changes() {
    all(Map::Identity);
}

#[test]
fn remap_agrees_with_the_model_while_the_budget_changes() {
    all(Map::Remap);
}

/// Everything that is cached and fits is still there afterwards: it was moved, not dropped.
#[test]
fn resize_keeps_data_that_fits() {
    for seed in 1..20 {
        let setup = Setup {
            budget: 2 << 20,
            budget_max: Some(LARGEST),
            folio_size: [4096, 65536][seed as usize % 2],
            block_size: 4096,
            ..Setup::from_seed(seed, Map::Identity)
        };
        let world = SimWorld::new(seed);
        let disk = Arc::new(SimDisk::new(world.clone(), setup.sim_config()));
        let file = File::open(&setup, &world, &disk);
        world.run(async {
            file.cache.resize(LARGEST).await.unwrap();
            // All of it, then half of it dropped: what is left lies scattered over the arena.
            let len = setup.size();
            for at in (0..len).step_by(65536) {
                let buf = forebay_base::buf::AlignedBuf::new((len - at).min(65536) as usize);
                file.read(at, buf, forebay_base::IoFlags::empty()).await.1.unwrap();
            }
            world.sleep(Duration::from_secs(1)).await;
            for at in (0..len).step_by(131072) {
                file.cache.drop_range(&file.file.mapping, at..at + 65536);
            }
            let before = resident(&file);
            assert!(before * 4096 > len / 3 && before * 4096 < 3 << 19, "{before}");
            file.cache.resize(2 << 20).await.unwrap();
            assert_eq!(resident(&file), before, "{setup:?}");
            file.cache.check_books();
        });
    }
}

fn resident(file: &File) -> u64 {
    let mapping = &file.file.mapping;
    let all = 0..mapping.size();
    let mut found = 0;
    for index in file.cache.folios_present(mapping, &all) {
        let folio = file.cache.lock_folio(mapping, index).unwrap();
        let runs = folio.runs_with(mapping.blocks_touched(index, &all), State::Uptodate);
        found += runs.map(|run| u64::from(run.len())).sum::<u64>();
    }
    found
}

/// A device that fails all writes: the budget cannot come down below what is dirty, and says so.
#[test]
fn y4_impossible_resize_leaves_budget_unchanged() {
    use forebay_base::ErrorKind;
    use forebay_block::BioOp;
    use forebay_sim::{Fault, FaultRule};
    let setup = Setup {
        budget: 1 << 20,
        budget_max: Some(LARGEST),
        folio_size: 16384,
        block_size: 4096,
        ..Setup::from_seed(3, Map::Identity)
    };
    let world = SimWorld::new(3);
    let disk = Arc::new(SimDisk::new(world.clone(), setup.sim_config()));
    disk.inject(FaultRule::on(BioOp::Write, Fault::Fail(ErrorKind::Io)).sticky().one_in(1));
    let file = File::open(&setup, &world, &disk);
    world.run(async {
        file.cache.resize(LARGEST).await.unwrap();
        file.cache.set_dirty_bytes(8 << 20).unwrap();
        let mut at = 0;
        while at < 3 << 19 {
            let buf = forebay_base::buf::AlignedBuf::new(65536);
            file.write(at, buf, forebay_base::IoFlags::empty()).await.1.unwrap();
            at += 65536;
        }
        let error = file.cache.resize(1 << 20).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Busy);
        assert_eq!(file.cache.stats().budget_bytes, LARGEST);
        assert_eq!(file.cache.dirty.limit.load(Ordering::Relaxed), 8 << 20);
        for wrong in [1 << 10, (1 << 20) - 1, LARGEST + 1, u64::MAX] {
            let error = file.cache.resize(wrong).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput);
        }
        world.sleep(Duration::from_secs(1)).await;
        file.cache.check_books();
    });
}

/// A cache of 4 MiB, with 64 KiB of it read and written and 2 MiB dirty, made as small as it can
/// be. The resize is dropped after so many polls. True if it ended before.
fn resize_dropped(polls: u32, seed: u64) -> bool {
    let setup = Setup {
        budget: 1 << 20,
        budget_max: Some(LARGEST),
        folio_size: 16384,
        block_size: 4096,
        ..Setup::from_seed(seed, Map::Identity)
    };
    let world = SimWorld::new(seed);
    let disk = Arc::new(SimDisk::new(world.clone(), setup.sim_config()));
    let file = File::open(&setup, &world, &disk);
    let none = forebay_base::IoFlags::empty();
    world.run(async {
        file.cache.resize(4 << 20).await.unwrap();
        file.cache.set_dirty_bytes(3 << 20).unwrap();
        for at in (0..2 << 20).step_by(65536) {
            let buf = forebay_base::buf::AlignedBuf::new(65536);
            file.write(at, buf, none).await.1.unwrap();
        }
        let before = file.cache.stats();
        let ended = ended_after(polls, file.cache.resize(1 << 20)).await;
        let after = file.cache.stats();
        if !ended {
            let what = (after.budget_bytes, after.frames_total);
            let want = (before.budget_bytes, before.frames_total);
            assert_eq!(what, want, "Y4: as it was, dropped after {polls} polls");
        }
        // Another one is not kept waiting, and works.
        file.cache.resize(1 << 20).await.unwrap();
        let small = file.cache.stats();
        assert!(small.budget_bytes == 1 << 20 && small.frames_total < before.frames_total / 2);
        file.cache.resize(4 << 20).await.unwrap();
        assert_eq!(file.cache.stats().frames_total, before.frames_total);
        file.sync().await.unwrap();
        file.cache.check_books();
        ended
    })
}

/// The story: a resize to a smaller budget lowers the limits and waits until everything fits. Where
/// its task was dropped meanwhile the limits stayed low, and the budget that was shown was the old
/// one.
#[test]
fn y4_resize_dropped_at_any_poll_leaves_budget_unchanged() {
    let drops = |seed| (1..10_000).take_while(|&polls| !resize_dropped(polls, seed)).count();
    let drops: usize = (1..4).map(drops).sum();
    assert!(drops >= 12, "it waits: {drops} drops");
}

/// What files take came on top of the budget: the frames stayed as many.
#[test]
fn t1_frames_shrink_for_files_and_grow_back() {
    use forebay_block::RamDevice;
    use forebay_iomap::MappedFile;
    use forebay_iomap::identity::Identity;
    const BUDGET: u64 = 16 << 20;
    let setup = Setup {
        budget: BUDGET,
        budget_max: Some(LARGEST),
        folio_size: 65536,
        block_size: 4096,
        ..Setup::from_seed(5, Map::Identity)
    };
    let world = SimWorld::new(5);
    let disk = Arc::new(SimDisk::new(world.clone(), setup.sim_config()));
    let file = File::open(&setup, &world, &disk);
    let cache = &file.cache;
    let sum = || cache.budget().iter().map(|(_, _, bound)| bound).sum::<u64>();
    let frames = || cache.stats().frames_total;
    let open = |count: usize| -> Vec<_> {
        let ram = Arc::new(RamDevice::new(4096));
        let one =
            |_| MappedFile::new(cache, Arc::new(Identity::new(ram.clone())), 4096, 4096, false);
        (0..count).map(|i| one(i).unwrap()).collect()
    };
    world.run(async {
        // The frames are all in use, and some of them dirty.
        for at in (0..setup.size()).step_by(65536) {
            let buf = forebay_base::buf::AlignedBuf::new((setup.size() - at).min(65536) as usize);
            file.read(at, buf, forebay_base::IoFlags::empty()).await.1.unwrap();
        }
        let buf = forebay_base::buf::AlignedBuf::new(65536);
        file.write(0, buf, forebay_base::IoFlags::empty()).await.1.unwrap();
        let all = frames();
        let few = open(50);
        world.sleep(Duration::from_secs(1)).await;
        assert_eq!(frames(), all, "few files are within the share of requests");
        let many = open(1000);
        world.sleep(Duration::from_secs(1)).await;
        assert!(
            sum() <= BUDGET && frames() < all,
            "T1: {} of {BUDGET}, {} frames",
            sum(),
            frames()
        );
        cache.check_books();
        // The owner's limits hold together with the parts of files.
        cache.resize(BUDGET / 4 * 3).await.unwrap();
        assert!(sum() <= BUDGET / 4 * 3, "{}", sum());
        cache.resize(BUDGET).await.unwrap();
        // More than there can be room for: a quarter of the frames stays.
        let more = open(6000);
        world.sleep(Duration::from_secs(1)).await;
        let least = cache.stats().frames_total;
        assert!(least >= all / 4 && least <= all / 3, "{least} of {all}");
        cache.check_books();
        drop((few, many, more));
        world.sleep(Duration::from_secs(1)).await;
        assert_eq!(frames(), all, "given back");
        cache.check_books();
        file.sync().await.unwrap();
    });
}
