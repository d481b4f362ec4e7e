//! A node store in memory, for tests: reads and writes can fail, stored bytes can be damaged.
//!
//! Locks: one, a leaf lock.

use super::store::{NodeStore, StoredNode};
use crate::format::place::{Geometry, Place};
use forebay_base::buf::AlignedBuf;
use forebay_base::sync::Mutex;
use forebay_base::task::BoxFuture;
use forebay_base::{Error, ErrorKind, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

#[derive(Default, Clone)]
pub(crate) struct State {
    pub(crate) nodes: BTreeMap<Place, Vec<u8>>,
    /// Reads of these places fail.
    pub(crate) unreadable: BTreeSet<Place>,
    /// Number of writes until writing fails.
    pub(crate) writes_left: Option<usize>,
    pub(crate) reads: u64,
    next: u32,
    returned: Vec<[Place; 2]>,
}

/// A node store in memory.
pub(crate) struct MemStore {
    geometry: Geometry,
    pub(crate) state: Mutex<State>,
}

impl MemStore {
    pub(crate) fn new(geometry: Geometry) -> Self {
        Self { geometry, state: Mutex::new(State::default()) }
    }

    /// A copy with the same content.
    pub(crate) fn fork(&self) -> Self {
        Self { geometry: self.geometry, state: Mutex::new(self.state.lock().clone()) }
    }

    pub(crate) fn give_back(&self, places: &[[Place; 2]]) {
        let mut state = self.state.lock();
        for place in places.iter().flatten() {
            state.nodes.remove(place);
        }
        state.returned.extend_from_slice(places);
    }

    /// Modifies the stored bytes of a place.
    pub(crate) fn damage(&self, place: Place, how: impl FnOnce(&mut Vec<u8>)) {
        how(self.state.lock().nodes.get_mut(&place).expect("a node that is there"));
    }

    fn read_now(&self, place: Place) -> Result<AlignedBuf> {
        let mut state = self.state.lock();
        state.reads += 1;
        let failed = |text: &str| Error::new(ErrorKind::Io, "read", format!("{text} {place:?}"));
        if state.unreadable.contains(&place) {
            return Err(failed("told to fail at"));
        }
        let bytes = state.nodes.get(&place).ok_or_else(|| failed("nothing was written at"))?;
        Ok(AlignedBuf::copy_of(bytes))
    }

    fn allocate_now(&self) -> [Place; 2] {
        let mut state = self.state.lock();
        if let Some(places) = state.returned.pop() {
            return places;
        }
        let per = self.geometry.segment_bytes() >> self.geometry.node_shift;
        let n = state.next;
        state.next += 1;
        let offset = (n % per) << self.geometry.node_shift;
        [Place::new(n / per * 2, offset), Place::new(n / per * 2 + 1, offset)]
    }

    fn write_now(&self, nodes: &[Arc<StoredNode>]) -> Result<()> {
        let mut state = self.state.lock();
        for node in nodes {
            match &mut state.writes_left {
                Some(0) => return Err(Error::new(ErrorKind::Io, "write", "told to fail")),
                Some(left) => *left -= 1,
                None => {}
            }
            for place in node.places() {
                let before = state.nodes.insert(place, node.bytes().to_vec());
                assert!(before.is_none(), "{place:?} is overwritten (B11)");
            }
        }
        Ok(())
    }
}

impl NodeStore for MemStore {
    fn read(&self, place: Place) -> BoxFuture<'_, Result<AlignedBuf>> {
        Box::pin(std::future::ready(self.read_now(place)))
    }

    fn read_run<'a>(&'a self, places: &'a [Place]) -> BoxFuture<'a, Result<AlignedBuf>> {
        let mut bytes = self.read_now(places[0]).map(|first| first.to_vec());
        if let Ok(bytes) = &mut bytes {
            let state = self.state.lock();
            let there =
                |place| state.nodes.get(place).filter(|_| !state.unreadable.contains(place));
            places[1..].iter().map_while(there).for_each(|node| bytes.extend_from_slice(node));
        }
        Box::pin(std::future::ready(bytes.map(|bytes| AlignedBuf::copy_of(&bytes))))
    }

    fn offset_of(&self, place: Place) -> Option<u64> {
        let segment_bytes = u64::from(self.geometry.segment_bytes());
        Some(u64::from(place.segment) * segment_bytes + u64::from(place.offset))
    }

    fn allocate(&self) -> BoxFuture<'_, Result<[Place; 2]>> {
        Box::pin(std::future::ready(Ok(self.allocate_now())))
    }

    fn write(&self, nodes: Vec<Arc<StoredNode>>) -> BoxFuture<'_, Result<()>> {
        Box::pin(std::future::ready(self.write_now(&nodes)))
    }
}
