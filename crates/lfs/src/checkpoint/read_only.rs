//! Makes a volume read-only that cannot make checkpoints.
//!
//! A checkpoint can never succeed if it needs a tree node that is lost. All later changes would
//! stay in memory for ever, and the next opening would have to replay them. So the volume turns
//! read-only until it is closed. Lost content stops no checkpoint (logged.Q2). A node is lost if
//! both copies are damaged, or if the device can read neither of them, although it can read other
//! addresses. A checkpoint that fails for another reason, such as a transient device error, is
//! tried again.
//!
//! Invariants: F11 a volume that turned read-only accepts no change: every front end gets
//! `ReadOnly` with the reason. Reads continue, and the log makes accepted changes durable. F12
//! while checkpoints fail, changes in memory stay within `overlay_bytes`: a change that would
//! exceed it gets the error of the checkpoint, unless another attempt succeeds.
//!
//! Lock: the state lock; none across a wait.

use crate::checkpoint::{Checkpoints, How};
use crate::device::slots;
use forebay_base::sync::atomic::Ordering;
use forebay_base::{Error, ErrorKind, Result};

/// Whether an error of a checkpoint means a permanent loss.
fn is_loss(error: &Error) -> bool {
    error.kind() == ErrorKind::Corrupt
}

impl Checkpoints {
    /// Makes a checkpoint; the caller has the turn. A volume opened for reading is not written
    /// (open.O13), and one that turned read-only is not changed (F11).
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
        // The next opening recovers the changes accepted before (F11).
        if self.check_running("checkpoint").is_err()
            && let Err(error) = self.commit_queue().await
        {
            log::warn!("{}: records are not durable: {error}", self.device.name());
        }
        done
    }

    /// The error of a checkpoint, as `Corrupt` if a tree node is lost because the device can read
    /// neither of its places. For that, both reads must fail again after the device has read a slot
    /// of the superblock. In the other order, an outage that ends in between would count as a loss.
    /// A device that reads nothing may work again later.
    async fn lost_or_failing(&self, error: Error) -> Error {
        let Some(places) = self.tree.unreadable_node(&error) else { return error };
        let is_lost = slots::read_valid(&self.device).await.is_ok()
            && self.tree.is_still_unreadable(places).await;
        match is_lost {
            true => Error::new(ErrorKind::Corrupt, "checkpoint", error.to_string()),
            false => error,
        }
    }

    /// Records the result of an attempted checkpoint.
    fn note_checkpoint(&self, done: &Result<()>) {
        let mut state = self.state.lock();
        match done {
            Ok(()) => state.note_checkpoint_made(),
            Err(error) if is_loss(error) => {
                log::error!("{}: the volume turns read-only: {error}", self.device.name());
                state.stop(error.clone());
                drop(state);
                self.is_stopped.store(true, Ordering::Release);
            }
            Err(error) => state.note_checkpoint_failed(error.clone()),
        }
    }
}
