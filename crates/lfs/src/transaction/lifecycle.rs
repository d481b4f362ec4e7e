//! Whether the volume accepts changes. It may be opened read-only, stopped after a loss, closed, or
//! limited while checkpoints fail. Also stores why the last change was refused.
//!
//! Invariant: S18 after a volume is stopped or closed it accepts no change until it is opened again
//! (read_only.F11, close.H16).
//!
//! No locks: the volume's state lock covers it.

use crate::space::Need;
use forebay_base::{Error, ErrorKind, Result};

/// What the volume accepts now.
#[derive(Default)]
pub(crate) struct Lifecycle {
    is_read_only: bool,
    is_closed: bool,
    /// Why the volume turned read-only.
    stopped: Option<Error>,
    /// Why the last checkpoint failed, if it may succeed later.
    failing: Option<Error>,
    /// The limit on changes in memory while checkpoints fail, bytes (read_only.F12); 0: no limit.
    changes_max: u64,
}

fn refusal(op: &'static str, why: &Error) -> Error {
    let text = format!("the volume turned read-only, because no checkpoint can be made: {why}");
    Error::new(ErrorKind::ReadOnly, op, text)
}

impl Lifecycle {
    /// Sets the limit on changes in memory while checkpoints fail (read_only.F12).
    pub fn bound_changes(&mut self, bytes: u64) {
        self.changes_max = bytes;
    }

    /// Marks the volume as opened read-only.
    pub fn open_for_reading(&mut self) {
        self.is_read_only = true;
    }

    /// Whether the volume was opened read-only, or turned read-only.
    pub fn is_read_only(&self) -> bool {
        self.is_read_only
    }

    /// Marks the volume as closed: the newest slot says that no log follows.
    pub fn close(&mut self) {
        self.is_closed = true;
    }

    pub fn is_closed(&self) -> bool {
        self.is_closed
    }

    /// Notes a successful checkpoint.
    pub fn checkpoint_succeeded(&mut self) {
        self.failing = None;
    }

    /// Notes a failed checkpoint. A later one may succeed.
    pub fn checkpoint_failed(&mut self, error: Error) {
        self.failing = Some(error);
    }

    /// Whether the last checkpoint failed.
    pub fn is_failing(&self) -> bool {
        self.failing.is_some()
    }

    /// Turns the volume read-only after the loss of data that every checkpoint needs
    /// (read_only.F11).
    pub fn stop(&mut self, why: Error) {
        self.stopped.get_or_insert(why);
        self.is_read_only = true;
    }

    /// Why the volume turned read-only.
    pub fn stopped(&self) -> Option<&Error> {
        self.stopped.as_ref()
    }

    /// Whether the volume turned read-only and is not closed.
    pub fn is_stopped(&self) -> bool {
        self.stopped.is_some() && !self.is_closed
    }

    /// Returns `ReadOnly` or `Shutdown` if the volume accepts no change.
    pub fn check_writable(&self, op: &'static str) -> Result<()> {
        if let Some(why) = &self.stopped {
            return Err(refusal(op, why));
        }
        if self.is_read_only {
            return Err(Error::new(ErrorKind::ReadOnly, op, "the volume is open for reading"));
        }
        match self.is_closed {
            true => Err(Error::new(ErrorKind::Shutdown, op, "the volume is closed")),
            false => Ok(()),
        }
    }

    /// The error of the last checkpoint, if changes in memory have reached the limit since
    /// (read_only.F12).
    pub fn overfull(&self, changes_bytes: impl FnOnce() -> u64) -> Option<&Error> {
        let failing = self.failing.as_ref()?;
        (self.changes_max > 0 && changes_bytes() >= self.changes_max).then_some(failing)
    }
}

/// Why the last change was refused, for the task that may try it again.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Refusal {
    /// Changes in memory have reached their limit (read_only.F12): a checkpoint may help.
    pub is_overfull: bool,
    /// The log had no space for a record with this need.
    pub lacks_space: Option<Need>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(text: &'static str) -> Error {
        Error::new(ErrorKind::Io, "checkpoint", text)
    }

    /// read_only.F11, read_only.F12, S18: a failed checkpoint limits changes until one succeeds.
    /// After a loss the volume stays read-only.
    #[test]
    fn lifecycle_stops_for_good_and_fails_for_a_while() {
        let mut life = Lifecycle::default();
        life.bound_changes(100);
        assert!(life.check_writable("write").is_ok() && life.overfull(|| 200).is_none());
        life.checkpoint_failed(error("busy"));
        assert!(life.overfull(|| 99).is_none() && life.overfull(|| 100).is_some());
        life.checkpoint_succeeded();
        assert!(life.overfull(|| 200).is_none());
        life.stop(error("first"));
        life.stop(error("second"));
        let refused = life.check_writable("write").unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::ReadOnly);
        assert!(refused.to_string().contains("first"), "{refused}");
        assert!(life.is_stopped() && life.is_read_only());
        life.close();
        assert!(!life.is_stopped() && life.is_closed());
    }

    #[test]
    fn lifecycle_closed_volume_refuses_changes() {
        let mut life = Lifecycle::default();
        life.close();
        assert_eq!(life.check_writable("write").unwrap_err().kind(), ErrorKind::Shutdown);
        let mut reading = Lifecycle::default();
        reading.open_for_reading();
        assert_eq!(reading.check_writable("write").unwrap_err().kind(), ErrorKind::ReadOnly);
    }
}
