//! Content that the device has lost: what syncs report, and which sizes records may have meanwhile.
//!
//! Lock: the state lock, held by the caller.

use crate::format::change::Size;
use crate::format::place::Place;
use crate::log::Run;
use crate::map::overlay::Where;
use crate::names::node::Node;
use crate::transaction::state::State;
use crate::transaction::sync_errors::{LeftOut, Lost, lost_error};
use forebay_base::Error;
use forebay_cache::rangeset::RangeSet;
use std::ops::Range;

impl State {
    /// Notes that a run is lost, and left out of its record. `owner`: its data id and first block.
    pub fn note_lost(&mut self, run: &Run, (data_id, first): (u64, u64)) {
        let unit = self.layout.block_bytes();
        let (mut at, end) = (first, first + run.len / unit);
        while at < end {
            // Blocks that were overwritten since are not lost.
            let blocks = match self.map.known(data_id, at) {
                Ok(piece) => {
                    let skip = ((at - first) * unit) as u32;
                    let place = Place::new(run.at.segment, run.at.offset + skip);
                    let blocks = piece.blocks.min(end - at);
                    if piece.at == Where::Run(place) {
                        let file = (run.ino, data_id);
                        self.map.note_lost(file, at..at + blocks, piece.birth);
                    }
                    blocks
                }
                Err(unknown) => unknown,
            };
            at = at.saturating_add(blocks);
        }
        self.leave_out(data_id, run.ino);
        let lose = |node: &mut Node| {
            let is_own = data_id == node.inode.data_id;
            if is_own {
                (node.regrow, node.regrown) = (true, 0);
            }
            is_own
        };
        // An inode that is not in memory gets `regrow` when it is loaded.
        let is_own = self.names.update(run.ino, lose).unwrap_or_else(|| self.has_lost(data_id));
        if is_own {
            let is_open = self.names.node(run.ino).is_some_and(|node| node.opens > 0);
            self.files.sync_errors.add_lost(run.ino, is_open);
            self.files.outstanding.note_lost(run.ino);
        }
    }

    /// Notes that records have less of this data than the memory.
    pub fn leave_out(&mut self, data_id: u64, ino: u64) {
        self.leave_out_after(data_id, ino, 0);
    }

    /// [`Self::leave_out`], by records up to `ticket` at least.
    pub fn leave_out_after(&mut self, data_id: u64, ino: u64, ticket: u64) {
        let left = LeftOut { ino, ticket: self.queue.last_ticket().max(ticket) };
        self.files.sync_errors.leave_out(data_id, left);
    }

    /// The frozen changes of this data are those of the records up to this ticket.
    pub fn note_corrected(&mut self, data_id: u64, ticket: u64) {
        self.files.sync_errors.note_corrected(data_id, ticket);
    }

    /// The error of a sync of an inode whose content is lost. It names the first lost range.
    pub fn lost_of(&self, ino: u64) -> Error {
        let data_id = self.names.node(ino).map_or(0, |node| node.inode.data_id);
        let lost = self.map.lost().next(data_id, 0).unwrap_or_default();
        lost_error("commit", ino, &lost, self.layout.block_bytes())
    }

    /// Why an inode cannot be synced after a successful commit. Lost content counts no more once it
    /// is overwritten or truncated. If a size was removed together with it, that size must be
    /// recorded again first.
    pub fn unpublished_of(&mut self, ino: u64) -> Option<Lost> {
        if self.files.sync_errors.has(ino, Lost::Run) {
            let lacks = match self.names.node(ino) {
                Some(node) => {
                    let is_recorded = node.published() >= node.inode.size;
                    let has_size = is_recorded && node.unlogged_size.is_none();
                    !has_size || self.has_lost(node.inode.data_id)
                }
                // A repair may have removed a size since the inode left memory.
                None => self.map.lost().has_of(ino) || self.files.sync_errors.has_left_out_of(ino),
            };
            if !lacks {
                // A checkpoint that corrected the size while content was lost has set it.
                self.names.update(ino, |node| node.regrow = false);
                self.files.sync_errors.remove(ino, Lost::Run);
            }
        }
        self.files.sync_errors.worst(ino)
    }

    /// How much of this size records may have (lfs.I15). `None`: nothing, because content is lost
    /// and openers of that time are left. Later openers get a size that covers lost blocks, except
    /// those at the end.
    pub fn recordable_size(&self, ino: u64, data_id: u64, size: u64) -> Option<u64> {
        if !self.has_lost(data_id) {
            return Some(size);
        }
        let (unit, end) = (self.layout.block_bytes(), size.div_ceil(self.layout.block_bytes()));
        let kept = || size.min(self.map.lost().end_without(data_id, end) * unit);
        self.files.sync_errors.may_cover_lost(ino).then(kept)
    }

    /// The growth beyond `published` that records may have.
    pub fn recordable_growth(&self, grown: Size, published: u64) -> Option<Size> {
        let size = self.recordable_size(grown.ino, grown.data_id, grown.size);
        size.filter(|size| *size > published).map(|size| Size { size, ..grown })
    }

    /// The recorded size, and the lost blocks that follow it: no record may end with them.
    pub fn covered_size(&self, ino: u64, node: &Node) -> u64 {
        let (published, unit) = (node.published(), self.layout.block_bytes());
        let Some(live) = node.live_size().filter(|live| *live > published) else {
            return published;
        };
        if !self.files.sync_errors.may_cover_lost(ino) {
            return published;
        }
        let end = self.map.lost().end_from(node.inode.data_id, published / unit) * unit;
        live.min(published.max(end))
    }

    /// Which of these blocks of an inode are lost.
    pub fn lost_blocks(&self, ino: u64, of: &RangeSet) -> Vec<Range<u64>> {
        let Some(data_id) = self.names.node(ino).map(|node| node.inode.data_id) else {
            return Vec::new();
        };
        let next = |from: &Range<u64>| self.map.lost().next(data_id, from.end);
        let lost = std::iter::successors(self.map.lost().next(data_id, 0), next);
        lost.flat_map(|run| of.within(run)).collect()
    }

    /// Whether some content of an inode in memory is lost.
    pub fn has_lost_of(&self, ino: u64) -> bool {
        self.names.node(ino).is_some_and(|node| self.has_lost(node.inode.data_id))
    }

    /// Whether some content of this data id is lost, and was neither overwritten nor truncated
    /// since.
    pub fn has_lost(&self, data_id: u64) -> bool {
        self.map.lost().next(data_id, 0).is_some()
    }
}
