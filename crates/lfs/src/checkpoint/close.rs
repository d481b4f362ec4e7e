//! The last checkpoint before the volume is closed: its slot says that nothing follows.
//!
//! Invariant: H16 from the moment when that slot is submitted, nothing follows. If its write fails,
//! or its task is dropped, it may be durable all the same, and recovery would not look for later
//! records. So the volume stays closed, and the next checkpoint or close writes that slot again.
//!
//! Locks: the turn of checkpoints; none across a wait.

use super::Checkpoints;
use forebay_base::Result;

impl Checkpoints {
    /// Whether a slot that says "nothing follows" was submitted and is not known to be durable.
    pub fn is_closing(&self) -> bool {
        self.turn.lock().closing.is_some()
    }
}

impl Checkpoints {
    /// Closes the volume if no record follows the mark and no reservation exists. False otherwise.
    pub(super) fn seal(&self) -> Result<bool> {
        Ok(self.state.lock().close_if_last())
    }

    /// Writes the slot that says "nothing follows", again if a write has failed. Everything that it
    /// refers to is flushed, and nothing has changed since (H16).
    pub(crate) async fn write_last_slot(&self) -> Result<()> {
        let closing = self.turn.lock().closing.as_ref().map(|c| c.superblock.clone());
        let Some(mut superblock) = closing else { return Ok(()) };
        self.write_slots(&mut superblock, self.log.failures()).await?;
        let settled = self.turn.lock().closing.take();
        if let Some(mut settled) = settled {
            let number = superblock.checkpoint;
            settled.superblock = superblock;
            self.settle(settled, number);
        }
        Ok(())
    }
}
