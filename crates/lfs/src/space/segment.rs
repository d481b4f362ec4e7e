//! Segments: what each is used for, what is live in it, and when it may be used again.
//!
//! ```text
//!   free ──taken──▶ open ──full──▶ sealed ──nothing live at checkpoint k──▶ dead since k
//!    ▲ │                             ▲                                          │
//!    │ └── found used by recovery ───┘                                          │
//!    └── discarded ◀── checkpoint k + 1 is durable, and nobody holds a pin ─────┘
//! ```
//! Invariants: W11 what is live in a segment is what the trees of the newest durable checkpoint refer to: it
//! changes with a checkpoint and not before. W12 a segment dies at a checkpoint that it was sealed before,
//! with no run in flight in it: nothing that is not merged can point there. W13 a dead segment is free when a
//! second checkpoint is durable, so that neither of the two newest ones refers to it, nor the log behind
//! the older. W14 a segment that somebody holds a pin of is not free. W15 a segment of which a window or a
//! pool has bytes does not die; what is over of it dies with it. W16 a segment is discarded when it may be
//! used again, and used again when that is done: nothing that somebody may want is discarded. W17 what has
//! come free is taken before what was never written, unless it is discarded: writing where the image has its
//! blocks costs the host less than finding blocks for it, and a thin image stays thin. W18 a segment that a
//! write to failed is taken when no other is free, as long as the volume is open: the same bad place is not
//! met over and over.
//!
//! No locks: the volume's state lock covers it.

use crate::format::corrupt;
use crate::format::usage::{Segment as Entry, SegmentState, Stream};
use forebay_base::{Error, ErrorKind, Result};
use std::collections::BTreeMap;
use std::sync::Arc;

/// What may be done with a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// It may be taken.
    Free,
    /// It is being filled.
    Open,
    /// It is full, or was left alone.
    Sealed,
    /// Nothing in it is live.
    Dead,
    /// It is free when the device was told that nothing in it is wanted.
    Discarding,
}

/// Keeps a segment from being used again.
pub(crate) type Pin = Arc<()>;

/// One segment.
#[derive(Debug)]
pub(crate) struct Segment {
    pub phase: Phase,
    pub stream: Stream,
    /// W11, bytes.
    pub live_bytes: u64,
    /// Dead: the checkpoint at which it died. Else: the youngest birth that is known of.
    pub since: u64,
    /// Runs that are reserved or on their way.
    pub in_flight: u32,
    /// Bytes that were taken of it and are nobody's: windows, pools, what is left over.
    pub held_bytes: u64,
    /// A run of it was reserved since the last freeze.
    is_touched: bool,
    /// It was taken since the last freeze.
    is_new: bool,
    /// A checkpoint that found it sealed has counted what is live in it.
    is_counted: bool,
    /// How often it was taken in this life: which filling it is.
    pub takes: u64,
    /// A write to it failed in this life (W18).
    has_failed: bool,
    pin: Pin,
}

impl Segment {
    /// Content is there, and no nodes.
    pub fn is_content(&self) -> bool {
        matches!(self.stream, Stream::Data | Stream::Log)
    }

    /// A write to it failed in this life (W18).
    pub fn has_failed(&self) -> bool {
        self.has_failed
    }

    /// What is live in it is known, and nothing is on its way there.
    pub fn is_settled(&self) -> bool {
        self.is_counted && !self.is_touched && !self.is_new && self.in_flight == 0
    }
}

/// What there is in all segments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Known {
    /// Bytes that are live.
    pub live: u64,
    /// Segments of content that come free by themselves.
    pub dead: u64,
}

/// What a checkpoint changes in a segment.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Delta {
    /// Live bytes more, or less.
    pub bytes: i64,
    /// Youngest birth that came.
    pub youngest: u64,
}

/// Changes by segment.
pub(crate) type Deltas = BTreeMap<u32, Delta>;

/// What the segments were at a freeze: phase, stream, and whether no run was in flight.
pub(crate) type Snapshot = Vec<(Phase, Stream, bool)>;

/// The usage table of a checkpoint.
pub(crate) struct Plan {
    pub entries: Vec<Entry>,
    /// Segments that die with it.
    died: Vec<u32>,
    deltas: Deltas,
}

impl Plan {
    /// Segments that die with it.
    pub fn died(&self) -> &[u32] {
        &self.died
    }
}

/// See the module.
pub(crate) struct Segments {
    list: Vec<Segment>,
    free: u64,
    /// Bytes of content that are live (W11).
    content_bytes: u64,
    /// None: something has changed since.
    known: Option<Known>,
    /// Where the search for a free segment goes on, so that a bad one is not found again at once (W17).
    next: u32,
    /// What comes free is discarded first.
    pub discards: bool,
}

impl Segments {
    /// All free.
    pub fn new(count: u32) -> Self {
        let segment = |_| Segment {
            phase: Phase::Free,
            stream: Stream::None,
            live_bytes: 0,
            since: 0,
            in_flight: 0,
            held_bytes: 0,
            is_touched: false,
            is_new: false,
            is_counted: false,
            takes: 0,
            has_failed: false,
            pin: Pin::default(),
        };
        Self {
            list: (0..count).map(segment).collect(),
            free: u64::from(count),
            content_bytes: 0,
            known: None,
            next: 0,
            discards: false,
        }
    }

    /// As checkpoint `number` left them: what was open is not filled any further, and dead if nothing in it
    /// is live and the log does not say otherwise.
    pub fn load(&mut self, entries: &[Entry], number: u64) -> Result<()> {
        // Segments that a growth has added since are free: no checkpoint has told of them yet.
        if entries.len() > self.list.len() {
            let text = format!("{} entries of {} segments", entries.len(), self.list.len());
            return Err(corrupt("usage table", text));
        }
        for (at, (segment, entry)) in self.list.iter_mut().zip(entries).enumerate() {
            segment.phase = match entry.state {
                SegmentState::Free | SegmentState::Reserved => Phase::Free,
                SegmentState::Open | SegmentState::Sealed => Phase::Sealed,
                SegmentState::Dead | SegmentState::Discarding => Phase::Dead,
                SegmentState::Bad => {
                    let text = format!("segment {at} is bad");
                    return Err(crate::format::unsupported("usage table", text));
                }
            };
            segment.is_counted = entry.state == SegmentState::Sealed;
            segment.stream = entry.stream;
            segment.live_bytes = u64::from(entry.live_bytes);
            segment.since = entry.since;
            if segment.phase == Phase::Sealed && entry.live_bytes == 0 {
                (segment.phase, segment.since) = (Phase::Dead, number);
            }
        }
        self.free = self.list.iter().filter(|s| s.phase == Phase::Free).count() as u64;
        self.count_content();
        Ok(())
    }

    /// What there is in all segments.
    pub fn known(&mut self) -> Known {
        let comes = |this: &Segment| {
            matches!(this.phase, Phase::Dead | Phase::Discarding) && this.is_content()
        };
        let list = &self.list;
        *self.known.get_or_insert_with(|| Known {
            live: list.iter().map(|this| this.live_bytes).sum(),
            dead: list.iter().filter(|this| comes(this)).count() as u64,
        })
    }

    fn count_content(&mut self) {
        self.known = None;
        let content = self.list.iter().filter(|this| this.stream != Stream::Tree);
        self.content_bytes = content.map(|this| this.live_bytes).sum();
    }

    /// Bytes of content that the newest durable checkpoint refers to.
    pub fn content_bytes(&self) -> u64 {
        self.content_bytes
    }

    /// Free segments.
    pub fn free(&self) -> u64 {
        self.free
    }

    /// How many there are.
    pub fn count(&self) -> u32 {
        self.list.len() as u32
    }

    /// One of them.
    pub fn get(&self, segment: u32) -> Option<&Segment> {
        self.list.get(segment as usize)
    }

    /// All, by number.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &Segment)> {
        (0..).zip(&self.list)
    }

    fn set(&mut self, segment: u32, phase: Phase, stream: Stream) {
        let Some(this) = self.list.get_mut(segment as usize) else { return };
        let old = std::mem::replace(&mut this.phase, phase);
        this.stream = stream;
        self.known = self.known.filter(|_| phase == old);
        this.is_counted &= phase == old;
        self.free = self.free + u64::from(phase == Phase::Free) - u64::from(old == Phase::Free);
    }

    /// The free ones, as they are taken.
    fn free_in_order(&self) -> impl Iterator<Item = u32> {
        let count = self.count();
        let in_order = (0..count).map(move |n| (self.next + n) % count);
        in_order.filter(|s| self.list[*s as usize].phase == Phase::Free)
    }

    /// Takes a free one.
    pub fn take(&mut self, stream: Stream) -> Result<u32> {
        if let Some(segment) = self.take_sound(stream) {
            return Ok(segment);
        }
        let Some(segment) = self.free_in_order().next() else {
            return Err(Error::new(ErrorKind::NoSpace, "take segment", "none is free"));
        };
        self.take_free(segment, stream);
        Ok(segment)
    }

    /// Takes a free one that no write to failed (W18).
    pub fn take_sound(&mut self, stream: Stream) -> Option<u32> {
        let segment = self.free_in_order().find(|s| !self.list[*s as usize].has_failed)?;
        self.take_free(segment, stream);
        Some(segment)
    }

    fn take_free(&mut self, segment: u32, stream: Stream) {
        self.next = (segment + 1) % self.count();
        self.taken(segment, stream);
    }

    /// Takes one that is dead in the newest checkpoint: for who writes there when another one is durable.
    pub fn take_dead(&mut self, stream: Stream) -> Option<u32> {
        let is_dead = |(_, this): &(u32, &Segment)| {
            let unpinned = Arc::strong_count(&this.pin) == 1;
            this.phase == Phase::Dead && this.stream != Stream::Tree && unpinned
        };
        let (segment, _) = self.iter().find(is_dead)?;
        self.taken(segment, stream);
        Some(segment)
    }

    fn taken(&mut self, segment: u32, stream: Stream) {
        self.set(segment, Phase::Open, stream);
        let this = &mut self.list[segment as usize];
        (this.since, this.is_new) = (0, true);
        this.takes += 1;
    }

    /// It is not filled any further.
    pub fn seal(&mut self, segment: u32) {
        if let Some(this) = self.list.get(segment as usize)
            && this.phase == Phase::Open
        {
            let stream = this.stream;
            self.set(segment, Phase::Sealed, stream);
        }
    }

    /// A tree segment, which is filled as long as there is a place.
    pub fn open_again(&mut self, segment: u32) {
        self.set(segment, Phase::Open, Stream::Tree);
    }

    /// A write to it failed (W18). False: that is known.
    pub fn fail(&mut self, segment: u32) -> bool {
        let this = self.list.get_mut(segment as usize);
        this.is_some_and(|this| !std::mem::replace(&mut this.has_failed, true))
    }

    /// Nothing in it counts, and nothing ever did.
    pub fn give_back(&mut self, segment: u32) {
        self.set(segment, Phase::Free, Stream::None);
    }

    /// The same, and it is taken next: by a mistake that tests plant.
    pub fn give_back_early(&mut self, segment: u32) {
        self.give_back(segment);
        self.next = segment;
    }

    /// Recovery found that the log, or something that it tells of, is there.
    pub fn found(&mut self, segment: u32, stream: Stream) {
        let phase = self.list.get(segment as usize).map(|this| this.phase);
        if matches!(phase, Some(Phase::Free | Phase::Dead)) {
            self.set(segment, Phase::Sealed, stream);
        }
    }

    /// So many runs in flight more, or less.
    pub fn fly(&mut self, segment: u32, by: i32) {
        if let Some(this) = self.list.get_mut(segment as usize) {
            debug_assert!(by > 0 || this.in_flight > 0, "W12: what lands has flown");
            this.in_flight = this.in_flight.saturating_add_signed(by);
            this.is_touched |= by > 0;
            this.is_counted &= by <= 0;
        }
    }

    /// So many bytes more that were taken of it are nobody's, or less.
    pub fn hold(&mut self, segment: u32, bytes: i64) {
        if let Some(this) = self.list.get_mut(segment as usize) {
            let held = this.held_bytes.checked_add_signed(bytes);
            debug_assert!(held.is_some(), "W15: what is given back was held");
            this.held_bytes = held.unwrap_or(0);
        }
    }

    /// Nothing in it is live, on its way, or was reserved since the last freeze; and so many bytes are held.
    pub fn is_idle(&self, segment: u32, held: u64) -> bool {
        self.get(segment).is_some_and(|this| {
            let used = this.live_bytes + u64::from(this.in_flight);
            used == 0 && this.held_bytes == held && !this.is_touched
        })
    }

    /// W14.
    pub fn pin(&self, segment: u32) -> Option<Pin> {
        self.get(segment).map(|this| this.pin.clone())
    }

    /// What they are now.
    pub fn snapshot(&mut self) -> Snapshot {
        for this in &mut self.list {
            // A run that is on its way is of the time after, too.
            (this.is_touched, this.is_new) = (this.in_flight > 0, false);
        }
        self.list.iter().map(|this| (this.phase, this.stream, this.in_flight == 0)).collect()
    }

    /// The usage table of checkpoint `number`, which was frozen at `before` and changes what is live by
    /// `deltas`. Tree segments are as they are now: the checkpoint itself writes there. So are those that
    /// were taken since: what was queued at the freeze may have got its place there.
    /// `left`: bytes of a segment that are over for whoever comes next; they die with it (W15).
    pub fn plan(
        &self,
        before: &Snapshot,
        deltas: Deltas,
        number: u64,
        left: &dyn Fn(u32) -> u64,
    ) -> Result<Plan> {
        let (mut entries, mut died) = (Vec::with_capacity(self.list.len()), Vec::new());
        for ((n, this), (phase, stream, settled)) in self.iter().zip(before) {
            let delta = deltas.get(&n).copied().unwrap_or_default();
            let live = this.live_bytes.checked_add_signed(delta.bytes);
            let live = live.and_then(|live| u32::try_from(live).ok());
            let Some(live_bytes) = live else {
                let text = format!("segment {n}: {} and {delta:?}", this.live_bytes);
                return Err(corrupt("usage table", text));
            };
            let is_tree = this.stream == Stream::Tree && this.phase != Phase::Free;
            let is_gone = this.phase == Phase::Free;
            let is_now = is_tree || this.is_new;
            let (phase, stream) =
                if is_now { (this.phase, this.stream) } else { (*phase, *stream) };
            let settled = *settled && !this.is_touched && !this.is_new;
            let empty = phase == Phase::Sealed && settled && live_bytes == 0 && !is_tree;
            let dies = empty && this.held_bytes == left(n);
            let state = match phase {
                _ if is_gone => SegmentState::Free,
                Phase::Free => SegmentState::Free,
                _ if dies || is_tree && live_bytes == 0 => SegmentState::Dead,
                Phase::Open => SegmentState::Open,
                Phase::Sealed => SegmentState::Sealed,
                Phase::Dead => SegmentState::Dead,
                Phase::Discarding => SegmentState::Discarding,
            };
            died.extend(dies.then_some(n));
            entries.push(match state {
                SegmentState::Free => Entry::FREE,
                state => {
                    let died_before = matches!(phase, Phase::Dead | Phase::Discarding);
                    let since = match state {
                        SegmentState::Dead if !died_before => number,
                        _ => this.since.max(delta.youngest),
                    };
                    Entry { live_bytes, state, stream, flags: 0, since }
                }
            });
        }
        Ok(Plan { entries, died, deltas })
    }

    /// Checkpoint `number` is durable: what it found dead is, and what the one before found dead is free
    /// (W13, W14).
    pub fn settle(&mut self, plan: &Plan, number: u64) {
        for (segment, delta) in &plan.deltas {
            if let Some(this) = self.list.get_mut(*segment as usize) {
                this.live_bytes = this.live_bytes.saturating_add_signed(delta.bytes);
                this.since = this.since.max(delta.youngest);
            }
        }
        for (this, entry) in self.list.iter_mut().zip(&plan.entries) {
            let sealed = entry.state == SegmentState::Sealed && this.phase == Phase::Sealed;
            // A run that was on its way at the freeze, or came since, is counted by the next one.
            this.is_counted = sealed && !this.is_new && !this.is_touched;
        }
        for segment in &plan.died {
            let Segment { stream, phase, .. } = self.list[*segment as usize];
            if phase != Phase::Sealed {
                continue;
            }
            self.set(*segment, Phase::Dead, stream);
            self.list[*segment as usize].since = number;
        }
        self.count_content();
        self.reclaim(number);
    }

    /// Frees what is dead in two durable checkpoints, of which `newest` is the newer. How many.
    pub fn reclaim(&mut self, newest: u64) -> u32 {
        let free = |this: &Segment| {
            let is_dead = this.phase == Phase::Dead && this.stream != Stream::Tree;
            is_dead && this.since < newest && Arc::strong_count(&this.pin) == 1
        };
        let free: Vec<u32> =
            self.iter().filter(|(_, this)| free(this)).map(|(segment, _)| segment).collect();
        for segment in &free {
            let stream = self.list[*segment as usize].stream;
            match self.discards {
                true => self.set(*segment, Phase::Discarding, stream),
                false => {
                    self.give_back(*segment);
                    self.next = self.next.min(*segment);
                }
            }
        }
        free.len() as u32
    }

    /// A checkpoint more makes something free.
    pub fn has_dead(&self) -> bool {
        let is_dead = |this: &Segment| this.phase == Phase::Dead && this.stream != Stream::Tree;
        self.list.iter().any(|this| is_dead(this) && Arc::strong_count(&this.pin) == 1)
    }

    /// What is to be discarded; each is given back then (W16). The device has no discard of it.
    pub fn discarding(&self) -> Vec<u32> {
        let is_one = |(segment, this): (u32, &Segment)| {
            (this.phase == Phase::Discarding && this.in_flight == 0).then_some(segment)
        };
        self.iter().filter_map(is_one).collect()
    }

    /// So much is live there, whatever the tree has.
    #[cfg(test)]
    pub fn say_live(&mut self, segment: u32, bytes: u64) {
        self.list[segment as usize].live_bytes = bytes;
        self.known = None;
    }

    /// It is to be discarded.
    #[cfg(test)]
    pub fn discard_soon(&mut self, segment: u32) {
        self.set(segment, Phase::Discarding, Stream::Data);
    }

    /// Something that no checkpoint has counted points there after all.
    pub fn touch(&mut self, segment: u32) {
        if let Some(this) = self.list.get_mut(segment as usize) {
            (this.is_touched, this.is_counted) = (true, false);
        }
    }
}

#[cfg(test)]
mod tests;

#[cfg(test)]
mod life {
    use super::tests::{checkpoint, live, phase};
    use super::*;

    /// W11 to W14: through the life of one segment.
    #[test]
    fn w11_to_w14_a_segment_is_free_when_two_checkpoints_say_so() {
        let mut segments = Segments::new(4);
        let taken = segments.take(Stream::Data).unwrap();
        segments.fly(taken, 1);
        assert_eq!(checkpoint(&mut segments, Deltas::new(), 1)[0].state, SegmentState::Open);
        segments.seal(taken);
        checkpoint(&mut segments, Deltas::new(), 2);
        assert_eq!(phase(&segments, taken), Phase::Sealed, "W12: a run is in flight");
        let pin = segments.pin(taken).unwrap();
        segments.fly(taken, -1);
        let entries = checkpoint(&mut segments, live(taken, 4096), 3);
        assert_eq!((entries[0].live_bytes, entries[0].state), (4096, SegmentState::Sealed));
        let entries = checkpoint(&mut segments, live(taken, -4096), 4);
        assert_eq!((entries[0].state, entries[0].since), (SegmentState::Dead, 4));
        assert_eq!(phase(&segments, taken), Phase::Dead, "W13: once");
        checkpoint(&mut segments, Deltas::new(), 5);
        assert_eq!(phase(&segments, taken), Phase::Dead, "W14: it is pinned");
        drop(pin);
        assert_eq!((segments.reclaim(4), segments.reclaim(5), segments.free()), (0, 1, 4));
        let before = segments.snapshot();
        assert!(segments.plan(&before, live(1, -1), 6, &|_| 0).is_err(), "W11");
    }
}
