//! The turns of the log: to write a group, and to flush.
//!
//! Invariants: those of [`crate::log`]; these guards ensure log.L5, log.L7 and log.L9.
//!
//! Locks: `ctl`; below it that of a flush turn, a leaf lock.

use crate::device::hold::Hold;
use crate::log::{Ctl, Due, Group, LaidOut, Log};
use forebay_base::sync::atomic::{AtomicBool, Ordering};
use forebay_base::sync::{Arc, Mutex};
use forebay_base::{Error, ErrorKind, Result};

/// Shared by a write turn and its writes. `WriteTurn::end` ends the turn; if its task is dropped
/// first, the drop of the last reference ends it.
struct LogWrites {
    log: Arc<Log>,
    is_abandoned: AtomicBool,
}

impl LogWrites {
    /// For a write turn that the caller has just taken.
    pub fn new(log: Arc<Log>) -> Arc<Self> {
        Arc::new(Self { log, is_abandoned: AtomicBool::new(false) })
    }

    /// Called when the task of the turn is dropped: from now on the drop of the last reference ends
    /// the turn.
    pub fn abandon(&self) {
        self.is_abandoned.store(true, Ordering::Release);
    }
}

impl Drop for LogWrites {
    fn drop(&mut self) {
        if self.is_abandoned.load(Ordering::Acquire) {
            self.log.ctl.lock().writing = false;
            self.log.wake_all();
        }
    }
}

/// The write turn. If its task is dropped, its records are laid out again by the next waiter
/// (log.L5), after the device has ended the last write of the turn (log.L9).
pub(crate) struct WriteTurn {
    log: Arc<Log>,
    pub group: Option<Group>,
    /// The layout of the group, from the moment in which it is written.
    pub laid: Option<LaidOut>,
    /// Injected fault [`crate::fault::Planted::ForgottenGroup`].
    pub forgets: bool,
    mine: u64,
    over: bool,
    writes: Arc<LogWrites>,
}

impl WriteTurn {
    /// The turn of a log whose `writing` the caller has set, while it waits for the ticket `mine`.
    pub fn new(log: Arc<Log>, mine: u64) -> Self {
        let writes = LogWrites::new(log.clone());
        Self { log, group: None, laid: None, forgets: false, mine, over: false, writes }
    }

    /// A hold for a write of this turn, which owns it until the device has ended it (log.L9).
    pub fn hold(&self) -> Hold {
        Hold::log(self.writes.clone())
    }

    /// Ends the turn; `then` gets the group.
    pub fn end(mut self, then: impl FnOnce(&mut Ctl, Option<Group>)) {
        self.over = true;
        let mut ctl = self.log.ctl.lock();
        ctl.writing = false;
        then(&mut ctl, self.group.take());
        let due = Due::of(&ctl);
        drop(ctl);
        due.wake(&self.log, self.mine);
    }
}

impl Drop for WriteTurn {
    fn drop(&mut self) {
        if self.over {
            return;
        }
        // `writing` stays set until the last write has ended; then the drop of `writes` clears it.
        self.writes.abandon();
        if self.forgets {
            return;
        }
        let mut ctl = self.log.ctl.lock();
        // The repair frees the segments that the group opened, after the last write (log.L9).
        ctl.groups.extend(self.group.take());
        (ctl.refused, ctl.repair) = (self.laid.take(), true);
        drop(ctl);
        self.log.wake_all();
    }
}

/// The flush turn. If its task is dropped, the turn ends when the device has ended the flush
/// (log.L7). A failed flush counts as failed then; after a successful one the next waiter flushes
/// again.
pub(crate) struct FlushTurn {
    log: Arc<Log>,
    mine: u64,
    over: bool,
    flown: Arc<Mutex<Flown>>,
}

/// State of the turn's flush at the device. Locked below `ctl`.
enum Flown {
    /// No flush was submitted, or it has succeeded.
    Ground,
    Flying,
    /// A flush is in flight, and its task was dropped.
    Alone,
    /// The flush has failed, and the task has not observed the error yet.
    Failed(Error),
}

impl FlushTurn {
    /// The turn of a log whose `flushing` the caller has set, while it waits for the ticket `mine`.
    pub fn new(log: Arc<Log>, mine: u64) -> Self {
        Self { log, mine, over: false, flown: Arc::new(Mutex::new(Flown::Ground)) }
    }

    /// For a flush that is submitted; it is dropped when the flush has ended.
    pub fn flight(&self) -> Flight {
        *self.flown.lock() = Flown::Flying;
        let failed = Some(Error::new(ErrorKind::Shutdown, "flush", "the device went away"));
        Flight { log: self.log.clone(), flown: self.flown.clone(), failed }
    }

    /// Ends the turn.
    pub fn end<T>(mut self, then: impl FnOnce(&mut Ctl) -> T) -> T {
        self.over = true;
        let mut ctl = self.log.ctl.lock();
        ctl.flushing = false;
        let result = then(&mut ctl);
        let due = Due::of(&ctl);
        drop(ctl);
        due.wake(&self.log, self.mine);
        result
    }
}

impl Drop for FlushTurn {
    fn drop(&mut self) {
        if self.over {
            return;
        }
        let mut ctl = self.log.ctl.lock();
        let flown = std::mem::replace(&mut *self.flown.lock(), Flown::Alone);
        ctl.flushing = matches!(flown, Flown::Flying);
        if let Flown::Failed(error) = flown {
            Log::fail_flush(&mut ctl, error);
        }
        drop(ctl);
        self.log.wake_all();
    }
}

/// A flush in flight.
pub(crate) struct Flight {
    log: Arc<Log>,
    flown: Arc<Mutex<Flown>>,
    failed: Option<Error>,
}

impl Flight {
    /// Records the result of the flush.
    pub fn note(&mut self, result: &Result<()>) {
        self.failed = result.as_ref().err().cloned();
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        // Of the turn and its flush, the one that is dropped last ends the turn.
        let mut ctl = self.log.ctl.lock();
        let mut flown = self.flown.lock();
        let is_alone = matches!(*flown, Flown::Alone);
        *flown = match self.failed.take() {
            Some(error) if is_alone => {
                Log::fail_flush(&mut ctl, error);
                Flown::Ground
            }
            Some(error) => Flown::Failed(error),
            None => Flown::Ground,
        };
        drop(flown);
        if is_alone {
            ctl.flushing = false;
            drop(ctl);
            self.log.wake_all();
        }
    }
}
