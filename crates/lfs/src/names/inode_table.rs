//! The inodes in memory, the count of all inodes, and the set of inodes whose times have to be
//! recorded by a sync.
//!
//! Invariant: S16 an inode is in `moved` exactly while its times are ahead of the log (state.S14).
//!
//! No locks: the volume's state lock covers it.

use crate::format::inode::{Inode, SetAttributes, Time};
use crate::names::node::Node;
use std::collections::{BTreeMap, BTreeSet};

/// The inodes of a volume.
#[derive(Default)]
pub(crate) struct InodeTable {
    /// In boxes, because a map leaves half of its slots unused.
    nodes: BTreeMap<u64, Box<Node>>,
    moved: BTreeSet<u64>,
    /// Number of inodes of the volume, in memory or not.
    count: u64,
}

impl InodeTable {
    /// An inode, if it is in memory.
    pub fn get(&self, ino: u64) -> Option<&Node> {
        self.nodes.get(&ino).map(|node| &**node)
    }

    /// Whether an inode is in memory.
    pub fn contains(&self, ino: u64) -> bool {
        self.nodes.contains_key(&ino)
    }

    pub fn iter(&self) -> impl Iterator<Item = (u64, &Node)> {
        self.nodes.iter().map(|(ino, node)| (*ino, &**node))
    }

    /// Changes an inode. `None`: it is not in memory. To change times, use [`Self::move_times`].
    pub fn update<T>(&mut self, ino: u64, change: impl FnOnce(&mut Node) -> T) -> Option<T> {
        self.nodes.get_mut(&ino).map(|node| {
            node.take_open_times();
            let done = change(node);
            node.show_published();
            done
        })
    }

    /// Adds an inode to memory. False: it replaces another copy.
    pub fn insert(&mut self, ino: u64, node: Node) -> bool {
        node.show_published();
        let replaced = self.nodes.insert(ino, Box::new(node));
        replaced.as_ref().inspect(|node| node.detach()).is_none()
    }

    /// Removes an inode from memory.
    pub fn remove(&mut self, ino: u64) -> Option<Box<Node>> {
        self.moved.remove(&ino);
        self.nodes.remove(&ino).inspect(|node| node.detach())
    }

    /// Number of inodes in memory.
    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Number of inodes of the volume.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Sets the number of inodes of the volume.
    pub fn set_count(&mut self, count: u64) {
        self.count = count;
    }

    /// Counts a new inode.
    pub fn note_created(&mut self) {
        self.count += 1;
    }

    /// Counts an inode that was removed from the volume.
    pub fn note_removed(&mut self) {
        self.count = self.count.saturating_sub(1);
    }

    /// Changes times of an inode without a record; a later sync records them (S16).
    pub fn move_times(&mut self, ino: u64, set: impl FnOnce(&mut Inode)) {
        if let Some(node) = self.nodes.get_mut(&ino) {
            node.take_open_times();
            set(&mut node.inode);
            self.moved.insert(ino);
        }
    }

    /// Sets `atime` after a read. The times of writes stay in `Content::times` (S16).
    pub fn move_atime(&mut self, ino: u64, atime: Time) {
        if let Some(node) = self.nodes.get_mut(&ino) {
            node.inode.atime = atime;
            self.moved.insert(ino);
        }
    }

    /// The times of an inode that are ahead of the log; the caller records them now.
    pub fn take_moved_times(&mut self, ino: u64) -> Option<SetAttributes> {
        let is_moved = self.moved.remove(&ino);
        if let Some(node) = self.nodes.get_mut(&ino) {
            node.take_open_times();
        }
        let Inode { atime, mtime, ctime, .. } = self.nodes.get(&ino).filter(|_| is_moved)?.inode;
        let (atime, mtime, ctime) = (Some(atime), Some(mtime), Some(ctime));
        Some(SetAttributes { atime, mtime, ctime, ..SetAttributes::default() })
    }

    /// Inodes with times that are ahead of the log.
    pub fn moved(&self) -> impl Iterator<Item = u64> {
        self.moved.iter().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::inode::Time;

    /// S16: an inode has moved times until they are taken, or the inode is removed from memory.
    #[test]
    fn inode_table_moved_times_are_taken_once() {
        let mut table = InodeTable::default();
        for ino in [3, 5] {
            assert!(table.insert(ino, Node::new(Inode::default(), &[])));
        }
        assert_eq!(table.take_moved_times(3), None);
        let now = Time { seconds: 7, nanos: 0 };
        for ino in [3, 4, 5] {
            table.move_times(ino, |inode| inode.mtime = now);
        }
        assert_eq!(table.moved().collect::<Vec<_>>(), [3, 5], "4 is not in memory");
        let taken = table.take_moved_times(3).expect("they moved");
        assert_eq!((taken.mtime, taken.mode), (Some(now), None));
        assert_eq!(table.take_moved_times(3), None, "once");
        table.remove(5);
        assert_eq!((table.moved().count(), table.len()), (0, 1));
    }
}
