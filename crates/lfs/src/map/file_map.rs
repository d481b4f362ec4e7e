//! Changes of file content that are not in the tree: those since the last freeze, over those that a
//! checkpoint is merging.
//!
//! ```text
//!   put ──▶ changes ──freeze──▶ frozen ──merged, and no old reservation is left──▶ dropped
//!               ▲                  │ the checkpoint failed
//!               └──────thaw────────┘
//! ```
//! Invariants: V13 newer changes hide older ones: lookups consult `changes`, then `frozen`, then
//! the tree. V14 after a failed checkpoint every change is in `changes`, with its newest content.
//!
//! No locks: the volume's state lock covers it.

use crate::format::place::{Geometry, Place};
use crate::map::lost::LostBlocks;
use crate::map::overlay::{Overlay, Piece, Where};
use crate::space::admission::{MAP_ITEM_BYTES, SHORT_ITEM_BYTES};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// Changes by data id.
pub(crate) type Changes = BTreeMap<u64, Overlay>;

/// Most bytes of a piece in the tree, counted for pieces that are put back.
const THAWED_ITEM_BYTES: u64 = 600;

/// Changes of content, live and frozen, with their counts.
pub(crate) struct FileMap {
    geometry: Geometry,
    changes: Changes,
    frozen: Option<Arc<Changes>>,
    /// Blocks that the device has lost: reads of them fail, whatever the changes have.
    lost: LostBlocks,
    /// Inodes by data id, as far as they are known.
    owners: BTreeMap<u64, u64>,
    /// Data ids below this one may be in the tree, or frozen.
    tree_data_ids: u64,
    /// Number of pieces since the last freeze, and their approximate bytes in the tree.
    change_count: u64,
    tree_bytes: u64,
    /// Content that got its address since the last freeze, bytes.
    fresh_bytes: u64,
    /// `fresh_bytes` of the changes that a checkpoint is merging.
    frozen_fresh_bytes: u64,
}

impl FileMap {
    /// An empty map.
    pub fn new(geometry: Geometry) -> Self {
        Self {
            geometry,
            changes: Changes::new(),
            frozen: None,
            lost: LostBlocks::default(),
            owners: BTreeMap::new(),
            tree_data_ids: 1,
            change_count: 0,
            tree_bytes: 0,
            fresh_bytes: 0,
            frozen_fresh_bytes: 0,
        }
    }

    fn block_bytes(&self) -> u64 {
        u64::from(self.geometry.block_bytes())
    }

    /// Sets the data id below which content may be in the tree.
    pub fn set_tree_data_ids(&mut self, end: u64) {
        self.tree_data_ids = end;
    }

    /// Whether the tree, or a checkpoint in progress, may have content of this data.
    pub fn may_be_in_tree(&self, data_id: u64) -> bool {
        data_id < self.tree_data_ids
    }

    /// Records the inode of a data id.
    pub fn set_owner(&mut self, data_id: u64, ino: u64) {
        self.owners.insert(data_id, ino);
        if let Some(overlay) = self.changes.get_mut(&data_id) {
            overlay.owner = ino;
        }
    }

    /// Forgets the inode of a data id, because it is not in memory any more.
    pub fn forget_owner(&mut self, data_id: u64) {
        self.owners.remove(&data_id);
    }

    /// Drops the changes of a data id; the caller records the removal for the tree.
    pub fn drop_data(&mut self, data_id: u64) {
        self.owners.remove(&data_id);
        self.changes.remove(&data_id);
        self.lost.forget(data_id);
    }

    /// Records a piece of content, or a hole, at `block`.
    pub fn put(&mut self, data_id: u64, block: u64, piece: &Piece) {
        let block_bytes = self.block_bytes();
        let stored = if piece.at == Where::Hole { 0 } else { piece.blocks };
        self.fresh_bytes += stored * block_bytes;
        let item_bytes = match piece.blocks == 1 && self.geometry.has_short_extents() {
            true => SHORT_ITEM_BYTES,
            false => MAP_ITEM_BYTES,
        };
        self.change_count += 1;
        self.tree_bytes += item_bytes + 4 * stored;
        let overlay = self.changes.entry(data_id).or_default();
        overlay.insert(block, piece, block_bytes);
        overlay.owner = self.owners.get(&data_id).copied().unwrap_or(overlay.owner);
        if !self.lost.is_empty() {
            self.lost.end(data_id, block..block.saturating_add(piece.blocks), piece.birth);
        }
    }

    /// Records that all content of a data id is a hole, because no inode has it any more.
    pub fn put_dead(&mut self, data_id: u64, hole: &Piece) {
        self.put(data_id, 0, hole);
        if let Some(overlay) = self.changes.get_mut(&data_id) {
            overlay.is_dead = true;
        }
    }

    /// Records that content staged for these blocks is in a durable record at `at`.
    pub fn resolve(&mut self, data_id: u64, blocks: &Range<u64>, staged: &Range<u64>, at: Place) {
        if let Some(overlay) = self.changes.get_mut(&data_id) {
            overlay.resolve(blocks, staged, at);
        }
        if let Some(frozen) = &mut self.frozen
            // A checkpoint may be reading the frozen changes: `make_mut` then copies them all.
            && frozen.get(&data_id).is_some_and(|overlay| overlay.waits_for(blocks, staged))
            && let Some(overlay) = Arc::make_mut(frozen).get_mut(&data_id)
        {
            overlay.resolve(blocks, staged, at);
        }
    }

    /// Records new sums for content at an address that was written again.
    pub fn renew(&mut self, data_id: u64, at: Place, sums: &Arc<[u32]>) {
        let block_bytes = self.block_bytes();
        if let Some(overlay) = self.changes.get_mut(&data_id) {
            overlay.renew(at, sums, block_bytes);
        }
        if let Some(frozen) = &mut self.frozen
            && frozen.get(&data_id).is_some_and(|one| one.is_older(at, sums, block_bytes))
            && let Some(overlay) = Arc::make_mut(frozen).get_mut(&data_id)
        {
            overlay.renew(at, sums, block_bytes);
        }
    }

    /// The piece that begins at a block, or the number of blocks for which the tree has to be read
    /// (V13).
    pub fn known(&self, data_id: u64, block: u64) -> Result<Piece, u64> {
        let block_bytes = self.block_bytes();
        let look_up = |changes: &Changes| match changes.get(&data_id) {
            Some(overlay) => overlay.look_up(block, block_bytes),
            None => Err(u64::MAX),
        };
        let unknown = match look_up(&self.changes) {
            Ok(piece) => return Ok(piece),
            Err(unknown) => unknown,
        };
        match self.frozen.as_ref().map_or(Err(u64::MAX), |frozen| look_up(frozen)) {
            Ok(piece) => Ok(piece.part(0, piece.blocks.min(unknown), block_bytes)),
            Err(more) => Err(unknown.min(more)),
        }
    }

    /// The parts of a block range for which no change younger than `birth` is known (state.S15).
    pub fn older(&self, data_id: u64, range: Range<u64>, birth: u64) -> Vec<Range<u64>> {
        let block_bytes = self.block_bytes();
        let mut overlays = self.overlays(data_id);
        if range.end - range.start == 1 {
            let younger = overlays.any(|overlay| overlay.is_younger(range.start, birth));
            return if younger { Vec::new() } else { vec![range] };
        }
        let mut ranges = vec![range];
        for overlay in overlays {
            let older = |range: Range<u64>| overlay.older(range, birth, block_bytes);
            ranges = ranges.into_iter().flat_map(older).collect();
        }
        ranges
    }

    /// Changes of some data, newest first.
    pub fn overlays(&self, data_id: u64) -> impl Iterator<Item = &Overlay> {
        let frozen = self.frozen.as_ref().and_then(|frozen| frozen.get(&data_id));
        self.changes.get(&data_id).into_iter().chain(frozen)
    }

    /// Changes of some data since the last freeze.
    pub fn overlay(&self, data_id: u64) -> Option<&Overlay> {
        self.changes.get(&data_id)
    }

    /// Bytes of content in the changes of some data: overwritten content counts twice.
    pub fn changed_bytes(&self, data_id: u64) -> u64 {
        self.overlays(data_id).map(|one| one.stored_blocks() * self.block_bytes()).sum()
    }

    /// Takes the changes of some data since the last freeze.
    pub fn take_overlay(&mut self, data_id: u64) -> Option<Overlay> {
        self.changes.remove(&data_id)
    }

    /// Replaces the frozen changes of some data by what the log has of it, without the blocks that
    /// are lost (logged.Q2).
    pub fn correct_frozen(&mut self, data_id: u64, logged: Option<Overlay>) {
        let Some(frozen) = &mut self.frozen else { return };
        let Some(there) = Arc::make_mut(frozen).get_mut(&data_id) else {
            debug_assert!(logged.is_none(), "all that the log has is frozen");
            return;
        };
        let mut logged = logged.unwrap_or_default();
        (logged.owner, logged.is_dead) = (there.owner, there.is_dead);
        *there = logged;
    }

    /// Whether a checkpoint is merging changes of this data.
    pub fn is_frozen(&self, data_id: u64) -> bool {
        self.frozen.as_ref().is_some_and(|frozen| frozen.contains_key(&data_id))
    }

    /// Blocks that the device has lost.
    pub fn lost(&self) -> &LostBlocks {
        &self.lost
    }

    /// Notes lost blocks of a file, an inode and its data id; `birth`: that of their content.
    pub fn note_lost(&mut self, file: (u64, u64), blocks: Range<u64>, birth: u64) {
        self.lost.add(file, blocks, birth);
    }

    /// Forgets the lost blocks of a data id.
    pub fn forget_lost(&mut self, data_id: u64) {
        self.lost.forget(data_id);
    }

    /// Lost blocks from `end` on went with the size that covered them.
    pub fn end_lost(&mut self, data_id: u64, end: u64) {
        if !self.lost.is_empty() {
            self.lost.end(data_id, end..u64::MAX, u64::MAX);
        }
    }

    /// Changes since the last freeze.
    pub fn changes(&self) -> &Changes {
        &self.changes
    }

    /// Changes that a checkpoint is merging, or has merged while a reservation may still look them
    /// up.
    pub fn frozen(&self) -> Option<&Arc<Changes>> {
        self.frozen.as_ref()
    }

    /// Number of pieces since the last freeze.
    pub fn change_count(&self) -> u64 {
        self.change_count
    }

    /// The approximate bytes in the tree of the pieces since the last freeze.
    pub fn tree_bytes(&self) -> u64 {
        self.tree_bytes
    }

    /// Content whose address is in no durable checkpoint, bytes.
    pub fn fresh_bytes(&self) -> u64 {
        self.fresh_bytes + self.frozen_fresh_bytes
    }

    /// Subtracts bytes that were moved, and are not new content.
    pub fn uncount_fresh(&mut self, bytes: u64) {
        self.fresh_bytes = self.fresh_bytes.saturating_sub(bytes);
    }

    /// A checkpoint takes the changes. `next_data_id`: the id of the next file.
    pub fn freeze(&mut self, next_data_id: u64) {
        debug_assert!(self.frozen.is_none(), "H14: one at a time");
        self.frozen = Some(Arc::new(std::mem::take(&mut self.changes)));
        (self.change_count, self.tree_bytes) = (0, 0);
        self.frozen_fresh_bytes = std::mem::take(&mut self.fresh_bytes);
        self.tree_data_ids = next_data_id;
    }

    /// Puts the changes of a failed checkpoint back below newer ones (V14).
    pub fn thaw(&mut self) {
        let Some(frozen) = self.frozen.take() else { return };
        let block_bytes = self.block_bytes();
        self.fresh_bytes += std::mem::take(&mut self.frozen_fresh_bytes);
        let mut changes = Arc::unwrap_or_clone(frozen);
        for (data_id, newer) in std::mem::take(&mut self.changes) {
            let under = changes.entry(data_id).or_default();
            under.put_over(&newer, block_bytes);
            under.owner = newer.owner;
            under.is_dead |= newer.is_dead;
        }
        let pieces = changes.values().map(|overlay| overlay.count() as u64).sum::<u64>();
        self.change_count += pieces;
        self.tree_bytes += THAWED_ITEM_BYTES * pieces;
        self.changes = changes;
    }

    /// Records that the tree has the frozen changes. They are looked up until
    /// [`Self::drop_frozen`].
    pub fn note_merged(&mut self) {
        self.frozen_fresh_bytes = 0;
    }

    /// Drops the merged changes, which no reservation looks up any more.
    pub fn drop_frozen(&mut self) {
        self.frozen = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::map::overlay::Sums;

    fn piece(blocks: u64, birth: u64, segment: u32) -> Piece {
        Piece { blocks, birth, at: Where::Run(Place::new(segment, 0)), sums: Sums::None }
    }

    fn segment_of(map: &FileMap, block: u64) -> Option<u32> {
        match map.known(5, block).ok()?.at {
            Where::Run(place) => Some(place.segment),
            _ => None,
        }
    }

    /// V13, V14: newer changes hide frozen ones, also after a failed checkpoint.
    #[test]
    fn file_map_failed_checkpoint_keeps_newest_content() {
        let mut map = FileMap::new(Geometry::with_segment_shift(20));
        map.put(5, 0, &piece(4, 1, 1));
        map.freeze(6);
        assert!(map.changes().is_empty() && map.is_frozen(5) && map.may_be_in_tree(5));
        map.put(5, 1, &piece(1, 2, 2));
        let seen = |map: &FileMap| [0, 1, 2, 4].map(|block| segment_of(map, block));
        let newest = [Some(1), Some(2), Some(1), None];
        assert_eq!(seen(&map), newest);
        let fresh = map.fresh_bytes();
        map.thaw();
        assert_eq!((seen(&map), map.fresh_bytes()), (newest, fresh));
        assert!(!map.is_frozen(5) && map.frozen().is_none());
    }

    /// Merged changes are not new content, and are looked up until they are dropped.
    #[test]
    fn file_map_merged_changes_stay_until_dropped() {
        let mut map = FileMap::new(Geometry::with_segment_shift(20));
        map.put(5, 0, &piece(4, 1, 1));
        map.freeze(6);
        map.note_merged();
        assert_eq!((map.fresh_bytes(), segment_of(&map, 0)), (0, Some(1)));
        assert_eq!(map.older(5, 0..4, 0), Vec::<Range<u64>>::new(), "a younger change is known");
        map.drop_frozen();
        let older = map.older(5, 0..4, 0);
        assert_eq!((segment_of(&map, 0), older.len(), &older[0]), (None, 1, &(0..4)));
    }
}
