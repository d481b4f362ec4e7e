//! The last close of an inode, and the removal of inodes without a name.
//!
//! Lock: the state lock, held by the caller.

use crate::format::change::Change;
use crate::space::Need;
use crate::transaction::state::State;
use forebay_vfs::Ino;

impl State {
    /// One opener less; what has no name goes with the last. `closes`: it was a file that is closed.
    pub fn released(&mut self, ino: Ino, closes: bool) {
        let Some(node) = self.nodes.get_mut(&ino.0) else { return };
        node.opens -= 1;
        let (open, named) = (node.opens > 0, node.inode.nlink > 0);
        // Whoever has it open still may write what takes the place of what was cut.
        let cut = match open || !closes {
            true => self.cut.contains(&ino.0),
            false => self.cut.remove(&ino.0),
        };
        if cut && closes && named {
            let closed = self.draw();
            self.owed.insert(ino.0, closed);
        }
        let Some(node) = self.nodes.get_mut(&ino.0) else { return };
        if node.opens > 0 {
            return;
        }
        if node.content.is_some() {
            self.pending_write_back.insert(ino.0);
        }
        self.close_windows(ino.0);
        self.remove_unnamed(ino.0);
    }

    /// An inode that nobody has open goes if it has no name.
    fn remove_unnamed(&mut self, ino: u64) {
        let Some(node) = self.nodes.get(&ino) else { return };
        if node.inode.nlink > 0 || node.opens > 0 {
            return;
        }
        let data_id = node.inode.data_id;
        let sequence = self.draw();
        let change = Change::RemoveInode(ino, data_id, sequence);
        if let Err(error) = self.append(&[change], Need::Urgent) {
            // Once more when there is room; else when the volume is opened again: it is an orphan.
            log::warn!("#{ino} without a name stays for now: {error}");
            self.unremoved.insert(ino);
        }
    }

    /// Tries again to remove what there was no room for.
    pub fn remove_left(&mut self) {
        for ino in std::mem::take(&mut self.unremoved) {
            self.remove_unnamed(ino);
        }
    }
}
