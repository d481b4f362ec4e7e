//! Which segments are cleaned: those that cost least for what they give, and longest.
//!
//! Invariants: K21 a segment is picked only if its live bytes are counted by a checkpoint that
//! found it sealed, with nothing on its way there. K22 all that is live in what is picked fits
//! where the cleaner may write, and that is kept for it until the pass is over. K23 what is left
//! over of a segment that is picked is given out no more; none is picked whose rest accepted
//! content was counted on. K24 what is dead and becomes free by checkpoints alone counts as free:
//! nothing is moved for it.
//!
//! Lock: the state lock, then the cleaner's record; for a look at all segments, if one has changed
//! since.

use super::live::{FOUND_BYTES, Victims};
use super::{Cleaner, Hurry, Record};
use crate::space::Need;
use crate::space::segment::{Known, Phase, Segment};
use crate::transaction::state::State;
use std::collections::BTreeSet;

/// Share of a segment that may be live, of 100, for it to be cleaned in the background: when little
/// is free, when nothing is.
const LIVE_MOST: (u64, u64) = (75, 95);
/// Segments that a pass is to free for a task that waits, and the share of all segments, if that is
/// more: each pass reads the tree, and checkpoints follow it.
const GAIN_NOW: u64 = 2;
const GAIN_NOW_SHARE: u64 = 32;
/// The part of what is not live that is free before anything is cleaned: the more of it lies in
/// segments, the less is live in each, and has to be moved; the less of it does, the more each pass
/// brings.
const SPARE_SHARE: u64 = 4;
/// Segments below which something is cleaned at least, where cleaning is wanted at all.
const LOW_LEAST: u64 = 3;

/// What is found live takes so much of what changes may take in memory: one of so many parts.
const LISTED_SHARE: u64 = 4;

struct Candidate {
    segment: u32,
    live: u64,
    score: f64,
}

/// How much may be written, and how much should.
#[derive(Clone, Copy)]
struct Levels {
    /// Bytes.
    room: u64,
    /// Bytes that become free by checkpoints alone.
    coming: u64,
    /// Bytes below which segments are cleaned.
    low: u64,
}

impl State {
    /// Bytes that new content may take, what the cleaner counts on included.
    fn room_and_planned(&self) -> u64 {
        let planned = self.space.clean_planned() * self.layout.segment_bytes();
        self.data_room(Need::New) + planned
    }
}

impl Cleaner {
    fn levels(&self) -> Levels {
        self.levels_of(&mut self.state.lock())
    }

    fn levels_of(&self, state: &mut State) -> Levels {
        let percent = u64::from(self.options.clean_percent.min(50));
        let (segments, bytes) = (u64::from(self.layout.segments), self.layout.segment_bytes());
        let most = segments * percent / 100 * bytes;
        let least = if percent > 0 { LOW_LEAST * bytes } else { 0 };
        let room = state.room_and_planned();
        if room >= most.max(least) {
            return Levels { room, coming: 0, low: most.max(least) };
        }
        let Known { live, dead } = state.space.segments.known();
        let spare = (segments * bytes).saturating_sub(live) / SPARE_SHARE;
        Levels { room, coming: dead * bytes, low: most.min(spare).max(least) }
    }

    /// So little is free, or about to become free, that it is time to clean (K24).
    pub fn is_low(&self, state: &mut State) -> bool {
        let Levels { room, coming, low } = self.levels_of(state);
        room + coming < low
    }

    /// A checkpoint more would help.
    pub(super) fn is_coming(&self) -> bool {
        let Levels { room, coming, low } = self.levels();
        room < low && coming > 0
    }

    /// How far it is from low to nothing, of 100.
    pub(super) fn need(&self) -> u64 {
        let Levels { room, low, .. } = self.levels();
        100 - (100 * room.min(low)).checked_div(low).unwrap_or(100)
    }

    /// Bytes that a pass in the background is for: as much again as there should be, for it goes
    /// through the tree, and the checkpoint behind it writes much of that.
    fn lacking(&self) -> u64 {
        let Levels { room, coming, low } = self.levels();
        let nodes = self.state.lock().tree_nodes * self.layout.geometry.node_bytes() as u64;
        let least = (2 * self.layout.segment_bytes()).max(2 * nodes);
        (2 * low).saturating_sub(room + coming).max(least)
    }

    /// Bytes that are enough for a task that waits.
    pub(super) fn gain_now(&self) -> u64 {
        let segments = GAIN_NOW.max(u64::from(self.layout.segments) / GAIN_NOW_SHARE);
        segments * self.layout.segment_bytes()
    }

    /// Live bytes of what is picked, at most: all of it is listed at once (M34).
    fn listed_max(&self) -> u64 {
        let unit = self.layout.block_bytes();
        let blocks = self.options.overlay_bytes / LISTED_SHARE / (FOUND_BYTES + 4);
        (blocks * unit).max(self.layout.segment_bytes())
    }

    /// Picks segments; and whether there were any to be picked from.
    pub(super) fn pick(&self, hurry: Hurry) -> (Victims, bool) {
        let (need, wanted) = match hurry {
            Hurry::Now => (100, self.gain_now()),
            Hurry::Background => (self.need(), self.lacking()),
        };
        let bytes = self.layout.segment_bytes();
        let mut state = self.state.lock();
        if hurry == Hurry::Now {
            // Windows of files keep no segment now (A13).
            let State { room, space, .. } = &mut *state;
            room.return_all(space);
        }
        let found = self.candidates(&state, hurry, need);
        let (any, segments) = (!found.is_empty(), state.clean_segments());
        // What data may have it should not have to wait for: a quarter.
        let segments = if hurry == Hurry::Now { segments } else { segments - segments / 4 };
        let begun = state.space.clean_left();
        let (mut room, mut gain) = ((segments * bytes + begun).min(self.listed_max()), 0);
        let mut picked = Vec::new();
        for found in found {
            if gain >= wanted {
                break;
            }
            let rest = state.room.left_of(found.segment);
            if found.live > room || rest > 0 && !state.can_spare(rest) {
                continue;
            }
            (room, gain) = (room - found.live, gain + bytes - found.live);
            picked.push(found);
        }
        self.plan(&mut state, &mut picked);
        let State { room, space, .. } = &mut *state;
        picked.iter().for_each(|victim| room.forget(space, victim.segment));
        (picked.into_iter().map(|victim| victim.segment).collect(), any)
    }

    /// Counts on room for what is picked, and on what it takes to say so: as many as there is that
    /// for (K22).
    fn plan(&self, state: &mut State, picked: &mut Vec<Candidate>) {
        let (bytes, unit) = (self.layout.segment_bytes(), self.layout.block_bytes());
        loop {
            let moved: u64 = picked.iter().map(|victim| victim.live).sum();
            let segments = moved.saturating_sub(state.space.clean_left()).div_ceil(bytes);
            state.space.plan_clean(segments);
            // Each block may be an extent of its own.
            let (cost, growth) = self.said(moved / unit, moved / unit);
            if picked.len() <= 1 || state.could_promise(cost, growth) {
                return;
            }
            picked.pop();
        }
    }

    /// What a pass would take for a task that waits; its space is set aside then.
    #[cfg(test)]
    pub(crate) fn pick_now(&self) -> BTreeSet<u32> {
        self.pick(Hurry::Now).0
    }

    /// Bytes that become free by checkpoints alone.
    #[cfg(test)]
    pub(crate) fn coming_bytes(&self) -> u64 {
        self.state.lock().space.segments.known().dead * self.layout.segment_bytes()
    }

    /// What may be picked (K21), the best first.
    fn candidates(&self, state: &State, hurry: Hurry, need: u64) -> Vec<Candidate> {
        let bytes = self.layout.segment_bytes();
        let most = match hurry {
            // Whatever there is.
            Hurry::Now => bytes - self.layout.block_bytes(),
            Hurry::Background => {
                bytes * (LIVE_MOST.0 + (LIVE_MOST.1 - LIVE_MOST.0) * need / 100) / 100
            }
        };
        let (number, now, mut found) =
            (self.checkpoints.merged(), state.counters.next_sequence(), Vec::new());
        let mut record = self.record.lock();
        for (segment, this) in state.space.segments.iter() {
            let counted = this.phase == Phase::Sealed && this.is_settled() && this.is_content();
            let little = this.live_bytes > 0 && this.live_bytes <= most;
            if !counted || !little || this.held_bytes != state.room.left_of(segment) {
                continue;
            }
            if record.is_stubborn(segment, this, number) {
                continue;
            }
            let (live, age) = (this.live_bytes, now.saturating_sub(this.since) as f64);
            let gain = (bytes - live) as f64 / (bytes + live) as f64;
            // Who waits wants the most for the least.
            let score = if hurry == Hurry::Now { gain } else { gain * (1.0 + age) };
            found.push(Candidate { segment, live, score });
        }
        found.sort_by(|a, b| b.score.total_cmp(&a.score).then(a.segment.cmp(&b.segment)));
        found
    }

    /// Seals segments that are open and have something dead, where nothing else is to be had (P25).
    /// False: there are none.
    pub(super) fn seal_open(&self) -> bool {
        let mut state = self.state.lock();
        let State { room, space, .. } = &mut *state;
        let data = space.seals_data().then(|| room.seal_data(space)).is_some();
        space.seal_clean() || data
    }

    /// A pass went through these; in those of `bad` there is something that stays.
    pub(super) fn note_tried(&self, victims: &Victims, bad: &BTreeSet<u32>) {
        let number = self.checkpoints.merged();
        let state = self.state.lock();
        let mut record = self.record.lock();
        for segment in victims {
            let Some(this) = state.space.segments.get(*segment) else { continue };
            match bad.contains(segment) {
                true => drop(record.bad.insert(*segment, this.takes)),
                false => drop(record.tried.insert(*segment, (this.takes, number))),
            }
        }
    }
}

impl Record {
    /// Whether something stays in this filling of a segment: it could not be moved; or all was, by
    /// a pass that checkpoints have counted since, and it is said to hold something still, which is
    /// nowhere to be found.
    fn is_stubborn(&mut self, segment: u32, this: &Segment, number: u64) -> bool {
        let same = |takes: &u64| *takes == this.takes;
        if self.bad.get(&segment).is_some_and(same) {
            return true;
        }
        let found = self.tried.get(&segment).filter(|(takes, _)| same(takes));
        let stubborn = found.is_some_and(|(_, tried)| number >= tried + 2);
        if stubborn {
            log::warn!("segment {segment} was cleaned, and is not empty: it stays");
            self.bad.insert(segment, this.takes);
        }
        stubborn
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::usage::Stream;
    use crate::space::segment::Segments;

    /// A segment with a block that could not be read was left alone for all of that life, also when
    /// it had been emptied and filled anew. And one that was said to hold something which no extent
    /// names was cleaned again and again.
    #[test]
    fn what_stays_is_of_one_filling_of_a_segment() {
        let mut segments = Segments::new(2);
        let segment = segments.take(Stream::Data).unwrap();
        let stays = |record: &mut Record, segments: &Segments, number| {
            record.is_stubborn(segment, segments.get(segment).unwrap(), number)
        };
        let mut record = Record::default();
        record.bad.insert(segment, 1);
        assert!(stays(&mut record, &segments, 9));
        segments.give_back(segment);
        while segments.take(Stream::Data).unwrap() != segment {}
        assert!(!stays(&mut record, &segments, 9), "it was filled anew");
        record.tried.insert(segment, (2, 9));
        assert!(
            !stays(&mut record, &segments, 10),
            "no checkpoint that began since has counted it"
        );
        assert!(stays(&mut record, &segments, 11));
    }
}
