//! Who may take how much: room is promised before anything is done that needs it.
//!
//! ```text
//! all free segments = promises of the log | nodes of a checkpoint | kept segments | accepted dirt | the rest
//! ```
//! Invariants: P11 promises of the log are kept: what is left of the open segment and what free
//! segments surely take (see [`Layout::left`]) is at least the sum of all promises; but what was
//! admitted before is counted without being refused ([`Need::Outstanding`]). P12 the last
//! [`KEPT_SEGMENTS`] are not for data: one is for records of what makes room or ends work, so that
//! the log goes on while two checkpoints make it shorter, and one for nobody but an opening, the
//! mark of a checkpoint, and a log that failed. P13 beside them there is room for the nodes of a
//! checkpoint, at most [`Space::need_nodes`] pairs: so that what makes room can be made durable.
//! P14 beside all these there is room for dirt that was accepted: neither new content nor the log
//! takes it. P15 data and the log leave one segment more to the cleaner, and while it cleans as
//! many as it has counted on, and so does what was accepted before; it leaves all the others,
//! unless without one of them it could not begin. P24 nodes are taken by checkpoints alone, and
//! nothing is changed that the next ones would not have nodes for: what is new leaves those alone
//! that a removal or a cut may need, and what makes room, or was accepted before, may have them.
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
pub(crate) use crate::space::admission::{Beside, Need};
use crate::space::nodes::NodeSlots;
use crate::space::segment::{Deltas, Phase, Plan, Segment, Segments};
use forebay_base::{Error, ErrorKind, Result};

/// Segments that data never takes (P12).
pub(crate) const KEPT_SEGMENTS: u64 = 2;
/// One of them the log takes only for what is never refused.
const KEPT_FROM_LOG: u64 = 1;
/// So often what is written between checkpoints for want of room doubles, if they bring none.
const FRUITLESS_MOST: u32 = 3;
/// Marks of checkpoints that the log has room for beside all promises: room is made by two.
const MARKS: u64 = 2;

/// What was written, bytes: of the log itself, of content in its records, which stays there, of data.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Bytes {
    pub log: u64,
    pub content: u64,
    pub data: u64,
}

/// See the module.
pub(crate) struct Space {
    layout: Layout,
    pub segments: Segments,
    pub nodes: NodeSlots,
    /// Pairs of nodes that checkpoints may need (P13), and those that what makes room may want beside (P24).
    need_nodes: (u64, u64),
    /// Pairs that whoever writes content leaves to checkpoints at least (P25).
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
    /// Open data segment, and the first byte that nobody has.
    data: Option<Place>,
    /// The segment that the cleaner fills, and the first byte that is not written.
    clean: Option<Place>,
    /// Segments that it will fill beside that one (P15).
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

    /// An open log segment with content in it does not come free when the log has gone on: one more is kept
    /// in its stead.
    fn kept_content(&self) -> u64 {
        u64::from(self.log_has_content)
    }

    /// Segments that are not free for this: kept ones, and those for nodes.
    fn left_alone(&self, kept: u64, pairs: u64) -> u64 {
        kept + self.nodes.segments_for(pairs)
    }

    /// Segments that dirt takes for which there are `beside` bytes in segments that are open or held.
    fn dirt_segments(&self, dirt: u64, beside: u64) -> u64 {
        dirt.saturating_sub(self.data_left() + beside).div_ceil(self.layout.segment_bytes())
    }

    /// Bytes that the log surely takes beside what `room` says.
    fn log_room(&self, need: Need, room: &Beside) -> u64 {
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
                // Dirt cannot have what is kept for the log.
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

    /// Whether checkpoints would not find their nodes: then nothing more is changed, though the open log
    /// segment may have room for it (P24).
    pub fn lacks_nodes(&self, need: Need, room: &Beside) -> bool {
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
    pub fn promise(&mut self, cost: u64, need: Need, room: &Beside) -> Result<()> {
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

    /// Bytes of data that there is room for beside all promises, dirt aside.
    pub fn data_room(&self) -> u64 {
        let free = self.free_beside(self.kept_for_cleaner());
        self.data_left() + free * self.layout.segment_bytes()
    }

    /// The same for what was accepted before, which may have what is kept from what is new (P14).
    pub fn owed_room(&self) -> u64 {
        self.over_room(self.need_nodes.0)
    }

    /// The same for what takes the place of stored content (P25), if checkpoints may need `pairs` of nodes:
    /// what these, the log and the cleaner go on with is left alone, and no more.
    pub fn over_room(&self, pairs: u64) -> u64 {
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

    /// Free segments beside kept ones, nodes, the log, and so many more.
    fn free_beside(&self, more: u64) -> u64 {
        self.segments.free().saturating_sub(self.kept_least(self.nodes_kept()) + more)
    }

    /// One segment more is left alone, so that there is where the cleaner can put all that is live in
    /// another one; and what it has counted on (P15).
    fn kept_for_cleaner(&self) -> u64 {
        u64::from(self.clean_left() < self.layout.segment_bytes()).max(self.clean_planned)
    }

    /// Segments that the cleaner may fill beside `dirt` bytes of accepted content, which may have `held`
    /// bytes of what was given out and is in nobody's use: those of data, the one that
    /// is kept for it, and those that are kept for nodes of what makes room (P24), for so does it.
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

    /// Segments that are kept for the cleaner from now on, beside the one that it fills, until it takes them
    /// or says so again.
    pub fn plan_clean(&mut self, segments: u64) {
        self.clean_planned = segments;
    }

    /// See [`Self::plan_clean`].
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

    /// So much of the open log segment is used that another one would give room, once this is free; or
    /// content is in it, which would keep it from coming free later.
    pub fn log_is_used(&self) -> bool {
        let used = self.log_has_content || self.log_left < self.layout.log_bytes() / 2;
        self.segments.free() > 0 && used
    }

    /// Content in the log is at the expense of what is new: whether there is room for `cost` bytes of it, and
    /// a segment more ([`Self::kept_content`]).
    pub fn has_room_for_content(&self, cost: u64, room: &Beside) -> bool {
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

    /// A freeze: what of the log comes now is counted anew. `left`: bytes of a segment that are left over.
    pub fn freeze(&mut self, left: &dyn Fn(u32) -> u64) {
        let Bytes { log, content, data } = std::mem::take(&mut self.written);
        (self.frozen_bytes, self.nodes_taken) = (log + content + data, 0);
        // An open segment of which nothing is live, and that nobody writes to, is not kept for its rest.
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

    /// What is written between two checkpoints for want of room: where content is overwritten here and there
    /// no segment dies with them, and each writes the tree.
    pub fn short_bytes(&self, room: u64) -> u64 {
        (room / 4).max(self.layout.segment_bytes() / 2) << self.fruitless
    }

    /// One was made because little is free.
    pub fn made_short(&mut self) {
        self.fruitless = (self.fruitless + 1).min(FRUITLESS_MOST);
    }

    /// A segment for nodes in the stead of one that a write to failed, if one is free that nobody was
    /// promised.
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
