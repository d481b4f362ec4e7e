//! forebay-lfs: the volume, a log-structured and checksummed file system in one image.
//!
//! Reading order: [`format`](mod@format) (the stored form; `docs/format.md` draws it); `layout`, `space`,
//! `pending`, `dir`, `state` (what there is, in memory); `tx`, `log`, `batch`, `commit`, `repair` (how it
//! becomes durable); `slots`, `rollforward`, `volume` (how it is found again); `look`, `inode`, `namei`,
//! `attr`, `aops`, `staging`, `content`, `file`, `vfs` (what is asked of it). Beside them [`btree`], the
//! copy-on-write tree, which checkpoints will write.
//!
//! There is no checkpoint yet: all names and maps are in memory, the log goes back to the making
//! of the volume, and no segment is used again. When it is full, new things are refused.
//!
//! A record:
//! ```text
//!  changes ──applied, queued──▶ queued ──laid out──▶ writing ──▶ written ──flush──▶ durable
//!      (one hold of the lock)     ▲                     │ failed    │ flush failed
//!                                 └─ repair: fresh segment, new generation ◀──┘
//!  at recovery:  valid, in sequence ──▶ held ──something later calls it durable──▶ applied
//!                                        └──the log ends, its data verifies──▶ applied, else the end
//! ```
//! A segment:
//! ```text
//!  free ──the log needs room──▶ open log ──full, or the volume was opened again──▶ log
//!   ▲  └──a run needs room────▶ open data ──full──▶ data
//!   └── a log segment of a group that failed          (dead, discarded, free again: with checkpoints)
//! ```
//! Invariants, beside those of each module:
//! I11 the order of the log is the order in which things were applied; what is recovered is a prefix of it.
//! I12 an acknowledged sync is durable: its records and all before them were flushed, or went out with FUA
//! behind a flush of all before them; and their runs before them.
//! I13 a record points only at bytes whose write had completed when it was appended.
//! I14 where runs overlap, the one whose content was fixed later counts, whatever the order of completion.
//! I15 a recoverable size never covers bytes that were not written.
//! I16 nothing that a slot or a record refers to is overwritten with anything else, slots in turn aside.
//! I17 recovery writes nothing; what it read is flushed before it is served; a second recovery finds the
//! same.
//! I18 after a failed write or flush no sync succeeds before everything since the last good flush is written
//! again.
//!
//! Locks, from the outermost:
//! ```text
//!   folio, mapping (cache, iomap)         held by callers of MapOps
//!     └── state                           names, maps, segments, queue: never across a wait
//!           └── staging area              bytes of records on their way
//!   log control (`log::Ctl`)              turns, groups, what is durable: a leaf, never together with state
//! ```
//! No mapping of the cache is made or dropped under the state lock.
#![forbid(unsafe_code)]

pub mod alloc;
mod aops;
mod attr;
mod batch;
pub mod btree;
mod commit;
mod content;
mod dir;
mod extents;
#[doc(hidden)]
pub mod fault;
mod file;
pub mod format;
mod grow;
mod info;
mod inode;
mod layout;
mod log;
mod look;
mod namei;
mod pending;
mod repair;
mod rollforward;
mod slots;
mod space;
mod staging;
mod state;
mod tx;
mod vfs;
mod volume;

pub use alloc::{AllocMode, AllocStats};
pub use extents::{FileExtent, FreeSpace};
pub use grow::grow;
pub use info::{VolumeInfo, probe};
pub use volume::{CreateOptions, OpenOptions, Volume};
#[cfg(any(test, feature = "fuzz"))]
pub mod fuzz;
#[cfg(test)]
mod tests;
