//! An injected fault: a raw image whose zeroing releases its range before its request has ended,
//! once the task that waits for it is dropped.
//!
//! No locks.

use forebay_base::Result;
use forebay_base::task::BoxFuture;
use forebay_block::{DeviceRef, MapRuns};
use forebay_iomap::identity::Identity;
use forebay_iomap::{
    BioOwned, Class, Commit, Extent, MapFuture, MapLimits, MapOps, Reservation, Written,
};
use std::ops::Range;
use std::sync::Arc;

/// The map of a raw image whose zero requests do not hold the range that they zero.
pub struct EarlyRelease(pub Identity);

impl MapOps for EarlyRelease {
    fn device(&self) -> &DeviceRef {
        self.0.device()
    }
    fn limits(&self) -> MapLimits {
        self.0.limits()
    }
    fn map(&self, range: Range<u64>) -> MapFuture<'_, Result<Extent>> {
        self.0.map(range)
    }
    fn reserve(&self, runs: &[Range<u64>], class: Class) -> MapFuture<'_, Result<Reservation>> {
        self.0.reserve(runs, class)
    }
    fn sequence(&self) -> u64 {
        self.0.sequence()
    }
    fn publish(&self, reservation: &Reservation, written: &[Written], size: u64) {
        self.0.publish(reservation, written, size);
    }
    fn commit(&self, what: Commit, here: bool) -> BoxFuture<'_, Result<()>> {
        self.0.commit(what, here)
    }
    fn fua_suffices(&self) -> bool {
        self.0.fua_suffices()
    }
    fn zero(
        &self,
        range: Range<u64>,
        keep: bool,
        fast: bool,
        owned: BioOwned,
    ) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            // The task holds the range (`owned`), and the request does not.
            let done = self.0.zero(range, keep, fast, Arc::new(())).await;
            drop(owned);
            done
        })
    }
    fn can_grow(&self) -> bool {
        self.0.can_grow()
    }
    fn truncate(&self, size: u64, owned: BioOwned) -> BoxFuture<'_, Result<()>> {
        self.0.truncate(size, owned)
    }
    fn can_zero(&self) -> (bool, bool) {
        self.0.can_zero()
    }
    fn extents(&self, range: Range<u64>, max: usize) -> BoxFuture<'_, Result<MapRuns>> {
        self.0.extents(range, max)
    }
}
