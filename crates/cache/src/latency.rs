//! Latencies of operations: histograms of powers of two, made of relaxed atomics. A hit records
//! nothing and reads no clock; only operations that wait for a device do. Locks: none.

use forebay_base::sync::atomic::{AtomicU64, Ordering};

/// Buckets of a histogram. Bucket `n` counts the operations that took less than [`bound_nanos`] of
/// it and are in no earlier one; the last bucket has no bound.
pub const BUCKETS: usize = 24;
/// Bound of the first bucket, ns.
const FIRST_NANOS: u64 = 1 << 12;

/// Upper bound of a bucket, ns: 4,096 for the first, twice that for each next one; 17 s for the
/// last but one.
pub fn bound_nanos(bucket: usize) -> u64 {
    if bucket + 1 >= BUCKETS { u64::MAX } else { FIRST_NANOS << bucket }
}

/// A histogram that operations add to.
pub struct Histogram {
    counts: [AtomicU64; BUCKETS],
    nanos: AtomicU64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self { counts: [const { AtomicU64::new(0) }; BUCKETS], nanos: AtomicU64::new(0) }
    }
}

impl Histogram {
    /// Counts an operation that took `nanos`.
    pub fn add(&self, nanos: u64) {
        let bits = (nanos / FIRST_NANOS).checked_ilog2().map_or(0, |log| log as usize + 1);
        self.counts[bits.min(BUCKETS - 1)].fetch_add(1, Ordering::Relaxed);
        self.nanos.fetch_add(nanos, Ordering::Relaxed);
    }

    /// The counts so far.
    pub fn snapshot(&self) -> Taken {
        Taken {
            counts: self.counts.each_ref().map(|count| count.load(Ordering::Relaxed)),
            nanos: self.nanos.load(Ordering::Relaxed),
        }
    }
}

/// The counts of a histogram at one moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Taken {
    /// Operations in each bucket.
    pub counts: [u64; BUCKETS],
    /// Sum of all, ns.
    pub nanos: u64,
}

impl Taken {
    /// How many operations.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// The operations since `before`.
    pub fn since(&self, before: &Self) -> Self {
        let mut counts = self.counts;
        for (count, old) in counts.iter_mut().zip(before.counts) {
            *count = count.saturating_sub(old);
        }
        Self { counts, nanos: self.nanos.saturating_sub(before.nanos) }
    }

    /// The time within which this share (0.0 to 1.0) of the operations ended, ns, to the precision
    /// of the buckets; `None` without operations.
    pub fn quantile(&self, share: f64) -> Option<u64> {
        let all = self.count();
        let wanted = ((all as f64 * share).ceil() as u64).clamp(1, all.max(1));
        let mut seen = 0;
        let at = self.counts.iter().position(|count| {
            seen += count;
            seen >= wanted
        });
        // The last bucket has no bound: the answer is then the bound before it, which is too low.
        at.map(|bucket| bound_nanos(bucket.min(BUCKETS - 2)))
    }
}

/// The timed operations of a cache.
#[derive(Default)]
pub struct Latencies {
    /// Reads that could not be answered at once, from the call to the answer.
    pub read: Histogram,
    /// Write-outs, from capture to completion.
    pub writeback: Histogram,
    /// Flushes and commits, from the call to the answer.
    pub flush: Histogram,
}

impl Latencies {
    /// Names and counts.
    pub fn snapshot(&self) -> [(&'static str, Taken); 3] {
        [
            ("read_wait", self.read.snapshot()),
            ("writeback", self.writeback.snapshot()),
            ("flush", self.flush.snapshot()),
        ]
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn histogram_time_falls_in_first_larger_bucket() {
        for nanos in [0, 1, 4095, 4096, 8191, 8192, 1 << 20, 1 << 33, 1 << 34, u64::MAX] {
            let histogram = Histogram::default();
            histogram.add(nanos);
            let at = histogram.snapshot().counts.iter().position(|&n| n == 1).unwrap();
            assert!(nanos < bound_nanos(at) || at == BUCKETS - 1, "{nanos} in {at}");
            assert!(at == 0 || nanos >= bound_nanos(at - 1), "{nanos} in {at}");
        }
    }

    #[test]
    fn quantiles_are_bounds() {
        assert_eq!(Taken::default().quantile(0.5), None);
        let histogram = Histogram::default();
        (0..99).for_each(|_| histogram.add(5000));
        histogram.add(1 << 25);
        let taken = histogram.snapshot();
        assert_eq!((taken.quantile(0.5), taken.quantile(0.99)), (Some(8192), Some(8192)));
        assert_eq!(taken.quantile(1.0), Some(1 << 26));
        let more = histogram.snapshot().since(&taken);
        assert_eq!((more.count(), more.nanos), (0, 0));
    }
}
