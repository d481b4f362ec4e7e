//! The volume compared with the file system in memory: the same operations give the same answers
//! and the same trees, and the tree is the same after closing and opening again.
//!
//! No locks.

use crate::tests::seeds;
use crate::{CreateOptions, OpenOptions, Volume};
use forebay_base::task::block_on;
use forebay_base::world::{RealWorld, WorldRef};
use forebay_block::{DeviceRef, RamDevice};
use forebay_cache::{Config as CacheConfig, PageCache};
use forebay_testkit::fs_check::suite::{Subject, cases};
use forebay_testkit::fs_check::{Config, Limits, Times, Tree, compare};
use forebay_testkit::mem_fs::{MemFs, MemOptions};
use forebay_vfs::{ManualClock, Timestamp};
use std::sync::Arc;

struct Bench {
    device: DeviceRef,
    world: WorldRef,
    clock: Arc<ManualClock>,
    /// Names in memory, bytes; with 0 every operation loads what it needs.
    inode_cache_bytes: usize,
    /// Limit of changes in memory, bytes: the lower, the more checkpoints.
    overlay_bytes: u64,
}

/// Sizes of the inode cache: everything stays in memory, most is evicted, all is evicted.
const INODE_CACHES: [usize; 3] = [1 << 30, 4000, 0];

impl Bench {
    fn new(seed: u64, bytes: u64, block_bytes: u32) -> Self {
        let device: DeviceRef = Arc::new(RamDevice::new(bytes));
        let world = RealWorld::with_seed(seed);
        let options = CreateOptions {
            block_bytes,
            segment_bytes: 1 << 20,
            ..CreateOptions::new([seed as u8; 16], [3; 16], Timestamp::new(1_000_000_000, 0))
        };
        block_on(Volume::create(&device, &world, &options)).unwrap();
        Self {
            device,
            world,
            clock: Arc::default(),
            inode_cache_bytes: 0,
            overlay_bytes: 256 << 10,
        }
    }

    fn open(&self, fua: bool, noatime: bool) -> Volume {
        let config = CacheConfig { huge_pages: false, ..CacheConfig::with_budget(4 << 20) };
        let cache = PageCache::new(config, self.world.clone()).unwrap();
        let clock = self.clock.clone();
        let cache = Some(cache);
        let inode_cache_bytes = self.inode_cache_bytes;
        let options = OpenOptions {
            clock,
            cache,
            fua,
            noatime,
            inode_cache_bytes,
            overlay_bytes: self.overlay_bytes,
            ..OpenOptions::default()
        };
        block_on(Volume::open(&self.device, &self.world, &options)).unwrap()
    }
}

fn run(seed: u64, count: u64, size_max: u64, inode_cache_bytes: usize) {
    let bench = Bench::new(seed, 192 << 20, 512 << (seed % 4));
    let bench = Bench { inode_cache_bytes, ..bench };
    // `noatime`: a reader of trees reads where an implementation reports data, so `atime` would
    // differ.
    let volume = bench.open(seed & 4 == 0, true);
    let memory = {
        let clock = bench.clock.clone();
        MemFs::new(MemOptions { clock, noatime: true, ..MemOptions::default() })
    };
    let config = Config {
        limits: Limits { size_max, ..Limits::default() },
        times: Times::Exact,
        clock: Some(bench.clock.clone()),
        ..Config::default()
    };
    let report = compare(&volume, &memory, &config, seed, count);
    let report = report.unwrap_or_else(|mismatch| panic!("{mismatch}"));
    assert!(report.done > count / 5, "{report:?}");
    volume.0.state.lock().names().check_cache();
    block_on(volume.close()).unwrap();
    drop(volume);
    let again = block_on(Tree::read(&bench.open(false, true), Times::Exact)).unwrap();
    let memory = block_on(Tree::read(&memory.snapshot(), Times::Exact)).unwrap();
    assert_eq!(memory.difference(&again), None, "seed {seed}, opened again");
}

/// Open files without a name, times, inodes that are loaded and evicted, content of closed files:
/// state.S12, state.S13, state.S14, content.D11. evict.Q31: what is evicted is found again, with
/// its times.
#[test]
fn side_by_side_with_the_one_in_memory() {
    for seed in seeds(6) {
        INODE_CACHES.into_iter().for_each(|bytes| run(seed, 900, 1 << 20, bytes));
    }
}

/// Offsets up to the last one that a file can have.
#[test]
fn side_by_side_at_far_offsets() {
    for seed in seeds(3) {
        let far = forebay_vfs::types::FILE_SIZE_MAX;
        INODE_CACHES.into_iter().for_each(|bytes| run(seed ^ 0xfa0, 500, far, bytes));
    }
}

/// The rules of the file-system contract, case by case. The tree that a case leaves is the same
/// after the volume was closed and opened again.
#[test]
fn f1_to_f8_hold_on_a_volume() {
    let all = cases().into_iter().flat_map(|case| INODE_CACHES.map(|bytes| (case, bytes)));
    for (n, (case, inode_cache_bytes)) in all.enumerate() {
        // A large case takes too long if each access loads inodes again, so its cache is larger.
        let inode_cache_bytes = match (case.is_large, inode_cache_bytes) {
            (true, 0) => continue,
            (true, 4000) => 4 << 20,
            (_, bytes) => bytes,
        };
        let bench = Bench::new(n as u64, 192 << 20, 512 << (n % 4));
        // A checkpoint of a large directory takes long, so a large case makes fewer.
        let overlay_bytes = if case.is_large { 8 << 20 } else { bench.overlay_bytes };
        let bench = Bench { inode_cache_bytes, overlay_bytes, ..bench };
        let volume = bench.open(n % 2 == 0, n % 3 == 0);
        let subject = Subject { fs: Arc::new(volume.clone()), clock: Some(bench.clock.clone()) };
        if let Err(e) = (case.run)(&subject) {
            panic!("{} with {inode_cache_bytes} bytes: {e}", case.name);
        }
        drop(subject);
        // The first read updates `atime`, where it is kept; the second one leaves it unchanged.
        block_on(Tree::read(&volume, Times::Exact)).unwrap();
        let before = block_on(Tree::read(&volume, Times::Exact)).unwrap();
        volume.0.state.lock().names().check_cache();
        block_on(volume.close()).unwrap();
        drop(volume);
        let again = block_on(Tree::read(&bench.open(false, true), Times::Exact)).unwrap();
        assert_eq!(before.difference(&again), None, "{}: opened again", case.name);
    }
}
