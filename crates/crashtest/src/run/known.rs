//! What is known of a run while it goes on.
//!
//! Locks: one, a leaf, around all of it.

use super::ran::{Progress, Ran, Stable};
use forebay_base::sync::Mutex;
use forebay_base::task::WaitQueue;
use forebay_lfs::Volume;
use forebay_sim::{FaultCounts, SimDisk};
use forebay_vfs::FileSystem;
use std::ops::Range;

#[derive(Default)]
pub struct Known {
    pub now: Progress,
    pub ran: Ran,
    /// Tasks that run concurrently with the steps: the name, and the step of the world at which
    /// it began.
    pub running: Vec<(&'static str, u64)>,
    /// The first violation that a task found which runs concurrently with the steps.
    pub wrong: Option<String>,
}

pub struct Shared {
    pub known: Mutex<Known>,
    pub idle: WaitQueue,
    pub disk: SimDisk,
    /// Faults of the disk before the run.
    pub before: FaultCounts,
}

impl Shared {
    /// Changes what is known; later moments record it (run.U1).
    pub fn learn(&self, change: impl FnOnce(&mut Known)) {
        let tag = {
            let mut known = self.known.lock();
            change(&mut known);
            let now = known.now;
            known.ran.history.push(now);
            known.ran.history.len() as u64 - 1
        };
        self.disk.tag_cuts(tag);
    }

    /// Records that a write is durable, and with it every name that existed before it.
    pub fn stable(&self, of: Option<&(u64, Range<u64>)>, steps: usize) {
        let Some((ino, range)) = of.cloned() else { return };
        self.learn(|known| {
            known.now.acked = known.now.acked.max(steps - 1);
            known.ran.stable.push(Stable { ino, range, steps });
            known.now.stable = known.ran.stable.len();
        });
    }

    pub fn synced(&self, of: Option<u64>, steps: usize, done: bool) {
        self.learn(|known| match done {
            true => {
                known.now.acked = known.now.acked.max(steps);
                known.ran.syncs.push((of, steps));
                known.now.syncs = known.ran.syncs.len();
            }
            false => known.ran.syncs_failed += 1,
        });
    }

    /// The concurrent tasks that have not ended.
    pub fn running(&self) -> String {
        let known = self.known.lock();
        let names: Vec<&str> = known.running.iter().map(|(name, _)| *name).collect();
        names.join(", ")
    }

    /// Whether the disk has refused a request of this run, or has decayed. An operation may fail
    /// only then, or because the volume itself is full.
    pub fn has_met_fault(&self) -> bool {
        self.disk.fault_counts() != self.before
    }
}

/// Whether less than a quarter of a volume is free by its own figures.
pub async fn is_nearly_full(volume: &Volume) -> bool {
    let stat = volume.statfs().await;
    stat.is_ok_and(|stat| stat.blocks_available < stat.blocks / 4)
}

/// Whether the disk has lost content. Once its files are closed, syncs cover the rest alone.
pub fn has_lost(volume: &Volume) -> bool {
    !volume.lost_content(1).files.is_empty()
}
