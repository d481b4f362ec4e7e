//! Places for a request, in the three ways of [`AllocMode`].
//!
//! Invariants: T21 what was taken for a request that does not come to its reservation, by an error or because
//! nobody waits for it any more, goes back. T22 with `reserve` a request is served in one hold of the state
//! lock. T23 neighbours in file and segment are one place, whoever took them when.
//!
//! Locks: see [`crate::space::alloc`].

use crate::device::layout::Layout;
use crate::space::alloc::AllocMode;
use crate::space::alloc::runs::{Room, Run};
use crate::space::alloc::window::WINDOWS_MAX;
use crate::space::{Need, Space};
use crate::transaction::state::State;
use crate::volume::Inner;
use forebay_base::units::{round_down, round_up};
use forebay_base::world::Nanos;
use forebay_base::{Error, ErrorKind, Result};
use forebay_iomap::{Class, Place};
use std::ops::Range;
use std::time::Duration;

/// A window that was not used for so long is returned when the next one is opened.
const IDLE: Duration = Duration::from_secs(30);

/// Places that are not part of a reservation yet (T21).
pub(crate) struct Taken<'a> {
    inner: &'a Inner,
    places: Vec<Place>,
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        if !self.places.is_empty() {
            self.inner.state.lock().give_back(&self.inner.layout, &self.places);
        }
    }
}

impl Taken<'_> {
    /// The places, for a reservation that takes care of them.
    pub fn keep(mut self) -> Vec<Place> {
        std::mem::take(&mut self.places)
    }

    /// What there is so far.
    pub fn places(&self) -> &[Place] {
        &self.places
    }
}

/// Adds a run (T23).
fn push(places: &mut Vec<Place>, layout: &Layout, room: &Room, offset: u64, (at, len): Run) {
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
struct Who {
    ino: u64,
    /// Somebody has it open, and may go on.
    open: bool,
    /// Bytes.
    size: u64,
    /// Bytes that are stored.
    stored: u64,
    now: Nanos,
}

impl Inner {
    /// Writes failed at these offsets on the device: nothing more goes there that can go elsewhere (W18,
    /// R24).
    pub(crate) fn writes_failed(&self, offsets: &[u64]) {
        for at in offsets.iter().filter_map(|at| self.layout.place_at(*at)) {
            let mut state = self.state.lock();
            let State { room, space, .. } = &mut *state;
            if space.fail(at.segment) {
                log::warn!("a write to segment {} failed: others are taken first", at.segment);
                room.fail(space, at.segment);
            }
        }
    }
}

impl State {
    /// Places that are not used after all.
    pub fn give_back(&mut self, layout: &Layout, places: &[Place]) {
        for place in places.iter().rev() {
            let Some(at) = layout.place_at(place.device_offset) else { continue };
            let run = (self.room.sizes.address(at), place.len);
            self.room.give_back(&mut self.space, run);
        }
    }

    /// Nobody goes on with this file.
    pub fn close_windows(&mut self, ino: u64) {
        self.room.close(&mut self.space, ino);
    }

    fn who(&self, ino: u64, now: Nanos) -> Result<Who> {
        let Some(node) = self.nodes.get(&ino) else {
            return Err(Error::new(ErrorKind::Stale, "reserve", format!("inode {ino}")));
        };
        let (open, stored) = (node.opens > 0, node.inode.size);
        Ok(Who { ino, open, size: node.end().unwrap_or(stored), stored, now })
    }

    fn note_taken(&mut self, class: Class, places: &[Place]) {
        let bytes: u64 = places.iter().map(|place| place.len).sum();
        let stats = &mut self.room.stats;
        let (requests, sum, extents) = match class {
            Class::Direct => {
                (&mut stats.direct_requests, &mut stats.direct_bytes, &mut stats.direct_extents)
            }
            _ => (
                &mut stats.written_back,
                &mut stats.written_back_bytes,
                &mut stats.written_back_extents,
            ),
        };
        *requests += 1;
        *sum += bytes;
        *extents += places.len() as u64;
    }
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
struct Request<'a> {
    who: Who,
    run: Range<u64>,
    /// The next window of the stream that it goes on with.
    stream: Option<u64>,
    room: &'a mut Room,
    space: &'a mut Space,
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
    fn take(&mut self, layout: &Layout, places: &mut Vec<Place>) -> Result<()> {
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
    fn announce(&mut self) -> Result<()> {
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

impl Inner {
    fn request<'a>(&self, state: &'a mut State, ino: u64, run: &Range<u64>) -> Result<Request<'a>> {
        let who = state.who(ino, self.world.now())?;
        let stream = state.room.windows.stream(ino, run.start);
        let State { room, space, .. } = state;
        Ok(Request { who, run: run.clone(), stream, room, space })
    }

    /// T22. `over`: it takes the place of stored content.
    pub(crate) fn take_reserved(
        &self,
        ino: u64,
        runs: &[Range<u64>],
        (class, over): (Class, bool),
    ) -> Result<Taken<'_>> {
        let mut taken = Taken { inner: self, places: Vec::new() };
        let mut state = self.state.lock();
        let bytes = runs.iter().map(|run| run.end - run.start).sum();
        if let Err(error) = state.check_direct(bytes, class, over) {
            drop(state);
            return Err(error);
        }
        state.room.stats.holds += 1;
        for run in runs {
            let done = self
                .request(&mut state, ino, run)
                .and_then(|mut request| request.take(&self.layout, &mut taken.places));
            if let Err(error) = done {
                // The guard takes the lock.
                drop(state);
                return Err(error);
            }
        }
        state.note_taken(class, &taken.places);
        drop(state);
        Ok(taken)
    }

    /// An uncached stream is about to dirty a range: its window is found now.
    pub(crate) fn announce(&self, ino: u64, range: &Range<u64>) {
        if self.alloc.mode != AllocMode::Reserve {
            return;
        }
        let block = self.layout.block_bytes();
        let run = round_down(range.start, block)..round_up(range.end, block);
        let mut state = self.state.lock();
        let done = self.request(&mut state, ino, &run).and_then(|mut request| request.announce());
        if let Err(error) = done {
            // Write-back asks again.
            log::debug!("inode {ino}: no window: {error}");
        }
    }

    /// Places in whichever way is chosen.
    pub(crate) async fn take_places(
        &self,
        ino: u64,
        runs: &[Range<u64>],
        (class, over): (Class, bool),
    ) -> Result<Taken<'_>> {
        let bytes: u64 = runs.iter().map(|run| run.end - run.start).sum();
        if self.alloc.mode == AllocMode::Reserve {
            self.alloc.point().await;
            return self.take_reserved(ino, runs, (class, over));
        }
        let serializes = self.alloc.serializes(class == Class::Direct, bytes);
        let turn = if serializes { Some(self.alloc.turn().await) } else { None };
        let mut taken = Taken { inner: self, places: Vec::new() };
        for run in runs {
            for at in run.clone().step_by(self.layout.block_bytes() as usize) {
                self.alloc.point().await;
                self.take_block(ino, at, (class, over), &mut taken.places)?;
            }
        }
        let mut state = self.state.lock();
        state.room.stats.turns += u64::from(turn.is_some());
        state.note_taken(class, &taken.places);
        drop((state, turn));
        Ok(taken)
    }

    /// The next block of the open segment, with all that belongs to giving out one: where it was, whether
    /// there is room, who has it.
    fn take_block(
        &self,
        ino: u64,
        at: u64,
        (class, over): (Class, bool),
        places: &mut Vec<Place>,
    ) -> Result<()> {
        let block = self.layout.block_bytes();
        let mut state = self.state.lock();
        let Some(node) = state.nodes.get(&ino) else {
            return Err(Error::new(ErrorKind::Stale, "reserve", format!("inode {ino}")));
        };
        let data_id = node.inode.data_id;
        let there = state.data.get(&data_id).map(|overlay| overlay.look_up(at / block, block));
        std::hint::black_box(there.is_some_and(|found| found.is_ok()));
        if state.data_room(Need::Urgent) < block {
            return Err(Error::new(ErrorKind::NoSpace, "reserve", "no block is free"));
        }
        state.check_direct(block, class, over)?;
        let State { room, space, .. } = &mut *state;
        room.stats.holds += 1;
        let run = room.anything(space, block)?;
        push(places, &self.layout, room, at, run);
        Ok(())
    }
}
