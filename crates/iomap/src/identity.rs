//! The map of a raw image: a byte of the file is the same byte of the device.

use crate::ops::{Extent, MapFuture, MapOps, Place, Reservation};
use forebay_base::buf::{AlignedBuf, DataRef};
use forebay_base::sync::atomic::{AtomicU64, Ordering};
use forebay_base::task::BoxFuture;
use forebay_base::units::round_up;
use forebay_base::{Error, ErrorKind, Result};
use forebay_block::{BioFlags, BioOp, DeviceRef, MapRuns, io};
use std::ops::Range;

/// Longest run of zeros written at once where the device cannot zero, bytes.
const ZERO_CHUNK: u64 = 256 << 10;

/// See the module.
pub struct Identity {
    device: DeviceRef,
    seq: AtomicU64,
}

impl Identity {
    /// The map of a whole device.
    pub fn new(device: DeviceRef) -> Self {
        Self { device, seq: AtomicU64::new(0) }
    }

    async fn device_zero(&self, op: BioOp, range: &Range<u64>, flags: BioFlags) -> Result<()> {
        let len = range.end - range.start;
        io(&*self.device, op, range.start, len, DataRef::None, flags).await.result
    }

    async fn zero_range(&self, range: Range<u64>, keep: bool, fast_only: bool) -> Result<()> {
        let block = u64::from(self.device.limits().logical_block);
        let range = range.start..round_up(range.end, block);
        let mut flags = BioFlags::SYNC | BioFlags::FAST_ONLY;
        if keep {
            flags |= BioFlags::NO_UNMAP;
        }
        let fast = self.device_zero(BioOp::WriteZeroes, &range, flags).await;
        match fast {
            Err(e) if e.kind() == ErrorKind::Unsupported && !fast_only => {}
            other => return other,
        }
        let mut at = range.start;
        while at < range.end {
            let len = ZERO_CHUNK.min(range.end - at);
            let data = DataRef::Buf(AlignedBuf::new(len as usize));
            io(&*self.device, BioOp::Write, at, len, data, BioFlags::SYNC).await.result?;
            at += len;
        }
        Ok(())
    }
}

impl MapOps for Identity {
    fn device(&self) -> &DeviceRef {
        &self.device
    }

    fn unit(&self) -> u32 {
        self.device.limits().logical_block
    }

    fn map(&self, range: Range<u64>) -> MapFuture<'_, Result<Extent>> {
        let len = range.end - range.start;
        let device_offset = Some(range.start);
        MapFuture::Now(Some(Ok(Extent { offset: range.start, len, device_offset, pin: None })))
    }

    fn reserve(&self, range: Range<u64>) -> Result<Reservation> {
        let seq = self.seq.fetch_add(1, Ordering::Relaxed);
        let (offset, len) = (range.start, range.end - range.start);
        Ok(Reservation { seq, places: vec![Place { offset, len, device_offset: offset }] })
    }

    fn publish(&self, _reservation: Reservation) -> Result<()> {
        Ok(())
    }

    fn abort(&self, _reservation: Reservation, _error: &Error) {}

    fn zero(
        &self,
        range: Range<u64>,
        keep_allocated: bool,
        fast_only: bool,
    ) -> BoxFuture<'_, Result<()>> {
        Box::pin(self.zero_range(range, keep_allocated, fast_only))
    }

    fn can_grow(&self) -> bool {
        self.device.can_grow()
    }

    fn can_zero(&self) -> (bool, bool) {
        let limits = self.device.limits();
        (limits.write_zeroes, limits.discard)
    }

    fn extents(&self, range: Range<u64>, max: usize) -> BoxFuture<'_, Result<MapRuns>> {
        self.device.extents(range.start, range.end - range.start, max)
    }
}
