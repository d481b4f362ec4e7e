//! The thread pool on which the real world ([`crate::world::RealWorld`]) runs background tasks:
//! thousands of tasks, [`THREADS_MAX`] threads at most, started as they are needed.
//!
//! ```text
//!             wake            a thread takes it        ready
//!   IDLE ───────────▶ QUEUED ───────────────▶ RUNNING ──────▶ DONE
//!    ▲                  ▲                      │   │ wake
//!    └──── pending ─────┼──────────────────────┘   ▼
//!                       └──────── pending ────── WOKEN
//! ```
//! Invariants: K1 a task in the queue is QUEUED, and is there once. K2 a wake that comes while the
//! task runs is not lost: unless it has ended, it runs again. K3 a future is polled by one thread
//! at a time, and never after it ended. K4 while a task is queued there is a thread that will take
//! it. K5 a task that panics ends; the thread and the other tasks go on.
//!
//! Lock rule: the queue's lock is innermost; no task, waker or destructor runs while it is held.

use crate::io_flusher;
use crate::task::{BoxFuture, OnPool};
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

/// Most threads of one pool. A pool has no more of them than there are processors, but may always
/// have 2.
pub const THREADS_MAX: usize = 4;
/// A thread that finds nothing to do for this long ends.
const IDLE_LIMIT: Duration = Duration::from_secs(10);

const IDLE: u8 = 0;
const QUEUED: u8 = 1;
const RUNNING: u8 = 2;
const WOKEN: u8 = 3;
const DONE: u8 = 4;

#[derive(Default)]
struct State {
    queue: VecDeque<Arc<Task>>,
    /// For each number of a thread (part of its name): whether such a thread runs.
    running: [bool; THREADS_MAX],
    threads: usize,
    idle: usize,
    closing: bool,
}

struct Shared {
    state: Mutex<State>,
    work: Condvar,
    threads_max: usize,
}

struct Task {
    name: String,
    state: AtomicU8,
    /// `None` once the task has ended. Only the thread that runs the task locks it (pool.K3).
    future: Mutex<Option<BoxFuture<'static, ()>>>,
    pool: Arc<Shared>,
}

/// The pool of one world.
pub(crate) struct TaskPool(Arc<Shared>);

impl TaskPool {
    pub(crate) fn new() -> Self {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let threads_max = processors.clamp(2, THREADS_MAX);
        Self(Arc::new(Shared { state: Mutex::default(), work: Condvar::new(), threads_max }))
    }

    /// Runs a task until it ends. `name` shows in messages.
    pub(crate) fn spawn(&self, name: &str, future: BoxFuture<'static, ()>) {
        let task = Task {
            name: name.to_string(),
            state: AtomicU8::new(QUEUED),
            future: Mutex::new(Some(future)),
            pool: self.0.clone(),
        };
        Shared::push(&self.0, Arc::new(task));
    }
}

impl Drop for TaskPool {
    fn drop(&mut self) {
        // Remaining tasks still run; idle threads end at once.
        self.0.lock().closing = true;
        self.0.work.notify_all();
    }
}

impl Wake for Task {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let next = |state| match state {
            IDLE => Some(QUEUED),
            RUNNING => Some(WOKEN),
            _ => None,
        };
        let before = self.state.fetch_update(Ordering::AcqRel, Ordering::Acquire, next);
        if before == Ok(IDLE) {
            Shared::push(&self.pool, self.clone());
        }
    }
}

impl Task {
    /// Polls the task once. True if it was woken meanwhile: the caller has to queue it again.
    fn run(self: &Arc<Self>) -> bool {
        let before = self.state.swap(RUNNING, Ordering::AcqRel);
        assert_eq!(before, QUEUED, "K1: a task in the queue is QUEUED");
        let mut future = self.future.try_lock().expect("K3: one thread polls a task");
        let body = future.as_mut().expect("K3: a task that ended is never queued");
        let waker = Waker::from(self.clone());
        let poll = || body.as_mut().poll(&mut Context::from_waker(&waker));
        match catch_unwind(AssertUnwindSafe(poll)) {
            Ok(Poll::Pending) => {}
            Ok(Poll::Ready(())) => return self.end(future),
            Err(_) => {
                log::error!("background task `{}` panicked and has ended (K5)", self.name);
                return self.end(future);
            }
        }
        drop(future);
        let idle = self.state.compare_exchange(RUNNING, IDLE, Ordering::AcqRel, Ordering::Acquire);
        if idle.is_ok() {
            return false;
        }
        self.state.store(QUEUED, Ordering::Release);
        true
    }

    fn end(&self, mut future: MutexGuard<'_, Option<BoxFuture<'static, ()>>>) -> bool {
        self.state.store(DONE, Ordering::Release);
        let ended = future.take();
        drop(future);
        if catch_unwind(AssertUnwindSafe(|| drop(ended))).is_err() {
            log::error!("background task `{}` panicked while it was dropped", self.name);
        }
        false
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues a task. Wakes an idle thread or starts one, unless all are busy (pool.K4).
    fn push(this: &Arc<Self>, task: Arc<Task>) {
        let mut state = this.lock();
        state.queue.push_back(task);
        if state.idle >= state.queue.len() || state.threads == this.threads_max {
            drop(state);
            this.work.notify_one();
            return;
        }
        let number = state.take_number();
        drop(state);
        start(this, number);
    }

    /// Returns the next task, waiting for one; `None` when the thread has to end. `again`, a task
    /// that was woken while this thread ran it, goes to the end of the queue first.
    fn next(&self, again: Option<Arc<Task>>, number: usize) -> Option<Arc<Task>> {
        let mut state = self.lock();
        state.queue.extend(again);
        loop {
            if let Some(task) = state.queue.pop_front() {
                return Some(task);
            }
            let mut ends = state.closing;
            if !ends {
                state.idle += 1;
                let waited = self.work.wait_timeout(state, IDLE_LIMIT);
                let (woken, waited) = waited.unwrap_or_else(PoisonError::into_inner);
                state = woken;
                state.idle -= 1;
                ends = waited.timed_out();
            }
            if ends && state.queue.is_empty() {
                state.give_number(number);
                return None;
            }
        }
    }
}

impl State {
    fn take_number(&mut self) -> usize {
        let free = self.running.iter().position(|runs| !runs);
        let number = free.expect("fewer threads run than there are numbers");
        self.running[number] = true;
        self.threads += 1;
        number
    }

    fn give_number(&mut self, number: usize) {
        self.running[number] = false;
        self.threads -= 1;
    }
}

/// Starts a thread. If the system refuses, the existing threads serve the queue. Without any thread
/// it retries until one starts (pool.K4).
fn start(shared: &Arc<Shared>, number: usize) {
    let mut pause = Duration::from_millis(1);
    loop {
        let theirs = shared.clone();
        let run = move || work(&theirs, number);
        let Err(e) = crate::thread::spawn(format!("forebay-bg-{number}"), run) else {
            return;
        };
        let mut state = shared.lock();
        if state.threads > 1 {
            log::warn!("no further thread for background tasks: {e}");
            state.give_number(number);
            return;
        }
        drop(state);
        log::error!("no thread for background tasks, trying again in {pause:?}: {e}");
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_secs(1));
    }
}

fn work(shared: &Shared, number: usize) {
    io_flusher::mark_thread();
    let _inside = OnPool::enter();
    let mut again = None;
    while let Some(task) = shared.next(again.take(), number) {
        again = task.run().then_some(task);
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;
    use crate::task::{block_on, oneshot, yield_now};

    #[test]
    fn task_panic_leaves_other_tasks_running() {
        let pool = TaskPool::new();
        for _ in 0..2 * THREADS_MAX {
            pool.spawn("bad", Box::pin(async { panic!("on purpose") }));
        }
        let (tx, rx) = oneshot();
        let good = async move {
            for _ in 0..100 {
                yield_now().await;
            }
            tx.send(7);
        };
        pool.spawn("good", Box::pin(good));
        assert_eq!(block_on(rx), Some(7), "K4, K5: a thread is there, and goes on");
    }

    /// The task wakes itself within its own poll, and another thread wakes it during a poll
    /// (pool.K2).
    #[test]
    fn task_woken_while_running_runs_again() {
        let pool = TaskPool::new();
        let (tx, rx) = oneshot();
        let (mut polls, mut tx) = (0, Some(tx));
        let task = std::future::poll_fn(move |cx| {
            polls += 1;
            match polls {
                1 => cx.waker().wake_by_ref(),
                2 => {
                    let waker = cx.waker().clone();
                    std::thread::spawn(move || waker.wake()).join().expect("it wakes");
                }
                _ => tx.take().expect("it ends once").send(polls),
            }
            if polls > 2 { Poll::Ready(()) } else { Poll::Pending }
        });
        pool.spawn("woken", Box::pin(task));
        assert_eq!(block_on(rx), Some(3), "K2: a wake is lost");
    }

    #[test]
    fn blocking_task_holds_one_thread() {
        let pool = TaskPool::new();
        let (blocked, hold) = std::sync::mpsc::channel::<()>();
        pool.spawn(
            "blocks",
            Box::pin(async move {
                let _ = hold.recv();
            }),
        );
        let (tx, rx) = oneshot();
        pool.spawn("other", Box::pin(async move { tx.send(1) }));
        assert_eq!(block_on(rx), Some(1));
        drop(blocked);
    }

    #[test]
    fn tasks_outlive_the_pool() {
        let pool = TaskPool::new();
        let (go, gone) = oneshot::<()>();
        let (tx, rx) = oneshot();
        let late = async move {
            gone.await;
            tx.send(3);
        };
        pool.spawn("late", Box::pin(late));
        drop(pool);
        go.send(());
        assert_eq!(block_on(rx), Some(3));
    }
}
