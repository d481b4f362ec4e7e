//! A set of numbers kept as disjoint, non-touching ranges.

use std::collections::BTreeMap;
use std::ops::Range;

/// See the module.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct RangeSet {
    /// Start to end (exclusive).
    map: BTreeMap<u64, u64>,
    total: u64,
}

impl RangeSet {
    /// Adds a range; returns how many numbers are new.
    pub fn insert(&mut self, range: Range<u64>) -> u64 {
        if range.is_empty() {
            return 0;
        }
        let before = self.total;
        let (mut start, mut end) = (range.start, range.end);
        while let Some((&s, &e)) = self.map.range(..=end).next_back() {
            if e < start {
                break;
            }
            self.map.remove(&s);
            self.total -= e - s;
            start = start.min(s);
            end = end.max(e);
        }
        self.map.insert(start, end);
        self.total += end - start;
        self.total - before
    }

    /// Removes a range; returns how many numbers were there.
    pub fn remove(&mut self, range: Range<u64>) -> u64 {
        let before = self.total;
        while let Some((&s, &e)) = self.map.range(..range.end).next_back() {
            if e <= range.start || range.is_empty() {
                break;
            }
            self.map.remove(&s);
            self.total -= e - s;
            for (a, b) in [(s, e.min(range.start)), (s.max(range.end), e)] {
                if a < b {
                    self.map.insert(a, b);
                    self.total += b - a;
                }
            }
        }
        before - self.total
    }

    /// Whether any number of the range is in the set.
    pub fn overlaps(&self, range: &Range<u64>) -> bool {
        !range.is_empty()
            && self.map.range(..range.end).next_back().is_some_and(|(_, &e)| e > range.start)
    }

    /// What of a range is in the set, descending.
    pub fn within(&self, range: Range<u64>) -> impl Iterator<Item = Range<u64>> + '_ {
        let before = self.map.range(..range.end).rev().map(|(&s, &e)| s..e);
        let there = before.take_while(move |r| r.end > range.start);
        there.map(move |r| r.start.max(range.start)..r.end.min(range.end))
    }

    /// How many numbers are in the set.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// Nothing in it.
    pub fn is_empty(&self) -> bool {
        self.total == 0
    }

    /// The ranges, ascending.
    pub fn iter(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        self.map.iter().map(|(&s, &e)| s..e)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_base::world::split_mix;

    #[test]
    fn agrees_with_a_bit_vector() {
        let mut seed = 3;
        for _ in 0..200 {
            let (mut set, mut model) = (RangeSet::default(), [false; 64]);
            for _ in 0..40 {
                let r = split_mix(&mut seed);
                let (a, b) = ((r >> 8) % 65, (r >> 16) % 65);
                let range = a.min(b)..a.max(b);
                let add = r & 1 == 0;
                let changed = range.clone().filter(|&i| model[i as usize] != add).count() as u64;
                range.clone().for_each(|i| model[i as usize] = add);
                let got = if add { set.insert(range) } else { set.remove(range) };
                assert_eq!(got, changed);
                let flat: Vec<u64> = set.iter().flatten().collect();
                let want: Vec<u64> = (0..64).filter(|&i| model[i as usize]).collect();
                assert_eq!(flat, want);
                assert_eq!(set.total() as usize, want.len());
                let touching = set.iter().zip(set.iter().skip(1)).any(|(x, y)| x.end >= y.start);
                assert!(!touching);
                let part = a.min(b)..a.max(b);
                let mut inside: Vec<u64> = set.within(part.clone()).flatten().collect();
                inside.sort_unstable();
                let expected: Vec<u64> = want.into_iter().filter(|n| part.contains(n)).collect();
                assert_eq!(inside, expected);
                assert_eq!(set.overlaps(&(a..a + 1)), model.get(a as usize) == Some(&true));
            }
        }
    }
}
