//! Threads that carry out syncs when no reader thread may wait. A sync is several I/Os in a row,
//! and on a thread that may wait it needs no hand-over for each of them. A sync that waits for
//! other syncs, as in a group commit, leaves its thread. When it is woken a sync thread continues
//! it, so one thread that is awake answers the whole group.
//!
//! Invariants: Y1 however many syncs wait, other requests are answered. Y2 as many threads exist as
//! were ever needed at a time, at most [`THREADS_MAX`]. Y3 a sync that panics ends neither its
//! thread nor the count of requests. Y4 a sync that is woken after the threads were told to end is
//! carried on by a background task.
//!
//! Lock: the queue's, a leaf.

use super::thread::spawn;
use super::waiting::{Answering, Carrier, go_on};
use forebay_base::io_flusher;
use forebay_base::world::WorldRef;
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// Most threads: one writes the log, one flushes it, and two write content or answer.
const THREADS_MAX: usize = 4;

#[derive(Default)]
struct State {
    queue: VecDeque<Answering>,
    /// Threads that wait for work, and how many of these were woken.
    idle: usize,
    woken: usize,
    threads: Vec<JoinHandle<()>>,
    closed: bool,
}

/// The queue of syncs and its threads.
pub(super) struct Syncs {
    state: Mutex<State>,
    work: Condvar,
    /// Takes syncs that are woken after the threads may have ended (Y4).
    world: WorldRef,
}

impl Carrier for Syncs {
    fn carry_on(self: Arc<Self>, request: Answering) {
        self.push(request);
    }
}

impl Syncs {
    /// An empty queue without threads.
    pub fn new(world: &WorldRef) -> Arc<Self> {
        let (state, work) = Default::default();
        Arc::new(Self { state, work, world: world.clone() })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a thread if there is none. False: none could be started.
    pub fn ready(self: &Arc<Self>) -> bool {
        let mut state = self.lock();
        if state.threads.is_empty() && !state.closed {
            self.start(&mut state);
        }
        !state.threads.is_empty() && !state.closed
    }

    fn start(self: &Arc<Self>, state: &mut State) {
        let theirs = self.clone();
        let name = format!("forebay-sync-{}", state.threads.len());
        match spawn(&name, move || theirs.run()) {
            Ok(thread) => state.threads.push(thread),
            Err(e) => log::warn!("{e}"),
        }
    }

    /// Queues a sync for a thread.
    pub fn push(self: &Arc<Self>, sync: Answering) {
        let mut state = self.lock();
        if state.closed {
            drop(state);
            // The threads may have ended (Y4).
            return self.world.spawn("fuse sync", sync);
        }
        state.queue.push_back(sync);
        if state.idle > state.woken {
            state.woken += 1;
            drop(state);
            self.work.notify_one();
        } else if state.threads.len() < THREADS_MAX {
            self.start(&mut state);
        }
    }

    fn run(self: &Arc<Self>) {
        io_flusher::mark_thread();
        let mut state = self.lock();
        loop {
            if let Some(sync) = state.queue.pop_front() {
                drop(state);
                // `go_on` catches panics (Y3).
                go_on(sync, self.clone());
                state = self.lock();
            } else if state.closed {
                return;
            } else {
                state.idle += 1;
                state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
                state.idle -= 1;
                state.woken = state.woken.saturating_sub(1);
            }
        }
    }

    /// The threads end when the queue is empty: no further request comes.
    pub fn stop(&self) {
        self.lock().closed = true;
        self.work.notify_all();
    }

    /// [`Syncs::stop`], and waits for the threads.
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
