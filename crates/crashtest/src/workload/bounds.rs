//! Bounds of a workload's operations: polls and requests until each ends, and the volume's memory
//! then. An operation above a bound is a violation, so that the search finds hangs and leaks.
//!
//! The bounds are ten to thirty times the largest figures of some 90,000 states. Those of
//! operations that read the log grow with the segments of the volume, and those of operations that
//! read or write content with the size of files.
//!
//! Invariant: bounds.B1 a panic of the simulated world stops a run that has not ended after
//! `run_polls` polls.
//!
//! No locks.

use super::setup::Setup;
use forebay_base::sync::Arc;
use forebay_cache::PageCache;
use forebay_lfs::Volume;

/// The resources that a step used, or the most that any step used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// Polls of tasks and events of devices during the step, those of background work included.
    pub polls: u64,
    /// Requests to the disk during the step, those of background work included.
    pub requests: u64,
    /// Memory of the volume after the step, without frames of its cache, bytes.
    pub memory: u64,
}

impl Usage {
    /// The larger of each.
    pub fn most(self, other: Self) -> Self {
        Self {
            polls: self.polls.max(other.polls),
            requests: self.requests.max(other.requests),
            memory: self.memory.max(other.memory),
        }
    }
}

/// An operation whose end is awaited while nothing but background work runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// A volume is opened: recovery.
    Open,
    /// A step of one client.
    Step,
    /// All names and all content are read.
    ReadAll,
    /// The volume is checked as by `fsck`.
    Fsck,
    /// A checkpoint is made, in order that content decays.
    Checkpoint,
    /// The volume is made larger.
    Grow,
    /// Tasks that run concurrently with the steps end.
    Tasks,
    /// All names are removed.
    Empty,
    /// The volume is closed.
    Close,
}

impl Operation {
    /// The operation in words.
    pub fn name(self) -> &'static str {
        match self {
            Self::Open => "opening the volume",
            Self::Step => "the step",
            Self::ReadAll => "reading all of it",
            Self::Fsck => "fsck",
            Self::Checkpoint => "a checkpoint",
            Self::Grow => "growing the volume",
            Self::Tasks => "concurrent tasks",
            Self::Empty => "removing all names",
            Self::Close => "closing the volume",
        }
    }
}

/// The bounds of one run.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// Polls of a complete life of the volume.
    pub run_polls: u64,
    is_large: bool,
    segments: u64,
    /// Units of 64 KiB in the largest file.
    file_units: u64,
    memory: u64,
}

impl Bounds {
    /// The bounds for this setup.
    pub fn of(setup: &Setup) -> Self {
        let times = if setup.large { 4 } else { 1 };
        Self {
            run_polls: times * 1_000_000,
            is_large: setup.large,
            segments: setup.volume_bytes.max(setup.grown_bytes.unwrap_or(0))
                / setup.segment_bytes(),
            file_units: setup.file_bytes >> 16,
            memory: if setup.crowded { CLEANED_BYTES } else { MEMORY_BYTES },
        }
    }

    /// Checks that a closed volume has no content of files in memory, and that no space of its log
    /// is granted.
    ///
    /// # Errors
    /// It has some.
    pub fn check_closed(&self, volume: &Volume) -> Result<(), String> {
        match (volume.memory_in_use(), volume.granted_log_bytes()) {
            ([.., 0], 0) => Ok(()),
            ([.., 0], granted) => Err(format!("closed, and {granted} bytes of log are granted")),
            ([.., staged], _) => {
                Err(format!("closed, and {staged} bytes of records are in memory"))
            }
        }
    }

    /// Checks that the volume did not turn read-only, unless a node of its tree is lost: lost
    /// content concerns its file alone (`docs/reference/failure-protocol.md`).
    ///
    /// # Errors
    /// It did.
    fn check_stopped(volume: &Volume) -> Result<(), String> {
        match volume.stopped() {
            Some(why) if !why.to_string().contains("neither copy of the node") => {
                Err(format!("the volume turned read-only, and no node is lost: {why}"))
            }
            _ => Ok(()),
        }
    }

    /// Memory of the volume without frames of its cache, bytes.
    ///
    /// # Errors
    /// It is more than allowed, or the volume turned read-only without a lost node.
    pub fn check_memory(&self, volume: &Volume) -> Result<u64, String> {
        Self::check_stopped(volume)?;
        let parts = volume.memory_in_use();
        match parts.iter().sum() {
            sum if sum <= self.memory => Ok(sum),
            _ => Err(format!(
                "changes, cleaner, names, nodes and content of records take {parts:?} bytes, more \
                 than {}",
                self.memory
            )),
        }
    }

    /// Checks that no part of a page cache's budget exceeds its bound.
    ///
    /// # Errors
    /// A part does.
    pub fn check_cache(&self, cache: Option<&Arc<PageCache>>) -> Result<(), String> {
        let rows = cache.map(|cache| cache.budget()).unwrap_or_default();
        match rows.iter().find(|(_, now, bound)| now > bound) {
            Some((what, now, bound)) => Err(format!("{what}: {now} bytes, at most {bound}")),
            None => Ok(()),
        }
    }

    /// Polls of tasks and events of devices until an operation ends, at most.
    pub fn polls_max(&self, operation: Operation) -> u64 {
        let (of_log, of_content) = (60 + self.segments, 60 + self.file_units);
        let times = if self.is_large { 4 } else { 1 };
        match operation {
            Operation::Open => 20 * of_log,
            Operation::Fsck => 20 * (50 + 3 * of_log / 2),
            Operation::ReadAll | Operation::Close => 20 * of_content,
            // A step writes up to 1 MiB, and may wait for the cleaner. Five syncs at once on a
            // device that fails every write took more than 3,000, as each tries closed files, too.
            Operation::Step => times * 4_500,
            Operation::Checkpoint => 1_000,
            Operation::Empty => times * 20_000,
            Operation::Grow => 600,
            // A task takes longer than a step: it begins within a step, and goes on during later
            // ones.
            Operation::Tasks => times * 9_000,
        }
    }
}

/// Changes, names, nodes and content of records.
const MEMORY_BYTES: u64 = 3 << 19;
/// [`MEMORY_BYTES`], and the segments that the cleaner copies.
const CLEANED_BYTES: u64 = 3 << 20;
