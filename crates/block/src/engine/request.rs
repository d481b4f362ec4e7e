//! A request as an engine sees it: plain data for the kernel, and somebody to call back.
//!
//! ```text
//!   plan ──▶ Ring ──▶ call ──▶ (kernel) ──▶ answer ──▶ Again ──▶ call ...
//!     │                                       │
//!     ├──▶ Blocking ◀─────────────────────────┤          each way ends in `end`, once
//!     │        └──▶ run ──┐                   │
//!     └──▶ Over ──────────┴──▶ end ◀── Over ──┘
//! ```
//! Invariants: Q1 a request ends exactly once, also when one of its own functions panics: it then
//! ends with an error. Q2 such a panic ends neither the engine's thread nor the submitter's.

use forebay_base::{Error, ErrorKind};
use std::io;
use std::os::fd::RawFd;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// How urgent a request is. Of two that wait, the one that is named first here goes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Class {
    /// Somebody waits for it.
    Sync,
    /// A read that nobody waits for yet.
    Readahead,
    /// A write that nobody waits for.
    WriteBack,
}

impl Class {
    pub(crate) fn is_background(self) -> bool {
        self != Self::Sync
    }
}

/// One system call.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Call {
    /// `preadv` of `count` pieces at `pos` (bytes).
    Read { fd: RawFd, iovs: *const libc::iovec, count: u32, pos: u64 },
    /// `pwritev2` with RWF flags.
    Write { fd: RawFd, iovs: *const libc::iovec, count: u32, pos: u64, rwf: i32 },
    /// `fdatasync`, or `fsync`.
    Sync { fd: RawFd, data_only: bool },
    /// `fallocate`.
    Fallocate { fd: RawFd, mode: i32, pos: u64, len: u64 },
}

/// What follows from a plan, or from an answer of the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    /// `call`.
    Call,
    /// `run`, on a thread that may block.
    Blocking,
    /// `end`.
    Over,
}

/// Somebody who wants something done.
///
/// # Safety
/// What `call` names (descriptor, list, memory) stays valid until the kernel's answer has been
/// given to `answer`, even if the request is forgotten.
pub(crate) unsafe trait Request: Send {
    fn class(&self) -> Class;
    /// Gets ready for `call`. Not called by an engine that only has `run`.
    fn plan(&mut self) -> Next;
    fn call(&self) -> Call;
    fn answer(&mut self, outcome: io::Result<usize>) -> Next;
    /// Carries all of it out by blocking calls, from the start.
    fn run(&mut self);
    /// It ends with this error.
    fn fail(&mut self, error: Error);
    /// Hands the result to whoever waits for it. May submit again.
    fn end(self: Box<Self>);
}

/// A request in an engine's hands.
pub(crate) type Boxed = Box<dyn Request>;

/// Runs one function of a request; `otherwise` if it panics, and the request fails (Q1, Q2).
pub(crate) fn guarded<R>(request: &mut Boxed, otherwise: R, f: impl FnOnce(&mut Boxed) -> R) -> R {
    catch_unwind(AssertUnwindSafe(|| f(request))).unwrap_or_else(|_| {
        log::error!("a request panicked; it ends with an error (Q1)");
        let text = "the request panicked on its way";
        request.fail(Error::new(ErrorKind::Io, "request", text));
        otherwise
    })
}

/// Ends a request.
pub(crate) fn end(request: Boxed) {
    if catch_unwind(AssertUnwindSafe(|| request.end())).is_err() {
        log::error!("the completion of a request panicked (Q2)");
    }
}
