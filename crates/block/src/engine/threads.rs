//! The engine that works everywhere: a bounded pool of threads that make blocking system calls.
//!
//! Invariants: T1 a request that was accepted runs and ends, also after the engine is dropped, and
//! also if it panics. T2 background requests never hold more than half of the workers. T3 while
//! something is queued there is a worker that will take it, or the thread that submits tries to
//! start one until it can: a submitter never makes the blocking call itself.
//! Lock rule: the mutex is not held while a request runs or ends.

use super::queue::Queue;
use super::request::{Boxed, end, guarded};
use super::room::Room;
use forebay_base::io_flusher;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

/// Most workers of one engine.
const WORKERS: usize = 16;
/// A worker that finds nothing to do for this long ends.
const IDLE: Duration = Duration::from_secs(10);

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
    room: Arc<Room>,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|p| p.into_inner())
    }
}

/// See the module.
pub(crate) struct Pool {
    shared: Arc<Shared>,
}

impl Pool {
    pub(crate) fn new(room: Arc<Room>) -> Self {
        Self::with_workers(room, WORKERS)
    }

    pub(crate) fn with_workers(room: Arc<Room>, workers_max: usize) -> Self {
        let queue = Queue::new((workers_max / 2).max(1));
        let state = Mutex::new(State { queue, workers: 0, idle: 0, closing: false });
        Self { shared: Arc::new(Shared { state, work: Condvar::new(), workers_max, room }) }
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
        self.start_worker();
    }

    fn start_worker(&self) {
        let mut pause = Duration::from_millis(1);
        loop {
            let shared = self.shared.clone();
            let name = "forebay-io".to_string();
            let Err(e) = std::thread::Builder::new().name(name).spawn(move || work(&shared)) else {
                return;
            };
            let mut state = self.shared.lock();
            if state.workers > 1 {
                log::warn!("no further I/O thread: {e}");
                state.workers -= 1;
                return;
            }
            drop(state);
            log::error!("no I/O thread, trying again in {pause:?} (T3): {e}");
            std::thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_secs(1));
        }
    }

    /// The count of what the engine has accepted.
    pub(crate) fn room(&self) -> &Arc<Room> {
        &self.shared.room
    }

    /// Ends a request that was submitted to the engine.
    pub(crate) fn end(&self, request: Boxed) {
        end(request);
        self.shared.room.leave();
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.lock().closing = true;
        self.shared.work.notify_all();
    }
}

fn work(shared: &Shared) {
    io_flusher::mark_thread();
    let mut state = shared.lock();
    loop {
        if let Some(mut request) = state.queue.pick() {
            debug_assert!(
                state.queue.background_out() <= (shared.workers_max / 2).max(1),
                "T2: the rest is for requests that somebody waits for"
            );
            drop(state);
            let class = request.class();
            guarded(&mut request, (), |request| request.run());
            end(request);
            shared.room.leave();
            state = shared.lock();
            state.queue.done(class);
            if class.is_background() {
                shared.work.notify_one();
            }
            continue;
        }
        // Background requests above their share are left to the workers that run the others.
        if state.closing {
            break;
        }
        state.idle += 1;
        let (next, waited) =
            shared.work.wait_timeout(state, IDLE).unwrap_or_else(|p| p.into_inner());
        state = next;
        state.idle -= 1;
        if waited.timed_out() && state.queue.len() == 0 {
            break;
        }
    }
    state.workers -= 1;
    debug_assert!(
        state.workers > 0 || state.queue.len() == 0,
        "T3: the last worker leaves {} requests behind",
        state.queue.len()
    );
}
