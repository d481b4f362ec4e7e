//! The turns of the log: to write a group, and to flush.
//!
//! Invariants: those of [`crate::log`]; these guards ensure log.L5, log.L7 and log.L9.
//!
//! Lock: `ctl`.

use crate::device::hold::Hold;
use crate::log::{Ctl, Due, Flown, Group, LaidOut, Log};
use forebay_base::sync::Arc;
use forebay_base::sync::atomic::{AtomicBool, Ordering};
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
/// (log.L7). A failed flush counts as failed then. A successful one has no result, and the next
/// waiter flushes again.
pub(crate) struct FlushTurn {
    log: Arc<Log>,
    mine: u64,
    over: bool,
    /// Number of groups that were written when it began (log.L2).
    groups: usize,
}

impl FlushTurn {
    /// The turn of a log in which the caller has taken it, while it waits for the ticket `mine`.
    pub fn new(log: Arc<Log>, mine: u64) -> Self {
        let groups = {
            let mut ctl = log.ctl.lock();
            ctl.flown = Flown::Ground;
            // A repair takes the groups back, and may be about to do so (log.L4).
            if ctl.repair { 0 } else { ctl.groups.len() }
        };
        Self { log, mine, over: false, groups }
    }

    /// For a flush that is submitted; it is dropped when the flush has ended.
    pub fn flight(&self) -> Flight {
        let mut ctl = self.log.ctl.lock();
        let number = ctl.flush_turns.last();
        ctl.flown = Flown::Flying(number);
        let failed = Some(Error::new(ErrorKind::Shutdown, "flush", "the device went away"));
        Flight { log: self.log.clone(), number, failed }
    }

    /// Ends the turn; `then` gets the number of groups that a successful flush has covered.
    pub fn end<T>(mut self, done: &Result<()>, then: impl FnOnce(&mut Ctl, usize) -> T) -> T {
        self.over = true;
        let mut ctl = self.log.ctl.lock();
        if let Err(error) = done {
            Log::fail_flush(&mut ctl, error.clone());
        }
        ctl.flush_turns.end(done);
        let covered = if done.is_ok() && !ctl.repair { self.groups } else { 0 };
        debug_assert!(covered <= ctl.groups.len(), "L2: no other task takes them away");
        let result = then(&mut ctl, covered);
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
        match std::mem::replace(&mut ctl.flown, Flown::Ground) {
            Flown::Flying(number) => ctl.flown = Flown::Alone(number),
            Flown::Failed(error) => ctl.abandoned_flush_ended(Some(error)),
            Flown::Ground | Flown::Alone(_) => ctl.abandoned_flush_ended(None),
        }
        drop(ctl);
        self.log.wake_all();
    }
}

impl Ctl {
    /// The flush of a dropped task has ended, or was not submitted.
    fn abandoned_flush_ended(&mut self, failed: Option<Error>) {
        match failed {
            Some(error) => {
                Log::fail_flush(self, error.clone());
                self.flush_turns.end(&Err(error));
            }
            None => self.flush_turns.cancel(),
        }
    }
}

/// A flush in flight.
pub(crate) struct Flight {
    log: Arc<Log>,
    number: u64,
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
        match (&ctl.flown, self.failed.take()) {
            (Flown::Flying(number), failed) if *number == self.number => {
                ctl.flown = failed.map_or(Flown::Ground, Flown::Failed);
            }
            (Flown::Alone(number), failed) if *number == self.number => {
                ctl.flown = Flown::Ground;
                ctl.abandoned_flush_ended(failed);
                drop(ctl);
                self.log.wake_all();
            }
            _ => {}
        }
    }
}
