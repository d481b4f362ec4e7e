//! The stored bytes of a file, as far as the state in memory shows them.
//!
//! Lock: the state lock, held by the caller.

use crate::format::inode::Inode;
use crate::map::allocated::Told;
use crate::map::overlay::Where;
use crate::names::node::Node;
use crate::transaction::state::State;
use std::ops::Range;

/// Most bytes of a small file (reserve.M16).
const SMALL_BYTES: u64 = 16 << 10;

impl State {
    /// Whether a file is small: write-back then puts its content into a record, so that the content
    /// of many files is written together (reserve.M16).
    pub fn is_small(&self, ino: u64) -> bool {
        let size = |node: &Node| node.end().unwrap_or(node.inode.size).max(node.inode.size);
        self.names.node(ino).is_some_and(|node| size(node) <= SMALL_BYTES)
    }

    /// The approximate bytes stored for an inode. Content that was overwritten since the last
    /// checkpoint counts twice, but never more than the size of the file.
    pub fn stored_bytes(&self, node: &Node) -> u64 {
        let size = node.end().unwrap_or(node.inode.size).max(node.inode.size);
        self.stored_of(&node.recorded, size)
    }

    /// The approximate stored bytes, from the recorded state of an inode, for a file of `size`
    /// bytes.
    pub fn stored_of(&self, recorded: &Inode, size: u64) -> u64 {
        let data_id = recorded.data_id;
        let (block_bytes, new) = (self.layout.block_bytes(), self.map.changed_bytes(data_id));
        let longest = size.div_ceil(block_bytes).saturating_mul(block_bytes);
        recorded.stored_bytes.saturating_add(new).min(longest)
    }

    /// Whether the tree has no content of this inode, and will get none. The stored bytes of an
    /// inode are exactly those of its extents (stored.E15 of fsck).
    pub fn has_nothing(&self, ino: u64, data_id: u64) -> bool {
        let node = self.names.node(ino).filter(|node| node.recorded.data_id == data_id);
        node.is_some_and(|node| node.recorded.stored_bytes == 0) && !self.map.is_frozen(data_id)
    }
}

impl State {
    /// Whether these bytes of a file are stored, as far as this can be decided without the tree.
    pub fn is_stored(&self, ino: u64, range: &Range<u64>, told: &Told) -> bool {
        let Some(node) = self.names.node(ino) else { return false };
        let (unit, stored) = (self.layout.block_bytes(), &node.recorded);
        let blocks = stored.size.div_ceil(unit);
        let is_whole = stored.stored_bytes >= blocks.saturating_mul(unit);
        let (mut block, end) = (range.start / unit, range.end.div_ceil(unit));
        while block < end {
            block += match self.map.known(stored.data_id, block) {
                Ok(piece) if piece.at == Where::Hole => return false,
                Ok(piece) => piece.blocks,
                Err(unknown) if is_whole && block < blocks => unknown.min(blocks - block),
                Err(unknown) => match told.has(stored.data_id, block) {
                    Some(told) => unknown.min(told),
                    None => return false,
                },
            };
        }
        true
    }
}
