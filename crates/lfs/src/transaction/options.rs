//! The options for opening a volume.
//!
//! No locks, no state.

use crate::btree::cache::DEFAULT_BUDGET_BYTES;
use crate::fault::Plant;
use crate::space::alloc::{AllocMode, SERIALIZED_DIO_PAGES};
use forebay_base::sync::Arc;
use forebay_base::units::MIB;
use forebay_cache::PageCache;
use forebay_vfs::{Clock, SystemClock};
use std::time::Duration;

/// The default of `clean_percent`.
pub const CLEAN_PERCENT: u32 = 10;

/// Each limit is the budget divided by one of these.
const CHANGES_PART: u64 = 8;
pub(crate) const NODES_PART: u64 = 2;
pub(crate) const NAMES_PART: u64 = 8;
/// The most bytes of the budget that are used for changes.
const CHANGES_MAX: u64 = 32 * MIB;

/// The options for opening a volume.
#[derive(Clone)]
pub struct OpenOptions {
    /// The clock that gives inodes their times.
    pub clock: std::sync::Arc<dyn Clock>,
    /// The page cache for content. Without it the volume has only names and attributes.
    pub cache: Option<Arc<PageCache>>,
    /// Writes records without data runs with FUA, if everything before them is flushed, instead of
    /// a flush after them.
    pub fua: bool,
    /// Reads do not update access times.
    pub noatime: bool,
    /// The longest content that goes into a log record, bytes; 0: none. At most 64 KiB. This
    /// applies to syncs, and to small files.
    pub inline_max: u32,
    /// Opens the volume read-only: nothing is written to the device. This also works for a damaged
    /// volume.
    pub read_only: bool,
    /// With `read_only`: skips this number of the newest checkpoints, because what they refer to is
    /// damaged. The log after an older checkpoint still exists, and contains the later changes.
    pub passed_over: u32,
    /// The longest log after a checkpoint, bytes. Records without content are also limited to a
    /// twelfth of the volume.
    pub checkpoint_bytes: u64,
    /// The time after which a recorded change is in a checkpoint, synced or not. On a volume that
    /// is written all the time it is up to four times as long. Zero: checkpoints depend on size
    /// only.
    pub checkpoint_age: Duration,
    /// Discards segments on the device that are no longer needed. An image file then returns their
    /// bytes to its file system, which must allocate them again before the next write. Without this
    /// option they stay allocated.
    pub discard: bool,
    /// The most memory for changes that no checkpoint has merged, bytes. An opening for writing
    /// uses at most twice that while it replays the log.
    pub overlay_bytes: u64,
    /// The memory for clean tree nodes, bytes.
    pub node_cache_bytes: usize,
    /// The memory for inodes and directory entries that could be evicted, bytes.
    pub inode_cache_bytes: usize,
    /// The three limits above are shares of the budget of `cache` instead of these numbers. The
    /// used memory is a part of that budget.
    pub of_budget: bool,
    /// Background cleaning begins when fewer than this percentage of segments is free; at most 50.
    /// 0: segments are cleaned only when there is no space.
    pub clean_percent: u32,
    /// The strategy that allocates blocks for data.
    pub alloc: AllocMode,
    /// For the strategy `serialized`: the number of 4 KiB pages from which on direct writes
    /// allocate one after the other. 0: always, the largest number: never. It can be changed later:
    /// [`Volume::set_serialized_dio_pages`](crate::Volume::set_serialized_dio_pages).
    pub serialized_dio_pages: u32,
    /// Tasks yield at each lock of the allocator. This is for the simulated world, where tasks
    /// otherwise never meet at a lock.
    pub lock_points: bool,
    /// Injected faults that check the tests themselves.
    #[doc(hidden)]
    pub plant: Plant,
}

impl Default for OpenOptions {
    fn default() -> Self {
        let clock = std::sync::Arc::new(SystemClock);
        let plant = Plant::default();
        Self {
            clock,
            cache: None,
            fua: true,
            noatime: false,
            inline_max: 64 << 10,
            read_only: false,
            passed_over: 0,
            checkpoint_bytes: 2 << 30,
            checkpoint_age: Duration::from_secs(30),
            discard: false,
            overlay_bytes: 32 << 20,
            node_cache_bytes: DEFAULT_BUDGET_BYTES,
            inode_cache_bytes: crate::names::evict::DEFAULT_BYTES,
            of_budget: false,
            clean_percent: CLEAN_PERCENT,
            alloc: AllocMode::default(),
            serialized_dio_pages: SERIALIZED_DIO_PAGES,
            lock_points: false,
            plant,
        }
    }
}

impl OpenOptions {
    /// Sets the memory limits to shares of a budget.
    pub fn set_shares(&mut self, budget: u64) {
        self.overlay_bytes = (budget / CHANGES_PART).min(CHANGES_MAX);
        self.node_cache_bytes = (budget / NODES_PART) as usize;
        self.inode_cache_bytes = (budget / NAMES_PART) as usize;
    }

    /// The options with the memory limits that the volume uses.
    pub(crate) fn shared(&self) -> Self {
        let mut options = self.clone();
        if let (true, Some(cache)) = (self.of_budget, &self.cache) {
            options.set_shares(cache.budget_bytes());
        }
        options
    }
}
