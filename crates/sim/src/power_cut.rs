//! A moment at which the power may fail: the content of the disk then, and the writes that it may
//! lose.
//!
//! No locks.

use crate::config::SimConfig;
use crate::fault::FaultCounts;
use crate::media::{Media, Pending};
use forebay_base::world::split_mix;

/// A moment at which the power may fail.
#[derive(Clone)]
pub struct PowerCut {
    pub(crate) media: Media,
    /// The writes that a power loss may keep or lose: those pending on the media, then those in
    /// flight.
    pub(crate) parts: Vec<Pending>,
    pub(crate) config: SimConfig,
    tag: u64,
}

impl PowerCut {
    /// The moment of a disk that stores this, with these writes in flight.
    pub(crate) fn new(media: Media, in_flight: Vec<Pending>, config: SimConfig, tag: u64) -> Self {
        let parts = media.pending.iter().cloned().chain(in_flight).collect();
        Self { media, parts, config, tag }
    }

    /// The last tag that [`SimDisk::tag_cuts`](crate::SimDisk::tag_cuts) set before this moment.
    pub fn tag(&self) -> u64 {
        self.tag
    }

    /// A digest of all contents that the disk may have then.
    pub fn sum(&self) -> u64 {
        let mut sum = self.media.durable.sum();
        for (number, content) in self.parts.iter().flat_map(|part| &part.changes) {
            sum ^= content.as_ref().map_or(0, |sector| sector.share(*number));
            sum = split_mix(&mut sum);
        }
        sum
    }

    /// The faults of the disk until then.
    pub fn faults(&self) -> FaultCounts {
        self.media.counts
    }

    /// Writes that may be lost.
    pub fn pending(&self) -> usize {
        self.parts.len()
    }
}
