//! One io_uring, driven by one thread, with the table of what the kernel has in hand.
//!
//! Invariants: N1 an op is in exactly one place: waiting, or in the table from before its entry
//! is pushed until its answer is taken. N2 what is in the table when the ring goes away is
//! leaked, never freed: the kernel may still write to it. N3 background ops go after others,
//! hold at most [`BACKGROUND_MAX`] slots, and get each [`TURN`]th slot if they wait.

use super::op::{After, Op, Planned};
use crate::file::Job;
use forebay_base::Result;
use io_uring::{IoUring, squeue};
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

/// Entries of the submission queue.
const ENTRIES: u32 = 256;
/// Most ops in the kernel's hands; the completion queue has room for all of them.
const IN_FLIGHT: usize = 1024;
/// Most background ops among them.
const BACKGROUND_MAX: usize = 64;
/// Most ops that wait; the submitter of one more carries it out himself.
pub(crate) const WAITING: usize = 8192;
const TURN: u32 = 16;
/// `user_data` of entries that are not ops.
pub(crate) const NOT_AN_OP: u64 = u64::MAX;

/// What came out of the ring; to be dealt with while the ring is not borrowed.
#[derive(Default)]
pub(crate) struct Outcome {
    pub(crate) over: Vec<(Job, Result<()>)>,
    pub(crate) pool: Vec<Job>,
    /// Entries with [`NOT_AN_OP`] that completed.
    pub(crate) others: usize,
}

pub(crate) struct Ring {
    ring: IoUring,
    table: Vec<Option<Op>>,
    free: Vec<u32>,
    in_flight: usize,
    background: usize,
    waiting: VecDeque<Op>,
    waiting_background: VecDeque<Op>,
    picks: u32,
}

impl Ring {
    /// A ring for the calling thread alone.
    pub(crate) fn new() -> io::Result<Self> {
        let build = |tier: u32| {
            let mut builder = IoUring::builder();
            builder.setup_cqsize(2 * IN_FLIGHT as u32).setup_clamp().dontfork();
            if tier > 0 {
                builder.setup_coop_taskrun().setup_taskrun_flag().setup_submit_all();
            }
            if tier > 1 {
                builder.setup_single_issuer();
                builder.setup_defer_taskrun();
            }
            builder.build(ENTRIES)
        };
        // An older kernel refuses flags it does not know with EINVAL.
        let refused = |e: &io::Error| e.raw_os_error() == Some(libc::EINVAL);
        let ring = match build(2) {
            Err(e) if refused(&e) => match build(1) {
                Err(e) if refused(&e) => build(0),
                other => other,
            },
            other => other,
        }?;
        if !ring.params().is_feature_nodrop() || !ring.params().is_feature_submit_stable() {
            return Err(io::Error::from_raw_os_error(libc::ENOSYS));
        }
        Ok(Self {
            ring,
            table: Vec::new(),
            free: Vec::new(),
            in_flight: 0,
            background: 0,
            waiting: VecDeque::new(),
            waiting_background: VecDeque::new(),
            picks: 0,
        })
    }

    /// Makes an eventfd readable when there is something to collect. (With deferred task work
    /// the ring's own descriptor does not wake a sleeping epoll.)
    pub(crate) fn signal(&self, fd: &OwnedFd) -> io::Result<()> {
        self.ring.submitter().register_eventfd(fd.as_raw_fd())
    }

    /// Adds a planned op; `fill` and `enter` bring it to the kernel.
    pub(crate) fn add(&mut self, op: Op) {
        if op.is_background() {
            self.waiting_background.push_back(op);
        } else {
            self.waiting.push_back(op);
        }
    }

    /// Ops that wait for a slot.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.len() + self.waiting_background.len()
    }

    /// Whether it has nothing at all to do.
    pub(crate) fn is_idle(&self) -> bool {
        self.in_flight == 0 && self.waiting() == 0
    }

    fn next(&mut self) -> Option<Op> {
        let may = self.background < BACKGROUND_MAX && !self.waiting_background.is_empty();
        if may && (self.waiting.is_empty() || self.picks >= TURN) {
            self.picks = 0;
            return self.waiting_background.pop_front();
        }
        self.picks += 1;
        self.waiting.pop_front()
    }

    /// Puts waiting ops into the submission queue, as far as there is room.
    pub(crate) fn fill(&mut self) {
        while self.in_flight < IN_FLIGHT && !self.ring.submission().is_full() {
            let Some(op) = self.next() else { return };
            self.background += usize::from(op.is_background());
            self.in_flight += 1;
            let index = self.free.pop().unwrap_or_else(|| {
                self.table.push(None);
                self.table.len() as u32 - 1
            });
            let entry = op.entry().user_data(u64::from(index));
            self.table[index as usize] = Some(op);
            self.push(&entry);
        }
    }

    /// Pushes an entry; there is room.
    fn push(&mut self, entry: &squeue::Entry) {
        // SAFETY: an op's entry points to memory that the table owns until the answer (N1);
        // other entries point to none.
        let pushed = unsafe { self.ring.submission().push(entry) };
        pushed.expect("there is room in the submission queue");
    }

    /// Pushes an entry that is not an op and points to no memory; false if there is no room.
    pub(crate) fn push_other(&mut self, entry: squeue::Entry) -> bool {
        if self.ring.submission().is_full() {
            return false;
        }
        self.push(&entry.user_data(NOT_AN_OP));
        true
    }

    /// One system call: hands over what was pushed, waits for `want` answers. What is temporary
    /// (a signal, no memory, a full completion queue) is not an error, but gives false.
    pub(crate) fn enter(&mut self, want: usize) -> io::Result<bool> {
        match self.ring.submit_and_wait(want) {
            Ok(_) => Ok(true),
            Err(e) => match e.raw_os_error() {
                Some(libc::EINTR | libc::EBUSY) => Ok(false),
                Some(libc::EAGAIN | libc::ENOMEM) => {
                    std::thread::yield_now();
                    Ok(false)
                }
                _ => Err(e),
            },
        }
    }

    /// Hands over all that there is room for, and runs the kernel's deferred work, of which one
    /// call does only a part. False if something is left that could not be handed over now.
    pub(crate) fn flush(&mut self) -> io::Result<bool> {
        loop {
            self.fill();
            if !self.wants_enter() {
                return Ok(true);
            }
            if !self.enter(0)? {
                return Ok(false);
            }
        }
    }

    /// Whether `enter` would do anything without new ops.
    fn wants_enter(&mut self) -> bool {
        let queue = self.ring.submission();
        !queue.is_empty() || queue.taskrun() || queue.cq_overflow()
    }

    /// Takes the answers that are there.
    pub(crate) fn collect(&mut self, out: &mut Outcome) -> usize {
        let answers: Vec<(u64, i32)> =
            self.ring.completion().map(|c| (c.user_data(), c.result())).collect();
        let count = answers.len();
        for (data, res) in answers {
            if data == NOT_AN_OP {
                out.others += 1;
                continue;
            }
            let op = self.table[data as usize].take().expect("an answer belongs to an op (N1)");
            self.free.push(data as u32);
            self.in_flight -= 1;
            self.background -= usize::from(op.is_background());
            match op.answer(res) {
                After::Again(op) => self.waiting.push_front(op),
                After::Pool(job) => out.pool.push(job),
                After::Over(job, result) => out.over.push((job, result)),
            }
        }
        count
    }

    /// Gives up the ops that the kernel has not seen, for the pool.
    pub(crate) fn abandon(&mut self) -> Vec<Job> {
        let waiting = self.waiting.drain(..).chain(self.waiting_background.drain(..));
        waiting.map(Op::into_job).collect()
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        if self.in_flight > 0 {
            log::error!("io_uring went away with {} requests in flight", self.in_flight);
            std::mem::forget(std::mem::take(&mut self.table));
        }
    }
}

/// Plans jobs and sorts them.
pub(crate) fn plan(job: Job, out: &mut Outcome) -> Option<Op> {
    match Op::plan(job) {
        Planned::Ring(op) => return Some(op),
        Planned::Pool(job) => out.pool.push(job),
        Planned::Over(job, result) => out.over.push((job, result)),
    }
    None
}
