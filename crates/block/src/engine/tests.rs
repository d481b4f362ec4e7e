//! Engines with requests made for the test: order on a stalled device, and panics.

use super::queue::Queue;
use super::request::{Boxed, Call, Class, Next, Request};
use super::space::{CROWD, Space};
use super::threads::{IDLE, Pool};
use super::{Aio, Engine};
use forebay_base::task::{block_on, oneshot};
use forebay_base::{Error, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Where a request panics.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Panics {
    Never,
    Plan,
    Call,
    Answer,
    Run,
    End,
}

struct Fake {
    name: usize,
    class: Class,
    panics: Panics,
    file: Arc<std::fs::File>,
    /// `run` waits for it, as a call on a stalled device would.
    stalled: Option<Receiver<()>>,
    log: Arc<Mutex<Vec<usize>>>,
    result: Result<()>,
    done: Sender<(usize, bool)>,
}

impl Fake {
    fn at(&self, place: Panics) {
        assert!(self.panics != place, "on purpose");
    }
}

// SAFETY: the call names a file that is never closed before the end, and no memory.
unsafe impl Request for Fake {
    fn class(&self) -> Class {
        self.class
    }
    fn plan(&mut self) -> Next {
        self.at(Panics::Plan);
        if self.panics == Panics::Run { Next::Blocking } else { Next::Call }
    }
    fn call(&self) -> Call {
        self.at(Panics::Call);
        Call::Sync { fd: self.file.as_raw_fd(), data_only: true }
    }
    fn answer(&mut self, _: io::Result<usize>) -> Next {
        self.at(Panics::Answer);
        Next::Over
    }
    fn run(&mut self) {
        self.log.lock().unwrap().push(self.name);
        if let Some(stalled) = self.stalled.take() {
            stalled.recv().unwrap();
        }
        self.at(Panics::Run);
    }
    fn fail(&mut self, error: Error) {
        self.result = Err(error);
    }
    fn end(self: Box<Self>) {
        self.done.send((self.name, self.result.is_ok())).unwrap();
        self.at(Panics::End);
    }
}

struct Lab {
    file: Arc<std::fs::File>,
    log: Arc<Mutex<Vec<usize>>>,
    done: Sender<(usize, bool)>,
    ended: Receiver<(usize, bool)>,
}

impl Lab {
    fn new() -> Self {
        let (done, ended) = channel();
        let file = Arc::new(std::fs::File::open("/proc/self/exe").unwrap());
        Self { file, log: Arc::default(), done, ended }
    }

    fn make(&self, name: usize, class: Class, panics: Panics) -> Box<Fake> {
        let (file, log, done) = (self.file.clone(), self.log.clone(), self.done.clone());
        Box::new(Fake { name, class, panics, file, stalled: None, log, result: Ok(()), done })
    }
}

fn spawn(work: Box<dyn FnOnce() + Send>) -> io::Result<()> {
    std::thread::Builder::new().spawn(work).map(drop)
}

/// The story: where the first worker could not be started, the submitting thread, an event loop's,
/// slept and retried until it could.
#[test]
fn submit_without_new_worker_neither_waits_nor_loses() {
    thread_local! {
        static TRIES: std::cell::Cell<u32> = const { std::cell::Cell::new(0) };
    }
    let none_but_the_first = |work: Box<dyn FnOnce() + Send>| match TRIES.replace(TRIES.get() + 1) {
        0 => spawn(work),
        _ => Err(io::Error::from_raw_os_error(libc::EAGAIN)),
    };
    let (lab, space) = (Lab::new(), Arc::new(Space::default()));
    let pool = Pool::with_workers(space.clone(), 4, IDLE, none_but_the_first).unwrap();
    assert_eq!(TRIES.get(), 1, "T3: the first worker starts with the pool");
    // The first request holds the worker, so that the others find no idle one.
    let (release, stalled) = channel();
    let first = Fake { stalled: Some(stalled), ..*lab.make(0, Class::Sync, Panics::Never) };
    (0..20).for_each(|_| space.enter());
    pool.submit(Box::new(first));
    for name in 1..20 {
        let before = TRIES.get();
        pool.submit(lab.make(name, Class::Sync, Panics::Never));
        assert_eq!(TRIES.get(), before + 1, "T3: one try for each, and no wait");
    }
    release.send(()).unwrap();
    (0..20).for_each(|_| assert!(lab.ended.recv().unwrap().1));
}

/// The story: a pool began without a worker, and the first submitter slept until one could be
/// started. A pool whose first worker cannot be started is refused instead.
#[test]
fn pool_without_first_worker_is_refused() {
    let refuse = |_: Box<dyn FnOnce() + Send>| Err(io::Error::from_raw_os_error(libc::EAGAIN));
    let refused = Pool::with_workers(Arc::default(), 4, IDLE, refuse);
    let error = refused.err().expect("a pool without a thread is none");
    assert_eq!(error.raw_os_error(), Some(libc::EAGAIN));
}

/// threads.T3: a worker that is idle ends, but not the first: where no other can be started then, a
/// request would wait for ever.
#[test]
fn first_worker_after_idle_takes_request() {
    use std::sync::atomic::{AtomicU32, Ordering};
    static LEFT: AtomicU32 = AtomicU32::new(1);
    let only_one = |work: Box<dyn FnOnce() + Send>| match LEFT.swap(0, Ordering::SeqCst) {
        0 => Err(io::Error::from_raw_os_error(libc::EAGAIN)),
        _ => spawn(work),
    };
    let idle = Duration::from_millis(1);
    let (lab, space) = (Lab::new(), Arc::new(Space::default()));
    let pool = Pool::with_workers(space.clone(), 4, idle, only_one).unwrap();
    std::thread::sleep(100 * idle);
    space.enter();
    pool.submit(lab.make(0, Class::Sync, Panics::Never));
    // Not a bound on speed: a request that no worker takes never ends.
    let ended = lab.ended.recv_timeout(Duration::from_secs(30));
    assert_eq!(ended, Ok((0, true)), "T3: no worker takes it");
}

/// Both engines, by name. Without io_uring the test fails, or with `FOREBAY_ALLOW_SKIP=1` prints
/// that it skips.
fn engines() -> impl Iterator<Item = (Aio, Engine)> {
    [Aio::Threads, Aio::IoUring].into_iter().filter_map(|aio| match Engine::new(aio) {
        Ok(engine) => Some((aio, engine)),
        Err(e) => {
            let allowed = std::env::var("FOREBAY_ALLOW_SKIP").is_ok_and(|v| v == "1");
            assert!(allowed, "this test requires {aio}: {e}");
            writeln!(io::stderr(), "skipped: requires {aio}: {e}").unwrap();
            None
        }
    })
}

/// The story: a request that panicked ended the ring's thread, with all requests in flight. On the
/// pool it ended a worker that stayed counted for ever, so that the pool ran out of workers.
#[test]
fn request_panic_ends_request_and_engine_continues() {
    let places = [Panics::Plan, Panics::Call, Panics::Answer, Panics::Run, Panics::End];
    for (aio, engine) in engines() {
        let lab = Lab::new();
        let ring = engine.kind().0 == "io_uring";
        for round in 0..100 {
            let panics = places[round % places.len()];
            let class = [Class::Sync, Class::Readahead, Class::WriteBack][round % 3];
            engine.submit([lab.make(round, class, panics) as Boxed], aio);
        }
        for _ in 0..100 {
            let (name, ok) = lab.ended.recv().unwrap();
            let panics = places[name % places.len()];
            let reached = panics == Panics::Run || (ring && panics != Panics::End);
            assert_eq!(ok, !reached, "Q1: {panics:?}");
        }
        assert!(!engine.is_crowded());
        engine.submit((0..50).map(|n| lab.make(n, Class::Sync, Panics::Never) as Boxed), aio);
        assert!((0..50).all(|_| lab.ended.recv().unwrap().1), "Q2: it goes on");
    }
}

/// threads.T1: an engine that is dropped while many requests are queued completes all of them.
#[test]
fn engine_dropped_completes_accepted_requests() {
    for (aio, engine) in engines() {
        let lab = Lab::new();
        let classes = [Class::Sync, Class::Readahead, Class::WriteBack];
        let make = |n| lab.make(n, classes[n % 3], Panics::Never) as Boxed;
        engine.submit((0..500).map(make), aio);
        drop(engine);
        let mut ended: Vec<usize> = (0..500).map(|_| lab.ended.recv().unwrap().0).collect();
        ended.sort_unstable();
        assert_eq!(ended, (0..500).collect::<Vec<_>>(), "T1: each of them, once ({aio})");
    }
}

/// A request whose end submits the next one.
struct Chain {
    left: usize,
    first: Box<Fake>,
    engine: Engine,
    aio: Aio,
}

// SAFETY: as for Fake, to which it forwards every call.
unsafe impl Request for Chain {
    fn class(&self) -> Class {
        self.first.class()
    }
    fn plan(&mut self) -> Next {
        // Every other request is for blocking calls.
        if self.left.is_multiple_of(2) { self.first.plan() } else { Next::Blocking }
    }
    fn call(&self) -> Call {
        self.first.call()
    }
    fn answer(&mut self, outcome: io::Result<usize>) -> Next {
        self.first.answer(outcome)
    }
    fn run(&mut self) {
        self.first.run();
    }
    fn fail(&mut self, error: Error) {
        self.first.fail(error);
    }
    fn end(self: Box<Self>) {
        let Self { left, first, engine, aio } = *self;
        match left {
            0 => first.end(),
            _ => engine
                .clone()
                .submit([Box::new(Self { left: left - 1, first, engine, aio }) as _], aio),
        }
    }
}

/// engine.E2, uring.U3. The story: the end of a request found the ring borrowed, or a lock held, by
/// its own thread.
#[test]
fn request_end_may_submit_again() {
    for (aio, engine) in engines() {
        let lab = Lab::new();
        let chain = |name| {
            let first = lab.make(name, Class::Sync, Panics::Never);
            Box::new(Chain { left: 100, first, engine: engine.clone(), aio }) as Boxed
        };
        engine.submit((0..8).map(chain), aio);
        assert!((0..8).all(|_| lab.ended.recv().unwrap().1), "E2: from the engine's threads");
        let Some(mut queue) = engine.attach_thread() else { continue };
        engine.submit((0..8).map(chain), aio);
        let mut ended = 0;
        while ended < 8 {
            queue.flush();
            queue.reap();
            ended += lab.ended.try_iter().count();
            std::thread::yield_now();
        }
    }
}

/// A submitter's requests are in the kernel when its submission returns: they are answered although
/// it makes no call of its queue before. Those of another queue wait for `flush`.
#[test]
fn submitter_passes_requests_to_the_kernel_at_once() {
    for (aio, engine) in engines() {
        for eager in [false, true] {
            let attached = if eager { engine.attach_submitter() } else { engine.attach_thread() };
            let Some(mut queue) = attached else { continue };
            let lab = Lab::new();
            let make = |n| lab.make(n, Class::WriteBack, Panics::Never) as Boxed;
            engine.submit((0..8).map(make), aio);
            let limit = Timespec { tv_sec: if eager { 60 } else { 0 }, tv_nsec: 1 << 26 };
            let mut ready = [PollFd::from_borrowed_fd(queue.as_fd(), PollFlags::IN)];
            let answered = poll(&mut ready, Some(&limit)).expect("a wait");
            assert_eq!(answered == 1, eager, "eager: {eager}");
            let mut ended = 0;
            while ended < 8 {
                queue.reap();
                ended += lab.ended.try_iter().count();
                std::thread::yield_now();
            }
        }
    }
}

#[test]
fn reads_waiting_on_stalled_device_precede_write_back() {
    let lab = Lab::new();
    let space = Arc::new(Space::default());
    let pool = Pool::with_workers(space.clone(), 1, IDLE, spawn).unwrap();
    let submit = |request: Box<Fake>| {
        space.enter();
        pool.submit(request);
    };
    let (go, stalled) = channel();
    let mut first = lab.make(0, Class::Sync, Panics::Never);
    first.stalled = Some(stalled);
    submit(first);
    for name in 1..=30 {
        let class = match name {
            1..=10 => Class::WriteBack,
            11..=20 => Class::Readahead,
            _ => Class::Sync,
        };
        submit(lab.make(name, class, Panics::Never));
    }
    go.send(()).unwrap();
    (0..=30).for_each(|_| assert!(lab.ended.recv().unwrap().1));
    let order = lab.log.lock().unwrap().clone();
    // Write-back is picked after four readahead requests, and its rest at the end.
    let want = [0, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30];
    assert_eq!(order[..11], want, "J1");
    assert_eq!(order[11..17], [11, 12, 13, 14, 1, 15]);
    assert_eq!(order[27..], [7, 8, 9, 10]);
}

#[test]
fn write_back_is_picked_despite_constant_syncs() {
    let lab = Lab::new();
    let mut queue = Queue::new(2);
    let mut picked = Vec::new();
    (0..3).for_each(|n| queue.push(lab.make(1000 + n, Class::WriteBack, Panics::Never)));
    for name in 0..100 {
        queue.push(lab.make(name, Class::Sync, Panics::Never));
        let request = queue.pick().unwrap();
        picked.push(request.class());
        drop(request);
    }
    let back: Vec<_> = (0..100).filter(|n| picked[*n] == Class::WriteBack).collect();
    assert_eq!(back, [16, 33], "J2, J3: each 17th, and no more than two at a time");
    queue.done(Class::WriteBack);
    queue.push(lab.make(0, Class::Sync, Panics::Never));
    assert_eq!(queue.pick().unwrap().class(), Class::WriteBack);
}

/// queue.J3. The story: a picked background request that had more to do was queued again and
/// counted as done. Another one was picked before it, so more than `background_max` were issued.
#[test]
fn background_request_with_more_to_do_keeps_its_place() {
    let lab = Lab::new();
    let mut queue = Queue::new(1);
    queue.push(lab.make(0, Class::WriteBack, Panics::Never));
    let first = queue.pick().unwrap();
    queue.push(lab.make(1, Class::WriteBack, Panics::Never));
    // So many others were picked that a background request is due.
    for name in 2..20 {
        queue.push(lab.make(name, Class::Sync, Panics::Never));
        assert_eq!(queue.pick().unwrap().class(), Class::Sync);
    }
    queue.push_again(first);
    assert_eq!(queue.pick().unwrap().class(), Class::WriteBack);
    assert_eq!(queue.background_out(), 1);
    assert!(queue.pick().is_none(), "the second one was picked, too");
    queue.done(Class::WriteBack);
    assert_eq!(queue.pick().unwrap().class(), Class::WriteBack);
}

/// The story: with 8,192 requests waiting, the submitting thread carried out the next one by
/// blocking calls. That thread may be an event loop's.
#[test]
fn full_engine_queues_requests_and_reports_it() {
    let lab = Lab::new();
    for (aio, engine) in engines() {
        // Sixteen requests wait and hold all workers.
        let mut go = Vec::new();
        for name in 0..16 {
            let (send, stalled) = channel();
            let mut request = lab.make(name, Class::Sync, Panics::Never);
            request.stalled = Some(stalled);
            go.push(send);
            engine.submit([request as Boxed], Aio::Threads);
        }
        assert!(!engine.is_crowded());
        block_on(engine.wait_for_capacity());
        let count = CROWD + 500;
        let many = (0..count).map(|n| lab.make(n, Class::Sync, Panics::Never) as Boxed);
        engine.submit(many, Aio::Threads);
        assert!(engine.is_crowded());
        let (tx, rx) = oneshot();
        let waits = engine.clone();
        let waiter = std::thread::spawn(move || {
            block_on(waits.wait_for_capacity());
            tx.send(());
        });
        go.iter().for_each(|go| go.send(()).unwrap());
        (0..count + 16).for_each(|_| assert!(lab.ended.recv().unwrap().1));
        assert!(block_on(rx).is_some());
        waiter.join().unwrap();
        // As many requests for the engine under test: each ends, none on this thread.
        let many = (0..count).map(|n| lab.make(n, Class::Readahead, Panics::Never) as Boxed);
        engine.submit(many, aio);
        (0..count).for_each(|_| assert!(lab.ended.recv().unwrap().1));
    }
}
