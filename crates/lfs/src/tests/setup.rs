//! A volume on a simulated disk, for tests that use its internals. The crash test,
//! `forebay-crashtest`, has its own set-up and workloads.
//!
//! No locks.

use crate::{CreateOptions, OpenOptions, Volume};
use forebay_base::sim_world::SimWorld;
use forebay_base::world::WorldRef;
use forebay_block::DeviceRef;
use forebay_cache::{Config, PageCache};
use forebay_sim::{SimConfig, SimDisk};
use forebay_vfs::{ManualClock, Timestamp};
use std::sync::Arc;

/// How the volume is made and opened.
#[derive(Debug, Clone)]
pub struct Setup {
    pub block_bytes: u32,
    pub volume_bytes: u64,
    /// Files have content.
    pub content: bool,
    /// Longest content in a record, bytes.
    pub inline_max: u32,
    /// Names in memory, bytes; with 0 every operation loads what it needs.
    pub inode_cache_bytes: usize,
    pub fua: bool,
}

impl Setup {
    pub fn options(&self, world: &WorldRef) -> OpenOptions {
        let config =
            Config { huge_pages: false, folio_size: 16384, ..Config::with_budget(1 << 20) };
        let cache = || PageCache::new(config, world.clone()).expect("a cache");
        OpenOptions {
            clock: Arc::new(ManualClock::default()),
            cache: self.content.then(cache),
            inline_max: self.inline_max,
            inode_cache_bytes: self.inode_cache_bytes,
            fua: self.fua,
            ..OpenOptions::default()
        }
    }

    /// A disk with an empty volume, everything durable.
    pub fn blank(&self) -> SimDisk {
        self.blank_of(1)
    }

    /// As `blank`, in a world with this seed.
    pub fn blank_of(&self, seed: u64) -> SimDisk {
        let world = SimWorld::new(seed);
        let config = SimConfig { size: self.volume_bytes, ..SimConfig::default() };
        let disk = SimDisk::new(world.clone(), config);
        let device: DeviceRef = Arc::new(disk.clone());
        let options = CreateOptions {
            block_bytes: self.block_bytes,
            segment_bytes: 64 << 10,
            ..CreateOptions::new([7; 16], [9; 16], Timestamp::new(1, 0))
        };
        let asked: WorldRef = world.clone();
        world.run(Volume::create(&device, &asked, &options)).expect("room for a volume");
        world.stop();
        disk
    }
}
