//! forebay-cache: the page cache. Frames of memory, folios of files, ageing, reclaim, readahead
//! windows, and the control of write-back. It knows files only as numbered [`mapping::Mapping`]s
//! and devices not at all. The mapping layer above reads and writes out; this crate calls it
//! through [`writeback::WriteOut`].
//!
//! Reading order, which is that of the layers: [`memory`] (arena and frames), [`table`] (states,
//! the folio lock, finding a folio), [`ageing`] (eviction order, readahead windows), [`dirty`]
//! (what is known of dirty blocks, and the limits), [`mapping`] (per file), [`mod@cache`] (the
//! cache as a whole). On these stand the operations: [`budget`] (who has how much memory),
//! [`folio`] (reading and changing one), [`reclaim`], [`writeback`] (flushers, throttled writers,
//! pieces in write-out).
//!
//! # Lock order
//!
//! An arrow means: the lock on the right may be taken while the one on the left is held.
//!
//! ```text
//! reclaim turn ─┬▶ age (queues) ──▶ (nothing)
//!               └▶ folio lock (try only, by reclaim) ─┬▶ index bucket
//!                                                     ├▶ a file's dirty set ──▶ (nothing)
//!                                                     ├▶ a file's list of folios
//!                                                     │    └▶ index bucket (a move)
//!                                                     ├▶ mapping.failed
//!                                                     │    └▶ domain's queue
//!                                                     │         └▶ a file's dirty set
//!                                                     ├▶ mapping.unflushed ──▶ spare sets
//!                                                     ├▶ bounds (exclusive ranges)
//!                                                     ├▶ a file's errors (errseq)
//!                                                     ├▶ free slots (a move)
//!                                                     └▶ frames (allocator), its wait queue
//! domain's wait queue, pace ──▶ (nothing)         index bucket ──▶ (nothing)
//! streams (a window topped up, try only) ──▶ (nothing)
//! free slots ──▶ all index buckets (a rehash) ──▶ (nothing)
//! wait queues ──▶ (nothing)                       arena's `ahead` ──▶ (nothing)
//! ```
//!
//! No lock of this crate is held across a wait or an I/O. A holder of a folio lock takes no second
//! folio lock, and never the age lock: new folios are queued after their lock is released. There
//! are two exceptions. Moving a folio to a lower slot ([`PageCache::resize`]) also takes the lock
//! of the free slot, which other tasks hold only to check its key. Releasing the memory of free
//! slots takes the locks of all of them.
//!
//! Write-out, from capture to completion, takes folio locks and the locks below them, a file's
//! tickets, a domain's queue, wait queue and pace, wait queues, and the records of the layer above.
//! It never takes the reclaim turn or the age lock. Reclaim tries folio locks, and waits for tasks
//! with none of these held.
//!
//! A caller that waits for a permit for private memory ([`budget::private`]) holds no lock and no
//! other permit.

pub mod ageing;
pub mod bounds;
pub mod budget;
pub mod cache;
pub mod config;
pub mod dirty;
pub mod folio;
pub mod held;
pub mod latency;
pub mod mapping;
pub mod memory;
mod ranges;
pub mod rangeset;
pub mod reclaim;
mod shares;
pub(crate) mod sizes;
pub mod snapshot;
pub mod stats;
pub mod strategy;
pub mod streams;
pub mod table;
pub mod writeback;

pub use ageing::readahead;
pub use budget::claim::Claim;
pub use budget::private::{OwnedPermit, Permit};
pub use cache::{Attached, PageCache};
pub use config::Config;
pub use dirty::errseq;
pub use folio::guard::{FolioWrite, FramePool, Retention};
pub use folio::pinned::Pinned;
pub use folio::read::FolioRead;
pub use mapping::{Mapping, Unreported};
pub use memory::arena::{Arena, FRAME_SIZE, FrameList};
pub use shares::{ErrorGrant, Row, RowSource};
pub use stats::{Described, Stats};
pub use table::State;
pub use writeback::{WriteOut, WriteOutPass, flusher, stable};
