//! The map of a raw image: a byte of the file is the same byte of the device.

use crate::ops::{
    BioOwned, Change, Class, Commit, Extent, Lookup, MapFuture, MapInfo, MapOps, Place,
    Reservation, Written,
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

    fn info(&self) -> MapInfo {
        let limits = self.device.limits();
        MapInfo {
            label: (0, 0),
            unit: limits.logical_block,
            sums: false,
            stable: limits.stable_writes,
            fua_suffices: true,
            tracks_losses: false,
            can_grow: self.device.can_grow(),
            zeroes_fast: limits.write_zeroes,
            zeroing_frees: limits.discard,
        }
    }

    fn map(&self, range: Range<u64>, _why: Lookup) -> MapFuture<'_, Result<Extent>> {
        let (offset, len) = (range.start, range.end - range.start);
        let (device_offset, in_memory) = (Some(offset), false);
        let extent = Extent { offset, len, device_offset, sums: None, pin: None, in_memory };
        MapFuture::Now(Some(Ok(extent)))
    }

    fn extents(&self, range: Range<u64>, max: usize) -> BoxFuture<'_, Result<MapRuns>> {
        self.device.extents(range.start, range.end - range.start, max)
    }

    fn reserve(
        &self,
        runs: &[Range<u64>],
        _class: Class,
        places: &mut Vec<Place>,
    ) -> MapFuture<'_, Result<Reservation>> {
        let mut places = std::mem::take(places);
        places.extend(runs.iter().map(|run| Place {
            offset: run.start,
            len: run.end - run.start,
            device_offset: run.start,
        }));
        MapFuture::Now(Some(Ok(Reservation::in_place(places))))
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

    fn change(&self, change: Change) -> MapFuture<'_, Result<()>> {
        // The device's own calls change it at once. No request waits in a queue, so what
        // the operation owns is dropped at their end.
        match change {
            Change::Zero { range, keep_allocated, fast_only, owned } => {
                let zeroed = self.zero_range(range, keep_allocated, fast_only, owned);
                MapFuture::Later(Box::pin(zeroed))
            }
            Change::Grow(size) => MapFuture::Now(Some(self.device.grow(size))),
            Change::Truncate(size, _owned) => MapFuture::Now(Some(self.device.truncate(size))),
        }
    }
}
