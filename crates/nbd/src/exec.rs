//! A small executor for the requests of one event-loop thread that could not be served at once.
//!
//! Invariants:
//! 1. A wake is never lost: the waker queues its task, then checks whether the loop sleeps. The
//!    loop marks itself asleep, then checks the queue (both in one total order).
//! 2. A wake on the loop's own thread costs no system call and takes no lock. A wake from another
//!    thread writes the eventfd only if the loop sleeps.
//! 3. A slot's waker outlives its task: a late wake only polls the slot's next task once more.
//!
//! Locks: `Home::remote` is a leaf, held for a push or a swap.

use crate::proto::Request;
use forebay_base::Result;
use forebay_base::buf::AlignedBuf;
use forebay_base::sync::Mutex;
use forebay_base::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use forebay_base::task::BoxFuture;
use forebay_vfs::{BufResult, Extent};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::cell::RefCell;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

static NEXT_ID: AtomicU64 = AtomicU64::new(1);

thread_local! {
    /// The loop that runs on this thread (0: none), and its tasks that were woken on this thread.
    static HERE: RefCell<(u64, Vec<u32>)> = const { RefCell::new((0, Vec::new())) };
}

/// The part of a loop that other threads use to wake it.
pub(crate) struct Home {
    id: u64,
    remote: Mutex<Vec<u32>>,
    /// A task was put into `remote` since it was last emptied.
    has_remote: AtomicBool,
    sleeping: AtomicBool,
    event: OwnedFd,
}

impl Home {
    pub fn new() -> rustix::io::Result<Self> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
        let (has_remote, sleeping) = (AtomicBool::new(false), AtomicBool::new(false));
        Ok(Self { id, remote: Mutex::new(Vec::new()), has_remote, sleeping, event })
    }

    /// The eventfd, which is readable when another thread wakes the loop.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }

    /// Wakes the loop if it sleeps. The caller's change must be visible to the loop before.
    pub fn nudge(&self) {
        if self.sleeping.swap(false, Ordering::SeqCst) {
            // Any number but zero makes the eventfd readable, in any byte order. EAGAIN (it is
            // full) means that a wake is pending; no other error is possible.
            let _ = rustix::io::write(&self.event, &[1; 8]);
        }
    }

    fn wake(&self, slot: u32) {
        let local = HERE.with_borrow_mut(|(id, ready)| {
            let here = *id == self.id;
            if here {
                ready.push(slot);
            }
            here
        });
        if !local {
            self.remote.lock().push(slot);
            self.has_remote.store(true, Ordering::SeqCst);
            self.nudge();
        }
    }
}

struct SlotWaker {
    home: Arc<Home>,
    slot: u32,
    queued: AtomicBool,
}

impl Wake for SlotWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }
    fn wake_by_ref(self: &Arc<Self>) {
        if !self.queued.swap(true, Ordering::AcqRel) {
            self.home.wake(self.slot);
        }
    }
}

/// The future of a request in progress.
pub(crate) enum Work {
    Buf(BoxFuture<'static, BufResult>),
    Unit(BoxFuture<'static, Result<()>>),
    Map(BoxFuture<'static, Result<Vec<Extent>>>),
}

/// Result of a request.
pub(crate) enum Outcome {
    Buf(AlignedBuf, Result<()>),
    Unit(Result<()>),
    Map(Result<Vec<Extent>>),
}

impl Work {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Outcome> {
        match self {
            Self::Buf(f) => f.as_mut().poll(cx).map(|(buf, result)| Outcome::Buf(buf, result)),
            Self::Unit(f) => f.as_mut().poll(cx).map(Outcome::Unit),
            Self::Map(f) => f.as_mut().poll(cx).map(Outcome::Map),
        }
    }
}

/// A connection: its slot, and the generation of that slot.
pub(crate) type Key = (u32, u32);

/// The connection of a request, and the memory charged for it, bytes.
#[derive(Clone, Copy)]
pub(crate) struct Ticket {
    pub key: Key,
    pub request: Request,
    pub cost: usize,
    pub structured: bool,
}

struct Slot {
    task: Option<(Ticket, Work)>,
    waker: Waker,
    shared: Arc<SlotWaker>,
}

/// Runs the futures of one event loop.
pub(crate) struct Executor {
    home: Arc<Home>,
    slots: Vec<Slot>,
    free: Vec<u32>,
    batch: Vec<u32>,
}

impl Executor {
    /// Makes the calling thread the loop's thread.
    pub fn new(home: Arc<Home>) -> Self {
        HERE.with_borrow_mut(|here| *here = (home.id, Vec::new()));
        Self { home, slots: Vec::new(), free: Vec::new(), batch: Vec::new() }
    }

    /// The number of requests in progress.
    pub fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Starts `work`. `Some`: it ended at its first poll.
    pub fn start(&mut self, ticket: Ticket, mut work: Work) -> Option<Outcome> {
        let at = self.free.pop().unwrap_or_else(|| {
            let slot = self.slots.len() as u32;
            let queued = AtomicBool::new(false);
            let shared = Arc::new(SlotWaker { home: self.home.clone(), slot, queued });
            let waker = Waker::from(shared.clone());
            self.slots.push(Slot { task: None, waker, shared });
            slot
        });
        let slot = &mut self.slots[at as usize];
        match work.poll(&mut Context::from_waker(&slot.waker)) {
            Poll::Ready(outcome) => {
                self.free.push(at);
                Some(outcome)
            }
            Poll::Pending => {
                slot.task = Some((ticket, work));
                None
            }
        }
    }

    /// Polls every woken task once, and adds the ended ones to `done`. True if any task was polled.
    pub fn run(&mut self, done: &mut Vec<(Ticket, Outcome)>) -> bool {
        let mut batch = std::mem::take(&mut self.batch);
        HERE.with_borrow_mut(|(_, ready)| std::mem::swap(ready, &mut batch));
        // Cleared before the list is taken: a wake after this point sets it again.
        if self.home.has_remote.swap(false, Ordering::AcqRel) {
            batch.append(&mut self.home.remote.lock());
        }
        let polled = !batch.is_empty();
        for at in batch.drain(..) {
            let slot = &mut self.slots[at as usize];
            // Cleared before the poll: a wake during the poll queues the task again.
            slot.shared.queued.store(false, Ordering::Release);
            let Some((ticket, work)) = &mut slot.task else { continue };
            if let Poll::Ready(outcome) = work.poll(&mut Context::from_waker(&slot.waker)) {
                done.push((*ticket, outcome));
                slot.task = None;
                self.free.push(at);
            }
        }
        self.batch = batch;
        polled
    }

    /// Whether a task was woken.
    pub fn is_woken(&self) -> bool {
        HERE.with_borrow(|(_, ready)| !ready.is_empty())
            || self.home.has_remote.load(Ordering::Acquire)
    }

    /// Announces that the loop is about to sleep. False: a task was woken, so the loop must not
    /// sleep.
    pub fn may_sleep(&self) -> bool {
        self.home.sleeping.store(true, Ordering::SeqCst);
        let idle = HERE.with_borrow(|(_, ready)| ready.is_empty())
            && !self.home.has_remote.load(Ordering::SeqCst);
        if !idle {
            self.home.sleeping.store(false, Ordering::SeqCst);
        }
        idle
    }

    /// Announces that the loop is awake, and empties the eventfd if that ended the sleep.
    pub fn awake(&self, by_event: bool) {
        self.home.sleeping.store(false, Ordering::SeqCst);
        if by_event {
            // EAGAIN: an earlier read has consumed this wake as well.
            let _ = rustix::io::read(&self.home.event, &mut [0u8; 8]);
        }
    }
}

impl Drop for Executor {
    fn drop(&mut self) {
        HERE.with_borrow_mut(|here| *here = (0, Vec::new()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::{Command, CommandFlags};
    use forebay_base::task::{oneshot, yield_now};

    fn ticket() -> Ticket {
        let flags = CommandFlags::empty();
        let request = Request { flags, command: Command::Flush, cookie: 1, offset: 0, len: 0 };
        Ticket { key: (0, 0), request, cost: 0, structured: false }
    }

    #[test]
    fn wakes_from_here_and_from_elsewhere() {
        let home = Arc::new(Home::new().unwrap());
        let mut exec = Executor::new(home.clone());
        let mut done = Vec::new();
        let local = Box::pin(async {
            yield_now().await;
            Ok(())
        });
        assert!(exec.start(ticket(), Work::Unit(local)).is_none());
        assert!(!exec.may_sleep());
        assert!(exec.run(&mut done));
        assert_eq!(done.len(), 1);
        let (tx, rx) = oneshot();
        let late = Box::pin(async move {
            rx.await;
            Ok(())
        });
        assert!(exec.start(ticket(), Work::Unit(late)).is_none());
        assert_eq!(exec.slots.len(), 1, "the slot is used again");
        assert!(exec.may_sleep());
        std::thread::spawn(move || tx.send(())).join().unwrap();
        let mut bytes = [0u8; 8];
        assert_eq!(rustix::io::read(&home.event, &mut bytes), Ok(8));
        exec.awake(false);
        assert!(exec.run(&mut done));
        assert_eq!((done.len(), exec.len()), (2, 0));
    }
}
