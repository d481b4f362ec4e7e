//! The map of a raw image: a byte of the file is the same byte of the device.

use crate::ops::{
    BioOwned, Class, Commit, Extent, MapFuture, MapLimits, MapOps, Place, Reservation, Written,
};
use forebay_base::buf::{AlignedBuf, DataRef};
use forebay_base::task::BoxFuture;
use forebay_base::units::round_up;
use forebay_base::{ErrorKind, Result};
use forebay_block::{
    BioFlags, BioOp, Completion, DeviceRef, MapRuns, flush_blocking, io, io_with_end,
};
use std::ops::Range;

/// Longest run of zeros written at once where the device cannot zero, bytes.
const ZERO_CHUNK: u64 = 256 << 10;

/// The map of an object whose bytes have fixed places on the device.
pub struct Identity {
    device: DeviceRef,
}

impl Identity {
    /// The map of a whole device.
    pub fn new(device: DeviceRef) -> Self {
        Self { device }
    }

    async fn zero_range(
        &self,
        range: Range<u64>,
        keep: bool,
        fast_only: bool,
        owned: BioOwned,
    ) -> Result<()> {
        let block = u64::from(self.device.limits().logical_block);
        let range = range.start..round_up(range.end, block);
        let mut flags = BioFlags::SYNC | BioFlags::FAST_ONLY;
        if keep {
            flags |= BioFlags::NO_UNMAP;
        }
        let (op, len) = (BioOp::WriteZeroes, range.end - range.start);
        let data = DataRef::None;
        // The bio keeps what the operation owns until the device has ended it.
        let held = || {
            let owned = owned.clone();
            move |_: &Completion| drop(owned)
        };
        let fast = io_with_end(&*self.device, op, range.start, len, data, flags, held()).await;
        match fast.result {
            Err(e) if e.kind() == ErrorKind::Unsupported && !fast_only => {}
            other => return other,
        }
        let mut at = range.start;
        while at < range.end {
            let len = ZERO_CHUNK.min(range.end - at);
            let data = DataRef::Buf(AlignedBuf::new(len as usize));
            let (op, flags) = (BioOp::Write, BioFlags::SYNC);
            io_with_end(&*self.device, op, at, len, data, flags, held()).await.result?;
            at += len;
        }
        Ok(())
    }
}

impl MapOps for Identity {
    fn device(&self) -> &DeviceRef {
        &self.device
    }

    fn limits(&self) -> MapLimits {
        let limits = self.device.limits();
        MapLimits { unit: limits.logical_block, sums: false, stable: limits.stable_writes }
    }

    fn map(&self, range: Range<u64>) -> MapFuture<'_, Result<Extent>> {
        let (offset, len) = (range.start, range.end - range.start);
        let device_offset = Some(offset);
        let extent = Extent { offset, len, device_offset, sums: None, pin: None };
        MapFuture::Now(Some(Ok(extent)))
    }

    fn reserve(&self, runs: &[Range<u64>], class: Class) -> MapFuture<'_, Result<Reservation>> {
        MapFuture::Now(self.try_reserve(runs, class, &mut Vec::new()))
    }

    fn try_reserve(
        &self,
        runs: &[Range<u64>],
        _class: Class,
        places: &mut Vec<Place>,
    ) -> Option<Result<Reservation>> {
        let mut places = std::mem::take(places);
        places.extend(runs.iter().map(|run| Place {
            offset: run.start,
            len: run.end - run.start,
            device_offset: run.start,
        }));
        Some(Ok(Reservation::in_place(places)))
    }

    fn sequence(&self) -> u64 {
        // Two writes of a byte have the same place, so no code compares their sequences.
        0
    }

    fn publish(&self, _reservation: &Reservation, _written: &[Written], _size: u64) {}

    fn commit(&self, _what: Commit, here: bool) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            let device = &*self.device;
            let done = match here {
                true => flush_blocking(device).await,
                false => io(device, BioOp::Flush, 0, 0, DataRef::None, BioFlags::SYNC).await,
            };
            done.result
        })
    }

    fn fua_suffices(&self) -> bool {
        true
    }

    fn zero(
        &self,
        range: Range<u64>,
        keep_allocated: bool,
        fast_only: bool,
        owned: BioOwned,
    ) -> BoxFuture<'_, Result<()>> {
        Box::pin(self.zero_range(range, keep_allocated, fast_only, owned))
    }

    fn can_grow(&self) -> bool {
        self.device.can_grow()
    }

    fn truncate(&self, size: u64, owned: BioOwned) -> BoxFuture<'_, Result<()>> {
        // One system call on this thread. No request waits in a queue, so `owned` is dropped at its
        // end.
        Box::pin(async move {
            let done = self.device.truncate(size);
            drop(owned);
            done
        })
    }

    fn can_zero(&self) -> (bool, bool) {
        let limits = self.device.limits();
        (limits.write_zeroes, limits.discard)
    }

    fn extents(&self, range: Range<u64>, max: usize) -> BoxFuture<'_, Result<MapRuns>> {
        self.device.extents(range.start, range.end - range.start, max)
    }
}
