//! What the users of space may do with its parts: read them, and change them by what happens.
//!
//! The invariants are those of [`crate::space`] and of its parts. No locks: the volume's state lock
//! covers it.

use crate::format::place::Place;
use crate::format::usage::{Segment as Entry, Stream};
use crate::space::admission::AcceptedContent;
use crate::space::alloc::runs::Room;
use crate::space::alloc::strategy::{Request, Who, push};
use crate::space::ledger::{Kept, Ledger};
use crate::space::nodes::NodeSlots;
use crate::space::removed::RemovedBytes;
use crate::space::reservations::{Reservations, Reserved};
use crate::space::segment::{Deltas, Known, Plan, Segments, Snapshot};
use crate::space::{Ask, Grant, Space};
use forebay_base::Result;
use forebay_iomap::{Class, Place as Extent};
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

/// The parts, to read.
impl Space {
    pub fn segments(&self) -> &Segments {
        &self.segments
    }

    /// Places of tree nodes.
    pub fn nodes(&self) -> &NodeSlots {
        &self.nodes
    }

    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// Runs that are given out and not in use.
    pub fn room(&self) -> &Room {
        &self.room
    }

    /// The reservations of files.
    pub fn reservations(&self) -> &Reservations {
        &self.reservations
    }

    /// Content that was removed since the volume was opened.
    pub fn removed(&self) -> &RemovedBytes {
        &self.removed
    }

    /// Memory that the cleaner uses for live data and copies, bytes.
    pub fn cleaning_bytes(&self) -> u64 {
        self.cleaning_bytes
    }
}

/// Grants and reservations.
impl Space {
    /// Grants what is asked for, except content ([`Ledger::grant`]).
    pub fn grant(&mut self, ask: &Ask) -> Grant {
        self.ledger.grant(ask)
    }

    /// Ends a grant, or the part of it that was used or is not needed.
    pub fn end_grant(&mut self, grant: Grant) {
        self.ledger.end(grant);
    }

    /// Counts the content of files in another set of accepted content.
    pub fn set_accepted(&mut self, accepted: Arc<AcceptedContent>) {
        self.ledger.set_accepted(accepted);
    }

    /// Places become those of a reservation: they are in use, with a write in flight to each.
    pub fn reserve(&mut self, key: u64, reserved: Reserved, places: &[(Place, u64)]) {
        for (at, len) in places {
            self.segments.hold(at.segment, -(*len as i64));
            self.segments.fly(at.segment, 1);
        }
        self.reservations.insert(key, reserved);
    }

    /// Takes log space of a reservation for a record (ledger.M18).
    pub fn split_reserved(&mut self, key: u64, bytes: u64) -> Grant {
        self.reservations.split(key, bytes)
    }

    /// Ends a reservation. `leaks`: an injected fault.
    pub fn end_reservation(&mut self, key: u64, leaks: bool) {
        let Some(Reserved { grant, segments, .. }) = self.reservations.remove(key) else { return };
        if !leaks {
            self.ledger.end(grant);
        }
        segments.iter().for_each(|segment| self.land(*segment));
    }

    /// Counts removed content.
    pub fn note_removed(&mut self, bytes: u64) {
        self.removed.add(bytes);
    }

    /// Two checkpoints have made the first `total` removed bytes free.
    pub fn note_removed_free(&mut self, total: u64) {
        self.removed.note_free(total);
    }
}

/// Places for data.
impl Space {
    /// A request for places for a run of a file.
    pub fn request(&mut self, who: Who, run: Range<u64>, kept: Kept) -> Request<'_> {
        let stream = self.room.windows.stream(who.ino, run.start);
        Request { who, run, stream, kept, space: self }
    }

    /// Takes a block without a window, for the strategies that take single blocks.
    pub fn take_block(&mut self, at: u64, kept: Kept, places: &mut Vec<Extent>) -> Result<()> {
        self.room.stats.holds += 1;
        let block = self.layout.block_bytes();
        let run = self.any_run(kept, block)?;
        push(places, &self.layout, &self.room, at, run);
        Ok(())
    }

    /// Counts a hold of the state lock for an allocation.
    pub fn count_hold(&mut self) {
        self.room.stats.holds += 1;
    }

    /// Counts a turn of the strategy `serialized`.
    pub fn count_turn(&mut self) {
        self.room.stats.turns += 1;
    }

    /// Counts bytes of log records that map content to its place.
    pub fn count_record_bytes(&mut self, bytes: u64) {
        self.room.stats.record_bytes += bytes;
    }

    /// Counts the places that a request got.
    pub fn count_taken(&mut self, class: Class, places: &[Extent]) {
        let bytes: u64 = places.iter().map(|place| place.len).sum();
        let stats = &mut self.room.stats;
        let (requests, sum, extents) = match class {
            Class::Direct => {
                (&mut stats.direct_requests, &mut stats.direct_bytes, &mut stats.direct_extents)
            }
            _ => (
                &mut stats.written_back,
                &mut stats.written_back_bytes,
                &mut stats.written_back_extents,
            ),
        };
        *requests += 1;
        *sum += bytes;
        *extents += places.len() as u64;
    }

    /// Returns places that were not used.
    pub fn give_back_places(&mut self, places: &[Extent]) {
        for place in places.iter().rev() {
            let Some(at) = self.layout.place_at(place.device_offset) else { continue };
            let run = (self.room.sizes.address(at), place.len);
            self.give_back_run(run);
        }
    }

    /// Returns the places of a reservation that were not published.
    pub fn give_back_reserved(&mut self, places: &[Extent]) {
        for place in places {
            if let Some(at) = self.layout.place_at(place.device_offset) {
                self.segments.hold(at.segment, place.len as i64);
            }
        }
        self.give_back_places(places);
    }

    /// Notes a failed write to this segment: later data goes elsewhere if possible (segment.W18,
    /// runs.R24). False: the failure was known.
    pub fn note_write_failed(&mut self, segment: u32) -> bool {
        let is_new = self.fail(segment);
        if is_new {
            self.fail_runs(segment);
        }
        is_new
    }
}

/// Checkpoints.
impl Space {
    /// Freezes what a checkpoint counts.
    pub fn freeze_all(&mut self) -> Snapshot {
        self.leave_pool();
        self.freeze();
        self.segments.snapshot()
    }

    /// A failed checkpoint does not count this segment's runs after all.
    pub fn touch(&mut self, segment: u32) {
        self.segments.touch(segment);
    }

    /// The usage of segments after a checkpoint. Runs in segments that die are forgotten.
    /// `is_early`: an injected fault.
    pub fn plan(
        &mut self,
        before: &Snapshot,
        deltas: Deltas,
        number: u64,
        is_early: bool,
    ) -> Result<Plan> {
        let left = |segment| self.room.left_of(segment);
        let plan = self.segments.plan(before, deltas, number, &left)?;
        plan.died().iter().for_each(|segment| self.forget_runs(*segment));
        if is_early {
            plan.died().iter().for_each(|segment| self.segments.give_back_early(*segment));
        }
        Ok(plan)
    }

    /// The places of nodes of a failed checkpoint. `is_named`: a slot may name them (nodes.N16).
    pub fn keep_failed_nodes(&mut self, places: Vec<Place>, is_named: bool) {
        match is_named {
            true => self.nodes.hold(places),
            false => self.nodes.fail_places(places),
        }
    }

    /// Completes checkpoint `number`, which is durable and has the trees of the one before.
    pub fn settle_repeated(&mut self, number: u64) {
        self.segments.reclaim(number);
        for segment in self.nodes.settle(Vec::new()) {
            self.segments.give_back(segment);
        }
    }

    /// A discard of this segment is in flight.
    pub fn begin_discard(&mut self, segment: u32) {
        self.segments.fly(segment, 1);
    }

    /// The device has ended a discard of this segment.
    pub fn end_discard(&mut self, segment: u32) {
        self.segments.fly(segment, -1);
    }

    /// Frees a segment that was to be discarded first, if no discard is in flight.
    pub fn free_discarded(&mut self, segment: u32) {
        if self.segments.discarding().contains(&segment) {
            self.segments.give_back(segment);
        }
    }

    /// An injected fault: frees segments that are not discarded.
    pub fn free_undiscarded(&mut self, segments: &[u32]) {
        segments.iter().for_each(|segment| self.segments.give_back(*segment));
    }
}

/// The cleaner.
impl Space {
    /// Live and dead bytes as far as they are counted.
    pub fn known(&mut self) -> Known {
        self.segments.known()
    }

    /// Notes the memory that a pass uses, bytes.
    pub fn set_cleaning_bytes(&mut self, bytes: u64) {
        self.cleaning_bytes = bytes;
    }

    /// Seals open segments that have dead data. False: there are none.
    pub fn seal_open(&mut self) -> bool {
        let data = self.seals_data().then(|| self.leave_data()).is_some();
        self.seal_clean() || data
    }

    /// Takes a run of at most `bytes` bytes for a copy. A write is in flight to each of `filled`,
    /// the segments of a round. `now`: the next sequence number.
    pub fn take_copy(
        &mut self,
        bytes: u64,
        filled: &mut BTreeSet<u32>,
        now: u64,
    ) -> Result<(Place, u64)> {
        let (at, taken) = self.take_clean(bytes)?;
        if filled.insert(at.segment) {
            self.segments.fly(at.segment, 1);
            self.segments.note_moved(at.segment, now);
        }
        Ok((at, taken))
    }
}

/// Opening and recovery.
impl Space {
    /// Freed segments are discarded before they are used again.
    pub fn set_discards(&mut self, discards: bool) {
        self.segments.discards = discards;
    }

    /// Takes over the usage table of checkpoint `number`.
    pub fn load(&mut self, entries: &[Entry], number: u64) -> Result<()> {
        self.segments.load(entries, number)
    }

    /// Reopens the tree segments of the usage table. Their nodes are counted one by one afterwards.
    pub fn adopt_trees(&mut self) {
        for segment in self.segments.adopt_trees() {
            self.nodes.adopt(segment);
        }
    }

    /// A node is at this place. False: it is no place for one, or has one already.
    pub fn note_node(&mut self, place: Place) -> bool {
        self.nodes.found(place)
    }

    /// Holds places of nodes to which only an older checkpoint leads.
    pub fn hold_nodes(&mut self, places: Vec<Place>) {
        self.nodes.hold(places);
    }

    /// Frees the tree segments without a node.
    pub fn free_empty_trees(&mut self) {
        for segment in self.nodes.release() {
            self.segments.give_back(segment);
        }
    }

    /// Frees the segments that are dead in the two newest checkpoints; `newest`: the newer one.
    pub fn reclaim(&mut self, newest: u64) {
        self.segments.reclaim(newest);
    }

    /// The log names this segment.
    pub fn note_named(&mut self, segment: u32, stream: Stream) {
        self.segments.found(segment, stream);
    }

    /// Keeps a segment from dying, as if a write to it were in flight.
    pub fn keep_alive(&mut self, segment: u32) {
        self.segments.fly(segment, 1);
    }
}

/// Changes that only tests make.
#[cfg(test)]
impl Space {
    pub fn take_segment(&mut self, stream: Stream) -> Result<u32> {
        self.segments.take(stream)
    }

    pub fn seal_segment(&mut self, segment: u32) {
        self.segments.seal(segment);
    }

    pub fn discard_soon(&mut self, segment: u32) {
        self.segments.discard_soon(segment);
    }

    pub fn say_live(&mut self, segment: u32, bytes: u64) {
        self.segments.say_live(segment, bytes);
    }
}
