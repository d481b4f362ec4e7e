//! The cache as a user sees it: its budget, the files that use it, its counters and its tunables.

use crate::file::{Access, Closing, File, Kind, Raw, RawOpener};
use crate::memory::{default_budget, total_ram};
use crate::registry::{Claim, Found, Locked, Registry, Resident, View};
use crate::unreported::{Key, UnreportedErrors};
use crate::volume::Volumes;
use forebay_base::sync::Arc;
use forebay_base::sync::atomic::Ordering;
use forebay_base::task::block_on;
use forebay_base::units::parse_size;
use forebay_base::world::{RealWorld, WorldRef};
use forebay_base::{Error, ErrorKind, Result};
use forebay_block::{
    Aio, BlockDevice, DeviceRef, DirectIo, Engine, FileDevice, FileIdentity, FileOptions,
};
use forebay_cache::strategy::{DirtyTracking, StableStrategy, UncachedStrategy};
use forebay_cache::writeback::{Domain, DomainKey};
use forebay_cache::{Config, PageCache, RowSource, Stats};
use forebay_iomap::MappedFile;
use forebay_iomap::file::Geometry;
use forebay_iomap::identity::Identity;
use std::collections::HashMap;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, Weak};

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
    /// Bytes for everything that grows with data or load. A limit, not a reservation: memory is
    /// taken as it is used.
    pub budget: u64,
    /// Largest budget that [`Cache::resize`] can set. The cache reserves address space for it,
    /// which costs next to nothing. Default: all of RAM.
    pub budget_max: Option<u64>,
    /// Allocate all of the memory at start.
    pub prefault: bool,
    /// Bytes of a folio, 4 KiB..2 MiB.
    pub folio_size: u32,
    /// I/O engine.
    pub aio: Aio,
    /// Writers wait while there are more dirty bytes than this. Default: a fifth of the cache.
    pub dirty_bytes: Option<u64>,
    /// Background write-out starts above this many dirty bytes. Default: a tenth of the cache.
    pub dirty_background_bytes: Option<u64>,
    /// The flusher writes out data that has been dirty for longer than this, in 1/100 s.
    pub dirty_expire_centisecs: u32,
    /// Longest read-ahead window of a stream, bytes.
    pub readahead_max: u32,
    /// Dirty bytes of a file's uncached writes that start write-out.
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
    /// The smaller of a quarter of RAM and half of the memory cgroup's limit.
    fn default() -> Self {
        Self::with_budget(default_budget())
    }
}

/// The part of [`crate::OpenOptions`] that concerns a raw image.
pub(crate) struct RawOptions {
    pub read_only: bool,
    pub direct_io: DirectIo,
    pub offset: u64,
    pub size_limit: Option<u64>,
    pub block_size: Option<u32>,
    /// Size to give an empty image.
    pub create_size: Option<u64>,
}

pub(crate) struct Shared {
    pub pages: Arc<PageCache>,
    pub engine: Engine,
    pub registry: Registry,
    pub volumes: std::sync::Arc<Volumes>,
    pub unreported: std::sync::Arc<UnreportedErrors>,
    /// Files that are open or have pending write-back, by the number of their mapping.
    files: Mutex<HashMap<u32, Weak<MappedFile>>>,
}

impl Shared {
    fn files(&self) -> MutexGuard<'_, HashMap<u32, Weak<MappedFile>>> {
        self.files.lock().unwrap_or_else(|p| p.into_inner())
    }

    /// Removes a closed file from the list, unless work in the background still holds it.
    pub fn forget(&self, id: u32, file: &Weak<MappedFile>) {
        let mut files = self.files();
        if file.strong_count() == 0 && files.get(&id).is_some_and(|listed| listed.ptr_eq(file)) {
            files.remove(&id);
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // No file is open any more, so no caller can ask for the data kept of closed files.
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
        let (registry, unreported) = (Registry::default(), std::sync::Arc::default());
        let (volumes, files) = (std::sync::Arc::default(), Mutex::default());
        let shared = Shared { pages, engine, registry, volumes, unreported, files };
        Ok(Self { shared: std::sync::Arc::new(shared) })
    }

    pub(crate) fn open_raw(
        &self,
        path: &Path,
        options: &RawOptions,
        access: Access,
    ) -> Result<File> {
        // Almost always once. Retries if the path leads to another file by now.
        for _ in 0..8 {
            if let Some(file) = self.open_once(path, options, access)? {
                return Ok(file);
            }
        }
        Err(Error::new(ErrorKind::Busy, "open", "the path leads elsewhere each time")
            .with_path(path))
    }

    fn open_once(&self, path: &Path, options: &RawOptions, access: Access) -> Result<Option<File>> {
        let key = FileIdentity::of_path(path)?;
        let (offset, size_limit) = (options.offset, options.size_limit);
        let view = View { offset, size_limit, block_size: options.block_size.unwrap_or(4096) };
        let mut claim = match self.shared.registry.claim(key) {
            Found::Open(closing) => {
                check_suitable(&closing, view, options).map_err(|e| e.with_path(path))?;
                return Ok(Some(self.opener(closing, access)));
            }
            Found::Free(claim) => claim,
        };
        if let Some(closing) = self.revived(key, &claim, view, options) {
            let suits = check_suitable(&closing, view, options).map_err(|e| e.with_path(path));
            let file = suits.map(|()| self.opener(closing.clone(), access));
            claim.opened(&closing);
            return file.map(Some);
        }
        claim.wait_gone();
        let file_options = FileOptions {
            read_only: options.read_only,
            direct_io: options.direct_io,
            offset: options.offset,
            size_limit: options.size_limit,
            create_size: options.create_size,
            // Direct I/O needs units no larger than the cache's blocks (checklist L1).
            logical_block: options.block_size.unwrap_or(0),
            ..FileOptions::default()
        };
        let device = FileDevice::open(path, &file_options, &self.shared.engine)?;
        if device.identity()? != key {
            return Ok(None);
        }
        let lock = self.shared.registry.new_lock();
        let locked = Locked::by(&lock);
        device.until_closed(lock);
        let pages = &self.shared.pages;
        let domain = pages.dirty.domain(Some(match key {
            FileIdentity::Inode(dev, _) => DomainKey::HostFs(dev),
            FileIdentity::Block(dev) => DomainKey::Block(dev),
        }));
        let same = |r: &Resident| r.view == view && device.stamp() == Some(r.stamp);
        let resident = match claim.resident.filter(same) {
            Some(resident) => Some(resident.id),
            None => {
                self.drop_resident(path, claim.forget(), &domain);
                None
            }
        };
        let geometry = Geometry {
            block_size: view.block_size,
            size: device.size(),
            read_only: options.read_only,
        };
        let ops = std::sync::Arc::new(Identity::new(device.clone()));
        let file = MappedFile::open_in(pages, domain, ops, geometry, resident)?;
        self.report_unreported(Key::File(key), &file);
        let raw = Raw { device, key, view, locked };
        let closing = Closing::new(&self.shared, file, Some(raw));
        self.list(closing.file());
        claim.opened(&closing);
        self.shared.registry.sweep(|id| pages.owners.knows(id));
        Ok(Some(self.opener(closing, access)))
    }

    /// Gives a closed file with pending write-back a new opener. Returns `None` if it has nothing
    /// to write back and the caller wants other options than it was opened with: then it is
    /// released. `key`: which file it is, as claimed.
    fn revived(
        &self,
        key: FileIdentity,
        claim: &Claim<'_>,
        view: View,
        options: &RawOptions,
    ) -> Option<std::sync::Arc<Closing>> {
        let closed = claim.closed.as_ref()?;
        let (file, device) = (closed.file.upgrade()?, closed.raw.upgrade()?);
        let (view_is, locked) = (closed.view, closed.locked.clone());
        if file.mapping.is_settled() && unsuitable(&file, &device, view_is, view, options).is_some()
        {
            file.mapping.domain.let_go(file.mapping.id);
            return None;
        }
        // Nothing may fail from here on: only this call holds the file and its unwritten data.
        file.mapping.domain.let_go(file.mapping.id);
        self.list(&file);
        let raw = Raw { device, key, view: view_is, locked };
        Some(Closing::new(&self.shared, file, Some(raw)))
    }

    /// Gives the file the errors of its earlier openers that no sync has reported, and has it store
    /// such errors again when it is dropped.
    fn report_unreported(&self, key: Key, file: &std::sync::Arc<MappedFile>) {
        if file.read_only() {
            return;
        }
        if let Some(unreported) = self.shared.unreported.take(&key) {
            file.mapping.restore_unreported(unreported);
        }
        let (errors, pages) = (self.shared.unreported.clone(), self.shared.pages.clone());
        file.set_error_sink(Box::new(move |unreported| errors.keep(&pages, key, unreported)));
    }

    /// A new opener of an open file.
    fn opener(&self, closing: std::sync::Arc<Closing>, access: Access) -> File {
        let opener = RawOpener::new(self.clone(), closing, access);
        File::of(Kind::Raw(opener), access.io_flags)
    }

    /// Drops the cached blocks of a closed file, which are not its content any more.
    fn drop_resident(&self, path: &Path, resident: Option<Resident>, domain: &Arc<Domain>) {
        let Some(Resident { id, view, .. }) = resident else { return };
        if self.shared.pages.drop_left(id, domain.clone(), view.block_size) {
            let path = path.display();
            log::info!(
                "{path}: changed since it was closed, or opened another way: its cached blocks are dropped"
            );
        }
    }

    pub(crate) fn open_device(
        &self,
        device: DeviceRef,
        options: &RawOptions,
        access: Access,
    ) -> Result<File> {
        let address = std::sync::Arc::as_ptr(&device).cast::<()>() as usize;
        let key = DomainKey::Object(address);
        let pages = &self.shared.pages;
        let geometry = Geometry {
            block_size: options.block_size.unwrap_or(4096),
            size: device.size(),
            read_only: options.read_only,
        };
        let ops = std::sync::Arc::new(Identity::new(device.clone()));
        let file = MappedFile::open_in(pages, pages.dirty.domain(Some(key)), ops, geometry, None)?;
        self.report_unreported(Key::object(&device), &file);
        let closing = Closing::new(&self.shared, file, None);
        self.list(closing.file());
        Ok(self.opener(closing, access))
    }

    fn list(&self, file: &std::sync::Arc<MappedFile>) {
        let mut files = self.shared.files();
        if files.len() == files.capacity() {
            // Also entries of files that outlived their closing, which no close removes.
            files.retain(|_, file| file.strong_count() > 0);
        }
        files.insert(file.mapping.id, std::sync::Arc::downgrade(file));
    }

    /// Files that are open or have pending write-back.
    fn live_files(&self) -> Vec<std::sync::Arc<MappedFile>> {
        self.shared.files().values().filter_map(Weak::upgrade).collect()
    }

    /// The file with this mapping, if it is listed.
    pub(crate) fn live_file(&self, id: u32) -> Option<std::sync::Arc<MappedFile>> {
        self.shared.files().get(&id).and_then(Weak::upgrade)
    }

    /// Discards the data of a file, open or closed, that could not be written: see
    /// [`File::discard_failed`]. `name` is its path, or the name of the device object. Returns the
    /// bytes dropped. Errors: `NotFound` if no such file is open or has pending write-back.
    pub fn drop_failed(&self, name: impl AsRef<Path>) -> Result<u64> {
        let name = name.as_ref();
        let by_path = FileIdentity::of_path(name).ok().and_then(|k| self.shared.registry.find(k));
        let named = |f: &std::sync::Arc<MappedFile>| Path::new(&f.device().name()) == name;
        let Some(file) = by_path.or_else(|| self.live_files().into_iter().find(named)) else {
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
            ("uncached_strategy", pages.strategies.uncached().to_string()),
        ]
        .into_iter()
        .chain(self.serialized_dio_pages().map(|pages| ("serialized_dio_pages", pages)))
        .collect()
    }

    /// The setting that all open volumes share.
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
            "serialized_dio_pages" if self.serialized_dio_pages().is_some() => {
                let value = u32::try_from(number).unwrap_or(u32::MAX);
                self.shared.volumes.all().iter().for_each(|open| {
                    open.volume.set_serialized_dio_pages(value);
                });
            }
            "uncached_window" => dirty.uncached_window.store(number, Ordering::Relaxed),
            _ => {
                let names: Vec<_> = self.tunables().into_iter().map(|(n, _)| n).collect();
                return bad(format!("no knob `{name}`; there are {}", names.join(", ")));
            }
        }
        dirty.wake_all_flushers();
        Ok(())
    }

    /// Evicts what is clean and idle; returns the bytes freed.
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
        for file in self.live_files() {
            // The caller sees the first error only; the others stay unreported.
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

/// `Busy` if an opener with these options cannot share the file as it is open.
fn check_suitable(closing: &Closing, view: View, options: &RawOptions) -> Result<()> {
    let why =
        closing.raw().and_then(|(raw, open)| unsuitable(closing.file(), raw, open, view, options));
    why.map_or(Ok(()), |why| Err(Error::new(ErrorKind::Busy, "open", why)))
}

/// Why an opener cannot share a file that is open as `view_is`; `None` if it can.
fn unsuitable(
    file: &MappedFile,
    device: &FileDevice,
    view_is: View,
    view: View,
    options: &RawOptions,
) -> Option<&'static str> {
    if view_is != view {
        return Some("it is open already, for another range or with other blocks");
    }
    if file.read_only() && !options.read_only {
        return Some("it is open already, for reading only");
    }
    let (direct, wanted) = (device.direct_io().0, options.direct_io);
    if (wanted == DirectIo::On && !direct) || (wanted == DirectIo::Off && direct) {
        return Some("it is open already, with direct I/O the other way");
    }
    None
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
        let listed = cache.shared.files().len();
        assert!(listed < 32, "{listed} files are listed, and none is left");
        assert!(cache.live_files().is_empty());
    }
}
