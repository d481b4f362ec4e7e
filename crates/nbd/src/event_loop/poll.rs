//! Looking around for a moment before sleeping: waking a sleeping thread takes longer than a client
//! that sends one request at a time needs for its next one.
//!
//! Invariants:
//! 1. A loop looks around for at most the limit before each sleep, and not at all while the last
//!    sleeps were longer than the limit: an idle server uses no CPU.
//! 2. At most half of the CPUs look around at a time: clients need the others.

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
/// Longer than this between two looks: somebody else wanted the CPU.
const PREEMPTED: Duration = Duration::from_micros(50);

/// For how long to look around, as the last times went.
#[derive(Debug, Default)]
pub(super) struct Poller {
    window_nanos: u64,
}

impl Poller {
    /// Time to look around, nanoseconds; 0: sleep at once.
    fn window(&self, limit_nanos: u64) -> u64 {
        self.window_nanos.min(limit_nanos)
    }

    /// Something came while we looked.
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

    /// A sleep is over. Short ones would have been worth a look.
    pub fn slept(&mut self, nanos: u64, limit_nanos: u64) {
        if nanos <= limit_nanos {
            self.window_nanos = (self.window_nanos * 2).max(4 * LEAST).min(limit_nanos);
        }
    }
}

impl EventLoop {
    /// Looks around for a moment. True: there is something to do; `events` has what the sockets and
    /// queues had to say.
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
        poller.slept(0, 0);
        assert_eq!(poller.window(0), 0, "off");
    }
}
