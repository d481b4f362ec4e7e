//! An out-of-place map that knows what a crash leaves of it: the map at the start of the newest commit
//! that worked, as a volume's log would find it. The places that it names are kept from reuse, as a
//! checkpoint's are.

use forebay_base::Result;
use forebay_base::task::BoxFuture;
use forebay_block::{DeviceRef, MapRuns};
use forebay_iomap::{
    BioOwned, Class, Commit, Extent, MapFuture, MapLimits, MapOps, Reservation, Written,
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
    fn limits(&self) -> MapLimits {
        self.map.limits()
    }
    fn map(&self, range: Range<u64>) -> MapFuture<'_, Result<Extent>> {
        self.map.map(range)
    }
    fn admit(&self, new: u64, dirty: u64) -> Result<()> {
        self.map.admit(new, dirty)
    }
    fn admit_edge(&self, new: u64) -> Result<()> {
        self.map.admit_edge(new)
    }
    fn arrived(&self, bytes: u64) {
        self.map.arrived(bytes);
    }
    fn reserve(&self, runs: &[Range<u64>], class: Class) -> MapFuture<'_, Result<Reservation>> {
        self.map.reserve(runs, class)
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
    fn zero(
        &self,
        range: Range<u64>,
        keep: bool,
        fast: bool,
        owned: BioOwned,
    ) -> BoxFuture<'_, Result<()>> {
        self.map.zero(range, keep, fast, owned)
    }
    fn can_grow(&self) -> bool {
        self.map.can_grow()
    }
    fn grow(&self, size: u64) -> Result<()> {
        self.map.grow(size)
    }
    fn truncate(&self, size: u64, owned: BioOwned) -> BoxFuture<'_, Result<()>> {
        self.map.truncate(size, owned)
    }
    fn can_zero(&self) -> (bool, bool) {
        self.map.can_zero()
    }
    fn extents(&self, range: Range<u64>, max: usize) -> BoxFuture<'_, Result<MapRuns>> {
        self.map.extents(range, max)
    }
}
