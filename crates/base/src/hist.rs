//! Latency histogram: fixed memory, lock-free recording, bounded relative error.
//!
//! Buckets are log-linear: values below 64 have a bucket each, every larger power of two is divided
//! into 64 equal buckets. A bucket stands for its middle, so a percentile is off by at most half a
//! bucket: 1/128 (0.8 %) of the true value, over the whole range of u64.
//!
//! Invariants: H1 every value of u64 has exactly one bucket, and buckets are ordered as values. H2
//! memory never grows (about 30 KiB). H3 `record` takes no lock and never waits.
//!
//! Locks: none. A reader that runs concurrently with writers sees some of their records. Two of its
//! calls may then disagree, but each figure lies within the recorded range.

use crate::sync::atomic::{AtomicU64, Ordering};

/// Bits of a value that are kept below its leading one.
const SUB_BITS: u32 = 6;
/// Buckets per power of two.
const SUB: usize = 1 << SUB_BITS;
/// All buckets: one group of exact small values, then one per leading bit 6..=63.
const BUCKETS: usize = SUB * (64 - SUB_BITS as usize + 1);

/// A histogram of u64 values, nanoseconds as a rule.
pub struct Hist {
    buckets: Box<[AtomicU64]>,
    sum: AtomicU64,
    min: AtomicU64,
    max: AtomicU64,
}

/// The bucket of a value (H1).
fn index_of(value: u64) -> usize {
    if value < SUB as u64 {
        return value as usize;
    }
    let shift = 63 - value.leading_zeros() - SUB_BITS;
    // The leading one is bit SUB_BITS of `value >> shift`: it counts as the first group.
    (shift as usize + 1) * SUB + ((value >> shift) as usize - SUB)
}

/// The middle of a bucket.
fn middle_of(index: usize) -> u64 {
    if index < SUB {
        return index as u64;
    }
    let shift = (index / SUB - 1) as u32;
    let low = ((index % SUB + SUB) as u64) << shift;
    low + ((1u64 << shift) >> 1)
}

impl Default for Hist {
    fn default() -> Self {
        Self::new()
    }
}

impl Hist {
    /// An empty histogram.
    pub fn new() -> Self {
        Self {
            buckets: (0..BUCKETS).map(|_| AtomicU64::new(0)).collect(),
            sum: AtomicU64::new(0),
            min: AtomicU64::new(u64::MAX),
            max: AtomicU64::new(0),
        }
    }

    /// Counts one value.
    pub fn record(&self, value: u64) {
        self.record_n(value, 1);
    }

    /// Counts the same value `n` times.
    pub fn record_n(&self, value: u64, n: u64) {
        if n == 0 {
            return;
        }
        self.buckets[index_of(value)].fetch_add(n, Ordering::Relaxed);
        self.sum.fetch_add(value.wrapping_mul(n), Ordering::Relaxed);
        // Minimum and maximum settle early; the load keeps the cache line shared when neither
        // changes.
        if value < self.min.load(Ordering::Relaxed) {
            self.min.fetch_min(value, Ordering::Relaxed);
        }
        if value > self.max.load(Ordering::Relaxed) {
            self.max.fetch_max(value, Ordering::Relaxed);
        }
    }

    /// Adds everything that `other` holds.
    pub fn merge(&self, other: &Hist) {
        for (mine, theirs) in self.buckets.iter().zip(&other.buckets) {
            let n = theirs.load(Ordering::Relaxed);
            if n > 0 {
                mine.fetch_add(n, Ordering::Relaxed);
            }
        }
        self.sum.fetch_add(other.sum.load(Ordering::Relaxed), Ordering::Relaxed);
        self.min.fetch_min(other.min.load(Ordering::Relaxed), Ordering::Relaxed);
        self.max.fetch_max(other.max.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    /// How many values were counted.
    pub fn count(&self) -> u64 {
        self.buckets.iter().map(|b| b.load(Ordering::Relaxed)).sum()
    }

    /// The smallest value, exact; 0 when empty.
    pub fn min(&self) -> u64 {
        let min = self.min.load(Ordering::Relaxed);
        if min == u64::MAX && self.max() != u64::MAX { 0 } else { min }
    }

    /// The largest value, exact; 0 when empty.
    pub fn max(&self) -> u64 {
        self.max.load(Ordering::Relaxed)
    }

    /// The mean, exact as long as the sum of all values stays below 2^64; 0 when empty.
    pub fn mean(&self) -> f64 {
        match self.count() {
            0 => 0.0,
            n => self.sum.load(Ordering::Relaxed) as f64 / n as f64,
        }
    }

    /// The value below or at which `p` percent of the values lie; `p` from 0 to 100, clamped.
    /// Off by at most 1/128; never outside `min..=max`; 0 when empty.
    pub fn percentile(&self, p: f64) -> u64 {
        let count = self.count();
        if count == 0 {
            return 0;
        }
        let rank = ((p.clamp(0.0, 100.0) / 100.0 * count as f64).ceil() as u64).clamp(1, count);
        let (low, high) = (self.min(), self.max());
        if rank == 1 {
            return low;
        }
        if rank == count {
            return high;
        }
        let mut seen = 0;
        for (index, bucket) in self.buckets.iter().enumerate() {
            seen += bucket.load(Ordering::Relaxed);
            if seen >= rank {
                return middle_of(index).max(low).min(high);
            }
        }
        high
    }

    /// The buckets in use, in order: a value that falls into the bucket, and its count. `record_n`
    /// of each pair into another histogram gives the same percentiles; the exact minimum and
    /// maximum are lost.
    pub fn occupied(&self) -> Vec<(u64, u64)> {
        let counts = self.buckets.iter().map(|b| b.load(Ordering::Relaxed)).enumerate();
        counts.filter(|(_, n)| *n > 0).map(|(index, n)| (middle_of(index), n)).collect()
    }
}

impl std::fmt::Debug for Hist {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "Hist(n {} min {} p50 {} p99 {} p99.9 {} max {})",
            self.count(),
            self.min(),
            self.percentile(50.0),
            self.percentile(99.0),
            self.percentile(99.9),
            self.max()
        )
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;
    use crate::world::split_mix;

    #[test]
    fn buckets_are_ordered_and_close() {
        let mut last = 0;
        for bit in 0..64 {
            for fine in 0..200u64 {
                let value =
                    (1u64 << bit) | ((1u64 << bit) - 1).min(fine * ((1 << bit) / 200).max(1));
                let index = index_of(value);
                assert!(index < BUCKETS);
                assert!(middle_of(index).abs_diff(value) <= value / 128, "{value}");
                assert_eq!(index_of(middle_of(index)), index, "H1: a bucket holds its middle");
                if fine == 0 {
                    assert!(index >= last, "H1: {value}");
                }
                last = index;
            }
        }
        assert_eq!(index_of(u64::MAX), BUCKETS - 1);
    }

    fn check(values: &mut [u64]) {
        let hist = Hist::new();
        values.iter().for_each(|v| hist.record(*v));
        values.sort_unstable();
        let n = values.len();
        assert_eq!(hist.count(), n as u64);
        assert!(size_of_val(&*hist.buckets) <= 32 << 10, "H2: as large as in the beginning");
        assert_eq!((hist.min(), hist.max()), (values[0], values[n - 1]));
        let mean = values.iter().sum::<u64>() as f64 / n as f64;
        assert!((hist.mean() - mean).abs() <= mean * 1e-9);
        for p in [0.0, 1.0, 25.0, 50.0, 90.0, 99.0, 99.9, 100.0] {
            let rank = ((p / 100.0 * n as f64).ceil() as usize).clamp(1, n);
            let (got, want) = (hist.percentile(p), values[rank - 1]);
            assert!(got.abs_diff(want) <= want / 128, "p{p} of {n}: {got} for {want}");
        }
    }

    #[test]
    fn agrees_with_a_sorted_vector() {
        let mut seed = 11;
        for round in 0..200 {
            let n = 1 + (split_mix(&mut seed) % 3000) as usize;
            let bits = 1 + round % 40;
            let mut values: Vec<u64> = (0..n)
                .map(|_| split_mix(&mut seed) >> (64 - 1 - split_mix(&mut seed) % bits))
                .collect();
            check(&mut values);
        }
        check(&mut [7]);
        check(&mut [0, 0, 0]);
    }

    #[test]
    fn hist_merged_equals_recorded_in_one() {
        let (a, b, both) = (Hist::new(), Hist::new(), Hist::new());
        let mut seed = 5;
        for i in 0..10_000 {
            let value = split_mix(&mut seed) >> 30;
            if i % 3 == 0 { &a } else { &b }.record(value);
            both.record(value);
        }
        a.merge(&b);
        assert_eq!(format!("{a:?}"), format!("{both:?}"));
        let empty = Hist::new();
        assert_eq!((empty.count(), empty.min(), empty.max(), empty.percentile(50.0)), (0, 0, 0, 0));
        empty.merge(&Hist::new());
        assert_eq!((empty.count(), empty.min(), empty.max()), (0, 0, 0));
    }

    #[test]
    fn hist_rebuilt_from_occupied_keeps_percentiles() {
        let (hist, copy) = (Hist::new(), Hist::new());
        (0..5000u64).for_each(|n| hist.record(n * n));
        hist.occupied().into_iter().for_each(|(value, n)| copy.record_n(value, n));
        assert_eq!(copy.count(), 5000);
        let (a, b) = (hist.percentile(99.0), copy.percentile(99.0));
        assert!(a.abs_diff(b) <= a / 64, "{a} and {b}");
    }

    #[test]
    fn threads_lose_nothing() {
        let hist = Hist::new();
        std::thread::scope(|scope| {
            for t in 0..4u64 {
                let hist = &hist;
                scope.spawn(move || (0..10_000).for_each(|i| hist.record(i * 4 + t)));
            }
        });
        assert_eq!((hist.count(), hist.min(), hist.max()), (40_000, 0, 39_999));
        assert!(hist.percentile(50.0).abs_diff(20_000) <= 20_000 / 128 + 1);
    }
}
