//! The cache as a user sees it: a budget, files on it, numbers, knobs.

use crate::file::File;
use crate::memory::{default_budget, total_ram};
use forebay_base::sync::Arc;
use forebay_base::sync::atomic::Ordering;
use forebay_base::units::parse_size;
use forebay_base::world::{RealWorld, WorldRef};
use forebay_base::{Error, ErrorKind, Result};
use forebay_block::{Aio, DeviceRef, DirectIo, Engine, FileDevice, FileOptions};
use forebay_cache::strategy::{DirtyTracking, StableStrategy, UncachedStrategy};
use forebay_cache::{Config, PageCache, RowSource, Stats};
use forebay_iomap::MappedFile;
use forebay_iomap::identity::Identity;
use std::path::Path;
use std::sync::{Mutex, Weak};

/// How to make a cache. All sizes in bytes.
#[derive(Clone, Debug)]
pub struct CacheConfig {
    /// Bytes for everything that grows with data or load. A limit, not a reservation: memory is
    /// taken as it is used.
    pub budget: u64,
    /// Largest budget that [`Cache::resize`] can give it; address space is kept for it, which costs
    /// next to nothing. Default: all of RAM.
    pub budget_max: Option<u64>,
    /// Take all of the memory at start.
    pub prefault: bool,
    /// Bytes of a folio, 4 KiB..2 MiB.
    pub folio_size: u32,
    /// I/O engine.
    pub aio: Aio,
    /// Writers wait above this many dirty bytes; default a fifth of the cache.
    pub dirty_bytes: Option<u64>,
    /// Write-out starts above this many dirty bytes; default a tenth of the cache.
    pub dirty_background_bytes: Option<u64>,
    /// Dirt older than this is written out, 1/100 s.
    pub dirty_expire_centisecs: u32,
    /// Longest readahead window of a stream.
    pub readahead_max: u32,
    /// Uncached dirt of a file that starts write-out.
    pub uncached_window_bytes: u32,
    /// What a write-out takes of a dirty folio.
    pub dirty_tracking: DirtyTracking,
    /// What a writer does that hits a block in write-out, where the device needs stable bytes.
    pub stable: StableStrategy,
    /// What an uncached request does with blocks that are not cached.
    pub uncached_strategy: UncachedStrategy,
}

impl CacheConfig {
    /// Defaults with a budget.
    pub fn with_budget(budget: u64) -> Self {
        let base = Config::with_budget(budget);
        Self {
            budget,
            budget_max: None,
            prefault: false,
            folio_size: base.folio_size,
            aio: Aio::Auto,
            dirty_bytes: None,
            dirty_background_bytes: None,
            dirty_expire_centisecs: base.dirty_expire_centisecs,
            readahead_max: base.readahead_max,
            uncached_window_bytes: base.uncached_window_bytes,
            dirty_tracking: base.dirty_tracking,
            stable: base.stable,
            uncached_strategy: base.uncached_strategy,
        }
    }
}

impl Default for CacheConfig {
    /// The smaller of a quarter of RAM and half of the memory cgroup's limit.
    fn default() -> Self {
        Self::with_budget(default_budget())
    }
}

/// How to open a raw file.
#[derive(Clone, Debug, Default)]
pub struct RawOptions {
    /// Reading only: takes a shared lock.
    pub read_only: bool,
    /// Bypass the system's page cache below us.
    pub direct_io: DirectIo,
    /// Where in the file to start, bytes.
    pub offset: u64,
    /// Longest size to show, bytes.
    pub size_limit: Option<u64>,
    /// Unit of state in the cache, 512..4096 bytes; default 4096.
    pub block_size: Option<u32>,
    /// Make the file with this size if it is missing or empty.
    pub create_size: Option<u64>,
}

pub(crate) struct Shared {
    pub pages: Arc<PageCache>,
    pub engine: Engine,
    files: Mutex<Vec<Weak<MappedFile>>>,
}

/// A cache. Clones share it.
#[derive(Clone)]
pub struct Cache {
    pub(crate) shared: std::sync::Arc<Shared>,
}

impl Cache {
    /// Makes a cache: maps its arena, starts its I/O engine.
    pub fn new(config: CacheConfig) -> Result<Self> {
        Self::in_world(config, RealWorld::new())
    }

    /// A cache in a given world, for simulation.
    pub fn in_world(config: CacheConfig, world: WorldRef) -> Result<Self> {
        let pages = PageCache::new(
            Config {
                budget_max: config.budget_max.or_else(total_ram),
                prefault: config.prefault,
                folio_size: config.folio_size,
                dirty_bytes: config.dirty_bytes,
                dirty_background_bytes: config.dirty_background_bytes,
                dirty_expire_centisecs: config.dirty_expire_centisecs,
                readahead_max: config.readahead_max,
                uncached_window_bytes: config.uncached_window_bytes,
                dirty_tracking: config.dirty_tracking,
                stable: config.stable,
                uncached_strategy: config.uncached_strategy,
                ..Config::with_budget(config.budget)
            },
            world,
        )?;
        let engine = Engine::new(config.aio)?;
        let shared = Shared { pages, engine, files: Mutex::default() };
        Ok(Self { shared: std::sync::Arc::new(shared) })
    }

    /// Opens a file or block special file. It is locked for as long as it is open.
    pub fn open_raw(&self, path: impl AsRef<Path>, options: &RawOptions) -> Result<File> {
        let file_options = FileOptions {
            read_only: options.read_only,
            direct_io: options.direct_io,
            offset: options.offset,
            size_limit: options.size_limit,
            create_size: options.create_size,
            // L1: direct I/O in larger units than those of our state is none.
            logical_block: options.block_size.unwrap_or(0),
            ..FileOptions::default()
        };
        let device = FileDevice::open(path.as_ref(), &file_options, &self.shared.engine)?;
        self.open(device.clone(), Some(device), options)
    }

    /// Opens a block device object: RAM, or a decorated one.
    pub fn open_device(&self, device: DeviceRef, options: &RawOptions) -> Result<File> {
        self.open(device, None, options)
    }

    fn open(
        &self,
        device: DeviceRef,
        raw: Option<std::sync::Arc<FileDevice>>,
        options: &RawOptions,
    ) -> Result<File> {
        let size = device.size();
        let block_size = options.block_size.unwrap_or(4096);
        let ops = std::sync::Arc::new(Identity::new(device));
        let pages = &self.shared.pages;
        let file = MappedFile::new(pages, ops, block_size, size, options.read_only)?;
        let mut files = self.files();
        files.retain(|f| f.strong_count() > 0);
        files.push(std::sync::Arc::downgrade(&file));
        drop(files);
        Ok(File::new(self.clone(), file, raw))
    }

    fn files(&self) -> std::sync::MutexGuard<'_, Vec<Weak<MappedFile>>> {
        self.shared.files.lock().unwrap_or_else(|p| p.into_inner())
    }

    /// Counters and gauges now.
    pub fn stats(&self) -> Stats {
        self.shared.pages.stats()
    }

    /// What the budget is spent on: (what, bytes now, bound in bytes).
    pub fn budget(&self) -> Vec<(String, u64, u64)> {
        self.shared.pages.budget()
    }

    /// Adds parts to [`Cache::budget`] that somebody else uses and that count in the same number, such
    /// as a server. The source must not keep files of this cache open.
    pub fn add_rows(&self, source: RowSource) {
        self.shared.pages.add_rows(source);
    }

    /// Makes the budget `bytes`, up or down, while files are in use. What does not fit any more is
    /// evicted, the coldest first; dirt among it is written out. Waits until the memory has gone back
    /// to the system. Errors: a size out of range (4 MiB, or what it was made with if that was less,
    /// to [`CacheConfig::budget_max`]); dirty blocks that cannot be written out: then the budget is as
    /// before.
    pub fn resize(&self, bytes: u64) -> Result<()> {
        forebay_base::task::block_on(self.shared.pages.resize(bytes))
    }

    /// Name of the I/O engine, and why it was chosen.
    pub fn engine(&self) -> (&'static str, String) {
        self.shared.engine.kind()
    }

    /// The knobs and their values.
    pub fn tunables(&self) -> Vec<(&'static str, String)> {
        let pages = &self.shared.pages;
        let dirty = &pages.dirty;
        vec![
            ("cache_size", pages.stats().budget_bytes.to_string()),
            ("dirty_background_bytes", dirty.background.load(Ordering::Relaxed).to_string()),
            ("dirty_bytes", dirty.limit.load(Ordering::Relaxed).to_string()),
            ("dirty_expire_centisecs", dirty.expire_centisecs.load(Ordering::Relaxed).to_string()),
            ("readahead_max", pages.readahead_max.load(Ordering::Relaxed).to_string()),
            ("uncached_window", dirty.uncached_window.load(Ordering::Relaxed).to_string()),
            ("dirty_tracking", pages.strategies.dirty_tracking().to_string()),
            ("stable", pages.strategies.stable().to_string()),
            ("uncached_strategy", pages.strategies.uncached().to_string()),
        ]
    }

    /// Turns a knob of the running cache. Sizes as in `64M`. Errors: unknown name, value that makes
    /// no sense.
    pub fn tune(&self, name: &str, value: &str) -> Result<()> {
        let pages = &self.shared.pages;
        match name {
            "dirty_tracking" => pages.strategies.set_dirty_tracking(value.parse()?),
            "stable" => pages.strategies.set_stable(value.parse()?),
            "uncached_strategy" => pages.strategies.set_uncached(value.parse()?),
            _ => return self.tune_number(name, value),
        }
        Ok(())
    }

    fn tune_number(&self, name: &str, value: &str) -> Result<()> {
        let pages = &self.shared.pages;
        let dirty = &pages.dirty;
        let bad = |text: String| Err(Error::new(ErrorKind::InvalidInput, "tune", text));
        let number = parse_size(value)?;
        match name {
            "cache_size" => return self.resize(number),
            "dirty_bytes" => return pages.set_dirty_bytes(number),
            "dirty_background_bytes" => return pages.set_dirty_background_bytes(number),
            "dirty_expire_centisecs" => {
                let value = u32::try_from(number).unwrap_or(u32::MAX);
                dirty.expire_centisecs.store(value, Ordering::Relaxed);
            }
            "readahead_max" => pages.readahead_max.store(number, Ordering::Relaxed),
            "uncached_window" => dirty.uncached_window.store(number, Ordering::Relaxed),
            _ => {
                let names: Vec<_> = self.tunables().into_iter().map(|(n, _)| n).collect();
                return bad(format!("no knob `{name}`; there are {}", names.join(", ")));
            }
        }
        dirty.kick_all();
        Ok(())
    }

    /// Evicts what is clean and idle; returns the bytes freed.
    pub fn drop_clean(&self) -> u64 {
        self.shared.pages.drop_clean()
    }

    /// Writes out and flushes every open file. The first error is returned, after all were tried.
    pub fn shutdown(&self) -> Result<()> {
        let files: Vec<_> = self.files().iter().filter_map(Weak::upgrade).collect();
        let mut outcome = Ok(());
        for file in files {
            let handle = file.open_handle();
            let synced = forebay_base::task::block_on(file.sync(&handle));
            outcome = outcome.and(synced);
        }
        outcome
    }

    /// Bytes accepted and not yet on a device: dirty or in write-out.
    pub fn unwritten_bytes(&self) -> u64 {
        let dirty = &self.shared.pages.dirty;
        dirty.dirty_bytes() + dirty.writeback_bytes()
    }
}
