//! The io_uring engine: a ring with a thread of its own for requests from any thread, and rings of
//! event-loop threads and of the threads of flushers.
//!
//! The ring's thread both submits and reaps. Submitting from the caller's thread would save a
//! thread switch. But the kernel then interrupts that thread for each completion, and cancels its
//! requests when the thread ends.
//!
//! Invariants: U1 the thread sleeps only with the inbox empty and `sleeping` set; a submitter that
//! then adds a request wakes it. U2 it ends when the engine is closed and no request remains, or
//! when its ring failed: then threads take all requests. U3 no completion runs while a ring is
//! borrowed or a lock is held (engine.E2).

use super::request::{Boxed, Next, guarded};
use super::ring::{Outcome, Ring};
use super::threads::Pool;
use forebay_base::io_flusher;
use forebay_base::sync::Mutex;
use forebay_base::task::LocalQueue;
use io_uring::{opcode, types};
use rustix::event::{EventfdFlags, eventfd};
use std::cell::RefCell;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};

#[derive(Default)]
struct Inbox {
    requests: Vec<Boxed>,
    sleeping: bool,
    closing: bool,
    broken: bool,
}

struct Shared {
    inbox: Mutex<Inbox>,
    wake: OwnedFd,
}

/// The ring for requests from anywhere.
pub(crate) struct Uring {
    id: u64,
    shared: Arc<Shared>,
    pool: Arc<Pool>,
    /// Whether it was logged that a thread got no ring of its own: once for an engine.
    has_warned: AtomicBool,
    #[cfg(test)]
    descriptor: std::os::fd::RawFd,
}

thread_local! {
    /// Empty between two submissions.
    static BATCH: RefCell<Vec<Boxed>> = const { RefCell::new(Vec::new()) };
    /// The rings attached to this thread, by engine.
    static LOCAL: RefCell<Vec<(u64, Rc<RefCell<Ring>>)>> = const { RefCell::new(Vec::new()) };
}

fn event_fd() -> io::Result<OwnedFd> {
    Ok(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)
}

/// Makes it readable.
fn signal(fd: &OwnedFd) {
    // Fails only if the counter is at its maximum, and then the descriptor is readable as well.
    let _ = rustix::io::write(fd, &[1; 8]);
}

/// Makes it unreadable.
fn clear(fd: &OwnedFd) {
    // Fails only if the counter is 0, and then the descriptor is unreadable as well.
    let _ = rustix::io::read(fd, &mut [0u8; 8]);
}

/// Ends completed requests and passes blocking ones to the pool.
fn settle(out: &mut Outcome, pool: &Pool) {
    out.blocking.drain(..).for_each(|request| pool.submit(request));
    out.over.drain(..).for_each(|request| pool.end(request));
    out.others = 0;
}

impl Uring {
    /// Starts the ring and its thread.
    pub(crate) fn new(id: u64, pool: Arc<Pool>) -> io::Result<Self> {
        let wake = event_fd()?;
        let shared = Arc::new(Shared { inbox: Mutex::default(), wake });
        let (tx, rx) = mpsc::channel();
        let (theirs, helper) = (shared.clone(), pool.clone());
        forebay_base::thread::spawn("forebay-uring", move || {
            // The ring belongs to the thread that made it.
            match Ring::new() {
                Ok(ring) => {
                    let _ = tx.send(Ok(ring.descriptor()));
                    run(&theirs, ring, &helper);
                }
                Err(e) => drop(tx.send(Err(e))),
            }
        })?;
        let _descriptor = rx.recv().map_err(|_| io::Error::other("the ring's thread died"))??;
        Ok(Self {
            id,
            shared,
            pool,
            has_warned: AtomicBool::new(false),
            #[cfg(test)]
            descriptor: _descriptor,
        })
    }

    /// Breaks the ring of this thread, or the shared one.
    #[cfg(test)]
    pub(crate) fn break_ring(&self) {
        let local = local_ring(self.id).map(|ring| ring.borrow().descriptor());
        Ring::break_descriptor(local.unwrap_or(self.descriptor));
    }

    /// Starts requests: on this thread's ring if it has one, else on the shared one.
    pub(crate) fn submit(&self, requests: impl IntoIterator<Item = Boxed>) {
        let mut out = Outcome::default();
        {
            let mut planned = requests.into_iter().filter_map(|mut request| {
                let next = guarded(&mut request, Next::Over, |request| request.plan());
                out.sort(request, next)
            });
            if let Some(local) = local_ring(self.id) {
                // Planning does not submit, so the ring may be borrowed meanwhile.
                let mut ring = local.borrow_mut();
                planned.for_each(|request| ring.add(request));
                if ring.eager {
                    // What fails here is tried again, or given up, in `reap`.
                    let _later = ring.flush();
                }
            } else if let Some(first) = planned.next() {
                self.put(std::iter::once(first).chain(planned));
            }
        }
        settle(&mut out, &self.pool);
    }

    fn put(&self, requests: impl Iterator<Item = Boxed>) {
        // Planned before the lock is taken, into memory that is reused.
        let mut batch = BATCH.take();
        batch.extend(requests);
        let mut inbox = self.shared.inbox.lock();
        if inbox.broken {
            drop(inbox);
            batch.drain(..).for_each(|request| self.pool.submit(request));
            return;
        }
        inbox.requests.append(&mut batch);
        let wake = std::mem::take(&mut inbox.sleeping);
        drop(inbox);
        BATCH.set(batch);
        if wake {
            self.shared.wake_up();
        }
    }

    fn warn_of_no_ring(&self, error: &io::Error) {
        if !self.has_warned.swap(true, Ordering::Relaxed) {
            log::warn!("a thread has no ring of its own, and uses the shared one: {error}");
        }
    }

    /// A ring for the calling thread; none if it has one or the system gives none.
    pub(crate) fn attach(&self, eager: bool) -> Option<Box<dyn LocalQueue>> {
        if local_ring(self.id).is_some() {
            return None;
        }
        let make = || {
            let (mut ring, ready) = (Ring::new()?, event_fd()?);
            ring.eager = eager;
            ring.signal(&ready)?;
            Ok::<_, io::Error>((ring, ready))
        };
        let (ring, ready) = make().map_err(|e| self.warn_of_no_ring(&e)).ok()?;
        io_flusher::mark_thread();
        let ring = Rc::new(RefCell::new(ring));
        LOCAL.with_borrow_mut(|all| all.push((self.id, ring.clone())));
        Some(Box::new(Local {
            id: self.id,
            ring: Some(ring),
            ready,
            pool: self.pool.clone(),
            spare: Outcome::default(),
        }))
    }
}

impl Drop for Uring {
    fn drop(&mut self) {
        self.shared.inbox.lock().closing = true;
        self.shared.wake_up();
    }
}

impl Shared {
    fn wake_up(&self) {
        signal(&self.wake);
    }
}

/// The thread of the shared ring.
fn run(shared: &Shared, mut ring: Ring, pool: &Pool) {
    io_flusher::mark_thread();
    let (mut armed, mut out) = (false, Outcome::default());
    loop {
        if !armed {
            let poll =
                opcode::PollAdd::new(types::Fd(shared.wake.as_raw_fd()), libc::POLLIN as u32);
            armed = ring.push_other(poll.build());
        }
        let mut inbox = shared.inbox.lock();
        inbox.requests.drain(..).for_each(|request| ring.add(request));
        if inbox.closing && ring.is_idle() {
            return;
        }
        inbox.sleeping = true;
        drop(inbox);
        ring.fill();
        if let Err(e) = ring.enter(1) {
            shared.inbox.lock().broken = true;
            settle(&mut give_up(ring, pool, &e), pool);
            let late = std::mem::take(&mut shared.inbox.lock().requests);
            return late.into_iter().for_each(|request| pool.submit(request));
        }
        ring.collect(&mut out);
        shared.inbox.lock().sleeping = false;
        if out.others > 0 {
            armed = false;
            clear(&shared.wake);
        }
        settle(&mut out, pool);
    }
}

/// The ring has failed. Requests that the kernel has not consumed go to threads; the others end
/// with an error when the kernel has released them. Returns the answered requests, for `settle`.
fn give_up(ring: Ring, pool: &Pool, e: &io::Error) -> Outcome {
    log::error!("io_uring failed, its requests go to threads from now on: {e}");
    let mut out = Outcome::default();
    let (unseen, remains) = ring.dismantle(pool.space(), &mut out);
    unseen.into_iter().for_each(|request| pool.submit(request));
    if !remains.is_empty() {
        pool.space().enter();
        pool.submit(Box::new(remains));
    }
    out
}

fn local_ring(id: u64) -> Option<Rc<RefCell<Ring>>> {
    let find = |all: &Vec<(u64, Rc<RefCell<Ring>>)>| {
        all.iter().find(|(of, _)| *of == id).map(|(_, ring)| ring.clone())
    };
    // A thread that is ending has no rings any more.
    LOCAL.try_with(|all| find(&all.borrow())).ok().flatten()
}

/// The ring of one event-loop thread.
struct Local {
    id: u64,
    /// `None` once the ring has failed: the thread's requests then go to the shared ring or to
    /// threads.
    ring: Option<Rc<RefCell<Ring>>>,
    /// Readable when there is something to reap.
    ready: OwnedFd,
    pool: Arc<Pool>,
    spare: Outcome,
}

impl Local {
    /// Submits the waiting requests; schedules a retry if that fails.
    fn hand_over(&mut self) {
        let Some(ring) = &self.ring else { return };
        let flushed = ring.borrow_mut().flush();
        match flushed {
            Ok(true) => {}
            Ok(false) => signal(&self.ready),
            Err(e) => self.give_up(&e),
        }
    }

    /// Takes the ring off its thread's list: from now on the thread has no ring of its own.
    fn detach(&mut self) -> Option<Rc<RefCell<Ring>>> {
        let _ = LOCAL.try_with(|all| all.borrow_mut().retain(|(id, _)| *id != self.id));
        self.ring.take()
    }

    fn give_up(&mut self, e: &io::Error) {
        let ring = self.detach().and_then(Rc::into_inner);
        let ring = ring.expect("only the queue and its thread's list keep a ring between calls");
        let mut out = give_up(ring.into_inner(), &self.pool, e);
        // They end in `reap`.
        self.spare.over.append(&mut out.over);
        self.spare.blocking.append(&mut out.blocking);
        signal(&self.ready);
    }
}

impl LocalQueue for Local {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.ready.as_fd()
    }

    fn flush(&mut self) {
        self.hand_over();
    }

    fn reap(&mut self) -> usize {
        let mut count = 0;
        // Cleared first: completions that arrive later signal again, also those found below.
        clear(&self.ready);
        loop {
            self.hand_over();
            let mut out = std::mem::take(&mut self.spare);
            let taken = match &self.ring {
                Some(ring) => ring.borrow_mut().collect(&mut out),
                None => out.over.len() + out.blocking.len(),
            };
            settle(&mut out, &self.pool);
            count += taken;
            self.spare = out;
            if taken == 0 {
                return count;
            }
        }
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        // Requests that completions submit from here on go to the shared ring.
        let Some(ring) = self.detach() else {
            // The ring failed, and this thread has not reaped the requests answered before.
            return settle(&mut self.spare, &self.pool);
        };
        loop {
            let entered = {
                let mut ring = ring.borrow_mut();
                ring.fill();
                if ring.is_idle() {
                    return;
                }
                ring.enter(1)
            };
            if let Err(e) = entered {
                self.ring = Some(ring);
                self.give_up(&e);
                return settle(&mut self.spare, &self.pool);
            }
            let mut out = Outcome::default();
            ring.borrow_mut().collect(&mut out);
            settle(&mut out, &self.pool);
        }
    }
}

/// Why the system gives no io_uring, in words.
pub(crate) fn explain(e: &io::Error) -> String {
    let setting = std::fs::read_to_string("/proc/sys/kernel/io_uring_disabled");
    let disabled = setting.map(|s| s.trim().to_string()).unwrap_or_default();
    match e.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) if matches!(disabled.as_str(), "1" | "2") => {
            format!("kernel.io_uring_disabled is {disabled}")
        }
        Some(libc::EPERM | libc::EACCES) => {
            "io_uring is forbidden here, probably by a container's seccomp profile".into()
        }
        Some(libc::ENOSYS) => "the kernel has no io_uring that is good enough".into(),
        Some(libc::ENOMEM) => "no memory for io_uring (limit of locked memory?)".into(),
        _ => format!("io_uring cannot be set up: {e}"),
    }
}
