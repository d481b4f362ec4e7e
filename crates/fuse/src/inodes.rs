//! What the kernel knows of inodes: how often each was named to it, exactly, and those that live on only
//! because it knows them.
//!
//! Invariants: N1 the count of an inode is what was told less what was forgotten; one that is 0 is not in
//! the table. N2 a kept inode is in the table.
//!
//! Locks: one for each shard, and one for the kept, taken within a shard's. No open file is dropped under
//! either.

use forebay_base::sync::Mutex;
use forebay_base::sync::atomic::{AtomicUsize, Ordering};
use forebay_vfs::{Ino, OpenFileRef};
use std::collections::HashMap;

/// Parts of the table, each with a lock of its own.
pub(crate) const SHARDS: usize = 16;

/// See the module.
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

    /// The kernel is about to be told of an inode.
    pub fn told(&self, ino: Ino) {
        let mut shard = self.shard(ino.0).lock();
        let count = shard.entry(ino.0).or_insert_with(|| {
            self.len.fetch_add(1, Ordering::Relaxed);
            0
        });
        *count = count.saturating_add(1);
    }

    /// The kernel has forgotten it `times` times, or could not be told.
    pub fn forgot(&self, ino: Ino, times: u64) {
        let mut shard = self.shard(ino.0).lock();
        let Some(count) = shard.get_mut(&ino.0) else { return };
        *count = count.saturating_sub(times);
        if *count > 0 {
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

    /// Whether the kernel knows it.
    pub fn knows(&self, ino: Ino) -> bool {
        self.shard(ino.0).lock().contains_key(&ino.0)
    }

    /// Keeps an inode without a name for as long as the kernel knows it.
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

    /// How many the kernel knows.
    pub fn len(&self) -> usize {
        self.len.load(Ordering::Relaxed)
    }

    /// Some of them: up to `max` of one shard.
    pub fn some(&self, shard: usize, max: usize) -> Vec<u64> {
        self.shards[shard % SHARDS].lock().keys().take(max).copied().collect()
    }

    /// The kernel knows nothing any more.
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
    use forebay_vfs::mem::MemFs;
    use forebay_vfs::{FileKind, FileSystem, Name, NewInode, OpenFlags};

    /// N1: a `FORGET` that comes after the lookup that revived its inode leaves one.
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

    /// N2: what has no name any more goes when it is forgotten, and not before.
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
