//! Frames for callers that need some: taken, reclaimed, waited for; and given back.

use crate::cache::PageCache;
use crate::folio::guard::FramePool;
use crate::mapping::Mapping;
use crate::memory::arena::Frame;
use forebay_base::sync::atomic::Ordering;
use forebay_base::task::Pick;

impl PageCache {
    /// Takes `count` frames, reclaiming as needed; `None` when that many cannot be had without
    /// waiting.
    pub fn take_frames(&self, count: usize) -> Option<FramePool<'_>> {
        let mut pool = FramePool { cache: self, frames: Vec::with_capacity(count) };
        // The pool hands frames out from its end. So it is reversed: neighbours come in ascending
        // order.
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

    /// While the result lives all flushers write and flush, whatever their limits: a caller lacks
    /// frames that dirty or unflushed blocks hold.
    pub fn press_for_frames(&self) -> Starved<'_> {
        let starved = Starved::new(self);
        self.dirty.wake_all_flushers();
        starved
    }

    /// Takes `count` frames; starts write-out and waits for it if there are none.
    pub async fn wait_frames(&self, mapping: &Mapping, count: usize) -> FramePool<'_> {
        let _starved = Starved::new(self);
        let attempt = || {
            let got = self.take_frames(count);
            if got.is_none() {
                mapping.domain.wake_flusher();
                self.dirty.wake_all_flushers();
            }
            got
        };
        self.frame_wait.wait_for(count, attempt).await
    }

    /// Waits until a folio descriptor can be had; starts write-out if there is none.
    pub async fn wait_slot(&self, mapping: &Mapping) {
        let _starved = Starved::new(self);
        let attempt = || {
            let Some(slot) = self.take_slot() else {
                mapping.domain.wake_flusher();
                self.dirty.wake_all_flushers();
                return None;
            };
            self.free_slots.lock().push(slot);
            Some(())
        };
        self.frame_wait.wait_for(0, attempt).await;
    }

    /// Whether a caller waits for frames. Flushers then write and flush below their limits too,
    /// because dirty and unflushed blocks cannot be reclaimed.
    pub(crate) fn is_starved(&self) -> bool {
        self.starved.load(Ordering::SeqCst) > 0
    }

    pub(crate) fn give_frames(&self, freed: &[Frame]) {
        if !freed.is_empty() {
            let free = self.put_frames(freed);
            self.wake_for_free(free);
        }
    }

    /// Gives frames back and wakes no waiter: the caller calls [`Self::wake_for_frames`] once it
    /// holds no folio lock. Returns how many are free.
    pub(crate) fn put_frames(&self, freed: &[Frame]) -> usize {
        let mut alloc = self.frames.lock();
        freed.iter().for_each(|&f| alloc.give(f));
        alloc.free()
    }

    /// Wakes the waiters that the free frames serve.
    pub(crate) fn wake_for_frames(&self) {
        let free = self.frames.lock().free();
        self.wake_for_free(free);
    }

    fn wake_for_free(&self, mut free: usize) {
        // The oldest waiter is always woken: it reclaims any further frames itself. The others are
        // woken if there are enough frames for them.
        let mut is_oldest = true;
        self.frame_wait.wake_matching(|&wanted| {
            let served = wanted <= free;
            free -= if served { wanted } else { 0 };
            if std::mem::take(&mut is_oldest) || served { Pick::Wake } else { Pick::Skip }
        });
    }

    /// A frame loses its owner: fills it with a pattern, if [`crate::Config::poison_frames`] is
    /// set.
    #[inline]
    pub(crate) fn disown(&self, frame: Frame, id: u32) {
        if self.config.poison_frames {
            self.arena.fill(frame, 0x80 | id as u8);
        }
    }

    /// Wakes all waiters for frames: something that blocks reclaim has ended, such as a write-out,
    /// a fill or a flush.
    pub fn wake_frame_waiters(&self) {
        self.frame_wait.wake_all();
    }
}

/// While it lives, one more task counts as waiting for frames, and flushers write and flush.
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

#[cfg(all(test, not(shuttle)))]
mod tests {
    use crate::config::Config;
    use crate::{FRAME_SIZE, PageCache};
    use forebay_base::world::RealWorld;
    use std::future::Future;
    use std::pin::pin;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::{Context, Poll, Wake};

    #[derive(Default)]
    struct Woken(AtomicUsize);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The story: a request returned frames that it had taken and not needed, and no waiter was
    /// woken. Only write-out and eviction woke waiters. So a waiter slept while frames were free,
    /// on an idle cache for ever.
    #[test]
    fn frames_returned_unused_wake_waiter() {
        let config = Config { huge_pages: false, ..Config::with_budget(1 << 20) };
        let cache = PageCache::new(config, RealWorld::with_seed(1)).unwrap();
        let mapping = cache.new_mapping(4096, 1 << 20);
        let all = cache.stats().frames_total as usize;
        let held = cache.take_frames(all).unwrap();
        let woken = Arc::new(Woken::default());
        let waker = woken.clone().into();
        let mut waiter = pin!(cache.wait_frames(&mapping, 3));
        assert!(waiter.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        assert!(cache.is_starved());
        drop(held);
        assert!(woken.0.load(Ordering::Relaxed) > 0, "it sleeps while frames are free");
        let Poll::Ready(pool) = waiter.as_mut().poll(&mut Context::from_waker(&waker)) else {
            panic!("{} frames are free", cache.stats().frames_free);
        };
        assert_eq!(pool.len(), 3);
        drop(pool);
        assert_eq!(cache.stats().frames_free as usize, all);
    }

    /// The story: each frame given back woke all waiters. Of a hundred, each took the allocator's
    /// lock and a round of reclaim, and 99 waited again.
    #[test]
    fn frame_freed_wakes_only_waiters_it_serves() {
        let config = Config { huge_pages: false, ..Config::with_budget(1 << 20) };
        let cache = PageCache::new(config, RealWorld::with_seed(1)).unwrap();
        let mapping = cache.new_mapping(4096, 1 << 20);
        let mut held = cache.take_frames(cache.stats().frames_total as usize).unwrap();
        let woken = Arc::new(Woken::default());
        let waker = woken.clone().into();
        let mut cx = Context::from_waker(&waker);
        // The oldest wants more frames than there are, the others one each.
        let wanted = |i| if i == 0 { 50 } else { 1 };
        let mut waiting: Vec<_> =
            (0..100).map(|i| Box::pin(cache.wait_frames(&mapping, wanted(i)))).collect();
        assert!(waiting.iter_mut().all(|w| w.as_mut().poll(&mut cx).is_pending()));
        let two = held.frames.split_off(held.frames.len() - 2);
        drop(crate::FramePool { cache: &cache, frames: two });
        assert_eq!(woken.0.load(Ordering::Relaxed), 3, "the oldest, and two for two frames");
        assert!(waiting[0].as_mut().poll(&mut cx).is_pending());
        let mut second = waiting.remove(1);
        let Poll::Ready(first) = second.as_mut().poll(&mut cx) else { panic!("it is served") };
        // The third is dropped without checking, and passes its wake on.
        drop(waiting.remove(1));
        let ready = waiting.iter_mut().position(|w| w.as_mut().poll(&mut cx).is_ready());
        assert_eq!(ready, Some(1));
        drop((first, held));
    }

    /// Waiting for a folio descriptor only reports that one is free; the caller then takes it. If
    /// the wait kept it, each wait would cost the cache a folio for ever.
    #[test]
    fn waiting_for_a_descriptor_takes_none() {
        let config = Config { huge_pages: false, ..Config::with_budget(1 << 20) };
        let cache = PageCache::new(config, RealWorld::with_seed(1)).unwrap();
        let mapping = cache.new_mapping(4096, FRAME_SIZE as u64);
        let mut taken = Vec::new();
        taken.extend(std::iter::from_fn(|| cache.take_slot()));
        let all = taken.len();
        cache.give_slots(taken.drain(..));
        for _ in 0..3 {
            forebay_base::task::block_on(cache.wait_slot(&mapping));
        }
        taken.extend(std::iter::from_fn(|| cache.take_slot()));
        assert_eq!(taken.len(), all);
        cache.give_slots(taken.into_iter());
    }
}
