//! Requests that are not answered in time (`request_timeout=`): they are answered EIO, and what comes of them
//! later is dropped.
//!
//! Invariants: T1 a request is answered once: by its handler or by its deadline. T2 a late answer that told
//! the kernel of an inode or an opening is taken back, as one that the kernel did not want. T3 without a limit
//! nothing is kept of a request.
//!
//! Lock: one, a leaf.

use std::collections::{HashMap, HashSet};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

#[derive(Default)]
struct State {
    /// Requests that wait for their answer, and since when.
    open: HashMap<u64, Instant>,
    /// Requests that were answered by their deadline, and not by their handler yet.
    late: HashSet<u64>,
    closed: bool,
}

/// See the module.
#[derive(Default)]
pub(crate) struct Deadlines {
    limit: Option<Duration>,
    state: Mutex<State>,
    closed: Condvar,
}

impl Deadlines {
    /// With a limit, or none.
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

    /// A request was read.
    pub fn begin(&self, unique: u64) {
        if self.has_limit() {
            self.lock().open.insert(unique, Instant::now());
        }
    }

    /// A request is about to be answered. False: its deadline has answered it (T1).
    pub fn may_answer(&self, unique: u64) -> bool {
        if !self.has_limit() {
            return true;
        }
        let mut state = self.lock();
        state.open.remove(&unique).is_some() || !state.late.remove(&unique)
    }

    /// Whether handlers are at work on requests whose time is over.
    pub fn has_late(&self) -> bool {
        self.has_limit() && !self.lock().late.is_empty()
    }

    /// Waits until requests are over their limit, and gives them: the caller answers them. None: closed.
    pub fn wait(&self) -> Option<Vec<u64>> {
        let limit = self.limit?;
        let mut state = self.lock();
        loop {
            if state.closed {
                return None;
            }
            let now = Instant::now();
            let is_over = |since: &Instant| now.saturating_duration_since(*since) >= limit;
            let over: Vec<u64> =
                state.open.iter().filter(|(_, t)| is_over(t)).map(|(n, _)| *n).collect();
            if !over.is_empty() {
                for unique in &over {
                    state.open.remove(unique);
                    state.late.insert(*unique);
                }
                return Some(over);
            }
            let woken = self.closed.wait_timeout(state, limit / 8);
            state = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Ends [`Deadlines::wait`].
    pub fn close(&self) {
        self.lock().closed = true;
        self.closed.notify_all();
    }
}
