//! Pages that uncached openings leave in the kernel's cache, and the notices that drop them.
//!
//! ```text
//!   READ through the handle ─▶ Behind: its FIFO ── more than the window ──▶ Drops ─▶ kernel
//!                                        └──────── the rest, at RELEASE ──────▲
//! ```
//! The kernel reads ahead for an uncached opening as for any other. Each handle records the ranges
//! that were read or written through it, and drops them some MiB behind the reader. Pages that were
//! cached before cause no `READ`, so they stay cached.
//!
//! In the kernel a notice may wait for a page that only an answer of this daemon unlocks. The
//! request for that page may wait for one of the few background slots of the connection. A
//! `RELEASE` holds such a slot until its answer. So no answer waits for a notice, or for space in
//! the queue.
//!
//! Invariants: drop.D1 a notice covers only ranges that were read or written through its handle,
//! except when the queue is full (D3), or when the last release drops all of a file. drop.D2 all
//! ranges of a handle are queued before its release is answered, and queueing never waits. drop.D3
//! the queue holds at most [`QUEUE_MAX`] ranges. Above that limit, neighbouring ranges of a file
//! are merged, including the gaps between them. If merging does not suffice, files are marked
//! ([`Mark::DropAll`]), and all their content is dropped, alternating with ranges of the queue.
//! These notices have their own thread, so that notices about changes never wait for them.
//!
//! Lock: the queue's; the lock of an inode's shard may be taken under it. The thread holds no lock
//! during a call of the kernel.

use crate::inodes::{Inodes, Mark, SHARDS};
use crate::proto::notify::Notice;
use forebay_vfs::Ino;
use std::collections::{BTreeMap, VecDeque};
use std::ops::{Bound, Range};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// Bytes that are kept behind a reader: more than the kernel reads ahead, so that no page is
/// dropped before the reader has used it.
const WINDOW_BYTES: u64 = 4 << 20;
/// Bytes that a sequential reader drops at a time. Each piece ends at a multiple of it: the kernel
/// drops a large folio as a whole, also if only a part of it is in the range.
const STEP_BYTES: u64 = 1 << 20;
/// Most ranges that are kept behind a reader, 16 bytes each for each uncached opening.
const BEHIND_MAX: usize = 256;
/// The range of a complete file.
pub(crate) const ALL: Range<u64> = 0..u64::MAX;
/// Most ranges in the queue.
const QUEUE_MAX: usize = 4096;
/// Ranges of the queue that are dropped before some marked files are, so that marked files need not
/// wait until the queue is empty.
const POPPED_MAX: usize = QUEUE_MAX / 8;
/// Memory of a range in the queue, bytes: its entry in a half-full tree node, and the same again
/// while ranges are merged.
const RANGE_BYTES: u64 = 112;
/// Memory of a full queue, bytes.
pub(crate) const QUEUE_BYTES: u64 = QUEUE_MAX as u64 * RANGE_BYTES;

/// Ranges that were read or written through one handle and are still to be dropped, oldest first.
#[derive(Default)]
pub(crate) struct Behind {
    ranges: VecDeque<Range<u64>>,
    bytes: u64,
}

impl Behind {
    /// Records a range that a read or a write puts into the kernel's cache.
    pub fn push(&mut self, range: Range<u64>) {
        self.bytes += range.end - range.start;
        match self.ranges.back_mut() {
            Some(last) if last.end == range.start => last.end = range.end,
            _ => self.ranges.push_back(range),
        }
    }

    /// Removes the oldest range, or its first part, if more than the window and a step remain, or
    /// if there are too many ranges. Without a window only the number of ranges counts.
    pub fn pop_old(&mut self, has_window: bool) -> Option<Range<u64>> {
        if self.ranges.len() > BEHIND_MAX {
            return self.pop();
        }
        if !has_window || self.bytes <= WINDOW_BYTES + STEP_BYTES {
            return None;
        }
        let excess = self.bytes - WINDOW_BYTES;
        let oldest = self.ranges.front_mut()?;
        let cut = (oldest.start + excess) / STEP_BYTES * STEP_BYTES;
        if oldest.end <= oldest.start + excess || cut <= oldest.start {
            return self.pop();
        }
        let part = oldest.start..cut;
        oldest.start = cut;
        self.bytes -= part.end - part.start;
        Some(part)
    }

    /// Removes the oldest range.
    pub fn pop(&mut self) -> Option<Range<u64>> {
        let oldest = self.ranges.pop_front()?;
        self.bytes -= oldest.end - oldest.start;
        Some(oldest)
    }
}

/// What the thread does next.
enum Next {
    /// Drops a range of a file.
    Range(u64, Range<u64>),
    /// Drops the marked files of the next shard, after [`POPPED_MAX`] ranges of the queue.
    SomeMarked,
    /// Drops all marked files: the queue is empty.
    AllMarked,
}

#[derive(Default)]
struct State {
    /// The end of each range, by its inode and start. Ranges of one inode never touch each other.
    ranges: BTreeMap<(u64, u64), u64>,
    /// The range that the thread took last: it visits the ranges in cyclic order of their keys.
    last: (u64, u64),
    /// Some inode may be marked [`Mark::DropAll`].
    has_marked: bool,
    /// Consecutive turns in which the thread has found no marked inode.
    unmarked_turns: usize,
    closed: bool,
}

impl State {
    /// Adds a range, merged with the ranges that it touches.
    fn insert(&mut self, node: u64, mut range: Range<u64>) {
        let before = self.ranges.range(..=(node, range.start)).next_back();
        if let Some((&(other, start), &end)) = before
            && other == node
            && end >= range.start
        {
            range = start..end.max(range.end);
        }
        loop {
            let next = self.ranges.range((node, range.start)..).next();
            let Some((&key, &end)) = next else { break };
            if key.0 != node || key.1 > range.end {
                break;
            }
            range.end = range.end.max(end);
            self.ranges.remove(&key);
        }
        self.ranges.insert((node, range.start), range.end);
    }

    fn pop(&mut self) -> Option<(u64, Range<u64>)> {
        let after = (Bound::Excluded(self.last), Bound::Unbounded);
        let next = self.ranges.range(after).next().or_else(|| self.ranges.first_key_value());
        let (&key, &end) = next?;
        self.ranges.remove(&key);
        self.last = key;
        Some((key.0, key.1..end))
    }

    fn remove_all(&mut self, node: u64) {
        let own = self.ranges.range((node, 0)..=(node, u64::MAX));
        let keys: Vec<_> = own.map(|(key, _)| *key).collect();
        for key in keys {
            self.ranges.remove(&key);
        }
    }

    /// Merges ranges across the smaller half of the gaps between ranges of one inode (D3).
    fn merge_near(&mut self) {
        let keys = self.ranges.keys().skip(1);
        let pairs = self.ranges.iter().zip(keys);
        let mut gaps: Vec<u64> = pairs
            .filter(|((key, _), next)| key.0 == next.0)
            .map(|((_, end), next)| next.1 - end)
            .collect();
        if gaps.is_empty() {
            return;
        }
        let middle = gaps.len() / 2;
        let most = *gaps.select_nth_unstable(middle).1;
        drop(gaps);
        let mut last: Option<((u64, u64), u64)> = None;
        for (key, end) in std::mem::take(&mut self.ranges) {
            match &mut last {
                Some((before, until)) if before.0 == key.0 && key.1 - *until <= most => {
                    *until = end;
                }
                _ => self.ranges.extend(last.replace((key, end))),
            }
        }
        self.ranges.extend(last);
    }
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    /// Wakes the thread.
    changed: Condvar,
}

/// The queue of ranges that the kernel is to drop. Clones share it.
#[derive(Clone, Default)]
pub(crate) struct Drops(Arc<Shared>);

impl Drops {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues a range of a file. Never waits (D2, D3).
    pub fn push(&self, inodes: &Inodes, node: u64, range: Range<u64>) {
        let mut state = self.lock();
        if state.closed {
            return;
        }
        state.insert(node, range);
        let limit = if state.has_marked { QUEUE_MAX / 8 * 7 } else { QUEUE_MAX };
        // With ranges of many files merging frees too little to be repeated for each new range.
        if state.ranges.len() > limit && !state.has_marked {
            state.merge_near();
        }
        if state.ranges.len() > limit {
            state.remove_all(node);
            inodes.mark(Ino(node), Mark::DropAll);
            (state.has_marked, state.unmarked_turns) = (true, 0);
        }
        self.0.changed.notify_one();
    }

    /// Ends the thread: the mount is over, so no further notice has an effect.
    pub fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        state.ranges.clear();
        drop(state);
        self.0.changed.notify_all();
    }

    /// The work of the thread, until [`Drops::close`]; `notify` sends a notice to the kernel.
    pub fn run(&self, inodes: &Inodes, notify: impl Fn(&Notice)) {
        let drop_all = |node| {
            let notice = Notice::content(node, 0, u64::MAX);
            inodes.drop_content(Ino(node), || notify(&notice));
        };
        let (mut popped, mut shard) = (0, 0);
        while let Some(next) = self.next(popped) {
            let shards = match next {
                Next::Range(node, range) => {
                    popped += 1;
                    match range {
                        ALL => drop_all(node),
                        _ => notify(&Notice::content(node, range.start, range.end - range.start)),
                    }
                    continue;
                }
                Next::SomeMarked => shard..shard + 1,
                Next::AllMarked => 0..SHARDS,
            };
            (popped, shard) = (0, (shard + 1) % SHARDS);
            let marked: Vec<_> = shards.flat_map(|n| inodes.take_all(n, Mark::DropAll)).collect();
            self.end_turn(!marked.is_empty());
            for node in marked {
                if self.lock().closed {
                    return;
                }
                drop_all(node);
            }
        }
    }

    /// Called after the thread has looked for marked files in one shard or in all. The queue counts
    /// as overloaded until the thread has found none in a full round of the shards and one more
    /// turn: a file of the shard just visited may have been marked before this call.
    fn end_turn(&self, found: bool) {
        let mut state = self.lock();
        state.unmarked_turns = if found { 0 } else { state.unmarked_turns + 1 };
        if state.unmarked_turns > SHARDS {
            state.has_marked = false;
        }
    }

    /// Waits for work; `popped`: ranges taken since the thread last looked for marked files.
    /// `None`: the queue is closed.
    fn next(&self, popped: usize) -> Option<Next> {
        let mut state = self.lock();
        loop {
            if state.closed {
                return None;
            }
            if state.has_marked && popped >= POPPED_MAX {
                return Some(Next::SomeMarked);
            }
            if let Some((node, range)) = state.pop() {
                return Some(Next::Range(node, range));
            }
            if std::mem::take(&mut state.has_marked) {
                return Some(Next::AllMarked);
            }
            state = self.0.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Memory of the queue now, bytes.
    pub fn bytes(&self) -> u64 {
        self.lock().ranges.len() as u64 * RANGE_BYTES
    }

    /// The nodes and ranges in the queue.
    #[cfg(test)]
    pub fn queued(&self) -> Vec<(u64, Range<u64>)> {
        self.lock().ranges.iter().map(|(key, end)| (key.0, key.1..*end)).collect()
    }
}

#[cfg(test)]
mod tests;
