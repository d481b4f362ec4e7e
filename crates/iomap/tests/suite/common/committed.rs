//! An out-of-place map that records the state after a crash: the map at the start of the newest
//! successful commit, as a volume's log would find it. The places that it names are kept from
//! reuse, as a checkpoint's are.

use forebay_base::Result;
use forebay_base::task::BoxFuture;
use forebay_block::{DeviceRef, MapRuns};
use forebay_iomap::{
    Admit, Change, Class, Commit, Extent, Lookup, MapFuture, MapInfo, MapOps, Place, Reservation,
    Written,
};
use forebay_testkit::remap::{Image, Remap};
use std::ops::Range;
use std::sync::Mutex;

pub struct Committed {
    map: forebay_base::sync::Arc<Remap>,
    /// Commits begun; the newest that worked, and its map.
    state: Mutex<(u64, u64, Image)>,
}

impl Committed {
    /// What is there now is durable.
    pub fn new(map: forebay_base::sync::Arc<Remap>) -> Self {
        let image = map.image();
        Self { map, state: Mutex::new((0, 0, image)) }
    }

    /// What a crash leaves.
    pub fn image(&self) -> Image {
        self.state.lock().unwrap().2.clone()
    }
}

impl MapOps for Committed {
    fn device(&self) -> &DeviceRef {
        self.map.device()
    }
    fn info(&self) -> MapInfo {
        self.map.info()
    }
    fn map(&self, range: Range<u64>, why: Lookup) -> MapFuture<'_, Result<Extent>> {
        self.map.map(range, why)
    }
    fn admit(&self, new: u64, dirty: u64, of: Admit<'_>) -> Result<()> {
        self.map.admit(new, dirty, of)
    }
    fn arrived(&self, bytes: u64) {
        self.map.arrived(bytes);
    }
    fn reserve(
        &self,
        runs: &[Range<u64>],
        class: Class,
        places: &mut Vec<Place>,
    ) -> MapFuture<'_, Result<Reservation>> {
        self.map.reserve(runs, class, places)
    }
    fn sequence(&self) -> u64 {
        self.map.sequence()
    }
    fn publish(&self, reservation: &Reservation, written: &[Written], size: u64) {
        self.map.publish(reservation, written, size)
    }
    fn published_size(&self) -> Option<u64> {
        self.map.published_size()
    }
    fn commit(&self, what: Commit, here: bool) -> BoxFuture<'_, Result<()>> {
        let (mine, image) = {
            let mut state = self.state.lock().unwrap();
            state.0 += 1;
            (state.0, self.map.image())
        };
        Box::pin(async move {
            self.map.commit(what, here).await?;
            let mut state = self.state.lock().unwrap();
            if mine > state.1 {
                (state.1, state.2) = (mine, image);
            }
            Ok(())
        })
    }
    fn change(&self, change: Change) -> MapFuture<'_, Result<()>> {
        self.map.change(change)
    }
    fn extents(&self, range: Range<u64>, max: usize) -> BoxFuture<'_, Result<MapRuns>> {
        self.map.extents(range, max)
    }
}
