//! Latency histogram: an HDR histogram of two digits, so each figure is off by at most 0.8 %.

use hdrhistogram::Histogram;

/// A histogram of nanoseconds. Its memory grows with the largest value, to some 60 KiB.
#[derive(Clone, Debug)]
pub struct Hist(Histogram<u64>);

impl Default for Hist {
    fn default() -> Self {
        Self(Histogram::new(2).expect("a histogram may have two digits"))
    }
}

impl Hist {
    /// Counts one value.
    pub fn record(&mut self, nanos: u64) {
        self.record_n(nanos, 1);
    }

    /// Counts the same value `n` times.
    pub fn record_n(&mut self, nanos: u64, n: u64) {
        self.0.record_n(nanos, n).expect("the histogram grows with its values");
    }

    /// Adds the values of `other`.
    pub fn merge(&mut self, other: &Self) {
        self.0.add(&other.0).expect("the histogram grows with its values");
    }

    /// Number of values.
    pub fn count(&self) -> u64 {
        self.0.len()
    }

    /// The largest value; 0 if there are none.
    pub fn max(&self) -> u64 {
        self.0.max()
    }

    /// The mean; 0 if there are no values.
    pub fn mean(&self) -> f64 {
        self.0.mean()
    }

    /// The value at or below which `p` percent of the values lie; 0 if there are none.
    pub fn percentile(&self, p: f64) -> u64 {
        self.0.value_at_percentile(p)
    }

    /// Values and their counts; `record_n` of each pair restores an equal histogram.
    pub fn occupied(&self) -> Vec<(u64, u64)> {
        let steps = self.0.iter_recorded();
        steps.map(|step| (step.value_iterated_to(), step.count_at_value())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hist_figures_are_close_and_survive_merge_and_copy() {
        let (mut all, mut odd, mut copy) = (Hist::default(), Hist::default(), Hist::default());
        for n in 1..=10_000u64 {
            if n % 2 == 0 { &mut all } else { &mut odd }.record(n * 1000);
        }
        all.merge(&odd);
        all.occupied().into_iter().for_each(|(value, n)| copy.record_n(value, n));
        for hist in [&all, &copy] {
            assert_eq!(hist.count(), 10_000);
            let figures = [hist.percentile(50.0), hist.percentile(99.0), hist.max()];
            for (figure, exact) in figures.into_iter().zip([5_000_000, 9_900_000, 10_000_000u64]) {
                assert!(figure.abs_diff(exact) <= exact / 120, "{figure} for {exact}");
            }
            assert!((hist.mean() / 5_000_500.0 - 1.0).abs() < 0.01, "{}", hist.mean());
        }
        let none = Hist::default();
        assert_eq!((none.count(), none.max(), none.percentile(99.0)), (0, 0, 0));
        assert_eq!(none.mean(), 0.0);
    }

    /// Any value is recorded, such as that of a clock that has jumped.
    #[test]
    fn hist_takes_every_value() {
        let mut hist = Hist::default();
        [0, 1, u64::MAX / 2, u64::MAX].into_iter().for_each(|value| hist.record(value));
        assert_eq!(hist.count(), 4);
    }
}
