//! Seeded runs on a file that grows, by writes past its end, appends and `set_len`, and is cut,
//! against a byte model: every flag mixed in, both maps, ends anywhere, small caches, every stable
//! strategy, folios of 4 KiB to 2 MiB. lineage.D4, lineage.D14, lineage.S3.
//!
//! Half as many seeds as in `fsx.rs`, set by the same variables.

use crate::common::{File, Map, Setup};
use crate::eof::device::EndDevice;
use crate::eof::waiting::Waiting;
use crate::seeds::{each, seeds};
use forebay_base::sim_world::SimWorld;
use forebay_iomap::MapOps;
use forebay_iomap::identity::Identity;
use forebay_sim::SimDisk;
use forebay_testkit::remap::Remap;
use forebay_testkit::workload::{self, Mismatch, Report, Runner};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The workload, up to the size of the setup: that is where the file stops growing.
fn workload(setup: &Setup, unit: u64) -> workload::Config {
    workload::Config {
        folio: u64::from(setup.folio_size),
        direct_align: unit,
        trim: workload::TrimReads::Zeros,
        set_len: 50,
        ..workload::Config::growing(setup.bytes)
    }
}

/// One run; returns what happened, and the world's digest.
fn run(setup: &Setup, ops: u64) -> (Report, u64) {
    let world = SimWorld::new(setup.seed);
    let first = [0, 700, 70_000, setup.bytes / 2][setup.seed as usize % 4];
    let disk = Arc::new(SimDisk::new(world.clone(), setup.sim_config()));
    let (map, unit): (Arc<dyn MapOps>, u64) = match setup.map {
        Map::Identity => {
            let device = EndDevice::new(world.clone(), 512, setup.stable, first);
            let map: Arc<dyn MapOps> = Arc::new(Identity::new(device));
            (if setup.waits { Arc::new(Waiting { map, world: world.clone() }) } else { map }, 512)
        }
        Map::Remap => {
            let options = setup.remap_options(&world, true);
            let map = Remap::with_options(disk.clone(), setup.block_size, options);
            (map, u64::from(setup.block_size))
        }
    };
    let file = File::with_ops(setup, &world, map, first);
    let mut runner = Runner::new(setup.seed, workload(setup, unit), vec![0; first as usize]);
    let outcome = world.run(async {
        runner.run(&file, ops).await?;
        file.cache.dirty.wake_all_flushers();
        Ok::<(), Box<Mismatch>>(())
    });
    if let Err(mismatch) = outcome {
        panic!("{setup:?}\n{mismatch}");
    }
    assert_eq!(disk.unstable_writes(), 0, "bytes changed in flight (S2): {setup:?}");
    (runner.report(), world.digest())
}

fn many(map: Map) {
    let moved = AtomicU64::new(0);
    each(seeds(2), |seed| {
        let (report, _) = run(&Setup::from_seed(seed ^ 0x9000, map), 400);
        moved.fetch_add(report.set_lens, Ordering::Relaxed);
    });
    let seeds = seeds(2);
    assert!(moved.into_inner() > 4 * (seeds.end - seeds.start), "the end was hardly ever moved");
}

#[test]
fn d4_d14_growing_file_agrees_with_model_in_place() {
    many(Map::Identity);
}

#[test]
fn d4_d14_growing_file_agrees_with_model_out_of_place() {
    many(Map::Remap);
}

#[test]
fn same_seed_same_digest() {
    for seed in 1..5 {
        for map in [Map::Identity, Map::Remap] {
            let setup = Setup::from_seed(seed, map);
            assert_eq!(run(&setup, 200), run(&setup, 200), "{setup:?}");
        }
    }
}
