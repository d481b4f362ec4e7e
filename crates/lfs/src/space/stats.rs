//! Figures of how a volume uses its segments, and of the free space that writers do not get.
//!
//! ```text
//!   all segments = free | dead | data | log | tree
//!   free + open  = held back (for recovery, log, checkpoints, cleaner, accepted content,
//!                  truncates, overwrites) | writable
//! ```
//! No locks: the volume's state lock covers it.

use crate::format::usage::Stream;
use crate::space::Space;
use crate::space::segment::Phase;

/// The use of a volume's segments at present. Live bytes are those of the newest checkpoint.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SpaceStats {
    /// Bytes of a segment.
    pub segment_bytes: u64,
    /// The number of segments: the sum of the next five fields.
    pub segments: u64,
    /// Segments that may be taken.
    pub free_segments: u64,
    /// Segments without live data, which checkpoints and discards make free.
    pub dead_segments: u64,
    /// Segments with data of files.
    pub data_segments: u64,
    /// Segments with log records, and content in them.
    pub log_segments: u64,
    /// Segments with tree nodes.
    pub tree_segments: u64,
    /// Live bytes of content of files, in data and log segments.
    pub live_content_bytes: u64,
    /// Live bytes of tree nodes, both copies.
    pub live_tree_bytes: u64,
    /// Unused bytes of open segments, which new content may take.
    pub open_bytes: u64,
    /// Bytes of new content that writers may write now.
    pub writable_bytes: u64,
    /// Free bytes that writers of new content may not use.
    pub held_back: HeldBack,
}

impl SpaceStats {
    /// The share of all segments' bytes that is live, from 0 to 1.
    pub fn live_share(&self) -> f64 {
        let live = self.live_content_bytes + self.live_tree_bytes;
        live as f64 / (self.segments * self.segment_bytes).max(1) as f64
    }
}

/// Free bytes that writers of new content may not use, by reason. Each reason states what it wants,
/// so on a full volume the sum may exceed what is free.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct HeldBack {
    /// For an opening, and for a log that has to move after a failure.
    pub recovery_bytes: u64,
    /// For the grants of the log, and to leave a log segment with content.
    pub log_bytes: u64,
    /// For nodes of the next checkpoints.
    pub checkpoint_bytes: u64,
    /// For the cleaner.
    pub cleaner_bytes: u64,
    /// For accepted content that is not written out, with its items in the tree.
    pub accepted_bytes: u64,
    /// For the last blocks of truncated files.
    pub truncate_bytes: u64,
    /// So that all content can be overwritten: what is free beyond the volume's capacity.
    pub overwrite_bytes: u64,
}

impl HeldBack {
    /// The sum over all reasons.
    pub fn total_bytes(&self) -> u64 {
        let log = self.recovery_bytes + self.log_bytes + self.checkpoint_bytes;
        log + self.cleaner_bytes + self.accepted_bytes + self.truncate_bytes + self.overwrite_bytes
    }
}

impl Space {
    /// The figures that the segments and the grants determine. The caller adds the others.
    pub fn stats(&self, held_back: HeldBack) -> SpaceStats {
        let bytes = self.layout.segment_bytes();
        let mut stats = SpaceStats {
            segment_bytes: bytes,
            segments: u64::from(self.layout.segments),
            open_bytes: self.data_left(),
            held_back,
            ..SpaceStats::default()
        };
        for (_, this) in self.segments.iter() {
            let count = match (this.phase, this.stream) {
                (Phase::Free, _) => &mut stats.free_segments,
                (_, Stream::Tree) => &mut stats.tree_segments,
                (Phase::Dead | Phase::Discarding, _) => &mut stats.dead_segments,
                (_, Stream::Log) => &mut stats.log_segments,
                (_, Stream::Data | Stream::None) => &mut stats.data_segments,
            };
            *count += 1;
            let live = match this.stream {
                Stream::Tree => &mut stats.live_tree_bytes,
                _ => &mut stats.live_content_bytes,
            };
            *live += this.live_bytes;
        }
        stats
    }
}
