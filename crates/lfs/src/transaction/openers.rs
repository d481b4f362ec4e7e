//! The last close of an inode, and the removal of inodes without a name.
//!
//! Lock: the state lock, held by the caller.

use crate::format::change::Change;
use crate::names::node::Node;
use crate::space::Need;
use crate::transaction::state::State;
use forebay_vfs::Ino;

impl State {
    /// Notes that one opener is gone. The last one removes an inode without a name. `closes`: a
    /// file was closed.
    pub fn released(&mut self, ino: Ino, closes: bool) {
        let close = |node: &mut Node| {
            node.opens -= 1;
            (node.opens > 0, node.inode.nlink > 0)
        };
        let Some((open, named)) = self.nodes.update(ino.0, close) else { return };
        // Another opener may still write the content that replaces the truncated content.
        let is_truncated = match open || !closes {
            true => self.outstanding.is_truncated(ino.0),
            false => self.outstanding.end_truncated(ino.0),
        };
        if is_truncated && closes && named {
            let closed = self.draw();
            self.outstanding.add(ino.0, closed);
        }
        let Some(node) = self.nodes.get(ino.0) else { return };
        if node.opens > 0 {
            return;
        }
        if closes {
            if let Some(content) = &node.content {
                content.file.mapping.forget_seen_loss();
            }
            self.sync_errors.note_closed(ino.0);
        }
        let Some(node) = self.nodes.get(ino.0) else { return };
        if node.content.is_some() {
            self.pending_write_back.insert(ino.0);
        }
        self.close_windows(ino.0);
        self.remove_unnamed(ino.0);
    }

    /// Removes an inode that has neither a name nor an opener.
    fn remove_unnamed(&mut self, ino: u64) {
        let Some(node) = self.nodes.get(ino) else { return };
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
            self.unremoved.insert(ino);
        }
    }

    /// Tries again to remove the inodes whose removal found no space.
    pub fn remove_left(&mut self) {
        for ino in std::mem::take(&mut self.unremoved) {
            self.remove_unnamed(ino);
        }
    }
}
