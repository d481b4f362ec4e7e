//! What a collector keeps: points of the counters over time, and the latest view of a source.
//!
//! No locks.

use crate::source::Number;
use forebay::latency::Taken;
use forebay::{Snapshot, Stats};

/// A sample of the counters, and their changes since the sample before.
#[derive(Debug, Clone, Default)]
pub struct Point {
    /// Number of the point; the first is 1.
    pub number: u64,
    /// Time since the collector was created, seconds.
    pub at_seconds: f64,
    /// Time since the point before, seconds: rates refer to it.
    pub over_seconds: f64,
    /// The counters at this point.
    pub stats: Stats,
    /// The changes of the counters since the point before.
    pub since: Stats,
    /// Latencies of the operations that ended since the point before.
    pub latencies: [(&'static str, Taken); 3],
}

impl Point {
    /// Rate of a counter per second.
    pub fn rate(&self, amount: u64) -> f64 {
        if self.over_seconds > 0.0 { amount as f64 / self.over_seconds } else { 0.0 }
    }

    /// Hit ratio of the blocks of reads and writes, 0 to 1; `None` without requests.
    pub fn hit_ratio(&self) -> Option<f64> {
        let all = self.since.hits + self.since.misses;
        (all > 0).then(|| self.since.hits as f64 / all as f64)
    }
}

/// The latest sample.
pub struct View {
    /// What the process does, in a word.
    pub what: String,
    /// The I/O engine.
    pub engine: String,
    /// The latest point.
    pub point: Point,
    /// The snapshot of the cache.
    pub snapshot: Snapshot,
    /// Numbers of the front end.
    pub front: Vec<Number>,
    /// The failure of the health check, if any.
    pub health: Result<(), String>,
}
