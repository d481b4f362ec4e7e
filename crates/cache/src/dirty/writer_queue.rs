//! The queue of writers at the dirty limit, and the pace of write-out: plain data. `domain` decides
//! which writers wait, and for what.
//!
//! Invariant L-a: tickets are served in order of arrival; a ticket is in the queue until it is
//! given up.
//!
//! No locks: the domain's are around both.

use forebay_base::world::Nanos;
use std::collections::BTreeMap;
use std::task::Waker;

/// A sample of the speed of write-out takes at least this long.
const PACE_SAMPLE: Nanos = 10_000_000;
/// A sample that takes longer is discarded: write-out was idle in between.
const PACE_IDLE: Nanos = 100_000_000;

/// Writers that wait at the limit, in order of arrival.
#[derive(Default)]
pub(crate) struct WriterQueue {
    next: u64,
    waiting: BTreeMap<u64, Option<Waker>>,
}

impl WriterQueue {
    /// A ticket at the end of the queue.
    pub fn take_ticket(&mut self) -> u64 {
        let number = self.next;
        self.next += 1;
        self.waiting.insert(number, None);
        number
    }

    /// Registers the waker of a ticket; true if it is the first.
    pub fn wait(&mut self, number: u64, waker: &Waker) -> bool {
        let known = self.waiting.insert(number, Some(waker.clone()));
        debug_assert!(known.is_some(), "L-a: place {number} was given up");
        self.waiting.keys().next() == Some(&number)
    }

    /// Gives a ticket up.
    pub fn leave(&mut self, number: u64) {
        self.waiting.remove(&number);
    }

    /// The wakers of the first `count` writers.
    pub fn first(&self, count: usize) -> Vec<Waker> {
        self.waiting.values().take(count).flatten().cloned().collect()
    }
}

/// How fast write-out is, measured while it is at work.
#[derive(Default)]
pub(crate) struct Pace {
    since: Nanos,
    bytes: u64,
    /// Bytes per second, smoothed; 0 is unknown.
    pub rate: u64,
}

impl Pace {
    pub fn count(&mut self, now: Nanos, bytes: u64) {
        let elapsed = now.saturating_sub(self.since);
        if elapsed > PACE_IDLE {
            // The measurement restarts: little was written in that time, or without pressure.
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
