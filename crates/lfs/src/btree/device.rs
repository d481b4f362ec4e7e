//! Nodes in a region of a block device, for tests: a range of segments with first copies in its
//! lower half and second copies in its upper half. So damage to one part of the device leaves the
//! other copies intact.
//!
//! Invariants: B91 a place is allocated once until it is given back. B92 complete nodes are written
//! to their allocated places; adjacent nodes are written in one transfer. B93 a write ends when all
//! of its transfers have, also if one fails.
//!
//! Locks: one over the free places, a leaf lock, never held across a wait.

use super::WHAT;
use super::store::{NodeStore, StoredNode};
use crate::format::place::{Geometry, Place};
use crate::format::{corrupt, refused};
use forebay_base::buf::{AlignedBuf, DataRef};
use forebay_base::sync::Mutex;
use forebay_base::task::BoxFuture;
use forebay_base::{Error, ErrorKind, Result};
use forebay_block::bdev::{DeviceRef, io};
use forebay_block::bio::{Bio, BioFlags, BioOp};
use std::ops::Range;
use std::sync::Arc;

struct Space {
    /// Pairs from this number on were never allocated.
    unused: u32,
    returned: Vec<[Place; 2]>,
}

/// A node store in a region of a block device.
pub struct DeviceStore {
    device: DeviceRef,
    geometry: Geometry,
    /// Offset of segment 0 on the device, bytes.
    data_start: u64,
    segments: Range<u32>,
    space: Mutex<Space>,
}

impl DeviceStore {
    /// A store in these segments, of which the first `used` pairs of places are in use.
    /// `InvalidInput` for less than two segments.
    pub fn new(
        device: DeviceRef,
        geometry: Geometry,
        data_start: u64,
        segments: Range<u32>,
        used: u32,
    ) -> Result<Self> {
        if segments.len() < 2 {
            return Err(refused(WHAT, format!("{segments:?} have no room for two copies")));
        }
        let space = Mutex::new(Space { unused: used, returned: Vec::new() });
        Ok(Self { device, geometry, data_start, segments, space })
    }

    /// Takes places back to which nothing durable refers.
    pub fn give_back(&self, places: &[[Place; 2]]) {
        self.space.lock().returned.extend_from_slice(places);
    }

    /// Number of free pairs of places.
    pub fn pairs_left(&self) -> usize {
        let space = self.space.lock();
        self.pairs().saturating_sub(space.unused) as usize + space.returned.len()
    }

    fn per_segment(&self) -> u32 {
        self.geometry.segment_bytes() >> self.geometry.node_shift
    }

    fn pairs(&self) -> u32 {
        (self.segments.len() as u32 / 2).saturating_mul(self.per_segment())
    }

    fn place(&self, first_segment: u32, n: u32) -> Place {
        let per = self.per_segment();
        Place::new(first_segment + n / per, (n % per) << self.geometry.node_shift)
    }

    fn take(&self) -> Result<[Place; 2]> {
        let mut space = self.space.lock();
        if let Some(places) = space.returned.pop() {
            return Ok(places);
        }
        let n = space.unused;
        if n >= self.pairs() {
            let text = format!("{WHAT}: all places of segments {:?} are taken", self.segments);
            return Err(Error::new(ErrorKind::NoSpace, "allocate", text));
        }
        space.unused += 1;
        let half = self.segments.start + self.segments.len() as u32 / 2;
        Ok([self.place(self.segments.start, n), self.place(half, n)])
    }

    fn offset(&self, place: Place) -> Result<u64> {
        let g = &self.geometry;
        g.check_run(WHAT, place, g.node_bytes() as u64)?;
        if !self.segments.contains(&place.segment) {
            return Err(corrupt(WHAT, format!("{place:?} is not in segments {:?}", self.segments)));
        }
        let segment = u64::from(place.segment) << g.segment_shift;
        Ok(self.data_start + segment + u64::from(place.offset))
    }

    async fn read_node(&self, place: Place) -> Result<AlignedBuf> {
        let (offset, len) = (self.offset(place)?, self.geometry.node_bytes());
        let data = DataRef::Buf(AlignedBuf::new(len));
        let done = io(&*self.device, BioOp::Read, offset, len as u64, data, BioFlags::SYNC).await;
        done.result.map_err(|e| e.with_range(offset, len as u64))?;
        let gone = || Error::new(ErrorKind::Io, "read", "the buffer did not come back");
        done.data.into_buf().ok_or_else(gone)
    }

    async fn write_nodes(&self, nodes: Vec<Arc<StoredNode>>) -> Result<()> {
        let mut copies = Vec::with_capacity(2 * nodes.len());
        for node in &nodes {
            for place in node.places() {
                copies.push((self.offset(place)?, node.bytes()));
            }
        }
        copies.sort_by_key(|(offset, _)| *offset);
        let most = self.device.limits().max_transfer as usize;
        let mut waits = Vec::new();
        let mut rest = &copies[..];
        while let Some((offset, first)) = rest.first() {
            let per = (most / first.len()).max(1);
            let next_to =
                |(n, (at, _)): &(usize, &(u64, &[u8]))| *at == offset + (*n * first.len()) as u64;
            let count = rest.iter().enumerate().take(per).take_while(next_to).count().max(1);
            let mut data = AlignedBuf::new(count * first.len());
            for (to, (_, from)) in data.chunks_exact_mut(first.len()).zip(rest) {
                to.copy_from_slice(from);
            }
            rest = &rest[count..];
            if self.device.is_crowded() {
                self.device.wait_for_capacity().await;
            }
            let len = data.len() as u64;
            let data = DataRef::Buf(data);
            let (bio, completion) = Bio::awaited(BioOp::Write, *offset, len, data, |done| done);
            self.device.submit(bio.with_flags(BioFlags::BACKGROUND));
            waits.push((*offset, len, completion));
        }
        let mut result = Ok(());
        for (offset, len, completion) in waits {
            let done = completion.await.result;
            result = result.and(done.map_err(|e| e.with_range(offset, len)));
        }
        result
    }
}

impl NodeStore for DeviceStore {
    fn read(&self, place: Place) -> BoxFuture<'_, Result<AlignedBuf>> {
        Box::pin(self.read_node(place))
    }

    fn allocate(&self) -> BoxFuture<'_, Result<[Place; 2]>> {
        Box::pin(std::future::ready(self.take()))
    }

    fn write(&self, nodes: Vec<Arc<StoredNode>>) -> BoxFuture<'_, Result<()>> {
        Box::pin(self.write_nodes(nodes))
    }
}
