//! The engine that works everywhere: a bounded pool of threads that make blocking system calls.
//!
//! Invariants: T1 a job that was accepted runs, also after the engine is dropped. T2 BACKGROUND
//! jobs go after all others, but each [`TURN`]th pick is theirs if they wait, and they never
//! hold more than half of the workers. T3 the pool can always make progress: if no thread can
//! be started, the submitter runs the job.
//! Lock rule: the mutex is not held while a job runs.

use crate::bio::BioFlags;
use crate::file::Job;
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

/// Most workers of one engine.
const WORKERS: usize = 16;
/// A waiting background job is picked after this many others.
const TURN: u32 = 16;
/// A worker that finds nothing to do for this long ends.
const IDLE: Duration = Duration::from_secs(10);

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    background: VecDeque<Job>,
    workers: usize,
    idle: usize,
    background_runs: usize,
    /// Picks since the last background job.
    picks: u32,
    closing: bool,
}

impl State {
    /// The next job, and whether it is a background one (T2).
    fn pick(&mut self) -> Option<(Job, bool)> {
        let may = self.background_runs < WORKERS / 2 && !self.background.is_empty();
        if may && (self.jobs.is_empty() || self.picks >= TURN) {
            self.picks = 0;
            self.background_runs += 1;
            return self.background.pop_front().map(|job| (job, true));
        }
        self.picks += 1;
        self.jobs.pop_front().map(|job| (job, false))
    }
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    work: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|p| p.into_inner())
    }
}

/// See the module.
#[derive(Default)]
pub(crate) struct Pool {
    shared: Arc<Shared>,
}

impl Pool {
    /// Queues a job.
    pub(crate) fn submit(&self, job: Job) {
        let mut state = self.shared.lock();
        if job.flags().contains(BioFlags::BACKGROUND) {
            state.background.push_back(job);
        } else {
            state.jobs.push_back(job);
        }
        let queued = state.jobs.len() + state.background.len();
        if state.idle >= queued || state.workers == WORKERS {
            drop(state);
            self.shared.work.notify_one();
            return;
        }
        state.workers += 1;
        drop(state);
        self.start_worker();
    }

    fn start_worker(&self) {
        let shared = self.shared.clone();
        let name = "forebay-io".to_string();
        let started = std::thread::Builder::new().name(name).spawn(move || work(&shared));
        if let Err(e) = started {
            log::warn!("cannot start an I/O thread: {e}");
            let mut state = self.shared.lock();
            state.workers -= 1;
            if state.workers == 0 {
                let next = state.pick();
                drop(state);
                if let Some((job, background)) = next {
                    job.run();
                    self.shared.lock().background_runs -= usize::from(background);
                }
            }
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.lock().closing = true;
        self.shared.work.notify_all();
    }
}

fn work(shared: &Shared) {
    let mut state = shared.lock();
    loop {
        if let Some((job, background)) = state.pick() {
            drop(state);
            job.run();
            state = shared.lock();
            if background {
                state.background_runs -= 1;
                shared.work.notify_one();
            }
            continue;
        }
        // Background jobs above their share are left to the workers that run the others.
        if state.closing {
            break;
        }
        state.idle += 1;
        let (next, waited) =
            shared.work.wait_timeout(state, IDLE).unwrap_or_else(|p| p.into_inner());
        state = next;
        state.idle -= 1;
        if waited.timed_out() && state.jobs.is_empty() && state.background.is_empty() {
            break;
        }
    }
    state.workers -= 1;
}
