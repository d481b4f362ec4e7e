//! A set of numbers kept as disjoint, non-touching ranges, in sorted parts of bounded length.
//!
//! Invariants: G1 the ranges are ascending and do not touch. G2 no part is empty, none has more
//! than `PART` ranges. G3 the memory of parts is reused: a set that was cleared, or has shrunk,
//! grows to its former size without allocating.
//!
//! Lock: that of `SpareSets`, a leaf.

use forebay_base::sync::Mutex;
use std::ops::Range;

/// Most ranges of a part.
const PART: usize = 64;

/// Start and end (exclusive).
type Run = (u64, u64);

/// A sorted set of disjoint ranges of numbers.
#[derive(Debug, Default, Clone)]
pub struct RangeSet {
    parts: Vec<Vec<Run>>,
    /// Memory for parts, empty (G3).
    spare: Vec<Vec<Run>>,
    total: u64,
}

/// Empty sets that keep their memory for the next user.
#[derive(Default)]
pub(crate) struct SpareSets(pub Mutex<Vec<RangeSet>>);

impl RangeSet {
    /// Part and place in it of the first range that ends behind `at`.
    fn seek(&self, at: u64) -> (usize, usize) {
        let p = self.parts.partition_point(|part| part.last().is_some_and(|run| run.1 <= at));
        (p, self.parts.get(p).map_or(0, |part| part.partition_point(|run| run.1 <= at)))
    }

    fn at(&self, (p, i): (usize, usize)) -> Option<Run> {
        self.parts.get(p)?.get(i).copied()
    }

    /// Removes the range at a position; returns the position of the next one.
    fn take_at(&mut self, (p, i): (usize, usize)) -> (usize, usize) {
        let part = &mut self.parts[p];
        let (start, end) = part.remove(i);
        self.total -= end - start;
        if part.is_empty() {
            let part = self.parts.remove(p);
            self.spare.push(part);
            return (p, 0);
        }
        let next = if i == part.len() { (p + 1, 0) } else { (p, i) };
        self.join(p, next)
    }

    /// Joins a part with the next one if both are small; returns the new position of `at`.
    fn join(&mut self, p: usize, at: (usize, usize)) -> (usize, usize) {
        let (len, next) = (self.parts[p].len(), self.parts.get(p + 1).map_or(PART, Vec::len));
        if len + next > PART / 2 {
            return at;
        }
        let mut next = self.parts.remove(p + 1);
        self.parts[p].append(&mut next);
        self.spare.push(next);
        if at.0 > p { (p, len + at.1) } else { at }
    }

    /// Inserts a range at a position, before the range that is there.
    fn put_at(&mut self, (mut p, mut i): (usize, usize), run: Run) {
        self.total += run.1 - run.0;
        if i == 0 && p > 0 && (p == self.parts.len() || self.parts[p - 1].len() < PART) {
            (p, i) = (p - 1, self.parts[p - 1].len());
        }
        if self.parts.get(p).is_none_or(|part| part.len() == PART) {
            (p, i) = self.split(p, i);
        }
        self.parts[p].insert(i, run);
    }

    /// Makes space at place `i` of a part that is full or missing; returns its new position.
    fn split(&mut self, p: usize, i: usize) -> (usize, usize) {
        // The first part grows as needed, so a set of a few ranges stays small; other parts get
        // their full capacity at once.
        let most = if self.parts.is_empty() { 0 } else { PART };
        let mut part = self.spare.pop().unwrap_or_else(|| Vec::with_capacity(most));
        let Some(full) = self.parts.get_mut(p) else {
            self.parts.push(part);
            return (p, 0);
        };
        // A full part that is appended to keeps its ranges: ascending inserts leave full parts.
        let kept = if i == PART { PART } else { PART / 2 };
        part.extend(full.drain(kept..));
        self.parts.insert(p + 1, part);
        if i > PART / 2 { (p + 1, i - kept) } else { (p, i) }
    }

    /// Adds a range; returns how many numbers are new.
    pub fn insert(&mut self, range: Range<u64>) -> u64 {
        if range.is_empty() {
            return 0;
        }
        let before = self.total;
        let (mut start, mut end) = (range.start, range.end);
        // Ranges that it touches or overlaps become one with it (G1).
        let mut at = self.seek(start.saturating_sub(1));
        while let Some((s, e)) = self.at(at).filter(|run| run.0 <= end) {
            (start, end) = (start.min(s), end.max(e));
            at = self.take_at(at);
        }
        self.put_at(at, (start, end));
        self.total - before
    }

    /// Removes a range; returns how many numbers were there.
    pub fn remove(&mut self, range: Range<u64>) -> u64 {
        let before = self.total;
        if range.is_empty() {
            return 0;
        }
        let mut at = self.seek(range.start);
        while let Some((start, end)) = self.at(at).filter(|run| run.0 < range.end) {
            at = self.take_at(at);
            // Puts back what remains of this run on both sides of `range`, the later piece first.
            for left in [(range.end, end), (start, range.start)] {
                if left.0 < left.1 {
                    self.put_at(at, left);
                    at = self.seek(range.start);
                }
            }
        }
        before - self.total
    }

    /// Whether any number of the range is in the set.
    pub fn overlaps(&self, range: &Range<u64>) -> bool {
        let first = self.at(self.seek(range.start));
        !range.is_empty() && first.is_some_and(|run| run.0 < range.end)
    }

    /// The parts of a range that are in the set, descending.
    pub fn within(&self, range: Range<u64>) -> impl Iterator<Item = Range<u64>> + '_ {
        let parts = self.parts.partition_point(|part| part[0].0 < range.end);
        let runs = self.parts[..parts].iter().rev().flat_map(|part| part.iter().rev());
        let runs = runs.map(|&(start, end)| start..end);
        let (first, end) = (range.start, range.end);
        let there = runs.skip_while(move |r| r.start >= end).take_while(move |r| r.end > first);
        there.map(move |r| r.start.max(first)..r.end.min(end))
    }

    /// The lowest number of the set that is not below this one.
    pub fn next_from(&self, at: u64) -> Option<u64> {
        self.at(self.seek(at)).map(|(start, _)| start.max(at))
    }

    /// How many numbers are in the set.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// Whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.total == 0
    }

    /// The ranges, ascending.
    pub fn iter(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        self.parts.iter().flatten().map(|&(start, end)| start..end)
    }

    /// Empties the set, and keeps its memory (G3).
    pub fn clear(&mut self) {
        self.spare.extend(self.parts.drain(..).map(|mut part| {
            part.clear();
            part
        }));
        self.total = 0;
    }

    /// Bytes of memory that it has.
    pub fn bytes(&self) -> u64 {
        let lists = self.parts.capacity() + self.spare.capacity();
        let runs: usize = self.parts.iter().chain(&self.spare).map(Vec::capacity).sum();
        (lists * size_of::<Vec<Run>>() + runs * size_of::<Run>()) as u64
    }

    /// Whether it has allocated memory.
    pub fn has_memory(&self) -> bool {
        self.parts.capacity() + self.spare.capacity() > 0
    }

    /// Frees spare memory beyond that of `parts` parts.
    pub fn shrink(&mut self, parts: usize) {
        if self.spare.len() > parts {
            self.spare.truncate(parts);
            self.spare.shrink_to_fit();
            self.parts.shrink_to_fit();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_base::world::split_mix;

    /// Compares the set with one bit for each number, with more ranges than fit a part, and again
    /// in reused memory.
    #[test]
    fn g1_g2_agrees_with_a_bit_vector() {
        let (mut seed, mut set) = (3, RangeSet::default());
        for n in [64u64, 64, 700] {
            for _ in 0..100 {
                set.clear();
                let mut model = vec![false; n as usize];
                for _ in 0..n / 2 {
                    let r = split_mix(&mut seed);
                    let (a, b) = ((r >> 8) % (n + 1), (r >> 32) % (n + 1));
                    let long = r & 6 == 0 || n == 64;
                    let range = a.min(b)..if long { a.max(b) } else { n.min(a.min(b) + 1) };
                    check_one(&mut set, &mut model, range, r & 8 == 0 || !long && r & 16 == 0);
                }
            }
        }
    }

    fn check_one(set: &mut RangeSet, model: &mut [bool], range: Range<u64>, add: bool) {
        let changed = range.clone().filter(|&i| model[i as usize] != add).count() as u64;
        range.clone().for_each(|i| model[i as usize] = add);
        let got = if add { set.insert(range.clone()) } else { set.remove(range.clone()) };
        assert_eq!(got, changed);
        let flat: Vec<u64> = set.iter().flatten().collect();
        let want: Vec<u64> = (0..model.len() as u64).filter(|&i| model[i as usize]).collect();
        assert_eq!(flat, want);
        assert_eq!(set.total() as usize, want.len());
        let touching = set.iter().zip(set.iter().skip(1)).any(|(x, y)| x.end >= y.start);
        assert!(!touching, "G1");
        assert!(set.parts.iter().all(|part| (1..=PART).contains(&part.len())), "G2");
        assert_eq!(set.next_from(range.end), want.iter().copied().find(|n| *n >= range.end));
        let mut inside: Vec<u64> = set.within(range.clone()).flatten().collect();
        inside.sort_unstable();
        let expected: Vec<u64> = want.into_iter().filter(|n| range.contains(n)).collect();
        assert_eq!(inside, expected);
        let a = range.start;
        assert_eq!(set.overlaps(&(a..a + 1)), model.get(a as usize) == Some(&true));
    }

    #[test]
    fn g3_memory_is_used_again() {
        let mut set = RangeSet::default();
        // Up, down and shuffled: parts split in all ways.
        let all = 1000u64;
        for step in [1, all - 1, 377] {
            for round in 0..3 {
                let before = set.bytes();
                (0..all).for_each(|i| {
                    assert_eq!(set.insert(i * step % all * 2..i * step % all * 2 + 1), 1)
                });
                assert_eq!(set.iter().count() as u64, all);
                assert!(set.parts.len() <= 2 * all as usize / PART + 2, "{}", set.parts.len());
                assert!(round == 0 || set.bytes() == before, "G3");
                if round == 1 {
                    set.clear();
                } else {
                    assert_eq!(set.remove(0..2 * all), all);
                }
                assert!(set.is_empty() && set.parts.is_empty());
            }
        }
        set.shrink(0);
        assert_eq!(set.bytes(), 0);
    }
}
