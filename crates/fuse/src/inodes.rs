//! What the kernel knows of inodes: its exact lookup count of each, and marks for what it may have
//! cached of each. Also the open files of inodes without a name that the kernel still knows.
//!
//! Invariants: N1 the count of an inode is the number of replies that named it, less what the
//! kernel has forgotten; an inode with count 0 is not in the table. N2 an inode without a name
//! whose file is kept open is in the table. N3 an inode is marked before the answer leaves that
//! lets the kernel cache something of it. N4 the content mark is removed only after the kernel has
//! dropped all content. It stays if a read or write has filled the kernel's cache since that drop
//! began. The root always counts as known and as having all marks.
//!
//! Locks: one for each shard, and one for the files kept open, taken under a shard's. Open files
//! are dropped after both are released.

use forebay_base::sync::Mutex;
use forebay_base::sync::atomic::{AtomicUsize, Ordering};
use forebay_vfs::{Ino, OpenFileRef};
use std::collections::HashMap;

/// Shards of the table, each with its own lock.
pub(crate) const SHARDS: usize = 16;

/// What the kernel may have cached of an inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mark {
    /// Attributes, since the last notice that they are stale.
    Attributes = 1,
    /// Content; cleared only as N4 says.
    Content = 2,
    /// Set-id bits in the mode: the kernel does not ask again for the mode after a write.
    SetId = 4,
    /// The size in the kernel may be stale: another front end has changed the content since the
    /// kernel knows the inode.
    Shared = 8,
    /// Content for more than one use: mapped pages, and content of cached openings, but not of
    /// uncached ones. Cleared when the last release drops the content.
    Mapped = 16,
    /// Content was read into the kernel's cache, or written through it, since it was last dropped
    /// completely.
    Filled = 32,
    /// All content is to be dropped: the queue of drops had no space for the range.
    DropAll = 64,
    /// The last listing of the directory gave only attributes that the kernel may keep for long.
    Settled = 128,
    /// An opening of the directory could use the kernel's cached listing, since the kernel knows
    /// the inode.
    Listed = 256,
}

/// The count is shifted left by this number of bits; the marks are in the bits below.
const COUNT_SHIFT: u32 = 9;
const MARKS: u64 = (1 << COUNT_SHIFT) - 1;

/// The table of inodes that the kernel knows, with counts and marks.
#[derive(Default)]
pub(crate) struct Inodes {
    shards: [Mutex<HashMap<u64, u64>>; SHARDS],
    kept: Mutex<HashMap<u64, OpenFileRef>>,
    len: AtomicUsize,
    kept_len: AtomicUsize,
}

impl Inodes {
    fn shard(&self, ino: u64) -> &Mutex<HashMap<u64, u64>> {
        &self.shards[ino as usize % SHARDS]
    }

    /// Counts an inode and marks its attributes; called before the reply that names it leaves.
    pub fn told(&self, ino: Ino) {
        let mut shard = self.shard(ino.0).lock();
        let count = shard.entry(ino.0).or_insert_with(|| {
            self.len.fetch_add(1, Ordering::Relaxed);
            0
        });
        *count = count.saturating_add(1 << COUNT_SHIFT) | Mark::Attributes as u64;
    }

    /// Subtracts `times` from the count: the kernel has forgotten the inode, or did not accept the
    /// reply that named it.
    pub fn forgot(&self, ino: Ino, times: u64) {
        let mut shard = self.shard(ino.0).lock();
        let Some(count) = shard.get_mut(&ino.0) else { return };
        let left = (*count >> COUNT_SHIFT).saturating_sub(times);
        if left > 0 {
            *count = left << COUNT_SHIFT | *count & MARKS;
            return;
        }
        shard.remove(&ino.0);
        self.len.fetch_sub(1, Ordering::Relaxed);
        let kept = match self.kept_len.load(Ordering::Acquire) {
            0 => None,
            _ => self.kept.lock().remove(&ino.0),
        };
        if kept.is_some() {
            self.kept_len.fetch_sub(1, Ordering::Release);
        }
        drop(shard);
        drop(kept);
    }

    /// Whether the kernel knows the inode.
    pub fn knows(&self, ino: Ino) -> bool {
        ino == Ino::ROOT || self.shard(ino.0).lock().contains_key(&ino.0)
    }

    /// Marks what the kernel may cache; called before the answer leaves (N3).
    pub fn mark(&self, ino: Ino, mark: Mark) {
        if let Some(count) = self.shard(ino.0).lock().get_mut(&ino.0) {
            *count |= mark as u64;
        }
    }

    /// Whether the mark is set.
    pub fn marked(&self, ino: Ino, mark: Mark) -> bool {
        ino == Ino::ROOT || self.marks(ino) & mark as u64 != 0
    }

    fn marks(&self, ino: Ino) -> u64 {
        self.shard(ino.0).lock().get(&ino.0).map_or(0, |count| count & MARKS)
    }

    /// Clears a mark before the kernel is notified that what it stands for is stale; returns
    /// whether it was set.
    pub fn take(&self, ino: Ino, mark: Mark) -> bool {
        if ino == Ino::ROOT {
            return true;
        }
        match self.shard(ino.0).lock().get_mut(&ino.0) {
            None => false,
            Some(count) => {
                let had = *count & mark as u64 != 0;
                *count &= !(mark as u64);
                had
            }
        }
    }

    /// Marks an inode before the answer of a read that fills the kernel's cache, or of a write that
    /// leaves pages there. `is_mapped`: the kernel may keep the pages for more than one use.
    pub fn mark_fill(&self, ino: Ino, is_mapped: bool) {
        let mapped = if is_mapped { Mark::Mapped as u64 } else { 0 };
        if let Some(count) = self.shard(ino.0).lock().get_mut(&ino.0) {
            *count |= Mark::Content as u64 | Mark::Filled as u64 | mapped;
        }
    }

    /// Drops all content of an inode from the kernel's cache; `notify` sends the notice (N4).
    pub fn drop_content(&self, ino: Ino, notify: impl FnOnce()) {
        self.take(ino, Mark::Filled);
        notify();
        if let Some(count) = self.shard(ino.0).lock().get_mut(&ino.0)
            && *count & Mark::Filled as u64 == 0
        {
            *count &= !(Mark::Content as u64);
        }
    }

    /// Keeps a file without a name open for as long as the kernel knows its inode.
    pub fn keep(&self, file: OpenFileRef) {
        let ino = file.ino().0;
        let shard = self.shard(ino).lock();
        let spare = match shard.contains_key(&ino) {
            false => Some(file),
            true => {
                let old = self.kept.lock().insert(ino, file);
                if old.is_none() {
                    self.kept_len.fetch_add(1, Ordering::Release);
                }
                old
            }
        };
        drop(shard);
        drop(spare);
    }

    /// The number of inodes that the kernel knows.
    pub fn len(&self) -> usize {
        self.len.load(Ordering::Relaxed)
    }

    /// Up to `max` inodes of one shard.
    pub fn some(&self, shard: usize, max: usize) -> Vec<u64> {
        self.shards[shard % SHARDS].lock().keys().take(max).copied().collect()
    }

    /// Removes a mark from all inodes of one shard; returns those that had it.
    pub fn take_all(&self, shard: usize, mark: Mark) -> Vec<u64> {
        let mut taken = Vec::new();
        for (ino, count) in self.shards[shard % SHARDS].lock().iter_mut() {
            if *count & mark as u64 != 0 {
                *count &= !(mark as u64);
                taken.push(*ino);
            }
        }
        taken
    }

    /// Forgets everything: the connection has ended.
    pub fn clear(&self) {
        self.shards.iter().for_each(|shard| shard.lock().clear());
        self.len.store(0, Ordering::Relaxed);
        let kept = std::mem::take(&mut *self.kept.lock());
        self.kept_len.store(0, Ordering::Release);
        drop(kept);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_base::task::block_on;
    use forebay_testkit::mem_fs::MemFs;
    use forebay_vfs::{FileKind, FileSystem, Name, NewInode, OpenFlags};

    /// N1: a `FORGET` that arrives after a second lookup of its inode leaves a count of one.
    #[test]
    fn n1_counts_are_exact() {
        let inodes = Inodes::default();
        inodes.told(Ino(7));
        inodes.told(Ino(7));
        inodes.told(Ino(23));
        inodes.forgot(Ino(7), 1);
        assert!(inodes.knows(Ino(7)) && inodes.len() == 2);
        inodes.forgot(Ino(7), 1);
        assert!(!inodes.knows(Ino(7)) && inodes.len() == 1);
        inodes.forgot(Ino(7), 1);
        assert_eq!((inodes.len(), inodes.some(7, 9)), (1, vec![23]));
    }

    /// N3: setting and clearing marks does not change the count.
    #[test]
    fn n3_marks_leave_count_unchanged() {
        let inodes = Inodes::default();
        let ino = Ino(9);
        inodes.mark(ino, Mark::Content);
        assert!(!inodes.marked(ino, Mark::Content), "not known");
        inodes.told(ino);
        inodes.told(ino);
        let attributes = |ino| inodes.take(ino, Mark::Attributes);
        assert!(attributes(ino) && !attributes(ino) && !inodes.take(ino, Mark::SetId));
        inodes.mark(ino, Mark::Content);
        inodes.forgot(ino, 1);
        assert!(inodes.knows(ino) && inodes.marked(ino, Mark::Content));
        inodes.mark(ino, Mark::Attributes);
        inodes.forgot(ino, 1);
        assert!(!inodes.knows(ino) && !inodes.marked(ino, Mark::Content) && inodes.len() == 0);
        assert!(attributes(Ino::ROOT) && attributes(Ino::ROOT));
    }

    /// N4: a read during the drop may have filled the kernel's cache again, so the mark stays.
    #[test]
    fn n4_content_read_during_drop_stays_marked() {
        let (inodes, ino) = (Inodes::default(), Ino(9));
        inodes.told(ino);
        for reads in [false, true] {
            inodes.mark_fill(ino, true);
            inodes.drop_content(ino, || {
                assert!(inodes.marked(ino, Mark::Content), "N4: not before it is dropped");
                if reads {
                    inodes.mark_fill(ino, false);
                }
            });
            assert_eq!(inodes.marked(ino, Mark::Content), reads);
        }
    }

    /// N2: a file without a name is kept open until the kernel forgets it, and no longer.
    #[test]
    fn n2_kept_until_forgotten() {
        let (fs, inodes) = (MemFs::default(), Inodes::default());
        let name = Name::new(b"f").unwrap();
        let new = NewInode::of(FileKind::Fifo, 0o600);
        let ino = block_on(fs.mknod(Ino::ROOT, name, &new)).unwrap().ino;
        inodes.told(ino);
        inodes.keep(block_on(fs.open(ino, OpenFlags::empty())).unwrap());
        block_on(fs.unlink(Ino::ROOT, name)).unwrap();
        assert_eq!(block_on(fs.getattr(ino)).unwrap().nlink, 0);
        inodes.forgot(ino, 1);
        block_on(fs.getattr(ino)).unwrap_err();
        assert_eq!(fs.inodes(), 1);
    }
}
