//! The page cache: folios looked up, locked, filled, written, evicted. See [`crate::folio::table`] for the
//! states and invariants, the crate for the lock order.

use crate::ageing::queues::Age;
use crate::config::{Config, DIRTY_FOLIO_BYTES, Division};
use crate::folio::index::Index;
use crate::folio::owners::Owners;
use crate::folio::table::{Slot, Table};
use crate::mapping::Mapping;
use crate::memory::arena::{Arena, FRAME_SIZE};
use crate::memory::frames::FrameAlloc;
use crate::stats::{Counters, Stats, Striped};
use crate::strategy::Strategies;
use crate::writeback::control::DirtyControl;
use crate::writeback::domain::Domain;
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
    /// Files that are open or own folios.
    pub owners: Arc<Owners>,
    pub(crate) free_slots: Mutex<Vec<Slot>>,
    pub(crate) age: Mutex<Age>,
    /// Held by the one thread that reclaims.
    pub(crate) reclaim_turn: Mutex<()>,
    /// Frames on each age queue; index by queue.
    pub(crate) queued: [AtomicI64; 3],
    pub(crate) waits: Box<[WaitQueue]>,
    pub(crate) frame_wait: WaitQueue,
    /// Tasks that wait for frames or folio descriptors.
    pub(crate) starved: AtomicU32,
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
            owners: Arc::new(Owners::new()),
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

    /// A new file in the cache, in a domain of its own. `block_size`: a power of two, 512..4096 bytes.
    pub fn new_mapping(&self, block_size: u32, size: u64) -> Mapping {
        self.new_mapping_in(self.dirty.domain(None), block_size, size)
    }

    /// The same, in a domain that there is.
    pub fn new_mapping_in(&self, domain: Arc<Domain>, block_size: u32, size: u64) -> Mapping {
        let id = self.next_mapping.fetch_add(1, Ordering::Relaxed);
        assert!(id != 0, "mapping ids are used up");
        self.owners.open(id);
        let owner = (self.owners.clone(), domain);
        Mapping::new(id, owner, block_size, self.config.folio_size, size)
    }

    /// A file whose mapping is gone and whose folios are not: mapping `id` again, with the same block size.
    /// `None` if it was forgotten.
    pub fn revive_mapping(
        &self,
        id: u32,
        domain: Arc<Domain>,
        block_size: u32,
        size: u64,
    ) -> Option<Mapping> {
        if !self.owners.open(id) {
            self.owners.close(id);
            return None;
        }
        let owner = (self.owners.clone(), domain);
        Some(Mapping::new(id, owner, block_size, self.config.folio_size, size))
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
            line(
                "dirty sets",
                self.dirty.dirty_folios() * DIRTY_FOLIO_BYTES,
                d.slots as u64 * DIRTY_FOLIO_BYTES,
            ),
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
}
