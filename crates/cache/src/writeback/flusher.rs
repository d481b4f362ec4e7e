//! The flusher of a domain: one task. It writes out blocks that are old, above the limits, or
//! needed by a caller that waits for frames; retries failed blocks; flushes before the window of
//! unflushed blocks is full; and releases closed files once they are durable.
//!
//! Invariants: Z1 it runs while the domain has files, and then for as long as a
//! [`Stay`](crate::dirty::domain::Stay) exists. Z2 apart from its own I/O it waits only for
//! write-out in its own domain, never another one's. Z3 after each visit a file is queued again by
//! its oldest dirty block, or waits, or is clean.

use crate::cache::PageCache;
use crate::dirty::domain::Domain;
use crate::dirty::limits::UNCACHED_AGE;
use crate::dirty::pass::{Which, WriteOut, WriteOutPass};
use crate::dirty::queue::{Look, Outcome, Why};
use crate::mapping::Mapping;
use crate::writeback::window::Flush;
use forebay_base::sync::Arc;
use forebay_base::sync::atomic::Ordering;
use forebay_base::task::{BoxFuture, FutureSlot};
use forebay_base::units::MIB;
use forebay_base::world::Nanos;
use std::future::Future;
use std::pin::pin;
use std::task::Poll;

/// Bytes that a visit above the limits writes of one file, before the next file has its turn.
const CHUNK: u64 = 16 * MIB;

impl PageCache {
    /// From now on the domain's flusher writes the mapping's dirty blocks through `out`. The first
    /// mapping starts the flusher. [`Domain::leave`] takes the mapping out again.
    pub fn join(self: &Arc<Self>, mapping: &Mapping, out: std::sync::Weak<dyn WriteOut>) {
        let domain = &mapping.domain;
        if domain.join(mapping.id, mapping.dirty.clone(), out) {
            let task = run_flusher(self.clone(), domain.clone());
            self.world.spawn_flusher(Box::pin(task));
        }
    }
}

async fn run_flusher(cache: Arc<PageCache>, domain: Arc<Domain>) {
    let (mut slots, mut flush) = (Slots::default(), Flush::default());
    let mut timer = None;
    while !ended(&domain) {
        debug_assert!(domain.queue().running, "Z1: one flusher");
        let (at, slots) = ((0, 0), &mut slots);
        let mut round = Round { cache: &cache, domain: &domain, at, issued: 0, slots };
        while round.step(&mut flush).await {}
        flush.keep_window_open(&cache, &domain).await;
        flush.end(&cache).await;
        wait_for_work(&cache, &domain, &mut timer).await;
        domain.awake();
    }
}

/// Whether the last file has left, and no [`Stay`](crate::dirty::domain::Stay) exists (Z1). The
/// next file then starts a new flusher.
fn ended(domain: &Domain) -> bool {
    let mut queue = domain.queue();
    let empty = queue.is_empty();
    queue.running = !empty;
    empty
}

/// A timer, and the time at which it expires.
type Timer = (Nanos, BoxFuture<'static, ()>);

/// Sleeps until there may be work. A timer that expires too early is kept, and may wake the flusher
/// once in vain: most sleeps end by a wake, and a new timer for each would cost more.
async fn wait_for_work(cache: &PageCache, domain: &Domain, timer: &mut Option<Timer>) {
    let alarm = {
        let queue = domain.queue();
        let alarm = queue.next_look(cache.dirty.expire_nanos());
        domain.set_next_look(&queue, alarm);
        alarm
    };
    let mut wake = pin!(domain.flusher_wakes.wait_until(|| domain.take_wake().then_some(())));
    if alarm == u64::MAX {
        return wake.await;
    }
    let armed = timer.take().filter(|&(at, _)| at <= alarm);
    let (_, sleep) = timer.insert(armed.unwrap_or_else(|| (alarm, cache.world.sleep_until(alarm))));
    let over = std::future::poll_fn(|cx| match sleep.as_mut().poll(cx) {
        Poll::Ready(()) => Poll::Ready(true),
        Poll::Pending => wake.as_mut().poll(cx).map(|()| false),
    })
    .await;
    if over {
        *timer = None;
    }
}

fn pass(which: Which, max_bytes: u64) -> WriteOutPass {
    WriteOutPass { range: 0..u64::MAX >> 1, which, max_bytes, sync: false }
}

/// Memory of the flusher's futures, reused. Write-out continues while a flush is in progress.
#[derive(Default)]
struct Slots {
    pass: FutureSlot<u64>,
    settle: FutureSlot<()>,
}

/// What the flusher does between two sleeps.
struct Round<'a, 's> {
    cache: &'a PageCache,
    domain: &'a Domain,
    /// Position, in the queue by age, of the file last written because of the limits.
    at: (Nanos, u32),
    /// Bytes issued in this pass over the queue.
    issued: u64,
    slots: &'s mut Slots,
}

impl<'a> Round<'a, '_> {
    /// Does the next thing that is due; false if nothing is.
    async fn step(&mut self, flush: &mut Flush<'a>) -> bool {
        let expire = self.cache.dirty.expire_nanos();
        let due = self.domain.queue().due(self.cache.world.now(), expire);
        if let Some(look) = due {
            let _held = self.domain.hold(look.checked_out);
            self.look(look, flush).await;
            return true;
        }
        if !self.domain.above_background() && !self.cache.is_starved() {
            return false;
        }
        flush.keep_window_open(self.cache, self.domain).await;
        let next = self.domain.queue().next_aged(self.at);
        let Some((place, look)) = next else {
            let again = self.issued > 0;
            (self.at, self.issued) = ((0, 0), 0);
            return again;
        };
        let _held = self.domain.hold(look.checked_out);
        // Dropped before `_held`: when the file is released, no reference to it is left here.
        let look = look;
        self.at = place;
        let until = self.cache.world.now();
        self.issued += self.write(&look, pass(Which::All, CHUNK), until, flush).await;
        flush.run_concurrently(self.domain.wait_write_room(self.cache.write_depth())).await;
        true
    }

    /// Issues a pass, which is to write blocks dirty since `until` or before, and queues the file
    /// again (Z3); returns the bytes issued.
    async fn write(
        &mut self,
        look: &Look,
        pass: WriteOutPass,
        until: Nanos,
        flush: &mut Flush<'a>,
    ) -> u64 {
        let seen = look.dirty.changes();
        look.out.clone().write_out(pass, &mut self.slots.pass);
        let issued = flush.run_concurrently(&mut self.slots.pass).await;
        let outcome = Outcome { until, seen, wrote: issued > 0 };
        self.domain.queue().looked_at(look.id, self.cache.world.now(), outcome);
        issued
    }

    async fn look(&mut self, look: Look, flush: &mut Flush<'a>) {
        let now = self.cache.world.now();
        let aged = now.saturating_sub(self.cache.dirty.expire_nanos());
        let which = match look.why {
            Why::Retry => Some((Which::All, now)),
            Why::Alarm if look.kept && !look.waits => Some((Which::All, now)),
            Why::Alarm => None,
            Why::Age => Some((Which::Before(aged + 1), aged)),
        };
        self.write_uncached(&look, now, flush).await;
        match which {
            Some((which, until)) => {
                self.write(&look, pass(which, u64::MAX), until, flush).await;
            }
            None => self.domain.queue().requeue(look.id),
        }
        if look.kept {
            self.settle(look, flush).await;
        }
    }

    /// Writes dirty blocks of uncached writes, if they fill a quarter of the uncached window or are
    /// [`UNCACHED_AGE`] old; else schedules a visit at that time.
    async fn write_uncached(&mut self, look: &Look, now: Nanos, flush: &mut Flush<'a>) {
        let bytes = look.dirty.uncached.load(Ordering::Relaxed);
        if bytes == 0 {
            return;
        }
        let window = self.cache.dirty.uncached_window.load(Ordering::Relaxed) / 4;
        let due = look.dirty.oldest_uncached().map_or(now, |since| since + UNCACHED_AGE);
        if bytes < window && due > now {
            self.domain.queue().look_by(look.id, due);
            return;
        }
        look.dirty.uncached.store(0, Ordering::Relaxed);
        look.out.clone().write_out(pass(Which::Uncached, u64::MAX), &mut self.slots.pass);
        flush.run_concurrently(&mut self.slots.pass).await;
    }

    /// Flushes a file without openers, and releases it if all of it is durable; else schedules
    /// another visit.
    async fn settle(&mut self, look: Look, flush: &mut Flush<'a>) {
        if !look.out.is_settled() {
            look.out.clone().flush(&mut self.slots.settle);
            flush.run_concurrently(&mut self.slots.settle).await;
        }
        if look.out.is_settled() {
            return self.domain.let_go(look.id);
        }
        self.domain.queue().look_at_kept_again(look.id, self.cache.world.now());
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;
    use crate::Retention;
    use crate::config::Config;
    use forebay_base::sim_world::SimWorld;
    use forebay_base::sync::atomic::{AtomicU64, AtomicUsize};
    use forebay_base::world::World;
    use std::time::Duration;

    /// A simulated world whose clock advances during computation: a microsecond for each reading.
    struct Ticking {
        world: std::sync::Arc<SimWorld>,
        ticks: AtomicU64,
    }

    impl World for Ticking {
        fn now(&self) -> Nanos {
            self.world.now() + self.ticks.fetch_add(1000, Ordering::Relaxed)
        }
        fn random(&self) -> u64 {
            self.world.random()
        }
        fn spawn(&self, name: &str, task: BoxFuture<'static, ()>) {
            self.world.spawn(name, task);
        }
        fn sleep_until(&self, at: Nanos) -> BoxFuture<'static, ()> {
            self.world.sleep_until(at.saturating_sub(self.ticks.load(Ordering::Relaxed)))
        }
    }

    /// A simulated world that counts the tasks that are started.
    struct Counting {
        world: std::sync::Arc<SimWorld>,
        started: AtomicUsize,
    }

    impl World for Counting {
        fn now(&self) -> Nanos {
            self.world.now()
        }
        fn random(&self) -> u64 {
            self.world.random()
        }
        fn spawn(&self, name: &str, task: BoxFuture<'static, ()>) {
            self.started.fetch_add(1, Ordering::Relaxed);
            self.world.spawn(name, task);
        }
        fn sleep_until(&self, at: Nanos) -> BoxFuture<'static, ()> {
            self.world.sleep_until(at)
        }
    }

    /// The story: a program that opened small files in turn, as on a mount, started a flusher for
    /// each and ended it. The two thread switches took longer than the rest of the opening.
    #[test]
    fn z1_flusher_held_serves_files_in_turn() {
        let world = SimWorld::new(1);
        let counting = Counting { world: world.clone(), started: AtomicUsize::new(0) };
        let counting = std::sync::Arc::new(counting);
        let config = Config { huge_pages: false, ..Config::with_budget(8 << 20) };
        let cache = PageCache::new(config, counting.clone()).unwrap();
        let domain = cache.dirty.domain(None);
        let open_and_close = || {
            let mapping = Arc::new(cache.new_mapping_in(domain.clone(), 4096, 1 << 20));
            let fake = Fake { mapping, stuck: false, looks: AtomicUsize::new(0) };
            let fake = std::sync::Arc::new(fake);
            let weak = std::sync::Arc::downgrade(&fake);
            cache.join(&fake.mapping, weak);
            world.run(world.sleep(Duration::from_millis(1)));
            domain.leave(fake.mapping.id);
            world.run(world.sleep(Duration::from_millis(1)));
        };
        let started = || counting.started.swap(0, Ordering::Relaxed);
        let stays = domain.stay();
        (0..5).for_each(|_| open_and_close());
        assert!(started() == 1 && domain.queue().running, "Z1: it stays");
        drop(stays);
        world.run(world.sleep(Duration::from_millis(1)));
        assert!(!domain.queue().running, "Z1: no file, no hold");
        (0..5).for_each(|_| open_and_close());
        assert!(started() == 5 && !domain.queue().running, "Z1: as long as there are files");
    }

    /// A waker that notes whether a folio is locked when it is woken.
    struct Watch(forebay_base::sync::Arc<PageCache>, [AtomicUsize; 2]);

    impl Watch {
        /// How often it was woken with all folios unlocked, and with one locked.
        fn woken(&self) -> (usize, usize) {
            let [free, locked] = [0, 1].map(|i: usize| self.1[i].load(Ordering::Relaxed));
            (free, locked)
        }
    }

    impl std::task::Wake for Watch {
        fn wake(self: std::sync::Arc<Self>) {
            let is_locked = (1..8).any(|slot| self.0.table.is_locked(slot));
            self.1[usize::from(is_locked)].fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The block that the tests with a [`Watch`] make dirty.
    const FIRST: crate::folio::Blocks = crate::folio::Blocks { start: 0, end: 1 };

    /// A small cache, a file in it, and a [`Watch`] of its folios.
    fn watched() -> (forebay_base::sync::Arc<PageCache>, Mapping, std::sync::Arc<Watch>) {
        let config = crate::Config { huge_pages: false, ..crate::Config::with_budget(4 << 20) };
        let cache = PageCache::new(config, forebay_base::world::RealWorld::with_seed(1)).unwrap();
        let mapping = cache.new_mapping(4096, 1 << 20);
        let watch = std::sync::Arc::new(Watch(cache.clone(), Default::default()));
        (cache, mapping, watch)
    }

    fn make_dirty(cache: &PageCache, mapping: &Mapping) {
        let mut pool = cache.take_frames(1).unwrap();
        let folio = cache.lock_or_make(mapping, 0, false).unwrap();
        folio.install_frames(FIRST, &mut pool);
        folio.mark_dirty(FIRST, Retention::Keep);
    }

    /// The story: the first dirty block of a file woke the flusher under the lock of the folio. A
    /// waker may run any code: a task that wanted the folio spun until the waker returned, or for
    /// ever.
    #[test]
    fn first_dirty_block_wakes_flusher_after_folio_lock() {
        let (cache, mapping, watch) = watched();
        let waker = watch.clone().into();
        let mut woken = Box::pin(mapping.domain.flusher_wakes.wait_until(|| None::<()>));
        assert!(woken.as_mut().poll(&mut std::task::Context::from_waker(&waker)).is_pending());
        let none = std::sync::Weak::<Fake>::new();
        let _first = mapping.domain.join(mapping.id, mapping.dirty.clone(), none);
        make_dirty(&cache, &mapping);
        assert_eq!(watch.woken(), (1, 0), "woken with the folio free, and locked");
        cache.lock_folio(&mapping, 0).unwrap().discard(FIRST);
        mapping.domain.leave(mapping.id);
    }

    /// A writer that waits for space is woken by dropped dirty blocks, after the folio lock.
    #[test]
    fn dropped_dirty_block_wakes_writer_after_folio_lock() {
        let (cache, mapping, watch) = watched();
        make_dirty(&cache, &mapping);
        let place = mapping.domain.take_ticket();
        assert!(place.first(&watch.clone().into()), "no other writer waits");
        let folio = cache.lock_folio(&mapping, 0).unwrap();
        folio.discard(FIRST);
        let early = watch.woken();
        drop(folio);
        let woken = (early, watch.woken());
        assert_eq!(woken, ((0, 0), (1, 0)), "before and after the folio was released");
    }

    /// A task that waits for frames is woken by a folio that gives one back, after the folio lock.
    #[test]
    fn freed_frame_wakes_waiter_after_folio_lock() {
        let (cache, mapping, watch) = watched();
        make_dirty(&cache, &mapping);
        let rest = cache.take_frames(cache.stats().frames_free as usize).unwrap();
        let waker = watch.clone().into();
        let mut waiter = Box::pin(cache.wait_frames(&mapping, 1));
        assert!(waiter.as_mut().poll(&mut std::task::Context::from_waker(&waker)).is_pending());
        let folio = cache.lock_folio(&mapping, 0).unwrap();
        folio.discard(FIRST);
        let early = watch.woken();
        drop(folio);
        let woken = (early, watch.woken());
        assert_eq!(woken, ((0, 0), (1, 0)), "before and after the folio was released");
        drop((waiter, rest));
    }

    /// The flusher is woken, after the folio lock, for a retry that is due before its timer
    /// expires. Earlier, it was woken under that lock and under the lock of the file's failed
    /// blocks.
    #[test]
    fn failed_block_wakes_flusher_after_folio_lock() {
        let (cache, mapping, watch) = watched();
        let domain = &mapping.domain;
        let none = std::sync::Weak::<Fake>::new();
        let _first = domain.join(mapping.id, mapping.dirty.clone(), none);
        make_dirty(&cache, &mapping);
        domain.take_wake();
        domain.set_next_look(&domain.queue(), u64::MAX);
        let waker = watch.clone().into();
        let mut woken = Box::pin(domain.flusher_wakes.wait_until(|| None::<()>));
        assert!(woken.as_mut().poll(&mut std::task::Context::from_waker(&waker)).is_pending());
        crate::writeback::fail_unwritten(&cache, &mapping, 0, FIRST);
        assert_eq!(watch.woken(), (1, 0), "woken with the folio free, and locked");
        cache.lock_folio(&mapping, 0).unwrap().discard(FIRST);
        domain.leave(mapping.id);
    }

    /// A file of one dirty folio. If it is `stuck`, nothing of it can be written.
    struct Fake {
        mapping: Arc<Mapping>,
        stuck: bool,
        looks: AtomicUsize,
    }

    impl Fake {
        fn dirty(&self, now: Nanos) {
            self.mapping.dirty.list(0, now, false);
            self.mapping.domain.add_dirty(65536);
            if !self.mapping.dirty.is_queued() {
                self.mapping
                    .domain
                    .wake_flusher_if(self.mapping.domain.dirtied(self.mapping.id, now));
            }
        }

        fn looks(&self) -> usize {
            self.looks.load(Ordering::Relaxed)
        }
    }

    impl WriteOut for Fake {
        fn write_out(self: std::sync::Arc<Self>, _: WriteOutPass, slot: &mut FutureSlot<u64>) {
            let looks = self.looks.fetch_add(1, Ordering::Relaxed);
            assert!(looks < 1000, "Q-e: the flusher spins");
            if self.stuck || !self.mapping.dirty.unlist(0) {
                return slot.put(async { 0 });
            }
            self.mapping.domain.sub_dirty(65536);
            self.mapping.domain.wake_writers(false);
            slot.put(async { 65536 });
        }
        fn flush(self: std::sync::Arc<Self>, slot: &mut FutureSlot<()>) {
            slot.put(async {});
        }
        fn is_settled(&self) -> bool {
            true
        }
    }

    /// The story: one file with old dirty blocks that could not be written kept its domain's
    /// flusher busy, without a pause above the limits. On a busy machine no other task of its
    /// thread ran.
    #[test]
    fn unwritable_file_does_not_keep_flusher_busy() {
        let world = SimWorld::new(1);
        let ticking = Ticking { world: world.clone(), ticks: AtomicU64::new(0) };
        let config = Config {
            huge_pages: false,
            dirty_background_bytes: Some(0),
            dirty_expire_centisecs: 1,
            ..Config::with_budget(8 << 20)
        };
        let cache = PageCache::new(config, std::sync::Arc::new(ticking)).unwrap();
        let domain = cache.dirty.domain(None);
        let files: Vec<_> = [true, false]
            .into_iter()
            .map(|stuck| {
                let mapping = Arc::new(cache.new_mapping_in(domain.clone(), 4096, 1 << 20));
                let fake = Fake { mapping, stuck, looks: AtomicUsize::new(0) };
                let fake = std::sync::Arc::new(fake);
                let weak = std::sync::Arc::downgrade(&fake);
                cache.join(&fake.mapping, weak);
                fake
            })
            .collect();
        world.run(async {
            let (stuck, other) = (&files[0], &files[1]);
            stuck.dirty(cache.world.now());
            for round in 1..250 {
                other.dirty(cache.world.now());
                domain.wake_flusher();
                world.sleep(Duration::from_millis(20)).await;
                assert_eq!(other.mapping.dirty.oldest(), None, "round {round}: not written");
            }
            assert!((8..32).contains(&stuck.looks()), "{} looks in five seconds", stuck.looks());
            // A new dirty folio, and the end of a write-out: the file is visited at once.
            for change in 0..2 {
                let before = stuck.looks();
                match change {
                    0 => {
                        assert!(stuck.mapping.dirty.list(9, cache.world.now(), false).fresh);
                        assert!(stuck.mapping.dirty.is_stalled());
                        domain.wake_flusher_if(domain.dirtied(stuck.mapping.id, cache.world.now()));
                    }
                    _ => domain.end_stall(stuck.mapping.id, &stuck.mapping.dirty),
                }
                world.sleep(Duration::from_millis(1)).await;
                assert_eq!(stuck.looks(), before + 1);
            }
        });
        files.iter().for_each(|file| domain.leave(file.mapping.id));
        world.run(async {});
    }
}

#[cfg(all(test, not(shuttle)))]
mod concurrent_flush {
    use super::*;
    use crate::config::Config;
    use forebay_base::sim_world::SimWorld;
    use forebay_base::task::WaitQueue;
    use std::sync::atomic::AtomicBool;

    /// A file whose write-out waits until a flush is over.
    #[derive(Default)]
    struct Fake {
        flushed: AtomicBool,
        changed: WaitQueue,
    }

    impl WriteOut for Fake {
        fn write_out(self: std::sync::Arc<Self>, _: WriteOutPass, slot: &mut FutureSlot<u64>) {
            slot.put(async move {
                let over = || self.flushed.load(Ordering::SeqCst).then_some(4096);
                self.changed.wait_until(over).await
            });
        }

        fn flush(self: std::sync::Arc<Self>, slot: &mut FutureSlot<()>) {
            slot.put(async move {
                self.flushed.store(true, Ordering::SeqCst);
                self.changed.wake_all();
            });
        }

        fn is_settled(&self) -> bool {
            true
        }
    }

    /// The story: a pass of uncached blocks waited for space that only the end of a flush frees.
    /// Meanwhile no task polled the flush, so it never ended.
    #[test]
    fn flush_in_progress_is_polled_during_write_out() {
        let world = SimWorld::new(1);
        let config = Config { huge_pages: false, ..Config::with_budget(4 << 20) };
        let cache = PageCache::new(config, world.clone()).unwrap();
        let domain = cache.dirty.domain(None);
        let file = std::sync::Arc::new(Fake::default());
        let weak = std::sync::Arc::downgrade(&file);
        let out: std::sync::Weak<dyn WriteOut> = weak;
        let dirty_folios: Arc<crate::dirty::dirty_folios::DirtyFolios> = Arc::default();
        domain.join(1, dirty_folios.clone(), out);
        for uncached in [true, false] {
            file.flushed.store(false, Ordering::SeqCst);
            dirty_folios.uncached.store(if uncached { 1 << 40 } else { 0 }, Ordering::SeqCst);
            domain.queue().look_by(1, 0);
            let look = domain.queue().due(1, 1 << 40).expect("it asked");
            let (mut slots, mut flush) = (Slots::default(), Flush::default());
            flush.add(domain.hold(look.checked_out), |slot| file.clone().flush(slot));
            let mut round =
                Round { cache: &cache, domain: &domain, at: (0, 0), issued: 0, slots: &mut slots };
            world.run(async {
                if uncached {
                    round.write_uncached(&look, 0, &mut flush).await;
                } else {
                    round.write(&look, pass(Which::All, CHUNK), 0, &mut flush).await;
                }
            });
            assert!(flush.len() == 0 && file.flushed.load(Ordering::SeqCst));
        }
    }
}
