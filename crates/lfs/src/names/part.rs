//! What happens to names and attributes in memory.
//!
//! The invariants are those of the other files of this folder. No locks: the volume's state lock
//! covers it.

use crate::device::layout::Layout;
use crate::format::change::Change;
use crate::format::inode::{Inode, SetAttributes, Time};
use crate::format::key::{Key, KeyBytes};
use crate::format::superblock::{Superblock, TreeRoot};
use crate::names::Names;
use crate::names::counters::Counters;
use crate::names::evict::Cache;
use crate::names::inode_table::InodeTable;
use crate::names::items::Items;
use crate::names::load::Part;
use crate::names::node::Node;
use crate::names::scan_cache::{ALL_PART, Windows};
use std::collections::BTreeSet;

/// The approximate bytes of an inode without symlink target, attributes and entries.
const NODE_BYTES: usize = 640;

impl Node {
    /// The approximate bytes that the inode takes in memory.
    pub fn bytes(&self) -> usize {
        let xattrs = self.xattrs.iter().map(|(name, value)| 2 * name.len() + value.len() + 192);
        NODE_BYTES + self.target.len() + xattrs.sum::<usize>() + self.entries.bytes()
    }

    /// Whether the inode must stay in memory for a reason other than its times.
    pub fn is_pinned(&self) -> bool {
        self.opens > 0 || self.linkable || self.regrow || self.content.is_some()
    }
}

/// The parts, to read.
impl Names {
    /// Of a volume without inodes.
    pub fn new(layout: &Layout) -> Self {
        Self {
            geometry: layout.geometry,
            nonce: layout.nonce,
            nodes: InodeTable::default(),
            cache: Cache::new(),
            windows: Windows::default(),
            items: Items::default(),
            orphans: BTreeSet::new(),
            unremoved: BTreeSet::new(),
            counters: Counters::first(),
        }
    }

    /// An inode, if it is in memory.
    pub fn node(&self, ino: u64) -> Option<&Node> {
        self.nodes.get(ino)
    }

    /// Whether an inode is in memory.
    pub fn has_node(&self, ino: u64) -> bool {
        self.nodes.contains(ino)
    }

    /// The inodes in memory.
    pub fn nodes(&self) -> impl Iterator<Item = (u64, &Node)> {
        self.nodes.iter()
    }

    /// Number of inodes of the volume, in memory or not.
    pub fn inode_count(&self) -> u64 {
        self.nodes.count()
    }

    /// Inodes with times that are ahead of the log.
    pub fn moved(&self) -> impl Iterator<Item = u64> {
        self.nodes.moved()
    }

    /// Changes since the last freeze.
    pub fn items(&self) -> &Items {
        &self.items
    }

    /// The accounting of memory.
    pub fn cache(&self) -> &Cache {
        &self.cache
    }

    /// Inodes for sequential scans, in stored form.
    pub fn windows(&self) -> &Windows {
        &self.windows
    }

    /// Inodes without a name, of which an opening must remove the rest.
    pub fn orphans(&self) -> &BTreeSet<u64> {
        &self.orphans
    }

    /// Whether the removal of this inode found no space.
    pub fn is_unremoved(&self, ino: u64) -> bool {
        self.unremoved.contains(&ino)
    }

    /// The next free numbers.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// The memory of names, bytes: inodes and scan windows.
    pub fn bytes(&self) -> usize {
        self.cache.bytes() + self.windows.bytes()
    }
}

/// Inodes.
impl Names {
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

    /// Adds a new inode of the volume.
    pub fn create(&mut self, ino: u64, node: Node) {
        self.keep(ino, node);
        self.nodes.note_created();
    }

    /// Removes an inode of the volume, if it is in memory.
    pub fn remove(&mut self, ino: u64) -> Option<Box<Node>> {
        let node = self.forget(ino)?;
        self.nodes.note_removed();
        self.note_no_inode(ino, &node);
        Some(node)
    }

    /// Changes an inode. `None`: it is not in memory. To change times, use [`Self::move_times`].
    pub fn update<T>(&mut self, ino: u64, change: impl FnOnce(&mut Node) -> T) -> Option<T> {
        self.nodes.update(ino, change)
    }

    /// Changes times of an inode without a record (state.S14).
    pub fn move_times(&mut self, ino: u64, set: impl FnOnce(&mut Inode)) {
        self.nodes.move_times(ino, set);
    }

    /// Sets `atime` after a read, without a record.
    pub fn move_atime(&mut self, ino: u64, atime: Time) {
        self.nodes.move_atime(ino, atime);
    }

    /// The times of an inode that are ahead of the log; the caller records them now.
    pub fn take_moved_times(&mut self, ino: u64) -> Option<SetAttributes> {
        self.nodes.take_moved_times(ino)
    }

    /// Notes that an inode became an orphan.
    pub fn add_orphan(&mut self, ino: u64) {
        self.orphans.insert(ino);
    }

    /// Notes that an inode is no orphan any more. False: it was none.
    pub fn remove_orphan(&mut self, ino: u64) -> bool {
        self.orphans.remove(&ino)
    }

    /// The removal of this inode found no space. It is tried again.
    pub fn note_unremoved(&mut self, ino: u64) {
        self.unremoved.insert(ino);
    }

    /// Inodes whose removal is tried again.
    pub fn take_unremoved(&mut self) -> BTreeSet<u64> {
        std::mem::take(&mut self.unremoved)
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

    /// Number of inodes in memory.
    #[cfg(test)]
    pub fn node_count(&self) -> usize {
        self.nodes.len()
    }
}

/// Memory.
impl Names {
    /// Sets the limit on memory, bytes.
    pub fn set_bytes_max(&mut self, bytes: usize) {
        self.cache.bytes_max = bytes;
    }

    /// A task begins to wait for a part; returns the time (evict.Q32).
    pub fn begin_wait(&mut self) -> u64 {
        self.cache.wait()
    }

    /// A task that began at `since` does not wait any more.
    pub fn end_wait(&mut self, since: u64) {
        self.cache.end_wait(since);
    }

    /// No inode has this number, and none ever will.
    pub fn note_absent(&mut self, ino: u64) {
        self.cache.note_absent(ino);
    }

    /// Inodes below this number were loaded.
    pub fn loaded_to(&mut self, next_ino: u64) {
        self.cache.loaded_to(next_ino);
    }

    /// Takes the inode at the hand out of the ring (evict.Q33).
    pub fn pop_hand(&mut self) -> Option<u64> {
        self.cache.pop()
    }

    /// Puts an inode that stays back into the ring.
    pub fn push_hand(&mut self, ino: u64) {
        self.cache.push(ino);
    }

    /// Forgets numbers of inodes that do not exist ([`Cache::forget_unused`]).
    pub fn forget_unused(&mut self, all: bool, kept_from: u64) {
        self.cache.forget_unused(all, kept_from);
    }

    /// Adds a scan window of the tree below `root`, which begins with this inode.
    pub fn put_window(&mut self, ino: u64, part: Part, root: &TreeRoot) {
        self.windows.put(ino, part);
        self.tidy_windows(root);
    }

    /// Drops windows of other trees, and windows above the limit (scan_cache.Q62).
    pub fn tidy_windows(&mut self, root: &TreeRoot) {
        self.windows.keep(root);
        self.windows.shrink(self.cache.bytes_max / ALL_PART);
    }
}

/// Numbers, and changes for a checkpoint.
impl Names {
    /// Takes over the numbers of a checkpoint.
    pub fn load(&mut self, superblock: &Superblock) {
        self.nodes.set_count(superblock.inode_count);
        self.counters = Counters::of(superblock);
    }

    /// Notes the numbers that a change names (state.S13).
    pub fn note_numbers(&mut self, change: &Change<'_>) {
        self.counters.note(change);
    }

    /// Gives out a sequence number of content.
    pub fn draw_sequence(&mut self) -> u64 {
        self.counters.draw_sequence()
    }

    /// Skips sequence numbers that may have been given out without a record.
    pub fn skip_sequences(&mut self, count: u64) {
        self.counters.skip_sequences(count);
    }

    /// An injected fault: restarts the inode numbers.
    pub fn restart_inos(&mut self) {
        self.counters.restart_inos(self.nodes.count() + 1);
    }

    /// A checkpoint takes the changes.
    pub fn freeze(&mut self) -> Items {
        std::mem::take(&mut self.items)
    }

    /// Puts the changes of a failed checkpoint back below the newer ones.
    pub fn thaw(&mut self, mut frozen: Items) {
        frozen.put_over(std::mem::take(&mut self.items));
        self.items = frozen;
    }

    /// Sets the change of a key: a new value, or a removal.
    pub fn put_item(&mut self, key: KeyBytes, value: Option<Box<[u8]>>) {
        self.items.put(key, value);
    }

    /// An injected fault: forgets the change of a key.
    pub fn forget_item(&mut self, key: &KeyBytes) {
        self.items.forget(key);
    }

    /// Notes a changed inode that is not in memory.
    pub fn note_stored_inode(&mut self, ino: u64, inode: Inode) -> forebay_base::Result<()> {
        let geometry = self.geometry;
        self.items.item(Key::Inode(ino), &crate::format::item::Item::Inode(inode), &geometry)
    }
}
