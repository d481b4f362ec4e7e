//! System calls that are no I/O, such as a query of a file's extents. They run in order on a thread
//! of their own, which ends when there is nothing to do.
//!
//! Invariants: K1 an accepted call runs, also if another one panics. K2 while a call is queued
//! there is a thread that takes it; if none can be started, the caller runs it. Lock rule: the
//! mutex is not held while a call runs.

use forebay_base::thread;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

/// A thread that finds nothing to do for this long ends.
const IDLE: Duration = Duration::from_secs(10);

/// A system call, as a closure.
pub(crate) type Call = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct State {
    queue: VecDeque<Call>,
    running: bool,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    work: Condvar,
}

/// The queue of calls, and the thread that runs them.
#[derive(Default)]
pub(crate) struct Calls(Arc<Shared>);

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|p| p.into_inner())
    }

    /// Takes calls until there was none for a while.
    fn work(&self) {
        let mut state = self.lock();
        loop {
            if let Some(call) = state.queue.pop_front() {
                drop(state);
                if catch_unwind(AssertUnwindSafe(call)).is_err() {
                    log::error!("a call on the thread for maps panicked");
                }
                state = self.lock();
                continue;
            }
            let wait = self.work.wait_timeout(state, IDLE).unwrap_or_else(|p| p.into_inner());
            state = wait.0;
            if wait.1.timed_out() && state.queue.is_empty() {
                state.running = false;
                return;
            }
        }
    }
}

impl Calls {
    /// Queues a call.
    pub(crate) fn call(&self, call: Call) {
        let mut state = self.0.lock();
        state.queue.push_back(call);
        if std::mem::replace(&mut state.running, true) {
            drop(state);
            return self.0.work.notify_one();
        }
        drop(state);
        let shared = self.0.clone();
        if let Err(e) = thread::spawn("forebay-map", move || shared.work()) {
            log::warn!("cannot start a thread for maps: {e}");
            let mut state = self.0.lock();
            state.running = false;
            let left = std::mem::take(&mut state.queue);
            drop(state);
            left.into_iter().for_each(|call| call());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    #[test]
    fn k1_k2_every_call_runs_in_order_also_after_a_panic() {
        let (calls, (tx, rx)) = (Calls::default(), channel());
        for number in 0..100 {
            let tx = tx.clone();
            calls.call(Box::new(move || {
                tx.send(number).unwrap();
                assert_ne!(number, 50, "the one that panics");
            }));
        }
        drop((calls, tx));
        assert_eq!(rx.iter().collect::<Vec<i32>>(), (0..100).collect::<Vec<i32>>());
    }
}
