//! Admission of content: whether the volume has space for it, and grants of log space for records.
//! The invariants are those of [`crate::space::admission`].
//!
//! Locks: the state lock, held by the caller. Arriving and dirty bytes are counted without it.

use crate::format::place::{Geometry, Place};
use crate::format::usage::USAGE_BYTES;
use crate::space::admission::{BLOCK_TREE_BYTES, Growth};
use crate::space::{Need, OtherNeeds};
use crate::transaction::state::State;
use forebay_base::{Error, ErrorKind, Result};
use forebay_iomap::Class;

/// The number of blocks that truncates may always make dirty on a full volume, and the most bytes
/// that are kept for them.
const EDGES: u64 = 16;

const EDGE_BYTES_MAX: u64 = 4 << 20;

/// Pairs of nodes that a removal or a truncate may need in the next checkpoint: the changed leaves
/// with their paths, and the block that a truncate makes dirty.
const PAIRS_TO_MAKE_ROOM: u64 = 24;

/// Making space continues until this many segments of space exist for new content, and for
/// overwrites one in [`ENOUGH_SHARE`] of all segments.
const ENOUGH: u64 = 2;

const ENOUGH_SHARE: u64 = 64;

/// With less free space than this many segments, admission computes exactly whether new content
/// gets everything that it needs.
const NEAR_SEGMENTS: u64 = 4;

impl State {
    /// Bytes of segments that content takes, together with its items in the tree.
    fn weight(&self, bytes: u64) -> u64 {
        bytes + self.layout.geometry.blocks_of(bytes) * BLOCK_TREE_BYTES
    }

    /// Bytes of accepted content that has no places yet, plus `more`.
    pub fn accepted_bytes(&self, more: u64) -> u64 {
        (self.accepted.bytes() + more).saturating_sub(self.reservations.accepted_bytes())
    }

    /// The weight of [`Self::accepted_bytes`]: with its items in the tree (admission.P21).
    fn accepted_weight(&self, more: u64) -> u64 {
        self.weight(self.accepted_bytes(more))
    }

    /// The segments that the cleaner may fill now.
    pub fn clean_segments(&self) -> u64 {
        self.space.clean_segments(self.accepted_weight(0), self.room.bytes())
    }

    /// Whether accepted content still has its space without `bytes` of the bytes held for streams.
    pub fn can_spare(&self, bytes: u64) -> bool {
        self.data_room(Need::Urgent) >= self.accepted_weight(0) + bytes
    }

    /// Pairs of nodes that two checkpoints may need (space.P13), after the changes have grown by
    /// `growth`. These are the current checkpoint and the next one. If none is in progress, they
    /// are the next one and the one after it, which frees what the first gives up.
    pub fn checkpoint_nodes(&self, growth: Growth) -> u64 {
        let made = self.frozen.as_ref().filter(|frozen| !frozen.is_merged);
        let made = made.map(|frozen| frozen.nodes.saturating_sub(self.space.nodes_taken()));
        made.unwrap_or_else(|| self.table_nodes()) + self.merge_nodes(growth)
    }

    /// Pairs that each checkpoint may take, whatever has changed: those of the usage table, and the
    /// minimum of a merge.
    pub fn table_nodes(&self) -> u64 {
        let room = crate::btree::write::room_bytes(&self.layout.geometry) as u64;
        let usage = (USAGE_BYTES as u64 * u64::from(self.layout.segments)).div_ceil(room / 2);
        usage + (self.tree_nodes + 2).min(8)
    }

    /// Pairs that new content leaves to operations that make space (space.P24).
    fn spare_nodes(&self) -> u64 {
        (self.tree_nodes + 2).min(PAIRS_TO_MAKE_ROOM)
    }

    /// Pairs of nodes that a checkpoint may take if it is made now.
    pub fn merge_nodes(&self, growth: Growth) -> u64 {
        let geometry = &self.layout.geometry;
        let room = crate::btree::write::room_bytes(geometry) as u64;
        let reserved = self.reservations.growth();
        let more = (growth.entries + reserved.entries, growth.bytes + reserved.bytes);
        let entries = self.items.len() + 2 * self.map.change_count() + more.0;
        let bytes = self.items.bytes() + 40 * self.items.len() + self.map.tree_bytes() + more.1;
        // An estimate. A change rewrites its leaf and may merge that with a neighbour: two nodes
        // for each, never more than the tree has. Inner nodes are few: `table_nodes` has those of
        // one path. New leaves may be half full, so new items take twice their bytes.
        (2 * entries).min(self.tree_nodes) + 2 * bytes.div_ceil(room) + self.table_nodes()
    }

    /// Tells [`Space`](crate::space::Space) how many nodes checkpoints may need now (space.P13).
    pub fn count_nodes(&mut self) {
        let nodes = self.checkpoint_nodes(Growth::default());
        self.space.need_nodes(nodes, self.spare_nodes());
        self.space.least_nodes(self.least_nodes());
    }

    /// Takes two places for a node. If one of them would be in a segment with a failed write, this
    /// adds another segment (nodes.N14), as long as overwrites also have one.
    pub fn take_node(&mut self) -> Result<[Place; 2]> {
        while self.space.nodes.lacks_sound()
            && self.has_overwrite_space(2 * self.layout.segment_bytes())
            && self.space.add_sound()
        {}
        self.space.take_node()
    }

    /// Space that content leaves to other users, if the changes of `growth` are added.
    fn other_needs(&self, growth: Growth) -> OtherNeeds {
        OtherNeeds {
            accepted: self.accepted_weight(0),
            edges: self.edge_bytes(),
            held: self.room.bytes(),
            pairs: self.checkpoint_nodes(growth),
            spare: self.spare_nodes(),
        }
    }

    /// Bytes of free space for data. Space that is held for streams counts as free (alloc.A13).
    pub fn data_room(&self, need: Need) -> u64 {
        let held = self.room.bytes();
        match need {
            Need::New => {
                let room = self.space.data_room() + held;
                room.saturating_sub(self.accepted_weight(0) + self.edge_bytes())
            }
            Need::Urgent | Need::Outstanding => self.space.free_for_accepted() + held,
        }
    }

    /// Bytes that new content leaves to accepted content, and to truncates.
    pub(super) fn content_needs(&self) -> (u64, u64) {
        (self.accepted_weight(0), self.edge_bytes())
    }

    /// Bytes that new content leaves free for the blocks that truncates make dirty (admission.P23).
    fn edge_bytes(&self) -> u64 {
        let volume = u64::from(self.layout.segments) * self.layout.segment_bytes();
        let least = EDGES * self.layout.block_bytes();
        (volume / 256).clamp(least, EDGE_BYTES_MAX.max(least))
    }

    /// Grants space of the log. If there is none, it first closes all windows, so that their
    /// segments may become free (alloc.A13).
    pub fn promise(&mut self, cost: u64, need: Need, growth: Growth) -> Result<()> {
        if need == Need::New && !self.has_capacity(0, growth) {
            let text = "so that what there is can be overwritten";
            return Err(Error::new(ErrorKind::NoSpace, "reserve", text));
        }
        let room = self.other_needs(growth);
        if self.space.promise(cost, need, &room).is_ok() {
            return Ok(());
        }
        self.room.return_all(&mut self.space);
        let room = self.other_needs(growth);
        let promised = self.space.promise(cost, need, &room);
        if promised.is_err() {
            self.refusal.lacks_space = Some(need);
        }
        promised
    }

    /// Whether the log would now grant `cost` bytes to an urgent record.
    pub fn could_promise(&mut self, cost: u64, growth: Growth) -> bool {
        let could = self.promise(cost, Need::Urgent, growth).is_ok();
        if could {
            self.space.settle(cost);
            self.count_nodes();
        }
        could
    }

    /// Whether content may go into the log: there is so much space that the log's segments need not
    /// become free soon.
    pub fn takes_content(&self, cost: u64, growth: Growth) -> bool {
        self.space.has_room_for_content(cost, &self.other_needs(growth))
    }

    /// Whether there is space for `new` more bytes of content.
    pub fn has_room(&self, new: u64, need: Need) -> bool {
        if need != Need::New {
            return self.accepted_weight(new) <= self.data_room(need);
        }
        let room = self.space.data_room() + self.room.bytes();
        let wanted = self.accepted_weight(new) + self.edge_bytes();
        let is_near = wanted + NEAR_SEGMENTS * self.layout.segment_bytes() > room;
        let lacks = wanted > room || is_near && self.lacks_nodes(new);
        !lacks && self.has_capacity(new, Growth::default())
    }

    /// Whether there is space for `new` bytes that overwrite stored content (capacity.P25). The
    /// overwritten space becomes free, so an overwrite may use the reserve that new content may
    /// not.
    pub fn has_overwrite_space(&self, new: u64) -> bool {
        self.accepted_weight(new) <= self.overwrite_space(new)
    }

    /// Accepts `new` more bytes of content, which are arriving from now on, or returns `NoSpace`.
    /// `over`: the file has stored blocks there, so this is an overwrite.
    pub fn admit(&mut self, new: u64, need: Need, over: bool) -> Result<()> {
        if !(self.has_room(new, need) || over && self.has_overwrite_space(new)) {
            let text = format!("{new} bytes in addition to {} dirty ones", self.accepted.bytes());
            return Err(Error::new(ErrorKind::NoSpace, "write", text));
        }
        self.accepted.admit(new);
        Ok(())
    }

    /// Whether space is still short after space was made. A little space would not last. So this
    /// demands enough for overwrites, and enough for new content as far as the volume may hold it
    /// (capacity.P25).
    pub fn lacks_space(&self) -> bool {
        let segment = self.layout.segment_bytes();
        let enough = ENOUGH * segment;
        // An eighth is for the items in the tree.
        let over = (u64::from(self.layout.segments) / ENOUGH_SHARE).max(1) * segment;
        !self.has_overwrite_space(over - over / 8)
            || self.data_room(Need::New) < self.capacity_left().min(enough)
    }

    /// Bytes of space for overwrites of stored content, if `new` bytes are accepted.
    pub fn overwrite_space(&self, new: u64) -> u64 {
        let growth = Growth::of_content(new, self.layout.block_bytes());
        self.space.overwrite_space(self.checkpoint_nodes(growth)) + self.room.bytes()
    }

    /// The levels that space is measured by: free segments, bytes for new content, and bytes for
    /// overwrites.
    pub fn space_levels(&self) -> [u64; 3] {
        [self.space.segments.free(), self.data_room(Need::New), self.overwrite_space(0)]
    }

    /// Whether a level is higher than `before`.
    pub fn has_more_space(&self, before: &[u64; 3]) -> bool {
        self.space_levels().iter().zip(before).any(|(now, before)| now > before)
    }

    /// Whether the records of `new` bytes of content would be refused because nodes are lacking
    /// (space.P24).
    fn lacks_nodes(&self, new: u64) -> bool {
        let growth = Growth::of_content(new, self.layout.block_bytes());
        let room = OtherNeeds { accepted: self.accepted_weight(new), ..self.other_needs(growth) };
        self.space.lacks_nodes(Need::New, &room)
    }

    /// Refuses a direct write that would take space of accepted content (admission.P22). `over`: it
    /// overwrites stored content.
    pub fn check_direct(&self, bytes: u64, class: Class, over: bool) -> Result<()> {
        if class != Class::Direct {
            return Ok(());
        }
        let (room, fits) = match over {
            true => (self.overwrite_space(bytes).saturating_sub(self.accepted_weight(0)), true),
            false => (self.data_room(Need::New), self.has_capacity(bytes, Growth::default())),
        };
        if self.weight(bytes) > room || !fits {
            let text = format!("{bytes} bytes, room for {room}");
            return Err(Error::new(ErrorKind::NoSpace, "reserve", text));
        }
        Ok(())
    }
}

impl Geometry {
    /// The number of blocks in `bytes` bytes.
    fn blocks_of(&self, bytes: u64) -> u64 {
        bytes >> self.block_shift
    }
}
