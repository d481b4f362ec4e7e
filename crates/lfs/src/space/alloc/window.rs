//! Streams and their windows. A window maps a range of a file to a run of a data segment of the
//! same length. So each block of the range has a fixed place, whichever task writes it and in
//! whatever order. A stream is a position in a file where requests continue, not a thread.
//!
//! Invariants: W11 windows of a file do not overlap. W12 a block of a window is given out once, and
//! the window is removed when all its blocks are. W13 `held` is the sum of the free bytes of all
//! windows. W14 the order of windows by use has exactly one entry for each window.
//!
//! No locks: the volume's state lock covers it.

use crate::space::alloc::Run;
use std::collections::BTreeMap;
use std::ops::Range;

/// The number of request ends, and of window ends, that are remembered for a file to recognize its
/// streams.
const STREAMS: usize = 32;
/// The most windows.
pub(crate) const WINDOWS_MAX: usize = 4096;

struct Window {
    end: u64,
    /// The logical address of the first byte.
    at: u64,
    /// The ranges of the file that were not given out, in order.
    free: Vec<Range<u64>>,
    /// The key of this window in the order by use.
    turn: u64,
}

/// The end of a request or window, and the size in bytes of the next window there.
#[derive(Debug, Clone, Copy)]
struct Stream {
    end: u64,
    next: u64,
}

#[derive(Default)]
struct OfFile {
    /// The windows by first byte (W11).
    windows: BTreeMap<u64, Window>,
    /// The ends of requests, the newest last.
    streams: Vec<Stream>,
    /// The ends of windows, the newest last. They are kept apart because requests may overtake one
    /// another.
    ends: Vec<Stream>,
}

/// Moves the stream that ended at `from` on to `stream`.
fn go_on(streams: &mut Vec<Stream>, from: u64, stream: Stream) {
    let known = streams.iter().position(|known| known.end == from || known.end == stream.end);
    let least = known.map_or(0, |at| streams.remove(at).next);
    if streams.len() == STREAMS {
        streams.remove(0);
    }
    streams.push(Stream { next: stream.next.max(least), ..stream });
}

impl OfFile {
    fn around(&self, at: u64) -> Option<(u64, &Window)> {
        let (start, window) = self.windows.range(..=at).next_back()?;
        (at < window.end).then_some((*start, window))
    }
}

/// The runs that are reserved for ranges of files, by file and by last use.
#[derive(Default)]
pub(crate) struct Windows {
    files: BTreeMap<u64, OfFile>,
    /// Windows by use: file, first byte, and time of the last use (W14).
    by_use: BTreeMap<u64, (u64, u64, u64)>,
    turn: u64,
    held: u64,
}

impl Windows {
    /// Free bytes in windows (W13).
    pub fn held(&self) -> u64 {
        self.held
    }

    /// The number of free runs in windows.
    pub fn runs(&self) -> usize {
        let windows = self.files.values().flat_map(|file| file.windows.values());
        windows.map(|window| window.free.len()).sum()
    }

    /// The number of windows.
    pub fn len(&self) -> usize {
        self.by_use.len()
    }

    /// The next window size of the stream that continues at `at`.
    pub fn stream(&self, ino: u64, at: u64) -> Option<u64> {
        let streams = &self.files.get(&ino)?.streams;
        streams.iter().find(|stream| stream.end == at).map(|stream| stream.next)
    }

    /// Notes a request for `range`. A request that continues at its end gets a window of `next`
    /// bytes.
    pub fn note(&mut self, ino: u64, range: &Range<u64>, next: u64) {
        let streams = &mut self.files.entry(ino).or_default().streams;
        go_on(streams, range.start, Stream { end: range.end, next });
    }

    /// The next window size after a window that ended at `at`.
    pub fn window_behind(&self, ino: u64, at: u64) -> Option<u64> {
        let ends = &self.files.get(&ino)?.ends;
        ends.iter().find(|stream| stream.end == at).map(|stream| stream.next)
    }

    /// Takes the blocks from `range.start` on out of their window, up to the end of the range.
    pub fn take(&mut self, ino: u64, range: &Range<u64>, now: u64) -> Option<Run> {
        let file = self.files.get_mut(&ino)?;
        let (start, _) = file.around(range.start)?;
        let window = file.windows.get_mut(&start).expect("just found");
        let n = window.free.iter().position(|free| free.contains(&range.start))?;
        let free = window.free[n].clone();
        let end = range.end.min(free.end);
        let rest = [free.start..range.start, end..free.end];
        window.free.splice(n..=n, rest.into_iter().filter(|part| !part.is_empty()));
        self.held -= end - range.start;
        let run = (window.at + (range.start - start), end - range.start);
        self.by_use.remove(&window.turn);
        if window.free.is_empty() {
            file.windows.remove(&start);
        } else {
            self.turn += 1;
            window.turn = self.turn;
            self.by_use.insert(self.turn, (ino, start, now));
        }
        Some(run)
    }

    /// The window that contains `at`, and whether its block there is free.
    pub fn around(&self, ino: u64, at: u64) -> Option<(Range<u64>, bool)> {
        let (start, window) = self.files.get(&ino)?.around(at)?;
        Some((start..window.end, window.free.iter().any(|free| free.contains(&at))))
    }

    /// The range around `at` without a window: from the end of the window before to the start of
    /// the window after it.
    pub fn gap(&self, ino: u64, at: u64) -> Range<u64> {
        let Some(file) = self.files.get(&ino) else { return 0..u64::MAX };
        let before = file.windows.range(..=at).next_back().map_or(0, |(_, window)| window.end);
        let behind = file.windows.range(at..).next().map_or(u64::MAX, |(start, _)| *start);
        before..behind
    }

    /// Opens a window for a range that no window covers. The window after it has `next` bytes.
    pub fn open(&mut self, ino: u64, range: Range<u64>, (at, next): (u64, u64), now: u64) {
        self.turn += 1;
        self.held += range.end - range.start;
        self.by_use.insert(self.turn, (ino, range.start, now));
        let window = Window { end: range.end, at, free: vec![range.clone()], turn: self.turn };
        let file = self.files.entry(ino).or_default();
        go_on(&mut file.ends, range.start, Stream { end: range.end, next });
        let old = file.windows.insert(range.start, window);
        debug_assert!(old.is_none(), "W11: windows do not overlap");
    }

    fn free_of(&mut self, start: u64, window: &Window) -> Vec<Run> {
        self.by_use.remove(&window.turn);
        let run = |free: &Range<u64>| (window.at + (free.start - start), free.end - free.start);
        let runs: Vec<Run> = window.free.iter().map(run).collect();
        self.held -= runs.iter().map(|run| run.1).sum::<u64>();
        runs
    }

    /// Closes one window. Returns its free runs.
    pub fn close_one(&mut self, ino: u64, start: u64) -> Vec<Run> {
        let file = self.files.get_mut(&ino);
        match file.and_then(|file| file.windows.remove(&start)) {
            Some(window) => self.free_of(start, &window),
            None => Vec::new(),
        }
    }

    /// Closes all windows of a file and forgets its streams. Returns the free runs.
    pub fn close(&mut self, ino: u64) -> Vec<Run> {
        let Some(file) = self.files.remove(&ino) else { return Vec::new() };
        file.windows.iter().flat_map(|(start, window)| self.free_of(*start, window)).collect()
    }

    /// Closes all windows. The streams stay remembered.
    pub fn close_all(&mut self) -> Vec<Run> {
        let mut runs = Vec::new();
        while let Some((ino, start)) = self.oldest() {
            runs.extend(self.close_one(ino, start));
        }
        runs
    }

    /// The least recently used window: file and first byte.
    pub fn oldest(&self) -> Option<(u64, u64)> {
        self.by_use.first_key_value().map(|(_, (ino, start, _))| (*ino, *start))
    }

    /// The least recently used window, if its last use was before `since`.
    pub fn oldest_before(&self, since: u64) -> Option<(u64, u64)> {
        let (_, (ino, start, used)) = self.by_use.first_key_value()?;
        (*used < since).then_some((*ino, *start))
    }

    /// The number of files with windows or streams.
    #[cfg(test)]
    pub fn files(&self) -> usize {
        self.files.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_base::world::split_mix;

    /// W11 to W14: each block of a window is given out once, at its own place, in any order. Free
    /// blocks are returned.
    #[test]
    fn w11_w12_w13_w14_each_block_has_its_place() {
        for seed in 0..100u64 {
            let mut rng = seed;
            let mut pick = |n: u64| split_mix(&mut rng) % n;
            let mut windows = Windows::default();
            for n in 0..4 {
                windows.open(7, n * 64..n * 64 + 40, (10_000 + n * 1000, 0), n);
            }
            let mut taken = [false; 256];
            for _ in 0..pick(120) {
                let (from, len) = (pick(256), 1 + pick(10));
                let to = (from + len).min(256);
                let place = |at: u64| 10_000 + at / 64 * 1000 + at % 64;
                match windows.take(7, &(from..to), 9) {
                    Some((at, len)) => {
                        assert_eq!(at, place(from), "at its place");
                        for n in from..from + len {
                            assert!(!std::mem::replace(&mut taken[n as usize], true), "W12");
                        }
                    }
                    None => assert!(from % 64 >= 40 || taken[from as usize]),
                }
            }
            let used = taken.iter().filter(|taken| **taken).count() as u64;
            assert_eq!(windows.held(), 160 - used, "W13");
            assert_eq!(windows.len(), windows.files[&7].windows.len(), "W14");
            let back: u64 = windows.close(7).iter().map(|run| run.1).sum();
            assert_eq!((back, windows.held(), windows.len()), (160 - used, 0, 0), "seed {seed}");
        }
    }

    #[test]
    fn streams_are_known_by_where_they_ended() {
        let mut windows = Windows::default();
        windows.note(1, &(0..100), 8);
        assert_eq!(
            (windows.stream(1, 100), windows.stream(1, 99), windows.stream(2, 100)),
            (Some(8), None, None)
        );
        windows.note(1, &(100..200), 16);
        assert_eq!(
            (windows.stream(1, 100), windows.stream(1, 200)),
            (None, Some(16)),
            "it went on"
        );
        for n in 0..STREAMS as u64 {
            windows.note(1, &(1000 * n + 300..1000 * n + 301), 8);
        }
        assert_eq!(windows.stream(1, 200), None, "the oldest is forgotten");
        windows.close(1);
        assert_eq!(windows.stream(1, 301), None);
    }
}
