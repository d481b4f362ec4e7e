//! The line of writers at the dirty limit, and the pace of write-out: plain data. Who waits, and for
//! what, is decided in `domain`.
//!
//! Invariant L-a: places are served in order of arrival; a place is in the line until it is given up.
//! No locks: the domain's are around both.

use forebay_base::world::Nanos;
use std::collections::BTreeMap;
use std::task::Waker;

/// Write-out is measured over this time.
const PACE_SAMPLE: Nanos = 10_000_000;
/// A longer time without a completion says nothing of the speed.
const PACE_IDLE: Nanos = 100_000_000;

/// Writers that wait at the limit, in order of arrival.
#[derive(Default)]
pub(super) struct Line {
    next: u64,
    waiting: BTreeMap<u64, Option<Waker>>,
}

impl Line {
    /// A place at the end.
    pub fn line_up(&mut self) -> u64 {
        let number = self.next;
        self.next += 1;
        self.waiting.insert(number, None);
        number
    }

    /// Leaves word at a place; true if nobody is before it.
    pub fn wait(&mut self, number: u64, waker: &Waker) -> bool {
        let known = self.waiting.insert(number, Some(waker.clone()));
        debug_assert!(known.is_some(), "L-a: place {number} was given up");
        self.waiting.keys().next() == Some(&number)
    }

    /// Gives a place up.
    pub fn leave(&mut self, number: u64) {
        self.waiting.remove(&number);
    }

    /// The wakers of the first `count`.
    pub fn first(&self, count: usize) -> Vec<Waker> {
        self.waiting.values().take(count).flatten().cloned().collect()
    }
}

/// How fast write-out is, measured while it is at work.
#[derive(Default)]
pub(super) struct Pace {
    since: Nanos,
    bytes: u64,
    /// Bytes per second, smoothed; 0 is unknown.
    pub rate: u64,
}

impl Pace {
    pub fn count(&mut self, now: Nanos, bytes: u64) {
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
