//! Eviction of inodes and directory entries from memory: applies the clock of
//! [`crate::names::evict`] to the state.
//!
//! No locks: the volume's state lock covers it.

use crate::format::change::Change;
use crate::names::node::Node;
use crate::space::Need;
use crate::transaction::state::State;

/// The most inodes that one operation inspects.
const STEPS: usize = 64;

/// The number of entries of a directory that are evicted at a time.
const ENTRIES_AT_ONCE: usize = 256;

/// The approximate bytes of an inode without symlink target, attributes and entries.
const NODE_BYTES: usize = 640;

impl Node {
    /// The approximate bytes that the inode takes in memory.
    fn bytes(&self) -> usize {
        let xattrs = self.xattrs.iter().map(|(name, value)| 2 * name.len() + value.len() + 192);
        NODE_BYTES + self.target.len() + xattrs.sum::<usize>() + self.entries.bytes()
    }

    /// Whether the inode must stay in memory for a reason other than its times.
    fn is_pinned(&self) -> bool {
        self.opens > 0 || self.linkable || self.regrow || self.content.is_some()
    }
}

impl State {
    /// Adds an inode to memory.
    pub fn keep(&mut self, ino: u64, mut node: Node) {
        (node.counted_bytes, node.loaded) = (0, self.cache.now());
        if self.nodes.insert(ino, node) {
            self.cache.push(ino);
        }
        self.recount(ino);
    }

    /// Counts the bytes of an inode again.
    pub fn recount(&mut self, ino: u64) {
        let count = |node: &mut Node| {
            let bytes = node.bytes();
            (std::mem::replace(&mut node.counted_bytes, bytes), bytes)
        };
        if let Some((before, bytes)) = self.nodes.update(ino, count) {
            self.cache.count(before, bytes);
        }
    }

    /// Removes an inode from memory.
    pub fn forget(&mut self, ino: u64) -> Option<Box<Node>> {
        let node = self.nodes.remove(ino)?;
        self.cache.count(node.counted_bytes, 0);
        Some(node)
    }

    /// Evicts inodes above the limit. It stops after some steps, and the next operation continues.
    pub fn evict(&mut self) {
        let all = self.cache.bytes_max == 0;
        // With the limit 0 all that can go is evicted: three rounds, because the entries of a
        // directory may take two.
        let steps = if all { 3 * self.cache.ring().len() + 64 } else { STEPS };
        let kept_from = self.cache.kept_from();
        if self.names_bytes() > self.cache.bytes_max {
            self.tidy_windows();
        }
        for _ in 0..steps {
            if self.names_bytes() <= self.cache.bytes_max {
                break;
            }
            let Some(ino) = self.cache.pop() else { break };
            if self.stays(ino, kept_from) {
                self.cache.push(ino);
            }
        }
        self.cache.forget_unused(all, kept_from);
    }

    /// Evicts the inode at the clock hand or a part of it. Returns whether the inode stays in the
    /// ring.
    fn stays(&mut self, ino: u64, kept_from: u64) -> bool {
        let all = self.cache.bytes_max == 0;
        let Some(node) = self.nodes.get(ino) else { return false };
        if node.looked_at.take() && !all {
            return true;
        }
        if !node.entries.is_vacant() {
            let most = if all { usize::MAX - 1 } else { ENTRIES_AT_ONCE };
            let let_go = |node: &mut Node| {
                node.entries.let_go(most, kept_from);
                node.entries.is_vacant()
            };
            let is_vacant = self.nodes.update(ino, let_go) == Some(true);
            self.recount(ino);
            if !is_vacant {
                return true;
            }
        }
        let Some(node) = self.nodes.get(ino) else { return false };
        let removed = self.unremoved.contains(&ino);
        let has_unwritten =
            removed || self.outstanding.contains(ino) || self.pending_write_back.contains(ino);
        if node.is_pinned() || has_unwritten || node.loaded >= kept_from || !self.written(ino) {
            return true;
        }
        if let Some(node) = self.forget(ino) {
            self.map.forget_owner(node.inode.data_id);
        }
        false
    }

    /// Writes times that are ahead of the log (evict.Q31). False: the log has no space for them.
    fn written(&mut self, ino: u64) -> bool {
        let Some(set) = self.nodes.take_moved_times(ino) else { return true };
        match self.append(&[Change::SetAttributes(ino, set)], Need::Urgent) {
            Ok(_) => true,
            Err(_) => {
                self.move_times(forebay_vfs::Ino(ino), |_| ());
                false
            }
        }
    }

    /// Checks evict.Q33, and that the bytes are counted correctly.
    #[cfg(test)]
    pub fn check_cache(&self) {
        let ring: std::collections::BTreeSet<u64> = self.cache.ring().iter().copied().collect();
        assert_eq!(ring.len(), self.cache.ring().len(), "Q33: once");
        assert!(self.nodes.iter().all(|(ino, _)| ring.contains(&ino)), "Q33: each");
        let bytes: usize = self.nodes.iter().map(|(_, node)| node.bytes()).sum();
        assert_eq!(bytes, self.cache.bytes(), "Q33: bytes are counted");
    }
}
