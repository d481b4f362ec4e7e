//! A range of bytes that a block front end serves. A contract, no implementation.
//!
//! No locks.

use forebay_base::buf::AlignedBuf;
use forebay_base::task::{BoxFuture, LocalQueue};
use forebay_base::{IoFlags, Result};
use std::sync::Arc;

/// What an export tells its clients. Read anew for each client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExportInfo {
    /// Size in bytes.
    pub size: u64,
    /// Smallest request, bytes: any offset and length that are multiples of it are served.
    pub min_block: u32,
    /// Request size that costs no read-modify-write, bytes.
    pub preferred_block: u32,
    /// Longest request, bytes.
    pub max_request: u32,
    /// Writes are refused.
    pub read_only: bool,
    /// Trim gives space back.
    pub can_trim: bool,
    /// Zeroing is faster than writing zeros.
    pub fast_zero: bool,
    /// One line for people.
    pub description: String,
}

/// One run of an export's map.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// Length in bytes.
    pub len: u64,
    /// Nothing is allocated here.
    pub hole: bool,
    /// It reads as zeros.
    pub zero: bool,
}

/// How to zero a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ZeroMode {
    /// Keep the space allocated.
    pub keep_allocated: bool,
    /// Fail with `Unsupported` rather than write zeros block by block.
    pub fast_only: bool,
    /// Durable when it returns.
    pub fua: bool,
}

/// An owned buffer back, and how it went.
pub type BufResult = (AlignedBuf, Result<()>);

/// A range of bytes that front ends serve: size, reads, writes, flush, trim, zero, map.
///
/// Any byte range inside the size is accepted. `try_*` are the fast paths: they finish without
/// waiting and without allocation or say `None`, having changed nothing. The futures own their
/// buffers and may be dropped at any time; the request may still take effect then.
pub trait Export: Send + Sync {
    /// What to tell clients.
    fn info(&self) -> ExportInfo;

    /// The size of [`Export::info`], bytes, for who asks with each request.
    fn size(&self) -> u64 {
        self.info().size
    }

    /// Reads if no waiting is needed.
    fn try_read(&self, offset: u64, dst: &mut [u8], flags: IoFlags) -> Option<Result<()>>;

    /// Reads `buf.len()` bytes.
    fn read(
        self: Arc<Self>,
        offset: u64,
        buf: AlignedBuf,
        flags: IoFlags,
    ) -> BoxFuture<'static, BufResult>;

    /// Writes if no waiting is needed.
    fn try_write(&self, offset: u64, src: &[u8], flags: IoFlags) -> Option<Result<()>>;

    /// Writes `buf`. `IoFlags::DSYNC` is FUA.
    fn write(
        self: Arc<Self>,
        offset: u64,
        buf: AlignedBuf,
        flags: IoFlags,
    ) -> BoxFuture<'static, BufResult>;

    /// Makes every completed write durable, whichever client made it.
    fn flush(self: Arc<Self>) -> BoxFuture<'static, Result<()>>;

    /// Gives the range back; it may read as zeros afterwards. Advisory.
    fn trim(self: Arc<Self>, offset: u64, len: u64, fua: bool) -> BoxFuture<'static, Result<()>>;

    /// The range reads as zeros afterwards.
    fn zero(
        self: Arc<Self>,
        offset: u64,
        len: u64,
        mode: ZeroMode,
    ) -> BoxFuture<'static, Result<()>>;

    /// Brings the range into the cache.
    fn prefetch(self: Arc<Self>, offset: u64, len: u64) -> BoxFuture<'static, Result<()>>;

    /// The map of the range, in order from its start on, at most `max` (1 or more) extents, so it
    /// may end early. No poll of it is long, however many extents there are.
    fn extents(
        self: Arc<Self>,
        offset: u64,
        len: u64,
        max: usize,
    ) -> BoxFuture<'static, Result<Vec<Extent>>>;

    /// The same export for one client of its own: streams are told apart by client, and each
    /// client is told of a write error once. `None`: there is nothing to tell apart.
    fn for_client(&self) -> Option<Arc<dyn Export>> {
        None
    }

    /// An I/O queue for the calling event-loop thread, if the engine below has such a thing.
    fn attach_thread(&self) -> Option<Box<dyn LocalQueue>>;
}
