//! Checkpoints that are made so that dead segments become free, for `maintenance.Z11`.
//!
//! Invariant: Z13 a log segment that is used up for the most part is
//! left first, so that what it takes becomes free, too.
//!
//! Locks: the turn of checkpoints and the state lock in turn; none across a wait.

use super::{Checkpoints, How};

/// More checkpoints, at most, while something is dead and not free.
const MORE_CHECKPOINTS: u64 = 2;

impl Checkpoints {
    /// Makes checkpoints until dead segments are free: two, and more if one found that something
    /// had died (Z11, Z13). False: none was made.
    pub async fn make_two(&self) -> bool {
        self.make_to_free(2, MORE_CHECKPOINTS).await
    }

    /// [`Self::make_two`] for a caller that knows what dies with the next one: that is free then.
    /// Where the log is used up, its segments become free with one more.
    pub async fn make_one(&self) -> bool {
        self.make_to_free(1, 0).await
    }

    async fn make_to_free(&self, least: u64, more: u64) -> bool {
        let before = self.merged();
        let moves = self.state.lock().space.log_is_used();
        let mut how = if moves { How::Moving } else { How::Log };
        let least = before + least.max(1 + u64::from(moves));
        loop {
            let number = self.merged();
            let dead = number < least || self.state.lock().space.segments.has_dead();
            if !dead || number >= least + more {
                break;
            }
            if let Err(error) = self.make_and_free(how).await {
                log::debug!("no space, and no checkpoint: {error}");
                break;
            }
            if self.state.lock().life.is_closed() {
                break;
            }
            how = How::Log;
        }
        self.merged() > before
    }
}
