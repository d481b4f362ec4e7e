//! Seeded runs of mixed-flag reads, writes, trims and syncs against a byte model, in the simulated
//! world: both maps, small and large caches, every stable strategy, folios of 4 KiB to 2 MiB,
//! faults. lineage.U8, lineage.D1, lineage.D8, lineage.D9.
//!
//! `FOREBAY_FSX_RUNS` sets the number of seeds (default 60 for each map), `FOREBAY_FSX_SEED` the
//! first. The step `fsx` of `make test` runs 300, in a build that is optimised.

use crate::common::{File, Map, Served, Setup};
use crate::seeds::{each, seeds};
use forebay_base::ErrorKind;
use forebay_base::sim_world::SimWorld;
use forebay_base::sync::Mutex;
use forebay_block::BioOp;
use forebay_sim::{Fault, FaultRule, SimDisk};
use forebay_testkit::workload::Runner;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// One run; returns the world's digest and that of the disk's content.
fn run(setup: &Setup, ops: u64) -> (u64, u64) {
    run_counted(setup, ops).0
}

/// The same, with the uncached requests by strategy.
fn run_counted(setup: &Setup, ops: u64) -> ((u64, u64), Served) {
    let world = SimWorld::new(setup.seed);
    let disk = Arc::new(SimDisk::new(world.clone(), setup.sim_config()));
    let file = File::open(setup, &world, &disk);
    let mut runner = Runner::new(setup.seed, setup.workload(), vec![0; setup.size() as usize]);
    let outcome = world.run(async {
        runner.run(&file, ops).await?;
        file.cache.dirty.wake_all_flushers();
        Ok::<(), Box<forebay_testkit::workload::Mismatch>>(())
    });
    if let Err(mismatch) = outcome {
        panic!("{setup:?}\n{mismatch}");
    }
    if setup.stable {
        assert_eq!(disk.unstable_writes(), 0, "bytes changed in flight (S2): {setup:?}");
    }
    ((world.digest(), disk.content_digest()), file.served())
}

#[test]
fn identity_agrees_with_the_model() {
    each(seeds(1), |seed| {
        run(&Setup::from_seed(seed, Map::Identity), 400);
    });
}

#[test]
fn remap_agrees_with_the_model() {
    each(seeds(1), |seed| {
        run(&Setup::from_seed(seed, Map::Remap), 400);
    });
}

/// All three uncached strategies, changed while requests are in progress, on both maps: each of
/// them served reads and writes on each map.
#[test]
fn u8_strategies_mixed_agree_with_the_model() {
    for map in [Map::Identity, Map::Remap] {
        let served = Mutex::new(Served::default());
        each(seeds(3), |seed| {
            let (_, of_run) = run_counted(&Setup::from_seed(seed ^ 0x0800, map), 250);
            let mut served = served.lock();
            for (sum, of_run) in served.as_flattened_mut().iter_mut().zip(of_run.as_flattened()) {
                *sum += of_run;
            }
        });
        let served = *served.lock();
        assert!(served.as_flattened().iter().all(|&count| count > 0), "{map:?}: {served:?}");
    }
}

#[test]
fn same_seed_same_digest() {
    for seed in 1..17 {
        for map in [Map::Identity, Map::Remap] {
            let setup = Setup::from_seed(seed, map);
            assert_eq!(run(&setup, 200), run(&setup, 200), "{setup:?}");
        }
    }
}

#[test]
fn faults_in_place_lose_no_accepted_bytes() {
    faults_below(Map::Identity);
}

#[test]
fn faults_out_of_place_lose_no_accepted_bytes() {
    faults_below(Map::Remap);
}

fn faults_below(map: Map) {
    let fired = AtomicU64::new(0);
    each(seeds(3), |seed| {
        // A write that a failed flush loses leaves in its new place what was there before, of
        // whatever file: only sums can tell. In place that is the old content.
        let setup = Setup { sums: true, ..Setup::from_seed(seed, map) };
        let world = SimWorld::new(seed);
        let disk = Arc::new(SimDisk::new(world.clone(), setup.sim_config()));
        for op in [BioOp::Read, BioOp::Write, BioOp::WriteZeroes, BioOp::Flush] {
            let chance = 40 + seed as u32 % 100;
            disk.inject(
                FaultRule::on(op, Fault::Fail(ErrorKind::Io)).sticky().one_in(u64::from(chance)),
            );
        }
        let file = File::open(&setup, &world, &disk);
        let mut workload = setup.workload();
        workload.faults = true;
        workload.flushes_itself = true;
        let mut runner = Runner::new(seed, workload, vec![0; setup.size() as usize]);
        let outcome = world.run(runner.run(&file, 300));
        if let Err(mismatch) = outcome {
            panic!("{setup:?}\n{mismatch}");
        }
        fired.fetch_add(disk.fault_counts().failed, Ordering::Relaxed);
    });
    assert!(fired.into_inner() > 0, "no fault fired: the test tests nothing");
}
