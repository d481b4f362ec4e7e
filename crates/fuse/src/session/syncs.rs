//! Threads that make files durable. Such a request is several I/Os one behind the other; on a thread that may
//! wait they need no hand-over each, and who waits together is made durable together.
//!
//! Invariants: Y1 a thread that syncs is no reader thread and no task of the pool. Y2 there are as many as
//! were ever needed at a time, at most [`THREADS_MAX`]; beyond that a sync is a request like others, that
//! waits without a thread. Y3 a sync that panics ends neither its thread nor the count of what is under way.
//!
//! Lock: the queue's, a leaf.

use super::waiting::Owed;
use super::{Shared, spawn};
use crate::handles::Handle;
use crate::serve::Outcome;
use forebay_base::io_flusher;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// Most threads.
const THREADS_MAX: usize = 16;

/// A file that is to be made durable, and who is told.
pub(super) struct Job {
    pub handle: Arc<Handle>,
    pub data_only: bool,
    pub owed: Owed,
}

impl Job {
    fn run(self) {
        let Self { handle, data_only, owed } = self;
        let done = handle.file.sync_here(data_only);
        owed.answer(done.map_or_else(|e| Outcome::error(&e), |()| Outcome::errno(0)));
    }
}

#[derive(Default)]
struct State {
    queue: VecDeque<Job>,
    /// Threads that wait, and those of them that somebody is about to give a job.
    idle: usize,
    claimed: usize,
    threads: Vec<JoinHandle<()>>,
    closed: bool,
}

/// See the module.
#[derive(Default)]
pub(super) struct Syncs {
    state: Mutex<State>,
    work: Condvar,
}

impl Syncs {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Claims a thread for a job that is pushed next; one is started if there may be one more (Y2). False:
    /// there is none.
    pub fn claim(&self, shared: &Arc<Shared>) -> bool {
        let mut state = self.lock();
        if state.idle > state.queue.len() + state.claimed {
            state.claimed += 1;
            return true;
        }
        let number = state.threads.len();
        if state.closed || number == THREADS_MAX {
            return false;
        }
        let theirs = shared.clone();
        match spawn(&format!("forebay-sync-{number}"), move || theirs.syncs.run()) {
            Ok(thread) => {
                // Before it has come to wait: what is queued for it counts on it.
                state.idle += 1;
                state.claimed += 1;
                state.threads.push(thread);
                true
            }
            Err(e) => {
                log::warn!("{e}");
                false
            }
        }
    }

    /// Has it done by the thread that was claimed.
    pub fn push(&self, job: Job) {
        let mut state = self.lock();
        state.claimed -= 1;
        state.queue.push_back(job);
        drop(state);
        self.work.notify_one();
    }

    fn run(&self) {
        io_flusher::mark_thread();
        let mut state = self.lock();
        loop {
            if let Some(job) = state.queue.pop_front() {
                state.idle -= 1;
                drop(state);
                if catch_unwind(AssertUnwindSafe(|| job.run())).is_err() {
                    log::error!("a sync panicked and was answered EIO (Y3)");
                }
                state = self.lock();
                state.idle += 1;
            } else if state.closed {
                return;
            } else {
                state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }

    /// There is nobody any more who asks: the threads end when nothing is queued.
    pub fn stop(&self) {
        self.lock().closed = true;
        self.work.notify_all();
    }

    /// The same, and waits for them.
    pub fn close(&self) {
        self.stop();
        let threads = std::mem::take(&mut self.lock().threads);
        for thread in threads {
            if thread.join().is_err() {
                log::error!("a thread that syncs panicked");
            }
        }
    }
}
