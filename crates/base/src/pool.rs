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
//! it. K5 a task that panics ends; the thread and the other tasks go on. K6 a thread with a queue
//! of its own for requests runs the completions itself, after each poll and while it waits for
//! work. What tasks submit while they are polled is answered there. K7 when the pool closes, each
//! thread that waits is woken: the one that takes the wake passes it on before it ends.
//!
//! Lock rule: the queue's lock is innermost; no task, waker or destructor runs while it is held.

use crate::io_flusher;
use crate::task::{BoxFuture, LocalQueue, OnPool};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
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
    /// Threads that take a task next: they wait for one, or run completions.
    idle: usize,
    /// Those of them that wait for [`Queues::wake`].
    waiting: usize,
    closing: bool,
}

struct Shared {
    state: Mutex<State>,
    work: Condvar,
    threads_max: usize,
    queues: Option<Queues>,
    name: &'static str,
}

/// Gives the calling thread a queue of its own for its requests, if it can have one.
pub type Attach = Box<dyn Fn() -> Option<Box<dyn LocalQueue>> + Send + Sync>;

/// For a pool whose threads have queues of their own.
struct Queues {
    attach: Attach,
    /// Readable when there is work: a thread that waits for its queue waits for this, too.
    wake: OwnedFd,
}

impl Queues {
    fn notify(&self) {
        // Fails only if the counter is at its maximum, and then the descriptor is readable as well.
        let _ = rustix::io::write(&self.wake, &[1; 8]);
    }

    fn clear(&self) {
        // Fails only if the counter is 0, and then the descriptor is unreadable as well.
        let _ = rustix::io::read(&self.wake, &mut [0u8; 8]);
    }

    /// Waits for work, for something to reap, or for [`IDLE_LIMIT`]; whether that is over.
    fn wait(&self, queue: Option<&dyn LocalQueue>) -> bool {
        let wake = self.wake.as_fd();
        let other = queue.map_or(wake, LocalQueue::as_fd);
        let mut fds = [wake, other].map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
        let limit = Timespec { tv_sec: IDLE_LIMIT.as_secs() as i64, tv_nsec: 0 };
        let waited = poll(&mut fds, Some(&limit));
        if fds[0].revents().contains(PollFlags::IN) {
            self.clear();
        }
        matches!(waited, Ok(0))
    }
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
        Self::of("forebay-bg", None)
    }

    /// A pool whose threads have queues of their own, for the requests of their tasks.
    pub(crate) fn with_queues(name: &'static str, attach: Attach) -> io::Result<Self> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self::of(name, Some(Queues { attach, wake })))
    }

    fn of(name: &'static str, queues: Option<Queues>) -> Self {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let threads_max = processors.clamp(2, THREADS_MAX);
        let (state, work) = (Mutex::default(), Condvar::new());
        Self(Arc::new(Shared { state, work, threads_max, queues, name }))
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
        self.0.queues.iter().for_each(Queues::notify);
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
            // A thread that runs completions looks at the queue afterwards.
            let is_wanted = state.waiting > 0 && state.idle - state.waiting < state.queue.len();
            drop(state);
            match &this.queues {
                Some(queues) if is_wanted => queues.notify(),
                Some(_) => {}
                None => this.work.notify_one(),
            }
            return;
        }
        let number = state.take_number();
        drop(state);
        start(this, number);
    }

    /// Returns the next task, waiting for one; `None` when the thread has to end. `again`, a task
    /// that was woken while this thread ran it, goes to the end of the queue first.
    fn next(
        &self,
        again: Option<Arc<Task>>,
        number: usize,
        queue: Option<&mut Box<dyn LocalQueue>>,
    ) -> Option<Arc<Task>> {
        if let Some(queues) = &self.queues {
            return self.next_or_reap(again, number, queues, queue);
        }
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

    /// As [`Shared::next`], and runs the completions of the thread's requests meanwhile.
    fn next_or_reap(
        &self,
        again: Option<Arc<Task>>,
        number: usize,
        queues: &Queues,
        mut queue: Option<&mut Box<dyn LocalQueue>>,
    ) -> Option<Arc<Task>> {
        let mut state = self.lock();
        state.queue.extend(again);
        let mut ends = false;
        loop {
            // What the completions wake needs no other thread: this one is idle meanwhile.
            state.idle += 1;
            drop(state);
            if let Some(queue) = &mut queue {
                queue.reap();
            }
            state = self.lock();
            state.idle -= 1;
            if let Some(task) = state.queue.pop_front() {
                let is_wanted = state.waiting > 0 && !state.queue.is_empty();
                drop(state);
                if is_wanted {
                    queues.notify();
                }
                return Some(task);
            }
            if ends || state.closing {
                state.give_number(number);
                // This thread may have taken the wake of others that have to end, too.
                let others_wait = state.closing && state.waiting > 0;
                drop(state);
                if others_wait {
                    queues.notify();
                }
                return None;
            }
            (state.idle, state.waiting) = (state.idle + 1, state.waiting + 1);
            drop(state);
            ends = queues.wait(queue.as_deref().map(|queue| &**queue));
            state = self.lock();
            (state.idle, state.waiting) = (state.idle - 1, state.waiting - 1);
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
        let Err(e) = crate::thread::spawn(format!("{}-{number}", shared.name), run) else {
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
    let mut queue = shared.queues.as_ref().and_then(|queues| (queues.attach)());
    let mut again = None;
    while let Some(task) = shared.next(again.take(), number, queue.as_mut()) {
        again = task.run().then_some(task);
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;
    use crate::task::{OneSender, block_on, oneshot, yield_now};
    use std::os::fd::BorrowedFd;
    use std::thread::ThreadId;

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

    /// A queue without a kernel: what is put into it is answered at the next `reap`.
    #[derive(Clone)]
    struct Fake {
        ready: Arc<OwnedFd>,
        waiting: Arc<Mutex<Vec<OneSender<ThreadId>>>>,
    }

    impl Fake {
        fn new() -> Self {
            let ready = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).expect("one");
            Self { ready: Arc::new(ready), waiting: Arc::default() }
        }

        fn put(&self, request: OneSender<ThreadId>) {
            self.waiting.lock().expect("no panic").push(request);
            rustix::io::write(&*self.ready, &[1; 8]).expect("a signal");
        }
    }

    /// A thread's end of it. What is in progress when the thread ends is answered then.
    struct Attached {
        queue: Fake,
        /// Nothing is answered before.
        stalled: bool,
    }

    impl Attached {
        fn answer(&self) -> usize {
            let answered = std::mem::take(&mut *self.queue.waiting.lock().expect("no panic"));
            let thread = std::thread::current().id();
            let count = answered.len();
            answered.into_iter().for_each(|request| request.send(thread));
            count
        }
    }

    impl LocalQueue for Attached {
        fn as_fd(&self) -> BorrowedFd<'_> {
            self.queue.ready.as_fd()
        }
        fn flush(&mut self) {}
        fn reap(&mut self) -> usize {
            let _ = rustix::io::read(&*self.queue.ready, &mut [0u8; 8]);
            if self.stalled { 0 } else { self.answer() }
        }
    }

    impl Drop for Attached {
        fn drop(&mut self) {
            self.answer();
        }
    }

    fn pool_on(queue: &Fake, stalled: bool) -> TaskPool {
        let queue = queue.clone();
        let attach = move || {
            let queue = queue.clone();
            Some(Box::new(Attached { queue, stalled }) as Box<dyn LocalQueue>)
        };
        TaskPool::with_queues("test", Box::new(attach)).expect("an eventfd")
    }

    /// K6: requests are answered on the task's own thread, also while it waits for work.
    #[test]
    fn thread_with_a_queue_reaps_it() {
        for late in [false, true] {
            // A pool for each: with a second thread the task may run on either.
            let queue = Fake::new();
            let pool = pool_on(&queue, false);
            let (tx, rx) = oneshot();
            let (asks, answer) = oneshot();
            let (queue, from) = (queue.clone(), std::thread::current().id());
            let (go, gone) = oneshot::<()>();
            let task = async move {
                if !late {
                    queue.put(asks);
                } else {
                    // Put in by another thread, while this one waits for work.
                    std::thread::spawn(move || {
                        let _ = block_on(gone);
                        queue.put(asks);
                    });
                }
                let thread = answer.await.expect("an answer");
                tx.send((thread, std::thread::current().id(), from));
            };
            pool.spawn("asks", Box::pin(task));
            std::thread::sleep(Duration::from_millis(if late { 50 } else { 0 }));
            go.send(());
            let (reaped, polled, from) = block_on(rx).expect("K6: it is answered");
            assert!(reaped == polled && reaped != from, "K6: on its own thread");
        }
    }

    /// K4: the pool closes while a request is in progress. Its thread ends and the queue with it,
    /// which answers the request; the task runs on another thread.
    #[test]
    fn request_in_progress_when_the_pool_closes_is_answered() {
        let queue = Fake::new();
        let pool = pool_on(&queue, true);
        let ((asks, answer), (tx, rx), (begins, begun)) = (oneshot(), oneshot(), oneshot::<()>());
        let task = async move {
            queue.put(asks);
            begins.send(());
            tx.send(answer.await.map(|by| by != std::thread::current().id()));
        };
        pool.spawn("asks", Box::pin(task));
        block_on(begun).expect("it runs");
        drop(pool);
        assert_eq!(block_on(rx).flatten(), Some(true), "K4: it is answered, and goes on");
    }

    /// The story: two threads waited when the pool closed, and one took the wake of both. The other
    /// slept on for [`IDLE_LIMIT`], with its queue.
    #[test]
    fn ending_thread_passes_the_wake_of_closing_on() {
        let pool = TaskPool::with_queues("test", Box::new(|| None)).expect("an eventfd");
        let shared = pool.0.clone();
        let number = shared.lock().take_number();
        // The other one.
        (shared.lock().idle, shared.lock().waiting) = (1, 1);
        drop(pool);
        let queues = shared.queues.as_ref().expect("it has them");
        rustix::io::read(&queues.wake, &mut [0u8; 8]).expect("K7: closing wakes a thread");
        assert!(shared.next(None, number, None).is_none(), "the pool is closed");
        rustix::io::read(&queues.wake, &mut [0u8; 8]).expect("K7: the other thread is woken");
    }

    /// Threads that get no queue run tasks all the same, and are woken (K2, K4).
    #[test]
    fn pool_whose_threads_get_no_queue_works() {
        let pool = TaskPool::with_queues("test", Box::new(|| None)).expect("an eventfd");
        let mut all = Vec::new();
        for n in 0..3 * THREADS_MAX {
            let (go, gone) = oneshot::<()>();
            let (tx, rx) = oneshot();
            pool.spawn(
                "waits",
                Box::pin(async move {
                    gone.await;
                    tx.send(n);
                }),
            );
            all.push((go, rx));
        }
        for (n, (go, rx)) in all.into_iter().enumerate() {
            go.send(());
            assert_eq!(block_on(rx), Some(n));
        }
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
