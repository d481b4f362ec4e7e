//! Waiting for a condition to change: the queue of the tasks that wait, and how they are woken.
//!
//! No wake is lost: a waiter registers before it checks the condition for the last time. Waking an
//! empty queue costs a fence and a load. The two sides meet like this:
//!
//! ```text
//!   waker                          waiter
//!   changes the condition          counts itself (`linked`)
//!   fence                          fence
//!   looks at `linked`              looks at the condition
//! ```
//! Whatever the interleaving, one of them sees the other. A waiter that was woken is out of the
//! list; before it waits again it registers again, and checks again.
//!
//! Waking one of many ([`WaitQueue::wake_matching`]) adds a duty: the wake must not be lost with
//! its waiter. A future that was woken and is dropped before it has checked its condition wakes all
//! others.
//!
//! Invariants: W1 a slot belongs to one waiting future from its first registration to its end or
//! drop; so there are at most as many slots in use as futures. W2 the list holds exactly the slots
//! whose future has registered and was not woken since, in order of registration. W3 `linked` is
//! the length of the list whenever the lock is free. W4 adding a future to the list, waking the one
//! at the head and removing one take constant time. W5 no waker runs and none is dropped while the
//! lock is held.

use crate::sync::Mutex;
use crate::sync::atomic::{AtomicUsize, Ordering, fence};
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

/// Most wakers that a wake takes out under one hold of the lock.
const BATCH: usize = 32;
/// Most slots that an empty queue retains for later waiters; if it has more, it frees all.
const KEEP: usize = 64;
const NONE: u32 = u32::MAX;

/// What to do with one waiter; see [`WaitQueue::wake_matching`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pick {
    /// Does not wake the waiter.
    Skip,
    /// Wakes the waiter and examines the next.
    Wake,
    /// Wakes the waiter and examines no further one.
    WakeAndStop,
}

/// The tasks that wait for something to change, each with a key that says for what.
pub struct WaitQueue<K = ()> {
    waiters: Mutex<Waiters<K>>,
    /// Length of the list (W3).
    linked: AtomicUsize,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Place {
    Free,
    Listed,
    /// Woken by `wake_matching`, and not registered again since.
    Chosen,
    /// Woken by `wake_all`: it has no wake to pass on.
    Out,
}

struct Slot<K> {
    place: Place,
    /// Set in state `Listed` only.
    waker: Option<Waker>,
    key: Option<K>,
    /// Number of the registration; increases along the list.
    serial: u64,
    prev: u32,
    next: u32,
}

struct Waiters<K> {
    slots: Vec<Slot<K>>,
    /// Free slots are chained by `next`.
    free: u32,
    used: usize,
    head: u32,
    tail: u32,
    len: usize,
    serial: u64,
}

impl<K> Waiters<K> {
    const fn new() -> Self {
        let slots = Vec::new();
        Self { slots, free: NONE, used: 0, head: NONE, tail: NONE, len: 0, serial: 0 }
    }

    fn slot(&mut self, at: u32) -> &mut Slot<K> {
        &mut self.slots[at as usize]
    }

    fn take_slot(&mut self) -> u32 {
        self.used += 1;
        if self.free != NONE {
            let at = self.free;
            self.free = self.slot(at).next;
            return at;
        }
        let place = Place::Free;
        let new = Slot { place, waker: None, key: None, serial: 0, prev: NONE, next: NONE };
        self.slots.push(new);
        (self.slots.len() - 1) as u32
    }

    fn give_slot(&mut self, at: u32) {
        let free = self.free;
        let slot = self.slot(at);
        assert!(slot.place != Place::Listed, "W2: a slot leaves the list before it is free");
        (slot.place, slot.key, slot.next) = (Place::Free, None, free);
        self.free = at;
        self.used -= 1;
        if self.used == 0 && self.slots.capacity() > KEEP {
            (self.slots, self.free) = (Vec::new(), NONE);
        }
    }

    /// Puts a slot at the end of the list.
    fn link(&mut self, at: u32, waker: Waker) {
        let (tail, serial) = (self.tail, self.serial);
        self.serial += 1;
        let slot = self.slot(at);
        debug_assert!(slot.place != Place::Listed, "W2: a slot is in the list once");
        (slot.place, slot.waker, slot.serial) = (Place::Listed, Some(waker), serial);
        (slot.prev, slot.next) = (tail, NONE);
        match tail {
            NONE => self.head = at,
            _ => self.slot(tail).next = at,
        }
        self.tail = at;
        self.len += 1;
    }

    /// Takes a slot out of the list.
    fn unlink(&mut self, at: u32, place: Place) -> Option<Waker> {
        let slot = self.slot(at);
        debug_assert_eq!(slot.place, Place::Listed, "W2: only a listed slot leaves the list");
        slot.place = place;
        let (waker, prev, next) = (slot.waker.take(), slot.prev, slot.next);
        match prev {
            NONE => self.head = next,
            _ => self.slot(prev).next = next,
        }
        match next {
            NONE => self.tail = prev,
            _ => self.slot(next).prev = prev,
        }
        self.len -= 1;
        waker
    }
}

impl<K> Default for WaitQueue<K> {
    fn default() -> Self {
        Self { waiters: Mutex::new(Waiters::new()), linked: AtomicUsize::new(0) }
    }
}

impl WaitQueue {
    /// An empty queue whose waiters are all alike.
    pub fn new() -> Self {
        Self::default()
    }

    /// Waits until `check` gives a value. `check` runs at least once, and after each wake.
    pub fn wait_until<T, F: FnMut() -> Option<T>>(&self, check: F) -> WaitUntil<'_, (), F> {
        self.wait_for((), check)
    }
}

impl<K> WaitQueue<K> {
    /// An empty queue with keys.
    pub fn with_keys() -> Self {
        Self::default()
    }

    /// Waits until `check` gives a value. `check` runs at least once, and after each wake. A thread
    /// that makes the condition true wakes all waiters, or those that its choice by `key` selects.
    pub fn wait_for<T, F: FnMut() -> Option<T>>(&self, key: K, check: F) -> WaitUntil<'_, K, F> {
        WaitUntil { queue: self, check, slot: NONE, key: Some(key) }
    }

    /// Wakes every waiter. Call after the condition has changed, holding no lock that a waker
    /// could want.
    #[inline]
    pub fn wake_all(&self) {
        fence(Ordering::SeqCst);
        if self.linked.load(Ordering::Relaxed) != 0 {
            self.wake(Place::Out, |_| Pick::Wake);
        }
    }

    /// Wakes the waiters that `pick` chooses by their keys, in the order of their registration.
    /// Call it after the condition has changed, holding no lock that a waker could want. `pick`
    /// runs under the queue's lock, so it must only compare.
    ///
    /// Stopping early is safe only if the woken waiter later wakes the waiters that were passed
    /// over. Example: waiters for ranges. The first whose range covers all that became free takes
    /// it, and wakes the others when it releases it.
    #[inline]
    pub fn wake_matching(&self, pick: impl FnMut(&K) -> Pick) {
        fence(Ordering::SeqCst);
        if self.linked.load(Ordering::Relaxed) != 0 {
            self.wake(Place::Chosen, pick);
        }
    }

    /// How many futures are registered and not woken since.
    pub fn waiters(&self) -> usize {
        self.linked.load(Ordering::Relaxed)
    }

    fn wake(&self, place: Place, mut pick: impl FnMut(&K) -> Pick) {
        let mut from = 0;
        let mut end = u64::MAX;
        loop {
            let mut batch: [Option<Waker>; BATCH] = [const { None }; BATCH];
            let mut count = 0;
            let mut waiters = self.lock();
            // A waiter that registers from here on checks the condition after this change.
            end = end.min(waiters.serial);
            let mut at = waiters.head;
            let mut more = false;
            while at != NONE {
                let slot = waiters.slot(at);
                let (here, next) = (at, slot.next);
                let serial = slot.serial;
                if serial >= end {
                    break;
                }
                at = next;
                if serial < from {
                    continue;
                }
                if count == BATCH {
                    (more, from) = (true, serial);
                    break;
                }
                let key = slot.key.as_ref().expect("W1: a listed slot has its key");
                let picked = pick(key);
                if picked != Pick::Skip {
                    batch[count] = waiters.unlink(here, place);
                    count += 1;
                }
                if picked == Pick::WakeAndStop {
                    break;
                }
            }
            self.count(&waiters);
            drop(waiters);
            batch.into_iter().flatten().for_each(Waker::wake);
            if !more {
                return;
            }
        }
    }

    fn lock(&self) -> crate::sync::MutexGuard<'_, Waiters<K>> {
        let waiters = self.waiters.lock();
        debug_assert_eq!(
            self.linked.load(Ordering::Relaxed),
            waiters.len,
            "W3: the count is the list's"
        );
        waiters
    }

    fn count(&self, waiters: &Waiters<K>) {
        debug_assert!(waiters.len <= waiters.used, "W1: who is listed has a slot");
        self.linked.store(waiters.len, Ordering::Relaxed);
    }

    /// Adds the future to the list, or replaces its waker there.
    fn register(&self, slot: &mut u32, key: &mut Option<K>, waker: &Waker) {
        let mut waiters = self.lock();
        if *slot == NONE {
            *slot = waiters.take_slot();
            waiters.slot(*slot).key = key.take();
        }
        let mine = waiters.slot(*slot);
        let old = if mine.place == Place::Listed {
            let same = mine.waker.as_ref().is_some_and(|w| w.will_wake(waker));
            if same { None } else { mine.waker.replace(waker.clone()) }
        } else {
            waiters.link(*slot, waker.clone());
            None
        };
        self.count(&waiters);
        drop(waiters);
        drop(old);
    }

    /// Removes the future. `looked` says whether it has checked its condition since its last wake.
    /// If not, and `wake_matching` chose it, all others are woken instead.
    fn leave(&self, slot: u32, looked: bool) {
        let mut waiters = self.lock();
        let place = waiters.slot(slot).place;
        let waker = match place {
            Place::Listed => waiters.unlink(slot, Place::Out),
            _ => None,
        };
        waiters.give_slot(slot);
        self.count(&waiters);
        drop(waiters);
        drop(waker);
        if place == Place::Chosen && !looked {
            self.wake_all();
        }
    }
}

/// A future that waits in a [`WaitQueue`] until its check gives a value; see
/// [`WaitQueue::wait_until`].
pub struct WaitUntil<'a, K, F> {
    queue: &'a WaitQueue<K>,
    check: F,
    slot: u32,
    /// The key, until the future's first registration moves it into the slot.
    key: Option<K>,
}

impl<K, F> WaitUntil<'_, K, F> {
    /// Ends the wait with the condition true: this waiter has no wake to pass on.
    fn done(&mut self) {
        let slot = std::mem::replace(&mut self.slot, NONE);
        if slot != NONE {
            self.queue.leave(slot, true);
        }
    }
}

impl<K: Unpin, T, F: FnMut() -> Option<T> + Unpin> Future for WaitUntil<'_, K, F> {
    type Output = T;
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        let me = &mut *self;
        if let Some(value) = (me.check)() {
            me.done();
            return Poll::Ready(value);
        }
        me.queue.register(&mut me.slot, &mut me.key, cx.waker());
        fence(Ordering::SeqCst);
        match (me.check)() {
            Some(value) => {
                me.done();
                Poll::Ready(value)
            }
            None => Poll::Pending,
        }
    }
}

impl<K, F> Drop for WaitUntil<'_, K, F> {
    fn drop(&mut self) {
        if self.slot != NONE {
            self.queue.leave(self.slot, false);
        }
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;
    use crate::sync::Arc;
    use crate::sync::atomic::AtomicBool;
    use crate::task::block_on;
    use std::ops::Range;
    use std::pin::pin;

    #[test]
    fn wait_queue_wakes_all() {
        let queue = Arc::new(WaitQueue::new());
        let flag = Arc::new(AtomicBool::new(false));
        let waiters: Vec<_> = (0..4)
            .map(|_| {
                let (queue, flag) = (queue.clone(), flag.clone());
                std::thread::spawn(move || {
                    block_on(queue.wait_until(|| flag.load(Ordering::Acquire).then_some(())));
                })
            })
            .collect();
        flag.store(true, Ordering::Release);
        queue.wake_all();
        for waiter in waiters {
            waiter.join().unwrap();
        }
    }

    fn poll<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
        future.poll(&mut Context::from_waker(Waker::noop()))
    }

    /// A waker that notes, when it runs and when it is dropped, whether the queue's lock is free.
    struct Probe(Arc<WaitQueue<u8>>, Arc<Mutex<Vec<(&'static str, bool)>>>);

    impl Probe {
        fn note(&self, what: &'static str) {
            self.1.lock().push((what, self.0.waiters.try_lock().is_some()));
        }
    }

    impl std::task::Wake for Probe {
        fn wake(self: Arc<Self>) {
            self.note("run");
        }
    }

    impl Drop for Probe {
        fn drop(&mut self) {
            self.note("dropped");
        }
    }

    /// A condition that does not become true.
    type Never = fn() -> Option<()>;

    /// W5: no waker runs, and none is dropped, under the lock of the queue. Either could take a
    /// lock that its holder holds while it waits for this one.
    #[test]
    fn w5_wakers_run_and_drop_without_lock() {
        let (queue, seen) = (Arc::new(WaitQueue::with_keys()), Arc::default());
        let waker = || Waker::from(Arc::new(Probe(queue.clone(), Arc::clone(&seen))));
        let wait = |future: Pin<&mut WaitUntil<'_, u8, Never>>| {
            assert!(future.poll(&mut Context::from_waker(&waker())).is_pending());
        };
        let never: Never = || None;
        let found = || std::mem::take(&mut *seen.lock());
        {
            let mut woken = pin!(queue.wait_for(1, never));
            wait(woken.as_mut());
            queue.wake_all();
            assert_eq!(found(), [("run", true), ("dropped", true)], "W5: woken with all");
            wait(woken.as_mut());
            queue.wake_matching(|_| Pick::WakeAndStop);
            assert_eq!(found(), [("run", true), ("dropped", true)], "W5: chosen");
            wait(woken.as_mut());
            wait(woken.as_mut());
            assert_eq!(found(), [("dropped", true)], "W5: replaced by the next poll");
        }
        assert_eq!(found(), [("dropped", true)], "W5: its future was dropped");
    }

    /// The story: a waiter whose request was cancelled stayed in the list until the next wake. So a
    /// queue without wakes grew without bound.
    #[test]
    fn cancelled_waiters_leave_no_slots() {
        let queue = WaitQueue::new();
        for _ in 0..3 {
            let mut waiting: Vec<_> =
                (0..1000).map(|_| Box::pin(queue.wait_until(|| None::<()>))).collect();
            waiting.iter_mut().for_each(|w| assert!(poll(w.as_mut()).is_pending()));
            waiting.iter_mut().for_each(|w| assert!(poll(w.as_mut()).is_pending()));
            assert_eq!(queue.waiters(), 1000);
            // Waiters in the middle and at both ends, and woken ones.
            waiting.drain(300..600);
            assert_eq!(queue.waiters(), 700);
            queue.wake_all();
            assert_eq!(queue.waiters(), 0);
            poll(waiting[5].as_mut()).is_pending().then_some(()).unwrap();
            assert_eq!(queue.waiters(), 1);
            drop(waiting);
            assert_eq!(queue.waiters(), 0);
            let kept = queue.waiters.lock();
            assert!((kept.used, kept.len) == (0, 0) && kept.slots.capacity() <= KEEP);
        }
    }

    /// Ranges with one holder at a time, as mappings have them.
    #[derive(Default)]
    struct Ranges {
        held: Mutex<Vec<Range<u64>>>,
        queue: WaitQueue<Range<u64>>,
        looks: AtomicUsize,
    }

    impl Ranges {
        fn take(&self, range: &Range<u64>) -> Option<()> {
            self.looks.fetch_add(1, Ordering::Relaxed);
            let mut held = self.held.lock();
            let free = held.iter().all(|r| r.end <= range.start || range.end <= r.start);
            free.then(|| held.push(range.clone()))
        }

        fn give(&self, range: &Range<u64>) {
            self.held.lock().retain(|r| r != range);
            self.queue.wake_matching(|key| {
                if key.end <= range.start || range.end <= key.start {
                    Pick::Skip
                } else if key.start <= range.start && range.end <= key.end {
                    Pick::WakeAndStop
                } else {
                    Pick::Wake
                }
            });
        }
    }

    /// The story: 1,024 trims of one range from 128 clients stopped the event loop. Each release
    /// woke all waiters, and each of them checked its condition and registered again.
    #[test]
    fn many_waiters_for_one_range_wake_in_order() {
        let ranges = Ranges::default();
        let ranges = &ranges;
        let wait = |range: Range<u64>| {
            let key = range.clone();
            Box::pin(ranges.queue.wait_for(key, move || ranges.take(&range)))
        };
        ranges.take(&(0..8)).unwrap();
        let mut elsewhere = wait(100..108);
        assert!(poll(elsewhere.as_mut()).is_ready(), "the range is free");
        let mut waiting: Vec<_> = (0..1024).map(|_| wait(0..8)).collect();
        waiting.iter_mut().for_each(|w| assert!(poll(w.as_mut()).is_pending()));
        let before = ranges.looks.load(Ordering::Relaxed);
        for waiter in &mut waiting {
            ranges.give(&(0..8));
            let chosen = ranges
                .queue
                .waiters
                .lock()
                .slots
                .iter()
                .filter(|s| s.place == Place::Chosen)
                .count();
            assert_eq!(chosen, 1, "one was woken");
            assert!(poll(waiter.as_mut()).is_ready(), "the one that came first");
        }
        let looks = ranges.looks.load(Ordering::Relaxed) - before;
        assert_eq!(looks, 1024, "each looked once");
    }

    #[test]
    fn chosen_waiter_cancelled_passes_wake_on() {
        let ranges = Ranges::default();
        ranges.take(&(0..8)).unwrap();
        let mut first = Box::pin(ranges.queue.wait_for(0..8, || ranges.take(&(0..8))));
        let mut second = Box::pin(ranges.queue.wait_for(4..6, || ranges.take(&(4..6))));
        assert!(poll(first.as_mut()).is_pending() && poll(second.as_mut()).is_pending());
        ranges.give(&(0..8));
        assert_eq!(ranges.queue.waiters(), 1);
        drop(first);
        assert_eq!(ranges.queue.waiters(), 0, "the second was woken instead");
        assert!(poll(second.as_mut()).is_ready());
    }

    #[test]
    fn wake_beyond_batch_wakes_each_waiter_once() {
        let queue = WaitQueue::with_keys();
        let mut waiting: Vec<_> =
            (0..5 * BATCH as u64).map(|i| Box::pin(queue.wait_for(i, || None::<()>))).collect();
        waiting.iter_mut().for_each(|w| assert!(poll(w.as_mut()).is_pending()));
        let mut seen = Vec::new();
        queue.wake_matching(|key| {
            seen.push(*key);
            if key.is_multiple_of(5) { Pick::Skip } else { Pick::Wake }
        });
        assert_eq!(seen, (0..5 * BATCH as u64).collect::<Vec<_>>());
        assert_eq!(queue.waiters(), BATCH);
        let mut late = pin!(queue.wait_for(7, || None::<()>));
        assert!(poll(late.as_mut()).is_pending());
        assert_eq!(queue.waiters(), BATCH + 1);
    }
}
