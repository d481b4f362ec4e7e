//! A mapped file as the subject of seeded workloads, in a simulated world on a simulated disk.

use forebay_base::buf::AlignedBuf;
use forebay_base::sim_world::SimWorld;
use forebay_base::sync::{Arc, Mutex};
use forebay_base::task::BoxFuture;
use forebay_base::world::WorldRef;
use forebay_base::{IoFlags, Result};
use forebay_cache::strategy::{DirtyTracking, StableStrategy, UncachedStrategy};
use forebay_cache::{Config, PageCache};
use forebay_iomap::file::ZeroFlags;
use forebay_iomap::identity::Identity;
use forebay_iomap::{Handle, MapOps, MappedFile, Source, Target};
use forebay_sim::{SimConfig, SimDisk};
use forebay_testkit::remap::{Remap, RemapOptions};
use forebay_testkit::workload::{self, Subject};

const SIZE: u64 = (2 << 20) + 1536;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Map {
    Identity,
    Remap,
}

/// One way to set up a run; drawn from the seed.
#[derive(Debug, Clone)]
pub struct Setup {
    pub seed: u64,
    pub map: Map,
    pub budget: u64,
    /// Bytes that the cache can be given later.
    pub budget_max: Option<u64>,
    pub folio_size: u32,
    pub block_size: u32,
    pub stable: bool,
    pub folio_tracking: bool,
    pub strategy: StableStrategy,
    /// The out-of-place map keeps sums, and waits.
    pub sums: bool,
    pub waits: bool,
    /// Bytes of the file, before rounding.
    pub bytes: u64,
}

impl Setup {
    /// Strategies and folio sizes in turn, so that a run of seeds holds each of the sixteen pairs
    /// equally often; the rest by chance.
    pub fn from_seed(seed: u64, map: Map) -> Self {
        let mut state = seed;
        let mut pick = |n: u64| forebay_base::world::split_mix(&mut state) % n;
        let block_size = 512u32 << pick(4);
        let folio_size = [4096, 16384, 65536, 2 << 20][seed as usize / 4 % 4];
        // From a cache that holds a fraction of the file to one that holds all of it. Folios of 2
        // MiB need one that can hold one of them.
        let budgets = match folio_size {
            0x20_0000 => [3 << 20, 7 << 19, 4 << 20, 8 << 20],
            _ => [1 << 20, 3 << 19, 2 << 20, 8 << 20],
        };
        Self {
            seed,
            map,
            budget: budgets[pick(4) as usize],
            budget_max: None,
            folio_size,
            block_size,
            stable: pick(4) != 0,
            folio_tracking: pick(4) == 0,
            strategy: StableStrategy::ALL[seed as usize % StableStrategy::ALL.len()],
            bytes: SIZE,
            sums: pick(2) == 0,
            waits: pick(2) == 0,
        }
    }

    pub fn sim_config(&self) -> SimConfig {
        let sector = 512;
        // Out of place: what is mapped, what is on its way (with large folios all of it again), and
        // what readers still pin.
        let factor = match (self.map, self.folio_tracking) {
            (Map::Identity, _) => 1,
            (Map::Remap, false) => 4,
            (Map::Remap, true) => 24,
        };
        let size = self.bytes.next_multiple_of(4096) * factor;
        SimConfig { size, sector, stable_writes: self.stable, ..SimConfig::default() }
    }

    pub fn size(&self) -> u64 {
        // The identity shows the whole disk; the other map a file that ends within a block.
        if self.map == Map::Remap { self.bytes } else { self.bytes.next_multiple_of(4096) }
    }

    pub fn remap_options(&self, world: &std::sync::Arc<SimWorld>, grows: bool) -> RemapOptions {
        let waits = self.waits.then(|| world.clone() as WorldRef);
        RemapOptions { grows, sums: self.sums, waits }
    }

    pub fn workload(&self) -> workload::Config {
        let unit = if self.map == Map::Remap { u64::from(self.block_size) } else { 512 };
        workload::Config {
            folio: u64::from(self.folio_size),
            direct_align: unit,
            block: 512,
            trim: workload::TrimReads::Zeros,
            ..workload::Config::fixed(self.size())
        }
    }
}

pub struct File {
    pub cache: Arc<PageCache>,
    pub file: std::sync::Arc<MappedFile>,
    handle: Mutex<std::sync::Arc<Handle>>,
    /// Draws the strategy of uncached requests, which changes while others are in progress.
    turns: Mutex<u64>,
    /// Uncached reads and writes that succeeded while the strategy stayed the same, in the order of
    /// [`UncachedStrategy::ALL`].
    served: Mutex<Served>,
}

/// Reads and writes by each strategy.
pub type Served = [[u64; 2]; UncachedStrategy::ALL.len()];

impl File {
    pub fn open(
        setup: &Setup,
        world: &std::sync::Arc<SimWorld>,
        disk: &std::sync::Arc<SimDisk>,
    ) -> Self {
        let ops: std::sync::Arc<dyn MapOps> = match setup.map {
            Map::Identity => std::sync::Arc::new(Identity::new(disk.clone())),
            Map::Remap => {
                let options = setup.remap_options(world, false);
                Remap::with_options(disk.clone(), setup.block_size, options)
            }
        };
        Self::with_ops(setup, world, ops, setup.size())
    }

    /// The same on a map of the caller's, with `size` bytes.
    pub fn with_ops(
        setup: &Setup,
        world: &std::sync::Arc<SimWorld>,
        ops: std::sync::Arc<dyn MapOps>,
        size: u64,
    ) -> Self {
        let config = Config {
            folio_size: setup.folio_size,
            budget_max: setup.budget_max,
            huge_pages: false,
            dirty_tracking: if setup.folio_tracking {
                DirtyTracking::Folio
            } else {
                DirtyTracking::Block
            },
            stable: setup.strategy,
            ..Config::with_budget(setup.budget)
        };
        let cache = PageCache::new(config, world.clone()).unwrap();
        let file = MappedFile::new(&cache, ops, setup.block_size, size, false).unwrap();
        let handle = Mutex::new(std::sync::Arc::new(file.open_handle()));
        let turns = Mutex::new(setup.seed ^ 0x0dd5);
        Self { cache, file, handle, turns, served: Mutex::default() }
    }

    pub fn served(&self) -> Served {
        *self.served.lock()
    }

    /// Counts a request that began with the strategy `before`; `kind` is 0 for a read, 1 for a
    /// write.
    fn count(&self, before: UncachedStrategy, flags: IoFlags, kind: usize, done: bool) {
        let same = self.cache.strategies.uncached() == before;
        if done && same && flags.contains(IoFlags::UNCACHED) && !flags.contains(IoFlags::DIRECT) {
            let at = UncachedStrategy::ALL.iter().position(|&of| of == before);
            self.served.lock()[at.expect("one of all")][kind] += 1;
        }
    }

    fn handle(&self) -> std::sync::Arc<Handle> {
        let draw = forebay_base::world::split_mix(&mut self.turns.lock());
        if draw.is_multiple_of(8) {
            let all = UncachedStrategy::ALL;
            self.cache.strategies.set_uncached(all[(draw >> 32) as usize % all.len()]);
        }
        self.handle.lock().clone()
    }

    async fn write_all(&self, offset: u64, buf: &mut AlignedBuf, flags: IoFlags) -> Result<u64> {
        if let Some(done) = self.file.try_write(offset, buf, flags) {
            return done.map(|_| offset);
        }
        let handle = self.handle();
        let (len, strategy) = (buf.len(), self.cache.strategies.uncached());
        let placed = self.file.write_placed(&handle, offset, Source::Owned(buf), flags).await?;
        self.count(strategy, flags, 1, true);
        let done = (placed.end - placed.start) as usize;
        if done < len {
            assert!(flags.contains(IoFlags::NOWAIT), "only NOWAIT may write less");
            let mut rest = AlignedBuf::copy_of(&buf[done..]);
            let flags = flags - IoFlags::NOWAIT;
            self.file.write(&handle, placed.end, Source::Owned(&mut rest), flags).await?;
        }
        Ok(placed.start)
    }
}

impl Subject for File {
    fn size(&self) -> u64 {
        self.file.size()
    }

    fn marked(&self) -> bool {
        self.file.mapping.sticky.lock().is_some()
    }

    fn read(
        &self,
        offset: u64,
        mut buf: AlignedBuf,
        flags: IoFlags,
    ) -> BoxFuture<'_, (AlignedBuf, Result<usize>)> {
        Box::pin(async move {
            let handle = self.handle();
            let strategy = self.cache.strategies.uncached();
            let result = match self.file.try_read(&handle, offset, &mut buf, flags) {
                Some(result) => result,
                None => self.file.read(&handle, offset, Target::Owned(&mut buf), flags).await,
            };
            self.count(strategy, flags, 0, result.is_ok());
            (buf, result)
        })
    }

    fn write(
        &self,
        offset: u64,
        mut buf: AlignedBuf,
        flags: IoFlags,
    ) -> BoxFuture<'_, (AlignedBuf, Result<u64>)> {
        Box::pin(async move {
            let result = self.write_all(offset, &mut buf, flags).await;
            (buf, result)
        })
    }

    fn trim(&self, offset: u64, len: u64) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move { self.file.zero(offset, len, ZeroFlags::default()).await })
    }

    fn zero(&self, offset: u64, len: u64) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            let flags = ZeroFlags { keep_allocated: true, fast_only: false };
            self.file.zero(offset, len, flags).await
        })
    }

    fn set_len(&self, size: u64) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move { self.file.set_len(size).await })
    }

    fn sync(&self) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move { self.file.sync(&self.handle()).await })
    }

    fn drop_caches(&self) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            self.cache.drop_clean();
            Ok(())
        })
    }

    fn reopen(&self) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            let fresh = std::sync::Arc::new(self.file.open_handle());
            let old = std::mem::replace(&mut *self.handle.lock(), fresh);
            self.file.close_handle(&old);
            Ok(())
        })
    }
}
