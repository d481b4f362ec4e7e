//! Frames for whoever needs some: taken, reclaimed, waited for; and given back.

use crate::cache::PageCache;
use crate::folio::guard::FramePool;
use crate::mapping::Mapping;
use crate::memory::arena::Frame;
use forebay_base::sync::atomic::Ordering;

impl PageCache {
    /// Takes `count` frames, reclaiming as needed; `None` when that many cannot be had without
    /// waiting.
    pub fn take_frames(&self, count: usize) -> Option<FramePool<'_>> {
        let mut pool = FramePool { cache: self, frames: Vec::with_capacity(count) };
        // Handed out from the end: reversed, so that neighbours come in ascending order.
        if count == 0 {
            return Some(pool);
        }
        let (taken, free, touched) = {
            let mut alloc = self.frames.lock();
            (alloc.take(count, &mut pool.frames), alloc.free(), alloc.touched())
        };
        if taken {
            self.arena.stay_ahead(touched, &*self.world);
            pool.frames.reverse();
            self.reclaim_ahead(free);
            return Some(pool);
        }
        for _ in 0..4 {
            let freed = self.reclaim(count);
            if self.frames.lock().take(count, &mut pool.frames) {
                pool.frames.reverse();
                return Some(pool);
            }
            if freed == 0 {
                break;
            }
        }
        None
    }

    /// Has all flushers write and flush, whatever their limits, while the result lives: somebody lacks
    /// frames that dirt or unflushed blocks hold.
    pub fn press_for_frames(&self) -> Starved<'_> {
        let starved = Starved::new(self);
        self.dirty.kick_all();
        starved
    }

    /// Takes `count` frames; starts write-out and waits for it if there are none.
    pub async fn wait_frames(&self, mapping: &Mapping, count: usize) -> FramePool<'_> {
        let _starved = Starved::new(self);
        let attempt = || {
            let got = self.take_frames(count);
            if got.is_none() {
                mapping.domain.kick();
                self.dirty.kick_all();
            }
            got
        };
        self.frame_wait.wait_until(attempt).await
    }

    /// Waits until there is a folio descriptor to be had; starts write-out.
    pub async fn wait_slot(&self, mapping: &Mapping) {
        let _starved = Starved::new(self);
        let attempt = || {
            let Some(slot) = self.take_slot() else {
                mapping.domain.kick();
                self.dirty.kick_all();
                return None;
            };
            self.free_slots.lock().push(slot);
            Some(())
        };
        self.frame_wait.wait_until(attempt).await;
    }

    /// Whether somebody waits for frames: flushers then write and flush below their limits too,
    /// because what is dirty or not flushed cannot be reclaimed.
    pub(crate) fn is_starved(&self) -> bool {
        self.starved.load(Ordering::SeqCst) > 0
    }

    pub(crate) fn give_frames(&self, freed: &[Frame]) {
        if freed.is_empty() {
            return;
        }
        {
            let mut alloc = self.frames.lock();
            freed.iter().for_each(|&f| alloc.give(f));
        }
        self.frame_wait.wake_all();
    }

    /// A frame loses its owner; see [`crate::Config::poison_frames`].
    #[inline]
    pub(crate) fn disown(&self, frame: Frame, id: u32) {
        if self.config.poison_frames {
            self.arena.fill(frame, 0x80 | id as u8);
        }
    }

    pub(crate) fn capture_frame(&self, frame: Frame) {
        self.captured[frame as usize].fetch_add(1, Ordering::AcqRel);
    }

    /// A write-out lets go of a frame; true if it was the last. Folio lock held.
    pub(crate) fn release_frame(&self, frame: Frame) -> bool {
        let was = self.captured[frame as usize].fetch_sub(1, Ordering::AcqRel);
        assert!(was > 0, "frame {frame} was not captured");
        was == 1
    }

    /// Something that blocks reclaim has ended: a write-out, a fill, a flush.
    pub fn wake_frame_waiters(&self) {
        self.frame_wait.wake_all();
    }
}

/// Counts a task that waits for frames while it lives.
pub struct Starved<'a>(&'a PageCache);

impl<'a> Starved<'a> {
    fn new(cache: &'a PageCache) -> Self {
        cache.starved.fetch_add(1, Ordering::SeqCst);
        Self(cache)
    }
}

impl Drop for Starved<'_> {
    fn drop(&mut self) {
        self.0.starved.fetch_sub(1, Ordering::SeqCst);
    }
}
