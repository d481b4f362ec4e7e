//! How a volume is opened.
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

/// Default of `clean_percent`.
pub const CLEAN_PERCENT: u32 = 10;

/// Shares of the budget: so many parts of it.
const CHANGES_PART: u64 = 8;
pub(crate) const NODES_PART: u64 = 2;
pub(crate) const NAMES_PART: u64 = 8;
/// Most of the budget that is for changes, bytes.
const CHANGES_MAX: u64 = 32 * MIB;

/// How a volume is opened.
#[derive(Clone)]
pub struct OpenOptions {
    /// What stamps inodes.
    pub clock: std::sync::Arc<dyn Clock>,
    /// Content goes through it; without one there are only names and attributes.
    pub cache: Option<Arc<PageCache>>,
    /// Records that point at no data of their own go out with FUA, where all before them is
    /// flushed, instead of a flush behind them.
    pub fua: bool,
    /// Reading leaves no trace.
    pub noatime: bool,
    /// Longest synced content that goes into a record, bytes; 0: none. At most 64 KiB.
    pub inline_max: u32,
    /// Nothing is written, and nothing can be changed: for volumes where only that is safe, too.
    pub read_only: bool,
    /// With `read_only`: so many of the newest checkpoints are passed over, for what they refer to
    /// is damaged. The log behind an older one is kept, and tells what has happened since.
    pub passed_over: u32,
    /// Longest log behind a checkpoint, bytes; and what it has beside content is never more than a
    /// twelfth of the volume.
    pub checkpoint_bytes: u64,
    /// What was recorded, synced or not, is in a checkpoint after this time, or four times that
    /// where it goes on being written; none: only by size.
    pub checkpoint_age: Duration,
    /// The device is told of segments that nothing in is wanted any more. A file gives their bytes
    /// back to its file system then, and has to get them again before they are written; without it
    /// they stay written.
    pub discard: bool,
    /// What changes may take in memory until a checkpoint has merged them, bytes; twice as much
    /// while an opening for writing replays the log.
    pub overlay_bytes: u64,
    /// Clean nodes of the tree that are kept in memory, bytes.
    pub node_cache_bytes: usize,
    /// Inodes and entries of directories that are kept in memory beside those that must be, bytes.
    pub inode_cache_bytes: usize,
    /// The three bounds above are shares of the budget of `cache` in the stead of these numbers,
    /// and what is in use is a part of it.
    pub of_budget: bool,
    /// Below so many of 100 segments free, those with little in them are cleaned in the background;
    /// 0: only when there is no room, at most 50.
    pub clean_percent: u32,
    /// How blocks of data are given out.
    pub alloc: AllocMode,
    /// `serialized`: from how many pages of 4 KiB on a direct write takes its turn. 0: always, the
    /// largest number: never. Live:
    /// [`Volume::set_serialized_dio_pages`](crate::Volume::set_serialized_dio_pages).
    pub serialized_dio_pages: u32,
    /// Tasks give way at each lock of giving out blocks: for the simulated world, where nobody
    /// meets anybody at a lock otherwise.
    pub lock_points: bool,
    /// For tests of the tests.
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
    /// Bounds of memory that are shares of a budget of so many bytes.
    pub fn set_shares(&mut self, budget: u64) {
        self.overlay_bytes = (budget / CHANGES_PART).min(CHANGES_MAX);
        self.node_cache_bytes = (budget / NODES_PART) as usize;
        self.inode_cache_bytes = (budget / NAMES_PART) as usize;
    }

    /// The bounds that a volume is opened with.
    pub(crate) fn shared(&self) -> Self {
        let mut options = self.clone();
        if let (true, Some(cache)) = (self.of_budget, &self.cache) {
            options.set_shares(cache.budget_bytes());
        }
        options
    }
}
