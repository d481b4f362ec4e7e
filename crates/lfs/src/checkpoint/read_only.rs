//! What happens to a volume that cannot make checkpoints.
//!
//! A checkpoint that needs content or a node of the tree that is lost can never succeed. Everything
//! that changes from then on would wait in memory for ever, and the next opening would have to
//! replay it. So the volume turns read-only for the rest of this life. A node is lost if both
//! copies are damaged, or if the device reads neither of them though it reads elsewhere. A
//! checkpoint that fails for another reason, as a device error that may pass, is tried again.
//!
//! Invariants: F11 a volume that turned read-only accepts no change: every interface answers
//! `ReadOnly` with the reason; reads go on, and the log makes durable what it had accepted. F12
//! while checkpoints fail, changes in memory stay within `overlay_bytes`: what would exceed it is
//! refused with the error of the checkpoint, unless another attempt succeeds.
//!
//! Lock: the state lock; none across a wait.

use crate::checkpoint::{Checkpoints, How};
use crate::device::slots;
use forebay_base::sync::atomic::Ordering;
use forebay_base::{Error, ErrorKind, Result};

/// Whether an error of a checkpoint says that something is lost for good.
fn is_loss(error: &Error) -> bool {
    error.kind() == ErrorKind::Corrupt
}

impl Checkpoints {
    /// Makes a checkpoint; the caller has the turn. What is open for reading is not written (O13),
    /// and what turned read-only stays as it is (F11).
    pub(crate) async fn checkpoint_in_turn(&self, how: How) -> Result<()> {
        if self.is_closing() {
            return self.write_last_slot().await;
        }
        if self.options.read_only {
            let text = "the volume is open for reading";
            return Err(Error::new(ErrorKind::ReadOnly, "checkpoint", text));
        }
        self.check_running("checkpoint")?;
        let done = match self.attempt(how).await {
            Err(error) => Err(self.lost_or_failing(error).await),
            done => done,
        };
        self.note_checkpoint(&done);
        // What was accepted before is found by the next opening (F11).
        if self.check_running("checkpoint").is_err()
            && let Err(error) = self.commit_queue().await
        {
            log::warn!("{}: records are not durable: {error}", self.device.name());
        }
        done
    }

    /// The error of a checkpoint, as `Corrupt` if it says that a node of the tree is lost because
    /// the device reads it from neither place. It is lost if both reads fail again after the device
    /// has read a slot of the superblock: in that order, or an outage that ends between would count
    /// as a loss. A device that reads nothing may work again later.
    async fn lost_or_failing(&self, error: Error) -> Error {
        let Some(places) = self.tree.unreadable_node(&error) else { return error };
        let is_lost = slots::read_valid(&self.device).await.is_ok()
            && self.tree.is_still_unreadable(places).await;
        match is_lost {
            true => Error::new(ErrorKind::Corrupt, "checkpoint", error.to_string()),
            false => error,
        }
    }

    /// What came of a checkpoint that was attempted.
    fn note_checkpoint(&self, done: &Result<()>) {
        let mut state = self.state.lock();
        match done {
            Ok(()) => state.life.checkpoint_succeeded(),
            Err(error) if is_loss(error) => {
                log::error!("{}: the volume turns read-only: {error}", self.device.name());
                state.life.stop(error.clone());
                drop(state);
                self.is_stopped.store(true, Ordering::Release);
            }
            Err(error) => state.life.checkpoint_failed(error.clone()),
        }
    }
}
