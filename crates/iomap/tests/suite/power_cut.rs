//! Power loss below a raw image, and below an out-of-place map that is found again as last
//! committed, against docs/reference/crash-contract.md: the bytes of a sync or a `DSYNC` write are
//! there, and every sector is old or new. Power is lost at every submission of small workloads,
//! with all sets of writes that the disk may have kept; at random submissions of larger ones,
//! several at once; and again on the recovered disk.
//!
//! `FOREBAY_CUT_RUNS` sets the number of seeds (default 40), `FOREBAY_CUT_SEED` the first.

use crate::committed::Committed;
use crate::common::{File, Map, Setup};
use forebay_base::sim_world::SimWorld;
use forebay_base::task::WaitQueue;
use forebay_base::world::{World, split_mix};
use forebay_sim::SimDisk;
use forebay_testkit::remap::{Image, Remap};
use forebay_testkit::workload::{self, Generator, Runner};
use std::ops::Range;
use std::sync::{Arc, Mutex};

fn env(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |v| v.parse().expect("a number"))
}

fn seeds() -> Range<u64> {
    let first = env("FOREBAY_CUT_SEED", 1);
    first..first + env("FOREBAY_CUT_RUNS", 40)
}

/// Many syncs; every call may fail, because the power goes.
fn workload(setup: &Setup) -> workload::Config {
    workload::Config { faults: true, odds: [150, 500, 30, 40, 90, 15, 5], ..setup.workload() }
}

/// One workload: its span, what it does next, and what it knows.
struct Worker {
    span: Range<u64>,
    generator: Generator,
    runner: Runner,
}

/// What the workers of one file share.
struct Shared {
    file: File,
    disk: Arc<SimDisk>,
    ended: Mutex<Vec<Worker>>,
    done: WaitQueue,
}

/// Carries out operations until the power goes.
async fn work(shared: Arc<Shared>, mut worker: Worker, ops: u64) {
    for _ in 0..ops {
        if shared.disk.is_off() {
            break;
        }
        let op = worker.generator.next_op(worker.runner.model().size());
        if let Err(mismatch) = worker.runner.step(&shared.file, op).await {
            panic!("{mismatch}");
        }
    }
    shared.ended.lock().unwrap().push(worker);
    shared.done.wake_all();
}

/// Opens the file; out of place on the map that was left.
fn open(setup: &Setup, disk: &Arc<SimDisk>, left: &Left) -> (File, Option<Arc<Committed>>) {
    if setup.map == Map::Identity {
        return (File::open(setup, disk.world(), disk), None);
    }
    let (unit, options) = (setup.block_size, setup.remap_options(disk.world(), false));
    let map = match left {
        Some(image) => Remap::from_image(disk.clone(), unit, options, image),
        None => Remap::with_options(disk.clone(), unit, options),
    };
    let ops = Arc::new(Committed::new(map));
    (File::with_ops(setup, disk.world(), ops.clone(), setup.size()), Some(ops))
}

/// What is left of an out-of-place map.
type Left = Option<Image>;

/// One life of the file: from opening to the power loss, or to the end of the workloads.
fn live(
    setup: &Setup,
    disk: &Arc<SimDisk>,
    workers: Vec<Worker>,
    ops: u64,
    left: &mut Left,
) -> Vec<Worker> {
    let world = disk.world().clone();
    let (file, map) = open(setup, disk, left);
    let count = workers.len();
    let (ended, done) = (Mutex::default(), WaitQueue::new());
    let shared = Arc::new(Shared { file, disk: disk.clone(), ended, done });
    for worker in workers {
        world.spawn("work", Box::pin(work(shared.clone(), worker, ops)));
    }
    let all = || (shared.ended.lock().unwrap().len() == count).then_some(());
    world.run(shared.done.wait_until(all));
    world.stop();
    *left = map.map(|map| map.image());
    std::mem::take(&mut *shared.ended.lock().unwrap())
}

/// Workers whose spans meet at sectors, often in one folio.
fn workers(setup: &Setup, count: u64, len_max: u64) -> Vec<Worker> {
    let mut rng = setup.seed ^ 77;
    let size = setup.size();
    let mut borders: Vec<u64> =
        (1..count).map(|_| 512 * (1 + split_mix(&mut rng) % (size / 512 - 1))).collect();
    borders.extend([0, size]);
    borders.sort_unstable();
    borders.dedup();
    let make = |(i, ends): (usize, &[u64])| {
        let (seed, span) = (setup.seed * 100 + i as u64, ends[0]..ends[1]);
        let config = workload::Config { span: span.clone(), len_max, ..workload(setup) };
        let generator = Generator::new(seed, config.clone());
        Worker { span, generator, runner: Runner::new(seed, config, vec![0; size as usize]) }
    };
    borders.windows(2).enumerate().map(make).collect()
}

/// Opens the file on the disk that came back and checks every span.
fn check(setup: &Setup, disk: &Arc<SimDisk>, workers: &mut [Worker], left: &Left, label: &str) {
    let (file, _) = open(setup, disk, left);
    for worker in workers {
        if let Err(mismatch) = disk.world().run(worker.runner.check_crash(&file)) {
            panic!("{setup:?}\n{label}\n{mismatch}");
        }
    }
    disk.world().stop();
}

/// Cuts, and cuts the next life short, too.
fn cut_and_cut_again(map: Map) {
    let mut cuts = 0;
    for seed in seeds() {
        let setup = Setup { bytes: 512 << 10, ..Setup::from_seed(seed, map) };
        let mut disk = Arc::new(SimDisk::new(SimWorld::new(seed), setup.sim_config()));
        let (mut rng, mut left) = (seed ^ 0xc07, None);
        let mut workers = workers(&setup, 1 + seed % 4, 160 << 10);
        for life in 0..3 {
            let at = split_mix(&mut rng) % 300;
            disk.power_off_after(at);
            workers = live(&setup, &disk, workers, 150, &mut left);
            cuts += u64::from(disk.is_off());
            let fresh = SimWorld::new(seed * 10 + life);
            disk = Arc::new(disk.power_cut(split_mix(&mut rng)).in_world(fresh));
            check(&setup, &disk, &mut workers, &left, &format!("life {life}, cut at {at}"));
        }
    }
    let enough = seeds().end - seeds().start;
    assert!(cuts * 2 > enough, "the power hardly ever went: {cuts}");
}

#[test]
fn l5_cut_anywhere_and_cut_again() {
    cut_and_cut_again(Map::Identity);
}

#[test]
fn out_of_place_cut_anywhere_and_cut_again() {
    cut_and_cut_again(Map::Remap);
}

/// One cut; returns the number of crash states looked at, and whether the power went.
fn cut_small(setup: &Setup, at: u64) -> (u64, bool) {
    let disk = Arc::new(SimDisk::new(SimWorld::new(setup.seed), setup.sim_config()));
    disk.power_off_after(at);
    let mut left = None;
    let ended = live(setup, &disk, workers(setup, 1 + setup.seed % 2, 12 << 10), 14, &mut left);
    let mut states = 0;
    for state in disk.crash_states().take(60) {
        states += 1;
        let mounted = state.mount(SimWorld::new(1));
        let found = match &left {
            None => mounted.peek(0, setup.size() as usize),
            Some(image) => through(image, setup, &mounted),
        };
        for worker in &ended {
            let wrong = worker.runner.model().clone().crash(&found, &worker.span);
            assert!(wrong.is_ok(), "{setup:?} cut at {at}, {}: {wrong:?}", state.label);
        }
    }
    (states, disk.is_off())
}

/// The file's bytes, as the map leads to them.
fn through(image: &Image, setup: &Setup, disk: &SimDisk) -> Vec<u8> {
    let unit = u64::from(setup.block_size);
    let mut found = vec![0; setup.size().next_multiple_of(unit) as usize];
    for (file, device) in image.places() {
        let bytes = disk.peek(device * unit, unit as usize);
        found[(file * unit) as usize..][..unit as usize].copy_from_slice(&bytes);
    }
    found.truncate(setup.size() as usize);
    found
}

fn cut_at_every_submission(map: Map) {
    let mut states = 0;
    for seed in seeds().take(20) {
        let setup = Setup { bytes: 64 << 10, ..Setup::from_seed(seed, map) };
        for at in 0.. {
            let (seen, off) = cut_small(&setup, at);
            states += seen;
            if !off {
                break;
            }
        }
    }
    assert!(states > 200 * seeds().take(20).count() as u64, "{states}");
}

#[test]
fn l5_l6_cut_at_every_submission_of_a_small_workload() {
    cut_at_every_submission(Map::Identity);
}

#[test]
fn out_of_place_power_loss_at_every_submission_is_survived() {
    cut_at_every_submission(Map::Remap);
}

/// Kill -9 with the machine up: completed writes stay, the rest is as after a power loss.
#[test]
fn l5_killed_process() {
    for seed in seeds() {
        for map in [Map::Identity, Map::Remap] {
            let setup = Setup { bytes: 256 << 10, ..Setup::from_seed(seed, map) };
            let disk = Arc::new(SimDisk::new(SimWorld::new(seed), setup.sim_config()));
            let mut left = None;
            let mut ended = live(&setup, &disk, workers(&setup, 3, 64 << 10), 60, &mut left);
            let after = disk.process_crash(seed).in_world(SimWorld::new(seed + 1));
            check(&setup, &Arc::new(after), &mut ended, &left, "killed");
        }
    }
}

/// Without a cut the same workloads find nothing wrong, on either map: the cuts are to blame.
#[test]
fn control() {
    for map in [Map::Identity, Map::Remap] {
        let setup = Setup { bytes: 256 << 10, ..Setup::from_seed(5, map) };
        let disk = Arc::new(SimDisk::new(SimWorld::new(5), setup.sim_config()));
        let workers = workers(&setup, 3, 64 << 10);
        assert_eq!(live(&setup, &disk, workers, 60, &mut None).len(), 3);
        assert!(!disk.is_off());
    }
}
