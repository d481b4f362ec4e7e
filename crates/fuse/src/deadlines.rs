//! Deadlines of requests (`request_timeout=`). A request that exceeds its deadline is answered EIO.
//! Its operation goes on, and the late answer is dropped.
//!
//! Invariants: deadlines.T1 a request is answered once: by its operation or by its deadline.
//! deadlines.T2 an operation that changes something and ends after its deadline is reported
//! ([`Overdue::ended`]): the kernel took the request for failed, so its caches may be stale.
//! deadlines.T3 without a limit no state is kept for a request.
//!
//! Lock: one, a leaf.

use std::collections::HashMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The part of a request's message that says what the request changes; empty if it changes nothing.
pub(crate) type Message = Vec<u8>;

#[derive(Default)]
struct State {
    /// Requests without an answer, and the time at which each was read.
    open: HashMap<u64, (Instant, Message)>,
    /// Requests that were answered at their deadline and whose operation has not ended.
    late: HashMap<u64, Message>,
    /// Late operations that have ended since the last [`Deadlines::wait`].
    ended: Vec<Message>,
    closed: bool,
}

/// Result of [`Deadlines::wait`].
#[derive(Default)]
pub(crate) struct Overdue {
    /// Requests that the caller has to answer with EIO.
    pub requests: Vec<(u64, Message)>,
    /// Messages of late operations that have ended (deadlines.T2).
    pub ended: Vec<Message>,
}

/// Open requests of one connection.
#[derive(Default)]
pub(crate) struct Deadlines {
    limit: Option<Duration>,
    state: Mutex<State>,
    changed: Condvar,
}

impl Deadlines {
    /// `limit`: the longest time from reading a request to its answer; `None`: no limit.
    pub fn new(limit: Option<Duration>) -> Self {
        Self { limit, ..Self::default() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether there is a limit.
    pub fn has_limit(&self) -> bool {
        self.limit.is_some()
    }

    /// Starts the time limit of a request that was read.
    pub fn begin(&self, unique: u64, message: impl FnOnce() -> Message) {
        if self.has_limit() {
            let message = message();
            self.lock().open.insert(unique, (Instant::now(), message));
        }
    }

    /// Ends the time limit of a request. False: it was answered at its deadline, so the caller must
    /// not answer it (T1).
    pub fn may_answer(&self, unique: u64) -> bool {
        if !self.has_limit() {
            return true;
        }
        let mut state = self.lock();
        state.open.remove(&unique);
        let Some(message) = state.late.remove(&unique) else { return true };
        if !message.is_empty() {
            state.ended.push(message);
            self.changed.notify_all();
        }
        false
    }

    /// How many late operations have not ended.
    #[cfg(test)]
    pub fn late_count(&self) -> usize {
        self.lock().late.len()
    }

    /// Waits until a late operation ends, at most an eighth of the limit. Returns the requests that
    /// are over their limit then, if any, and the late operations that have ended. `None`: closed,
    /// or there is no limit.
    pub fn wait(&self) -> Option<Overdue> {
        let limit = self.limit?;
        let mut state = self.lock();
        if state.ended.is_empty() && !state.closed {
            let woken = self.changed.wait_timeout(state, limit / 8);
            state = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
        if state.closed {
            return None;
        }
        let now = Instant::now();
        let is_over = |since: &Instant| now.saturating_duration_since(*since) >= limit;
        let over: Vec<_> = state.open.extract_if(|_, (since, _)| is_over(since)).collect();
        let over: Vec<_> =
            over.into_iter().map(|(unique, (_, message))| (unique, message)).collect();
        state.late.extend(over.iter().cloned());
        Some(Overdue { requests: over, ended: std::mem::take(&mut state.ended) })
    }

    /// Ends [`Deadlines::wait`].
    pub fn close(&self) {
        self.lock().closed = true;
        self.changed.notify_all();
    }
}
