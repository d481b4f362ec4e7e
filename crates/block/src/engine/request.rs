//! A request as an engine sees it: plain data for the kernel, and a callback for its end.
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

/// How urgent a request is. Variants are listed from the most urgent on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Class {
    /// A caller waits for it.
    Sync,
    /// A read that no caller waits for yet.
    Readahead,
    /// A write that no caller waits for.
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

/// The next step after a plan, or after an answer of the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    /// `call`.
    Call,
    /// `run`, on a thread that may block.
    Blocking,
    /// `end`.
    Over,
}

/// One request to an engine: the system call to make, and the callback at its end.
///
/// # Safety
/// The descriptor, list and memory that `call` names stay valid until `answer` has received the
/// kernel's answer, even if the request is leaked.
pub(crate) unsafe trait Request: Send {
    fn class(&self) -> Class;
    /// Prepares `call`. An engine that only calls `run` does not call this.
    fn plan(&mut self) -> Next;
    fn call(&self) -> Call;
    fn answer(&mut self, outcome: io::Result<usize>) -> Next;
    /// Carries out the complete request by blocking calls, from the start.
    fn run(&mut self);
    /// It ends with this error.
    fn fail(&mut self, error: Error);
    /// Passes the result to the waiting caller. May submit again.
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
