//! What a block device is.

use crate::bio::{Bio, BioFlags, BioOp, Completion};
use forebay_base::buf::{AlignedBuf, DataRef};
use forebay_base::task::{BoxFuture, LocalQueue, block_on, oneshot};
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

/// What a device can do and wants. Read anew for each decision: it may change while open.
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

/// Submit a bio, complete it later.
///
/// Rules for implementors: each bio is completed exactly once, by [`Bio::complete`]; a transfer
/// that is short is an error; a flush covers every write *completed* before it was submitted
/// (L5); `Discard` is advisory; requests outside `size` fail with `OutOfRange`.
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

    /// Makes the device longer; new bytes read as zeros. Never makes it shorter. `Unsupported` where
    /// the size is fixed.
    fn grow(&self, size: u64) -> Result<()> {
        let text = format!("{} has a fixed size of {}, not {size}", self.name(), self.size());
        Err(Error::new(ErrorKind::Unsupported, "grow", text))
    }

    /// Makes the device shorter; what lies behind `size` is gone, and reads as zeros if it grows again.
    /// No write behind `size` is in flight; a read that is may fail, or find anything. `Unsupported` where
    /// the size is fixed.
    fn truncate(&self, size: u64) -> Result<()> {
        let text = format!("{} has a fixed size of {}, not {size}", self.name(), self.size());
        Err(Error::new(ErrorKind::Unsupported, "truncate", text))
    }

    /// Starts the request and returns; it completes on whatever thread the engine uses, or
    /// inside [`LocalQueue::reap`] if this thread has a queue attached; but write-back that was held
    /// while the disk was read, on the thread that made room for it.
    fn submit(&self, bio: Bio);

    /// Starts several requests in order of the vector; drains it.
    fn submit_batch(&self, bios: &mut Vec<Bio>) {
        for bio in bios.drain(..) {
            self.submit(bio);
        }
    }

    /// Whether so much waits that whoever can should wait for [`BlockDevice::room`] before it
    /// submits more. What is submitted anyway waits its turn.
    fn is_crowded(&self) -> bool {
        false
    }

    /// Waits until the device is not crowded.
    fn room(&self) -> BoxFuture<'_, ()> {
        Box::pin(std::future::ready(()))
    }

    /// Like `submit`, but may carry the request out on this thread: for a caller that would wait
    /// for it anyway.
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

    /// Which ranges of `[offset, offset + len)` hold data, as far as the device knows: runs in order
    /// from `offset` on, at most `max` (1 or more) of them and perhaps fewer, so that no call is long.
    /// The system calls that it takes are made on another thread: event loops may ask.
    fn extents(&self, offset: u64, len: u64, _max: usize) -> BoxFuture<'static, Result<MapRuns>> {
        Box::pin(std::future::ready(Ok(vec![(offset, len, true)])))
    }

    /// An I/O queue for the calling event-loop thread, if the engine has such a thing.
    fn attach_thread(&self) -> Option<Box<dyn LocalQueue>> {
        None
    }
}

/// Submits one request and waits for it; before that for room, if the device is crowded.
pub async fn io<D: BlockDevice + ?Sized>(
    device: &D,
    op: BioOp,
    offset: u64,
    len: u64,
    data: DataRef,
    flags: BioFlags,
) -> Completion {
    io_owned(device, op, offset, len, data, flags, ()).await
}

/// [`io`] for a caller that may be dropped while the request is in flight: the bio keeps `owned`, and lets
/// go of it before the caller learns that the request is over.
pub async fn io_owned<D: BlockDevice + ?Sized>(
    device: &D,
    op: BioOp,
    offset: u64,
    len: u64,
    data: DataRef,
    flags: BioFlags,
    owned: impl Send + 'static,
) -> Completion {
    if device.is_crowded() {
        device.room().await;
    }
    let (tx, rx) = oneshot();
    let end = Box::new(move |done| {
        drop(owned);
        tx.send(done);
    });
    device.submit(Bio::new(op, offset, len, data, end).with_flags(flags));
    rx.await.unwrap_or_else(gone)
}

/// Flushes, on this thread if the device lets it: for a caller that blocks.
pub async fn flush_here<D: BlockDevice + ?Sized>(device: &D) -> Completion {
    let (tx, rx) = oneshot();
    let end = Box::new(move |done| tx.send(done));
    let bio = Bio::new(BioOp::Flush, 0, 0, DataRef::None, end);
    device.execute(bio.with_flags(BioFlags::SYNC));
    rx.await.unwrap_or_else(gone)
}

fn gone() -> Completion {
    let error = Error::new(ErrorKind::Shutdown, "io", "the device went away");
    Completion { data: DataRef::None, result: Err(error) }
}
