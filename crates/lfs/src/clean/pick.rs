//! Which segments are cleaned: those that cost least for what they give, and longest.
//!
//! Invariants: K21 a segment is picked only if its live bytes are counted by a checkpoint that found it
//! sealed, with nothing on its way there. K22 all that is live in what is picked fits where the cleaner may
//! write. K23 what is over of a segment that is picked is given to nobody any more.
//!
//! Lock: the state lock, then the turn; for a look at all segments.

use super::Hurry;
use crate::format::usage::Stream;
use crate::segment::Phase;
use crate::space::Need;
use crate::volume::Inner;
use std::collections::BTreeSet;

/// Share of a segment that may be live, of 100, for it to be cleaned: when little is free, when nothing is.
const LIVE_MOST: (u64, u64) = (75, 95);

/// Segments that a pass is for that somebody waits for.
const GAIN_NOW: u64 = 4;

/// Segments to clean.
pub(super) type Victims = BTreeSet<u32>;

struct Candidate {
    segment: u32,
    live: u64,
    score: f64,
}

impl Inner {
    /// Bytes that may be written, and below how many of them segments are cleaned.
    fn levels(&self) -> (u64, u64) {
        let percent = u64::from(self.options.clean_percent.min(50));
        let segments = u64::from(self.layout.segments);
        // A few segments at least, where cleaning is wanted at all.
        let low = (segments * percent / 100).max(if percent > 0 { 3 } else { 0 });
        (self.state.lock().data_room(Need::New), low * self.layout.segment_bytes())
    }

    /// So little is free that it is time to clean.
    pub(super) fn is_low(&self) -> bool {
        let (room, low) = self.levels();
        room < low
    }

    /// How far it is from low to nothing, of 100.
    pub(super) fn need(&self) -> u64 {
        let (room, low) = self.levels();
        100 - (100 * room.min(low)).checked_div(low).unwrap_or(100)
    }

    /// Bytes that a pass in the background is for: some more than there should be.
    fn lacking(&self) -> u64 {
        let (room, low) = self.levels();
        (low + low / 4).saturating_sub(room).max(2 * self.layout.segment_bytes())
    }

    /// Picks segments.
    pub(super) fn pick(&self, hurry: Hurry) -> Victims {
        let (need, wanted) = match hurry {
            Hurry::Now => (100, GAIN_NOW * self.layout.segment_bytes()),
            Hurry::Background => (self.need(), self.lacking()),
        };
        let most = LIVE_MOST.0 + (LIVE_MOST.1 - LIVE_MOST.0) * need / 100;
        let bytes = self.layout.segment_bytes();
        let bad = self.cleaner.turn.lock().bad.clone();
        let mut state = self.state.lock();
        let now = state.next_sequence;
        let mut found = Vec::new();
        for (segment, this) in state.space.segments.iter() {
            let whose = matches!(this.stream, Stream::Data | Stream::Log);
            let counted = this.phase == Phase::Sealed && this.is_settled() && whose;
            let room = this.live_bytes > 0 && this.live_bytes * 100 <= bytes * most;
            if !counted || !room || bad.contains(&segment) {
                continue;
            }
            if this.held_bytes != state.room.left_of(segment) {
                continue;
            }
            let (live, age) = (this.live_bytes, now.saturating_sub(this.since) as f64);
            let gain = (bytes - live) as f64 / (bytes + live) as f64;
            // Who waits wants the most for the least.
            let score = if hurry == Hurry::Now { gain } else { gain * (1.0 + age) };
            found.push(Candidate { segment, live, score });
        }
        found.sort_by(|a, b| b.score.total_cmp(&a.score).then(a.segment.cmp(&b.segment)));
        let segments = state.clean_segments();
        // What data may have it should not have to wait for.
        let segments = if hurry == Hurry::Now { segments } else { segments.div_ceil(2) };
        let mut room = segments * bytes;
        room += state.space.clean.map_or(0, |at| bytes - u64::from(at.offset));
        let (mut victims, mut gain) = (Victims::new(), 0);
        for Candidate { segment, live, .. } in found {
            if gain >= wanted {
                break;
            }
            if live > room {
                continue;
            }
            (room, gain) = (room - live, gain + bytes - live);
            let crate::state::State { room: left, space, .. } = &mut *state;
            left.forget(space, segment);
            victims.insert(segment);
        }
        victims
    }
}
