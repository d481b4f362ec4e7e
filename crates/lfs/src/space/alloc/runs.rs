//! Runs of data segments that were taken from [`Space`] and are not in use: windows, the pool of
//! small runs, and leftover runs.
//!
//! ```text
//!   Space ──taken──▶ window ──▶ reservation ──published──▶ a file's
//!     ▲     │  └───▶ pool  ──▶     │   ▲
//!     │     └──tail of a segment─┐ │   │
//!     └─ at its open end,        ▼ ▼   │
//!        or a whole segment ◀── left over
//! ```
//! Invariants: R21 a run lies within one segment. R22 two leftover runs are never adjacent: they
//! are joined into one. R23 a segment of which nothing is in use goes back to [`Space`]. R24
//! leftover runs of a segment with a failed write are given out only if there is no other space
//! (segment.W18).
//!
//! No locks: the volume's state lock covers it.

mod given;

use crate::device::layout::Layout;
use crate::format::place::Place;
use crate::space::alloc::window::Windows;
use crate::space::alloc::{AllocStats, Run};
use forebay_base::units::MIB;
use std::collections::{BTreeMap, BTreeSet};

/// The largest window, bytes.
const WINDOW_BYTES_MAX: u64 = 8 * MIB;
/// The first window of a stream of large requests, bytes.
const WINDOW_BYTES: u64 = 2 * MIB;

/// The sizes of windows, which depend on the size of segments; bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sizes {
    pub block: u64,
    pub segment: u64,
    /// The first window of a stream of large requests. A request is large from half of this size
    /// on.
    pub first: u64,
    /// The largest window.
    pub most: u64,
    /// The first window of a stream of small requests.
    pub small: u64,
    /// The size of the pool for small requests without a stream.
    pub pool: u64,
}

impl Sizes {
    fn of(layout: &Layout) -> Self {
        let (block, segment) = (layout.block_bytes(), layout.segment_bytes());
        let least = 4 * block;
        let first = (segment / 32).clamp(least, WINDOW_BYTES);
        let most = (segment / 8).clamp(first, WINDOW_BYTES_MAX);
        let small = (first / 32).max(least);
        let pool = (segment / 64).clamp(least, MIB);
        Self { block, segment, first, most, small, pool }
    }

    /// The logical address of a place. Places of a segment have consecutive addresses.
    pub fn address(&self, at: Place) -> u64 {
        u64::from(at.segment) * self.segment + u64::from(at.offset)
    }

    /// The place of a logical address.
    pub fn place(&self, address: u64) -> Place {
        Place::new((address / self.segment) as u32, (address % self.segment) as u32)
    }
}

/// The leftover runs (R22), by address and by length.
struct Left {
    /// The bytes of a segment.
    segment: u64,
    runs: BTreeMap<u64, u64>,
    /// Runs by length. Runs in segments with a failed write come last (R24).
    lengths: BTreeSet<(bool, u64, u64)>,
    failed: BTreeSet<u64>,
    bytes: u64,
}

impl Left {
    fn new(segment: u64) -> Self {
        let (runs, lengths, failed) = (BTreeMap::new(), BTreeSet::new(), BTreeSet::new());
        Self { segment, runs, lengths, failed, bytes: 0 }
    }

    fn key(&self, (at, len): Run) -> (bool, u64, u64) {
        (self.failed.contains(&(at / self.segment)), len, at)
    }

    fn remove(&mut self, at: u64) -> Option<Run> {
        let len = self.runs.remove(&at)?;
        self.lengths.remove(&self.key((at, len)));
        self.bytes -= len;
        Some((at, len))
    }

    fn put(&mut self, (at, len): Run) {
        self.runs.insert(at, len);
        self.lengths.insert(self.key((at, len)));
        self.bytes += len;
    }

    /// The addresses of the leftover runs in a segment.
    fn within(&self, segment: u64) -> Vec<u64> {
        let first = segment * self.segment;
        self.runs.range(first..first + self.segment).map(|(at, _)| *at).collect()
    }

    /// Notes a failed write to this segment (R24).
    fn fail(&mut self, segment: u64) {
        let there = self.within(segment);
        let there: Vec<Run> = there.into_iter().filter_map(|at| self.remove(at)).collect();
        self.failed.insert(segment);
        there.into_iter().for_each(|run| self.put(run));
    }

    /// Adds a run and joins it with its neighbours. Returns the joined run, which stays in the set.
    fn join(&mut self, (at, len): Run) -> Run {
        let (segment, mut start, mut end) = (self.segment, at, at + len);
        let before = self.runs.range(..at).next_back().map(|(at, len)| (*at, *len));
        if let Some((before, len)) = before
            && before + len == at
            && !at.is_multiple_of(segment)
        {
            self.remove(before);
            start = before;
        }
        if !end.is_multiple_of(segment)
            && let Some((_, len)) = self.remove(end)
        {
            end += len;
        }
        self.put((start, end - start));
        (start, end - start)
    }

    /// The shortest run of at least `least` bytes in a segment without a failed write.
    fn best(&self, least: u64) -> Option<Run> {
        let sound = (false, least, 0)..(true, 0, 0);
        self.lengths.range(sound).next().map(|(_, len, at)| (*at, *len))
    }

    /// The longest run in a segment without a failed write, or else the longest of all.
    fn longest(&self) -> Option<Run> {
        let sound = self.lengths.range(..(true, 0, 0)).next_back();
        sound.or_else(|| self.lengths.last()).map(|(_, len, at)| (*at, *len))
    }

    /// Removes and returns the first `bytes` bytes of the run at `at`.
    fn cut(&mut self, at: u64, bytes: u64) -> Run {
        let (_, len) = self.remove(at).expect("it was found here");
        let taken = len.min(bytes);
        if taken < len {
            self.put((at + taken, len - taken));
        }
        (at, taken)
    }
}

/// Runs that are not in use: windows, the pool for small requests, leftover runs.
pub(crate) struct Room {
    pub sizes: Sizes,
    left: Left,
    /// The pool from which small requests without a stream are served.
    pool: Option<Run>,
    pub windows: Windows,
    pub stats: AllocStats,
}

impl Room {
    /// For a volume on which no runs are held.
    pub fn new(layout: &Layout) -> Self {
        let sizes = Sizes::of(layout);
        let (left, windows) = (Left::new(sizes.segment), Windows::default());
        Self { sizes, left, pool: None, windows, stats: AllocStats::default() }
    }

    /// Bytes of segments that are held and contain no content (alloc.A13).
    pub fn bytes(&self) -> u64 {
        self.left.bytes + self.held()
    }

    /// The number of runs that [`Self::bytes`] counts.
    pub fn runs(&self) -> u64 {
        (self.left.runs.len() + self.windows.runs() + usize::from(self.pool.is_some())) as u64
    }

    /// Bytes of windows and of the pool.
    pub fn held(&self) -> u64 {
        self.windows.held() + self.pool.map_or(0, |(_, len)| len)
    }

    /// The current statistics.
    pub fn stats(&self) -> AllocStats {
        AllocStats {
            held_bytes: self.held(),
            left_bytes: self.left.bytes,
            left_runs: self.left.runs.len() as u64,
            ..self.stats
        }
    }

    /// The bytes of leftover runs in a segment.
    pub fn left_of(&self, segment: u32) -> u64 {
        let first = u64::from(segment) * self.sizes.segment;
        self.left.runs.range(first..first + self.sizes.segment).map(|(_, len)| len).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::place::{Geometry, Seal};
    use crate::space::ledger::Kept;
    use crate::space::{Need, OtherNeeds, Space};
    use forebay_base::world::split_mix;

    const SEGMENT: u64 = 1 << 16;

    fn setup(segments: u32) -> Space {
        let geometry = Geometry::with_segment_shift(16);
        let seal = Seal::new(&[1; 16]);
        let layout =
            Layout { geometry, seal, nonce: [1; 16], data_start: 16384, segments, align: 512 };
        Space::new(layout)
    }

    fn free_bytes(space: &Space) -> u64 {
        space.segments.free() * SEGMENT + space.data_left()
    }

    /// alloc.A11, R22, R23: runs are taken and given back in random order. No byte is given out
    /// twice, and at the end all segments but the open one are free again.
    #[test]
    fn a11_r22_r23_no_byte_has_two_owners_and_all_come_back() {
        for seed in 0..50u64 {
            let mut rng = seed;
            let mut pick = |n: u64| split_mix(&mut rng) % n;
            let mut space = setup(12);
            let (kept, all) = (Kept { new: 4, accepted: 3 }, free_bytes(&space));
            let mut held: Vec<Run> = Vec::new();
            for _ in 0..300 {
                if pick(5) < 3 {
                    let want = (1 + pick(20)) * 4096;
                    let taken = match pick(3) {
                        0 => space.fresh_run(kept, want, 4096),
                        1 => space.pooled_run(kept, want),
                        _ => space.any_run(kept, want),
                    };
                    let Ok((at, len)) = taken else { continue };
                    assert!(at / SEGMENT == (at + len - 1) / SEGMENT, "R21");
                    let meets = |h: &Run| h.0 < at + len && at < h.0 + h.1;
                    assert!(!held.iter().any(meets), "A11, seed {seed}: {at}+{len}");
                    held.push((at, len));
                } else if !held.is_empty() {
                    let run = held.swap_remove(pick(held.len() as u64) as usize);
                    space.give_back_run(run);
                }
                let starts: Vec<Run> =
                    space.room.left.runs.iter().map(|(at, len)| (*at, *len)).collect();
                let apart = |w: &[Run]| w[0].0 + w[0].1 < w[1].0 || w[1].0.is_multiple_of(SEGMENT);
                assert!(starts.windows(2).all(apart), "R22: {starts:?}");
                let used: u64 = held.iter().map(|run| run.1).sum();
                assert_eq!(free_bytes(&space) + space.room.bytes() + used, all, "none is lost");
            }
            held.into_iter().for_each(|run| space.give_back_run(run));
            space.return_windows();
            assert_eq!(space.room.bytes(), 0, "seed {seed}: R23");
            assert_eq!(free_bytes(&space), all);
        }
    }

    /// alloc.A13: what a window and the pool hold counts as free, and a request gets all of it
    /// before it is refused.
    #[test]
    fn a13_windows_are_returned_before_request_is_refused() {
        let mut space = setup(12);
        let kept = Kept { new: 4, accepted: 4 };
        let room = |space: &Space| {
            let others = OtherNeeds { held: space.room.bytes(), ..OtherNeeds::default() };
            space.balance(0, others).content_left(Need::New)
        };
        let before = room(&space);
        let (at, len) = space.fresh_run(kept, 8 * 4096, 4096).unwrap();
        space.room.windows.open(7, 0..len, (at, len), 0);
        let mut taken = space.pooled_run(kept, 4096).unwrap().1;
        assert!(space.room.held() > len, "the window, and the rest of the pool");
        assert_eq!(room(&space), before - taken, "A13: it counts as free");
        while let Ok((_, len)) = space.any_run(kept, 4096) {
            taken += len;
        }
        assert_eq!((taken, space.room.held()), (8 * SEGMENT, 0), "A13: all but the kept segments");
    }

    #[test]
    fn sizes_follow_the_segments() {
        let room = setup(9).room;
        assert_eq!((room.sizes.first, room.sizes.most, room.sizes.small), (16384, 16384, 16384));
        let geometry = Geometry::with_segment_shift(26);
        let seal = Seal::new(&[1; 16]);
        let layout =
            Layout { geometry, seal, nonce: [1; 16], data_start: MIB, segments: 9, align: 4096 };
        let sizes = Sizes::of(&layout);
        assert_eq!((sizes.first, sizes.most), (2 * MIB, 8 * MIB));
        assert_eq!((sizes.small, sizes.pool), (64 << 10, MIB));
        let place = Place::new(3, 8192);
        assert_eq!(sizes.place(sizes.address(place)), place);
    }
}
