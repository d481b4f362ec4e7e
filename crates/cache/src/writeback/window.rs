//! The flushes by which a flusher keeps the window of written but unflushed blocks open: of some files at a
//! time, beside which write-out goes on.
//!
//! Invariants: W5 files with little to flush are flushed together, one with much alone. W6 a flush that is
//! under way is polled when it was woken, and once when it begins: write-out beside it is polled much more
//! often, and would poll all of them each time.
//! Locks: the queue's, to take files off it; that of who is told of a wake, a leaf.

use crate::cache::PageCache;
use crate::writeback::domain::{Domain, Held};
use forebay_base::sync::Mutex;
use forebay_base::sync::atomic::{AtomicBool, Ordering};
use forebay_base::task::FutureSlot;
use std::future::Future;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Wake, Waker};

/// Files that are flushed together, at most: where they share a device, or the log of a volume, the first
/// one's flush is all of theirs.
const TOGETHER: usize = 64;

/// Who waits for any of the flushes.
#[derive(Default)]
struct Home {
    rung: AtomicBool,
    waiter: Mutex<Option<Waker>>,
}

impl Home {
    /// Whoever polls now is told of later wakes. Whether there was one since the last time; forgets it.
    fn hears(&self, waker: &Waker) -> bool {
        let mut waiter = self.waiter.lock();
        let known = waiter.as_ref().is_some_and(|known| known.will_wake(waker));
        let old = if known { None } else { waiter.replace(waker.clone()) };
        // A waker may be the last that holds its task.
        drop(waiter);
        drop(old);
        self.rung.swap(false, Ordering::AcqRel)
    }

    /// Nobody waits any more.
    fn leave(&self) {
        let waiter = self.waiter.lock().take();
        drop(waiter);
    }
}

/// Says that a flush may go on (W6).
struct Bell {
    rung: AtomicBool,
    home: std::sync::Arc<Home>,
}

impl Wake for Bell {
    fn wake(self: std::sync::Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &std::sync::Arc<Self>) {
        // In this order: who finds the second looks for the first. The second is an exchange, so that who
        // finds another bell's finds this one's, too.
        self.rung.store(true, Ordering::Release);
        self.home.rung.swap(true, Ordering::AcqRel);
        let waiter = self.home.waiter.lock().take();
        if let Some(waiter) = waiter {
            waiter.wake();
        }
    }
}

/// Room for a flush, and its bell.
struct Slot {
    flush: FutureSlot<()>,
    bell: std::sync::Arc<Bell>,
    /// Of the bell.
    waker: Waker,
}

impl Slot {
    fn new(home: &std::sync::Arc<Home>) -> Self {
        let bell = Bell { rung: AtomicBool::new(false), home: home.clone() };
        let bell = std::sync::Arc::new(bell);
        let waker = Waker::from(bell.clone());
        Self { flush: FutureSlot::default(), bell, waker }
    }

    /// Whether the flush has ended. It is polled only if it was woken.
    fn ended(&mut self) -> bool {
        let woken = self.bell.rung.swap(false, Ordering::AcqRel);
        woken && Pin::new(&mut self.flush).poll(&mut Context::from_waker(&self.waker)).is_ready()
    }
}

/// Flushes of some files that write-out goes on beside.
#[derive(Default)]
pub(super) struct Flush<'a> {
    /// Those that run: the flush, which goes, with its hold on the file, when it ends; and what says that the
    /// file is in hand.
    under_way: Vec<(Slot, Held<'a>)>,
    /// To be used again.
    spare: Vec<Slot>,
    home: std::sync::Arc<Home>,
    /// Most of the window is other domains', which may have nothing more to write.
    others: bool,
}

impl<'a> Flush<'a> {
    /// Goes on with what runs and was woken (W6).
    fn poll(&mut self, cx: &mut Context<'_>) {
        if self.under_way.is_empty() || !self.home.hears(cx.waker()) {
            return;
        }
        let ended = |(slot, _): &mut (Slot, Held<'a>)| slot.ended();
        for (slot, held) in self.under_way.extract_if(.., ended) {
            drop(held);
            self.spare.push(slot);
        }
        if self.under_way.is_empty() {
            self.home.leave();
        }
    }

    /// A file in hand is flushed from now on.
    pub fn add(&mut self, held: Held<'a>, begin: impl FnOnce(&mut FutureSlot<()>)) {
        let mut slot = self.spare.pop().unwrap_or_else(|| Slot::new(&self.home));
        begin(&mut slot.flush);
        // The first poll (W6).
        slot.bell.rung.store(true, Ordering::Release);
        self.home.rung.swap(true, Ordering::AcqRel);
        self.under_way.push((slot, held));
    }

    /// How many are under way.
    #[cfg(all(test, not(shuttle)))]
    pub fn len(&self) -> usize {
        self.under_way.len()
    }

    /// Carries out `work`, and the flushes while that waits.
    pub async fn beside<T>(&mut self, work: impl Future<Output = T>) -> T {
        let mut work = pin!(work);
        std::future::poll_fn(|cx| {
            self.poll(cx);
            work.as_mut().poll(cx)
        })
        .await
    }

    /// Starts to flush when the window of written but unflushed blocks is half full, some files at a time,
    /// and waits for it before the window is full: what does not fit could not be written again if a flush
    /// failed (W5).
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

    /// Starts the flushes of files that have about so many bytes to flush. False: there are none.
    fn start(&mut self, domain: &'a Domain, wanted: u64) -> bool {
        let mut bytes = 0;
        while bytes < wanted && self.under_way.len() < TOGETHER {
            let next = domain.queue().next_flush();
            let Some((hand, out, more)) = next else { break };
            self.add(domain.hold(hand), |slot| out.flush(slot));
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
            cache.dirty.kick_all();
        }
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::writeback::dirt::Dirt;
    use crate::writeback::pass::{WriteOut, WriteOutPass};
    use forebay_base::sim_world::SimWorld;
    use forebay_base::sync::Arc;
    use forebay_base::sync::atomic::{AtomicUsize, Ordering};
    use forebay_base::task::{WaitQueue, yield_now};

    /// A file that has so much to flush, and who counts flushes: under way, and the most at a time.
    struct Owes {
        domain: Arc<Domain>,
        dirt: Arc<Dirt>,
        bytes: u64,
        flushes: std::sync::Arc<[AtomicUsize; 2]>,
    }

    impl WriteOut for Owes {
        fn write_out(self: std::sync::Arc<Self>, _: WriteOutPass, slot: &mut FutureSlot<u64>) {
            slot.put(async { 0 });
        }

        fn flush(self: std::sync::Arc<Self>, slot: &mut FutureSlot<()>) {
            slot.put(async move {
                let now = self.flushes[0].fetch_add(1, Ordering::SeqCst) + 1;
                self.flushes[1].fetch_max(now, Ordering::SeqCst);
                yield_now().await;
                self.domain.sub_unflushed(&self.dirt, self.bytes);
                self.flushes[0].fetch_sub(1, Ordering::SeqCst);
            });
        }

        fn is_settled(&self) -> bool {
            true
        }
    }

    /// The window was half full of small files, and each had a flush of its own, one behind the other: of a
    /// volume each was a commit of all that other files had written meanwhile. A file with much goes alone.
    #[test]
    fn w5_flushes_of_many_small_files_go_together() {
        let world = SimWorld::new(1);
        let config = Config { huge_pages: false, ..Config::with_budget(16 << 20) };
        let cache = PageCache::new(config, world.clone()).unwrap();
        let window = cache.unflushed_window();
        for (bytes, together) in [(4096, TOGETHER), (window / 8, 1)] {
            let domain = cache.dirty.domain(None);
            let flushes = std::sync::Arc::new([AtomicUsize::new(0), AtomicUsize::new(0)]);
            let files: Vec<_> = (1..=(window / 8 * 5 / bytes) as u32)
                .map(|id| {
                    let dirt: Arc<Dirt> = Arc::default();
                    let (domain, flushes) = (domain.clone(), flushes.clone());
                    let file = Owes { domain, dirt: dirt.clone(), bytes, flushes };
                    let file = std::sync::Arc::new(file);
                    let weak = std::sync::Arc::downgrade(&file);
                    file.domain.join(id, dirt, weak);
                    file.domain.keep_unflushed(id, &file.dirt, bytes, window);
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
                let left = file.dirt.unflushed.load(Ordering::SeqCst);
                domain.sub_unflushed(&file.dirt, left.max(0) as u64);
            });
        }
    }

    /// The story: while the flushes of 64 small files waited for the device, each step of the write-out
    /// beside them polled all of them: half of what the flusher did was that.
    #[test]
    fn w6_a_flush_is_polled_when_it_was_woken() {
        let world = SimWorld::new(1);
        let config = Config { huge_pages: false, ..Config::with_budget(16 << 20) };
        let cache = PageCache::new(config, world.clone()).unwrap();
        let domain = cache.dirty.domain(None);
        let wait = std::sync::Arc::new(WaitQueue::new());
        let [over, polls] = [(); 2].map(|()| std::sync::Arc::new(AtomicUsize::new(0)));
        let mut flush = Flush::default();
        for id in 1..=4 {
            let bytes = 4096;
            let (flushes, dirt) = Default::default();
            let file = std::sync::Arc::new(Owes { domain: domain.clone(), dirt, bytes, flushes });
            let weak = std::sync::Arc::downgrade(&file);
            domain.join(id, file.dirt.clone(), weak);
            domain.queue().look_by(id, 0);
            let hand = domain.queue().due(1, 1 << 40).expect("it asked").hand;
            let (wait, over, polls) = (wait.clone(), over.clone(), polls.clone());
            let waits = async move {
                let is_over = || {
                    polls.fetch_add(1, Ordering::SeqCst);
                    (over.load(Ordering::SeqCst) == 1).then_some(())
                };
                wait.wait_until(is_over).await;
            };
            flush.add(domain.hold(hand), |slot| slot.put(waits));
        }
        let steps = async || {
            for _ in 0..100 {
                yield_now().await;
            }
        };
        world.run(flush.beside(steps()));
        let first = polls.swap(0, Ordering::SeqCst);
        assert!(flush.len() == 4 && first <= 8, "W6: {first} looks of four flushes");
        over.store(1, Ordering::SeqCst);
        wait.wake_all();
        world.run(flush.beside(steps()));
        assert!(flush.len() == 0, "W6: none was forgotten");
        assert!(polls.load(Ordering::SeqCst) <= 8);
    }
}
