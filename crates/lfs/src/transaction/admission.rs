//! Admission of content: whether the volume has space for it, and grants of log space for records.
//! The invariants are those of [`crate::space::admission`].
//!
//! Locks: the state lock, held by the caller. Arriving and dirty bytes are counted without it.

use crate::format::place::Place;
use crate::format::usage::USAGE_BYTES;
use crate::space::admission::{ADVANCE_BYTES, BLOCK_TREE_BYTES, Growth};
use crate::space::ledger::{Balance, Kept};
use crate::space::{Ask, Grant, Leave, Need, OtherNeeds};
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

impl State {
    /// Bytes of accepted content that has no places yet, plus `more`.
    pub fn accepted_bytes(&self, more: u64) -> u64 {
        self.space.ledger().unplaced_bytes() + more
    }

    /// The claims on free segments, including what is asked for.
    pub fn balance(&self, ask: &Ask) -> Balance {
        let geometry = &self.layout.geometry;
        let content = Growth::of_content(ask.content, self.layout.block_bytes());
        let accepted = self.accepted_bytes(ask.content).saturating_sub(ask.placed);
        let growth = ask.growth.plus(content);
        let others = OtherNeeds {
            // With its items in the tree (admission.P21).
            accepted: accepted + (accepted >> geometry.block_shift) * BLOCK_TREE_BYTES,
            edges: self.edge_bytes(),
            held: self.space.room().bytes(),
            pairs: self.checkpoint_nodes(growth),
            next_pairs: self.next_checkpoint_nodes(growth),
            spare: self.spare_nodes(),
            least: self.least_nodes(),
        };
        self.space.balance(ask.log, others)
    }

    /// The free segments that data leaves alone.
    pub fn kept(&self) -> Kept {
        self.balance(&Ask::default()).kept()
    }

    /// Whether the log can leave its segment after a failure (space.P26). `bytes` bytes of records
    /// are laid out again then, and `given_back` segments become free.
    pub fn can_move_log(&self, given_back: u64, bytes: u64, why: Leave) -> bool {
        self.balance(&Ask::log(bytes, Growth::default())).can_leave_log(given_back, why)
    }

    /// Whether the log leaves its segment for a checkpoint, so that the segment becomes free
    /// (checkpoint.free.Z13, space.P26).
    pub fn log_leaves(&self) -> bool {
        // While checkpoints fail, none would free it.
        let why = if self.life.is_failing() { Leave::Failed } else { Leave::Mark };
        self.space.log_is_used() && self.balance(&Ask::default()).can_leave_log(0, why)
    }

    /// The segments that the cleaner may fill now.
    pub fn clean_segments(&self) -> u64 {
        self.balance(&Ask::default()).clean_segments()
    }

    /// Pairs of nodes that two checkpoints may need (space.P13), after the changes have grown by
    /// `growth`. These are the current checkpoint and the next one. If none is in progress, they
    /// are the next one and the one after it, which frees what the first gives up.
    pub fn checkpoint_nodes(&self, growth: Growth) -> u64 {
        let made = self.tree.unmerged_nodes();
        let made = made.map(|nodes| nodes.saturating_sub(self.space.nodes_taken()));
        made.unwrap_or_else(|| self.table_nodes()) + self.merge_nodes(growth)
    }

    /// Of these pairs, those that the next checkpoint may need. If one is in progress, all of them.
    fn next_checkpoint_nodes(&self, growth: Growth) -> u64 {
        match self.tree.unmerged_nodes() {
            Some(_) => self.checkpoint_nodes(growth),
            None => self.merge_nodes(growth),
        }
    }

    /// Pairs that each checkpoint may take, whatever has changed: those of the usage table, and the
    /// minimum of a merge.
    pub fn table_nodes(&self) -> u64 {
        let room = crate::btree::write::room_bytes(&self.layout.geometry) as u64;
        let usage = (USAGE_BYTES as u64 * u64::from(self.layout.segments)).div_ceil(room / 2);
        usage + (self.tree.node_count() + 2).min(8)
    }

    /// Pairs that new content leaves to operations that make space (space.P24).
    fn spare_nodes(&self) -> u64 {
        (self.tree.node_count() + 2).min(PAIRS_TO_MAKE_ROOM)
    }

    /// Pairs of nodes that a checkpoint may take if it is made now.
    pub fn merge_nodes(&self, growth: Growth) -> u64 {
        let geometry = &self.layout.geometry;
        let room = crate::btree::write::room_bytes(geometry) as u64;
        let more = growth.plus(self.space.ledger().growth());
        let entries = self.names.items().len() + 2 * self.map.change_count() + more.entries;
        let bytes =
            self.names.items().bytes() + 40 * self.names.items().len() + self.map.tree_bytes();
        let bytes = bytes + more.bytes;
        // An estimate. A change rewrites its leaf and may merge that with a neighbour: two nodes
        // for each, never more than the tree has. Inner nodes are few: `table_nodes` has those of
        // one path. New leaves may be half full, so new items take twice their bytes.
        (2 * entries).min(self.tree.node_count()) + 2 * bytes.div_ceil(room) + self.table_nodes()
    }

    /// Takes two places for a node. If one of them would be in a segment with a failed write, this
    /// adds another segment (nodes.N14), as long as overwrites also have one.
    pub fn take_node(&mut self) -> Result<[Place; 2]> {
        while self.space.nodes().lacks_sound()
            && self.has_room(2 * self.layout.segment_bytes(), Need::Overwrite)
            && self.space.has_segment(self.kept().accepted)
            && self.space.add_sound()
        {}
        self.space.take_node()
    }

    /// Bytes that `need` may fill with content. Space that is held for streams counts as free
    /// (alloc.A13).
    pub fn data_room(&self, need: Need) -> u64 {
        self.balance(&Ask::default()).content_left(need)
    }

    /// Bytes available for new content, plus those that the cleaner has reserved.
    pub fn room_and_planned(&self) -> u64 {
        self.data_room(Need::New) + self.space.clean_planned() * self.layout.segment_bytes()
    }

    /// Bytes that new content leaves free for the blocks that truncates make dirty (admission.P23).
    fn edge_bytes(&self) -> u64 {
        let volume = u64::from(self.layout.segments) * self.layout.segment_bytes();
        let least = EDGES * self.layout.block_bytes();
        (volume / 256).clamp(least, EDGE_BYTES_MAX.max(least))
    }

    /// Whether `need` gets what it asks for. New content and new names also leave enough for
    /// overwrites (capacity.P25).
    pub fn fits(&self, ask: &Ask, need: Need) -> bool {
        self.fits_in(&self.balance(ask), ask, need)
    }

    /// [`Self::fits`], with the claims that include what is asked for.
    fn fits_in(&self, balance: &Balance, ask: &Ask, need: Need) -> bool {
        let has_capacity = || need != Need::New || self.has_capacity(ask.content, ask.growth);
        balance.fits(need, ask) && has_capacity()
    }

    /// Grants what is asked for, except content. If there is no space, it first closes all windows,
    /// so that their segments may become free (alloc.A13).
    pub fn grant(&mut self, ask: &Ask, need: Need) -> Result<Grant> {
        if !self.fits(ask, need) {
            self.space.return_windows();
            if !self.fits(ask, need) {
                self.refusal.lacks_space = Some(need);
                let text = format!("{} bytes of the log wanted", ask.log);
                return Err(Error::new(ErrorKind::NoSpace, "reserve", text));
            }
        }
        Ok(self.space.grant(ask))
    }

    /// Whether content may go into the log: there is so much space that the log's segments need not
    /// become free soon.
    pub fn takes_content(&self, cost: u64, growth: Growth) -> bool {
        // One more segment: the open one is not free after the log has left it.
        self.balance(&Ask::log(cost, growth)).has_log(Need::New, self.layout.log_bytes())
    }

    /// Whether there is space for `new` more bytes of content. Overwritten space becomes free, so
    /// an overwrite may use the reserve that new content may not (capacity.P25).
    pub fn has_room(&self, new: u64, need: Need) -> bool {
        self.fits(&Ask::content(new), need)
    }

    /// Accepts `new` more bytes of content, which are arriving from now on, or returns `NoSpace`.
    /// `over`: whether the file has stored blocks there, so that this is an overwrite. If there is
    /// space, it also grants bytes in advance, which later writes draw without the lock
    /// (admission.P27).
    pub fn admit(&self, new: u64, need: Need, over: impl FnOnce(&Self) -> bool) -> Result<()> {
        if self.has_room(new + ADVANCE_BYTES, Need::New) {
            let accepted = self.space.ledger().accepted();
            accepted.admit(new);
            accepted.grant_advance(ADVANCE_BYTES);
            return Ok(());
        }
        if !(self.has_room(new, need) || over(self) && self.has_room(new, Need::Overwrite)) {
            let text = format!("{new} bytes in addition to {} dirty ones", self.accepted_bytes(0));
            return Err(Error::new(ErrorKind::NoSpace, "write", text));
        }
        self.space.ledger().accepted().admit(new);
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
        !self.has_room(over - over / 8, Need::Overwrite)
            || self.data_room(Need::New) < self.capacity_left().min(enough)
    }

    /// Whether few segments are free for new content: at most an eighth of all.
    pub fn is_short(&self) -> bool {
        let free = self.space.segments().free().saturating_sub(self.kept().new);
        free <= u64::from(self.layout.segments) / 8
    }

    /// The levels that space is measured by: free segments, bytes for new content, and bytes for
    /// overwrites.
    pub fn space_levels(&self) -> [u64; 3] {
        [self.space.segments().free(), self.data_room(Need::New), self.data_room(Need::Overwrite)]
    }

    /// Whether a level is higher than `before`.
    pub fn has_more_space(&self, before: &[u64; 3]) -> bool {
        self.space_levels().iter().zip(before).any(|(now, before)| now > before)
    }

    /// The free segments that `bytes` bytes of content leave alone. Refuses a direct write that
    /// would take space of accepted content (admission.P22). `over`: it overwrites stored content.
    pub fn kept_by(&self, bytes: u64, class: Class, over: bool) -> Result<Kept> {
        if class != Class::Direct {
            return Ok(self.kept());
        }
        let (ask, need) = (Ask::content(bytes), if over { Need::Overwrite } else { Need::New });
        let balance = self.balance(&ask);
        if !self.fits_in(&balance, &ask, need) {
            let text = format!("{bytes} bytes, room for {}", self.data_room(need));
            return Err(Error::new(ErrorKind::NoSpace, "reserve", text));
        }
        Ok(balance.kept())
    }
}
