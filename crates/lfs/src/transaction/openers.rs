//! The last close of an inode, and the removal of inodes without a name.
//!
//! Lock: the state lock, held by the caller.

use crate::format::change::Change;
use crate::names::node::Node;
use crate::space::Need;
use crate::transaction::state::State;
use forebay_vfs::Ino;

impl State {
    /// One opener fewer. The last one removes an inode without a name. `closes`: a file was closed.
    pub fn released(&mut self, ino: Ino, closes: bool) {
        let close = |node: &mut Node| {
            node.opens -= 1;
            (node.opens > 0, node.inode.nlink > 0)
        };
        let Some((open, named)) = self.nodes.update(ino.0, close) else { return };
        // Another opener may still write what replaces the truncated content.
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
        if node.content.is_some() {
            self.pending_write_back.insert(ino.0);
        }
        self.close_windows(ino.0);
        self.remove_unnamed(ino.0);
    }

    /// Removes an inode without a name and without openers.
    fn remove_unnamed(&mut self, ino: u64) {
        let Some(node) = self.nodes.get(ino) else { return };
        if node.inode.nlink > 0 || node.opens > 0 {
            return;
        }
        let data_id = node.inode.data_id;
        let sequence = self.draw();
        let change = Change::RemoveInode(ino, data_id, sequence);
        if let Err(error) = self.append(&[change], Need::Urgent) {
            // Tried again after the next checkpoint; else by the next opening: it is an orphan.
            log::warn!("#{ino} without a name stays for now: {error}");
            self.unremoved.insert(ino);
        }
    }

    /// Tries again to remove inodes that there was no space to remove.
    pub fn remove_left(&mut self) {
        for ino in std::mem::take(&mut self.unremoved) {
            self.remove_unnamed(ino);
        }
    }
}
