//! The line of writers at the dirty limit, and the pace of write-out: plain data and the decisions made
//! of it. Who waits, and for what, is in `throttle`.
//!
//! Lock: the line's, a leaf; wakers are called after it is released.

use super::control::DirtyControl;
use forebay_base::sync::atomic::{Ordering, fence};
use forebay_base::world::Nanos;
use std::collections::BTreeMap;
use std::task::Waker;

/// Writers at the limit wake all flushers, but not more often than this while something is in flight.
const KICK_EVERY: Nanos = 5_000_000;
/// Write-out is measured over this time.
const PACE_SAMPLE: Nanos = 10_000_000;
/// A longer time without a completion says nothing of the speed.
const PACE_IDLE: Nanos = 100_000_000;
/// Room in bytes that writers at the limit wait for before they go on.
const ROOM: u64 = 128 << 10;

/// Writers that wait at the limit, in order of arrival.
#[derive(Default)]
pub(crate) struct Line {
    next: u64,
    waiting: BTreeMap<u64, Option<Waker>>,
}

/// A place in the line; given up on drop.
pub(super) struct Place<'a> {
    control: &'a DirtyControl,
    number: u64,
}

impl Place<'_> {
    /// Leaves word; true if nobody is before it.
    pub(super) fn first(&self, waker: &Waker) -> bool {
        let mut line = self.control.line.lock();
        line.waiting.insert(self.number, Some(waker.clone()));
        // Who makes room looks for waiters after that, and this one looks for room after this.
        fence(Ordering::SeqCst);
        line.waiting.keys().next() == Some(&self.number)
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.control.line.lock().waiting.remove(&self.number);
        self.control.waiting.fetch_sub(1, Ordering::SeqCst);
        self.control.wake_writers(false);
    }
}

/// How fast write-out is, measured while it is at work.
#[derive(Default)]
pub(crate) struct Pace {
    since: Nanos,
    bytes: u64,
    /// Bytes per second, smoothed; 0 is unknown.
    rate: u64,
}

impl Pace {
    fn count(&mut self, now: Nanos, bytes: u64) {
        let elapsed = now.saturating_sub(self.since);
        if elapsed > PACE_IDLE {
            // Nothing was written for a while, or by nobody in a hurry: that says nothing.
            (self.since, self.bytes) = (now, 0);
            return;
        }
        self.bytes += bytes;
        if elapsed >= PACE_SAMPLE {
            let rate = self.bytes * 1_000_000_000 / elapsed;
            self.rate = if self.rate == 0 { rate } else { (self.rate * 3 + rate) / 4 };
            (self.since, self.bytes) = (now, 0);
        }
    }
}

impl DirtyControl {
    /// Bytes were written out.
    pub(crate) fn note_written(&self, now: Nanos, bytes: u64) {
        self.pace.lock().count(now, bytes);
    }

    /// How long a writer of `bytes` pauses: nothing below the background limit, in the middle as long as
    /// write-out takes for as much, at the limit twice that. So writers on the whole go as fast as
    /// write-out, evenly, also where a device reports its completions in bursts.
    pub(super) fn pause(&self, bytes: u64) -> Nanos {
        let (background, limit) = self.limits();
        let over = self.used().saturating_sub(background);
        if over == 0 {
            return 0;
        }
        let rate = self.pace.lock().rate;
        if rate == 0 {
            return 0;
        }
        let share = (over as f64 / limit.saturating_sub(background).max(1) as f64).min(1.0);
        (bytes as f64 / rate as f64 * share * 2e9) as Nanos
    }

    pub(super) fn line_up(&self) -> Place<'_> {
        let mut line = self.line.lock();
        let number = line.next;
        line.next += 1;
        line.waiting.insert(number, None);
        self.waiting.fetch_add(1, Ordering::SeqCst);
        Place { control: self, number }
    }

    /// Wakes the first writer in line, if there may be room; or all of them.
    pub(crate) fn wake_writers(&self, all: bool) {
        fence(Ordering::SeqCst);
        if self.waiting.load(Ordering::SeqCst) == 0 || (!all && !self.worth_a_look()) {
            return;
        }
        let count = if all { usize::MAX } else { 1 };
        let wakers: Vec<_> = {
            let line = self.line.lock();
            line.waiting.values().take(count).flatten().cloned().collect()
        };
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Room for a writer in line, or nothing in flight that would make some.
    fn worth_a_look(&self) -> bool {
        self.has_room() || self.writeback_bytes() == 0
    }

    pub(super) fn has_room(&self) -> bool {
        let (background, limit) = self.limits();
        // Below the background limit flushers stop: nobody may wait for more room than that.
        self.used() <= (limit - (limit / 8).min(ROOM)).max(background.min(limit))
    }

    /// Bytes of a request that pass for one place in the line.
    pub fn portion(&self) -> u64 {
        (self.limits().1 / 8).min(2 * ROOM)
    }

    /// Asks every flusher to look, unless they were asked a moment ago and are at work.
    pub(super) fn kick_all_at(&self, now: Nanos) {
        let last = self.last_kick.load(Ordering::Relaxed);
        if self.writeback_bytes() > 0 && now < last.saturating_add(KICK_EVERY) {
            return;
        }
        self.last_kick.store(now, Ordering::Relaxed);
        self.kick_all();
    }
}
