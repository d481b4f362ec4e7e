//! Moves folios to lower slots and bytes to lower frames, out of the way of a smaller budget. No
//! cached block is lost.
//!
//! Invariants: G1 a frame is moved only under the lock of the folio that holds it, when no
//! write-out has captured it, no reader has pinned it and no block of it is being read: neither a
//! device nor a reader knows its address. G2 a folio is moved only by the holder of the reclaim
//! turn, which has taken it off its queue; it returns to the same queue, so that its age is
//! unchanged (queues.Q1).
//!
//! Locks: the folio lock, then the lock of the free slot that it moves to, which other tasks hold
//! only to check its key; then the index bucket.

use crate::ageing::queues::{MAIN, SMALL};
use crate::cache::PageCache;
use crate::memory::arena::{FRAME_SIZE, Frame};
use crate::table::{Blocks, Slot, State};
use forebay_base::sync::atomic::Ordering;
use std::collections::HashSet;

/// Frames given back at a time.
const ROUND: usize = 64;

impl PageCache {
    /// Moves folios in slots above `limit` to free ones below, in one pass over the queues; folios
    /// that another task has locked stay.
    pub(crate) fn migrate_slots(&self, limit: usize) {
        self.rotate(|slot| match slot as usize > limit {
            true => Some(self.move_folio(slot).unwrap_or(slot)),
            false => Some(slot),
        });
    }

    /// Moves a folio to a lower slot, and returns that; `None` if it is locked or none is free.
    fn move_folio(&self, from: Slot) -> Option<Slot> {
        debug_assert!(self.reclaim_turn.try_lock().is_none(), "G2: who moves folios reclaims");
        if !self.table.try_lock(from) {
            return None;
        }
        let to = self.free_slots.lock().pop_below();
        if let Some(to) = to {
            self.table.lock(to);
            assert_eq!(self.table.key(to).0, 0, "slot {to} was free (B1)");
            self.owners.relocate(&self.table, (from, to), || {
                self.index.relocate(&self.table, from, to);
            });
            self.table.unlock(to);
        }
        self.table.unlock(from);
        if to.is_some() {
            self.give_slots([from].into_iter());
        }
        to
    }

    /// Asserts that the books agree, while the cache is idle: each frame in use is in one folio, or
    /// held by write-outs or pins alone (frames.A1), each folio is on the queue that it names
    /// (queues.Q1), in a slot below the limit (slots.B2), and no frame or slot in use is above the
    /// limits (frames.A3).
    pub fn check_books(&self) {
        let (ever, limit) = (self.free_slots.lock().fresh(), self.sizes.frames());
        let (mut owned, mut folios, mut queued) = (HashSet::new(), 0, [0usize; 3]);
        let mut young = 0;
        for slot in 1..ever as Slot {
            if self.table.key(slot).0 == 0 {
                assert!(self.frames_above(slot, 0).next().is_none(), "a free slot has frames (A1)");
                continue;
            }
            folios += 1;
            queued[self.table.queue(slot) as usize] += 1;
            young += i64::from(self.table.young(slot));
            assert!(slot as usize <= self.sizes.slots(), "slot {slot} is above the limit (B2)");
            for (_, frame) in self.frames_above(slot, 0) {
                assert!((frame as usize) < limit, "frame {frame} is above the limit (A3)");
                assert!(self.frames.lock().is_taken(frame), "frame {frame} is free and owned (A1)");
                assert!(owned.insert(frame), "frame {frame} has two owners (A1)");
            }
        }
        // The last chunk of the allocator may be longer than the arena.
        let all = 0..self.frames.lock().touched().min(self.sizes.max.frames) as Frame;
        owned.extend(all.filter(|&frame| self.words.is_orphan(frame)));
        assert_eq!(self.frames.lock().used(), owned.len(), "a frame has no owner (A1)");
        assert_eq!(self.free_slots.lock().used(), folios, "a slot has no owner (B1)");
        let age = self.age.lock();
        assert_eq!([queued[1], queued[2]], [age.len(SMALL), age.len(MAIN)], "queues (Q1)");
        assert_eq!(queued[0], 0, "a folio is on no queue (Q1)");
        assert_eq!(self.young.load(Ordering::Relaxed), young, "young frames (Q2)");
    }

    /// Moves the bytes of idle frames at or above `limit` to frames below (G1), except those of
    /// folios that another task has locked.
    pub(crate) fn migrate_frames(&self, limit: usize) {
        let ever = self.free_slots.lock().fresh();
        let mut freed = Vec::new();
        for slot in 1..ever as Slot {
            if self.frames_above(slot, limit).next().is_none() || !self.table.try_lock(slot) {
                continue;
            }
            if self.table.key(slot).0 != 0 {
                self.move_frames(slot, limit, &mut freed);
            }
            self.table.unlock(slot);
            if freed.len() >= ROUND {
                self.give_frames(&freed);
                freed.clear();
            }
        }
        self.give_frames(&freed);
    }

    /// The frames of a folio that are at or above `limit`, each with its position in the folio.
    fn frames_above(&self, slot: Slot, limit: usize) -> impl Iterator<Item = (usize, Frame)> {
        let held = move |at| self.table.frame(slot, at).map(|frame| (at, frame));
        let all = (0..self.table.layout().frames).filter_map(held);
        all.filter(move |&(_, frame)| frame as usize >= limit)
    }

    /// Moves the frames at or above `limit` of a folio whose lock is held, if they are idle (G1).
    fn move_frames(&self, slot: Slot, limit: usize, freed: &mut Vec<Frame>) {
        let per = self.table.blocks_per_frame(slot);
        let idle = |&(at, frame): &(usize, Frame)| {
            let blocks = Blocks { start: at as u32 * per, end: (at as u32 + 1) * per };
            self.words.is_idle(frame) && !self.table.any(slot, State::Reading, blocks)
        };
        let moving: Vec<_> = self.frames_above(slot, limit).filter(idle).collect();
        let mut fresh = Vec::with_capacity(moving.len());
        if !self.frames.lock().take_below(moving.len(), &mut fresh) {
            return;
        }
        for (&(at, old), &new) in moving.iter().zip(&fresh) {
            self.arena.copy_between(old, new, 0, FRAME_SIZE);
            let was = self.table.replace_frame(slot, at, Some(new));
            assert_eq!(
                was,
                Some(old),
                "under the folio lock only the holder replaces a frame (G1)"
            );
            freed.push(old);
        }
    }
}
