//! A moment at which the power may go: what the disk stores then, and what it may lose.
//!
//! No locks.

use crate::config::SimConfig;
use crate::media::{Media, Pending};
use forebay_base::world::split_mix;

/// A moment at which the power may go.
#[derive(Clone)]
pub struct PowerCut {
    pub(crate) media: Media,
    /// What a power cut may lose: what is pending on the media, then writes in flight.
    pub(crate) parts: Vec<Pending>,
    pub(crate) config: SimConfig,
    tag: u64,
}

impl PowerCut {
    /// Of a disk that stores this, with these writes in flight.
    pub(crate) fn new(media: Media, in_flight: Vec<Pending>, config: SimConfig, tag: u64) -> Self {
        let parts = media.pending.iter().cloned().chain(in_flight).collect();
        Self { media, parts, config, tag }
    }

    /// What [`SimDisk::tag_cuts`] said last before this moment.
    pub fn tag(&self) -> u64 {
        self.tag
    }

    /// One number for all that the disk may hold then.
    pub fn sum(&self) -> u64 {
        let mut sum = self.media.durable.sum();
        for (number, content) in self.parts.iter().flat_map(|part| &part.changes) {
            sum ^= content.as_ref().map_or(0, |sector| sector.share(*number));
            sum = split_mix(&mut sum);
        }
        sum
    }

    /// Writes that may be lost.
    pub fn pending(&self) -> usize {
        self.parts.len()
    }
}
