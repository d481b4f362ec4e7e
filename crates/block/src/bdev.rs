//! The block device: the interface that files, memory devices and decorators implement.

use crate::bio::{Bio, BioFlags, BioOp, Completion};
use forebay_base::buf::{AlignedBuf, DataRef};
use forebay_base::task::{BoxFuture, LocalQueue, block_on};
use forebay_base::{Error, ErrorKind, Result};
use std::sync::Arc;

/// Runs of a map: `(offset, length, is_data)`, bytes.
pub type MapRuns = Vec<(u64, u64, bool)>;

/// Whether bytes must not change between submission and completion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StableWrites {
    /// They must not.
    pub required: bool,
    /// Why, or why not, in a few words.
    pub reason: &'static str,
}

/// Limits and features of a device. They may change while it is open, so each decision reads them
/// again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Smallest addressable unit, bytes: offsets and lengths must be multiples of it.
    pub logical_block: u32,
    /// Unit that the medium writes without read-modify-write, bytes.
    pub physical_block: u32,
    /// Alignment of memory, bytes.
    pub memory_align: u32,
    /// Longest single transfer, bytes.
    pub max_transfer: u32,
    /// Longest list of segments in one bio.
    pub max_segments: u32,
    /// Stable write need.
    pub stable_writes: StableWrites,
    /// Discard is supported.
    pub discard: bool,
    /// WriteZeroes is supported without writing zeros.
    pub write_zeroes: bool,
    /// The device refuses writes.
    pub read_only: bool,
}

/// A shared device.
pub type DeviceRef = Arc<dyn BlockDevice>;

/// A device that accepts bios and completes them later.
///
/// Rules for implementors: [`Bio::complete`] completes each bio exactly once. A short transfer is
/// an error. A flush covers every write *completed* before its submission (lineage.L5). A failed
/// request with [`BioFlags::FUA`] must not hide that it lost other completed writes: if it may have
/// (the device carries it out as a write and a flush), the next flush fails, too. Callers count
/// failed flushes, not failed writes. `Discard` is advisory. Requests outside `size` fail with
/// `OutOfRange`.
pub trait BlockDevice: Send + Sync {
    /// For messages: a path or a kind.
    fn name(&self) -> String;

    /// Current limits.
    fn limits(&self) -> Limits;

    /// Current size in bytes.
    fn size(&self) -> u64;

    /// Whether [`BlockDevice::grow`] can work.
    fn can_grow(&self) -> bool {
        false
    }

    /// Grows the device; new bytes read as zeros. Never shrinks it. `Unsupported` if the size is
    /// fixed.
    fn grow(&self, size: u64) -> Result<()> {
        let text = format!("{} has a fixed size of {}, not {size}", self.name(), self.size());
        Err(Error::new(ErrorKind::Unsupported, "grow", text))
    }

    /// Shrinks the device. Bytes behind `size` are lost, and read as zeros if the device grows
    /// again. The caller has no write behind `size` in flight; a read there may fail or return any
    /// bytes. `Unsupported` if the size is fixed.
    fn truncate(&self, size: u64) -> Result<()> {
        let text = format!("{} has a fixed size of {}, not {size}", self.name(), self.size());
        Err(Error::new(ErrorKind::Unsupported, "truncate", text))
    }

    /// Starts the request and returns. It completes on a thread of the engine, or inside
    /// [`LocalQueue::reap`] if this thread has a queue attached. Exception: write-back or
    /// read-ahead held back while the disk was read completes on the thread that admitted it.
    fn submit(&self, bio: Bio);

    /// Starts several requests in order of the vector; drains it.
    fn submit_batch(&self, bios: &mut Vec<Bio>) {
        for bio in bios.drain(..) {
            self.submit(bio);
        }
    }

    /// Whether so many requests wait that a caller should wait for
    /// [`BlockDevice::wait_for_capacity`] before it submits more. Requests submitted anyway wait in
    /// the queue.
    fn is_crowded(&self) -> bool {
        false
    }

    /// Waits until the device is not crowded.
    fn wait_for_capacity(&self) -> BoxFuture<'_, ()> {
        Box::pin(std::future::ready(()))
    }

    /// Like `submit`, but may carry the request out on the calling thread. For callers that block
    /// for the result.
    fn execute(&self, bio: Bio) {
        self.submit(bio);
    }

    /// Reads into the caller's memory, blocking this thread. One system call on a real device.
    fn read_into(&self, offset: u64, dst: &mut [u8]) -> Result<()> {
        let data = DataRef::Buf(AlignedBuf::new(dst.len()));
        let done = block_on(io(self, BioOp::Read, offset, dst.len() as u64, data, BioFlags::SYNC));
        done.result?;
        dst.copy_from_slice(&done.data.into_buf().expect("an owned buffer comes back (B2)"));
        Ok(())
    }

    /// Writes the caller's memory, blocking this thread. One system call on a real device.
    fn write_from(&self, offset: u64, src: &[u8], flags: BioFlags) -> Result<()> {
        let data = DataRef::Buf(AlignedBuf::copy_of(src));
        block_on(io(self, BioOp::Write, offset, src.len() as u64, data, flags)).result
    }

    /// Reports which ranges of `[offset, offset + len)` hold data, as far as the device knows.
    /// Returns at most `max` (1 or more) runs in order from `offset` on, perhaps fewer, so that no
    /// call takes long. Another thread makes the system calls, so event loops may call this.
    fn extents(&self, offset: u64, len: u64, _max: usize) -> BoxFuture<'static, Result<MapRuns>> {
        Box::pin(std::future::ready(Ok(vec![(offset, len, true)])))
    }

    /// An I/O queue for the calling event-loop thread, if the engine supports one.
    fn attach_thread(&self) -> Option<Box<dyn LocalQueue>> {
        None
    }
}

/// Submits one request and waits for it. Waits first while the device is crowded.
pub async fn io<D: BlockDevice + ?Sized>(
    device: &D,
    op: BioOp,
    offset: u64,
    len: u64,
    data: DataRef,
    flags: BioFlags,
) -> Completion {
    io_with_end(device, op, offset, len, data, flags, |_| {}).await
}

/// [`io`] for a caller that may be dropped while the request is in flight. The bio keeps `on_end`.
/// When the device ends the request, it calls `on_end` and drops what that captured, before the
/// caller learns that the request is over.
pub async fn io_with_end<D: BlockDevice + ?Sized>(
    device: &D,
    op: BioOp,
    offset: u64,
    len: u64,
    data: DataRef,
    flags: BioFlags,
    on_end: impl FnOnce(&Completion) + Send + 'static,
) -> Completion {
    if device.is_crowded() {
        device.wait_for_capacity().await;
    }
    let (bio, completion) = Bio::awaited(op, offset, len, data, |done| {
        on_end(&done);
        done
    });
    device.submit(bio.with_flags(flags));
    completion.await
}

/// Flushes, on the calling thread if the device can: for callers that block.
pub async fn flush_blocking<D: BlockDevice + ?Sized>(device: &D) -> Completion {
    let (bio, completion) = Bio::awaited(BioOp::Flush, 0, 0, DataRef::None, |done| done);
    device.execute(bio.with_flags(BioFlags::SYNC));
    completion.await
}
