//! When a checkpoint is made, and what is done before anybody is told that there is no room.
//!
//! Invariants: Z11 `NoSpace` is told only after two checkpoints brought no room: what is dead is free then.
//! Z12 room is made without a lock, and with nothing captured.
//!
//! Locks: the state lock in turn; none across a wait.

use crate::checkpoint::How;
use crate::space::Need;
use crate::volume::Inner;

impl Inner {
    /// Begins a checkpoint on a task of its own, if it is time for one.
    pub(crate) fn trigger_checkpoint(&self) {
        let wanted = {
            let state = self.state.lock();
            let (log, data) = state.space.written();
            let short = state.space.is_short() && log + data >= self.layout.segment_bytes() / 2;
            let full = state.items.bytes() + 64 * state.items.len() + state.maps.1
                >= self.options.overlay_bytes / 2;
            !state.is_closed && (log >= self.log_bytes_max() || short || full)
        };
        if !wanted || !self.checkpoints.arm() {
            return;
        }
        let me = self.me.clone();
        let task = async move {
            let Some(inner) = me.upgrade() else { return };
            inner.checkpoints.disarm();
            if let Err(error) = inner.checkpoint(How::Log).await {
                log::warn!("a checkpoint was not made: {error}");
            }
        };
        self.world.spawn("forebay-lfs checkpoint", Box::pin(task));
    }

    /// Longest log behind a checkpoint, bytes.
    fn log_bytes_max(&self) -> u64 {
        let volume = u64::from(self.layout.segments) * self.layout.segment_bytes();
        self.options.checkpoint_bytes.min((volume / 16).max(self.layout.segment_bytes()))
    }

    fn room(&self) -> u64 {
        let state = self.state.lock();
        state.data_room(Need::New) + state.space.unpromised()
    }

    /// Two checkpoints: what is dead is free then (Z11). False: that brought no room.
    pub(crate) async fn make_room(&self) -> bool {
        let (before, until) = (self.room(), self.checkpoints.superblock().checkpoint + 2);
        // What is queued is promised more than it takes.
        if let Err(error) = self.commit_all(false).await {
            log::debug!("no room, and no commit: {error}");
        }
        while self.checkpoints.superblock().checkpoint < until {
            if let Err(error) = self.checkpoint(How::Log).await {
                log::debug!("no room, and no checkpoint: {error}");
                break;
            }
            if self.state.lock().is_closed {
                break;
            }
        }
        self.room() > before
    }
}
