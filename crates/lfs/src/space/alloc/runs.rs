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

use crate::device::layout::Layout;
use crate::format::place::Place;
use crate::space::Space;
use crate::space::alloc::window::Windows;
use crate::space::alloc::{AllocStats, Run};
use crate::space::ledger::Kept;
use forebay_base::units::MIB;
use forebay_base::{ErrorKind, Result};
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

    /// Takes a run of `want` bytes, or a shorter one of at least `least` bytes. If there is none of
    /// that length, it takes any run. `NoSpace` if no byte is left.
    pub fn fresh(&mut self, space: &mut Space, kept: Kept, want: u64, least: u64) -> Result<Run> {
        let tail = space.data_left();
        if let Some((at, _)) = self.left.best(want) {
            return Ok(self.left.cut(at, want));
        }
        if tail >= want {
            return self.more_from(space, want, kept.new);
        }
        if let Some((at, _)) = self.left.best(least) {
            return Ok(self.left.cut(at, want));
        }
        if tail >= least {
            return self.more_from(space, want, kept.new);
        }
        if tail > 0 && space.has_segment(kept.new) {
            let rest = self.more_from(space, tail, kept.new)?;
            self.left.join(rest);
        }
        self.anything(space, kept, want)
    }

    /// Takes any run of up to `want` bytes: from the open end of the segments, then from leftover
    /// runs, then from windows. Last it takes space that is kept from new content: the caller was
    /// admitted already.
    pub fn anything(&mut self, space: &mut Space, kept: Kept, want: u64) -> Result<Run> {
        match self.more_from(space, want, kept.new) {
            Err(error) if error.kind() == ErrorKind::NoSpace => {}
            done => return done,
        }
        for _ in 0..2 {
            if let Some((at, _)) = self.left.longest() {
                return Ok(self.left.cut(at, want));
            }
            self.return_all(space);
            if let Ok(run) = self.more_from(space, want, kept.new) {
                return Ok(run);
            }
        }
        self.more_from(space, want, kept.accepted)
    }

    fn more_from(&self, space: &mut Space, want: u64, kept: u64) -> Result<Run> {
        let (at, len) = space.take_data(want, kept)?;
        Ok((self.sizes.address(at), len))
    }

    /// Takes a run for a request without a stream. Such requests get adjacent runs, whatever their
    /// files, so that many of them are written with one device write.
    pub fn pooled(&mut self, space: &mut Space, kept: Kept, want: u64) -> Result<Run> {
        let (at, len) = match self.pool.take() {
            Some(pool) => pool,
            None if want >= self.sizes.pool => return self.fresh(space, kept, want, want),
            None => self.fresh(space, kept, self.sizes.pool, want)?,
        };
        let taken = len.min(want);
        self.pool = (taken < len).then_some((at + taken, len - taken));
        Ok((at, taken))
    }

    /// Returns the rest of the pool if it alone keeps a segment in use (segment.W15). It becomes a
    /// leftover run.
    pub fn leave_pool(&mut self, space: &mut Space) {
        let Some((at, len)) = self.pool else { return };
        let segment = self.sizes.place(at).segment;
        if space.segments.is_idle(segment, len + self.left_of(segment)) {
            self.pool = None;
            self.give_back(space, (at, len));
        }
    }

    /// Seals the open data segment. Its unused end becomes a leftover run.
    pub fn seal_data(&mut self, space: &mut Space) {
        let tail = space.data_left();
        if tail > 0
            && let Ok(rest) = self.more_from(space, tail, 0)
        {
            self.left.join(rest);
        }
        space.seal_data();
    }

    /// Notes a failed write to this segment: other space is used first (R24).
    pub fn fail(&mut self, space: &mut Space, segment: u32) {
        self.left.fail(u64::from(segment));
        if space.is_open(segment) {
            self.seal_data(space);
        }
        // Some windows or the pool may lie in this segment.
        self.return_all(space);
    }

    /// The bytes of leftover runs in a segment.
    pub fn left_of(&self, segment: u32) -> u64 {
        let first = u64::from(segment) * self.sizes.segment;
        self.left.runs.range(first..first + self.sizes.segment).map(|(_, len)| len).sum()
    }

    /// Forgets the leftover runs of a segment that died.
    pub fn forget(&mut self, space: &mut Space, segment: u32) {
        for at in self.left.within(u64::from(segment)) {
            if let Some((_, len)) = self.left.remove(at) {
                space.segments.hold(segment, -(len as i64));
            }
        }
    }

    /// Returns a run that is no longer in use, or never was.
    pub fn give_back(&mut self, space: &mut Space, run: Run) {
        let (at, len) = self.left.join(run);
        let place = self.sizes.place(at);
        let goes = if len == self.sizes.segment && !space.is_open(place.segment) {
            space.release(place.segment);
            true
        } else {
            space.give_back_data(place, len)
        };
        if goes {
            self.left.remove(at);
        }
    }

    fn returned(&mut self, space: &mut Space, runs: Vec<Run>) {
        // In reverse order, so that the open data segment can take back the run that it gave out
        // last.
        for run in runs.into_iter().rev() {
            self.stats.returned_bytes += run.1;
            self.give_back(space, run);
        }
    }

    /// Returns the windows of a file that has no openers any more, is truncated, or is deleted.
    pub fn close(&mut self, space: &mut Space, ino: u64) {
        let runs = self.windows.close(ino);
        self.returned(space, runs);
    }

    /// Returns all windows and the pool, so that any request can use their space (alloc.A13).
    pub fn return_all(&mut self, space: &mut Space) {
        let runs = self.windows.close_all();
        self.returned(space, runs);
        let pool = self.pool.take();
        self.returned(space, pool.into_iter().collect());
    }

    /// Closes the least recently used windows until at most `bytes` bytes are held.
    pub fn shrink_to(&mut self, space: &mut Space, bytes: u64) {
        while self.windows.held() > bytes {
            let Some((ino, start)) = self.windows.oldest() else { break };
            let runs = self.windows.close_one(ino, start);
            self.returned(space, runs);
        }
    }

    /// Closes the windows that were not used since `since`, a time of the world's clock.
    pub fn return_idle(&mut self, space: &mut Space, since: u64) {
        while let Some((ino, start)) = self.windows.oldest_before(since) {
            let runs = self.windows.close_one(ino, start);
            self.returned(space, runs);
        }
    }

    /// The most bytes that windows may hold: an eighth of the free space.
    pub fn limit(&self, space: &Space, kept: Kept) -> u64 {
        let free = space.segments.free().saturating_sub(kept.new);
        (free * self.sizes.segment + space.data_left() + self.bytes()) / 8
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::place::{Geometry, Seal};
    use forebay_base::world::split_mix;

    const SEGMENT: u64 = 1 << 16;

    fn setup(segments: u32) -> (Space, Room) {
        let geometry = Geometry::with_segment_shift(16);
        let seal = Seal::new(&[1; 16]);
        let layout =
            Layout { geometry, seal, nonce: [1; 16], data_start: 16384, segments, align: 512 };
        (Space::new(layout), Room::new(&layout))
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
            let (mut space, mut room) = setup(12);
            let (kept, all) = (Kept { new: 4, accepted: 3 }, free_bytes(&space));
            let mut held: Vec<Run> = Vec::new();
            for _ in 0..300 {
                if pick(5) < 3 {
                    let want = (1 + pick(20)) * 4096;
                    let taken = match pick(3) {
                        0 => room.fresh(&mut space, kept, want, 4096),
                        1 => room.pooled(&mut space, kept, want),
                        _ => room.anything(&mut space, kept, want),
                    };
                    let Ok((at, len)) = taken else { continue };
                    assert!(at / SEGMENT == (at + len - 1) / SEGMENT, "R21");
                    let meets = |h: &Run| h.0 < at + len && at < h.0 + h.1;
                    assert!(!held.iter().any(meets), "A11, seed {seed}: {at}+{len}");
                    held.push((at, len));
                } else if !held.is_empty() {
                    let run = held.swap_remove(pick(held.len() as u64) as usize);
                    room.give_back(&mut space, run);
                }
                let starts: Vec<Run> = room.left.runs.iter().map(|(at, len)| (*at, *len)).collect();
                let apart = |w: &[Run]| w[0].0 + w[0].1 < w[1].0 || w[1].0.is_multiple_of(SEGMENT);
                assert!(starts.windows(2).all(apart), "R22: {starts:?}");
                let used: u64 = held.iter().map(|run| run.1).sum();
                assert_eq!(free_bytes(&space) + room.bytes() + used, all, "none is lost");
            }
            held.into_iter().for_each(|run| room.give_back(&mut space, run));
            room.return_all(&mut space);
            assert_eq!(room.bytes(), 0, "seed {seed}: R23");
            assert_eq!(free_bytes(&space), all);
        }
    }

    #[test]
    fn sizes_follow_the_segments() {
        let (_, room) = setup(9);
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
