//! The dirty folios of one file: by index, so that write-out makes long runs, and by age, so that
//! the oldest is found without a walk.
//!
//! Invariants: K1 each listed folio is on one of the two lists of ages, under the time it became
//! dirty. K2 the task that lists the first folio of a file queues the file with its flusher, which
//! takes a file off its queue only by `DirtyFolios::leave_queue`.
//!
//! Lock: one, a leaf, held for a few steps of a tree.

use crate::dirty::pass::{Which, WriteOutPass};
use forebay_base::sync::Mutex;
use forebay_base::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use forebay_base::world::Nanos;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Bound, Range};

/// Folios picked by age at a time; in between the lock is free.
const PICK: usize = 256;

/// A folio with dirty blocks.
#[derive(Debug, Clone, Copy)]
pub struct DirtyFolio {
    /// When it became dirty.
    pub since: Nanos,
    /// It has blocks of uncached writes.
    pub uncached: bool,
}

#[derive(Default)]
struct Set {
    folios: BTreeMap<u64, DirtyFolio>,
    /// (since, index) of the ordinary folios, and of those with blocks of uncached writes.
    aged: [BTreeSet<(Nanos, u64)>; 2],
}

/// The dirty folios of a file, by index and by age.
#[derive(Default)]
pub struct DirtyFolios {
    set: Mutex<Set>,
    /// Bytes of dirty blocks made by uncached writes and not yet picked for write-out.
    pub(crate) uncached: AtomicU64,
    /// Bytes kept until the next flush.
    pub(crate) unflushed: AtomicI64,
    /// The flusher has the file on its queue.
    queued: AtomicBool,
    /// The flusher's last visit could write nothing of the file, and the next one has to wait.
    stalled: AtomicBool,
    /// Counts folios that became dirty, and write-outs that have ended.
    changes: AtomicU64,
    /// The file is in the queue of files that wait for a flush.
    pub(crate) flush_listed: AtomicBool,
}

/// What listing a folio changed.
pub(crate) struct Listed {
    /// The folio was not on the list.
    pub fresh: bool,
    /// It had blocks of uncached writes already.
    pub uncached: bool,
}

impl DirtyFolios {
    /// Lists a folio that a writer has made dirty, now or before.
    pub(crate) fn list(&self, index: u64, now: Nanos, uncached: bool) -> Listed {
        let mut set = self.set.lock();
        let set = &mut *set;
        let mut fresh = false;
        let entry = set.folios.entry(index).or_insert_with(|| {
            fresh = true;
            DirtyFolio { since: now, uncached: false }
        });
        let was = entry.uncached;
        entry.uncached |= uncached;
        if fresh {
            self.changes.fetch_add(1, Ordering::SeqCst);
            set.aged[usize::from(entry.uncached)].insert((entry.since, index));
        } else if was != entry.uncached {
            let moved = set.aged[0].remove(&(entry.since, index));
            set.aged[1].insert((entry.since, index));
            debug_assert!(moved, "K1: folio {index} is dirty since {} on no list", entry.since);
        }
        Listed { fresh, uncached: was }
    }

    /// Takes a folio without dirty blocks off the list; returns whether it was listed.
    pub(crate) fn unlist(&self, index: u64) -> bool {
        let mut set = self.set.lock();
        let Some(folio) = set.folios.remove(&index) else { return false };
        let listed = set.aged[usize::from(folio.uncached)].remove(&(folio.since, index));
        debug_assert!(listed, "K1: folio {index} is dirty since {} on no list", folio.since);
        true
    }

    /// The first dirty folio from this index on.
    pub(crate) fn first_from(&self, index: u64) -> Option<u64> {
        self.set.lock().folios.range(index..).next().map(|(&i, _)| i)
    }

    /// Puts the folios that became dirty next after `cursor.after`, up to `cursor.until`, into
    /// `cursor.aged`, at most [`PICK`].
    fn by_age(&self, which: Which, cursor: &mut DirtyCursor) {
        let set = self.set.lock();
        let after = cursor.after.map_or(Bound::Unbounded, Bound::Excluded);
        let from = (after, Bound::Included((cursor.until, u64::MAX)));
        let aged = &mut cursor.aged;
        aged.clear();
        for list in &set.aged[usize::from(which == Which::Uncached)..] {
            aged.extend(list.range(from).take(PICK));
        }
        drop(set);
        aged.sort_unstable();
        aged.truncate(PICK);
    }

    /// The time the oldest dirty folio became dirty, if there is one.
    pub fn oldest(&self) -> Option<Nanos> {
        let set = self.set.lock();
        set.aged.iter().filter_map(|list| list.first()).map(|&(since, _)| since).min()
    }

    /// The time the oldest folio with blocks of uncached writes became dirty.
    pub(crate) fn oldest_uncached(&self) -> Option<Nanos> {
        self.set.lock().aged[1].first().map(|&(since, _)| since)
    }

    /// Adds bytes of uncached writes; returns how many there were before.
    pub(crate) fn more_uncached(&self, bytes: u64) -> u64 {
        self.uncached.fetch_add(bytes, Ordering::Relaxed)
    }

    /// Whether the file is on its flusher's queue. Call it after the folio was listed (K2).
    #[inline]
    pub(crate) fn is_queued(&self) -> bool {
        self.queued.load(Ordering::SeqCst)
    }

    /// Marks the file as on its flusher's queue. Call it under the queue's lock.
    pub(crate) fn enter_queue(&self) {
        self.queued.store(true, Ordering::SeqCst);
    }

    /// A write-out of the file has ended.
    pub(crate) fn written(&self) {
        self.changes.fetch_add(1, Ordering::SeqCst);
    }

    /// A count that grows with each event after which a stalled file may be writable again.
    pub(crate) fn changes(&self) -> u64 {
        self.changes.load(Ordering::SeqCst)
    }

    /// Whether the flusher skips the file until [`DirtyFolios::changes`] grows, or a timer expires.
    /// A task that increases the count checks this afterwards, and notifies the flusher.
    #[inline]
    pub(crate) fn is_stalled(&self) -> bool {
        self.stalled.load(Ordering::SeqCst)
    }

    /// Notes whether the file is stalled. Call it under the queue's lock.
    pub(crate) fn set_stalled(&self, stalled: bool) {
        self.stalled.store(stalled, Ordering::SeqCst);
    }

    /// Marks the file as off the queue, unless it has become dirty meanwhile: then returns since
    /// when (K2). Call it under the queue's lock.
    pub(crate) fn leave_queue(&self) -> Option<Nanos> {
        self.queued.store(false, Ordering::SeqCst);
        let oldest = self.oldest();
        if oldest.is_some() {
            self.enter_queue();
        }
        oldest
    }
}

/// How far a pass of write-out has come. Keeps its memory from pass to pass.
#[derive(Default)]
pub struct DirtyCursor {
    next: u64,
    after: Option<(Nanos, u64)>,
    until: Nanos,
    /// By age: indices picked, descending, and not taken yet.
    picked: Vec<u64>,
    aged: Vec<(Nanos, u64)>,
}

impl DirtyCursor {
    /// Bytes of memory that it allocates.
    pub fn bytes(&self) -> u64 {
        let aged = self.aged.capacity() * size_of::<(Nanos, u64)>();
        (self.picked.capacity() * size_of::<u64>() + aged) as u64
    }

    /// Starts a pass over `folios` at time `now`.
    pub fn begin(&mut self, pass: &WriteOutPass, folios: &Range<u64>, now: Nanos) {
        self.until = match pass.which {
            Which::Before(time) => time.saturating_sub(1),
            // Folios that become dirty while it runs are left to the next pass.
            Which::All | Which::Uncached => now,
        };
        (self.next, self.after) = (folios.start, None);
        self.picked.clear();
    }
}

impl DirtyFolios {
    /// Puts the next folios of a pass into `batch`, at most `limit`, by ascending index. A pass
    /// that takes all goes through the file; any other takes the oldest first, in portions. `batch`
    /// is empty at the end of the pass.
    pub fn next_of_pass(
        &self,
        pass: &WriteOutPass,
        folios: &Range<u64>,
        cursor: &mut DirtyCursor,
        (limit, batch): (usize, &mut Vec<u64>),
    ) {
        batch.clear();
        if pass.which == Which::All {
            let set = self.set.lock();
            let there = set.folios.range(cursor.next..folios.end.max(cursor.next));
            batch.extend(there.take(limit).map(|(&i, _)| i));
            cursor.next = batch.last().map_or(folios.end, |last| last + 1);
            return;
        }
        while cursor.picked.is_empty() {
            self.by_age(pass.which, cursor);
            let Some(&last) = cursor.aged.last() else { return };
            cursor.after = Some(last);
            let inside = cursor.aged.iter().map(|&(_, i)| i).filter(|i| folios.contains(i));
            cursor.picked.extend(inside);
            cursor.picked.sort_unstable_by_key(|&i| std::cmp::Reverse(i));
        }
        let left = cursor.picked.len().saturating_sub(limit);
        batch.extend(cursor.picked.drain(left..).rev());
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    fn pass(which: Which) -> WriteOutPass {
        WriteOutPass { range: 0..u64::MAX >> 1, which, max_bytes: 0, sync: false }
    }

    fn all_of(dirty_folios: &DirtyFolios, which: Which, now: Nanos) -> Vec<u64> {
        let (pass, folios) = (pass(which), 0..u64::MAX);
        let mut cursor = DirtyCursor::default();
        cursor.begin(&pass, &folios, now);
        let (mut out, mut batch) = (Vec::new(), Vec::new());
        loop {
            dirty_folios.next_of_pass(&pass, &folios, &mut cursor, (16, &mut batch));
            if batch.is_empty() {
                return out;
            }
            out.extend(&batch);
        }
    }

    /// K2: a task that makes the first folio dirty while the flusher takes the file off its queue
    /// relies on its being queued. The flusher checks once more, and the file stays.
    #[test]
    fn k2_file_with_dirty_folios_stays_queued() {
        let dirty_folios = DirtyFolios::default();
        dirty_folios.enter_queue();
        dirty_folios.list(3, 70, false);
        assert_eq!((dirty_folios.leave_queue(), dirty_folios.is_queued()), (Some(70), true));
        assert!(dirty_folios.unlist(3));
        assert_eq!((dirty_folios.leave_queue(), dirty_folios.is_queued()), (None, false));
        assert!(
            dirty_folios.list(4, 80, true).fresh && !dirty_folios.is_queued(),
            "now it is the writer's turn"
        );
    }

    #[test]
    fn pass_by_age_takes_old_folios_oldest_first() {
        let dirty_folios = DirtyFolios::default();
        // The higher the index, the older the folio. Every third folio has uncached blocks.
        for i in 0..1000u64 {
            assert!(dirty_folios.list(i, 2000 - i, i % 3 == 0).fresh);
        }
        assert!(!dirty_folios.list(5, 9, false).fresh);
        assert_eq!(
            (dirty_folios.oldest(), dirty_folios.oldest_uncached()),
            (Some(1001), Some(1001))
        );
        let sorted = |mut v: Vec<u64>| {
            v.sort_unstable();
            v
        };
        assert_eq!(
            sorted(all_of(&dirty_folios, Which::Before(1500), 3000)),
            (501..1000).collect::<Vec<_>>()
        );
        let thirds: Vec<u64> = (0..1000).step_by(3).collect();
        assert_eq!(sorted(all_of(&dirty_folios, Which::Uncached, 3000)), thirds);
        assert_eq!(all_of(&dirty_folios, Which::All, 3000), (0..1000).collect::<Vec<_>>());
        // Once an ordinary folio gets uncached blocks, a pass over uncached ones takes it.
        assert!(!dirty_folios.list(998, 5000, true).uncached);
        assert!(all_of(&dirty_folios, Which::Uncached, 3000).contains(&998));
        (0..1000).for_each(|i| assert!(dirty_folios.unlist(i)));
        assert!(!dirty_folios.unlist(1) && dirty_folios.oldest().is_none());
    }
}
