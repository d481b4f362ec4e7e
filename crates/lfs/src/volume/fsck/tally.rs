//! Compares two lists by number, each in an order of its own, in memory of fixed size. One side
//! adds a hash of what it says of a number, the other side subtracts a hash of what it found. A sum
//! that is not zero shows that some number of its bucket differs.
//!
//! Invariant: E18 all numbers for which the sides differ are suspects, unless hashes of 64 bits
//! collide. Where counts of a single number differ, they cannot collide.
//!
//! No locks.

use forebay_base::world::split_mix;

/// Sums of the differences, in buckets of numbers.
pub(super) struct Tally {
    sums: Box<[u64]>,
    seed: u64,
}

/// Mixed into what makes a number a suspect without a comparison.
const SUSPECT: u64 = u64::MAX;

impl Tally {
    /// With this number of buckets, rounded up to a power of two. `seed`: a random number, so
    /// that no image can be made for hashes that collide.
    pub fn new(buckets: usize, seed: u64) -> Self {
        Self { sums: vec![0; buckets.next_power_of_two()].into(), seed }
    }

    /// Says `times` times that number `number` has these figures.
    pub fn add(&mut self, number: u64, figures: [u64; 2], times: u64) {
        let term = hash(self.seed, number, figures).wrapping_mul(times);
        let bucket = self.bucket(number);
        self.sums[bucket] = self.sums[bucket].wrapping_add(term);
    }

    /// Has found once that number `number` has these figures.
    pub fn subtract(&mut self, number: u64, figures: [u64; 2]) {
        self.add(number, figures, u64::MAX);
    }

    /// Makes a number a suspect.
    pub fn suspect(&mut self, number: u64) {
        self.add(number, [SUSPECT; 2], 1);
    }

    /// Whether the number may be one for which the sides differ.
    pub fn is_suspect(&self, number: u64) -> bool {
        self.sums[self.bucket(number)] != 0
    }

    /// Whether there are no suspects.
    pub fn is_balanced(&self) -> bool {
        self.sums.iter().all(|sum| *sum == 0)
    }

    fn bucket(&self, number: u64) -> usize {
        split_mix(&mut { number }) as usize & (self.sums.len() - 1)
    }
}

/// An odd number: no count below 2^64 of it is zero (E18).
fn hash(seed: u64, number: u64, figures: [u64; 2]) -> u64 {
    let mut hash = seed ^ number;
    hash = split_mix(&mut hash) ^ seed;
    for figure in figures {
        hash = split_mix(&mut hash) ^ figure;
    }
    split_mix(&mut hash) | 1
}

#[cfg(test)]
mod tests {
    use super::*;

    /// tally.E18: each difference of figures or counts is found, and nothing else is a suspect
    /// except the numbers of the same bucket.
    #[test]
    fn tally_finds_each_number_that_differs() {
        for wrong in 0..500u64 {
            for kind in 0..4 {
                let mut tally = Tally::new(1000, wrong);
                let figures = |number: u64| [number % 7, number * number];
                (0..500).for_each(|number| tally.add(number, figures(number), number % 3));
                for number in (0..500).rev() {
                    (0..number % 3).for_each(|_| tally.subtract(number, figures(number)));
                }
                assert!(tally.is_balanced());
                let [a, b] = figures(wrong);
                match kind {
                    0 => tally.add(wrong, [a, b], 1 << 31),
                    1 => tally.subtract(wrong, [a, b]),
                    2 => {
                        tally.add(wrong, [a, b], 1);
                        tally.subtract(wrong, [b + 1, a]);
                    }
                    _ => tally.suspect(wrong),
                }
                assert!(!tally.is_balanced() && tally.is_suspect(wrong), "{wrong} {kind}");
                let bucket = tally.bucket(wrong);
                let suspects = (0..500).filter(|number| tally.is_suspect(*number));
                assert!(suspects.into_iter().all(|number| tally.bucket(number) == bucket));
            }
        }
    }
}
