//! forebay-lfs: the volume, a log-structured and checksummed file system in one image.
//!
//! The folders are layers: each imports only from those before it in this list. `cargo xtask
//! layers` checks it; imports that still point the other way are listed in
//! `xtask/layers/lfs-allowed.txt`. Read the folders in this order.
//! - [`format`](mod@format): the stored form, without I/O; `docs/reference/format.md` draws it
//! - `device`: layout, superblock slots, writes that outlive their task
//! - [`btree`]: the copy-on-write tree
//! - `space`: segments, places of nodes, allocation, accounting
//! - `log`: records and groups of records, and how they become durable
//! - `map`: where a file's blocks are
//! - `names`: inodes, directories and attributes, and their cache
//! - `transaction`: the state that space, log, map and names make up, and one change applied to it
//! - `files`: the mapping that iomap sees, open and recently closed files
//! - `checkpoint` and `clean`: changes get into the tree, and space becomes free
//! - `recover`: opening, roll-forward, repair after a failed write
//! - `volume`: the public interface, open files, the maintenance task, fsck, grow, info
//!
//! `docs/internals/volume.md` explains how they work together: the states of a record, an extent
//! and a segment, the lock order, and in a table on each page every invariant with what holds it.
//!
//! `fault` (injected faults), `fuzz` and `tests` are test apparatus.
//!
//! Invariants, in addition to those of each module: I11 the order of the log is the order in which
//! changes were applied; what is recovered is a prefix of it. I12 an acknowledged sync is durable:
//! its records and all before them were flushed, or went out with FUA behind a flush of all before
//! them; and their runs before them. I13 a record points only at bytes whose write had completed
//! when it was appended. I14 where runs overlap, the one whose content was fixed later counts,
//! whatever the order of completion. I15 a recoverable size never covers bytes that were not
//! written. I16 nothing that one of the two newest durable checkpoints, or the log behind the older
//! one, refers to is overwritten with anything else. I17 what recovery read is flushed, and in a
//! checkpoint, before it is served; a second recovery finds the same. I18 after a failed write or
//! flush no sync succeeds before everything since the last good flush is written again.
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

pub use clean::CleanStats;
#[cfg(shuttle)]
#[doc(hidden)]
pub use log::model as log_model;
pub use space::alloc;
pub use space::alloc::{AllocMode, AllocStats};
pub use transaction::options::{CLEAN_PERCENT, OpenOptions};
pub use volume::extents::{FileExtent, FreeSpace};
pub use volume::fsck::{Finding, FindingKind, FsckProgress, FsckReport, fsck};
pub use volume::grow::grow;
pub use volume::info::{VolumeInfo, probe};
pub use volume::{CreateOptions, Volume};
#[cfg(any(test, feature = "fuzz"))]
pub mod fuzz;
#[cfg(test)]
mod tests;
