//! Ranges that one task at a time holds, and the queue of tasks that wait for one: first come,
//! first served.
//!
//! ```text
//!   take ──▶ free, and no older waiter wants a part ──▶ held ──▶ released
//!     │                                                  ▲
//!     └──▶ waiting, with a ticket ───────────────────────┤ when that holds for it
//!                    └──▶ dropped: the waiters behind it are woken
//! ```
//!
//! Invariants: N1 held ranges are disjoint. N2 a waiter has its ticket from its first failed
//! attempt until it holds its range or is dropped; an older waiter has a lower ticket. N3 no range
//! is taken while an older waiter wants a part of it. So a waiter waits for the ranges that were
//! held or wanted when it arrived, and for no later one. N4 whatever may let a waiter go ahead
//! wakes it: the release of a range, and a ticket that is given up.
//!
//! No deadlock: a waiter waits for holders and for older waiters only. The holder of a range must
//! not wait for another range of the same kind, nor for a task that does; each user says so where
//! it takes one.
//!
//! Locks: `state` is a leaf, and is also taken below the lock of the wait queue.

use forebay_base::sync::Mutex;
use forebay_base::sync::atomic::{AtomicU64, Ordering};
use forebay_base::task::{Pick, WaitQueue};
use std::collections::BTreeMap;
use std::ops::Range;

/// What a task waits for.
struct Want {
    range: Range<u64>,
    /// Its turn to take the range. `None`: it takes nothing, and waits until no part is held.
    ticket: Option<u64>,
}

#[derive(Default)]
struct State {
    /// Start to end (N1).
    held: BTreeMap<u64, u64>,
    /// Ranges wanted, by ticket (N2).
    waiting: BTreeMap<u64, Range<u64>>,
    tickets: u64,
}

impl State {
    fn is_held(&self, range: &Range<u64>) -> bool {
        let last = self.held.range(..range.end).next_back();
        last.is_some_and(|(_, &end)| end > range.start)
    }

    /// Whether the owner of `ticket` may take the range (N3).
    fn may_take(&self, range: &Range<u64>, ticket: u64) -> bool {
        let overlaps = |other: &Range<u64>| other.start < range.end && range.start < other.end;
        !self.is_held(range) && !self.waiting.range(..ticket).any(|(_, other)| overlaps(other))
    }

    fn hold(&mut self, range: &Range<u64>, count: &AtomicU64) {
        self.held.insert(range.start, range.end);
        count.fetch_add(1, Ordering::SeqCst);
    }
}

/// The held ranges of a file, and the requests that wait for one.
#[derive(Default)]
pub(crate) struct Ranges {
    state: Mutex<State>,
    /// How many ranges are held.
    count: AtomicU64,
    wait: WaitQueue<Want>,
}

/// A task in the queue; gives its ticket up on drop, unless it has taken its range.
struct Waiter<'a> {
    ranges: &'a Ranges,
    range: Range<u64>,
    ticket: u64,
}

impl Waiter<'_> {
    fn try_take(&self) -> Option<()> {
        let mut state = self.ranges.state.lock();
        if !state.may_take(&self.range, self.ticket) {
            return None;
        }
        let ticket = state.waiting.remove(&self.ticket);
        debug_assert!(ticket.is_some(), "N2: a waiter has its ticket until it holds its range");
        state.hold(&self.range, &self.ranges.count);
        Some(())
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        let given_up = self.ranges.state.lock().waiting.remove(&self.ticket).is_some();
        if given_up {
            self.ranges.wake(&self.range);
        }
    }
}

impl Ranges {
    /// Whether no range is held: a load, without the lock.
    #[inline]
    pub fn is_idle(&self) -> bool {
        self.count.load(Ordering::SeqCst) == 0
    }

    /// Whether a part of the range is held.
    pub fn is_held(&self, range: &Range<u64>) -> bool {
        self.state.lock().is_held(range)
    }

    /// Takes a range, which is not empty, if that needs no waiting. False while a part of it is
    /// held, or a waiter wants one (N3).
    pub fn try_take(&self, range: &Range<u64>) -> bool {
        let mut state = self.state.lock();
        let may = state.may_take(range, u64::MAX);
        if may {
            state.hold(range, &self.count);
        }
        may
    }

    fn take_or_queue(&self, range: &Range<u64>) -> Option<Waiter<'_>> {
        debug_assert!(!range.is_empty(), "N1: an empty range excludes no other");
        let mut state = self.state.lock();
        if state.may_take(range, u64::MAX) {
            state.hold(range, &self.count);
            return None;
        }
        let ticket = state.tickets;
        state.tickets += 1;
        state.waiting.insert(ticket, range.clone());
        Some(Waiter { ranges: self, range: range.clone(), ticket })
    }

    /// Takes a range, which is not empty, when its turn has come.
    pub async fn take(&self, range: &Range<u64>) {
        if let Some(waiter) = self.take_or_queue(range) {
            let want = Want { range: range.clone(), ticket: Some(waiter.ticket) };
            self.wait.wait_for(want, || waiter.try_take()).await;
        }
    }

    /// Waits until no part of the range is held. Does not take it: an older waiter
    /// may take it at once.
    pub async fn wait_not_held(&self, range: &Range<u64>) {
        let want = Want { range: range.clone(), ticket: None };
        self.wait.wait_for(want, || (!self.is_held(range)).then_some(())).await;
    }

    /// Gives back a range that was taken.
    pub fn release(&self, range: &Range<u64>) {
        let mut state = self.state.lock();
        let end = state.held.remove(&range.start);
        assert_eq!(end, Some(range.end), "N1: it was taken once, as a whole");
        self.count.fetch_sub(1, Ordering::SeqCst);
        drop(state);
        self.wake(range);
    }

    /// A range is not held or not wanted any more: wakes the waiters that may go ahead now (N4). A
    /// waiter that is not woken here is woken when the holder or older waiter before it ends.
    fn wake(&self, freed: &Range<u64>) {
        self.wait.wake_matching(|Want { range, ticket }| {
            if range.start >= freed.end || freed.start >= range.end {
                return Pick::Skip;
            }
            let state = self.state.lock();
            let ready = match ticket {
                Some(ticket) => state.may_take(range, *ticket),
                None => !state.is_held(range),
            };
            if !ready {
                Pick::Skip
            } else if ticket.is_some() && range.start <= freed.start && freed.end <= range.end {
                // This waiter takes all that has become free, and its release wakes the others.
                Pick::WakeAndStop
            } else {
                Pick::Wake
            }
        });
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;
    use std::task::{Context, Waker};

    #[test]
    fn n3_n4_oldest_waiter_is_first_dropped_one_wakes_next() {
        let ranges = Ranges::default();
        let mut cx = Context::from_waker(Waker::noop());
        assert!(ranges.try_take(&(0..1)));
        let (wide, narrow) = (0..8, 4..5);
        let mut older = Box::pin(ranges.take(&wide));
        assert!(older.as_mut().poll(&mut cx).is_pending());
        let mut younger = Box::pin(ranges.take(&narrow));
        assert!(younger.as_mut().poll(&mut cx).is_pending(), "N3: an older waiter wants a part");
        drop(older);
        assert_eq!(ranges.wait.waiters(), 0, "N4: the one behind it was woken");
        assert!(younger.as_mut().poll(&mut cx).is_ready());
    }
}
