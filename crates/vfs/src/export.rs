//! The interface of an export: a range of bytes that a block front end serves.
//!
//! No locks.

use forebay_base::buf::AlignedBuf;
use forebay_base::task::{BoxFuture, LocalQueue};
use forebay_base::{IoFlags, Result};
use std::sync::Arc;

/// Description of an export for clients. It is read again for each client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExportInfo {
    /// Size in bytes.
    pub size: u64,
    /// Smallest request, bytes: any multiple of it is served as offset and length.
    pub min_block: u32,
    /// Smallest request without read-modify-write, bytes.
    pub preferred_block: u32,
    /// Longest request, bytes.
    pub max_request: u32,
    /// Writes are refused.
    pub read_only: bool,
    /// Trim deallocates storage.
    pub can_trim: bool,
    /// Zeroing is faster than writing zeros.
    pub fast_zero: bool,
    /// A line of text for users.
    pub description: String,
}

/// One extent of an export's map.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// Length in bytes.
    pub len: u64,
    /// Nothing is allocated.
    pub hole: bool,
    /// It reads as zeros.
    pub zero: bool,
}

/// How to zero a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ZeroMode {
    /// Keep the storage allocated.
    pub keep_allocated: bool,
    /// Fail with `Unsupported` rather than write zeros block by block.
    pub fast_only: bool,
    /// Durable when it returns.
    pub fua: bool,
}

/// The buffer of the caller, and the result.
pub type BufResult = (AlignedBuf, Result<()>);

/// A range of bytes that front ends serve: size, reads, writes, flush, trim, zero, map.
///
/// Any byte range inside the size is accepted. `try_*` are the fast paths: they complete without
/// waiting and without allocation, or return `None` and have changed nothing. The futures own their
/// buffers and may be dropped at any time; the request may still take effect then.
pub trait Export: Send + Sync {
    /// The description for clients.
    fn info(&self) -> ExportInfo;

    /// The size of [`Export::info`], bytes; called for each request.
    fn size(&self) -> u64 {
        self.info().size
    }

    /// Reads if that needs no waiting.
    fn try_read(&self, offset: u64, dst: &mut [u8], flags: IoFlags) -> Option<Result<()>>;

    /// Reads `buf.len()` bytes.
    fn read(
        self: Arc<Self>,
        offset: u64,
        buf: AlignedBuf,
        flags: IoFlags,
    ) -> BoxFuture<'static, BufResult>;

    /// Writes if that needs no waiting.
    fn try_write(&self, offset: u64, src: &[u8], flags: IoFlags) -> Option<Result<()>>;

    /// Writes `buf`. `IoFlags::DSYNC` is FUA.
    fn write(
        self: Arc<Self>,
        offset: u64,
        buf: AlignedBuf,
        flags: IoFlags,
    ) -> BoxFuture<'static, BufResult>;

    /// Makes every completed write durable, of all clients.
    fn flush(self: Arc<Self>) -> BoxFuture<'static, Result<()>>;

    /// Deallocates the range, which may read as zeros afterwards. Advisory.
    fn trim(self: Arc<Self>, offset: u64, len: u64, fua: bool) -> BoxFuture<'static, Result<()>>;

    /// Makes the range read as zeros.
    fn zero(
        self: Arc<Self>,
        offset: u64,
        len: u64,
        mode: ZeroMode,
    ) -> BoxFuture<'static, Result<()>>;

    /// Starts to read the range into the cache, as far as it has space. Advisory: reads may be in
    /// flight when it returns, and their errors are not reported.
    fn prefetch(self: Arc<Self>, offset: u64, len: u64) -> BoxFuture<'static, Result<()>>;

    /// The map of the range in ascending order, at most `max` (1 or more) extents, so it may end
    /// early. Each poll is short, however many extents there are.
    fn extents(
        self: Arc<Self>,
        offset: u64,
        len: u64,
        max: usize,
    ) -> BoxFuture<'static, Result<Vec<Extent>>>;

    /// The same export for one client: read-ahead streams are detected for each client, and each
    /// client gets a write error once. `None`: the export has no state for each client.
    fn for_client(&self) -> Option<Arc<dyn Export>> {
        None
    }

    /// An I/O queue for the calling event-loop thread, if the I/O engine has such queues.
    fn attach_thread(&self) -> Option<Box<dyn LocalQueue>>;
}
