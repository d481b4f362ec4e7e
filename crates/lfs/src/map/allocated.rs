//! Whether a file has some blocks already: who overwrites them needs no room for good (P25).
//!
//! ```text
//!   overlay ──knows──▶ yes, no
//!      │ does not
//!      ▼
//!   all of the file is stored ──▶ yes      else ──▶ the tree, by who can wait, and what it said
//! ```
//! A hint: that a block was cut off meanwhile, and is new after all, only means that the room for it is not
//! what new content leaves to overwrites.
//!
//! Locks: the state lock, and what the tree said after it; none across a wait.

use crate::format::inode::Inode;
use crate::map::overlay::Where;
use crate::names::node::Node;
use crate::transaction::state::State;
use crate::volume::Inner;
use forebay_base::Result;
use forebay_base::sync::Mutex;
use std::ops::Range;

/// Ranges that are remembered of what the tree said: several may overwrite one file beside each other.
const TOLD_MAX: usize = 64;

/// Blocks of one data that the tree was asked for: what of them is stored, the newest last.
#[derive(Default)]
pub(crate) struct Told(Mutex<(u64, Vec<Range<u64>>)>);

impl State {
    /// Bytes stored for an inode, about: what was overwritten since the last checkpoint counts twice, as far
    /// as the file is long.
    pub fn stored_bytes(&self, node: &Node) -> u64 {
        let size = node.end().unwrap_or(node.inode.size).max(node.inode.size);
        self.stored_of(&node.recorded, size)
    }

    /// The same of what is recorded of an inode, if it is so long.
    pub fn stored_of(&self, recorded: &Inode, size: u64) -> u64 {
        let data_id = recorded.data_id;
        let frozen = self.frozen.as_ref().and_then(|frozen| frozen.data.get(&data_id));
        let overlays = self.data.get(&data_id).into_iter().chain(frozen);
        let block_bytes = self.layout.block_bytes();
        let new = overlays.map(|overlay| overlay.stored_blocks() * block_bytes).sum::<u64>();
        let longest = size.div_ceil(block_bytes).saturating_mul(block_bytes);
        recorded.stored_bytes.saturating_add(new).min(longest)
    }

    /// Whether the tree has nothing of this content of an inode, nor will have: what is stored of each inode
    /// is exactly what its extents have (E15 of fsck).
    pub fn has_nothing(&self, ino: u64, data_id: u64) -> bool {
        let node = self.nodes.get(&ino).filter(|node| node.recorded.data_id == data_id);
        let frozen = self.frozen.as_ref().is_some_and(|f| f.data.contains_key(&data_id));
        node.is_some_and(|node| node.recorded.stored_bytes == 0) && !frozen
    }
}

impl Told {
    fn add(&self, data_id: u64, runs: Vec<Range<u64>>) {
        let mut told = self.0.lock();
        if told.0 != data_id {
            *told = (data_id, Vec::new());
        }
        told.1.retain(|old| runs.iter().all(|new| old.start < new.start || new.end < old.end));
        told.1.extend(runs);
        let over = told.1.len().saturating_sub(TOLD_MAX);
        told.1.drain(..over);
    }

    fn has(&self, data_id: u64, block: u64) -> Option<u64> {
        let told = self.0.lock();
        let found = told.1.iter().find(|range| told.0 == data_id && range.contains(&block))?;
        Some(found.end - block)
    }
}

impl State {
    /// Whether these bytes of a file are stored, as far as can be told without the tree.
    pub fn is_stored(&self, ino: u64, range: &Range<u64>, told: &Told) -> bool {
        let Some(node) = self.nodes.get(&ino) else { return false };
        let (unit, stored) = (self.layout.block_bytes(), &node.recorded);
        let blocks = stored.size.div_ceil(unit);
        let is_whole = stored.stored_bytes >= blocks.saturating_mul(unit);
        let (mut block, end) = (range.start / unit, range.end.div_ceil(unit));
        while block < end {
            block += match self.known(stored.data_id, block) {
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

impl Inner {
    /// The same, by who can wait for the tree; what it says is told.
    pub(crate) async fn ask_stored(
        &self,
        ino: u64,
        told: &Told,
        range: &Range<u64>,
    ) -> Result<bool> {
        let data_id = {
            let state = self.state.lock();
            if state.is_stored(ino, range, told) {
                return Ok(true);
            }
            let Some(node) = state.nodes.get(&ino) else { return Ok(false) };
            node.recorded.data_id
        };
        let unit = self.layout.block_bytes();
        let (mut block, end) = (range.start / unit, range.end.div_ceil(unit));
        let (mut runs, mut all): (Vec<Range<u64>>, bool) = (Vec::new(), true);
        while block < end {
            let (piece, _pin) = self.piece_at(data_id, block).await?;
            let blocks = piece.blocks.min(end - block);
            all &= piece.at != Where::Hole;
            if piece.at != Where::Hole {
                match runs.last_mut() {
                    Some(last) if last.end == block => last.end += blocks,
                    _ => runs.push(block..block + blocks),
                }
            }
            block += blocks;
        }
        told.add(data_id, runs);
        Ok(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Several who overwrote one file with holes on a full volume took the answer of the tree from each
    /// other, asked again, and made room each time.
    #[test]
    fn p25_what_several_asked_for_is_remembered() {
        let told = Told::default();
        let one = |run: Range<u64>| std::iter::once(run).collect::<Vec<_>>();
        (0..TOLD_MAX as u64).for_each(|n| told.add(7, one(10 * n..10 * n + 4)));
        assert_eq!((told.has(7, 1), told.has(7, 632), told.has(8, 1)), (Some(3), Some(2), None));
        assert_eq!(told.has(7, 5), None, "a hole");
        told.add(7, one(0..8));
        assert_eq!(
            (told.has(7, 1), told.has(7, 11)),
            (Some(7), Some(3)),
            "in the place of the older"
        );
        told.add(7, one(1000..1001));
        assert_eq!((told.has(7, 11), told.has(7, 1000)), (None, Some(1)), "the oldest goes");
        told.add(8, one(0..1));
        assert_eq!((told.has(7, 1000), told.has(8, 0)), (None, Some(1)), "of one data");
    }
}
