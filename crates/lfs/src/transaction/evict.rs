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

impl State {
    /// Evicts inodes above the limit. It stops after some steps, and the next operation continues.
    pub fn evict(&mut self) {
        let all = self.names.cache().bytes_max == 0;
        // With the limit 0 all that can go is evicted: three rounds, because the entries of a
        // directory may take two.
        let steps = if all { 3 * self.names.cache().ring().len() + 64 } else { STEPS };
        let kept_from = self.names.cache().kept_from();
        if self.names_bytes() > self.names.cache().bytes_max {
            self.tidy_windows();
        }
        for _ in 0..steps {
            if self.names_bytes() <= self.names.cache().bytes_max {
                break;
            }
            let Some(ino) = self.names.pop_hand() else { break };
            if self.stays(ino, kept_from) {
                self.names.push_hand(ino);
            }
        }
        self.names.forget_unused(all, kept_from);
    }

    /// Evicts the inode at the clock hand or a part of it. Returns whether the inode stays in the
    /// ring.
    fn stays(&mut self, ino: u64, kept_from: u64) -> bool {
        let all = self.names.cache().bytes_max == 0;
        let Some(node) = self.names.node(ino) else { return false };
        if node.looked_at.take() && !all {
            return true;
        }
        if !node.entries.is_vacant() {
            let most = if all { usize::MAX - 1 } else { ENTRIES_AT_ONCE };
            let let_go = |node: &mut Node| {
                node.entries.let_go(most, kept_from);
                node.entries.is_vacant()
            };
            let is_vacant = self.names.update(ino, let_go) == Some(true);
            self.names.recount(ino);
            if !is_vacant {
                return true;
            }
        }
        let Some(node) = self.names.node(ino) else { return false };
        let has_unwritten = self.names.is_unremoved(ino) || self.files.has_unwritten(ino);
        if node.is_pinned() || has_unwritten || node.loaded >= kept_from || !self.written(ino) {
            return true;
        }
        if let Some(node) = self.names.forget(ino) {
            self.map.forget_owner(node.inode.data_id);
        }
        false
    }

    /// Writes times that are ahead of the log (evict.Q31). False: the log has no space for them.
    fn written(&mut self, ino: u64) -> bool {
        let Some(set) = self.names.take_moved_times(ino) else { return true };
        match self.append(&[Change::SetAttributes(ino, set)], Need::Urgent) {
            Ok(_) => true,
            Err(_) => {
                self.move_times(forebay_vfs::Ino(ino), |_| ());
                false
            }
        }
    }
}
