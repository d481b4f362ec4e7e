//! Threads that make files durable where no reader thread may wait. Such a request is several I/Os one behind
//! the other; on a thread that may wait they need no hand-over each. One that waits for others, as those do
//! that are made durable together, waits without a thread, and goes on here when it is woken: whoever is
//! awake answers all of them.
//!
//! Invariants: Y1 however many syncs wait, other requests are answered. Y2 there are as many threads as were
//! ever needed at a time, at most [`THREADS_MAX`]. Y3 a sync that panics ends neither its thread nor the
//! count of what is under way. Y4 what is woken when the threads have been told to end is carried on all the
//! same.
//!
//! Lock: the queue's, a leaf.

use super::thread::spawn;
use super::waiting::{Answering, Carrier, go_on};
use forebay_base::io_flusher;
use forebay_base::world::WorldRef;
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// Most threads: one that writes the log, one that flushes it, and as many that write content or answer.
const THREADS_MAX: usize = 4;

#[derive(Default)]
struct State {
    queue: VecDeque<Answering>,
    /// Threads that wait, and those of them that have been woken.
    idle: usize,
    woken: usize,
    threads: Vec<JoinHandle<()>>,
    closed: bool,
}

/// See the module.
pub(super) struct Syncs {
    state: Mutex<State>,
    work: Condvar,
    /// Takes what is woken when the threads may have ended (Y4).
    world: WorldRef,
}

impl Carrier for Syncs {
    fn carry_on(self: Arc<Self>, request: Answering) {
        self.push(request);
    }
}

impl Syncs {
    /// Without threads yet.
    pub fn new(world: &WorldRef) -> Arc<Self> {
        let (state, work) = Default::default();
        Arc::new(Self { state, work, world: world.clone() })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sees to it that there is a thread. False: there is none to be had.
    pub fn ready(self: &Arc<Self>) -> bool {
        let mut state = self.lock();
        if state.threads.is_empty() && !state.closed {
            self.start(&mut state);
        }
        !state.threads.is_empty() && !state.closed
    }

    /// Starts a thread.
    fn start(self: &Arc<Self>, state: &mut State) {
        let theirs = self.clone();
        let name = format!("forebay-sync-{}", state.threads.len());
        match spawn(&name, move || theirs.run()) {
            Ok(thread) => state.threads.push(thread),
            Err(e) => log::warn!("{e}"),
        }
    }

    /// Has a sync carried on by a thread.
    pub fn push(self: &Arc<Self>, sync: Answering) {
        let mut state = self.lock();
        if state.closed {
            drop(state);
            // Y4: they may have ended.
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
                // Y3: it does not unwind.
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
