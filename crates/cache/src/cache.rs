//! The page cache: folios looked up, locked, filled, written, evicted. States and invariants are in
//! [`crate::table`], the lock order in the crate's documentation.

use crate::ageing::queues::Age;
use crate::config::{Config, DIRTY_FOLIO_BYTES, FRAME_BOOKS, SLOT_BOOKS};
use crate::dirty::control::{DirtyControl, DirtyWishes};
use crate::dirty::domain::Domain;
use crate::latency::Latencies;
use crate::mapping::{FILE_BYTES, Mapping};
use crate::memory::arena::{Arena, FRAME_SIZE};
use crate::memory::frames::FrameAlloc;
use crate::memory::words::FrameWords;
use crate::rangeset::SpareSets;
use crate::shares::{Claimed, CounterRef, FileShare, MoreRows, Row};
use crate::sizes::Sizes;
use crate::stats::{Counters, Stats, Striped};
use crate::strategy::Strategies;
use crate::streams::StreamBoard;
use crate::table::Table;
use crate::table::index::Index;
use crate::table::owners::Owners;
use crate::table::slots::SlotAlloc;
use forebay_base::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, Ordering};
use forebay_base::sync::{Arc, Mutex};
use forebay_base::task::WaitQueue;
use forebay_base::world::WorldRef;
use forebay_base::{ErrorKind, Result};

const WAIT_QUEUES: usize = 256;

/// Data that the layer above keeps for all files of a cache, within the cache's budget.
pub trait Attached: std::any::Any + Send + Sync {
    /// Frees the memory that it keeps for reuse: the budget for it has changed.
    fn trim(&self, cache: &PageCache);
}

type Attachment = std::sync::Arc<dyn Attached>;

/// The cache. Shared by all files and front ends of a process that use one budget.
pub struct PageCache {
    pub(crate) config: Config,
    pub(crate) sizes: Sizes,
    /// Clock and tasks.
    pub world: WorldRef,
    pub(crate) arena: std::sync::Arc<Arena>,
    pub(crate) frames: Mutex<FrameAlloc>,
    /// Per frame: how many write-outs and pins hold it. A frame is given back when it is in no
    /// folio, no write-out and no pin (frames.A1).
    pub(crate) words: FrameWords,
    /// Frames that hold copies of blocks in write-out.
    pub(crate) snapshot_frames: AtomicU64,
    pub(crate) table: Table,
    pub(crate) index: Index,
    /// Files that are open or own folios.
    pub owners: Arc<Owners>,
    pub(crate) free_slots: Mutex<SlotAlloc>,
    pub(crate) age: Mutex<Age>,
    /// Held by the one thread that reclaims.
    pub(crate) reclaim_turn: Mutex<()>,
    /// Frames of the folios on each age queue, by the number of the queue.
    pub(crate) queued: [AtomicI64; 3],
    /// Young frames of all folios in the main queue.
    pub(crate) young: AtomicI64,
    pub(crate) waits: Box<[WaitQueue]>,
    /// Tasks that wait for frames. The key is how many; 0 if a task waits for a folio descriptor.
    pub(crate) frame_wait: WaitQueue<usize>,
    /// How many tasks wait for frames or folio descriptors, or press the flushers to free frames.
    pub(crate) starved: AtomicU32,
    /// Requests that wait for private memory.
    pub(crate) private_wait: WaitQueue,
    /// Bytes that open files and unreported errors of closed files take.
    pub(crate) files: CounterRef,
    /// Of these, bytes of the errors.
    pub(crate) errors: CounterRef,
    /// Bytes of the records and sets of blocks that are kept for reuse by write-outs.
    pub(crate) records: AtomicU64,
    /// Empty sets of blocks, kept for their memory.
    pub(crate) sets: SpareSets,
    /// The data of the layer above, made on first use ([`PageCache::attached`]).
    attachment: std::sync::OnceLock<Attachment>,
    /// Parts of the budget used outside the cache.
    pub(crate) more_rows: Mutex<MoreRows>,
    /// Users of the budget other than the cache, and how much they claim, bytes.
    pub(crate) claims: Mutex<Vec<std::sync::Weak<Claimed>>>,
    pub(crate) claimed: AtomicU64,
    /// Dirty limits as they were asked for.
    pub(crate) dirty_wishes: Mutex<DirtyWishes>,
    /// The budget is being changed.
    pub(crate) resizing: AtomicBool,
    pub(crate) resize_wait: WaitQueue,
    /// A task is adjusting the number of frames to files and claims (fit.T2).
    pub(crate) fitting: AtomicBool,
    next_mapping: AtomicU32,
    /// Counters.
    pub counters: Counters,
    /// Blocks found in the cache.
    pub hits: Striped,
    /// Pins taken.
    pub pins: Striped,
    /// Latencies of operations that wait for a device.
    pub latencies: Latencies,
    /// Sequential readers that advanced lately.
    pub streams: StreamBoard,
    /// Dirty limits and throttling.
    pub dirty: DirtyControl,
    /// Longest readahead window of a stream, bytes.
    pub readahead_max: AtomicU64,
    /// Strategies, changeable while the cache runs.
    pub strategies: Strategies,
}

/// Frames and folio descriptors: how many there may be, and how many are in use.
struct Usage {
    frames: u64,
    /// Frames handed out.
    used: u64,
    /// Frames of the chunks that were ever used.
    touched: u64,
    /// Frames with a pin.
    pinned: u64,
    slots: u64,
    /// Folio descriptors handed out.
    folios: u64,
}

impl PageCache {
    /// A cache within `config.budget`. Address space is reserved for the largest budget; where
    /// there is none, the cache cannot grow.
    pub fn new(config: Config, world: WorldRef) -> Result<Arc<Self>> {
        let max = config.budget_max.unwrap_or(0).max(config.budget);
        match Self::sized(&config, max, &world) {
            Err(e) if max > config.budget && e.kind() != ErrorKind::InvalidInput => {
                log::info!("no address space to grow into: {e}");
                Self::sized(&config, config.budget, &world)
            }
            made => made,
        }
    }

    fn sized(config: &Config, budget_max: u64, world: &WorldRef) -> Result<Arc<Self>> {
        let sizes = Sizes::new(config, budget_max)?;
        let (slots, frames) = (sizes.slots(), sizes.frames());
        let max = sizes.max;
        let cache = Arc::new(Self {
            dirty: DirtyControl::new(config, sizes.frame_bytes()),
            arena: Arena::new(frames, max.frames, config.huge_pages)?,
            frames: Mutex::new(FrameAlloc::new(frames, max.frames)),
            words: FrameWords::new(max.frames)?,
            snapshot_frames: AtomicU64::new(0),
            table: Table::new(sizes.layout, max.slots)?,
            index: Index::new(slots, max.slots)?,
            owners: Arc::new(Owners::new()),
            free_slots: Mutex::new(SlotAlloc::new(slots)),
            age: Mutex::new(Age::new(slots, frames)),
            reclaim_turn: Mutex::new(()),
            queued: [const { AtomicI64::new(0) }; 3],
            young: AtomicI64::new(0),
            waits: (0..WAIT_QUEUES).map(|_| WaitQueue::new()).collect(),
            frame_wait: WaitQueue::with_keys(),
            starved: AtomicU32::new(0),
            private_wait: WaitQueue::new(),
            files: CounterRef::default(),
            errors: CounterRef::default(),
            records: AtomicU64::new(0),
            sets: SpareSets::default(),
            attachment: std::sync::OnceLock::new(),
            more_rows: Mutex::default(),
            claims: Mutex::default(),
            claimed: AtomicU64::new(0),
            dirty_wishes: Mutex::new(DirtyWishes {
                limit: config.dirty_bytes,
                background: config.dirty_background_bytes,
            }),
            resizing: AtomicBool::new(false),
            resize_wait: WaitQueue::new(),
            fitting: AtomicBool::new(false),
            next_mapping: AtomicU32::new(1),
            counters: Counters::default(),
            hits: Striped::default(),
            pins: Striped::default(),
            latencies: Latencies::default(),
            streams: StreamBoard::default(),
            readahead_max: AtomicU64::new(u64::from(config.readahead_max)),
            strategies: Strategies::new(
                config.dirty_tracking,
                config.stable,
                config.uncached_strategy,
            ),
            config: config.clone(),
            sizes,
            world: world.clone(),
        });
        cache.advise_tables();
        cache.prefault();
        Ok(cache)
    }

    /// The configuration it was made with.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The data that the layer above keeps for all files of this cache, made on first use: always
    /// of one type.
    pub fn attached<T: Attached + Default>(&self) -> std::sync::Arc<T> {
        let made: Attachment =
            self.attachment.get_or_init(|| std::sync::Arc::new(T::default())).clone();
        let made: std::sync::Arc<dyn std::any::Any + Send + Sync> = made;
        made.downcast().expect("one layer above, one type")
    }

    /// Frees spare sets, and the spare memory of the layer above: the budget for it has changed.
    pub(crate) fn trim_attached(&self) {
        self.trim_sets();
        if let Some(attached) = self.attachment.get() {
            attached.trim(self);
        }
    }

    /// The arena, for lending frames to a device.
    pub fn arena(&self) -> &std::sync::Arc<Arena> {
        &self.arena
    }

    /// A new file in the cache, in a domain of its own. `block_size`: a power of two, 512 to 4096
    /// bytes.
    pub fn new_mapping(&self, block_size: u32, size: u64) -> Mapping {
        self.new_mapping_in(self.dirty.domain(None), block_size, size)
    }

    /// A new file in the cache, in an existing domain.
    pub fn new_mapping_in(&self, domain: Arc<Domain>, block_size: u32, size: u64) -> Mapping {
        let id = self.next_mapping.fetch_add(1, Ordering::Relaxed);
        assert!(id != 0, "mapping ids are used up");
        self.owners.open(id);
        let owner = (self.owners.clone(), domain);
        let share = Some(FileShare::new(&self.files, FILE_BYTES));
        Mapping::new(id, owner, block_size, self.config.folio_size, size, share)
    }

    /// Opens the file of mapping `id` again: the mapping was dropped, its folios remain cached. The
    /// block size must be the same. `None` if the cache has forgotten the file, or the file still
    /// has a mapping.
    pub fn revive_mapping(
        &self,
        id: u32,
        domain: Arc<Domain>,
        block_size: u32,
        size: u64,
    ) -> Option<Mapping> {
        if !self.owners.open_again(id) {
            return None;
        }
        let owner = (self.owners.clone(), domain);
        let share = Some(FileShare::new(&self.files, FILE_BYTES));
        Some(Mapping::new(id, owner, block_size, self.config.folio_size, size, share))
    }

    /// Drops the folios that remain of mapping `id`, which is closed and whose content is obsolete.
    /// False if the file is not known any more, or has a mapping.
    pub fn drop_left(&self, id: u32, domain: Arc<Domain>, block_size: u32) -> bool {
        let all = 0..u64::MAX >> 1;
        let old = self.revive_mapping(id, domain, block_size, all.end);
        old.map(|old| self.drop_range(&old, all)).is_some()
    }

    /// Largest number of frames that one operation should hold at a time.
    pub fn frames_per_operation(&self) -> usize {
        // Half of the frames of the smallest cache: however small the cache becomes meanwhile, an
        // operation can have these.
        let most = (self.sizes.floor.frames / 2).min(512);
        let least = self.sizes.layout.frames.min(64).min(most);
        (self.sizes.frames() / 16).clamp(least, most)
    }

    /// A snapshot of counters and gauges.
    pub fn stats(&self) -> Stats {
        let mut s = self.counters.snapshot();
        s.hits = self.hits.total();
        s.pins = self.pins.total();
        let (page, huge) = self.arena.pages();
        s.budget_bytes = self.sizes.budget();
        s.arena_bytes = self.sizes.frame_bytes();
        s.arena_page_bytes = page as u64;
        s.arena_huge_bytes = huge as u64;
        let usage = self.usage();
        s.frames_total = usage.frames;
        s.frames_free = usage.frames.saturating_sub(usage.used);
        s.pinned_frames = usage.pinned;
        s.pinned_orphans = self.words.orphans();
        s.folios = usage.folios;
        s.ghosts = self.age.lock().ghosts();
        s.dirty_bytes = self.dirty.dirty_bytes();
        s.writeback_bytes = self.dirty.writeback_bytes();
        s.unflushed_bytes = self.dirty.unflushed_bytes();
        s
    }

    /// Loads each pair of limit and use under the lock of its allocator, so that they agree also
    /// while a resize changes the limits.
    fn usage(&self) -> Usage {
        let (frames, used, touched, pinned) = {
            let alloc = self.frames.lock();
            (alloc.total(), alloc.used(), alloc.touched(), self.words.pinned())
        };
        let (slots, folios) = {
            let alloc = self.free_slots.lock();
            (alloc.total() as u64, alloc.used() as u64)
        };
        let [frames, used, touched] = [frames, used, touched].map(|count| count as u64);
        Usage { frames, used, touched, pinned, slots, folios }
    }

    /// The rows of the budget: (part, bytes now, bound in bytes). *Now* is in use, and may be
    /// resident; the bound is its maximum under the current budget.
    pub fn budget(&self) -> Vec<Row> {
        let Usage { frames, used, touched, pinned, slots, folios } = self.usage();
        let slot_bytes = (self.sizes.layout.stride * 8) as u64;
        let (touched, pinned) = (touched.min(frames), pinned.min(used).min(frames));
        let line = |what: &str, now, bound| (what.to_string(), now, bound);
        let of_frames = |count: u64| count * FRAME_SIZE as u64;
        let mut rows = vec![
            line("frames", of_frames(used - pinned), of_frames(frames - pinned)),
            // The bound of the row above excludes pinned frames: the bounds add up to the budget.
            line("pinned frames", of_frames(pinned), of_frames(pinned)),
            line("folio descriptors", folios * slot_bytes, slots * slot_bytes),
            line("index", self.index.bytes(), Index::bytes_for(slots as usize)),
            // Counted for the largest number of folios, even if fewer are in use.
            line("age queues and ghosts", slots * SLOT_BOOKS, slots * SLOT_BOOKS),
            line(
                "dirty sets",
                self.dirty.dirty_folios() * DIRTY_FOLIO_BYTES,
                slots * DIRTY_FOLIO_BYTES,
            ),
            line("frame maps", touched * FRAME_BOOKS, frames * FRAME_BOOKS),
        ];
        rows.extend(self.share_rows());
        rows.extend(self.claim_rows());
        let more = self.more_rows.lock().clone();
        rows.extend(more.iter().flat_map(|part| part()));
        rows
    }
}
