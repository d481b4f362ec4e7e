//! Decides how long a loop polls before it sleeps. A client that sends one request at a time sends
//! the next one sooner than a sleeping thread can be woken.
//!
//! Invariants:
//! 1. A loop polls for at most the limit before each sleep. Polls that find no work shorten the
//!    time to 0, and only a sleep within the limit restores it: an idle server uses no CPU.
//! 2. The loop measures repeatedly whether polling or sleeping serves more requests: if client and
//!    server share a CPU, polling takes CPU time from the client.

use std::time::{Duration, Instant};

/// Shortest time of polling, nanoseconds; less does not pay off.
const LEAST: u64 = 2_000;
/// After a longer gap between two turns the measurement restarts.
const IDLE: Duration = Duration::from_millis(1);
/// Turns after which the other mode is tried, and length of that trial.
const STEADY: u32 = 4096;
const TRIAL: u32 = 128;

/// The time of polling, adapted to recent results.
#[derive(Debug)]
pub(super) struct Poller {
    window_nanos: u64,
    /// Polls before a sleep; otherwise sleeps at once.
    on: bool,
    trial: bool,
    turns: u32,
    time: Duration,
    last: Instant,
    served: u64,
    /// Nanoseconds per request: sleeping at once, and polling.
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
    /// Time of polling, nanoseconds; 0: sleep at once.
    pub fn window(&self, limit_nanos: u64) -> u64 {
        if self.on { self.window_nanos.min(limit_nanos) } else { 0 }
    }

    /// Called after each turn; `served` returns the number of requests so far.
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
        // Polling uses CPU, so it has to be better by a tenth.
        self.on = if self.trial { self.cost[1] * 10 < self.cost[0] * 9 } else { !self.on };
        self.trial = !self.trial;
        self.turns = 0;
    }

    /// Called when polling found work.
    pub fn hit(&mut self, limit_nanos: u64) {
        self.window_nanos = limit_nanos;
    }

    /// Called when polling found no work, or another thread needed the CPU.
    pub fn miss(&mut self) {
        self.window_nanos /= 2;
        if self.window_nanos < LEAST {
            self.window_nanos = 0;
        }
    }

    /// Called after a sleep: if it was short, polling would have paid off.
    pub fn slept(&mut self, nanos: u64, limit_nanos: u64) {
        if nanos <= limit_nanos {
            // The full limit, because a shorter poll that finds nothing only wastes CPU.
            self.window_nanos = limit_nanos;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn poller_polls_only_while_it_saves_time() {
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
        // Sleeping is faster, so the poller sleeps until the next trial.
        run(&mut poller, STEADY, 40_000);
        assert_eq!(poller.window(limit), 0, "the trial of the other way");
        run(&mut poller, TRIAL + 1, 20_000);
        assert_eq!(poller.window(limit), 0);
        // From here on sleeping is slower.
        run(&mut poller, STEADY, 20_000);
        assert_eq!(poller.window(limit), limit, "the trial of the other way");
        run(&mut poller, TRIAL + 1, 10_000);
        assert_eq!(poller.window(limit), limit);
        poller.slept(0, 0);
        assert_eq!(poller.window(0), 0, "off");
    }
}
