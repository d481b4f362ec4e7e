//! Places for a request, in the three ways of [`AllocMode`](crate::space::alloc::AllocMode).
//!
//! Invariant: T23 neighbours in file and segment are one place, whoever took them when.
//!
//! No locks: the volume's state lock covers it.

use crate::device::layout::Layout;
use crate::space::Space;
use crate::space::alloc::Run;
use crate::space::alloc::runs::Room;
use crate::space::alloc::window::WINDOWS_MAX;
use forebay_base::Result;
use forebay_base::units::{round_down, round_up};
use forebay_base::world::Nanos;
use forebay_iomap::Place;
use std::ops::Range;
use std::time::Duration;

/// A window that was not used for so long is returned when the next one is opened.
const IDLE: Duration = Duration::from_secs(30);

/// Adds a run (T23).
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

/// Whose request it is.
#[derive(Clone, Copy)]
pub(crate) struct Who {
    pub ino: u64,
    /// Somebody has it open, and may go on.
    pub open: bool,
    /// Bytes.
    pub size: u64,
    /// Bytes that are stored.
    pub stored: u64,
    pub now: Nanos,
}

/// What was done where no window had a block.
enum Step {
    /// A run without a window.
    Run(Run),
    /// A window of this size.
    Opened(u64),
    /// What was in the way of a window is gone.
    Again,
}

/// One run of a file that is to have its places, and what gives them out.
pub(crate) struct Request<'a> {
    pub who: Who,
    pub run: Range<u64>,
    /// The next window of the stream that it goes on with.
    pub stream: Option<u64>,
    pub room: &'a mut Room,
    pub space: &'a mut Space,
}

impl Request<'_> {
    /// Half of a window, or more.
    fn is_large(&self) -> bool {
        self.run.end - self.run.start >= self.room.sizes.first / 2
    }

    /// What the next window after this request should have.
    fn next_window(&self, opened: Option<u64>) -> u64 {
        let sizes = &self.room.sizes;
        let own = if self.is_large() { sizes.first } else { sizes.small };
        opened.map_or(own, |bytes| (2 * bytes).max(own)).min(sizes.most)
    }

    /// The range that a window for `part` should have, and its size; none: it has no stream.
    fn plan(&self, part: &Range<u64>) -> Option<(Range<u64>, u64)> {
        let (sizes, who) = (&self.room.sizes, &self.who);
        let before = round_down(part.start, sizes.first);
        let behind = self.room.windows.window_behind(who.ino, before);
        let wanted = match (self.stream, self.is_large()) {
            (Some(next), false) => next,
            (next, true) => next.max(behind).unwrap_or(0).max(sizes.first),
            (None, false) => return None,
        };
        // The more windows, the smaller: all of them together stay within the limit.
        let others = (2 * self.room.windows.len() as u64).max(8);
        let most = self.room.limit(self.space) / others;
        let size = wanted.min(1 << most.checked_ilog2().unwrap_or(0)).max(sizes.block);
        let appends = part.start == round_down(who.stored, sizes.block)
            || part.start == round_up(who.stored, sizes.block);
        let goes_on = self.stream.is_some() || part.start != self.run.start;
        let gap = self.room.windows.gap(who.ino, part.start);
        let start = if goes_on || appends || !who.open {
            part.start
        } else {
            // What belongs before it may come later.
            round_down(part.start, sizes.first.min(size)).max(gap.start)
        };
        let mut end = (round_down(part.start, size) + size).max(part.end);
        if !who.open {
            end = end.min(round_up(who.size, sizes.block)).max(part.end);
        }
        Some((start..end.min(gap.end), size))
    }

    /// Opens a window for `part` as planned; its size.
    fn open(&mut self, part: &Range<u64>, (mut range, size): (Range<u64>, u64)) -> Result<u64> {
        let who = self.who;
        self.room.return_idle(self.space, who.now.saturating_sub(IDLE.as_nanos() as u64));
        if self.room.windows.len() >= WINDOWS_MAX
            && let Some((ino, start)) = self.room.windows.oldest()
        {
            self.close_one(ino, start);
        }
        let limit = self.room.limit(self.space);
        let spare = (range.end - range.start) - (part.end - part.start);
        if spare > limit {
            range = part.clone();
        } else {
            self.room.shrink_to(self.space, limit - spare);
        }
        let lead = part.start - range.start;
        let least = (lead + part.end - part.start).min(self.room.sizes.segment);
        let (at, len) = self.room.fresh(self.space, range.end - range.start, least)?;
        let start = if len > lead { range.start } else { part.start };
        let next = (2 * size).min(self.room.sizes.most);
        self.room.windows.open(who.ino, start..start + len, (at, next), who.now);
        self.room.stats.windows += 1;
        Ok(size)
    }

    fn close_one(&mut self, ino: u64, start: u64) {
        let runs = self.room.windows.close_one(ino, start);
        for run in runs.into_iter().rev() {
            self.room.stats.returned_bytes += run.1;
            self.room.give_back(self.space, run);
        }
    }

    /// Takes all of it, window by window.
    pub fn take(&mut self, layout: &Layout, places: &mut Vec<Place>) -> Result<()> {
        let (ino, now) = (self.who.ino, self.who.now);
        let (mut at, mut opened) = (self.run.start, None);
        while at < self.run.end {
            let left = at..self.run.end;
            let run = match self.room.windows.take(ino, &left, now) {
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
            push(places, layout, self.room, at, run);
            at += run.1;
        }
        let next = self.next_window(opened);
        self.room.windows.note(ino, &self.run, next);
        Ok(())
    }

    /// Where no window has a block for the start of `left`.
    fn step(&mut self, left: &Range<u64>) -> Result<Step> {
        let mut part = left.clone();
        if let Some((window, _)) = self.room.windows.around(self.who.ino, left.start) {
            // Its block there is in use: it is being written again.
            if self.is_large() || self.stream.is_some() {
                self.close_one(self.who.ino, window.start);
                return Ok(Step::Again);
            }
            part.end = part.end.min(window.end);
        } else {
            part.end = part.end.min(self.room.windows.gap(self.who.ino, left.start).end);
        }
        match self.plan(&part) {
            None => {
                let run = self.room.pooled(self.space, part.end - part.start)?;
                Ok(Step::Run(run))
            }
            Some(planned) => self.open(&part, planned).map(Step::Opened),
        }
    }

    /// Opens the windows that all of it will need, and takes nothing.
    pub fn announce(&mut self) -> Result<()> {
        let (mut at, mut opened) = (self.run.start, None);
        while at < self.run.end {
            match self.room.windows.around(self.who.ino, at) {
                Some((window, _)) => at = window.end,
                None => {
                    let gap = self.room.windows.gap(self.who.ino, at);
                    let part = at..self.run.end.min(gap.end);
                    let Some(planned) = self.plan(&part) else { break };
                    opened = Some(self.open(&part, planned)?);
                }
            }
        }
        let next = self.next_window(opened);
        self.room.windows.note(self.who.ino, &self.run, next);
        Ok(())
    }
}
