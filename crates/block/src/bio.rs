//! A bio: one request to a block device, owning its data until it completes.
//!
//! ```text
//!   new ──submit/execute──▶ in flight ──complete──▶ gone (end_io ran, data handed back)
//!    └────────drop─────────────┴──drop──▶ gone (end_io ran with Shutdown)
//! ```
//! Invariants: B1 `end_io` runs exactly once, whatever happens to the bio (lineage.L4). B2 the data
//! belongs to the bio from submission to completion. B3 `len` equals the length of the data for
//! reads and writes.

use forebay_base::buf::DataRef;
use forebay_base::task::{OneReceiver, oneshot};
use forebay_base::{Error, ErrorKind, Result};
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

/// Operation of a bio.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BioOp {
    /// Device to memory.
    Read,
    /// Memory to device.
    Write,
    /// Makes all completed writes durable.
    Flush,
    /// The caller does not need the range's content any more; until it is written again it may read
    /// back as anything. Advisory.
    Discard,
    /// The range reads back as zeros afterwards.
    WriteZeroes,
}

/// The verb of an operation, for errors.
pub fn verb(op: BioOp) -> &'static str {
    match op {
        BioOp::Read => "read",
        BioOp::Write => "write",
        BioOp::Flush => "flush",
        BioOp::Discard => "discard",
        BioOp::WriteZeroes => "write zeroes",
    }
}

bitflags::bitflags! {
    /// How to do it.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub struct BioFlags: u32 {
        /// Write or WriteZeroes: durable when it completes (force unit access). If it fails, and
        /// may have lost other completed writes, the device fails the next flush, too.
        const FUA = 1 << 0;
        /// A caller waits for this request.
        const SYNC = 1 << 1;
        /// Write-back or readahead: yields to all other requests, write-back also to readahead, and
        /// the device limits write-back while the disk is read. With `SYNC` only that limit
        /// applies: it is write-back that a sync waits for.
        const BACKGROUND = 1 << 2;
        /// WriteZeroes: keep the blocks allocated.
        const NO_UNMAP = 1 << 3;
        /// WriteZeroes: fail with Unsupported rather than write zeros block by block.
        const FAST_ONLY = 1 << 4;
    }
}

/// The result of a bio, with its data.
#[derive(Debug)]
pub struct Completion {
    /// The bio's data.
    pub data: DataRef,
    /// Complete, or an error. A short transfer is an error here (lineage.L3).
    pub result: Result<()>,
}

/// The future of a bio's completion ([`Bio::awaited`]).
pub struct Awaited {
    op: BioOp,
    completion: OneReceiver<Completion>,
}

impl Future for Awaited {
    type Output = Completion;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Completion> {
        let op = verb(self.op);
        // A decorator may break B1 and drop the `EndIo` that `Bio::replace_end` gave it. Even then
        // the caller must not wait for ever.
        let gone = || Completion {
            data: DataRef::None,
            result: Err(Error::new(ErrorKind::Shutdown, op, "the device went away")),
        };
        Pin::new(&mut self.completion).poll(cx).map(|done| done.unwrap_or_else(gone))
    }
}

/// Runs once when the bio is over, on any thread; must not block.
pub type EndIo = Box<dyn FnOnce(Completion) + Send>;

/// Completes bios through an object made beforehand, without a closure for each: for paths that
/// must not allocate. A decorator that wraps it makes a closure.
pub trait EndBio: Send + Sync {
    /// Called once when the bio made with `token` is over. The rules of [`EndIo`] hold.
    fn end_bio(self: Arc<Self>, token: u64, done: Completion);
}

enum End {
    Once(EndIo),
    Shared(Arc<dyn EndBio>, u64),
}

impl End {
    fn call(self, done: Completion) {
        match self {
            Self::Once(end) => end(done),
            Self::Shared(end, token) => end.end_bio(token, done),
        }
    }
}

/// One request.
pub struct Bio {
    /// Operation.
    pub op: BioOp,
    /// How.
    pub flags: BioFlags,
    /// First byte on the device.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
    /// Source or destination; empty for the operations without data.
    pub data: DataRef,
    end: Option<End>,
}

impl Bio {
    /// A new request.
    pub fn new(op: BioOp, offset: u64, len: u64, data: DataRef, end: EndIo) -> Self {
        Self { op, flags: BioFlags::empty(), offset, len, data, end: Some(End::Once(end)) }
    }

    /// A new request and the future of its completion. `on_end` runs first, when the device ends
    /// the request, also if the future is dropped. It may drop what must not outlive the request,
    /// before the caller learns that the request is over.
    pub fn awaited(
        op: BioOp,
        offset: u64,
        len: u64,
        data: DataRef,
        on_end: impl FnOnce(Completion) -> Completion + Send + 'static,
    ) -> (Self, Awaited) {
        let (tx, rx) = oneshot();
        let end = Box::new(move |done| tx.send(on_end(done)));
        (Self::new(op, offset, len, data, end), Awaited { op, completion: rx })
    }

    /// A new request that ends by `end.end_bio(token, ..)`. Allocates nothing.
    pub fn with_token(
        op: BioOp,
        offset: u64,
        len: u64,
        data: DataRef,
        end: Arc<dyn EndBio>,
        token: u64,
    ) -> Self {
        let end = Some(End::Shared(end, token));
        Self { op, flags: BioFlags::empty(), offset, len, data, end }
    }

    /// Sets the flags.
    #[must_use]
    pub fn with_flags(mut self, flags: BioFlags) -> Self {
        self.flags = flags;
        self
    }

    /// Ends the request: hands data and result to `end_io`.
    pub fn complete(mut self, result: Result<()>) {
        self.finish(result);
    }

    fn finish(&mut self, result: Result<()>) {
        if let Some(end) = self.end.take() {
            let data = std::mem::replace(&mut self.data, DataRef::None);
            let (offset, len) = (self.offset, self.len);
            end.call(Completion { data, result: result.map_err(|e| e.with_range(offset, len)) });
        }
    }

    /// Takes `end_io` away, for a decorator that wants to see the completion and then calls it.
    pub fn replace_end(&mut self, wrap: impl FnOnce(EndIo) -> EndIo) {
        let end = match self.end.take().expect("B1: a bio in hand has not ended") {
            End::Once(end) => end,
            shared => Box::new(move |done| shared.call(done)),
        };
        self.end = Some(End::Once(wrap(end)));
    }
}

impl Drop for Bio {
    fn drop(&mut self) {
        if self.end.is_some() {
            self.finish(Err(Error::new(ErrorKind::Shutdown, "bio", "dropped before it was done")));
        }
    }
}

impl fmt::Debug for Bio {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {}+{} {:?}", self.op, self.offset, self.len, self.flags)
    }
}
