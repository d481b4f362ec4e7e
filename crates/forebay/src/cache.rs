//! The cache as a user sees it: its budget, the files that use it, its counters and its tunables.

use crate::files::Files;
use crate::memory::{default_budget, total_ram};
use crate::open_volumes::Volumes;
use crate::registry::Registry;
use crate::unreported::UnreportedErrors;
use forebay_base::sync::Arc;
use forebay_base::sync::atomic::Ordering;
use forebay_base::task::block_on;
use forebay_base::units::parse_size;
use forebay_base::world::{RealWorld, WorldRef};
use forebay_base::{Error, ErrorKind, Result};
use forebay_block::{Aio, Engine, FileIdentity};
use forebay_cache::strategy::{DirtyTracking, StablePages, StableStrategy, UncachedStrategy};
use forebay_cache::{Config, PageCache, RowSource, Stats};
use forebay_iomap::MappedFile;
use std::path::Path;

/// How to make a cache. All sizes in bytes.
///
/// ```
/// use forebay::{Aio, CacheConfig};
/// let config = CacheConfig::with_budget(64 << 20).aio(Aio::Threads).folio_size(64 << 10);
/// assert_eq!(config.budget, 64 << 20);
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct CacheConfig {
    /// Bytes for everything that grows with data or load, at least 1 MiB. A limit, not a
    /// reservation: memory is taken as it is used. Blocks of files get what bookkeeping and
    /// requests in flight leave, about 9/10.
    pub budget: u64,
    /// Largest budget that [`Cache::resize`] can set. The cache reserves address space for it,
    /// which costs next to nothing. Default: all of RAM.
    pub budget_max: Option<u64>,
    /// Allocate all of the memory at start.
    pub prefault: bool,
    /// Bytes of a folio, a power of two from 4 KiB to 2 MiB. Default: 64 KiB.
    pub folio_size: u32,
    /// I/O engine.
    pub aio: Aio,
    /// Writers wait while there are more dirty bytes than this. Default: a fifth of the cache.
    pub dirty_bytes: Option<u64>,
    /// Background write-out starts above this many dirty bytes. Default: a tenth of the cache.
    pub dirty_background_bytes: Option<u64>,
    /// The flusher writes out data that has been dirty for longer than this, in 1/100 s. Default:
    /// 500.
    pub dirty_expire_centisecs: u32,
    /// Most bytes that a sequential reader is read ahead; 0 turns read-ahead off. Default: 2 MiB.
    pub readahead_max: u32,
    /// Window of uncached writes to a file, bytes: write-out starts when a quarter of it is dirty.
    pub uncached_window_bytes: u32,
    /// Which blocks of a dirty folio a write-out writes.
    pub dirty_tracking: DirtyTracking,
    /// What a writer does at a block in write-out, if the device needs stable bytes.
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

setters! { CacheConfig:
    budget: u64,
    budget_max: u64 => Some,
    prefault: bool,
    folio_size: u32,
    aio: Aio,
    dirty_bytes: u64 => Some,
    dirty_background_bytes: u64 => Some,
    dirty_expire_centisecs: u32,
    readahead_max: u32,
    uncached_window_bytes: u32,
    dirty_tracking: DirtyTracking,
    stable: StableStrategy,
    uncached_strategy: UncachedStrategy,
}

impl Default for CacheConfig {
    /// The smaller of a quarter of RAM and half of the memory cgroup's limit, at least 16 MiB.
    fn default() -> Self {
        Self::with_budget(default_budget())
    }
}

pub(crate) struct Shared {
    pub pages: Arc<PageCache>,
    pub engine: Engine,
    pub registry: Registry,
    pub volumes: std::sync::Arc<Volumes>,
    pub unreported: std::sync::Arc<UnreportedErrors>,
    pub files: std::sync::Arc<Files>,
}

impl Drop for Shared {
    fn drop(&mut self) {
        // No file is open any more, so no caller can ask for the unwritten data of closed files.
        let lost = self.pages.dirty.failed_bytes();
        if lost > 0 {
            log::error!("the cache is dropped with {lost} bytes that could not be written");
        }
        for domain in self.pages.dirty.domains() {
            domain.kept().into_iter().for_each(|(id, _)| domain.let_go(id));
        }
    }
}

/// A cache. Clones share it.
#[derive(Clone)]
pub struct Cache {
    pub(crate) shared: std::sync::Arc<Shared>,
}

impl std::fmt::Debug for Cache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let budget = self.shared.pages.stats().budget_bytes;
        f.debug_struct("Cache").field("budget", &budget).finish_non_exhaustive()
    }
}

impl Cache {
    /// Makes a cache: maps its arena, starts its I/O engine.
    pub fn new(config: CacheConfig) -> Result<Self> {
        let world = RealWorld::shared();
        let cache = Self::in_world(config, world.clone())?;
        let engine = cache.shared.engine.clone();
        // No file is open yet, so no flusher runs.
        if engine.kind().0 == "io_uring" {
            world.attach_flushers(Box::new(move || engine.attach_submitter()));
        }
        Ok(cache)
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
        // Last of what may fail: a cache that is refused has started no thread and no ring.
        let engine = Engine::new(config.aio)?;
        let (registry, unreported) = (Registry::default(), std::sync::Arc::default());
        let (volumes, files) = (std::sync::Arc::default(), std::sync::Arc::default());
        let shared = Shared { pages, engine, registry, volumes, unreported, files };
        Ok(Self { shared: std::sync::Arc::new(shared) })
    }

    /// Discards the data of a file, open or closed, that could not be written, as
    /// [`crate::File::discard_failed`] does. `name` is its path, or the name of the device object.
    /// Returns the bytes dropped. Errors: `NotFound` if no such file is open or has pending
    /// write-back.
    pub fn drop_failed(&self, name: impl AsRef<Path>) -> Result<u64> {
        let name = name.as_ref();
        let by_path = FileIdentity::of_path(name).ok().and_then(|k| self.shared.registry.find(k));
        let named = |f: &std::sync::Arc<MappedFile>| Path::new(&f.device().name()) == name;
        let Some(file) = by_path.or_else(|| self.shared.files.live().into_iter().find(named))
        else {
            let text = "no such file is open or has bytes that could not be written";
            return Err(Error::new(ErrorKind::NotFound, "discard", text).with_path(name));
        };
        Ok(block_on(file.discard_failed()))
    }

    /// Counters and gauges now.
    pub fn stats(&self) -> Stats {
        self.shared.pages.stats()
    }

    /// The parts of the budget: (name, bytes now, bound in bytes).
    pub fn budget(&self) -> Vec<(String, u64, u64)> {
        self.shared.pages.budget()
    }

    /// Adds parts to [`Cache::budget`] that another component uses, such as a server. They count in
    /// the same budget. The source must not keep files of this cache open.
    pub fn add_rows(&self, source: RowSource) {
        self.shared.pages.add_rows(source);
    }

    /// Sets the budget to `bytes`, larger or smaller, while files are in use. Evicts what does not
    /// fit any more, the coldest first, and writes out dirty blocks among it. Returns when the
    /// system has the memory back. Errors: a size out of range (4 MiB, or the budget at the start
    /// if that was less, to [`CacheConfig::budget_max`]); dirty blocks that cannot be written out:
    /// then the budget is as before.
    pub fn resize(&self, bytes: u64) -> Result<()> {
        forebay_base::task::block_on(self.shared.pages.resize(bytes))
    }

    /// Bytes of a folio.
    pub fn folio_size(&self) -> u32 {
        self.shared.pages.config().folio_size
    }

    /// Name of the I/O engine, and why it was chosen.
    pub fn engine(&self) -> (&'static str, String) {
        self.shared.engine.kind()
    }

    /// The tunables and their values.
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
            ("stable_pages", pages.strategies.stable_pages().to_string()),
            ("uncached_strategy", pages.strategies.uncached().to_string()),
        ]
        .into_iter()
        .chain(self.serialized_dio_pages().map(|pages| ("serialized_dio_pages", pages)))
        .collect()
    }

    /// The value of one open volume; `None` if no volume is open. Setting it sets that of all.
    fn serialized_dio_pages(&self) -> Option<String> {
        let open = self.shared.volumes.all();
        open.first().map(|open| open.volume.serialized_dio_pages().to_string())
    }

    /// Sets a tunable of the running cache. Sizes as in `64M`. Errors: an unknown name, an invalid
    /// value.
    pub fn tune(&self, name: &str, value: &str) -> Result<()> {
        let pages = &self.shared.pages;
        match name {
            "dirty_tracking" => pages.strategies.set_dirty_tracking(value.parse()?),
            "stable" => pages.strategies.set_stable(value.parse()?),
            "stable_pages" => return self.set_stable_pages(value.parse()?),
            "uncached_strategy" => pages.strategies.set_uncached(value.parse()?),
            _ => return self.tune_number(name, value),
        }
        Ok(())
    }

    /// Sets whether bytes in flight are kept from changing, in files without a setting of their
    /// own. `Off` is refused while a volume with checksums is open: its files keep them stable.
    fn set_stable_pages(&self, to: StablePages) -> Result<()> {
        let open = self.shared.volumes.all();
        if to == StablePages::Off && open.iter().any(|open| open.volume.map_info().sums) {
            let text = "stable_pages=off: the volume keeps checksums of what is written";
            return Err(Error::new(ErrorKind::Unsupported, "tune", text));
        }
        self.shared.pages.strategies.set_stable_pages(to);
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
            "serialized_dio_pages" if self.serialized_dio_pages().is_some() => {
                let value = u32::try_from(number).unwrap_or(u32::MAX);
                self.shared.volumes.all().iter().for_each(|open| {
                    open.volume.set_serialized_dio_pages(value);
                });
            }
            "uncached_window" => dirty.uncached_window.store(number, Ordering::Relaxed),
            _ => {
                let names: Vec<_> = self.tunables().into_iter().map(|(n, _)| n).collect();
                return bad(format!("no option `{name}`; there are {}", names.join(", ")));
            }
        }
        dirty.wake_all_flushers();
        Ok(())
    }

    /// Evicts clean blocks that no request uses; returns the bytes freed.
    pub fn drop_clean(&self) -> u64 {
        self.shared.pages.drop_clean()
    }

    /// Writes out and flushes each open volume, and each file that is open or has pending
    /// write-back. Tries all of them and returns the first error; [`Cache::unwritten_bytes`] says
    /// how much is still unwritten.
    pub fn shutdown(&self) -> Result<()> {
        let mut outcome = Ok(());
        for open in self.shared.volumes.all() {
            let synced = block_on(open.fs.syncfs()).map_err(|e| e.with_path(&open.path));
            outcome = outcome.and(synced);
        }
        for file in self.shared.files.live() {
            // The caller sees only the first error; the others stay unreported, for the next
            // opener.
            outcome = match outcome {
                Ok(()) => block_on(file.sync(&file.open_handle())),
                failed => {
                    let _unreported = block_on(file.sync_deferring_errors());
                    failed
                }
            };
        }
        let left = self.unwritten_bytes();
        if left > 0 {
            log::error!("{left} bytes could not be written");
        }
        outcome
    }

    /// Bytes accepted and not yet on a device: dirty or in write-out.
    pub fn unwritten_bytes(&self) -> u64 {
        let dirty = &self.shared.pages.dirty;
        dirty.dirty_bytes() + dirty.writeback_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The story: work in the background held a file when it was closed. Its entry stayed in the
    /// list of files for good, and so did the file's memory.
    #[test]
    fn closed_files_held_in_background_leave_the_list() {
        let cache = Cache::new(CacheConfig::with_budget(8 << 20)).unwrap();
        for _ in 0..500 {
            let device = std::sync::Arc::new(forebay_block::RamDevice::new(4096));
            let file = crate::OpenOptions::read_write().open_device(&cache, device).unwrap();
            let held = file.mapped().unwrap();
            drop(file);
            drop(held);
        }
        let listed = cache.shared.files.len();
        assert!(listed < 32, "{listed} files are listed, and none is left");
        assert!(cache.shared.files.live().is_empty());
    }
}
