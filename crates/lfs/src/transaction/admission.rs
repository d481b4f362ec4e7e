//! Admission of content: whether the state has space for it, and grants of log space for records.
//! The invariants are those of [`crate::space::admission`].
//!
//! Locks: the state lock, held by the caller; what is arriving and dirty is counted without it.

use crate::format::place::{Geometry, Place};
use crate::format::usage::USAGE_BYTES;
use crate::space::admission::{BLOCK_TREE_BYTES, Growth};
use crate::space::{Need, OtherNeeds};
use crate::transaction::state::State;
use forebay_base::{Error, ErrorKind, Result};
use forebay_iomap::Class;

/// Blocks that truncates surely may make dirty on a full volume, and bytes that are kept for them
/// at most.
const EDGES: u64 = 16;

const EDGE_BYTES_MAX: u64 = 4 << 20;

/// Pairs of nodes that a removal or a cut may want of the next checkpoint: what it changes with the
/// paths there, and the block that a cut makes dirty.
const PAIRS_TO_MAKE_ROOM: u64 = 24;

/// Segments that there should be room for when room was made: for what is new, and for what
/// overwrites, of so many one.
const ENOUGH: u64 = 2;

const ENOUGH_SHARE: u64 = 64;

/// Segments that are left when it is looked at closely whether new content has all that it needs.
const NEAR_SEGMENTS: u64 = 4;

impl State {
    /// What content takes of segments, with its part of the tree.
    fn weight(&self, bytes: u64) -> u64 {
        bytes + self.layout.geometry.blocks_of(bytes) * BLOCK_TREE_BYTES
    }

    /// Accepted content that has no places yet, and so much more, bytes.
    pub fn dirt_bytes(&self, more: u64) -> u64 {
        (self.dirt.bytes() + more).saturating_sub(self.reservations.accepted_bytes())
    }

    /// The same with its part of the tree (P21).
    fn dirt_weight(&self, more: u64) -> u64 {
        self.weight(self.dirt_bytes(more))
    }

    /// Segments that the cleaner may fill now.
    pub fn clean_segments(&self) -> u64 {
        self.space.clean_segments(self.dirt_weight(0), self.room.bytes())
    }

    /// Whether accepted content has its room without these bytes of what is held, too.
    pub fn can_spare(&self, bytes: u64) -> bool {
        self.data_room(Need::Urgent) >= self.dirt_weight(0) + bytes
    }

    /// Pairs of nodes that two checkpoints may need (P13), when what has changed has grown by
    /// `growth`: the one that is being made and the next, or the next and the one that makes free
    /// what that gives up.
    pub fn checkpoint_nodes(&self, growth: Growth) -> u64 {
        let made = self.frozen.as_ref().filter(|frozen| !frozen.is_merged);
        let made = made.map(|frozen| frozen.nodes.saturating_sub(self.space.nodes_taken()));
        made.unwrap_or_else(|| self.table_nodes()) + self.merge_nodes(growth)
    }

    /// Pairs that a checkpoint may take whatever has changed: the usage table, and what a merge of
    /// little rounds up.
    pub fn table_nodes(&self) -> u64 {
        let room = crate::btree::write::room_bytes(&self.layout.geometry) as u64;
        let usage = (USAGE_BYTES as u64 * u64::from(self.layout.segments)).div_ceil(room / 2);
        usage + (self.tree_nodes + 2).min(8)
    }

    /// Pairs that what is new leaves to what makes room (P24).
    fn spare_nodes(&self) -> u64 {
        (self.tree_nodes + 2).min(PAIRS_TO_MAKE_ROOM)
    }

    /// Pairs of nodes that one checkpoint may take, made now.
    pub fn merge_nodes(&self, growth: Growth) -> u64 {
        let geometry = &self.layout.geometry;
        let room = crate::btree::write::room_bytes(geometry) as u64;
        let reserved = self.reservations.growth();
        let more = (growth.entries + reserved.entries, growth.bytes + reserved.bytes);
        let entries = self.items.len() + 2 * self.map.change_count() + more.0;
        let bytes = self.items.bytes() + 40 * self.items.len() + self.map.tree_bytes() + more.1;
        // Each changed leaf with its path and a neighbour, and what is new at half full.
        (2 * entries).min(self.tree_nodes) + 2 * bytes.div_ceil(room) + self.table_nodes()
    }

    /// P13: what checkpoints may need is as it is now.
    pub fn count_nodes(&mut self) {
        let nodes = self.checkpoint_nodes(Growth::default());
        self.space.need_nodes(nodes, self.spare_nodes());
        self.space.least_nodes(self.least_nodes());
    }

    /// Two places for a node. Where one of them would be in a segment that a write to failed,
    /// another segment is taken (N14), as long as what overwrites has one, too.
    pub fn take_node(&mut self) -> Result<[Place; 2]> {
        while self.space.nodes.lacks_sound()
            && self.has_overwrite_space(2 * self.layout.segment_bytes())
            && self.space.add_sound()
        {}
        self.space.take_node()
    }

    fn beside(&self, growth: Growth) -> OtherNeeds {
        OtherNeeds {
            dirt: self.dirt_weight(0),
            edges: self.edge_bytes(),
            held: self.room.bytes(),
            pairs: self.checkpoint_nodes(growth),
            spare: self.spare_nodes(),
        }
    }

    /// Bytes of data that there is space for. Space held for writers that continue counts (A13).
    pub fn data_room(&self, need: Need) -> u64 {
        let held = self.room.bytes();
        match need {
            Need::New => {
                let room = self.space.data_room() + held;
                room.saturating_sub(self.dirt_weight(0) + self.edge_bytes())
            }
            Need::Urgent | Need::Outstanding => self.space.owed_room() + held,
        }
    }

    /// What new content leaves to the blocks that truncates make dirty (P23), bytes.
    fn edge_bytes(&self) -> u64 {
        let volume = u64::from(self.layout.segments) * self.layout.segment_bytes();
        let least = EDGES * self.layout.block_bytes();
        (volume / 256).clamp(least, EDGE_BYTES_MAX.max(least))
    }

    /// Grants space of the log. Segments in which only windows hold something become free for it
    /// (A13).
    pub fn promise(&mut self, cost: u64, need: Need, growth: Growth) -> Result<()> {
        if need == Need::New && !self.has_capacity(0, growth) {
            let text = "so that what there is can be overwritten";
            return Err(Error::new(ErrorKind::NoSpace, "reserve", text));
        }
        let room = self.beside(growth);
        if self.space.promise(cost, need, &room).is_ok() {
            return Ok(());
        }
        self.room.return_all(&mut self.space);
        let room = self.beside(growth);
        let promised = self.space.promise(cost, need, &room);
        if promised.is_err() {
            self.refusal.lacks_space = Some(need);
        }
        promised
    }

    /// Whether the log has room for so much that is urgent.
    pub fn could_promise(&mut self, cost: u64, growth: Growth) -> bool {
        let could = self.promise(cost, Need::Urgent, growth).is_ok();
        if could {
            self.space.settle(cost);
            self.count_nodes();
        }
        could
    }

    /// Content may go into the log: where there is so much room that its segments need not come
    /// free soon.
    pub fn takes_content(&self, cost: u64, growth: Growth) -> bool {
        self.space.has_room_for_content(cost, &self.beside(growth))
    }

    /// Whether `new` bytes more of content have room.
    pub fn has_room(&self, new: u64, need: Need) -> bool {
        if need != Need::New {
            return self.dirt_weight(new) <= self.data_room(need);
        }
        let room = self.space.data_room() + self.room.bytes();
        let wanted = self.dirt_weight(new) + self.edge_bytes();
        let is_near = wanted + NEAR_SEGMENTS * self.layout.segment_bytes() > room;
        let lacks = wanted > room || is_near && self.lacks_nodes(new);
        !lacks && self.has_capacity(new, Growth::default())
    }

    /// The same for content that overwrites stored content (P25). The overwritten space becomes
    /// free, so an overwrite may use the reserve that new content may not.
    pub fn has_overwrite_space(&self, new: u64) -> bool {
        self.dirt_weight(new) <= self.overwrite_space(new)
    }

    /// Accepts `new` bytes more of content, or `NoSpace`: they are arriving then. `over`: of a file
    /// that has these blocks.
    pub fn admit(&mut self, new: u64, need: Need, over: bool) -> Result<()> {
        if !(self.has_room(new, need) || over && self.has_overwrite_space(new)) {
            let text = format!("{new} bytes beside {} dirty ones", self.dirt.bytes());
            return Err(Error::new(ErrorKind::NoSpace, "write", text));
        }
        self.dirt.admit(new);
        Ok(())
    }

    /// Less than it should be after room was made, for a little does not last: room for what
    /// overwrites, and for what is new as far as the volume may hold it (P25).
    pub fn lacks_space(&self) -> bool {
        let segment = self.layout.segment_bytes();
        let enough = ENOUGH * segment;
        // With its part of the tree.
        let over = (u64::from(self.layout.segments) / ENOUGH_SHARE).max(1) * segment;
        !self.has_overwrite_space(over - over / 8)
            || self.data_room(Need::New) < self.capacity_left().min(enough)
    }

    /// Bytes that there are for what overwrites stored content, if so much is new.
    pub fn overwrite_space(&self, new: u64) -> u64 {
        let growth = Growth::of_content(new, self.layout.block_bytes());
        self.space.overwrite_space(self.checkpoint_nodes(growth)) + self.room.bytes()
    }

    /// Free segments, and bytes that there are for new content and for overwrites.
    pub fn space_levels(&self) -> [u64; 3] {
        [self.space.segments.free(), self.data_room(Need::New), self.overwrite_space(0)]
    }

    /// Whether there is more of something than before.
    pub fn has_more_space(&self, before: &[u64; 3]) -> bool {
        self.space_levels().iter().zip(before).any(|(now, before)| now > before)
    }

    /// Whether the records of so much new content would be refused for want of nodes (P24).
    fn lacks_nodes(&self, new: u64) -> bool {
        let growth = Growth::of_content(new, self.layout.block_bytes());
        let room = OtherNeeds { dirt: self.dirt_weight(new), ..self.beside(growth) };
        self.space.lacks_nodes(Need::New, &room)
    }

    /// P22. `over`: of what takes the place of stored content.
    pub fn check_direct(&self, bytes: u64, class: Class, over: bool) -> Result<()> {
        if class != Class::Direct {
            return Ok(());
        }
        let (room, fits) = match over {
            true => (self.overwrite_space(bytes).saturating_sub(self.dirt_weight(0)), true),
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
    /// Blocks that so many bytes take.
    fn blocks_of(&self, bytes: u64) -> u64 {
        bytes >> self.block_shift
    }
}
