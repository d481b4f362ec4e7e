//! The result of a run: its moments, what was known at each, and counters.
//!
//! No locks.

use crate::workload::{Script, Usage};
use forebay_base::IoFlags;
use forebay_sim::PowerCut;
use std::ops::Range;

/// The progress of a run at a moment.
#[derive(Debug, Clone, Copy, Default)]
pub struct Progress {
    /// The volume was open, so everything recovered is durable.
    pub opened: bool,
    /// Steps that were begun.
    pub begun: usize,
    /// Steps that a sync has acknowledged.
    pub acked: usize,
    /// Syncs that were acknowledged.
    pub syncs: usize,
    /// Writes with `DSYNC` that were acknowledged.
    pub stable: usize,
    /// Blocks that have decayed.
    pub rotten: usize,
}

/// A block of a file that has decayed: the inode on the volume, and the number of the block.
pub type Decayed = (u64, usize);

/// An acknowledged sync: its file (`None`: all files), and the number of steps before it.
pub type Synced = (Option<u64>, usize);

/// A write with `DSYNC` or `SYNC` that was acknowledged.
#[derive(Debug, Clone)]
pub struct Stable {
    /// The file, in the file system in memory.
    pub ino: u64,
    /// Bytes that are durable from then on.
    pub range: Range<u64>,
    /// After how many steps.
    pub steps: usize,
}

/// The result of a run.
#[derive(Default)]
pub struct Ran {
    /// The moments, in order; the last one is after all requests.
    pub cuts: Vec<PowerCut>,
    /// By the tag of a moment.
    pub(super) history: Vec<Progress>,
    /// All of them, in order.
    pub syncs: Vec<Synced>,
    /// Writes with `DSYNC` or `SYNC` that were acknowledged, in order.
    pub stable: Vec<Stable>,
    /// Syncs that reported a failure.
    pub syncs_failed: u64,
    /// Writes that failed.
    pub writes_failed: u64,
    /// Flushes that failed.
    pub flushes_failed: u64,
    /// The digest that a recovery at the last moment has to find, if everything was synced then.
    pub live: Option<u64>,
    /// Reads that failed.
    pub reads_failed: u64,
    /// Requests that the host refused for lack of space.
    pub no_space: u64,
    /// Refused steps after which the run went on.
    pub refused: u64,
    /// The volume was made larger.
    pub grown: bool,
    /// Blocks that have decayed, in order.
    pub decayed: Vec<Decayed>,
    /// Sectors that decayed.
    pub rotten: u64,
    /// Writes with `DIRECT`, with `UNCACHED`, with `DSYNC` or `SYNC`, and with `DIRECT` and one of
    /// these two.
    pub flagged: [u64; 4],
    /// Largest end of a write, bytes.
    pub largest_end: u64,
    /// Most of what a step used.
    pub usage: Usage,
    /// The script that was carried out, if it differs from the given one.
    pub script: Option<Script>,
    /// The run ended before its last step: the volume did not open, too many steps were refused, or
    /// what a step on an unknown file answered could not be judged.
    pub ended_early: bool,
    /// Files of which nothing is known since a refused step.
    pub unknown: u64,
    /// The run ended early, because the volume was full.
    pub full: bool,
    /// Blocks that are available after all names were removed, if that was done (emptied.H1).
    pub left: Option<u64>,
    /// Segments that were cleaned.
    pub cleaned: u64,
    /// What was wrong while it ran.
    pub wrong: Option<String>,
}

impl Ran {
    /// A write was carried out.
    pub(super) fn count_write(&mut self, flags: IoFlags, end: u64) {
        count_flags(&mut self.flagged, flags);
        self.largest_end = self.largest_end.max(end);
    }

    /// How far it was at a moment.
    pub fn progress(&self, cut: &PowerCut) -> Progress {
        self.history.get(cut.tag() as usize).copied().unwrap_or_default()
    }
}

/// Counts a write by its flags, in the order of [`Ran::flagged`].
pub fn count_flags(counts: &mut [u64; 4], flags: IoFlags) {
    let is_durable = flags.intersects(IoFlags::DSYNC | IoFlags::SYNC);
    let is_direct = flags.contains(IoFlags::DIRECT);
    let has = [is_direct, flags.contains(IoFlags::UNCACHED), is_durable, is_direct && is_durable];
    counts.iter_mut().zip(has).for_each(|(count, has)| *count += u64::from(has));
}
