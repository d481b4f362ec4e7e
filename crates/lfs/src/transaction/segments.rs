//! Changes of space that checkpoints, the cleaner, repair and recovery make.
//!
//! Lock: the state lock, held by the caller.

#[cfg(test)]
use crate::btree::Change as ItemChange;
use crate::format::place::Place;
use crate::format::superblock::Superblock;
use crate::format::usage::{Segment as Entry, Stream};
#[cfg(test)]
use crate::format::{
    inode::Inode,
    item::Item,
    key::{Key, KeyBytes},
};
#[cfg(test)]
use crate::map::overlay::Piece;
#[cfg(test)]
use crate::names::node::Node;
use crate::space::admission::AcceptedContent;
use crate::space::segment::Known;
use crate::space::{Grant, Space};
use crate::transaction::state::State;
use forebay_base::Result;
use std::collections::BTreeSet;
use std::sync::Arc;

impl State {
    /// Segments, grants, and runs that are not in use.
    pub fn space(&self) -> &Space {
        &self.space
    }

    /// Ends a grant, or the part of it that was used or is not needed.
    pub fn end_grant(&mut self, grant: Grant) {
        self.space.end_grant(grant);
    }

    /// A checkpoint was made for lack of space.
    pub fn note_made_short(&mut self) {
        self.space.made_short();
    }

    /// Two checkpoints have made the first `total` removed bytes free.
    pub fn note_removed_free(&mut self, total: u64) {
        self.space.note_removed_free(total);
    }

    /// Notes a failed write to this segment. False: the failure was known.
    pub fn note_write_failed(&mut self, segment: u32) -> bool {
        self.space.note_write_failed(segment)
    }

    /// Takes a free segment for the write by which a repair learns whether the device takes any.
    pub fn take_probed(&mut self) -> Result<u32> {
        self.space.take_probed()
    }

    /// Frees the segment of [`Self::take_probed`]. The device has ended its write.
    pub fn give_back_probed(&mut self) {
        self.space.give_back_probed();
    }
}

/// Discards.
impl State {
    /// A discard of this segment is in flight.
    pub fn begin_discard(&mut self, segment: u32) {
        self.space.begin_discard(segment);
    }

    /// The device has ended a discard of this segment.
    pub fn end_discard(&mut self, segment: u32) {
        self.space.end_discard(segment);
    }

    /// Frees a segment that was to be discarded first, if no discard is in flight.
    pub fn free_discarded(&mut self, segment: u32) {
        self.space.free_discarded(segment);
    }

    /// An injected fault: frees segments that are not discarded.
    pub fn free_undiscarded(&mut self, segments: &[u32]) {
        self.space.free_undiscarded(segments);
    }
}

/// The cleaner.
impl State {
    /// Live and dead bytes as far as they are counted.
    pub fn known_segments(&mut self) -> Known {
        self.space.known()
    }

    /// Returns all windows, so that any request can use their space (alloc.A13).
    pub fn return_windows(&mut self) {
        self.space.return_windows();
    }

    /// Keeps segments for the cleaner in addition to the one that it fills.
    pub fn plan_clean(&mut self, segments: u64) {
        self.space.plan_clean(segments);
    }

    /// The unused rest of a segment that is cleaned is not given out any more.
    pub fn forget_runs(&mut self, segment: u32) {
        self.space.forget_runs(segment);
    }

    /// Seals open segments that have dead data. False: there are none.
    pub fn seal_open(&mut self) -> bool {
        self.space.seal_open()
    }

    /// Notes the memory that a pass uses, bytes.
    pub fn set_cleaning_bytes(&mut self, bytes: u64) {
        self.space.set_cleaning_bytes(bytes);
    }

    /// A pass has ended: the space and the memory that it has reserved are released.
    pub fn end_pass(&mut self) {
        self.space.plan_clean(0);
        self.space.set_cleaning_bytes(0);
    }

    /// Takes a run for a copy. `filled`: the segments of the round, each with a write in flight.
    pub fn take_copy(&mut self, bytes: u64, filled: &mut BTreeSet<u32>) -> Result<(Place, u64)> {
        self.space.take_copy(bytes, filled, self.names.counters().next_sequence())
    }

    /// The writes to these segments have ended.
    pub fn land(&mut self, segments: &BTreeSet<u32>) {
        segments.iter().for_each(|segment| self.space.land(*segment));
    }
}

/// Opening and recovery.
impl State {
    /// Takes over the numbers of a checkpoint. `names_max`: the limit on memory of names, bytes.
    pub fn load_numbers(&mut self, superblock: &Superblock, names_max: usize) {
        self.names.load(superblock);
        self.names.set_bytes_max(names_max);
    }

    /// The tree has this orphan.
    pub fn load_orphan(&mut self, ino: u64) {
        self.names.add_orphan(ino);
    }

    /// Skips sequence numbers that may have been given out without a record.
    pub fn skip_sequences(&mut self, count: u64) {
        self.names.skip_sequences(count);
    }

    /// An injected fault: restarts the inode numbers.
    pub fn restart_inos(&mut self) {
        self.names.restart_inos();
    }

    /// Takes over the usage table of checkpoint `number`.
    pub fn load_usage(&mut self, entries: &[Entry], number: u64) -> Result<()> {
        self.space.load(entries, number)
    }

    /// Reopens the tree segments of the usage table.
    pub fn adopt_trees(&mut self) {
        self.space.adopt_trees();
    }

    /// A node is at this place. False: it is no place for one, or has one already.
    pub fn note_node(&mut self, place: Place) -> bool {
        self.space.note_node(place)
    }

    /// Holds places of nodes to which only an older checkpoint leads.
    pub fn hold_nodes(&mut self, places: Vec<Place>) {
        self.space.hold_nodes(places);
    }

    /// Frees the tree segments without a node.
    pub fn free_empty_trees(&mut self) {
        self.space.free_empty_trees();
    }

    /// Frees the segments that are dead in the two newest checkpoints; `newest`: the newer one.
    pub fn reclaim(&mut self, newest: u64) {
        self.space.reclaim(newest);
    }

    /// The log names this segment.
    pub fn note_named(&mut self, segment: u32, stream: Stream) {
        self.space.note_named(segment, stream);
    }

    /// Keeps a segment from dying, as if a write to it were in flight.
    pub fn keep_alive(&mut self, segment: u32) {
        self.space.keep_alive(segment);
    }

    /// Takes the first segment for the log of a new generation. One that is dead in the newest
    /// checkpoint is safe here: nothing is written to it until a new slot is durable. Then neither
    /// of the two newest checkpoints refers to it.
    pub fn take_first_log(&mut self) -> Result<u32> {
        let taken = self.space.take_log();
        let taken = taken.or_else(|error| self.space.take_dead_log().ok_or(error))?;
        self.space.log_head(u64::from(self.layout.first_record()));
        Ok(taken)
    }

    /// The volume is open: how freed segments are treated, and where accepted content is counted.
    pub fn serve(&mut self, discards: bool, accepted: Arc<AcceptedContent>) {
        self.space.set_discards(discards);
        self.space.set_accepted(accepted);
    }
}

/// Changes that only tests make.
#[cfg(test)]
impl State {
    pub fn take_segment(&mut self, stream: Stream) -> Result<u32> {
        self.space.take_segment(stream)
    }

    pub fn seal_segment(&mut self, segment: u32) {
        self.space.seal_segment(segment);
    }

    /// Changes the attributes of an inode without a record.
    pub fn change_node(&mut self, ino: u64, change: impl Fn(&mut Inode)) {
        self.names.update(ino, |node| node.change(change)).unwrap();
        self.names.note_inode(ino).unwrap();
    }

    /// Evicts an inode from memory.
    pub fn forget_node(&mut self, ino: u64) -> Option<Box<Node>> {
        self.names.forget(ino)
    }

    /// Removes an item without a record.
    pub fn remove_item(&mut self, key: KeyBytes) {
        self.names.put_item(key, None);
    }

    /// Puts an item without a record.
    pub fn put_item(&mut self, key: Key, item: &Item<'_>) {
        let change = ItemChange::put(key, item, &self.layout.geometry).unwrap();
        self.names.put_item(key.to_bytes(), change.value().map(Into::into));
    }

    /// Makes an inode an orphan without a record.
    pub fn note_orphan(&mut self, ino: u64) {
        self.names.note_orphan(ino, true).unwrap();
    }

    /// Maps content without a record.
    pub fn put_piece(&mut self, data_id: u64, block: u64, piece: &Piece) {
        self.map.put(data_id, block, piece);
    }

    pub fn take_log(&mut self) -> Result<u32> {
        self.space.take_log()
    }

    pub fn set_discards(&mut self, discards: bool) {
        self.space.set_discards(discards);
    }

    pub fn discard_soon(&mut self, segment: u32) {
        self.space.discard_soon(segment);
    }

    pub fn say_live(&mut self, segment: u32, bytes: u64) {
        self.space.say_live(segment, bytes);
    }
}
