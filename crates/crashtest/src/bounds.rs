//! What a step of a workload may take: polls and requests until it has ended, and memory of the
//! volume then. A step that takes more is a violation, so that a hang and a leak are found.
//!
//! The bounds are some times what the largest of a few million steps took.
//!
//! Invariants: bounds.B1 a run that does not end is stopped after `run_polls` polls, by a panic of
//! the world.
//!
//! No locks.

use crate::setup::Setup;
use forebay_lfs::Volume;
use forebay_sim::SimDisk;

/// What a step took, or the most that steps took.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// Polls of tasks and events of devices, of everything that ran meanwhile.
    pub polls: u64,
    /// Requests to the disk, of everything that ran meanwhile.
    pub requests: u64,
    /// Memory of the volume after it, its frames apart, bytes.
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

/// What is allowed.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// Of a whole life.
    pub run_polls: u64,
    polls: u64,
    requests: u64,
    memory: u64,
}

impl Bounds {
    /// Of a workload that is set up like this.
    pub fn of(setup: &Setup) -> Self {
        let times = if setup.large { 4 } else { 1 };
        Self {
            run_polls: times * 1_000_000,
            polls: times * 20_000,
            requests: times * 4_000,
            // Changes, names and nodes have bounds of their own; what must be there comes on top.
            memory: MEMORY_BYTES,
        }
    }

    /// Of a volume that was closed no content of files is left in memory.
    ///
    /// # Errors
    /// Some is.
    pub fn check_closed(&self, volume: &Volume) -> Result<(), String> {
        match volume.memory_in_use() {
            [.., 0] => Ok(()),
            [.., staged] => Err(format!("closed, and {staged} bytes of records are in memory")),
        }
    }

    /// Memory of the volume, its frames apart, bytes.
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

    /// Before a step.
    pub fn start(&self, disk: &SimDisk) -> (u64, u64) {
        (disk.world().steps(), disk.requests().end)
    }

    /// After it: what it took.
    ///
    /// # Errors
    /// It took too much.
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
