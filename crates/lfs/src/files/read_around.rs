//! Windows around small files, for readers that visit them in another order than that of the
//! device: a listing is in the order of a hash, and the files lie in the order of their creation.
//!
//! ```text
//!   a piece that was not read ahead
//!        │ one within a window's length was missed recently
//!        ▼
//!   its window, 128 KiB of the segment, is read ──▶ kept for the other files in it
//! ```
//! Invariants: N24 windows take at most the bytes that their user allows, and one window answers
//! for any byte. Each lookup drops windows of an older tree, and then the least recently used ones
//! beyond those bytes. N25 a window costs credit, and each piece that a window answers earns some.
//! Without credit nearly all pieces are read alone. So a reader of more files than the windows hold
//! reads little in vain. N26 a range that could not be read is not read together again while the
//! tree stays. So one bad block costs its neighbours one failed read. N27 a window is in flight
//! at most once.
//!
//! No locks: that of [`super::read_ahead::Near`] covers it.

use crate::format::superblock::TreeRoot;
use forebay_base::units::KIB;
use std::collections::VecDeque;
use std::ops::Range;

/// Bytes of a window.
pub(super) const WINDOW_BYTES: u64 = 128 * KIB;
/// Missed pieces, and failed reads, that are remembered.
const MISSES: usize = 32;
const FAILURES: usize = 32;
/// Credit: what a window costs, what a piece out of a window earns, and what a piece earns for
/// which no window was read although one was due.
const COST: u32 = 16;
const EARNED: u32 = 4;
const EARNED_ALONE: u32 = 1;
/// The most credit, and the credit at the start.
const CREDIT_MAX: u32 = 32 * COST;
const CREDIT: u32 = 16 * COST;

/// Bytes that were read around a piece.
struct Window {
    root: TreeRoot,
    device: Range<u64>,
    staged: Range<u64>,
}

/// The windows of a volume.
pub(super) struct Around {
    /// All are of one tree. The most recently used one is the last.
    windows: VecDeque<Window>,
    /// Windows that contain the last missed pieces, by number.
    missed: VecDeque<u64>,
    /// Windows that are being read, by number.
    in_flight: Vec<u64>,
    /// The last reads of several pieces that failed.
    failed: VecDeque<(TreeRoot, Range<u64>)>,
    credit: u32,
}

impl Default for Around {
    fn default() -> Self {
        Self {
            windows: VecDeque::new(),
            missed: VecDeque::new(),
            in_flight: Vec::new(),
            failed: VecDeque::new(),
            credit: CREDIT,
        }
    }
}

impl Around {
    /// The staging offset of a piece that a window of this tree contains.
    pub fn find(&mut self, root: &TreeRoot, at: &Range<u64>) -> Option<u64> {
        let holds = |window: &Window| {
            window.root == *root && window.device.start <= at.start && at.end <= window.device.end
        };
        let window = self.windows.iter().position(holds)?;
        let window = self.windows.remove(window)?;
        let staged = window.staged.start + (at.start - window.device.start);
        self.windows.push_back(window);
        self.credit = (self.credit + EARNED).min(CREDIT_MAX);
        Some(staged)
    }

    /// Records a missed piece. True: its window should be read (N25), and is in flight until
    /// [`Self::landed`]. Others read their pieces of it alone meanwhile (N27).
    pub fn is_due(&mut self, at: &Range<u64>) -> bool {
        let number = at.start / WINDOW_BYTES;
        let is_near = self.missed.iter().any(|missed| missed.abs_diff(number) <= 1);
        if self.missed.len() == MISSES {
            self.missed.pop_front();
        }
        self.missed.push_back(number);
        match is_near && !self.in_flight.contains(&number) {
            true if self.credit >= COST => {
                self.credit -= COST;
                self.in_flight.push(number);
                true
            }
            true => {
                self.credit += EARNED_ALONE;
                false
            }
            false => false,
        }
    }

    /// The window of a piece, which was in flight, has been read, or could not be.
    pub fn landed(&mut self, at: &Range<u64>) {
        self.in_flight.retain(|number| *number != at.start / WINDOW_BYTES);
    }

    /// Adds a window of at most `bytes_max` bytes; returns staged ranges that are not used any more
    /// (N24). One of a tree that is older than the others is not used.
    pub fn keep(
        &mut self,
        root: TreeRoot,
        device: Range<u64>,
        staged: Range<u64>,
        bytes_max: u64,
    ) -> Vec<Range<u64>> {
        if self.is_older(&root) {
            return vec![staged];
        }
        let overlaps = |other: &Range<u64>| other.start < device.end && device.start < other.end;
        let mut dropped = self.drop_where(|window| overlaps(&window.device));
        self.windows.push_back(Window { root, device, staged });
        dropped.append(&mut self.trim(&root, bytes_max));
        dropped
    }

    /// Removes the windows of trees that are older than `root`, then the least recently used ones
    /// beyond `bytes_max`; returns their staged ranges (N24).
    pub fn trim(&mut self, root: &TreeRoot, bytes_max: u64) -> Vec<Range<u64>> {
        let mut dropped = match self.is_older(root) {
            true => Vec::new(),
            false => self.drop_where(|window| window.root != *root),
        };
        while self.bytes() > bytes_max
            && let Some(window) = self.windows.pop_front()
        {
            dropped.push(window.staged);
        }
        dropped
    }

    /// Whether a tree is older than that of the windows. A lookup may have begun before it changed.
    fn is_older(&self, root: &TreeRoot) -> bool {
        self.windows.back().is_some_and(|window| root.birth < window.root.birth)
    }

    fn drop_where(&mut self, mut is_dropped: impl FnMut(&Window) -> bool) -> Vec<Range<u64>> {
        let mut dropped = Vec::new();
        self.windows.retain(|window| {
            let goes = is_dropped(window);
            if goes {
                dropped.push(window.staged.clone());
            }
            !goes
        });
        dropped
    }

    /// Records that a range could not be read. Pieces in it are read alone while the tree stays
    /// (N26).
    pub fn note_failed(&mut self, root: TreeRoot, range: Range<u64>) {
        if self.failed.len() == FAILURES {
            self.failed.pop_front();
        }
        self.failed.push_back((root, range));
    }

    /// The part of `range` around a piece that lies in no range that could not be read; `None`: the
    /// piece lies in one (N26).
    pub fn readable(
        &self,
        root: &TreeRoot,
        at: &Range<u64>,
        mut range: Range<u64>,
    ) -> Option<Range<u64>> {
        for (_, bad) in self.failed.iter().filter(|(of, _)| of == root) {
            if bad.end <= at.start {
                range.start = range.start.max(bad.end);
            } else if at.end <= bad.start {
                range.end = range.end.min(bad.start);
            } else {
                return None;
            }
        }
        Some(range)
    }

    /// Removes all windows.
    pub fn take_all(&mut self) -> Vec<Range<u64>> {
        self.windows.drain(..).map(|window| window.staged).collect()
    }

    /// Bytes of all windows.
    pub fn bytes(&self) -> u64 {
        self.windows.iter().map(|window| window.staged.end - window.staged.start).sum()
    }
}

/// The window of a piece, within its segment.
pub(super) fn window_of(at: &Range<u64>, segment: &Range<u64>) -> Range<u64> {
    let start = at.start / WINDOW_BYTES * WINDOW_BYTES;
    start.max(segment.start)..(start + WINDOW_BYTES).max(at.end).min(segment.end)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::btree::empty_root;
    use crate::format::superblock::FILES_TREE;

    /// read_around.N24: windows of an older tree go first, then the least recently used one.
    #[test]
    fn n24_windows_have_bounded_memory_and_belong_to_one_tree() {
        let mut around = Around::default();
        let tree = |birth| TreeRoot { birth, ..empty_root(FILES_TREE, 0) };
        let window = |n: u64| n * WINDOW_BYTES..(n + 1) * WINDOW_BYTES;
        let staged =
            |n: u64| (1 << 62) + 2 * n * WINDOW_BYTES..(1 << 62) + (2 * n + 1) * WINDOW_BYTES;
        let piece = |n: u64| n * WINDOW_BYTES + 8192..n * WINDOW_BYTES + 12288;
        let most = 3 * WINDOW_BYTES;
        for n in 0..3 {
            assert!(around.keep(tree(1), window(n), staged(n), most).is_empty());
        }
        assert_eq!(around.find(&tree(1), &piece(0)), Some(staged(0).start + 8192));
        assert_eq!(around.find(&tree(2), &piece(0)), None, "read_ahead.N21");
        assert_eq!(around.keep(tree(1), window(3), staged(3), most), [staged(1)], "least recent");
        assert_eq!(around.keep(tree(1), window(3), staged(4), most), [staged(3)], "N24: one each");
        assert_eq!(around.bytes(), most);
        let older = [staged(0), staged(2), staged(4)];
        assert_eq!(around.keep(tree(2), window(0), staged(5), most), older);
        assert_eq!(around.keep(tree(1), window(1), staged(6), most), [staged(6)], "older");
        assert_eq!(around.trim(&tree(1), most), [], "a lookup that began before");
        assert_eq!(around.trim(&tree(2), most), []);
        assert_eq!(around.trim(&tree(3), most), [staged(5)]);
        assert!(around.keep(tree(3), window(0), staged(7), most).is_empty());
        assert!(around.keep(tree(3), window(1), staged(8), most).is_empty());
        assert_eq!(around.trim(&tree(3), WINDOW_BYTES), [staged(7)]);
        assert_eq!(around.take_all(), [staged(8)]);
        // A window ends where its segment ends, and contains its piece.
        let segment = WINDOW_BYTES + 4096..2 * WINDOW_BYTES + 8192;
        assert_eq!(window_of(&piece(1), &segment), WINDOW_BYTES + 4096..2 * WINDOW_BYTES);
        let end = 2 * WINDOW_BYTES - 4096..2 * WINDOW_BYTES + 4096;
        assert_eq!(window_of(&end, &segment), WINDOW_BYTES + 4096..2 * WINDOW_BYTES + 4096);
    }

    /// read_around.N25: small files that are drawn out of many more than the windows hold.
    #[test]
    fn n25_windows_that_are_not_used_are_not_read() {
        let root = empty_root(FILES_TREE, 0);
        for area in [400, 40_000] {
            let (mut around, mut seed, mut due, mut found) = (Around::default(), 1u64, 0, 0);
            for n in 0..20_000 {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let at = (seed >> 33) % (area * WINDOW_BYTES / 4096) * 4096;
                let at = at..at + 4096;
                if around.find(&root, &at).is_some() {
                    found += 1;
                } else if around.is_due(&at) {
                    due += 1;
                    let device = window_of(&at, &(0..u64::MAX));
                    let staged = n * WINDOW_BYTES..(n + 1) * WINDOW_BYTES;
                    around.keep(root, device, staged, 16 * WINDOW_BYTES);
                    around.landed(&at);
                }
            }
            let paid = 16 + (found * EARNED + 20_000 * EARNED_ALONE) / COST;
            assert!(due <= paid, "N25: {due} windows, {found} pieces found in them");
            assert!(due < 1000 + found, "N25: {due} windows of {area}, {found} pieces found");
        }
    }

    /// read_around.N26: around a range that could not be read, and for how long.
    #[test]
    fn n26_range_that_failed_is_left_out() {
        let mut around = Around::default();
        let tree = |birth| TreeRoot { birth, ..empty_root(FILES_TREE, 0) };
        around.note_failed(tree(1), 100..200);
        assert_eq!(around.readable(&tree(1), &(40..50), 0..300), Some(0..100));
        assert_eq!(around.readable(&tree(1), &(200..210), 0..300), Some(200..300));
        assert_eq!(around.readable(&tree(1), &(190..210), 0..300), None);
        assert_eq!(around.readable(&tree(2), &(190..210), 0..300), Some(0..300), "another tree");
        (0..FAILURES).for_each(|n| around.note_failed(tree(1), n as u64..n as u64 + 1));
        assert_eq!(around.failed.len(), FAILURES);
    }

    /// read_around.N27: readers in parallel read a window once.
    #[test]
    fn n27_window_is_in_flight_once() {
        let mut around = Around::default();
        let piece = |n: u64| n * 4096..(n + 1) * 4096;
        assert!(!around.is_due(&piece(0)), "none was missed near it");
        assert!(around.is_due(&piece(1)));
        assert!(!around.is_due(&piece(2)), "in flight");
        assert!(around.is_due(&piece(32)), "another window");
        around.landed(&piece(1));
        assert!(around.is_due(&piece(3)));
        assert!(!around.is_due(&piece(33)));
    }
}
