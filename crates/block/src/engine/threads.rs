//! The engine that works on every system: a bounded pool of threads that make blocking system
//! calls.
//!
//! Invariants: T1 an accepted request runs and ends, also after the engine is dropped, and also if
//! it panics. T2 background requests never hold more than half of the workers. T3 while a request
//! is queued there is a worker that will take it: the first one starts with the pool and lives as
//! long as the pool. A submitter neither makes the blocking call nor waits: if no further worker
//! can be started, the pool has one fewer. Lock rule: the mutex is not held while a request runs or
//! ends.

use super::queue::Queue;
use super::request::{Boxed, end, guarded};
use super::space::Space;
use forebay_base::io_flusher;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

/// Most workers of one engine.
const WORKERS: usize = 16;
/// A worker that finds nothing to do for this long ends, unless it is the first.
pub(crate) const IDLE: Duration = Duration::from_secs(10);

struct State {
    queue: Queue,
    workers: usize,
    idle: usize,
    closing: bool,
}

struct Shared {
    state: Mutex<State>,
    work: Condvar,
    workers_max: usize,
    idle: Duration,
    space: Arc<Space>,
    start: Start,
}

/// Starts a thread.
type Start = fn(Box<dyn FnOnce() + Send>) -> io::Result<()>;

fn start_thread(work: Box<dyn FnOnce() + Send>) -> io::Result<()> {
    forebay_base::thread::spawn("forebay-io", work).map(drop)
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|p| p.into_inner())
    }
}

/// The pool: its queue, its workers and their limits.
pub(crate) struct Pool {
    shared: Arc<Shared>,
}

impl Pool {
    /// Errors: no thread for the first worker.
    pub(crate) fn new(space: Arc<Space>) -> io::Result<Self> {
        Self::with_workers(space, WORKERS, IDLE, start_thread)
    }

    pub(crate) fn with_workers(
        space: Arc<Space>,
        workers_max: usize,
        idle: Duration,
        start: Start,
    ) -> io::Result<Self> {
        let queue = Queue::new((workers_max / 2).max(1));
        let state = Mutex::new(State { queue, workers: 1, idle: 0, closing: false });
        let work = Condvar::new();
        let shared = Shared { state, work, workers_max, idle, space, start };
        let pool = Self { shared: Arc::new(shared) };
        pool.start_worker(true)?;
        Ok(pool)
    }

    /// Queues a request.
    pub(crate) fn submit(&self, request: Boxed) {
        let mut state = self.shared.lock();
        state.queue.push(request);
        if state.idle >= state.queue.len() || state.workers == self.shared.workers_max {
            drop(state);
            self.shared.work.notify_one();
            return;
        }
        state.workers += 1;
        drop(state);
        if let Err(e) = self.start_worker(false) {
            log::warn!("no further I/O thread: {e}");
            self.shared.lock().workers -= 1;
        }
        // Wakes an idle worker in any case: the new one may start late, or could not be started.
        self.shared.work.notify_one();
    }

    fn start_worker(&self, is_first: bool) -> io::Result<()> {
        let shared = self.shared.clone();
        (self.shared.start)(Box::new(move || work(&shared, is_first)))
    }

    /// The count of the requests that the engine has accepted and not ended.
    pub(crate) fn space(&self) -> &Arc<Space> {
        &self.shared.space
    }

    /// Ends a request that was submitted to the engine.
    pub(crate) fn end(&self, request: Boxed) {
        end(request);
        self.shared.space.leave();
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.lock().closing = true;
        self.shared.work.notify_all();
    }
}

fn work(shared: &Shared, is_first: bool) {
    io_flusher::mark_thread();
    let mut state = shared.lock();
    loop {
        if let Some(mut request) = state.queue.pick() {
            debug_assert!(
                state.queue.background_out() <= (shared.workers_max / 2).max(1),
                "T2: the rest is for requests that a caller waits for"
            );
            drop(state);
            let class = request.class();
            guarded(&mut request, (), |request| request.run());
            end(request);
            shared.space.leave();
            state = shared.lock();
            state.queue.done(class);
            if class.is_background() {
                shared.work.notify_one();
            }
            continue;
        }
        // Background requests beyond their half wait for the workers that run background requests.
        if state.closing {
            break;
        }
        state.idle += 1;
        let (next, waited) =
            shared.work.wait_timeout(state, shared.idle).unwrap_or_else(|p| p.into_inner());
        state = next;
        state.idle -= 1;
        if waited.timed_out() && state.queue.len() == 0 && !is_first {
            break;
        }
    }
    state.workers -= 1;
    debug_assert!(
        state.workers > 0 || state.queue.len() == 0,
        "T3: the last worker leaves {} requests",
        state.queue.len()
    );
}
