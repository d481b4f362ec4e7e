//! Places for a request by the strategy `reserve` ([`AllocMode`](crate::space::alloc::AllocMode)):
//! runs that the windows of its stream provide.
//!
//! Invariant: T23 adjacent runs of a file that are also adjacent in the segment become one place,
//! whenever they were taken.
//!
//! No locks: the volume's state lock covers it.

use crate::device::layout::Layout;
use crate::space::Space;
use crate::space::alloc::Run;
use crate::space::alloc::runs::Room;
use crate::space::alloc::window::WINDOWS_MAX;
use crate::space::ledger::Kept;
use forebay_base::Result;
use forebay_base::units::{round_down, round_up};
use forebay_base::world::Nanos;
use forebay_iomap::Place;
use std::ops::Range;
use std::time::Duration;

/// A window that was not used for this time is closed when the next window is opened.
const IDLE: Duration = Duration::from_secs(30);

/// Appends a run to `places` (T23).
pub(crate) fn push(
    places: &mut Vec<Place>,
    layout: &Layout,
    room: &Room,
    offset: u64,
    (at, len): Run,
) {
    let device_offset = layout.device_offset(room.sizes.place(at));
    if let Some(last) = places.last_mut()
        && last.offset + last.len == offset
        && last.device_offset + last.len == device_offset
        && !at.is_multiple_of(room.sizes.segment)
    {
        last.len += len;
        return;
    }
    places.push(Place { offset, len, device_offset });
}

/// The file of a request.
#[derive(Clone, Copy)]
pub(crate) struct Who {
    pub ino: u64,
    /// The file has an opener, which may continue to write.
    pub open: bool,
    /// The size of the file, bytes.
    pub size: u64,
    /// The stored bytes of the file.
    pub stored: u64,
    pub now: Nanos,
}

/// What [`Request::step`] did for a block that is in no window.
enum Step {
    /// It took a run without a window.
    Run(Run),
    /// It opened a window of this size.
    Opened(u64),
    /// It closed a window that was in the way.
    Again,
}

/// One run of a file that needs places, and the sources that give them out.
pub(crate) struct Request<'a> {
    pub(in crate::space) who: Who,
    pub(in crate::space) run: Range<u64>,
    /// The size of the next window of the stream that this request continues.
    pub(in crate::space) stream: Option<u64>,
    /// The free segments that it leaves.
    pub(in crate::space) kept: Kept,
    /// Private to `space`: the callers that make a request must not change all of it.
    pub(in crate::space) space: &'a mut Space,
}

impl Request<'_> {
    /// Whether the request has at least half of a first window.
    fn is_large(&self) -> bool {
        self.run.end - self.run.start >= self.space.room.sizes.first / 2
    }

    /// The size of the window that follows this request.
    fn next_window(&self, opened: Option<u64>) -> u64 {
        let sizes = &self.space.room.sizes;
        let own = if self.is_large() { sizes.first } else { sizes.small };
        opened.map_or(own, |bytes| (2 * bytes).max(own)).min(sizes.most)
    }

    /// The range of a new window for `part`, and its size. None: the request belongs to no stream.
    fn plan(&self, part: &Range<u64>) -> Option<(Range<u64>, u64)> {
        let (sizes, who) = (&self.space.room.sizes, &self.who);
        let before = round_down(part.start, sizes.first);
        let behind = self.space.room.windows.window_behind(who.ino, before);
        let wanted = match (self.stream, self.is_large()) {
            (Some(next), false) => next,
            (next, true) => next.max(behind).unwrap_or(0).max(sizes.first),
            (None, false) => return None,
        };
        // The more windows there are, the smaller each one is: all windows together stay within the
        // limit.
        let others = (2 * self.space.room.windows.len() as u64).max(8);
        let most = self.space.windows_limit(self.kept) / others;
        let size = wanted.min(1 << most.checked_ilog2().unwrap_or(0)).max(sizes.block);
        let appends = part.start == round_down(who.stored, sizes.block)
            || part.start == round_up(who.stored, sizes.block);
        let goes_on = self.stream.is_some() || part.start != self.run.start;
        let gap = self.space.room.windows.gap(who.ino, part.start);
        let start = if goes_on || appends || !who.open {
            part.start
        } else {
            // Blocks before this part may be written later, so the window begins earlier.
            round_down(part.start, sizes.first.min(size)).max(gap.start)
        };
        let mut end = (round_down(part.start, size) + size).max(part.end);
        if !who.open {
            end = end.min(round_up(who.size, sizes.block)).max(part.end);
        }
        Some((start..end.min(gap.end), size))
    }

    /// Opens the planned window for `part` and returns its size.
    fn open(&mut self, part: &Range<u64>, (mut range, size): (Range<u64>, u64)) -> Result<u64> {
        let who = self.who;
        self.space.return_idle_windows(who.now.saturating_sub(IDLE.as_nanos() as u64));
        if self.space.room.windows.len() >= WINDOWS_MAX
            && let Some((ino, start)) = self.space.room.windows.oldest()
        {
            self.close_one(ino, start);
        }
        let limit = self.space.windows_limit(self.kept);
        let spare = (range.end - range.start) - (part.end - part.start);
        if spare > limit {
            range = part.clone();
        } else {
            self.space.shrink_windows(limit - spare);
        }
        let lead = part.start - range.start;
        let least = (lead + part.end - part.start).min(self.space.room.sizes.segment);
        let (at, len) = self.space.fresh_run(self.kept, range.end - range.start, least)?;
        let start = if len > lead { range.start } else { part.start };
        let next = (2 * size).min(self.space.room.sizes.most);
        self.space.room.windows.open(who.ino, start..start + len, (at, next), who.now);
        self.space.room.stats.windows += 1;
        Ok(size)
    }

    fn close_one(&mut self, ino: u64, start: u64) {
        let runs = self.space.room.windows.close_one(ino, start);
        for run in runs.into_iter().rev() {
            self.space.room.stats.returned_bytes += run.1;
            self.space.give_back_run(run);
        }
    }

    /// Takes places for the whole run, window by window.
    pub fn take(&mut self, layout: &Layout, places: &mut Vec<Place>) -> Result<()> {
        let (ino, now) = (self.who.ino, self.who.now);
        let (mut at, mut opened) = (self.run.start, None);
        while at < self.run.end {
            let left = at..self.run.end;
            let run = match self.space.room.windows.take(ino, &left, now) {
                Some(run) => run,
                None => match self.step(&left)? {
                    Step::Run(run) => run,
                    Step::Opened(size) => {
                        opened = Some(size);
                        continue;
                    }
                    Step::Again => continue,
                },
            };
            push(places, layout, &self.space.room, at, run);
            at += run.1;
        }
        let next = self.next_window(opened);
        self.space.room.windows.note(ino, &self.run, next);
        Ok(())
    }

    /// Handles a block at the start of `left` that no window has free.
    fn step(&mut self, left: &Range<u64>) -> Result<Step> {
        let mut part = left.clone();
        if let Some((window, _)) = self.space.room.windows.around(self.who.ino, left.start) {
            // A window covers the block, but its place there is in use: the block is being written
            // again.
            if self.is_large() || self.stream.is_some() {
                self.close_one(self.who.ino, window.start);
                return Ok(Step::Again);
            }
            part.end = part.end.min(window.end);
        } else {
            part.end = part.end.min(self.space.room.windows.gap(self.who.ino, left.start).end);
        }
        match self.plan(&part) {
            None => {
                let run = self.space.pooled_run(self.kept, part.end - part.start)?;
                Ok(Step::Run(run))
            }
            Some(planned) => self.open(&part, planned).map(Step::Opened),
        }
    }

    /// Opens the windows that the whole run will need, and takes no places.
    pub fn announce(&mut self) -> Result<()> {
        let (mut at, mut opened) = (self.run.start, None);
        while at < self.run.end {
            match self.space.room.windows.around(self.who.ino, at) {
                Some((window, _)) => at = window.end,
                None => {
                    let gap = self.space.room.windows.gap(self.who.ino, at);
                    let part = at..self.run.end.min(gap.end);
                    let Some(planned) = self.plan(&part) else { break };
                    opened = Some(self.open(&part, planned)?);
                }
            }
        }
        let next = self.next_window(opened);
        self.space.room.windows.note(self.who.ino, &self.run, next);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::place::{Geometry, Seal};

    /// T23: only neighbours in the file and in the segment join, whenever they were taken.
    #[test]
    fn t23_neighbours_in_file_and_segment_are_one_place() {
        let (geometry, seal) = (Geometry::with_segment_shift(20), Seal::new(&[1; 16]));
        let (nonce, data_start, align) = ([1; 16], 16384, 512);
        let layout = Layout { geometry, seal, nonce, data_start, segments: 9, align };
        let (room, end) = (Room::new(&layout), layout.segment_bytes());
        let lens = |runs: &[(u64, Run)]| {
            let mut places = Vec::new();
            runs.iter().for_each(|(offset, run)| push(&mut places, &layout, &room, *offset, *run));
            places.iter().map(|place| place.len).collect::<Vec<_>>()
        };
        assert_eq!(lens(&[(0, (end, 4096)), (4096, (end + 4096, 8192))]), [12288], "T23");
        assert_eq!(lens(&[(0, (end, 4096)), (8192, (end + 4096, 4096))]), [4096; 2], "file");
        assert_eq!(lens(&[(0, (end, 4096)), (4096, (end + 8192, 4096))]), [4096; 2], "segment");
        let over_the_end = [(0, (2 * end - 4096, 4096)), (4096, (2 * end, 4096))];
        assert_eq!(lens(&over_the_end), [4096; 2], "neighbours on the device alone");
    }
}
