//! The cached content of an inode in memory, and the closed files with pending write-back.
//!
//! Invariant: D13 a reader without the state lock sees a published size only if the record with
//! that size is queued, or its change is being applied (queue.L14). The size follows the inode in
//! each hold of the lock that changes it. So a sync that finds its size published, and commits the
//! last ticket that it reads then, makes the size durable.
//!
//! No locks: the volume's state lock covers it, except for [`Published`].

use crate::names::closed::RetainedMapping;
use crate::names::open_times::OpenTimes;
use crate::names::times_wanted::TimesWanted;
use forebay_base::sync::atomic::{AtomicU64, Ordering};
use forebay_iomap::{Handle, MapOps, MappedFile};
use forebay_vfs::Ino;
use std::collections::BTreeSet;
use std::sync::Arc;

/// The size of an inode that recovery restores at least, for readers without the state lock
/// (content.D13).
#[derive(Debug)]
pub(crate) struct PublishedSize(AtomicU64);

/// The value of a mapping that is not, or not any more, that of its inode (content.D12). No file is
/// as long.
const DETACHED: u64 = u64::MAX;

impl Default for PublishedSize {
    fn default() -> Self {
        Self(AtomicU64::new(DETACHED))
    }
}

impl PublishedSize {
    /// The size. `None`: the mapping is not that of its inode.
    pub fn get(&self) -> Option<u64> {
        let size = self.0.load(Ordering::Acquire);
        (size != DETACHED).then_some(size)
    }

    /// The inode has this size. The caller holds the state lock.
    pub fn set(&self, size: u64) {
        self.0.store(size, Ordering::Release);
    }

    /// The mapping is not that of its inode any more. The caller holds the state lock.
    pub fn detach(&self) {
        self.set(DETACHED);
    }
}

/// What a sync learns of an inode's mapping without the state lock.
#[derive(Debug, Default)]
pub(crate) struct Published {
    pub size: PublishedSize,
    /// Syncs that want the times of the inode.
    pub times: TimesWanted,
}

/// The cached content of an inode.
pub(crate) struct Content {
    pub file: Arc<MappedFile>,
    /// The volume's own handle, which keeps track of errors that a sync of the volume has reported.
    pub handle: Handle,
    /// The map below `file`.
    pub ops: Arc<dyn MapOps>,
    /// The inode.
    pub ino: Ino,
    pub times: OpenTimes,
    /// Shared with `ops`.
    pub published: Arc<Published>,
}

impl Content {
    /// Whether it can be dropped with its mapping: it has nothing to write, and no task uses it.
    pub fn may_go(self: &Arc<Self>) -> bool {
        self.file.mapping.is_settled() && Arc::strong_count(self) == 1 && self.file.is_alone()
    }

    /// Retains the cached folios as the content of `data_id` (closed.Y11). `None`: there are none,
    /// or an error has to be reported first.
    pub fn leave(&self, data_id: u64) -> Option<RetainedMapping> {
        let (file, mapping) = (&self.file, &self.file.mapping);
        let fails = mapping.unreported().is_some() || mapping.had_loss();
        // Bytes of a dropped write are not content of the file.
        let hidden = mapping.bounds.has_hidden_bytes();
        if fails || hidden || file.cache.owners.folios(mapping.id) == 0 {
            return None;
        }
        file.retain_folios();
        Some(RetainedMapping { mapping: mapping.id, data_id, size: file.size() })
    }
}

/// Closed files with pending write-back, kept in a clock. Closing a file inspects a few of them, so
/// the cost does not grow with their number.
#[derive(Default)]
pub(crate) struct PendingWriteBack {
    inos: BTreeSet<u64>,
    hand: u64,
}

impl PendingWriteBack {
    /// Adds a closed file.
    pub fn insert(&mut self, ino: u64) {
        self.inos.insert(ino);
    }

    /// Whether no closed file has pending write-back.
    pub fn is_empty(&self) -> bool {
        self.inos.is_empty()
    }

    /// Whether the file is closed with pending write-back.
    pub fn contains(&self, ino: u64) -> bool {
        self.inos.contains(&ino)
    }

    /// Removes a file whose write-back has ended.
    pub fn remove(&mut self, ino: u64) {
        self.inos.remove(&ino);
    }

    /// The file at the clock hand, which advances.
    fn next(&mut self) -> Option<u64> {
        let ino = *self.inos.range(self.hand..).next().or_else(|| self.inos.first())?;
        self.hand = ino + 1;
        Some(ino)
    }

    /// Inspects up to `most` files of `whole` except `besides`, each once; `look` returns whether
    /// to remove one. With at most [`AT_ONCE`] files, the second file that stays ends the round.
    /// Not the first one: usually one file is closed per round, with the highest number. The hand
    /// would stop at that file each time, and never return to the others.
    pub fn look_round<S>(
        whole: &mut S,
        of: impl Fn(&mut S) -> &mut Self,
        besides: Option<u64>,
        most: usize,
        mut look: impl FnMut(&mut S, u64) -> bool,
    ) {
        let mut stay = 0;
        for _ in 0..most.min(of(whole).inos.len()) {
            let Some(ino) = of(whole).next() else { break };
            if besides == Some(ino) {
                continue;
            }
            if look(whole, ino) {
                of(whole).inos.remove(&ino);
            } else {
                stay += 1;
                if stay == 2 && most <= AT_ONCE {
                    break;
                }
            }
        }
    }
}

/// Closed files that the close of another file inspects.
pub(crate) const AT_ONCE: usize = 4;

#[cfg(test)]
mod tests {
    use super::*;

    /// content.D12, D13: a mapping that is not that of its inode has no published size.
    #[test]
    fn published_size_is_none_unless_attached() {
        let published = PublishedSize::default();
        assert_eq!(published.get(), None, "content.D12: not attached yet");
        published.set(0);
        assert_eq!(published.get(), Some(0));
        published.set(4096);
        assert_eq!(published.get(), Some(4096), "D13: it follows the inode");
        published.detach();
        assert_eq!(published.get(), None, "content.D12: detached");
    }

    /// The story: with a hundred thousand files that were written and closed, each close inspected
    /// all of them.
    #[test]
    fn close_inspects_few_closed_files_and_visits_all_in_turn() {
        let mut pending = PendingWriteBack::default();
        (0..100).for_each(|ino| pending.insert(2 * ino));
        // Inspects files; returns those that are removed, and those that are inspected.
        let round = |all: &mut PendingWriteBack, besides, most, goes: &dyn Fn(u64) -> bool| {
            let mut seen = Vec::new();
            let look = |_: &mut PendingWriteBack, ino| {
                seen.push(ino);
                goes(ino)
            };
            PendingWriteBack::look_round(all, |all| all, besides, most, look);
            seen
        };
        let all = &mut pending;
        assert_eq!(round(all, None, AT_ONCE, &|_| true), [0, 2, 4, 6], "some at the hand");
        assert_eq!(round(all, Some(10), AT_ONCE, &|ino| ino < 14), [8, 12, 14], "but that one");
        assert_eq!(round(all, None, AT_ONCE, &|_| false), [16, 18], "two stay");
        let seen: Vec<u64> = (0..47).flat_map(|_| round(all, None, AT_ONCE, &|_| false)).collect();
        assert_eq!((seen.len(), seen.last()), (94, Some(&18)), "round, each once");
        assert_eq!(
            round(all, None, usize::MAX, &|ino| ino % 4 == 0).len(),
            94,
            "all, also those that stay"
        );
        assert!(!pending.contains(12) && pending.contains(14));
    }

    /// The story: a program wrote and closed files with ascending numbers. The hand advanced with
    /// the newest file, and no other file was ever inspected.
    #[test]
    fn file_without_pending_writes_is_removed_despite_newer_closes() {
        let mut pending = PendingWriteBack::default();
        for newest in 0..1000 {
            pending.insert(newest);
            // The ten last closed files still have pending write-back.
            let look = |_: &mut PendingWriteBack, ino| ino + 10 < newest;
            PendingWriteBack::look_round(&mut pending, |all| all, Some(newest), AT_ONCE, look);
            assert!(pending.inos.len() < 40, "{} pending", pending.inos.len());
        }
    }
}
