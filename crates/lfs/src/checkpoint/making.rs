//! A checkpoint in progress, and what a failed one leaves to the next.
//!
//! Invariants: those of [`crate::checkpoint`] and [`crate::space::nodes`].
//!
//! Locks: the state lock, the log's and the turn's, one at a time.

use super::Checkpoints;
use crate::btree::Ledger;
use crate::fault::Planted;

/// A checkpoint in progress. If it is dropped before it is durable, by an error or because its task
/// was dropped, the frozen changes are put back. One that closes the volume counts as done before
/// its slot is written (close.H16).
pub(super) struct Making<'a> {
    checkpoints: &'a Checkpoints,
    /// Places of nodes allocated and given up so far.
    pub taken: Ledger,
    /// A slot that names the new nodes may be on the device.
    pub is_named: bool,
    pub is_over: bool,
}

impl Drop for Making<'_> {
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        let is_named = self.is_named && !self.checkpoints.plant.has(Planted::NamedNodesFreed);
        let places = self.taken.taken.concat();
        {
            let mut state = self.checkpoints.state.lock();
            state.thaw(places, is_named);
        }
        if is_named {
            let mut turn = self.checkpoints.turn.lock();
            turn.doubtful = turn.doubtful.max(turn.attempted);
        }
    }
}

impl Checkpoints {
    /// Begins a checkpoint, after its changes were frozen.
    pub(super) fn begin(&self) -> Making<'_> {
        let taken = Ledger::default();
        Making { checkpoints: self, taken, is_named: false, is_over: false }
    }

    /// The durable mark of a checkpoint that failed. The next one ends with it as well, if no
    /// record was queued since (checkpoint.H19).
    pub(super) fn unused_mark(&self) -> Option<u64> {
        let used = self.turn.lock().mark;
        let cut = self.log.ctl.lock().cut;
        cut.map(|(ticket, _)| ticket).filter(|ticket| *ticket != used)
    }
}
