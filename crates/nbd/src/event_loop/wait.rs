//! Waiting for events: a loop with nothing to do polls for a short time, then sleeps.
//!
//! Invariant: at most half of the CPUs poll at a time, because clients need the others.

use super::{EventLoop, SPECIAL, TICK, WAKE, failed};
use crate::stats::bump;
use forebay_base::Result;
use forebay_base::sync::atomic::Ordering;
use rustix::event::Timespec;
use rustix::event::epoll::{self, Event};
use rustix::io::Errno;
use std::time::{Duration, Instant};

/// A longer gap between two polls means that another thread wanted the CPU.
const PREEMPTED: Duration = Duration::from_micros(50);

impl EventLoop {
    /// Whether the loop has nothing to do until an event of a socket, queue or other thread.
    fn is_quiet(&self) -> bool {
        self.handle().inbox.lock().is_empty()
            && !self.handle().evict.load(Ordering::SeqCst)
            && (self.stop_at.is_some() || !self.core.shared.stop.load(Ordering::SeqCst))
            // Without this check a limit set before the loop slept would take effect only at its
            // next wake.
            && self.core.pool.bytes_max() == self.pool_bytes_max()
    }

    /// Waits for events, without sleeping if the loop is `busy`.
    pub(super) fn wait(&mut self, events: &mut Vec<Event>, busy: bool) -> Result<()> {
        events.clear();
        bump(&self.core.stats.turns, 1);
        let quiet = !busy && !self.core.exec.is_woken() && self.is_quiet();
        if quiet {
            let stats = &self.core.stats;
            let served = || stats.requests.iter().map(|n| n.load(Ordering::Relaxed)).sum();
            self.poller.turn(self.now, served);
        }
        if quiet && self.poll_briefly(events)? {
            return Ok(());
        }
        // From `may_sleep` on another thread with work for this loop writes its eventfd. Work from
        // before that is found by checking once more.
        let sleep = quiet && self.core.exec.may_sleep() && self.is_quiet();
        let timed = self.handshakes > 0
            || !self.waiting.is_empty()
            || self.accept_paused
            || self.stop_at.is_some()
            || self.core.shared.memory.waiting.load(Ordering::Relaxed) > 0;
        let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
        let short = Timespec { tv_sec: 0, tv_nsec: TICK.as_nanos() as i64 };
        let timeout = match (sleep, timed) {
            (false, _) => Some(&zero),
            (true, true) => Some(&short),
            (true, false) => None,
        };
        bump(&self.core.stats.sleeps, u64::from(sleep));
        let before = self.now;
        match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(events), timeout) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(e) => return Err(failed(e)),
        }
        let wake = u64::from(SPECIAL) << 32 | u64::from(WAKE);
        let woken = events.iter().any(|e| e.data.u64() == wake);
        if sleep {
            self.now = Instant::now();
            let limit = self.core.shared.poll_nanos.load(Ordering::Relaxed);
            self.poller.slept((self.now - before).as_nanos() as u64, limit);
        }
        // Called also if the loop did not sleep, so that no other thread writes the eventfd in
        // vain.
        if quiet || woken {
            self.core.exec.awake(woken);
        }
        Ok(())
    }

    /// Polls for a short time. True: there is work; `events` has the events of sockets and queues.
    fn poll_briefly(&mut self, events: &mut Vec<Event>) -> Result<bool> {
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
