//! Room for content that was accepted: counted when it is, and there when it is written out.
//!
//! ```text
//!   write ──admit──▶ arriving ──▶ dirty ──reserve──▶ a share: places in segments ──publish──▶ in a record
//!             │ no room: refused now                     ▲ what the log has no room for
//!             ▼                                          └── waits for two checkpoints, then goes in parts
//!          NoSpace
//! ```
//! What dirt will take of the log is not set aside: the log comes free again by checkpoints, which have room
//! of their own. So whoever writes out what was accepted makes room and goes on, and is not refused.
//!
//! Invariants: P21 bytes that were admitted are arriving, dirty or in write-out, and count until a
//! reservation holds room for them. P22 what is written past the cache leaves that room alone. P23 a part of
//! the room is for the last blocks of files that are cut, so that cutting and syncing work on a full volume.
//!
//! Locks: the state lock, held by the caller; what is arriving and dirty is counted without.

use crate::format::place::Geometry;
use crate::format::usage::USAGE_BYTES;
use crate::space::{Beside, Need};
use crate::state::State;
use forebay_base::{Error, ErrorKind, Result};
use forebay_cache::writeback::Domain;
use forebay_iomap::Class;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes that an extent of one block takes of the tree at most: two copies of a leaf that is half full.
const BLOCK_TREE_BYTES: u64 = 2 * 2 * 84;

/// Blocks that truncates surely may make dirty on a full volume, and bytes that are kept for them at most.
const EDGES: u64 = 16;
const EDGE_BYTES_MAX: u64 = 4 << 20;

/// Content that was accepted and is not written out (P21).
#[derive(Default)]
pub(crate) struct Dirt {
    domain: Option<Arc<Domain>>,
    /// Admitted, and not counted as dirty yet, bytes.
    arriving: AtomicU64,
}

impl Dirt {
    /// Of the files of `domain`.
    pub fn of(domain: Option<Arc<Domain>>) -> Self {
        Self { domain, arriving: AtomicU64::new(0) }
    }

    /// Bytes; what is on its way from one state to the next may be counted twice.
    fn bytes(&self) -> u64 {
        let arriving = self.arriving.load(Ordering::Acquire);
        let dirty = self.domain.as_ref().map_or(0, |d| d.dirty_bytes() + d.writeback_bytes());
        arriving + dirty
    }

    /// What was admitted is dirty, or did not come.
    pub fn arrived(&self, bytes: u64) {
        self.arriving.fetch_sub(bytes, Ordering::AcqRel);
    }
}

/// What changes take in the tree, about.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Growth {
    /// Items.
    pub entries: u64,
    /// Bytes.
    pub bytes: u64,
}

impl State {
    /// What content takes of segments, with its part of the tree.
    fn weight(&self, bytes: u64) -> u64 {
        bytes + self.layout.geometry.blocks_of(bytes) * BLOCK_TREE_BYTES
    }

    /// Accepted content that has no places yet, bytes with its part of the tree (P21).
    fn dirt_weight(&self, more: u64) -> u64 {
        self.weight((self.dirt.bytes() + more).saturating_sub(self.shared_bytes))
    }

    /// Segments that the cleaner may fill now.
    pub fn clean_segments(&self) -> u64 {
        self.space.clean_segments(self.dirt_weight(0))
    }

    /// Whether accepted content has its room without these bytes of what is held, too.
    pub fn can_spare(&self, bytes: u64) -> bool {
        self.data_room(Need::Urgent) >= self.dirt_weight(0) + bytes
    }

    /// Pairs of nodes that checkpoints may need (P13): the one that is being made, and one more, when what
    /// has changed has grown by `growth`.
    pub fn checkpoint_nodes(&self, growth: Growth) -> u64 {
        let made = self.frozen.as_ref().filter(|frozen| !frozen.is_merged);
        let made = made.map_or(0, |frozen| frozen.nodes.saturating_sub(self.space.nodes_taken()));
        made + self.merge_nodes(growth)
    }

    /// The same of one, made now.
    pub fn merge_nodes(&self, growth: Growth) -> u64 {
        let geometry = &self.layout.geometry;
        let room = crate::btree::write::room_bytes(geometry) as u64;
        let more =
            (growth.entries + self.shared_growth.entries, growth.bytes + self.shared_growth.bytes);
        let entries = self.items.len() + 2 * self.maps.0 + more.0;
        let bytes = self.items.bytes() + 40 * self.items.len() + self.maps.1 + more.1;
        let usage = (USAGE_BYTES as u64 * u64::from(self.layout.segments)).div_ceil(room / 2);
        // Each changed leaf with its path and a neighbour, and what is new at half full.
        (2 * entries).min(self.tree_nodes) + 2 * bytes.div_ceil(room) + usage + 8
    }

    /// P13: what checkpoints may need is as it is now.
    pub fn count_nodes(&mut self) {
        let nodes = self.checkpoint_nodes(Growth::default());
        self.space.need_nodes(nodes);
    }

    fn beside(&self, growth: Growth) -> Beside {
        let pairs = self.checkpoint_nodes(growth);
        Beside { dirt: self.dirt_weight(0), held: self.room.bytes(), pairs }
    }

    /// Bytes of data that there is room for, what is held for whoever goes on included (A13).
    pub fn data_room(&self, need: Need) -> u64 {
        let room = self.space.data_room() + self.room.bytes();
        match need {
            Need::New => room.saturating_sub(self.dirt_weight(0) + self.edge_bytes()),
            Need::Urgent | Need::Owed => room,
        }
    }

    /// What new content leaves to the blocks that truncates make dirty (P23), bytes.
    fn edge_bytes(&self) -> u64 {
        let volume = u64::from(self.layout.segments) * self.layout.segment_bytes();
        let least = EDGES * self.layout.block_bytes();
        (volume / 256).clamp(least, EDGE_BYTES_MAX.max(least))
    }

    /// Promises room in the log; segments of which only windows hold something come free for it (A13).
    pub fn promise(&mut self, cost: u64, need: Need, growth: Growth) -> Result<()> {
        let room = self.beside(growth);
        if self.space.promise(cost, need, &room).is_ok() {
            return Ok(());
        }
        self.room.return_all(&mut self.space);
        let room = self.beside(growth);
        self.space.promise(cost, need, &room)
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

    /// Content may go into the log: where there is so much room that its segments need not come free soon.
    pub fn takes_content(&self, cost: u64, growth: Growth) -> bool {
        self.space.has_room_for_content(cost, &self.beside(growth))
    }

    /// Accepts `new` bytes more of content, or `NoSpace`: they are arriving then.
    pub fn admit(&mut self, new: u64, need: Need) -> Result<()> {
        let room = self.space.data_room() + self.room.bytes();
        let edges = if need == Need::New { self.edge_bytes() } else { 0 };
        if self.dirt_weight(new) + edges > room {
            let text = format!("{new} bytes beside {} dirty ones", self.dirt.bytes());
            return Err(Error::new(ErrorKind::NoSpace, "write", text));
        }
        self.dirt.arriving.fetch_add(new, Ordering::AcqRel);
        Ok(())
    }

    /// P22.
    pub fn check_direct(&self, bytes: u64, class: Class) -> Result<()> {
        let room = self.data_room(Need::New);
        if class == Class::Direct && self.weight(bytes) > room {
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
