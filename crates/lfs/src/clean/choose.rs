//! Picks the segments to clean: those with the best ratio of benefit to cost, weighted by age.
//!
//! Invariants: K21 a segment is picked only if a checkpoint that found it sealed has counted its
//! live bytes, and no write to it is in flight. K22 all live data of the picked segments fits where
//! the cleaner may write, and that space is reserved until the pass ends. K23 the unused rest of a
//! picked segment is not allocated any more; a segment is not picked if accepted content counts on
//! its rest. K24 segments that become free by checkpoints alone count as free: no data is moved for
//! them.
//!
//! Lock: the state lock, then the cleaner's record; held while all segments are scanned.

use super::live::{FOUND_BYTES, Victims};
use super::{Cleaner, Hurry, Record};
use crate::space::segment::{Known, Phase, Segment};
use crate::space::{Ask, Need};
use crate::transaction::state::State;
use std::collections::BTreeSet;

/// Most live data of a segment that is cleaned in the background, in percent: when little is free,
/// and when nothing is.
const LIVE_MOST: (u64, u64) = (75, 95);
/// A pass for a task that waits should free this many segments, or this share of all segments if
/// that is more: each pass reads the tree, and checkpoints follow it.
const GAIN_NOW: u64 = 2;
const GAIN_NOW_SHARE: u64 = 32;
/// Cleaning starts only if less than this share (a quarter) of the space that is not live is free.
/// The rest is dead data in segments: the more of it, the less live data a pass moves.
const SPARE_SHARE: u64 = 4;
/// Least number of free segments below which cleaning starts, if cleaning is enabled.
const LOW_LEAST: u64 = 3;

/// Share of the memory for changes that the list of live data may take.
const LISTED_SHARE: u64 = 4;

/// The weight of a segment grows with its age up to this multiple of the mean age, and is then
/// three times that of a new one. Of two old segments the one with less live data is better,
/// however old the other one is: what is moved pays only if the space is needed.
const AGE_MOST: f64 = 2.0;

struct Candidate {
    segment: u32,
    live: u64,
    age: u64,
}

/// Sorts the segments of `bytes` bytes by benefit and cost, the best first.
fn sort(found: &mut [Candidate], bytes: u64, hurry: Hurry) {
    let ages: f64 = found.iter().map(|this| this.age as f64).sum();
    let mean = (ages / found.len().max(1) as f64).max(1.0);
    let score = |this: &Candidate| {
        let gain = (bytes - this.live) as f64 / (bytes + this.live) as f64;
        match hurry {
            // A task that waits needs the best ratio of benefit to cost, without the age.
            Hurry::Now => gain,
            Hurry::Background => gain * (1.0 + (this.age as f64 / mean).min(AGE_MOST)),
        }
    };
    found.sort_by(|a, b| score(b).total_cmp(&score(a)).then(a.segment.cmp(&b.segment)));
}

/// Free space now, and the wanted amount.
#[derive(Clone, Copy)]
struct Levels {
    /// Free bytes.
    room: u64,
    /// Bytes that become free by checkpoints alone.
    coming: u64,
    /// Below this number of bytes segments are cleaned.
    low: u64,
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
        let Known { live, dead } = state.known_segments();
        let spare = (segments * bytes).saturating_sub(live) / SPARE_SHARE;
        Levels { room, coming: dead * bytes, low: most.min(spare).max(least) }
    }

    /// Whether free space, with space about to become free, is so low that cleaning has to start
    /// (K24).
    pub fn is_low(&self, state: &mut State) -> bool {
        let Levels { room, coming, low } = self.levels_of(state);
        room + coming < low
    }

    /// Whether another checkpoint would free space.
    pub(super) fn is_coming(&self) -> bool {
        let Levels { room, coming, low } = self.levels();
        room < low && coming > 0
    }

    /// How urgent cleaning is, from 0 (at the threshold) to 100 (nothing free).
    pub(super) fn need(&self) -> u64 {
        let Levels { room, low, .. } = self.levels();
        100 - (100 * room.min(low)).checked_div(low).unwrap_or(100)
    }

    /// Bytes that a background pass should free: up to twice the threshold, because each pass reads
    /// the tree, and the checkpoint after it rewrites much of it.
    fn lacking(&self) -> u64 {
        let Levels { room, coming, low } = self.levels();
        let nodes =
            self.state.lock().tree().node_count() * self.layout.geometry.node_bytes() as u64;
        let least = (2 * self.layout.segment_bytes()).max(2 * nodes);
        (2 * low).saturating_sub(room + coming).max(least)
    }

    /// Bytes that suffice for a task that waits.
    pub(super) fn gain_now(&self) -> u64 {
        let segments = GAIN_NOW.max(u64::from(self.layout.segments) / GAIN_NOW_SHARE);
        segments * self.layout.segment_bytes()
    }

    /// Most live bytes of picked segments: their list must fit into memory (gather.M34).
    fn listed_max(&self) -> u64 {
        let unit = self.layout.block_bytes();
        let blocks = self.options.overlay_bytes / LISTED_SHARE / (FOUND_BYTES + 4);
        (blocks * unit).max(self.layout.segment_bytes())
    }

    /// Picks segments; also returns whether there were any candidates.
    pub(super) fn pick(&self, hurry: Hurry) -> (Victims, bool) {
        let (need, wanted) = match hurry {
            Hurry::Now => (100, self.gain_now()),
            Hurry::Background => (self.need(), self.lacking()),
        };
        let bytes = self.layout.segment_bytes();
        let mut state = self.state.lock();
        if hurry == Hurry::Now {
            // Allocation windows of files must not keep segments open now (alloc.A13).
            state.return_windows();
        }
        let found = self.candidates(&state, hurry, need);
        let (any, segments) = (!found.is_empty(), state.clean_segments());
        // A background pass leaves a quarter to data writes, so that they do not wait for it.
        let segments = if hurry == Hurry::Now { segments } else { segments - segments / 4 };
        let begun = state.space().clean_left();
        let (mut room, mut gain) = ((segments * bytes + begun).min(self.listed_max()), 0);
        let mut picked = Vec::new();
        for found in found {
            if gain >= wanted {
                break;
            }
            let rest = state.space().room().left_of(found.segment);
            if found.live > room || rest > 0 && !state.has_room(rest, Need::Overwrite) {
                continue;
            }
            (room, gain) = (room - found.live, gain + bytes - found.live);
            picked.push(found);
        }
        self.plan(&mut state, &mut picked);
        picked.iter().for_each(|victim| state.forget_runs(victim.segment));
        (picked.into_iter().map(|victim| victim.segment).collect(), any)
    }

    /// Reserves space for the live data of picked segments and for its records; drops segments for
    /// which there is none (K22).
    fn plan(&self, state: &mut State, picked: &mut Vec<Candidate>) {
        let (bytes, unit) = (self.layout.segment_bytes(), self.layout.block_bytes());
        loop {
            let moved: u64 = picked.iter().map(|victim| victim.live).sum();
            let segments = moved.saturating_sub(state.space().clean_left()).div_ceil(bytes);
            state.plan_clean(segments);
            // Each block may be a separate extent.
            let (cost, growth) = self.said(moved / unit, moved / unit);
            if picked.len() <= 1 || state.fits(&Ask::log(cost, growth), Need::Urgent) {
                return;
            }
            picked.pop();
        }
    }

    /// The segments of a pass for a task that waits; its space is reserved then.
    #[cfg(test)]
    pub(crate) fn pick_now(&self) -> BTreeSet<u32> {
        self.pick(Hurry::Now).0
    }

    /// Bytes that become free by checkpoints alone.
    #[cfg(test)]
    pub(crate) fn coming_bytes(&self) -> u64 {
        self.state.lock().known_segments().dead * self.layout.segment_bytes()
    }

    /// The segments that may be picked (K21), the best first.
    fn candidates(&self, state: &State, hurry: Hurry, need: u64) -> Vec<Candidate> {
        let bytes = self.layout.segment_bytes();
        let most = match hurry {
            // Any segment with a dead block.
            Hurry::Now => bytes - self.layout.block_bytes(),
            Hurry::Background => {
                bytes * (LIVE_MOST.0 + (LIVE_MOST.1 - LIVE_MOST.0) * need / 100) / 100
            }
        };
        let (number, now, mut found) =
            (self.checkpoints.merged(), state.counters().next_sequence(), Vec::new());
        let mut record = self.record.lock();
        for (segment, this) in state.space().segments().iter() {
            let counted = this.phase == Phase::Sealed && this.is_settled() && this.is_content();
            let little = this.live_bytes > 0 && this.live_bytes <= most;
            if !counted || !little || this.held_bytes != state.space().room().left_of(segment) {
                continue;
            }
            if record.is_stubborn(segment, this, number) {
                continue;
            }
            found.push(Candidate { segment, live: this.live_bytes, age: this.age(now) });
        }
        sort(&mut found, bytes, hurry);
        found
    }

    /// Seals open segments that have dead data, if there are no other candidates (capacity.P25).
    /// False: there are none.
    pub(super) fn seal_open(&self) -> bool {
        self.state.lock().seal_open()
    }

    /// Records that a pass has processed these segments; in those of `bad` some data stays.
    pub(super) fn note_tried(&self, victims: &Victims, bad: &BTreeSet<u32>) {
        let number = self.checkpoints.merged();
        let state = self.state.lock();
        let mut record = self.record.lock();
        for segment in victims {
            let Some(this) = state.space().segments().get(*segment) else { continue };
            match bad.contains(segment) {
                true => drop(record.bad.insert(*segment, this.takes)),
                false => drop(record.tried.insert(*segment, (this.takes, number))),
            }
        }
    }
}

impl Record {
    /// Whether some data stays in a segment until the segment is taken again. Either it could not
    /// be moved, or a pass has moved everything it found. In the second case checkpoints have
    /// counted since, and the segment still counts as not empty.
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

    /// Age counts, up to a limit: a segment of content that never changes is not emptied when it is
    /// nearly all live, while others are half dead.
    #[test]
    fn age_does_not_outweigh_live_data() {
        let first = |live: [u64; 2], ages: [u64; 2], hurry| {
            let one = |n: usize| Candidate { segment: n as u32, live: live[n], age: ages[n] };
            let mut found = [one(0), one(1)];
            sort(&mut found, 100, hurry);
            found[0].segment
        };
        assert_eq!(first([60, 70], [10, 90], Hurry::Background), 1, "the older one");
        assert_eq!(first([60, 70], [10, 90], Hurry::Now), 0);
        assert_eq!(first([50, 90], [1, 1_000_000], Hurry::Background), 0);
        assert_eq!(first([50, 50], [7, 7], Hurry::Background), 0, "the lower number");
    }

    /// A segment that the cleaner fills is as old as its last filling, and content that it moves
    /// there keeps its birth.
    #[test]
    fn age_begins_when_segment_is_filled() {
        let mut segments = Segments::new(2);
        let segment = segments.take(Stream::Data).unwrap();
        let age = |segments: &Segments| segments.get(segment).unwrap().age(50);
        assert_eq!(age(&segments), 50);
        segments.note_moved(segment, 40);
        assert_eq!(age(&segments), 10);
        segments.give_back(segment);
        while segments.take(Stream::Data).unwrap() != segment {}
        assert_eq!(age(&segments), 50, "it is filled anew");
    }

    /// The story: a segment with an unreadable block was skipped until the volume was closed, also
    /// after it had been emptied and filled again. And a segment that counted live data to which no
    /// extent refers was cleaned again and again.
    #[test]
    fn stubborn_mark_of_segment_ends_with_its_refill() {
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
