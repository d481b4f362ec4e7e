//! An injected fault: a raw image whose zeroing releases its range before its request has ended,
//! once the task that waits for it is dropped.
//!
//! No locks.

use forebay_base::Result;
use forebay_base::task::BoxFuture;
use forebay_block::{DeviceRef, MapRuns};
use forebay_iomap::identity::Identity;
use forebay_iomap::{
    Change, Class, Commit, Extent, Lookup, MapFuture, MapInfo, MapOps, Place, Reservation, Written,
};
use std::ops::Range;
use std::sync::Arc;

/// The map of a raw image whose zero requests do not hold the range that they zero.
pub struct EarlyRelease(pub Identity);

impl MapOps for EarlyRelease {
    fn device(&self) -> &DeviceRef {
        self.0.device()
    }
    fn info(&self) -> MapInfo {
        self.0.info()
    }
    fn map(&self, range: Range<u64>, why: Lookup) -> MapFuture<'_, Result<Extent>> {
        self.0.map(range, why)
    }
    fn reserve(
        &self,
        runs: &[Range<u64>],
        class: Class,
        places: &mut Vec<Place>,
    ) -> MapFuture<'_, Result<Reservation>> {
        self.0.reserve(runs, class, places)
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
    fn change(&self, change: Change) -> MapFuture<'_, Result<()>> {
        let Change::Zero { range, keep_allocated, fast_only, owned } = change else {
            return self.0.change(change);
        };
        MapFuture::Later(Box::pin(async move {
            // The task holds the range (`owned`), and the request does not.
            let unowned = Arc::new(());
            let zero = Change::Zero { range, keep_allocated, fast_only, owned: unowned };
            let done = self.0.change(zero).await;
            drop(owned);
            done
        }))
    }
    fn extents(&self, range: Range<u64>, max: usize) -> BoxFuture<'_, Result<MapRuns>> {
        self.0.extents(range, max)
    }
}
