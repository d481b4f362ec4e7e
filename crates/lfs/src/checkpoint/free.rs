//! Makes checkpoints to free dead segments before a lack of space is reported (maintenance.Z11).
//!
//! Invariant: Z13 if a log segment is mostly used up, the log moves to another one first, so that
//! this segment becomes free, too.
//!
//! Locks: the turn of checkpoints and the state lock in turn; none across a wait.

use super::{Checkpoints, How};

/// Most further checkpoints while dead segments are not free yet.
const MORE_CHECKPOINTS: u64 = 2;

impl Checkpoints {
    /// Makes checkpoints until dead segments are free: two, and more if one of them found newly
    /// dead segments (maintenance.Z11, Z13). False: none was made.
    pub async fn make_two(&self) -> bool {
        self.make_to_free(2, MORE_CHECKPOINTS).await
    }

    /// As [`Self::make_two`], for a caller that knows that the next checkpoint suffices. If the log
    /// is used up, its segments become free with one more.
    pub async fn make_one(&self) -> bool {
        self.make_to_free(1, 0).await
    }

    async fn make_to_free(&self, least: u64, more: u64) -> bool {
        let before = self.merged();
        let moves = self.state.lock().log_leaves();
        let mut how = if moves { How::Moving } else { How::Log };
        let least = before + least.max(1 + u64::from(moves));
        loop {
            let number = self.merged();
            let dead = number < least || self.state.lock().space().segments().has_dead();
            if !dead || number >= least + more {
                break;
            }
            if let Err(error) = self.make_and_free(how).await {
                log::debug!("no space, and no checkpoint: {error}");
                break;
            }
            if self.state.lock().life().is_closed() {
                break;
            }
            how = How::Log;
        }
        self.merged() > before
    }
}
