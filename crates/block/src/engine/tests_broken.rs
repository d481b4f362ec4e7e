//! Rings that fail while requests are in progress. The failure is real: the ring's descriptor is
//! replaced by that of another file, so that the kernel refuses each further call.

use super::request::{Boxed, Call, Class, Next, Request};
use super::ring::Remains;
use super::space::Space;
use super::threads::{IDLE, Pool};
use super::{Aio, Engine};
use forebay_base::{Error, Result};
use rustix::event::{PollFd, PollFlags, poll};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

/// Operation of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    /// Reads from a pipe that is never written: in progress in the kernel until it is cancelled.
    Stuck,
    /// A flush, which is over at once.
    Quick,
}

struct One {
    name: usize,
    kind: Kind,
    pipe: Arc<(OwnedFd, OwnedFd)>,
    file: Arc<File>,
    bytes: Box<[u8; 16]>,
    list: Box<libc::iovec>,
    result: Result<()>,
    done: Sender<(usize, Result<()>)>,
}

// SAFETY: the list points to memory that the request owns; results leave only through the channel.
unsafe impl Send for One {}

// SAFETY: descriptors, list and memory live as long as the request.
unsafe impl Request for One {
    fn class(&self) -> Class {
        Class::Sync
    }
    fn plan(&mut self) -> Next {
        self.list.iov_base = self.bytes.as_mut_ptr().cast();
        self.list.iov_len = self.bytes.len();
        Next::Call
    }
    fn call(&self) -> Call {
        match self.kind {
            Kind::Stuck => {
                let fd = self.pipe.0.as_raw_fd();
                Call::Read { fd, iovs: &raw const *self.list, count: 1, pos: u64::MAX }
            }
            Kind::Quick => Call::Sync { fd: self.file.as_raw_fd(), data_only: true },
        }
    }
    fn answer(&mut self, outcome: io::Result<usize>) -> Next {
        if let Err(e) = outcome {
            self.result = Err(Error::from_io("request", e));
        }
        Next::Over
    }
    fn run(&mut self) {
        assert_eq!(self.kind, Kind::Quick, "what is in the kernel's hands is not begun again");
    }
    fn fail(&mut self, error: Error) {
        self.result = Err(error);
    }
    fn end(self: Box<Self>) {
        let _ = self.done.send((self.name, self.result));
    }
}

struct Bench {
    engine: Engine,
    pipe: Arc<(OwnedFd, OwnedFd)>,
    file: Arc<File>,
    done: Sender<(usize, Result<()>)>,
    ended: Receiver<(usize, Result<()>)>,
}

impl Bench {
    /// `None` if the system has no io_uring and the tests may be skipped.
    fn new() -> Option<Self> {
        let engine = match Engine::new(Aio::IoUring) {
            Ok(engine) => engine,
            Err(e) => {
                let allowed = std::env::var("FOREBAY_ALLOW_SKIP").is_ok_and(|v| v == "1");
                assert!(allowed, "this test requires io_uring: {e}");
                return None;
            }
        };
        let pipe = Arc::new(rustix::pipe::pipe().unwrap());
        let file = Arc::new(File::open("/proc/self/exe").unwrap());
        let (done, ended) = channel();
        Some(Self { engine, pipe, file, done, ended })
    }

    fn make(&self, kind: Kind, name: usize) -> Boxed {
        let list = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
        let (pipe, file) = (self.pipe.clone(), self.file.clone());
        let (bytes, list, done) = (Box::default(), Box::new(list), self.done.clone());
        Box::new(One { name, kind, pipe, file, bytes, list, result: Ok(()), done })
    }

    fn submit(&self, kind: Kind, names: std::ops::Range<usize>) {
        self.engine.submit(names.map(|name| self.make(kind, name)), Aio::Auto);
    }

    fn break_ring(&self) {
        self.engine.0.ring.as_ref().expect("an engine of io_uring").break_ring();
    }

    /// The results of all requests, in order of their names. `turn` does the work of an event loop.
    fn results(&self, count: usize, mut turn: impl FnMut()) -> Vec<Result<()>> {
        let mut all: Vec<Option<Result<()>>> = (0..count).map(|_| None).collect();
        // Requests that have not ended by then never will: without a bound the test would hang.
        let mut patience = 3000;
        while all.iter().any(Option::is_none) {
            turn();
            match self.ended.recv_timeout(Duration::from_millis(10)) {
                Ok((name, result)) => {
                    assert!(all[name].replace(result).is_none(), "E1: request {name} ended twice");
                }
                Err(RecvTimeoutError::Timeout) => {
                    patience -= 1;
                    let lost = all.iter().filter(|result| result.is_none()).count();
                    assert!(patience > 0, "E1: {lost} of {count} requests never end");
                }
                Err(RecvTimeoutError::Disconnected) => unreachable!("the bench has a sender"),
            }
        }
        all.into_iter().flatten().collect()
    }
}

/// The expected results of requests 0..4, stuck in the kernel, and of 4..16, which are quick.
fn check(results: &[Result<()>]) {
    for (name, result) in results.iter().enumerate() {
        assert_eq!(result.is_err(), name < 4, "request {name}: {result:?}");
    }
}

/// The story: the kernel refused a call on a ring. Requests that had been pushed or were under way
/// stayed in its table; their bios never ended, so fsync and close waited for ever.
#[test]
fn shared_ring_broken_ends_requests_and_uses_threads() {
    let Some(bench) = Bench::new() else { return };
    bench.submit(Kind::Stuck, 0..4);
    // The kernel has the first four when the fifth is over.
    bench.submit(Kind::Quick, 4..5);
    let first = bench.ended.recv().unwrap();
    assert_eq!(first.0, 4);
    bench.done.send(first).unwrap();
    bench.break_ring();
    bench.submit(Kind::Quick, 5..8);
    check(&bench.results(8, || {}));
    bench.submit(Kind::Quick, 0..16);
    assert!(bench.results(16, || {}).iter().all(Result::is_ok), "threads serve what comes later");
    assert!(!bench.engine.is_crowded());
}

/// The ring of an event loop fails in the same way. The loop must not wait for the kernel.
#[test]
fn local_ring_broken_ends_requests_and_uses_fallback() {
    let Some(bench) = Bench::new() else { return };
    let mut queue = bench.engine.attach_thread().expect("a ring of this thread");
    bench.submit(Kind::Stuck, 0..4);
    bench.submit(Kind::Quick, 4..5);
    let first = loop {
        queue.flush();
        queue.reap();
        if let Ok(first) = bench.ended.try_recv() {
            break first;
        }
    };
    bench.done.send(first).unwrap();
    bench.break_ring();
    bench.submit(Kind::Quick, 5..8);
    let results = bench.results(8, || {
        queue.flush();
        queue.reap();
    });
    check(&results);
    // The loop need not make further calls: another ring, or threads, take this thread's requests.
    bench.submit(Kind::Quick, 0..16);
    assert!(bench.results(16, || {}).iter().all(Result::is_ok));
    drop(queue);
}

/// A ring that is dropped with its thread's queue while it is broken.
#[test]
fn local_ring_broken_and_dropped_ends_requests() {
    let Some(bench) = Bench::new() else { return };
    let mut queue = bench.engine.attach_thread().expect("a ring of this thread");
    bench.submit(Kind::Stuck, 0..4);
    queue.flush();
    bench.break_ring();
    bench.submit(Kind::Quick, 4..8);
    drop(queue);
    check(&bench.results(8, || {}));
}

/// The story: the ring of an event loop failed when the loop submitted requests, and the loop ended
/// before it reaped. The answers that the kernel had given by then were dropped with the queue. So
/// requests ended with an error, or, as here, not at all.
#[test]
fn local_ring_broken_unreaped_keeps_answered_results() {
    let Some(bench) = Bench::new() else { return };
    let mut queue = bench.engine.attach_thread().expect("a ring of this thread");
    bench.submit(Kind::Quick, 0..1);
    queue.flush();
    let mut ready = [PollFd::from_borrowed_fd(queue.as_fd(), PollFlags::IN)];
    poll(&mut ready, None).expect("the kernel has answered");
    // Runs the kernel's deferred work: the answer is in the ring, and stays there.
    queue.flush();
    bench.submit(Kind::Quick, 1..2);
    bench.break_ring();
    queue.flush();
    // A thread carries out the second request, and may be fast.
    if let Ok(early) = bench.ended.try_recv() {
        assert_eq!(early.0, 1, "an answer waits for the loop to reap it");
        bench.done.send(early).unwrap();
    }
    drop(queue);
    let results = bench.results(2, || {});
    assert!(results.iter().all(Result::is_ok), "each with its own result: {results:?}");
    assert!(!bench.engine.is_crowded());
}

/// The kernel may write to a request's memory until it has released the ring. Until then the
/// request does not end and its memory is kept.
#[test]
fn ring_remains_end_after_kernel_release() {
    let Some(bench) = Bench::new() else { return };
    let request = bench.make(Kind::Stuck, 0);
    let (gone, kernels) = rustix::pipe::pipe().unwrap();
    let space = Arc::new(Space::default());
    (0..3).for_each(|_| space.enter());
    let pool = Pool::with_workers(space.clone(), 1, IDLE, |work| {
        std::thread::Builder::new().spawn(work).map(drop)
    });
    let pool = pool.unwrap();
    pool.submit(Box::new(Remains::new(vec![request], gone, space)));
    // This request waits behind `Remains` for the only worker, so it ends later.
    pool.submit(bench.make(Kind::Quick, 1));
    // A worker that does not wait would end the request within this time.
    let early = bench.ended.recv_timeout(Duration::from_millis(200));
    assert!(early.is_err(), "N2: the kernel still has the request: {early:?}");
    assert_eq!(Arc::strong_count(&bench.pipe), 3, "N2: both requests are kept");
    drop(kernels);
    let (first, second) = (bench.ended.recv().unwrap(), bench.ended.recv().unwrap());
    assert!(first.0 == 0 && first.1.is_err(), "{first:?}");
    assert!(second.0 == 1 && second.1.is_ok(), "{second:?}");
}

/// If the kernel's release cannot be observed, requests neither end nor are freed.
#[test]
fn ring_remains_without_release_keep_memory() {
    let Some(bench) = Bench::new() else { return };
    let (gone, _kernels) = rustix::pipe::pipe().unwrap();
    let remains = Remains::new(vec![bench.make(Kind::Stuck, 0)], gone, Arc::new(Space::default()));
    Box::new(remains).end();
    assert!(bench.ended.try_recv().is_err(), "it has no result");
    assert_eq!(Arc::strong_count(&bench.pipe), 2, "N2: its memory is kept");
}
