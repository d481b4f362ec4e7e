//! The last close of an inode, and the removal of inodes without a name.
//!
//! Lock: the state lock, held by the caller.

use crate::format::change::Change;
use crate::names::node::Node;
use crate::space::Need;
use crate::transaction::state::State;
use forebay_vfs::Ino;

impl State {
    /// Notes a new opener. False: the inode is not in memory.
    pub fn note_opened(&mut self, ino: Ino) -> bool {
        let is_there = self.names.update(ino.0, |node| node.opens += 1).is_some();
        if is_there {
            self.note_used(ino.0);
        }
        is_there
    }

    /// Notes that one opener is gone. The last one removes an inode without a name. `closes`: a
    /// file was closed.
    pub fn released(&mut self, ino: Ino, closes: bool) {
        let close = |node: &mut Node| {
            node.opens -= 1;
            (node.opens > 0, node.inode.nlink > 0)
        };
        let Some((open, named)) = self.names.update(ino.0, close) else { return };
        let is_truncated = self.files.note_opener_gone(ino.0, !open && closes);
        if is_truncated && closes && named {
            let closed = self.draw();
            self.files.note_outstanding(ino.0, closed);
        }
        let Some(node) = self.names.node(ino.0) else { return };
        if node.opens > 0 {
            return;
        }
        if closes {
            if let Some(content) = &node.content {
                content.file.mapping.forget_seen_loss();
            }
            self.files.note_closed(ino.0);
        }
        let Some(node) = self.names.node(ino.0) else { return };
        if node.content.is_some() {
            self.files.note_unwritten(ino.0);
        }
        self.close_windows(ino.0);
        self.remove_unnamed(ino.0);
    }

    /// Removes an inode that has neither a name nor an opener.
    fn remove_unnamed(&mut self, ino: u64) {
        let Some(node) = self.names.node(ino) else { return };
        if node.inode.nlink > 0 || node.opens > 0 {
            return;
        }
        let data_id = node.inode.data_id;
        let sequence = self.draw();
        let change = Change::RemoveInode(ino, data_id, sequence);
        if let Err(error) = self.append(&[change], Need::Urgent) {
            // The removal is tried again after the next checkpoint, or by the next opening, because
            // the inode is an orphan.
            log::warn!("#{ino} without a name stays for now: {error}");
            self.names.note_unremoved(ino);
        }
    }

    /// The removal of an orphan, if it is in memory, is tried again after the next checkpoint.
    pub fn retry_removal(&mut self, ino: u64) {
        if self.names.has_node(ino) {
            self.names.note_unremoved(ino);
        }
    }

    /// Tries again to remove the inodes whose removal found no space.
    pub fn remove_left(&mut self) {
        for ino in self.names.take_unremoved() {
            self.remove_unnamed(ino);
        }
    }
}
