//! The flushes by which a flusher keeps space in the window of written but unflushed blocks:
//! several files at a time, one flush for each. Write-out continues meanwhile, until the window is
//! three quarters full.
//!
//! Invariants: W5 files with little to flush are flushed together, one with much alone. W6 a flush
//! in progress is polled when it was woken, and once when it begins: the concurrent write-out is
//! polled much more often, and would poll all flushes each time.
//!
//! Locks: the queue's, to take files off it and to list them again; that of the waiter, a leaf.

use crate::cache::PageCache;
use crate::dirty::domain::{Domain, Held};
use forebay_base::sync::Mutex;
use forebay_base::sync::atomic::{AtomicBool, Ordering};
use forebay_base::task::FutureSlot;
use forebay_base::world::Nanos;
use std::future::Future;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Wake, Waker};

/// Most files that are flushed together. Where they share a device, or the log of a volume, the
/// flush of the first covers all.
const TOGETHER: usize = 64;

/// Wakes the one task that polls the flushes, when any of them is woken.
#[derive(Default)]
struct FlushWaiter {
    woken: AtomicBool,
    waiter: Mutex<Option<Waker>>,
}

impl FlushWaiter {
    /// Registers `waker` for later wakes. Returns whether there was a wake since the last call, and
    /// resets that.
    fn take_wake(&self, waker: &Waker) -> bool {
        let mut waiter = self.waiter.lock();
        let known = waiter.as_ref().is_some_and(|known| known.will_wake(waker));
        let old = if known { None } else { waiter.replace(waker.clone()) };
        // Not under the lock: the waker may be the last reference to its task.
        drop(waiter);
        drop(old);
        self.woken.swap(false, Ordering::AcqRel)
    }

    /// Drops the waker: the flushes have ended.
    fn leave(&self) {
        let waiter = self.waiter.lock().take();
        drop(waiter);
    }
}

/// Wakes a flush, which is polled next (W6).
struct FlushWaker {
    woken: AtomicBool,
    flush_waiter: std::sync::Arc<FlushWaiter>,
}

impl Wake for FlushWaker {
    fn wake(self: std::sync::Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &std::sync::Arc<Self>) {
        // In this order: a task that sees the shared flag then checks the flag of each flush. The
        // shared one is set by an exchange, so that a task that sees it set by another waker sees
        // this flush's flag, too.
        self.woken.store(true, Ordering::Release);
        self.flush_waiter.woken.swap(true, Ordering::AcqRel);
        let waiter = self.flush_waiter.waiter.lock().take();
        if let Some(waiter) = waiter {
            waiter.wake();
        }
    }
}

/// Memory for a flush, and its waker.
struct Slot {
    flush: FutureSlot<()>,
    flush_waker: std::sync::Arc<FlushWaker>,
    /// The waker made of `flush_waker`.
    waker: Waker,
}

impl Slot {
    fn new(flush_waiter: &std::sync::Arc<FlushWaiter>) -> Self {
        let flush_waker =
            FlushWaker { woken: AtomicBool::new(false), flush_waiter: flush_waiter.clone() };
        let flush_waker = std::sync::Arc::new(flush_waker);
        let waker = Waker::from(flush_waker.clone());
        Self { flush: FutureSlot::default(), flush_waker, waker }
    }

    /// Whether the flush has ended. It is polled only if it was woken.
    fn ended(&mut self) -> bool {
        let woken = self.flush_waker.woken.swap(false, Ordering::AcqRel);
        woken && Pin::new(&mut self.flush).poll(&mut Context::from_waker(&self.waker)).is_ready()
    }
}

/// The flushes in progress, concurrent with write-out.
#[derive(Default)]
pub(super) struct Flush<'a> {
    /// The flushes that run, each with the guard that marks its file as checked out. Both are
    /// dropped when the flush ends.
    under_way: Vec<(Slot, Held<'a>)>,
    /// Kept for reuse.
    spare: Vec<Slot>,
    flush_waiter: std::sync::Arc<FlushWaiter>,
    /// Other domains use most of the window: their flushers are woken when these flushes end.
    others: bool,
}

impl<'a> Flush<'a> {
    /// Continues the flushes that were woken (W6).
    fn poll(&mut self, cx: &mut Context<'_>) {
        if self.under_way.is_empty() || !self.flush_waiter.take_wake(cx.waker()) {
            return;
        }
        let ended = |(slot, _): &mut (Slot, Held<'a>)| slot.ended();
        for (slot, held) in self.under_way.extract_if(.., ended) {
            drop(held);
            self.spare.push(slot);
        }
        if self.under_way.is_empty() {
            self.flush_waiter.leave();
        }
    }

    /// Starts the flush of a file that is checked out.
    pub fn add(&mut self, held: Held<'a>, begin: impl FnOnce(&mut FutureSlot<()>)) {
        let mut slot = self.spare.pop().unwrap_or_else(|| Slot::new(&self.flush_waiter));
        begin(&mut slot.flush);
        // The first poll (W6).
        slot.flush_waker.woken.store(true, Ordering::Release);
        self.flush_waiter.woken.swap(true, Ordering::AcqRel);
        self.under_way.push((slot, held));
    }

    /// How many flushes are in progress.
    #[cfg(all(test, not(shuttle)))]
    pub fn len(&self) -> usize {
        self.under_way.len()
    }

    /// Runs `work` to its end, and the flushes concurrently.
    pub async fn run_concurrently<T>(&mut self, work: impl Future<Output = T>) -> T {
        let mut work = pin!(work);
        std::future::poll_fn(|cx| {
            self.poll(cx);
            work.as_mut().poll(cx)
        })
        .await
    }

    /// Starts to flush when the window of written but unflushed blocks is half full, some files at
    /// a time (W5), and waits for the flushes when it is three quarters full. Blocks beyond the
    /// window are not kept, so they could not be written again if a flush failed.
    pub async fn keep_window_open(&mut self, cache: &PageCache, domain: &'a Domain) {
        let window = cache.unflushed_window();
        loop {
            let (all, own) = (cache.dirty.unflushed_bytes(), domain.unflushed_bytes());
            let press = all > window / 4 * 3 || cache.is_starved();
            if !self.under_way.is_empty() {
                if !press {
                    return;
                }
                self.end(cache).await;
                continue;
            }
            if own == 0 || (all <= window / 2 && !cache.is_starved()) {
                return;
            }
            if !self.start(domain, window / 8) {
                return;
            }
            self.others |= own < all / 2;
        }
    }

    /// Starts the flushes of files that together have at least `wanted` bytes to flush, but of at
    /// most [`TOGETHER`] files. False: there are none.
    fn start(&mut self, domain: &'a Domain, wanted: u64) -> bool {
        let mut bytes = 0;
        while bytes < wanted && self.under_way.len() < TOGETHER {
            let next = domain.queue().next_flush();
            let Some((checked_out, out, more)) = next else { break };
            self.add(domain.hold(checked_out), |slot| out.flush(slot));
            bytes += more;
        }
        !self.under_way.is_empty()
    }

    /// Waits for the flushes that are under way.
    pub async fn end(&mut self, cache: &PageCache) {
        std::future::poll_fn(|cx| {
            self.poll(cx);
            if self.under_way.is_empty() { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
        if std::mem::take(&mut self.others) {
            cache.dirty.wake_all_flushers();
        }
    }
}

impl Domain {
    /// A flush was refused: it failed and lost nothing. True for the first one since one worked.
    pub fn note_refused(&self) -> bool {
        !self.is_refused.swap(true, Ordering::SeqCst)
    }

    /// A flush worked: refused ones are tried again at once.
    pub fn note_flushed(&self) {
        if !self.is_refused.load(Ordering::Relaxed) {
            return;
        }
        let is_late = {
            let mut queue = self.queue();
            self.is_refused.store(false, Ordering::SeqCst);
            queue.end_refusals();
            self.looks_too_late(&queue)
        };
        self.wake_flusher_if(is_late);
    }

    /// The flush of file `id` was refused. If the window still needs space after a pause, the
    /// flusher flushes the file again.
    pub fn flush_later(&self, id: u32, now: Nanos) {
        let is_late = {
            let mut queue = self.queue();
            queue.flush_later(id, now);
            // Set again under the lock: the flush of another file may have worked since the
            // refusal. Without it no later success would end this pause.
            self.is_refused.store(true, Ordering::SeqCst);
            self.looks_too_late(&queue)
        };
        self.wake_flusher_if(is_late);
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::dirty::dirty_folios::DirtyFolios;
    use crate::dirty::pass::{WriteOut, WriteOutPass};
    use crate::mapping::Mapping;
    use forebay_base::sim_world::SimWorld;
    use forebay_base::sync::Arc;
    use forebay_base::sync::atomic::{AtomicUsize, Ordering};
    use forebay_base::task::{WaitQueue, yield_now};
    use forebay_base::world::World;
    use std::time::Duration;

    /// A file with `bytes` to flush. Counts flushes: those in progress, and the most at a time.
    struct UnflushedFile {
        domain: Arc<Domain>,
        dirty_folios: Arc<DirtyFolios>,
        bytes: u64,
        flushes: std::sync::Arc<[AtomicUsize; 2]>,
    }

    impl WriteOut for UnflushedFile {
        fn write_out(self: std::sync::Arc<Self>, _: WriteOutPass, slot: &mut FutureSlot<u64>) {
            slot.put(async { 0 });
        }

        fn flush(self: std::sync::Arc<Self>, slot: &mut FutureSlot<()>) {
            slot.put(async move {
                let now = self.flushes[0].fetch_add(1, Ordering::SeqCst) + 1;
                self.flushes[1].fetch_max(now, Ordering::SeqCst);
                yield_now().await;
                self.domain.sub_unflushed(&self.dirty_folios, self.bytes);
                self.flushes[0].fetch_sub(1, Ordering::SeqCst);
            });
        }

        fn is_settled(&self) -> bool {
            true
        }
    }

    /// The story: small files filled half of the window, and each had a flush of its own, one after
    /// the other. On a volume each committed all that other files had written meanwhile. A file
    /// with much is flushed alone.
    #[test]
    fn w5_small_files_are_flushed_together() {
        let world = SimWorld::new(1);
        let config = Config { huge_pages: false, ..Config::with_budget(16 << 20) };
        let cache = PageCache::new(config, world.clone()).unwrap();
        let window = cache.unflushed_window();
        for (bytes, together) in [(4096, TOGETHER), (window / 8, 1)] {
            let domain = cache.dirty.domain(None);
            let flushes = std::sync::Arc::new([AtomicUsize::new(0), AtomicUsize::new(0)]);
            let files: Vec<_> = (1..=(window / 8 * 5 / bytes) as u32)
                .map(|id| {
                    let dirty_folios: Arc<DirtyFolios> = Arc::default();
                    let (domain, flushes) = (domain.clone(), flushes.clone());
                    let file = UnflushedFile {
                        domain,
                        dirty_folios: dirty_folios.clone(),
                        bytes,
                        flushes,
                    };
                    let file = std::sync::Arc::new(file);
                    let weak = std::sync::Arc::downgrade(&file);
                    file.domain.join(id, dirty_folios, weak);
                    file.domain.keep_unflushed(id, &file.dirty_folios, bytes, window);
                    file
                })
                .collect();
            let mut flush = Flush::default();
            world.run(async {
                while cache.dirty.unflushed_bytes() > window / 2 {
                    flush.keep_window_open(&cache, &domain).await;
                    flush.end(&cache).await;
                }
            });
            assert_eq!(flushes[1].load(Ordering::SeqCst), together, "{bytes} bytes each");
            files.iter().for_each(|file| {
                let left = file.dirty_folios.unflushed.load(Ordering::SeqCst);
                domain.sub_unflushed(&file.dirty_folios, left.max(0) as u64);
            });
        }
    }

    /// A file whose flushes are refused, as by a full host, until `works` is set.
    struct Refused {
        cache: Arc<PageCache>,
        mapping: Arc<Mapping>,
        works: AtomicBool,
        tries: AtomicUsize,
        /// The flush of a second file works between each refusal and its listing for another one.
        other_works: AtomicBool,
    }

    impl WriteOut for Refused {
        fn write_out(self: std::sync::Arc<Self>, _: WriteOutPass, slot: &mut FutureSlot<u64>) {
            slot.put(async { 0 });
        }

        fn flush(self: std::sync::Arc<Self>, slot: &mut FutureSlot<()>) {
            slot.put(async move {
                let tries = self.tries.fetch_add(1, Ordering::SeqCst);
                assert!(tries < 1000, "Q-e: the flusher spins");
                let (domain, dirty) = (&self.mapping.domain, &self.mapping.dirty);
                if self.works.load(Ordering::SeqCst) {
                    let all = dirty.unflushed.load(Ordering::SeqCst);
                    domain.sub_unflushed(dirty, all.max(0) as u64);
                    domain.note_flushed();
                } else {
                    assert_eq!(domain.note_refused(), tries == 0, "it is reported once");
                    if self.other_works.load(Ordering::SeqCst) {
                        domain.note_flushed();
                    }
                    domain.flush_later(self.mapping.id, self.cache.world.now());
                }
            });
        }

        fn is_settled(&self) -> bool {
            true
        }
    }

    /// A [`Refused`] file with a cache of its own, joined to its domain.
    fn refused() -> (std::sync::Arc<SimWorld>, std::sync::Arc<Refused>) {
        let world = SimWorld::new(1);
        let config = Config { huge_pages: false, ..Config::with_budget(16 << 20) };
        let cache = PageCache::new(config, world.clone()).unwrap();
        let mapping = Arc::new(cache.new_mapping(4096, 1 << 20));
        let (works, tries, other_works) = Default::default();
        let file = std::sync::Arc::new(Refused { cache, mapping, works, tries, other_works });
        let weak = std::sync::Arc::downgrade(&file);
        file.cache.join(&file.mapping, weak);
        (world, file)
    }

    /// Blocks whose flush was refused stay in the window. No writer keeps more of the file, so no
    /// task lists it for a flush: callers that wait for frames would wait for ever.
    #[test]
    fn refused_flush_is_tried_again_after_pause() {
        let (world, file) = refused();
        let (cache, domain) = (&file.cache, &file.mapping.domain);
        let window = cache.unflushed_window();
        domain.keep_unflushed(file.mapping.id, &file.mapping.dirty, window / 4 * 3, window);
        domain.wake_flusher();
        // 50 ms, 100, 200, 400, 800, then a second each.
        world.run(world.sleep(Duration::from_secs(60)));
        let tries = file.tries.load(Ordering::SeqCst);
        assert!((60..70).contains(&tries), "{tries} flushes in a minute");
        file.works.store(true, Ordering::SeqCst);
        world.run(world.sleep(Duration::from_secs(1)));
        assert_eq!(cache.dirty.unflushed_bytes(), 0, "the window is open");
        // The pause begins anew: 50 ms, 100, 200, 400.
        file.works.store(false, Ordering::SeqCst);
        file.tries.store(0, Ordering::SeqCst);
        domain.keep_unflushed(file.mapping.id, &file.mapping.dirty, window / 4 * 3, window);
        domain.wake_flusher();
        world.run(world.sleep(Duration::from_secs(1)));
        assert_eq!(file.tries.swap(0, Ordering::SeqCst), 5);
        // A flush of another file works: this one is not delayed.
        file.works.store(true, Ordering::SeqCst);
        domain.note_flushed();
        world.run(world.sleep(Duration::from_millis(1)));
        assert_eq!(cache.dirty.unflushed_bytes(), 0, "it was tried at once");
        domain.leave(file.mapping.id);
        world.run(async {});
    }

    /// The story: a flush was refused, and before its file was listed for another one the flush of
    /// a second file worked. Later successes did not end the pause, which was twice as long the
    /// next time.
    #[test]
    fn success_between_refusal_and_listing_leaves_later_one_effective() {
        let (world, file) = refused();
        let (cache, domain) = (&file.cache, &file.mapping.domain);
        let window = cache.unflushed_window();
        domain.keep_unflushed(file.mapping.id, &file.mapping.dirty, window / 4 * 3, window);
        file.other_works.store(true, Ordering::SeqCst);
        domain.wake_flusher();
        world.run(world.sleep(Duration::from_millis(1)));
        assert_eq!(file.tries.load(Ordering::SeqCst), 1, "it was refused");
        file.works.store(true, Ordering::SeqCst);
        domain.note_flushed();
        world.run(world.sleep(Duration::from_millis(1)));
        assert_eq!(cache.dirty.unflushed_bytes(), 0, "it was tried at once");
        domain.leave(file.mapping.id);
        world.run(async {});
    }

    /// The story: while the flushes of 64 small files waited for the device, each step of the
    /// concurrent write-out polled all of them, which was half of the flusher's work.
    #[test]
    fn w6_flush_is_polled_only_when_woken() {
        let world = SimWorld::new(1);
        let config = Config { huge_pages: false, ..Config::with_budget(16 << 20) };
        let cache = PageCache::new(config, world.clone()).unwrap();
        let domain = cache.dirty.domain(None);
        let wait = std::sync::Arc::new(WaitQueue::new());
        let [over, polls] = [(); 2].map(|()| std::sync::Arc::new(AtomicUsize::new(0)));
        let mut flush = Flush::default();
        for id in 1..=4 {
            let bytes = 4096;
            let (flushes, dirty_folios) = Default::default();
            let file = std::sync::Arc::new(UnflushedFile {
                domain: domain.clone(),
                dirty_folios,
                bytes,
                flushes,
            });
            let weak = std::sync::Arc::downgrade(&file);
            domain.join(id, file.dirty_folios.clone(), weak);
            domain.queue().look_by(id, 0);
            let checked_out = domain.queue().due(1, 1 << 40).expect("it asked").checked_out;
            let (wait, over, polls) = (wait.clone(), over.clone(), polls.clone());
            let waits = async move {
                let is_over = || {
                    polls.fetch_add(1, Ordering::SeqCst);
                    (over.load(Ordering::SeqCst) == 1).then_some(())
                };
                wait.wait_until(is_over).await;
            };
            flush.add(domain.hold(checked_out), |slot| slot.put(waits));
        }
        let steps = async || {
            for _ in 0..100 {
                yield_now().await;
            }
        };
        world.run(flush.run_concurrently(steps()));
        let first = polls.swap(0, Ordering::SeqCst);
        assert!(flush.len() == 4 && first <= 8, "W6: {first} looks of four flushes");
        over.store(1, Ordering::SeqCst);
        wait.wake_all();
        world.run(flush.run_concurrently(steps()));
        assert!(flush.len() == 0, "W6: none was forgotten");
        assert!(polls.load(Ordering::SeqCst) <= 8);
    }
}
