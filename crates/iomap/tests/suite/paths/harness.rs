//! A file on a simulated disk, and questions to both.

use forebay_base::buf::AlignedBuf;
use forebay_base::sim_world::SimWorld;
use forebay_base::world::{World, WorldRef};
use forebay_base::{IoFlags, Result};
use forebay_block::{BioOp, BlockDevice, DeviceRef};
use forebay_cache::folio::Blocks;
use forebay_cache::{Config, PageCache, State};
use forebay_iomap::file::ZeroFlags;
use forebay_iomap::identity::Identity;
use forebay_iomap::{Handle, MapOps, MappedFile, Source, Target};
use forebay_sim::{SimConfig, SimDisk};
use forebay_testkit::remap::{Remap, RemapOptions};
use std::collections::BTreeSet;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::Duration;

pub const NONE: IoFlags = IoFlags::empty();

pub struct Lab {
    pub world: Arc<SimWorld>,
    pub disk: Arc<SimDisk>,
    pub cache: forebay_base::sync::Arc<PageCache>,
    pub file: Arc<MappedFile>,
    pub handle: Handle,
    size: u64,
}

impl Lab {
    /// A disk full of known bytes ([`Lab::old`]), a file on it, nothing cached.
    pub fn new(config: Config, block_size: u32, sim: SimConfig) -> Self {
        let size = sim.size;
        Self::with_map(config, block_size, sim, size, |disk| Arc::new(Identity::new(disk)))
    }

    /// The same with a map of the caller's choice, and a file of `size` bytes on it.
    pub fn with_map(
        config: Config,
        block_size: u32,
        sim: SimConfig,
        size: u64,
        map: impl FnOnce(DeviceRef) -> Arc<dyn MapOps>,
    ) -> Self {
        Self::in_world(SimWorld::new(7), config, block_size, sim, size, |disk, _| map(disk))
    }

    /// A map that writes elsewhere each time, with blocks of 4 KiB, and whose answers wait at
    /// times.
    pub fn with_late_map(seed: u64, config: Config, size: u64) -> Self {
        let late = |disk, world: &Arc<SimWorld>| -> Arc<dyn MapOps> {
            let waits = Some(world.clone() as WorldRef);
            Remap::with_options(disk, 4096, RemapOptions { grows: false, sums: false, waits })
        };
        Self::in_world(SimWorld::new(seed), config, 4096, Self::sim(2 * size), size, late)
    }

    pub fn in_world(
        world: Arc<SimWorld>,
        config: Config,
        block_size: u32,
        sim: SimConfig,
        size: u64,
        map: impl FnOnce(DeviceRef, &Arc<SimWorld>) -> Arc<dyn MapOps>,
    ) -> Self {
        let disk = Arc::new(SimDisk::new(world.clone(), sim));
        // One period of the pattern, again and again: byte by byte takes seconds for a large disk.
        let mut content = (0..251).map(Self::old).collect::<Vec<u8>>();
        content = content.repeat(disk.size().div_ceil(251) as usize);
        disk.poke(0, &content[..disk.size() as usize]);
        let config = Config { huge_pages: false, ..config };
        let cache = PageCache::new(config, world.clone()).unwrap();
        let ops = map(disk.clone(), &world);
        let file = MappedFile::new(&cache, ops, block_size, size, false).unwrap();
        let handle = file.open_handle();
        Self { world, disk, cache, file, handle, size }
    }

    /// 8 MiB of cache, 4 MiB of disk, folios of 64 KiB.
    pub fn plain(block_size: u32) -> Self {
        Self::new(Config::with_budget(8 << 20), block_size, Self::sim(4 << 20))
    }

    pub fn sim(size: u64) -> SimConfig {
        SimConfig { size, latency: (20_000, 60_000), ..SimConfig::default() }
    }

    /// What the disk held in the beginning.
    pub fn old(at: u64) -> u8 {
        (at % 251) as u8 | 1
    }

    /// Leaves bytes of another file in every frame of the cache: a read that shows bytes that were
    /// never written shows 0xee.
    pub async fn foul_frames(&self) {
        let size = self.cache.stats().frames_total * 8192;
        let disk = SimDisk::new(self.world.clone(), Self::sim(size));
        disk.poke(0, &vec![0xee; size as usize]);
        let ops = Arc::new(Identity::new(Arc::new(disk)));
        let file = MappedFile::new(&self.cache, ops, 4096, size, true).unwrap();
        let handle = file.open_handle();
        let mut buf = AlignedBuf::new(65536);
        for at in (0..size).step_by(65536) {
            file.read(&handle, at, Target::Owned(&mut buf), NONE).await.unwrap();
        }
        self.world.sleep(Duration::from_millis(50)).await;
        self.cache.drop_clean();
        assert_eq!(self.cache.stats().frames_free, self.cache.stats().frames_total);
    }

    pub fn run<T>(&self, future: impl Future<Output = T>) -> T {
        self.world.run(future)
    }

    pub async fn try_read(&self, at: u64, len: usize, flags: IoFlags) -> Result<Vec<u8>> {
        let mut buf = AlignedBuf::new(len);
        let done = match self.file.try_read(&self.handle, at, &mut buf, flags) {
            Some(done) => done,
            None => self.file.read(&self.handle, at, Target::Owned(&mut buf), flags).await,
        };
        done.map(|n| buf[..n].to_vec())
    }

    pub async fn read(&self, at: u64, len: usize, flags: IoFlags) -> Vec<u8> {
        self.try_read(at, len, flags).await.unwrap()
    }

    pub async fn try_write(&self, at: u64, bytes: &[u8], flags: IoFlags) -> Result<usize> {
        if let Some(done) = self.file.try_write(at, bytes, flags) {
            return done;
        }
        let mut buf = AlignedBuf::copy_of(bytes);
        self.file.write(&self.handle, at, Source::Owned(&mut buf), flags).await
    }

    pub async fn write(&self, at: u64, bytes: &[u8], flags: IoFlags) {
        assert_eq!(self.try_write(at, bytes, flags).await.unwrap(), bytes.len());
    }

    pub async fn sync(&self) -> Result<()> {
        self.file.sync(&self.handle).await
    }

    pub async fn zero(&self, at: u64, len: u64, fast_only: bool) -> Result<()> {
        let flags = ZeroFlags { keep_allocated: false, fast_only };
        self.file.zero(at, len, flags).await
    }

    pub async fn sleep_ms(&self, ms: u64) {
        self.world.sleep(Duration::from_millis(ms)).await;
    }

    /// The blocks of the whole file that have a state.
    pub fn blocks(&self, state: State) -> BTreeSet<u64> {
        self.blocks_of(self.size, state)
    }

    /// The same of the first `size` bytes of a file that grows.
    pub fn blocks_of(&self, size: u64, state: State) -> BTreeSet<u64> {
        let mapping = &*self.file.mapping;
        let mut out = BTreeSet::new();
        for index in self.cache.folios_present(mapping, &(0..size)) {
            let Some(folio) = self.cache.lock_folio(mapping, index) else { continue };
            let end = (mapping.folio_size() / mapping.block_size()) as u32;
            for run in folio.runs_with(Blocks { start: 0, end }, state) {
                out.extend(mapping.block_numbers(index, run));
            }
        }
        out
    }

    /// What is in the cache, and what of it counts as touched.
    pub fn residency(&self) -> (BTreeSet<u64>, BTreeSet<u64>) {
        (self.blocks(State::Uptodate), self.blocks(State::Referenced))
    }

    /// Bytes and number of the writes that the disk saw since the log was cleared.
    pub fn writes(&self) -> (u64, usize) {
        let log = self.disk.log();
        let writes: Vec<_> = log.iter().filter(|e| e.op == BioOp::Write).collect();
        (writes.iter().map(|e| e.len).sum(), writes.len())
    }

    /// Ranges that the disk was asked to read since the log was cleared.
    pub fn reads(&self) -> Vec<(u64, u64)> {
        let log = self.disk.log();
        log.iter().filter(|e| e.op == BioOp::Read).map(|e| (e.offset, e.len)).collect()
    }
}

/// Whether a future is done at its first poll, and what it gave.
pub fn at_once<T>(future: impl Future<Output = T>) -> Option<T> {
    let mut future = pin!(future);
    match future.as_mut().poll(&mut std::task::Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => Some(value),
        Poll::Pending => None,
    }
}

/// Polls two futures until both are done.
pub async fn both<A, B>(a: impl Future<Output = A>, b: impl Future<Output = B>) -> (A, B) {
    let (mut a, mut b) = (pin!(a), pin!(b));
    let (mut first, mut second) = (None, None);
    std::future::poll_fn(move |cx| {
        if first.is_none()
            && let Poll::Ready(value) = a.as_mut().poll(cx)
        {
            first = Some(value);
        }
        if second.is_none()
            && let Poll::Ready(value) = b.as_mut().poll(cx)
        {
            second = Some(value);
        }
        match (first.take(), second.take()) {
            (Some(a), Some(b)) => Poll::Ready((a, b)),
            (one, other) => {
                (first, second) = (one, other);
                Poll::Pending
            }
        }
    })
    .await
}
