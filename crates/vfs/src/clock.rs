//! The time of day for the timestamps of inodes. A file system gets a clock, so that a test can
//! give two file systems equal timestamps.
//!
//! No locks.

use crate::types::Timestamp;
use forebay_base::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

/// Provides the time of day.
pub trait Clock: Send + Sync {
    /// The current time.
    fn now(&self) -> Timestamp;

    /// The current time or one up to 10 ms before it, which costs less.
    fn coarse(&self) -> Timestamp {
        self.now()
    }
}

/// The system's clock.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        match SystemTime::now().duration_since(UNIX_EPOCH) {
            Ok(since) => Timestamp::new(since.as_secs() as i64, since.subsec_nanos()),
            Err(before) => {
                let nanos = before.duration().as_nanos() as i128;
                let second = 1_000_000_000;
                let (sec, nsec) = ((-nanos).div_euclid(second), (-nanos).rem_euclid(second));
                Timestamp::new(sec as i64, nsec as u32)
            }
        }
    }

    fn coarse(&self) -> Timestamp {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::RealtimeCoarse);
        Timestamp::new(time.tv_sec, time.tv_nsec as u32)
    }
}

/// A clock that only moves when told to. Begins in the year 2001.
#[derive(Debug)]
pub struct ManualClock {
    nanos: AtomicU64,
}

const SECOND_NANOS: u64 = 1_000_000_000;

impl Default for ManualClock {
    fn default() -> Self {
        Self { nanos: AtomicU64::new(SECOND_NANOS * SECOND_NANOS) }
    }
}

impl ManualClock {
    /// Advances the clock by `nanos`.
    pub fn advance(&self, nanos: u64) {
        self.nanos.fetch_add(nanos, Ordering::Relaxed);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        let nanos = self.nanos.load(Ordering::Relaxed);
        Timestamp::new((nanos / SECOND_NANOS) as i64, (nanos % SECOND_NANOS) as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn coarse_time_is_at_most_a_little_behind() {
        let (before, coarse) = (SystemClock.now(), SystemClock.coarse());
        let nanos = |time: Timestamp| i128::from(time.sec) * 1_000_000_000 + i128::from(time.nsec);
        let behind = nanos(before) - nanos(coarse);
        assert!(behind < 1_000_000_000 && nanos(coarse) <= nanos(SystemClock.now()), "{behind} ns");
    }
}
