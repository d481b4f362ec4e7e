//! A map that takes its time where a volume may: a window between the look at what is dirty and its
//! capture, and between the look at the map and the read.

use forebay_base::Result;
use forebay_base::sim_world::SimWorld;
use forebay_base::task::BoxFuture;
use forebay_base::world::World;
use forebay_block::{DeviceRef, MapRuns};
use forebay_iomap::{
    Change, Class, Commit, Extent, Lookup, MapFuture, MapInfo, MapOps, Place, Reservation, Written,
};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

pub struct Waiting {
    pub map: Arc<dyn MapOps>,
    pub world: Arc<SimWorld>,
}

impl Waiting {
    async fn wait(&self) {
        let draw = self.world.random();
        if draw.is_multiple_of(3) {
            self.world.sleep(Duration::from_nanos(1_000 + (draw >> 8) % 200_000)).await;
        }
    }
}

impl MapOps for Waiting {
    fn device(&self) -> &DeviceRef {
        self.map.device()
    }
    fn info(&self) -> MapInfo {
        self.map.info()
    }
    fn map(&self, range: Range<u64>, why: Lookup) -> MapFuture<'_, Result<Extent>> {
        MapFuture::Later(Box::pin(async move {
            let extent = self.map.map(range, why).await;
            self.wait().await;
            extent
        }))
    }
    fn reserve(
        &self,
        runs: &[Range<u64>],
        class: Class,
        _places: &mut Vec<Place>,
    ) -> MapFuture<'_, Result<Reservation>> {
        let runs = runs.to_vec();
        MapFuture::Later(Box::pin(async move {
            self.wait().await;
            self.map.reserve(&runs, class, &mut Vec::new()).await
        }))
    }
    fn sequence(&self) -> u64 {
        self.map.sequence()
    }
    fn publish(&self, reservation: &Reservation, written: &[Written], size: u64) {
        self.map.publish(reservation, written, size)
    }
    fn commit(&self, what: Commit, here: bool) -> BoxFuture<'_, Result<()>> {
        self.map.commit(what, here)
    }
    fn change(&self, change: Change) -> MapFuture<'_, Result<()>> {
        MapFuture::Later(Box::pin(async move {
            self.wait().await;
            self.map.change(change).await
        }))
    }
    fn extents(&self, range: Range<u64>, max: usize) -> BoxFuture<'_, Result<MapRuns>> {
        self.map.extents(range, max)
    }
}
