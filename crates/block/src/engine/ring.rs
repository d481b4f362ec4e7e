//! One io_uring, driven by one thread, with the table of the requests in the kernel.
//!
//! Invariants: N1 a request is in exactly one place: in the queue; in the table, from before its
//! entry is pushed until its answer is taken; or in a list of those to end. N2 a request that the
//! kernel may still work on when the ring is dropped neither ends nor is freed before the kernel
//! has released the ring ([`Remains`]). Background requests hold at most [`BACKGROUND_MAX`] slots:
//! the queue ensures that (queue.J3).
//!
//! When a call on the ring fails for good, [`Ring::dismantle`] closes the ring. Threads carry out
//! the requests that the kernel has not consumed. Requests in progress end with an error: their
//! answers are lost, and repeating a flush could hide an error. They end after the kernel has
//! dropped its last reference to the ring. Closing the descriptor does not wait for that, so the
//! ring registers the writing end of a pipe, which the kernel closes as its last step.

use super::queue::Queue;
use super::request::{Boxed, Call, Class, Next, Request, end, guarded};
use super::space::Space;
use forebay_base::{Error, ErrorKind};
use io_uring::{IoUring, opcode, squeue, types};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::pipe::{PipeFlags, pipe_with};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

/// Entries of the submission queue.
const ENTRIES: u32 = 256;
/// Most requests in the kernel at a time; the completion queue has space for all of them.
const IN_FLIGHT: usize = 1024;
/// Consecutive calls without a completion after which deferred work counts as done. Each call does
/// the work of at least twenty requests.
const IN_VAIN_MAX: usize = IN_FLIGHT / 16;
/// Most background requests in the kernel at a time.
const BACKGROUND_MAX: usize = 64;
/// `user_data` of entries that are not requests.
pub(crate) const NOT_A_REQUEST: u64 = u64::MAX;
/// Best effort, lowest level (see ioprio_set(2)): for background requests.
const BACKGROUND_PRIO: u16 = (2 << 13) | 7;

/// Results taken from a ring, processed when the ring is not borrowed any more.
#[derive(Default)]
pub(crate) struct Outcome {
    pub(crate) over: Vec<Boxed>,
    pub(crate) blocking: Vec<Boxed>,
    /// Entries with [`NOT_A_REQUEST`] that completed.
    pub(crate) others: usize,
}

impl Outcome {
    /// Sorts a request by its next step; returns it if that is a system call.
    pub(crate) fn sort(&mut self, request: Boxed, next: Next) -> Option<Boxed> {
        match next {
            Next::Call => return Some(request),
            Next::Blocking => self.blocking.push(request),
            Next::Over => self.over.push(request),
        }
        None
    }
}

pub(crate) struct Ring {
    ring: IoUring,
    table: Vec<Option<Boxed>>,
    free: Vec<u32>,
    in_flight: usize,
    /// Entries pushed so far, and the `user_data` of the last ones. The entries that the kernel has
    /// not consumed are among these.
    pushed: usize,
    recent: Box<[u64; ENTRIES as usize]>,
    /// Reads end of file when the kernel has released the ring (ring.N2).
    gone: Option<OwnedFd>,
    queue: Queue,
    /// Requests that failed before they were submitted.
    failed: Vec<Boxed>,
    answers: Vec<(u64, i32)>,
    /// Each submission passes its requests to the kernel.
    pub(crate) eager: bool,
}

/// Converts the call to a submission queue entry.
fn entry(call: Call, background: bool) -> squeue::Entry {
    let prio = if background { BACKGROUND_PRIO } else { 0 };
    match call {
        Call::Read { fd, iovs, count, pos } => {
            opcode::Readv::new(types::Fd(fd), iovs, count).offset(pos).ioprio(prio).build()
        }
        Call::Write { fd, iovs, count, pos, rwf } => {
            let call = opcode::Writev::new(types::Fd(fd), iovs, count);
            call.offset(pos).rw_flags(rwf).ioprio(prio).build()
        }
        Call::Sync { fd, data_only } => {
            let data = types::FsyncFlags::DATASYNC;
            let flags = if data_only { data } else { types::FsyncFlags::empty() };
            opcode::Fsync::new(types::Fd(fd)).flags(flags).build()
        }
        Call::Fallocate { fd, mode, pos, len } => {
            opcode::Fallocate::new(types::Fd(fd), len).offset(pos).mode(mode).build()
        }
    }
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
        let (gone, kernels) = pipe_with(PipeFlags::CLOEXEC)?;
        // The kernel keeps the writing end open as long as it keeps the ring.
        ring.submitter().register_files(&[kernels.as_raw_fd()])?;
        Ok(Self {
            ring,
            table: Vec::new(),
            free: Vec::new(),
            in_flight: 0,
            pushed: 0,
            recent: Box::new([NOT_A_REQUEST; ENTRIES as usize]),
            gone: Some(gone),
            queue: Queue::new(BACKGROUND_MAX),
            failed: Vec::new(),
            answers: Vec::new(),
            eager: false,
        })
    }

    /// Replaces the ring's descriptor by that of another file, so that every call on it fails.
    #[cfg(test)]
    pub(crate) fn break_descriptor(fd: std::os::fd::RawFd) {
        let null = std::fs::File::open("/dev/null").expect("it can be opened");
        // SAFETY: both descriptors are open; the ring still closes the number that it has.
        let done = unsafe { libc::dup2(null.as_raw_fd(), fd) };
        assert_eq!(done, fd, "{}", io::Error::last_os_error());
    }

    /// Its number, for tests.
    pub(crate) fn descriptor(&self) -> std::os::fd::RawFd {
        self.ring.as_raw_fd()
    }

    /// Makes an eventfd readable when there is something to collect. (With deferred task work
    /// the ring's own descriptor does not wake a sleeping epoll.)
    pub(crate) fn signal(&self, fd: &OwnedFd) -> io::Result<()> {
        self.ring.submitter().register_eventfd(fd.as_raw_fd())
    }

    /// Adds a request whose plan says `Call`; `fill` and `enter` bring it to the kernel.
    pub(crate) fn add(&mut self, request: Boxed) {
        self.queue.push(request);
    }

    /// Whether it has nothing at all to do.
    pub(crate) fn is_idle(&self) -> bool {
        self.in_flight == 0 && self.queue.len() == 0 && self.failed.is_empty()
    }

    /// Moves waiting requests to the submission queue, as far as it has space.
    pub(crate) fn fill(&mut self) {
        while self.in_flight < IN_FLIGHT && !self.ring.submission().is_full() {
            let Some(mut request) = self.queue.pick() else { return };
            let class = request.class();
            let Some(call) = guarded(&mut request, None, |request| Some(request.call())) else {
                self.queue.done(class);
                self.failed.push(request);
                continue;
            };
            self.in_flight += 1;
            let index = self.free.pop().unwrap_or_else(|| {
                self.table.push(None);
                self.table.len() as u32 - 1
            });
            let entry = entry(call, class.is_background()).user_data(u64::from(index));
            assert!(self.table[index as usize].is_none(), "N1: a free place of the table is free");
            self.table[index as usize] = Some(request);
            self.push(&entry, u64::from(index));
        }
    }

    /// Pushes an entry; the caller has checked that the queue has space.
    fn push(&mut self, entry: &squeue::Entry, user_data: u64) {
        self.recent[self.pushed % ENTRIES as usize] = user_data;
        self.pushed += 1;
        // SAFETY: a request's entry points to memory that the table keeps until the answer (N1);
        // other entries point to none.
        let pushed = unsafe { self.ring.submission().push(entry) };
        pushed.expect("there is room in the submission queue");
    }

    /// Pushes an entry that is not a request and points to no memory; false if the queue is full.
    pub(crate) fn push_other(&mut self, entry: squeue::Entry) -> bool {
        if self.ring.submission().is_full() {
            return false;
        }
        self.push(&entry.user_data(NOT_A_REQUEST), NOT_A_REQUEST);
        true
    }

    /// One system call: submits the pushed entries and waits for `want` answers. A temporary
    /// failure (a signal, no memory, a full completion queue) returns false.
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

    /// Submits as many waiting requests as fit, and runs the kernel's deferred work, of which one
    /// call does only a part. False if a request remains that could not be submitted.
    ///
    /// The flag for deferred work may outlive that work: a completion on another CPU may raise it
    /// after the work was done, and no call clears it. So the flag is trusted for a bounded number
    /// of calls.
    pub(crate) fn flush(&mut self) -> io::Result<bool> {
        let (mut before, mut in_vain) = (None, 0);
        loop {
            self.fill();
            let is_stale = in_vain >= IN_VAIN_MAX && self.ring.submission().is_empty();
            if is_stale || !self.wants_enter() {
                return Ok(true);
            }
            if !self.enter(0)? {
                return Ok(false);
            }
            let answers = self.ring.completion().len();
            let is_in_vain = before.replace(answers) == Some(answers);
            in_vain = if is_in_vain { in_vain + 1 } else { 0 };
        }
    }

    /// Whether `enter` has work without new requests: pushed entries, deferred work, or answers
    /// that did not fit into the completion queue.
    fn wants_enter(&mut self) -> bool {
        let queue = self.ring.submission();
        !queue.is_empty() || queue.taskrun() || queue.cq_overflow()
    }

    /// Takes the answers that the kernel has given so far; returns their number.
    pub(crate) fn collect(&mut self, out: &mut Outcome) -> usize {
        out.over.append(&mut self.failed);
        let mut answers = std::mem::take(&mut self.answers);
        answers.extend(self.ring.completion().map(|c| (c.user_data(), c.result())));
        let count = answers.len();
        for (data, res) in answers.drain(..) {
            if data == NOT_A_REQUEST {
                out.others += 1;
                continue;
            }
            let mut request =
                self.table[data as usize].take().expect("N1: an answer belongs to a request");
            self.free.push(data as u32);
            self.in_flight -= 1;
            let outcome = usize::try_from(res)
                .map_err(|_| io::Error::from_raw_os_error(res.unsigned_abs() as i32));
            let next = guarded(&mut request, Next::Over, |request| request.answer(outcome));
            let class = request.class();
            match out.sort(request, next) {
                Some(request) => self.queue.push_again(request),
                None => self.queue.done(class),
            }
        }
        self.answers = answers;
        count
    }

    /// Closes a ring that has failed. Returns the requests that the kernel has not consumed, in
    /// order, and a request that ends the others (ring.N2). Completed requests go to `out`.
    pub(crate) fn dismantle(
        mut self,
        space: &Arc<Space>,
        out: &mut Outcome,
    ) -> (Vec<Boxed>, Remains) {
        self.collect(out);
        let unseen = self.ring.submission().len().min(self.pushed);
        let mut requests = Vec::new();
        for number in self.pushed - unseen..self.pushed {
            let user_data = self.recent[number % ENTRIES as usize];
            if user_data != NOT_A_REQUEST {
                let request = self.table[user_data as usize].take();
                requests.push(request.expect("N1: it is in the table until it is answered"));
            }
        }
        requests.extend(self.queue.drain());
        let under_way: Vec<Boxed> = self.table.drain(..).flatten().collect();
        self.in_flight = 0;
        let gone = self.gone.take().expect("a ring is taken apart once");
        (requests, Remains::new(under_way, gone, space.clone()))
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

/// The requests in progress in a ring that failed. Itself a request for a thread that may block: it
/// waits until the kernel has released the ring, and then ends them with an error.
pub(crate) struct Remains {
    requests: Vec<Boxed>,
    gone: OwnedFd,
    is_over: bool,
    space: Arc<Space>,
}

impl Remains {
    pub(crate) fn new(requests: Vec<Boxed>, gone: OwnedFd, space: Arc<Space>) -> Self {
        Self { requests, gone, is_over: false, space }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }
}

// SAFETY: its plan is never a call, so the kernel receives no memory from it.
unsafe impl Request for Remains {
    fn class(&self) -> Class {
        Class::Sync
    }
    fn plan(&mut self) -> Next {
        Next::Blocking
    }
    fn call(&self) -> Call {
        unreachable!("its plan is to block")
    }
    fn answer(&mut self, _: io::Result<usize>) -> Next {
        Next::Over
    }
    fn run(&mut self) {
        // The pipe carries no data: it reads end of file when the kernel closes the other end.
        while let Err(e) = poll(&mut [PollFd::new(&self.gone, PollFlags::IN)], None) {
            assert_eq!(e, rustix::io::Errno::INTR, "waiting for the kernel to let go of a ring");
        }
        self.is_over = true;
    }
    fn fail(&mut self, _: Error) {}
    fn end(mut self: Box<Self>) {
        let requests = std::mem::take(&mut self.requests);
        if !self.is_over {
            log::error!("{} requests of a broken io_uring are given up", requests.len());
            return std::mem::forget(requests);
        }
        for mut request in requests {
            let text = "io_uring failed while the request was under way";
            guarded(&mut request, (), |r| r.fail(Error::new(ErrorKind::Io, "request", text)));
            end(request);
            self.space.leave();
        }
    }
}
