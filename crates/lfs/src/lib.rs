//! forebay-lfs: the volume, a log-structured and checksummed file system in one image.
//!
//! The folders are layers: each imports only from those before it in this list. `cargo xtask
//! layers` checks that; imports that still violate it are listed in `xtask/layers/lfs-allowed.txt`.
//! Read the folders in this order.
//! - [`format`](mod@format): the stored form, without I/O; `docs/reference/format.md` draws it
//! - `device`: layout, superblock slots, writes that outlive their task
//! - [`btree`]: the copy-on-write tree
//! - `space`: segments, places of nodes, allocation, accounting
//! - `log`: records and groups of records, and how they become durable
//! - `map`: where a file's blocks are
//! - `names`: inodes, directories and attributes, and their cache
//! - `transaction`: the state that space, log, map and names share; applies one change
//! - `files`: the mapping that iomap uses, open and recently closed files
//! - `checkpoint` and `clean`: merge changes into the tree, and free space
//! - `recover`: opening, roll-forward, repair after a failed write
//! - `volume`: the public interface, open files, the maintenance task, fsck, grow, info
//!
//! `docs/internals/volume.md` explains how they work together: the states of a record, an extent
//! and a segment, the lock order, and in a table on each page every invariant with what holds it.
//!
//! `fault` (injected faults), `fuzz` and `tests` are test apparatus.
//!
//! Invariants, in addition to those of each module: I11 the log has the order in which changes were
//! applied; recovery restores a prefix of it. I12 an acknowledged sync is durable: its records, all
//! earlier ones, and the runs that they point at were flushed. Or the records were written with FUA
//! after a flush of everything before them. I13 a record points only at bytes whose write had
//! completed when it was appended. I14 where runs overlap, the content with the later birth counts,
//! whatever the order of completion. I15 a recoverable size never covers bytes that were not
//! written; once all openers from before a loss have closed the file, it may cover lost blocks,
//! except at its end (sync_errors.E21). I16 nothing that one of the two newest durable checkpoints,
//! or the log since the older one, refers to is overwritten with anything else. I17 what recovery
//! has read is flushed and checkpointed before it is served, so that a second recovery finds the
//! same. I18 after a failed write no sync succeeds before its records are written again; after a
//! failed flush, before all records since the last successful flush are (log.L12).
//!
//! Locks: `docs/internals/volume.md` draws their order.
#![forbid(unsafe_code)]

pub mod btree;
mod checkpoint;
mod clean;
mod device;
#[doc(hidden)]
pub mod fault;
mod files;
pub mod format;
mod log;
mod map;
mod names;
mod recover;
mod space;
mod transaction;
mod volume;

pub use checkpoint::CheckpointStats;
pub use clean::CleanStats;
#[cfg(shuttle)]
#[doc(hidden)]
pub use log::model as log_model;
pub use space::alloc;
pub use space::alloc::{AllocMode, AllocStats};
pub use space::stats::{HeldBack, SpaceStats};
pub use transaction::options::{CLEAN_PERCENT, OpenOptions};
#[cfg(shuttle)]
#[doc(hidden)]
pub use transaction::state_lock::model as lock_model;
pub use volume::extents::{FileExtent, FreeSpace};
pub use volume::fsck::{
    Finding, FindingKind, FsckOptions, FsckProgress, FsckReport, fsck, fsck_with,
};
pub use volume::grow::grow;
pub use volume::info::{VolumeInfo, probe};
pub use volume::status::{LostContent, LostFile};
pub use volume::{CreateOptions, Volume};
#[cfg(any(test, feature = "fuzz"))]
pub mod fuzz;
#[cfg(test)]
mod tests;
