//! Who may take how much: room is promised before anything is done that needs it.
//!
//! ```text
//! all free segments = promises of the log | room for checkpoints | kept segments | what new things may take
//!
//! ```
//! Invariants: P11 promises of the log are kept: what is left of the open segment and what free segments
//! surely take (see [`Layout::left`]) is at least the sum of all promises. P12 the last [`KEPT_SEGMENTS`]
//! are promised only to records of what makes room or ends work: unlink, truncate, syncing; and one more to
//! content that was accepted, but not to what is new. P13 beside them there is
//! room for the nodes of a checkpoint, at most [`Space::need_nodes`] pairs: so that what makes room can be
//! made durable.
//!
//! No locks: the volume's state lock covers it.

use crate::format::place::Place;
use crate::format::usage::Stream;
use crate::layout::Layout;
use crate::nodes::NodeSlots;
use crate::segment::{Deltas, Phase, Plan, Segment, Segments};
use forebay_base::{Error, ErrorKind, Result};

/// Segments kept for records of removing, truncating and syncing (P12).
pub(crate) const KEPT_SEGMENTS: u64 = 2;
/// One more is kept for content that was accepted.
const KEPT_FROM_NEW: u64 = KEPT_SEGMENTS + 1;

/// Who asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Need {
    /// Something new: leaves the kept segments alone.
    New,
    /// Makes room, or makes durable what was promised before.
    Urgent,
}

/// See the module.
pub(crate) struct Space {
    layout: Layout,
    pub segments: Segments,
    pub nodes: NodeSlots,
    /// Pairs of nodes that a checkpoint may need (P13).
    need_nodes: u64,
    /// Bytes that the open log segment surely takes.
    log_left: u64,
    /// Open log segment.
    log: Option<u32>,
    /// Bytes of the log, and of data, since the last freeze.
    written: (u64, u64),
    /// Sum of promises, bytes.
    promised: u64,
    /// Open data segment, and the first byte that nobody has.
    data: Option<Place>,
}

impl Space {
    /// All free.
    pub fn new(layout: Layout) -> Self {
        Self {
            layout,
            segments: Segments::new(layout.segments),
            nodes: NodeSlots::new(layout.geometry),
            need_nodes: 0,
            log_left: 0,
            log: None,
            written: (0, 0),
            promised: 0,
            data: None,
        }
    }

    /// Segments that nobody may have because of P13.
    fn checkpoint_segments(&self) -> u64 {
        let wanted = (2 * self.need_nodes).saturating_sub(self.nodes.left());
        // The copies of a node lie in two segments.
        let another = wanted == 0 && self.need_nodes > 0 && self.nodes.wants_segment();
        wanted.div_ceil(u64::from(self.nodes.per_segment())) + u64::from(another)
    }

    fn left_alone(&self, need: Need) -> u64 {
        let kept = if need == Need::New { KEPT_FROM_NEW } else { 0 };
        kept + self.checkpoint_segments()
    }

    /// Bytes that the log surely takes.
    fn log_room(&self, need: Need) -> u64 {
        let free = self.segments.free().saturating_sub(self.left_alone(need));
        self.log_left + free * self.layout.log_bytes()
    }

    /// Bytes of the log that what is urgent may still be promised.
    pub fn unpromised(&self) -> u64 {
        self.log_room(Need::Urgent).saturating_sub(self.promised)
    }

    /// The next checkpoint may need so many pairs of nodes (P13).
    pub fn need_nodes(&mut self, pairs: u64) {
        self.need_nodes = pairs;
    }

    /// Promises `cost` bytes of the log (P11), or `NoSpace`.
    pub fn promise(&mut self, cost: u64, need: Need) -> Result<()> {
        if self.promised + cost > self.log_room(need) {
            let text = format!("{cost} bytes of the log wanted");
            return Err(Error::new(ErrorKind::NoSpace, "reserve", text));
        }
        self.promised += cost;
        Ok(())
    }

    /// A promise was used, or is not needed.
    pub fn settle(&mut self, cost: u64) {
        debug_assert!(self.promised >= cost, "P11: what is settled was promised");
        self.promised = self.promised.saturating_sub(cost);
    }

    /// The open log segment is filled up to `head`.
    pub fn log_head(&mut self, head: u64) {
        self.log_left = self.layout.left(head);
    }

    /// Bytes of data that there is room for beside all promises.
    pub fn data_room(&self, need: Need) -> u64 {
        let open = self.data_left();
        let log = self.promised.saturating_sub(self.log_left).div_ceil(self.layout.log_bytes());
        // What is urgent of data leaves the kept ones to the log.
        let kept = if need == Need::New { 0 } else { KEPT_SEGMENTS };
        let free = self.segments.free().saturating_sub(self.left_alone(need) + kept + log);
        open + free * self.layout.segment_bytes()
    }

    /// A segment for the log, which goes on there.
    pub fn take_log(&mut self) -> Result<u32> {
        let taken = self.segments.take(Stream::Log)?;
        if let Some(before) = self.log.replace(taken) {
            self.segments.seal(before);
        }
        Ok(taken)
    }

    /// A log segment of a group that failed: nothing in it counts.
    pub fn give_back_log(&mut self, segment: u32) {
        self.segments.give_back(segment);
        self.log = self.log.filter(|open| *open != segment);
    }

    /// So much more of the log is written.
    pub fn log_grows(&mut self, bytes: u64) {
        self.written.0 += bytes;
    }

    /// Bytes of the log, and of data, since the last freeze.
    pub fn written(&self) -> (u64, u64) {
        self.written
    }

    /// A freeze: what of the log comes now is counted anew.
    pub fn freeze(&mut self) {
        self.written = (0, 0);
        // An open segment of which nothing is live, and that nobody writes to, is not kept for its rest.
        if let Some(open) = self.data
            && u64::from(open.offset) > self.layout.segment_bytes() / 2
            && self.segments.is_idle(open.segment)
        {
            self.data = None;
            self.segments.seal(open.segment);
        }
    }

    /// Little is free: an eighth of the segments.
    pub fn is_short(&self) -> bool {
        let free = self.segments.free().saturating_sub(self.left_alone(Need::New));
        free <= u64::from(self.layout.segments) / 8
    }

    /// Two places for a node, and segments for them if there are none.
    pub fn take_node(&mut self) -> Result<[Place; 2]> {
        while self.nodes.wants_segment() {
            let segment = self.segments.take(Stream::Tree)?;
            self.nodes.add(segment);
        }
        let none = || Error::new(ErrorKind::NoSpace, "allocate", "no place for a node");
        self.nodes.take().ok_or_else(none)
    }

    /// Checkpoint `number` is durable, and gave these places of nodes up.
    pub fn settle_checkpoint(&mut self, plan: &Plan, given_up: Vec<Place>, number: u64) {
        self.segments.settle(plan, number);
        for segment in self.nodes.settle(given_up) {
            self.segments.give_back(segment);
        }
    }

    /// What a checkpoint changes for these places of nodes.
    pub fn count_nodes(&self, taken: &[Place], given_up: &[Place], deltas: &mut Deltas) {
        let bytes = self.layout.geometry.node_bytes() as i64;
        for (places, by) in [(taken, bytes), (given_up, -bytes)] {
            for place in places {
                deltas.entry(place.segment).or_default().bytes += by;
            }
        }
    }

    /// A run of at most `bytes` bytes, whole blocks, for data: place and length.
    pub fn take_data(&mut self, bytes: u64) -> Result<(Place, u64)> {
        let segment_bytes = self.layout.segment_bytes();
        if self.data_left() == 0 {
            if !self.has_segment() {
                let text = format!("{bytes} bytes of data wanted");
                return Err(Error::new(ErrorKind::NoSpace, "reserve", text));
            }
            let taken = self.segments.take(Stream::Data)?;
            if let Some(before) = self.data.replace(Place::new(taken, 0)) {
                self.segments.seal(before.segment);
            }
        }
        let at = self.data.expect("opened above");
        let len = bytes.min(segment_bytes - u64::from(at.offset));
        self.data = Some(Place::new(at.segment, at.offset + len as u32));
        self.written.1 += len;
        self.segments.hold(at.segment, len as i64);
        Ok((at, len))
    }

    /// A run has landed, or its reservation has gone.
    pub fn land(&mut self, segment: u32) {
        self.segments.fly(segment, -1);
    }

    /// Takes back the end of what was given out last; false: it is something else.
    pub fn give_back_data(&mut self, place: Place, bytes: u64) -> bool {
        let Some(at) = self.data.filter(|at| {
            at.segment == place.segment && u64::from(place.offset) + bytes == u64::from(at.offset)
        }) else {
            return false;
        };
        self.data = Some(Place::new(at.segment, place.offset));
        self.segments.hold(at.segment, -(bytes as i64));
        true
    }

    /// Bytes that are left of the open data segment.
    pub fn data_left(&self) -> u64 {
        self.data.map_or(0, |at| self.layout.segment_bytes() - u64::from(at.offset))
    }

    /// Whether data may have another segment.
    pub fn has_segment(&self) -> bool {
        self.data_room(Need::Urgent) - self.data_left() >= self.layout.segment_bytes()
    }

    /// Whether data is being given out of this segment.
    pub fn is_open(&self, segment: u32) -> bool {
        self.data.is_some_and(|at| at.segment == segment)
    }

    /// A data segment that nothing of was ever used: free.
    pub fn release(&mut self, segment: u32) {
        self.segments.hold(segment, -(self.layout.segment_bytes() as i64));
        self.segments.give_back(segment);
    }

    /// Sum of promises, bytes.
    #[cfg(test)]
    pub fn promised(&self) -> u64 {
        self.promised
    }

    /// Free segments, and how many runs they make.
    pub fn free_runs(&self) -> (u64, u64) {
        let is_free = |n: u32| self.segments.get(n).is_some_and(|s| s.phase == Phase::Free);
        let begins = |n: u32| n == 0 || !is_free(n - 1);
        let free = (0..self.segments.count()).filter(|n| is_free(*n));
        (self.segments.free(), free.filter(|n| begins(*n)).count() as u64)
    }

    /// Segments of data.
    pub fn data_segments(&self) -> u64 {
        let is_data = |s: &Segment| s.stream == Stream::Data && s.phase != Phase::Free;
        self.segments.iter().filter(|(_, segment)| is_data(segment)).count() as u64
    }

    /// Whether records are in this segment.
    pub fn is_log(&self, segment: u32) -> bool {
        self.segments.get(segment).is_some_and(|segment| segment.stream == Stream::Log)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::place::{Geometry, Seal};

    fn space(segments: u32) -> Space {
        let geometry = Geometry::with_segment_shift(16);
        let seal = Seal::new(&[1; 16]);
        Space::new(Layout {
            geometry,
            seal,
            nonce: [1; 16],
            data_start: 16384,
            segments,
            align: 512,
        })
    }

    /// P11: whoever was promised room finds it, also when data takes all the rest.
    #[test]
    fn p11_promises_are_kept() {
        let mut space = space(8);
        let each = space.layout.log_bytes() / 3;
        let mut promised = 0;
        while space.promise(each, Need::New).is_ok() {
            promised += 1;
            while space.data_room(Need::New) >= 4096 && space.take_data(4096).is_ok() {}
        }
        assert!(promised >= 3, "{promised}");
        let mut wanted = promised * each;
        while wanted > 0 {
            space.take_log().unwrap();
            wanted = wanted.saturating_sub(space.layout.log_bytes());
        }
    }

    /// P12.
    #[test]
    fn p12_the_last_segments_are_for_removing() {
        let mut space = space(5);
        while space.promise(1024, Need::New).is_ok() {}
        assert_eq!(space.data_room(Need::New), 0);
        assert_eq!(space.data_room(Need::Urgent), 1 << 16);
        space.take_data(1 << 16).unwrap();
        assert!(space.take_data(4096).is_err(), "the log has the others");
        assert!(space.promise(1024, Need::Urgent).is_ok());
    }

    /// P13.
    #[test]
    fn p13_a_checkpoint_finds_room() {
        let mut space = space(8);
        space.need_nodes(30);
        while space.promise(1024, Need::Urgent).is_ok() {
            while space.data_room(Need::Urgent) >= 4096 && space.take_data(4096).is_ok() {}
        }
        for _ in 0..30 {
            space.take_node().unwrap();
        }
    }
}
