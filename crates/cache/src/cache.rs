//! The page cache: folios looked up, locked, filled, written, evicted. See [`crate::folio`] for the
//! states and invariants, the crate for the lock order.

use crate::age::{Age, SMALL};
use crate::arena::{Arena, FRAME_SIZE, Frame};
use crate::config::{Config, Division};
use crate::folio::{Blocks, Slot, State, Table};
use crate::frames::FrameAlloc;
use crate::guard::{FolioRead, FolioWrite, FramePool};
use crate::index::Index;
use crate::mapping::Mapping;
use crate::stats::{Counters, Stats, Striped};
use crate::strategy::Strategies;
use crate::writeback::DirtyControl;
use forebay_base::Result;
use forebay_base::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering};
use forebay_base::sync::{Arc, Mutex};
use forebay_base::task::WaitQueue;
use forebay_base::world::WorldRef;

const WAIT_QUEUES: usize = 256;

/// The cache. Shared by all files and front ends of a process that use one budget.
pub struct PageCache {
    pub(crate) config: Config,
    pub(crate) division: Division,
    /// Clock and tasks.
    pub world: WorldRef,
    pub(crate) arena: std::sync::Arc<Arena>,
    pub(crate) frames: Mutex<FrameAlloc>,
    /// Per frame: write-outs in flight that captured it. A frame is given back when it is in no
    /// folio and no write-out (A1).
    pub(crate) captured: Box<[AtomicU32]>,
    /// Frames that are copies in flight.
    pub(crate) snapshot_frames: AtomicU64,
    pub(crate) table: Table,
    pub(crate) index: Index,
    pub(crate) free_slots: Mutex<Vec<Slot>>,
    pub(crate) age: Mutex<Age>,
    /// Held by the one thread that reclaims.
    pub(crate) reclaim_turn: Mutex<()>,
    /// Frames on each age queue; index by queue.
    pub(crate) queued: [AtomicI64; 3],
    waits: Box<[WaitQueue]>,
    frame_wait: WaitQueue,
    /// Tasks that wait for frames or folio descriptors.
    starved: AtomicU32,
    next_mapping: AtomicU32,
    /// Counters.
    pub counters: Counters,
    /// Blocks found in the cache.
    pub hits: Striped,
    /// Dirty limits and throttling.
    pub dirty: DirtyControl,
    /// Longest readahead window of a stream, bytes.
    pub readahead_max: AtomicU64,
    /// Strategies, changeable while it runs.
    pub strategies: Strategies,
}

impl PageCache {
    /// A cache within `config.budget`.
    pub fn new(config: Config, world: WorldRef) -> Result<Arc<Self>> {
        let division = config.divide()?;
        let slots = division.slots;
        let arena = Arena::new(division.frames, config.huge_pages)?;
        let arena_bytes = (division.frames * FRAME_SIZE) as u64;
        Ok(Arc::new(Self {
            dirty: DirtyControl::new(&config, arena_bytes),
            arena,
            frames: Mutex::new(FrameAlloc::new(division.frames)),
            captured: (0..division.frames).map(|_| AtomicU32::new(0)).collect(),
            snapshot_frames: AtomicU64::new(0),
            table: Table::new(division.layout, slots),
            index: Index::new(slots),
            free_slots: Mutex::new((1..=slots as Slot).rev().collect()),
            age: Mutex::new(Age::new(slots, division.frames)),
            reclaim_turn: Mutex::new(()),
            queued: [const { AtomicI64::new(0) }; 3],
            waits: (0..WAIT_QUEUES).map(|_| WaitQueue::new()).collect(),
            frame_wait: WaitQueue::new(),
            starved: AtomicU32::new(0),
            next_mapping: AtomicU32::new(1),
            counters: Counters::default(),
            hits: Striped::default(),
            readahead_max: AtomicU64::new(u64::from(config.readahead_max)),
            strategies: Strategies::new(
                config.dirty_tracking,
                config.stable,
                config.uncached_strategy,
            ),
            config,
            division,
            world,
        }))
    }

    /// The configuration it was made with.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The arena, for lending frames to a device.
    pub fn arena(&self) -> &std::sync::Arc<Arena> {
        &self.arena
    }

    /// A new file in the cache. `block_size`: a power of two, 512..4096 bytes.
    pub fn new_mapping(&self, block_size: u32, size: u64) -> Mapping {
        let id = self.next_mapping.fetch_add(1, Ordering::Relaxed);
        assert!(id != 0, "mapping ids are used up");
        Mapping::new(id, block_size, self.config.folio_size, size)
    }

    /// Largest number of frames that one operation should hold at a time.
    pub fn frames_per_operation(&self) -> usize {
        (self.division.frames / 16).clamp(self.division.layout.frames.min(64), 512)
    }

    /// A snapshot of counters and gauges.
    pub fn stats(&self) -> Stats {
        let mut s = self.counters.snapshot();
        s.hits = self.hits.total();
        s.budget_bytes = self.config.budget;
        s.arena_bytes = (self.division.frames * FRAME_SIZE) as u64;
        s.arena_page_bytes = self.arena.page_size() as u64;
        s.arena_huge_bytes = self.arena.huge_bytes() as u64;
        s.frames_total = self.division.frames as u64;
        s.frames_free = self.frames.lock().free() as u64;
        s.folios = (self.division.slots - self.free_slots.lock().len()) as u64;
        s.ghosts = self.age.lock().ghosts();
        s.dirty_bytes = self.dirty.dirty_bytes();
        s.writeback_bytes = self.dirty.writeback_bytes();
        s.unflushed_bytes = self.dirty.unflushed_bytes();
        s
    }

    /// What the budget is spent on: (what, bytes now, bound in bytes).
    pub fn budget(&self) -> Vec<(String, u64, u64)> {
        let s = self.stats();
        let d = &self.division;
        let slot_bytes = (d.layout.stride * 8) as u64;
        let line = |what: &str, now, bound| (what.to_string(), now, bound);
        vec![
            line("frames", (s.frames_total - s.frames_free) * FRAME_SIZE as u64, s.arena_bytes),
            line("folio descriptors", s.folios * slot_bytes, d.slots as u64 * slot_bytes),
            line("index", self.index.bytes(), self.index.bytes()),
            line("age queues and ghosts", d.slots as u64 * 16, d.slots as u64 * 16),
            line("dirty sets", self.dirty.dirty_folios() * 40, d.slots as u64 * 40),
            line("frame maps", d.frames as u64 * 5, d.frames as u64 * 5),
            line("buffers of requests in flight", s.private_bytes, d.io_reserve),
        ]
    }

    /// Counts a buffer outside the arena that a request in flight needs; negative when it goes.
    pub fn private_bytes(&self, change: i64) {
        let counter = &self.counters.private_bytes;
        if change < 0 {
            counter.fetch_sub(change.unsigned_abs(), Ordering::Relaxed);
        } else {
            let now = counter.fetch_add(change as u64, Ordering::Relaxed) + change as u64;
            self.counters.private_bytes_max.fetch_max(now, Ordering::Relaxed);
        }
    }

    // ---- lookup ----

    /// The folio, for reading without its lock, if it is there. `None` is a hint (see
    /// [`crate::index`]). The caller says where in the folio it is going to read: the bytes are on
    /// their way from memory while the states are looked at.
    #[inline]
    pub fn lookup(&self, mapping: &Mapping, index: u64, offset: usize) -> Option<FolioRead<'_>> {
        self.table.prefetch(mapping.guess_slot(index));
        let slot = self.index.find(&self.table, mapping.id, index)?;
        self.prefetch(slot, offset);
        let version = self.table.version(slot)?;
        let folio = FolioRead { cache: self, slot, version };
        (self.table.key(slot) == (mapping.id, index)).then_some(folio)
    }

    #[inline]
    fn prefetch(&self, slot: Slot, offset: usize) {
        let at = offset / FRAME_SIZE;
        if at < self.table.layout().frames
            && let Some(frame) = self.table.frame(slot, at)
        {
            self.arena.prefetch(frame, offset % FRAME_SIZE);
        }
    }

    /// Has the processor fetch what a write at `offset` of a folio is going to touch.
    #[inline]
    pub fn prefetch_folio(&self, mapping: &Mapping, index: u64, offset: usize) {
        self.table.prefetch(mapping.guess_slot(index));
        if let Some(slot) = self.index.find(&self.table, mapping.id, index) {
            self.prefetch(slot, offset);
        }
    }

    /// The folio, locked exclusively, if it is there: definite.
    pub fn lock_folio<'a>(&'a self, mapping: &'a Mapping, index: u64) -> Option<FolioWrite<'a>> {
        loop {
            let slot = self
                .index
                .find(&self.table, mapping.id, index)
                .or_else(|| self.index.find_locked(&self.table, mapping.id, index))?;
            self.table.lock(slot);
            let folio = FolioWrite { cache: self, mapping, slot, index };
            if self.table.key(slot) == (mapping.id, index) {
                return Some(folio);
            }
        }
    }

    /// The folio, locked exclusively, made if it is missing. `None` when no folio descriptor can
    /// be had: everything is dirty or in flight.
    pub fn lock_or_create<'a>(
        &'a self,
        mapping: &'a Mapping,
        index: u64,
    ) -> Option<FolioWrite<'a>> {
        self.lock_or_make(mapping, index, false)
    }

    /// The same; a folio made for an uncached request (`passing`) is new whatever ghost there is,
    /// and leaves the ghost to an ordinary request (U1).
    pub fn lock_or_make<'a>(
        &'a self,
        mapping: &'a Mapping,
        index: u64,
        passing: bool,
    ) -> Option<FolioWrite<'a>> {
        loop {
            if let Some(folio) = self.lock_folio(mapping, index) {
                return Some(folio);
            }
            let slot = self.take_slot()?;
            let queue = if passing { SMALL } else { self.queue_for_new(mapping.id, index) };
            self.table.lock(slot);
            self.table.set_key(slot, 0, 0);
            if self.index.insert(&self.table, slot, mapping.id, index).is_some() {
                self.table.unlock(slot);
                self.free_slots.lock().push(slot);
                continue;
            }
            mapping.note_slot(index, slot);
            self.table.set_queue(slot, queue);
            self.table.set_blocks_per_frame(slot, mapping.blocks_per_frame());
            self.table.unlock(slot);
            // Queued before it is locked again: the age lock comes before the folio lock.
            self.age.lock().push(queue, slot);
        }
    }

    // ---- waiting ----

    pub(crate) fn wait_queue(&self, id: u32, index: u64) -> &WaitQueue {
        let mixed = (index ^ u64::from(id) << 20).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        &self.waits[(mixed >> 56) as usize % WAIT_QUEUES]
    }

    pub(crate) fn wake_folio(&self, id: u32, index: u64) {
        self.wait_queue(id, index).wake_all();
    }

    /// Waits until no block of the run has `state`.
    pub async fn wait_while(&self, mapping: &Mapping, index: u64, blocks: Blocks, state: State) {
        let done = || match self.lock_folio(mapping, index) {
            Some(folio) if folio.any(state, blocks) => None,
            _ => Some(()),
        };
        self.wait_queue(mapping.id, index).wait_until(done).await;
    }

    // ---- frames ----

    /// Takes `count` frames, reclaiming as needed; `None` when that many cannot be had without
    /// waiting.
    pub fn take_frames(&self, count: usize) -> Option<FramePool<'_>> {
        let mut pool = FramePool { cache: self, frames: Vec::with_capacity(count) };
        // Handed out from the end: reversed, so that neighbours come in ascending order.
        if count == 0 {
            return Some(pool);
        }
        let (taken, free) = {
            let mut alloc = self.frames.lock();
            (alloc.take(count, &mut pool.frames), alloc.free())
        };
        if taken {
            pool.frames.reverse();
            self.reclaim_ahead(free);
            return Some(pool);
        }
        for _ in 0..4 {
            let freed = self.reclaim(count);
            if self.frames.lock().take(count, &mut pool.frames) {
                pool.frames.reverse();
                return Some(pool);
            }
            if freed == 0 {
                break;
            }
        }
        None
    }

    /// Has all flushers write and flush, whatever their limits, while the result lives: somebody lacks
    /// frames that dirt or unflushed blocks hold.
    pub fn press_for_frames(&self) -> Starved<'_> {
        let starved = Starved::new(self);
        self.dirty.kick_all();
        starved
    }

    /// Takes `count` frames; starts write-out and waits for it if there are none.
    pub async fn wait_frames(&self, mapping: &Mapping, count: usize) -> FramePool<'_> {
        let _starved = Starved::new(self);
        let attempt = || {
            let got = self.take_frames(count);
            if got.is_none() {
                mapping.kick_flusher();
                self.dirty.kick_all();
            }
            got
        };
        self.frame_wait.wait_until(attempt).await
    }

    /// Waits until there is a folio descriptor to be had; starts write-out.
    pub async fn wait_slot(&self, mapping: &Mapping) {
        let _starved = Starved::new(self);
        let attempt = || {
            let Some(slot) = self.take_slot() else {
                mapping.kick_flusher();
                self.dirty.kick_all();
                return None;
            };
            self.free_slots.lock().push(slot);
            Some(())
        };
        self.frame_wait.wait_until(attempt).await;
    }

    /// Whether somebody waits for frames: flushers then write and flush below their limits too,
    /// because what is dirty or not flushed cannot be reclaimed.
    pub(crate) fn is_starved(&self) -> bool {
        self.starved.load(Ordering::SeqCst) > 0
    }

    pub(crate) fn give_frames(&self, freed: &[Frame]) {
        if freed.is_empty() {
            return;
        }
        {
            let mut alloc = self.frames.lock();
            freed.iter().for_each(|&f| alloc.give(f));
        }
        self.frame_wait.wake_all();
    }

    pub(crate) fn capture_frame(&self, frame: Frame) {
        self.captured[frame as usize].fetch_add(1, Ordering::AcqRel);
    }

    /// A write-out lets go of a frame; true if it was the last. Folio lock held.
    pub(crate) fn release_frame(&self, frame: Frame) -> bool {
        let was = self.captured[frame as usize].fetch_sub(1, Ordering::AcqRel);
        assert!(was > 0, "frame {frame} was not captured");
        was == 1
    }

    /// Something that blocks reclaim has ended: a write-out, a fill, a flush.
    pub fn wake_frame_waiters(&self) {
        self.frame_wait.wake_all();
    }
}

/// Counts a task that waits for frames while it lives.
pub struct Starved<'a>(&'a PageCache);

impl<'a> Starved<'a> {
    fn new(cache: &'a PageCache) -> Self {
        cache.starved.fetch_add(1, Ordering::SeqCst);
        Self(cache)
    }
}

impl Drop for Starved<'_> {
    fn drop(&mut self) {
        self.0.starved.fetch_sub(1, Ordering::SeqCst);
    }
}
