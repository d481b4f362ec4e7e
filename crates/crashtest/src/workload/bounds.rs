//! Bounds of a workload's step: polls and requests until it ends, and the volume's memory then. A
//! step above a bound is a violation, so that the search finds hangs and leaks.
//!
//! The bounds are several times the largest figures of a few million steps.
//!
//! Invariant: bounds.B1 a panic of the simulated world stops a run that has not ended after
//! `run_polls` polls.
//!
//! No locks.

use super::setup::Setup;
use forebay_base::sync::Arc;
use forebay_cache::PageCache;
use forebay_lfs::Volume;
use forebay_sim::SimDisk;

/// The resources that a step used, or the most that any step used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// Polls of tasks and events of devices during the step, those of background work included.
    pub polls: u64,
    /// Requests to the disk during the step, those of background work included.
    pub requests: u64,
    /// Memory of the volume after the step, without its frames, bytes.
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

/// The bounds of one run.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// Polls of a complete life of the volume.
    pub run_polls: u64,
    polls: u64,
    requests: u64,
    memory: u64,
}

impl Bounds {
    /// The bounds for this setup.
    pub fn of(setup: &Setup) -> Self {
        let times = if setup.large { 4 } else { 1 };
        Self {
            run_polls: times * 1_000_000,
            polls: times * 20_000,
            requests: times * 4_000,
            // Changes, names and nodes have bounds of their own; the required minimum is added.
            memory: MEMORY_BYTES,
        }
    }

    /// Checks that a closed volume has no content of files in memory.
    ///
    /// # Errors
    /// It has some.
    pub fn check_closed(&self, volume: &Volume) -> Result<(), String> {
        match volume.memory_in_use() {
            [.., 0] => Ok(()),
            [.., staged] => Err(format!("closed, and {staged} bytes of records are in memory")),
        }
    }

    /// Memory of the volume without its frames, bytes.
    ///
    /// # Errors
    /// It is more than allowed.
    pub fn check_memory(&self, volume: &Volume) -> Result<u64, String> {
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

    /// The counters before a step, for [`Bounds::check`].
    pub fn start(&self, disk: &SimDisk) -> (u64, u64) {
        (disk.world().steps(), disk.requests().end)
    }

    /// What the step used since `start`.
    ///
    /// # Errors
    /// It used more than a bound.
    pub fn check(
        &self,
        start: (u64, u64),
        disk: &SimDisk,
        volume: &Volume,
    ) -> Result<Usage, String> {
        let usage = Usage {
            polls: disk.world().steps() - start.0,
            requests: disk.requests().end - start.1,
            memory: self.check_memory(volume)?,
        };
        if usage.polls > self.polls || usage.requests > self.requests {
            return Err(format!("it took {usage:?}, more than {self:?}"));
        }
        Ok(usage)
    }
}

/// Changes, cleaner, names, nodes and content of records.
const MEMORY_BYTES: u64 = 3 << 20;
