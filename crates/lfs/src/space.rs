//! Free and used segments, places for nodes, and the open segments. Log space and segments are
//! granted before anything is done that needs them: [`ledger`] decides on that, and this module
//! gives out what was granted.
//!
//! Invariants: P11 grants of the log are honoured: the rest of the open segment and what free
//! segments surely take ([`Layout::left`]) are at least the sum of all grants. What was admitted
//! before is counted and not refused. P12 data never takes the last two segments
//! ([`ledger::KEPT_SEGMENTS`]). One is for records that make space or end work, so that the log
//! continues while two checkpoints make it shorter. The other is only for an opening, the mark of a
//! checkpoint, and a log that failed. P13 there is also space for the nodes of the next
//! checkpoints, so that operations that make space can become durable. P14 there is also space for
//! accepted content, which neither new content nor the log takes. P15 data, the log and accepted
//! content leave one more segment to the cleaner, and during a pass as many as the pass counts on.
//! The cleaner leaves all others, unless it could not begin without one of them. P24 only
//! checkpoints take nodes, and no change is accepted for which the next ones would have none. New
//! content leaves the nodes that a removal or a truncate may need; operations that make space, and
//! content accepted before, may use them. P26 the log leaves a segment that is not full only if the
//! free segments still take the nodes of the next checkpoints and all grants of the log. After a
//! failed write or flush one more segment has to remain. Only a log whose place is bad (log.L17)
//! takes that, and it leaves the nodes of one checkpoint. So no sequence of failed writes and
//! flushes takes the space that a checkpoint needs.
//!
//! No locks: the volume's state lock covers it.

pub(crate) mod admission;
pub mod alloc;
pub(crate) mod ledger;
pub(crate) mod nodes;
pub(crate) mod owner;
pub(crate) mod removed;
pub(crate) mod reservations;
pub(crate) mod segment;
pub(crate) mod stats;
pub(crate) mod usage_table;

use crate::device::layout::Layout;
use crate::format::place::Place;
use crate::format::usage::Stream;
use crate::space::alloc::runs::Room;
use crate::space::ledger::Ledger;
pub(crate) use crate::space::ledger::{Ask, Grant, Leave, Need, OtherNeeds};
use crate::space::nodes::NodeSlots;
use crate::space::removed::RemovedBytes;
use crate::space::reservations::Reservations;
use crate::space::segment::{Deltas, Phase, Plan, Segment, Segments};
use forebay_base::{Error, ErrorKind, Result};

/// How often the bytes written between two checkpoints may double while space is short and the
/// checkpoints free little.
const FRUITLESS_MOST: u32 = 3;

/// Bytes written: of the log itself, of content in log records, and of data.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Bytes {
    pub log: u64,
    pub content: u64,
    pub data: u64,
}

/// Free and used segments, places for tree nodes, the open segments, and the grants.
pub(crate) struct Space {
    layout: Layout,
    segments: Segments,
    nodes: NodeSlots,
    ledger: Ledger,
    /// Runs of data segments that are given out and not in use.
    room: Room,
    reservations: Reservations,
    /// Content that was removed since the volume was opened.
    removed: RemovedBytes,
    /// Memory that the cleaner uses for live data and copies, bytes.
    cleaning_bytes: u64,
    /// Pairs of nodes that were taken since the last freeze.
    nodes_taken: u64,
    /// Bytes that the open log segment can take in any case.
    log_left: u64,
    /// The open log segment.
    log: Option<u32>,
    /// A free segment to which a repair writes, to learn whether the device takes writes.
    probed: Option<u32>,
    /// Bytes written since the last freeze.
    written: Bytes,
    frozen_bytes: u64,
    /// Checkpoints for lack of space since the last one after which many segments died.
    fruitless: u32,
    /// Number of changes that operations have recorded.
    recorded: u64,
    /// The open data segment, as the place of the first byte that was not given out.
    data: Option<Place>,
    /// The segment that the cleaner fills, as the place of the first byte that is not written.
    clean: Option<Place>,
}

impl Space {
    /// Space with all segments free.
    pub fn new(layout: Layout) -> Self {
        Self {
            layout,
            segments: Segments::new(layout.segments),
            nodes: NodeSlots::new(layout.geometry),
            ledger: Ledger::default(),
            room: Room::new(&layout),
            reservations: Reservations::default(),
            removed: RemovedBytes::default(),
            cleaning_bytes: 0,
            nodes_taken: 0,
            log_left: 0,
            log: None,
            probed: None,
            written: Bytes::default(),
            frozen_bytes: 0,
            fruitless: 0,
            recorded: 0,
            data: None,
            clean: None,
        }
    }

    /// Pairs of nodes that were taken since the last freeze.
    pub fn nodes_taken(&self) -> u64 {
        self.nodes_taken
    }

    /// Counts a recorded change of an operation that had a grant for it.
    pub fn note_recorded(&mut self) {
        self.recorded += 1;
    }

    /// Number of changes that operations have recorded. A task that lacks space and sees this
    /// number grow lost the space to another task.
    pub fn recorded(&self) -> u64 {
        self.recorded
    }

    /// Notes that the open log segment is filled up to `head`.
    pub fn log_head(&mut self, head: u64) {
        self.log_left = self.layout.left(head);
    }

    /// Bytes that are left in the segment that the cleaner fills.
    pub fn clean_left(&self) -> u64 {
        self.clean.map_or(0, |at| self.layout.segment_bytes() - u64::from(at.offset))
    }

    /// Keeps segments for the cleaner in addition to the one that it fills. They are kept until the
    /// cleaner takes them or calls this again.
    pub fn plan_clean(&mut self, segments: u64) {
        self.ledger.clean = segments;
    }

    /// Segments that are kept for the current pass of the cleaner.
    pub fn clean_planned(&self) -> u64 {
        self.ledger.clean
    }

    /// Takes a run of at most `bytes` bytes for the cleaner: place and length.
    pub fn take_clean(&mut self, bytes: u64) -> Result<(Place, u64)> {
        if self.clean_left() == 0 {
            let taken = self.segments.take(Stream::Data)?;
            self.ledger.clean = self.ledger.clean.saturating_sub(1);
            if let Some(full) = self.clean.replace(Place::new(taken, 0)) {
                self.segments.seal(full.segment);
            }
        }
        let at = self.clean.expect("opened above");
        let len = bytes.min(self.clean_left());
        self.clean = Some(Place::new(at.segment, at.offset + len as u32));
        Ok((at, len))
    }

    /// Whether some data in the open data segment is dead, and no write to it is in flight.
    pub fn seals_data(&self) -> bool {
        self.data.is_some_and(|at| self.has_dead(at))
    }

    fn has_dead(&self, open: Place) -> bool {
        let this = self.segments.get(open.segment);
        this.is_some_and(|this| {
            this.in_flight == 0 && this.live_bytes + this.held_bytes < u64::from(open.offset)
        })
    }

    /// Seals the open data segment: nothing more is given out of it.
    pub fn seal_data(&mut self) {
        if let Some(open) = self.data.take() {
            self.segments.seal(open.segment);
        }
    }

    /// Seals the segment that the cleaner fills, if some data in it is dead.
    pub fn seal_clean(&mut self) -> bool {
        let open = self.clean.filter(|at| self.has_dead(*at));
        if let Some(open) = open {
            self.clean = None;
            self.segments.seal(open.segment);
        }
        open.is_some()
    }

    /// Notes a failed write to this segment (segment.W18): the cleaner stops filling it. False: the
    /// failure was known.
    pub fn fail(&mut self, segment: u32) -> bool {
        if let Some(open) = self.clean.take_if(|at| at.segment == segment) {
            self.segments.seal(open.segment);
        }
        self.nodes.fail(segment);
        self.segments.fail(segment)
    }

    /// Takes a segment for the log, which continues there.
    pub fn take_log(&mut self) -> Result<u32> {
        let taken = self.segments.take(Stream::Log)?;
        self.ledger.log_has_content = false;
        if let Some(before) = self.log.replace(taken) {
            self.segments.seal(before);
        }
        Ok(taken)
    }

    /// Takes a segment that is dead in the newest checkpoint, for an opening that finds none free.
    pub fn take_dead_log(&mut self) -> Option<u32> {
        let taken = self.segments.take_dead(Stream::Log)?;
        self.log = Some(taken);
        Some(taken)
    }

    /// Reopens the segment in which the log was: it continues there at `head`, because nothing
    /// behind is durable.
    pub fn return_to_log(&mut self, segment: u32, head: u64) {
        if self.log != Some(segment) {
            let phase = self.segments.get(segment).map(|this| this.phase);
            debug_assert!(matches!(phase, Some(Phase::Open | Phase::Sealed)), "W12: {phase:?}");
            self.log = Some(segment);
            self.segments.open_again(segment, Stream::Log);
            // Its records may have content.
            self.ledger.log_has_content = true;
        }
        self.log_head(head);
    }

    /// Returns a log segment of a failed group: none of its records counts.
    pub fn give_back_log(&mut self, segment: u32) {
        self.segments.give_back(segment);
        self.log = self.log.filter(|open| *open != segment);
    }

    /// Takes a free segment for the write by which a repair learns whether the device takes any.
    pub fn take_probed(&mut self) -> Result<u32> {
        let taken = self.segments.take(Stream::Log)?;
        self.probed = Some(taken);
        Ok(taken)
    }

    /// Frees the segment of [`Self::take_probed`]. The device has ended its write.
    pub fn give_back_probed(&mut self) {
        if let Some(segment) = self.probed.take() {
            self.segments.give_back(segment);
        }
    }

    /// Notes that content of files goes into the open log segment.
    pub fn log_takes_content(&mut self) {
        self.ledger.log_has_content = true;
    }

    /// Whether it pays to leave the open log segment: it is half full, or it has content, which
    /// would later keep it from becoming free.
    pub fn log_is_used(&self) -> bool {
        let used = self.ledger.log_has_content || self.log_left < self.layout.log_bytes() / 2;
        self.segments.free() > 0 && used
    }

    /// Notes that the log grew by `bytes` bytes, of which `content` bytes are content of files.
    pub fn log_grows(&mut self, bytes: u64, content: u64) {
        self.written.log += bytes.saturating_sub(content);
        self.written.content += content;
    }

    /// Bytes written since the last freeze.
    pub fn written(&self) -> Bytes {
        self.written
    }

    /// Freezes the counters: written bytes are counted from zero again.
    pub fn freeze(&mut self) {
        let Bytes { log, content, data } = std::mem::take(&mut self.written);
        (self.frozen_bytes, self.nodes_taken) = (log + content + data, 0);
        // An open data segment without live data and without writes in flight is sealed if more
        // than an eighth of it is used, although it has unused bytes.
        if let Some(open) = self.data
            && u64::from(open.offset) > self.layout.segment_bytes() / 8
            && self.segments.is_idle(open.segment, self.room.left_of(open.segment))
        {
            self.data = None;
            self.segments.seal(open.segment);
        }
        // All data that the cleaner moved into its segment is dead.
        if let Some(open) = self.clean.filter(|at| self.segments.is_idle(at.segment, 0)) {
            self.clean = None;
            self.segments.seal(open.segment);
        }
    }

    /// Bytes to write before the next checkpoint for lack of space. Each checkpoint writes tree
    /// nodes, and after scattered overwrites it frees no segment. So the distance grows.
    pub fn short_bytes(&self, room: u64) -> u64 {
        (room / 4).max(self.layout.segment_bytes() / 2) << self.fruitless
    }

    /// Counts a checkpoint that was made for lack of space.
    pub fn made_short(&mut self) {
        self.fruitless = (self.fruitless + 1).min(FRUITLESS_MOST);
    }

    /// Adds a segment for nodes after a failed write, if there is one without a failed write.
    pub fn add_sound(&mut self) -> bool {
        let taken = self.segments.take_sound(Stream::Tree);
        taken.inspect(|segment| self.nodes.add(*segment)).is_some()
    }

    /// Takes two places for the copies of a node, and segments for them if the open ones are full.
    pub fn take_node(&mut self) -> Result<[Place; 2]> {
        while self.nodes.wants_segment() {
            let segment = self.segments.take(Stream::Tree)?;
            self.nodes.add(segment);
            if self.segments.get(segment).is_some_and(Segment::has_failed) {
                self.nodes.fail(segment);
            }
        }
        self.nodes_taken += 1;
        let none = || Error::new(ErrorKind::NoSpace, "allocate", "no place for a node");
        self.nodes.take().ok_or_else(none)
    }

    /// Handles a durable checkpoint `number` that no longer needs the nodes at the places
    /// `given_up`.
    pub fn settle_checkpoint(&mut self, plan: &Plan, given_up: Vec<Place>, number: u64) {
        if 4 * plan.died().len() as u64 * self.layout.segment_bytes() >= self.frozen_bytes {
            self.fruitless = 0;
        }
        self.segments.settle(plan, number);
        for segment in self.nodes.settle(given_up) {
            self.segments.give_back(segment);
        }
    }

    /// Frees the places of nodes that a failed checkpoint took (nodes.N15).
    pub fn free_failed_nodes(&mut self) {
        for segment in self.nodes.free_failed() {
            self.segments.give_back(segment);
        }
    }

    /// Adds to `deltas` the live bytes of nodes that a checkpoint writes and gives up.
    pub fn count_nodes(&self, taken: &[Place], given_up: &[Place], deltas: &mut Deltas) {
        let bytes = self.layout.geometry.node_bytes() as i64;
        for (places, by) in [(taken, bytes), (given_up, -bytes)] {
            for place in places {
                deltas.entry(place.segment).or_default().bytes += by;
            }
        }
    }

    /// Whether data may take another segment, and leave `kept` ones free.
    pub fn has_segment(&self, kept: u64) -> bool {
        self.segments.free() > kept
    }

    /// Takes a run of at most `bytes` bytes, whole blocks, for data: place and length. If the open
    /// data segment is full, it takes another one, as long as `kept` ones stay free.
    pub fn take_data(&mut self, bytes: u64, kept: u64) -> Result<(Place, u64)> {
        let segment_bytes = self.layout.segment_bytes();
        if self.data_left() == 0 {
            if !self.has_segment(kept) {
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
        self.written.data += len;
        self.segments.hold(at.segment, len as i64);
        Ok((at, len))
    }

    /// Notes that the write of a run has completed, or that its reservation has ended.
    pub fn land(&mut self, segment: u32) {
        self.segments.fly(segment, -1);
    }

    /// Returns the end of the run that was given out last. False: this run is not the last one.
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

    /// Bytes that are left in the open data segment.
    pub fn data_left(&self) -> u64 {
        self.data.map_or(0, |at| self.layout.segment_bytes() - u64::from(at.offset))
    }

    /// Whether this is the open data segment.
    pub fn is_open(&self, segment: u32) -> bool {
        self.data.is_some_and(|at| at.segment == segment)
    }

    /// Frees a data segment of which no byte was ever used.
    pub fn release(&mut self, segment: u32) {
        self.segments.hold(segment, -(self.layout.segment_bytes() as i64));
        self.segments.give_back(segment);
    }

    /// The number of free segments, and the number of contiguous runs that they form.
    pub fn free_runs(&self) -> (u64, u64) {
        let is_free = |n: u32| self.segments.get(n).is_some_and(|s| s.phase == Phase::Free);
        let begins = |n: u32| n == 0 || !is_free(n - 1);
        let free = (0..self.segments.count()).filter(|n| is_free(*n));
        (self.segments.free(), free.filter(|n| begins(*n)).count() as u64)
    }

    /// The number of data segments in use.
    pub fn data_segments(&self) -> u64 {
        let is_data = |s: &Segment| s.stream == Stream::Data && s.phase != Phase::Free;
        self.segments.iter().filter(|(_, segment)| is_data(segment)).count() as u64
    }

    /// Whether this is a log segment.
    pub fn is_log(&self, segment: u32) -> bool {
        self.segments.get(segment).is_some_and(|segment| segment.stream == Stream::Log)
    }
}

#[cfg(test)]
mod tests;
