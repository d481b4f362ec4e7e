//! The ledger of space: log space and segments are granted before anything is done that needs them.
//!
//! ```text
//! free segments = grants of the log | checkpoint nodes | kept ones | accepted content | the rest
//! ```
//! Invariants: P11 grants of the log are honoured: the rest of the open segment and what free
//! segments surely take ([`Layout::left`]) are at least the sum of all grants. What was admitted
//! before is counted and not refused ([`Need::Outstanding`]). P12 data never takes the last
//! [`KEPT_SEGMENTS`]. One is for records that make space or end work, so that the log continues
//! while two checkpoints make it shorter. The other is only for an opening, the mark of a
//! checkpoint, and a log that failed. P13 there is also space for the nodes of a checkpoint, up to
//! [`Space::need_nodes`] pairs, so that operations that make space can become durable. P14 there is
//! also space for accepted content, which neither new content nor the log takes. P15 data, the log
//! and accepted content leave one more segment to the cleaner, and during a pass as many as the pass
//! counts on. The cleaner leaves all others, unless it could not begin without one of them. P24
//! only checkpoints take nodes, and no change is accepted for which the next ones would have none.
//! New content leaves the nodes that a removal or a truncate may need; operations that make space,
//! and content accepted before, may use them.
//!
//! No locks: the volume's state lock covers it.

pub(crate) mod admission;
pub mod alloc;
pub(crate) mod nodes;
pub(crate) mod segment;
pub(crate) mod usage_table;

use crate::device::layout::Layout;
use crate::format::place::Place;
use crate::format::usage::Stream;
pub(crate) use crate::space::admission::{Need, OtherNeeds};
use crate::space::nodes::NodeSlots;
use crate::space::segment::{Deltas, Phase, Plan, Segment, Segments};
use forebay_base::{Error, ErrorKind, Result};

/// Segments that data never takes (P12).
pub(crate) const KEPT_SEGMENTS: u64 = 2;
/// One of them the log takes only for what is never refused.
const KEPT_FROM_LOG: u64 = 1;
/// So often what is written between checkpoints for want of room doubles, if they bring none.
const FRUITLESS_MOST: u32 = 3;
/// Marks of checkpoints that the log has space for in addition to all grants: two make space.
const MARKS: u64 = 2;

/// Written bytes: of the log itself, of content in its records, which stays there, and of data.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Bytes {
    pub log: u64,
    pub content: u64,
    pub data: u64,
}

/// Segments, addresses for nodes, heads of streams, and the grants.
pub(crate) struct Space {
    layout: Layout,
    pub segments: Segments,
    pub nodes: NodeSlots,
    /// Pairs of nodes that checkpoints may need (P13), and operations that make space (P24).
    need_nodes: (u64, u64),
    /// Pairs that writes of content leave to checkpoints at least (P25).
    least_nodes: u64,
    /// Nodes that were taken since the last freeze, pairs.
    nodes_taken: u64,
    /// Bytes that the open log segment surely takes.
    log_left: u64,
    /// Open log segment.
    log: Option<u32>,
    /// Content of files may be in it.
    log_has_content: bool,
    /// Bytes since the last freeze.
    written: Bytes,
    frozen_bytes: u64,
    /// Checkpoints that were made because little is free, since one with which much died.
    fruitless: u32,
    /// Sum of promises, bytes.
    promised: u64,
    /// How often operations recorded a change.
    recorded: u64,
    /// Open data segment, and the first byte that was not given out.
    data: Option<Place>,
    /// The segment that the cleaner fills, and the first byte that is not written.
    clean: Option<Place>,
    /// Segments that it will fill in addition (P15).
    clean_planned: u64,
}

impl Space {
    /// All free.
    pub fn new(layout: Layout) -> Self {
        Self {
            layout,
            segments: Segments::new(layout.segments),
            nodes: NodeSlots::new(layout.geometry),
            need_nodes: (0, 0),
            least_nodes: 0,
            nodes_taken: 0,
            log_left: 0,
            log: None,
            log_has_content: false,
            written: Bytes::default(),
            frozen_bytes: 0,
            fruitless: 0,
            promised: 0,
            recorded: 0,
            data: None,
            clean: None,
            clean_planned: 0,
        }
    }

    /// An open log segment that has content is not free after the log has left it: one more is kept
    /// instead.
    fn kept_content(&self) -> u64 {
        u64::from(self.log_has_content)
    }

    /// Segments that are not free for this: kept ones, and those for nodes.
    fn left_alone(&self, kept: u64, pairs: u64) -> u64 {
        kept + self.nodes.segments_for(pairs)
    }

    /// Segments that `dirt` bytes of accepted content take if open or held ones have `beside` bytes
    /// for it.
    fn dirt_segments(&self, dirt: u64, beside: u64) -> u64 {
        dirt.saturating_sub(self.data_left() + beside).div_ceil(self.layout.segment_bytes())
    }

    /// Bytes that the log surely takes if `room` is left to others.
    fn log_room(&self, need: Need, room: &OtherNeeds) -> u64 {
        let kept = self.left_alone(KEPT_FROM_LOG + self.kept_for_cleaner(), room.pairs);
        let free = self.segments.free().saturating_sub(kept);
        let own = KEPT_SEGMENTS - KEPT_FROM_LOG;
        let free = match need {
            Need::New => {
                let dirt = self.dirt_segments(room.dirt + room.edges, room.held);
                free.saturating_sub(own + self.kept_content() + dirt)
            }
            Need::Urgent | Need::Outstanding => {
                let dirt = self.dirt_segments(room.dirt, room.held);
                // Accepted content cannot use the segment that is kept for the log.
                free.saturating_sub(dirt).max(own.min(free))
            }
        };
        let marks = MARKS * self.layout.cost(0, 0);
        (self.log_left + free * self.layout.log_bytes()).saturating_sub(marks)
    }

    /// Checkpoints, and what makes room, may need so many pairs of nodes (P13, P24).
    pub fn need_nodes(&mut self, pairs: u64, spare: u64) {
        self.need_nodes = (pairs, spare);
    }

    /// Content leaves so many pairs to checkpoints, whether they need them just now or not (P25).
    pub fn least_nodes(&mut self, pairs: u64) {
        self.least_nodes = pairs;
    }

    /// Pairs of nodes that were taken since the last freeze.
    pub fn nodes_taken(&self) -> u64 {
        self.nodes_taken
    }

    /// Whether checkpoints would lack nodes: then no more changes are accepted, even if the open log
    /// segment has space for them (P24).
    pub fn lacks_nodes(&self, need: Need, room: &OtherNeeds) -> bool {
        let wanted = match need {
            Need::New => {
                let dirt = self.dirt_segments(room.dirt + room.edges, room.held);
                let kept = KEPT_SEGMENTS + self.kept_content() + dirt;
                self.left_alone(kept, room.pairs + room.spare)
            }
            Need::Urgent => self.left_alone(0, room.pairs),
            Need::Outstanding => 0,
        };
        self.segments.free() < wanted
    }

    /// Promises `cost` bytes of the log (P11), or `NoSpace`.
    pub fn promise(&mut self, cost: u64, need: Need, room: &OtherNeeds) -> Result<()> {
        let is_full =
            self.lacks_nodes(need, room) || self.promised + cost > self.log_room(need, room);
        if need != Need::Outstanding && is_full {
            let text = format!("{cost} bytes of the log wanted");
            return Err(Error::new(ErrorKind::NoSpace, "reserve", text));
        }
        self.promised += cost;
        self.need_nodes = (self.need_nodes.0.max(room.pairs), self.need_nodes.1.max(room.spare));
        Ok(())
    }

    /// A promise was used, or is not needed.
    pub fn settle(&mut self, cost: u64) {
        debug_assert!(self.promised >= cost, "P11: what is settled was promised");
        self.promised = self.promised.saturating_sub(cost);
    }

    /// An operation recorded a change, for which it had space.
    pub fn note_recorded(&mut self) {
        self.recorded += 1;
    }

    /// How often operations recorded a change: a task that lacks space, and sees this grow, lost it
    /// to another one.
    pub fn recorded(&self) -> u64 {
        self.recorded
    }

    /// The open log segment is filled up to `head`.
    pub fn log_head(&mut self, head: u64) {
        self.log_left = self.layout.left(head);
    }

    /// Bytes of data that there is space for after all grants; accepted content is not counted.
    pub fn data_room(&self) -> u64 {
        let free = self.free_beside(self.kept_for_cleaner());
        self.data_left() + free * self.layout.segment_bytes()
    }

    /// The same for what was accepted before, which may have what is kept from what is new (P14).
    pub fn owed_room(&self) -> u64 {
        self.overwrite_space(self.need_nodes.0)
    }

    /// The same for overwrites of stored content (P25), if checkpoints may need `pairs` of nodes.
    /// They leave what checkpoints, the log and the cleaner need to continue, and no more.
    pub fn overwrite_space(&self, pairs: u64) -> u64 {
        let free = self.segments.free();
        let kept = self.kept_least(pairs.max(self.least_nodes)) + self.kept_for_cleaner();
        let free = free.saturating_sub(kept);
        self.data_left() + free * self.layout.segment_bytes()
    }

    /// Segments that stay free whatever is written, the cleaner's aside.
    fn kept_least(&self, pairs: u64) -> u64 {
        // What is promised of the log may have the segment that is kept for it.
        let log = self.log_segments().max(KEPT_SEGMENTS - KEPT_FROM_LOG);
        self.left_alone(KEPT_FROM_LOG + self.kept_content(), pairs) + log
    }

    /// Segments that the log takes for what it was promised.
    fn log_segments(&self) -> u64 {
        let marks = MARKS * self.layout.cost(0, 0);
        let log = (self.promised + marks).saturating_sub(self.log_left);
        log.div_ceil(self.layout.log_bytes())
    }

    /// Pairs that nothing new has (P13, P24).
    fn nodes_kept(&self) -> u64 {
        self.need_nodes.0 + self.need_nodes.1
    }

    /// Free segments without kept ones, those of nodes and the log, and `more` others.
    fn free_beside(&self, more: u64) -> u64 {
        self.segments.free().saturating_sub(self.kept_least(self.nodes_kept()) + more)
    }

    /// One more segment is left alone, into which the cleaner can move all live data of another one;
    /// and those that a pass counts on (P15).
    fn kept_for_cleaner(&self) -> u64 {
        u64::from(self.clean_left() < self.layout.segment_bytes()).max(self.clean_planned)
    }

    /// Segments that the cleaner may fill, with `dirt` bytes of accepted content that may use `held`
    /// bytes given out and not in use: those of data, the one kept for the cleaner, and those kept
    /// for nodes of operations that make space (P24), because the cleaner makes space.
    pub fn clean_segments(&self, dirt: u64, held: u64) -> u64 {
        let (free, dirt) = (self.segments.free(), self.dirt_segments(dirt, held));
        let room = free.saturating_sub(self.kept_least(self.need_nodes.0) + dirt);
        if room > 0 || self.clean_left() == self.layout.segment_bytes() {
            return room;
        }
        // Without it there is no way out: what it takes makes more free.
        let kept = self.left_alone(KEPT_FROM_LOG, self.need_nodes.0) + self.log_segments();
        free.saturating_sub(kept).min(1)
    }

    /// Bytes that are left of the segment that the cleaner fills.
    pub fn clean_left(&self) -> u64 {
        self.clean.map_or(0, |at| self.layout.segment_bytes() - u64::from(at.offset))
    }

    /// Keeps segments for the cleaner, in addition to the one that it fills, until it takes them or
    /// calls this again.
    pub fn plan_clean(&mut self, segments: u64) {
        self.clean_planned = segments;
    }

    /// Segments that are kept for the pass in progress.
    pub fn clean_planned(&self) -> u64 {
        self.clean_planned
    }

    /// A run of at most `bytes` bytes for the cleaner: place and length.
    pub fn take_clean(&mut self, bytes: u64) -> Result<(Place, u64)> {
        if self.clean_left() == 0 {
            let taken = self.segments.take(Stream::Data)?;
            self.clean_planned = self.clean_planned.saturating_sub(1);
            if let Some(full) = self.clean.replace(Place::new(taken, 0)) {
                self.segments.seal(full.segment);
            }
        }
        let at = self.clean.expect("opened above");
        let len = bytes.min(self.clean_left());
        self.clean = Some(Place::new(at.segment, at.offset + len as u32));
        Ok((at, len))
    }

    /// Whether something of the open data segment is dead, and nothing on its way there.
    pub fn seals_data(&self) -> bool {
        self.data.is_some_and(|at| self.has_dead(at))
    }

    fn has_dead(&self, open: Place) -> bool {
        let this = self.segments.get(open.segment);
        this.is_some_and(|this| {
            this.in_flight == 0 && this.live_bytes + this.held_bytes < u64::from(open.offset)
        })
    }

    /// Nothing more is given out of the open data segment.
    pub fn seal_data(&mut self) {
        if let Some(open) = self.data.take() {
            self.segments.seal(open.segment);
        }
    }

    /// The cleaner's segment is sealed, if something of it is dead.
    pub fn seal_clean(&mut self) -> bool {
        let open = self.clean.filter(|at| self.has_dead(*at));
        if let Some(open) = open {
            self.clean = None;
            self.segments.seal(open.segment);
        }
        open.is_some()
    }

    /// A write to this segment failed (W18): the cleaner fills it no further. False: that is known.
    pub fn fail(&mut self, segment: u32) -> bool {
        if let Some(open) = self.clean.take_if(|at| at.segment == segment) {
            self.segments.seal(open.segment);
        }
        self.nodes.fail(segment);
        self.segments.fail(segment)
    }

    /// A segment for the log, which goes on there.
    pub fn take_log(&mut self) -> Result<u32> {
        let taken = self.segments.take(Stream::Log)?;
        self.log_has_content = false;
        if let Some(before) = self.log.replace(taken) {
            self.segments.seal(before);
        }
        Ok(taken)
    }

    /// For an opening where none is free: one that is dead in the newest checkpoint.
    pub fn take_dead_log(&mut self) -> Option<u32> {
        let taken = self.segments.take_dead(Stream::Log)?;
        self.log = Some(taken);
        Some(taken)
    }

    /// A log segment of a group that failed: nothing in it counts.
    pub fn give_back_log(&mut self, segment: u32) {
        self.segments.give_back(segment);
        self.log = self.log.filter(|open| *open != segment);
    }

    /// Content of files is going into the log.
    pub fn log_takes_content(&mut self) {
        self.log_has_content = true;
    }

    /// Whether it pays to leave the open log segment: it is half full, or it has content, which would
    /// keep it from becoming free later.
    pub fn log_is_used(&self) -> bool {
        let used = self.log_has_content || self.log_left < self.layout.log_bytes() / 2;
        self.segments.free() > 0 && used
    }

    /// Whether the log has space for `cost` bytes of content, and for one more segment
    /// ([`Self::kept_content`]). Content in the log takes space from new content.
    pub fn has_room_for_content(&self, cost: u64, room: &OtherNeeds) -> bool {
        self.promised + cost + self.layout.log_bytes() <= self.log_room(Need::New, room)
    }

    /// So much more of the log is written, `content` bytes of it content of files.
    pub fn log_grows(&mut self, bytes: u64, content: u64) {
        self.written.log += bytes.saturating_sub(content);
        self.written.content += content;
    }

    /// Since the last freeze.
    pub fn written(&self) -> Bytes {
        self.written
    }

    /// A freeze: written bytes are counted anew. `left`: unused bytes of a segment.
    pub fn freeze(&mut self, left: &dyn Fn(u32) -> u64) {
        let Bytes { log, content, data } = std::mem::take(&mut self.written);
        (self.frozen_bytes, self.nodes_taken) = (log + content + data, 0);
        // An open segment without live data and without writes is not kept for its rest.
        if let Some(open) = self.data
            && u64::from(open.offset) > self.layout.segment_bytes() / 8
            && self.segments.is_idle(open.segment, left(open.segment))
        {
            self.data = None;
            self.segments.seal(open.segment);
        }
        // What was moved there is all gone again.
        if let Some(open) = self.clean.filter(|at| self.segments.is_idle(at.segment, 0)) {
            self.clean = None;
            self.segments.seal(open.segment);
        }
    }

    /// Little is free: an eighth of the segments.
    pub fn is_short(&self) -> bool {
        let kept = self.left_alone(KEPT_SEGMENTS + self.kept_content(), self.nodes_kept());
        let free = self.segments.free().saturating_sub(kept);
        free <= u64::from(self.layout.segments) / 8
    }

    /// Bytes that are written between two checkpoints for lack of space. Each checkpoint writes the
    /// tree, and after scattered overwrites no segment dies with it.
    pub fn short_bytes(&self, room: u64) -> u64 {
        (room / 4).max(self.layout.segment_bytes() / 2) << self.fruitless
    }

    /// One was made because little is free.
    pub fn made_short(&mut self) {
        self.fruitless = (self.fruitless + 1).min(FRUITLESS_MOST);
    }

    /// Replaces a segment of nodes after a failed write, if a segment is free that is not granted.
    pub fn add_sound(&mut self) -> bool {
        if !self.may_open_owed() {
            return false;
        }
        let taken = self.segments.take_sound(Stream::Tree);
        taken.inspect(|segment| self.nodes.add(*segment)).is_some()
    }

    /// Two places for a node, and segments for them if there are none.
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

    /// Checkpoint `number` is durable, and gave these places of nodes up.
    pub fn settle_checkpoint(&mut self, plan: &Plan, given_up: Vec<Place>, number: u64) {
        if 4 * plan.died().len() as u64 * self.layout.segment_bytes() >= self.frozen_bytes {
            self.fruitless = 0;
        }
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
        let may_open = self.has_segment();
        self.take_run(bytes, may_open)
    }

    /// The same for what was accepted before ([`Self::owed_room`]).
    pub fn take_owed(&mut self, bytes: u64) -> Result<(Place, u64)> {
        let may_open = self.may_open_owed();
        self.take_run(bytes, may_open)
    }

    fn may_open_owed(&self) -> bool {
        self.owed_room() - self.data_left() >= self.layout.segment_bytes()
    }

    fn take_run(&mut self, bytes: u64, may_open: bool) -> Result<(Place, u64)> {
        let segment_bytes = self.layout.segment_bytes();
        if self.data_left() == 0 {
            if !may_open {
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
        self.data_room() - self.data_left() >= self.layout.segment_bytes()
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
mod tests;
