//! Polling for a short time before sleeping: waking a sleeping thread takes longer than a client
//! that sends one request at a time needs for its next one.
//!
//! Invariants:
//! 1. A loop polls for at most the limit before each sleep, and not at all while the last sleeps
//!    were longer than the limit: an idle server uses no CPU.
//! 2. The loop measures repeatedly whether polling or sleeping serves more requests: where client
//!    and server share a CPU, polling takes it from the client.
//! 3. At most half of the CPUs poll at a time: clients need the others.

use super::{EventLoop, failed};
use crate::stats::bump;
use forebay_base::Result;
use forebay_base::sync::atomic::Ordering;
use rustix::event::Timespec;
use rustix::event::epoll::{self, Event};
use rustix::io::Errno;
use std::time::{Duration, Instant};

/// Shortest time that is worth it, nanoseconds.
const LEAST: u64 = 2_000;
/// A longer gap between two polls means that another thread wanted the CPU.
const PREEMPTED: Duration = Duration::from_micros(50);

/// Longer than this between two turns: nothing is to be learned from that.
const IDLE: Duration = Duration::from_millis(1);
/// Turns after which the other way is tried, and for how many.
const STEADY: u32 = 4096;
const TRIAL: u32 = 128;

/// The polling time, adapted to the recent results.
#[derive(Debug)]
pub(super) struct Poller {
    window_nanos: u64,
    /// Looks around, or sleeps at once.
    on: bool,
    trial: bool,
    turns: u32,
    time: Duration,
    last: Instant,
    served: u64,
    /// Nanoseconds per request when sleeping at once, and when polling.
    cost: [u64; 2],
}

impl Default for Poller {
    fn default() -> Self {
        Self {
            window_nanos: 0,
            on: true,
            trial: false,
            turns: 0,
            time: Duration::ZERO,
            last: Instant::now(),
            served: 0,
            cost: [0; 2],
        }
    }
}

impl Poller {
    /// Time to poll, nanoseconds; 0: sleep at once.
    fn window(&self, limit_nanos: u64) -> u64 {
        if self.on { self.window_nanos.min(limit_nanos) } else { 0 }
    }

    /// A turn is over; `served` counts the requests so far.
    pub fn turn(&mut self, now: Instant, served: impl FnOnce() -> u64) {
        let passed = now.saturating_duration_since(self.last);
        self.last = now;
        if passed > IDLE || self.turns == 0 {
            (self.turns, self.time, self.served) = (1, Duration::ZERO, served());
            return;
        }
        self.turns += 1;
        self.time += passed;
        if self.turns < if self.trial { TRIAL } else { STEADY } {
            return;
        }
        let requests = (served() - self.served).max(1);
        self.cost[usize::from(self.on)] = self.time.as_nanos() as u64 / requests;
        // It uses CPU, so it has to be better by a tenth.
        self.on = if self.trial { self.cost[1] * 10 < self.cost[0] * 9 } else { !self.on };
        self.trial = !self.trial;
        self.turns = 0;
    }

    /// Polling found work.
    fn hit(&mut self, limit_nanos: u64) {
        self.window_nanos = limit_nanos;
    }

    /// Nothing came, or the CPU was wanted.
    fn miss(&mut self) {
        self.window_nanos /= 2;
        if self.window_nanos < LEAST {
            self.window_nanos = 0;
        }
    }

    /// A sleep is over. After a short one polling would have paid off.
    pub fn slept(&mut self, nanos: u64, limit_nanos: u64) {
        if nanos <= limit_nanos {
            // The full limit: a shorter poll that finds nothing only costs.
            self.window_nanos = limit_nanos;
        }
    }
}

impl EventLoop {
    /// Polls for a short time. True: there is work; `events` has the events of sockets and queues.
    pub(super) fn look_around(&mut self, events: &mut Vec<Event>) -> Result<bool> {
        let shared = self.core.shared.clone();
        let limit = shared.poll_nanos.load(Ordering::Relaxed);
        let window = Duration::from_nanos(self.poller.window(limit));
        if window.is_zero() {
            return Ok(false);
        }
        if shared.pollers.fetch_add(1, Ordering::Relaxed) >= shared.pollers_max {
            shared.pollers.fetch_sub(1, Ordering::Relaxed);
            return Ok(false);
        }
        let found = self.look_for(events, window);
        shared.pollers.fetch_sub(1, Ordering::Relaxed);
        let found = found?;
        if found {
            self.poller.hit(limit);
        } else {
            self.poller.miss();
        }
        Ok(found)
    }

    fn look_for(&mut self, events: &mut Vec<Event>, window: Duration) -> Result<bool> {
        let start = Instant::now();
        let mut last = start;
        let found = loop {
            let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
            match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(events), Some(&zero)) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(e) => return Err(failed(e)),
            }
            if !events.is_empty() || self.core.exec.is_woken() {
                break true;
            }
            let now = Instant::now();
            if now - start >= window || now - last > PREEMPTED {
                break false;
            }
            last = now;
        };
        self.now = Instant::now();
        let stats = &self.core.stats;
        bump(&stats.poll_nanos, (self.now - start).as_nanos() as u64);
        bump(if found { &stats.poll_hits } else { &stats.poll_misses }, 1);
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_looks_while_that_pays_off() {
        let limit = 50_000;
        let mut poller = Poller::default();
        let (mut now, mut served) = (Instant::now(), 0);
        assert_eq!(poller.window(limit), 0, "nothing is known yet");
        poller.slept(10_000_000, limit);
        assert_eq!(poller.window(limit), 0, "idle");
        poller.slept(20_000, limit);
        assert!(poller.window(limit) > 0);
        poller.hit(limit);
        assert_eq!(poller.window(limit), limit);
        assert_eq!(poller.window(10_000), 10_000, "the limit was lowered");
        (0..10).for_each(|_| poller.miss());
        assert_eq!(poller.window(limit), 0);
        poller.slept(20_000, limit);
        poller.hit(limit);
        let mut run = |poller: &mut Poller, turns: u32, nanos: u64| {
            for _ in 0..turns {
                served += 1;
                now += Duration::from_nanos(nanos);
                poller.turn(now, || served);
            }
        };
        // Sleeping turns out to be faster: it stays with that until the next trial.
        run(&mut poller, STEADY, 40_000);
        assert_eq!(poller.window(limit), 0, "the trial of the other way");
        run(&mut poller, TRIAL + 1, 20_000);
        assert_eq!(poller.window(limit), 0);
        // Later it is slower.
        run(&mut poller, STEADY, 20_000);
        assert_eq!(poller.window(limit), limit, "the trial of the other way");
        run(&mut poller, TRIAL + 1, 10_000);
        assert_eq!(poller.window(limit), limit);
        poller.slept(0, 0);
        assert_eq!(poller.window(0), 0, "off");
    }
}
