//! The table of segments: what each one is used for, how much of it is live, and when it may be
//! reused.
//!
//! ```text
//!   free ──taken──▶ open ──full──▶ sealed ──nothing live at checkpoint k──▶ dead since k
//!    ▲ │                             ▲                                          │
//!    │ └── found used by recovery ───┘                                          │
//!    └── discarded ◀── checkpoint k + 1 is durable, and no task holds a pin ────┘
//! ```
//! Invariants: W11 live bytes of a segment are those that the trees of the newest durable
//! checkpoint refer to. They change only with a checkpoint. W12 a segment dies at a checkpoint only
//! if it was sealed before, and no run in it was in flight. So no change outside the tree can refer
//! to it. W13 a dead segment becomes free when a second checkpoint is durable. Then neither of the
//! two newest checkpoints refers to it, nor does the log after the older one. W14 a pinned segment
//! does not become free. W15 a segment does not die while a window or a pool holds bytes of it. Its
//! leftover runs die with it. W16 a segment is discarded once it may be reused, and is reused only
//! after that. So no bytes are discarded that a reader may still need. W17 segments that became
//! free are taken before segments that were never written, unless they are discarded. The host then
//! need not allocate new blocks for the image, and a thin image stays thin. W18 after a failed
//! write to a segment it is taken only if no other one is free, until the volume is closed. So
//! writes do not meet the same bad place again and again.
//!
//! No locks: the volume's state lock covers it.

use crate::format::corrupt;
use crate::format::usage::{Segment as Entry, SegmentState, Stream};
use forebay_base::{Error, ErrorKind, Result};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The state of a segment, which determines what may be done with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// The segment may be taken.
    Free,
    /// The segment is being filled.
    Open,
    /// The segment is full, or was left before it was full.
    Sealed,
    /// Nothing in the segment is live.
    Dead,
    /// The segment becomes free when the device has discarded it.
    Discarding,
}

/// While a pin exists, its segment is not reused.
pub(crate) type Pin = Arc<()>;

/// One segment of the volume.
#[derive(Debug)]
pub(crate) struct Segment {
    pub phase: Phase,
    pub stream: Stream,
    /// Live bytes (W11).
    pub live_bytes: u64,
    /// Dead segment: the checkpoint at which it died. Other segments: the youngest known birth
    /// number.
    pub since: u64,
    /// The sequence number when the cleaner last put content into it; 0: never, or before the
    /// volume was opened. Moved content keeps its birth, which says nothing about this segment.
    moved_at: u64,
    /// Runs that are reserved or being written.
    pub in_flight: u32,
    /// Bytes that were taken out of the segment and belong to no file: windows, pools, leftover
    /// runs.
    pub held_bytes: u64,
    /// A run in it was reserved since the last freeze.
    is_touched: bool,
    /// The segment was taken since the last freeze.
    is_new: bool,
    /// A checkpoint that found the segment sealed has counted its live bytes.
    is_counted: bool,
    /// How often the segment was taken since the volume was opened. It identifies one use of the
    /// segment.
    pub takes: u64,
    /// A write to it failed since the volume was opened (W18).
    has_failed: bool,
    pin: Pin,
}

impl Segment {
    /// Whether the segment contains content and no tree nodes.
    pub fn is_content(&self) -> bool {
        matches!(self.stream, Stream::Data | Stream::Log)
    }

    /// Whether a write to it failed since the volume was opened (W18).
    pub fn has_failed(&self) -> bool {
        self.has_failed
    }

    /// For how long content in it has been dying: the sequence numbers drawn until `now`, since the
    /// newest content was put into it.
    pub fn age(&self, now: u64) -> u64 {
        now.saturating_sub(self.since.max(self.moved_at))
    }

    /// Whether its live bytes are known, and no write to it is in flight.
    pub fn is_settled(&self) -> bool {
        self.is_counted && !self.is_touched && !self.is_new && self.in_flight == 0
    }
}

/// Totals over all segments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Known {
    /// Live bytes.
    pub live: u64,
    /// Dead content segments, which become free without the cleaner.
    pub dead: u64,
}

/// The change of one segment by a checkpoint.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Delta {
    /// The change of its live bytes.
    pub bytes: i64,
    /// The youngest birth number that was added.
    pub youngest: u64,
}

/// Changes by segment number.
pub(crate) type Deltas = BTreeMap<u32, Delta>;

/// The segments at a freeze: phase, stream, and whether no run was in flight.
pub(crate) type Snapshot = Vec<(Phase, Stream, bool)>;

/// The usage table that a checkpoint will write.
pub(crate) struct Plan {
    pub entries: Vec<Entry>,
    /// Segments that die with this checkpoint.
    died: Vec<u32>,
    deltas: Deltas,
}

impl Plan {
    /// Segments that die with this checkpoint.
    pub fn died(&self) -> &[u32] {
        &self.died
    }
}

/// The use and the live bytes of every segment.
pub(crate) struct Segments {
    list: Vec<Segment>,
    free: u64,
    /// Live bytes of content (W11).
    content_bytes: u64,
    /// The totals. None: a segment has changed since they were computed.
    known: Option<Known>,
    /// Where the search for a free segment begins: after the last taken one, so that a bad segment
    /// is not found again at once, or at a lower one that became free (W17).
    next: u32,
    /// Segments are discarded before they become free.
    pub discards: bool,
    /// A segment was wanted when none was free. If this is false, `NoSpace` came from the host.
    pub has_run_out: bool,
}

impl Segments {
    /// A table with all segments free.
    pub fn new(count: u32) -> Self {
        let segment = |_| Segment {
            phase: Phase::Free,
            stream: Stream::None,
            live_bytes: 0,
            since: 0,
            moved_at: 0,
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
            has_run_out: false,
        }
    }

    /// Loads the table that checkpoint `number` wrote. A segment that was open is sealed. It is
    /// dead if nothing in it is live; recovery changes that if the log refers to it.
    pub fn load(&mut self, entries: &[Entry], number: u64) -> Result<()> {
        // Segments that a growth added since are free: they are in no usage table yet.
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

    /// The totals over all segments, computed if needed.
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

    /// Live bytes of content in the newest durable checkpoint.
    pub fn content_bytes(&self) -> u64 {
        self.content_bytes
    }

    /// The number of free segments.
    pub fn free(&self) -> u64 {
        self.free
    }

    /// The number of segments.
    pub fn count(&self) -> u32 {
        self.list.len() as u32
    }

    /// The segment with this number.
    pub fn get(&self, segment: u32) -> Option<&Segment> {
        self.list.get(segment as usize)
    }

    /// All segments by number.
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

    /// The free segments in the order in which they are taken.
    fn free_in_order(&self) -> impl Iterator<Item = u32> {
        let count = self.count();
        let in_order = (0..count).map(move |n| (self.next + n) % count);
        in_order.filter(|s| self.list[*s as usize].phase == Phase::Free)
    }

    /// Takes a free segment.
    pub fn take(&mut self, stream: Stream) -> Result<u32> {
        if let Some(segment) = self.take_sound(stream) {
            return Ok(segment);
        }
        let Some(segment) = self.free_in_order().next() else {
            self.has_run_out = true;
            return Err(Error::new(ErrorKind::NoSpace, "take segment", "none is free"));
        };
        self.take_free(segment, stream);
        Ok(segment)
    }

    /// Takes a free segment to which no write failed (W18).
    pub fn take_sound(&mut self, stream: Stream) -> Option<u32> {
        let segment = self.free_in_order().find(|s| !self.list[*s as usize].has_failed)?;
        self.take_free(segment, stream);
        Some(segment)
    }

    fn take_free(&mut self, segment: u32, stream: Stream) {
        self.next = (segment + 1) % self.count();
        self.taken(segment, stream);
    }

    /// Takes a segment that is dead in the newest checkpoint. The caller writes to it only after
    /// another checkpoint is durable.
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
        (this.since, this.moved_at, this.is_new) = (0, 0, true);
        this.takes += 1;
    }

    /// Seals an open segment: it is filled no further.
    pub fn seal(&mut self, segment: u32) {
        if let Some(this) = self.list.get(segment as usize)
            && this.phase == Phase::Open
        {
            let stream = this.stream;
            self.set(segment, Phase::Sealed, stream);
        }
    }

    /// Reopens a segment that is filled further. A checkpoint in progress takes its current state.
    pub fn open_again(&mut self, segment: u32, stream: Stream) {
        self.set(segment, Phase::Open, stream);
        if let Some(this) = self.list.get_mut(segment as usize) {
            this.is_new = true;
        }
    }

    /// Notes a failed write to this segment (W18). False: the failure was known.
    pub fn fail(&mut self, segment: u32) -> bool {
        let this = self.list.get_mut(segment as usize);
        this.is_some_and(|this| !std::mem::replace(&mut this.has_failed, true))
    }

    /// Frees a segment. All of its content is dead, or was never referred to.
    pub fn give_back(&mut self, segment: u32) {
        self.set(segment, Phase::Free, Stream::None);
    }

    /// Frees a segment and takes it next: an injected fault of tests.
    pub fn give_back_early(&mut self, segment: u32) {
        self.give_back(segment);
        self.next = segment;
    }

    /// Notes that recovery found log records or data of the log in this segment.
    pub fn found(&mut self, segment: u32, stream: Stream) {
        let phase = self.list.get(segment as usize).map(|this| this.phase);
        if matches!(phase, Some(Phase::Free | Phase::Dead)) {
            self.set(segment, Phase::Sealed, stream);
        }
    }

    /// Changes the number of runs in flight in this segment by `by`.
    pub fn fly(&mut self, segment: u32, by: i32) {
        if let Some(this) = self.list.get_mut(segment as usize) {
            debug_assert!(by > 0 || this.in_flight > 0, "W12: what lands has flown");
            this.in_flight = this.in_flight.saturating_add_signed(by);
            this.is_touched |= by > 0;
            this.is_counted &= by <= 0;
        }
    }

    /// Changes the held bytes of this segment, which belong to no file, by `bytes`.
    pub fn hold(&mut self, segment: u32, bytes: i64) {
        if let Some(this) = self.list.get_mut(segment as usize) {
            let held = this.held_bytes.checked_add_signed(bytes);
            debug_assert!(held.is_some(), "W15: what is given back was held");
            this.held_bytes = held.unwrap_or(0);
        }
    }

    /// Whether nothing in the segment is live, in flight, or reserved since the last freeze, and
    /// exactly `held` bytes are held.
    pub fn is_idle(&self, segment: u32, held: u64) -> bool {
        self.get(segment).is_some_and(|this| {
            let used = this.live_bytes + u64::from(this.in_flight);
            used == 0 && this.held_bytes == held && !this.is_touched
        })
    }

    /// Notes that the cleaner puts content into the segment, at sequence number `now`.
    pub fn note_moved(&mut self, segment: u32, now: u64) {
        if let Some(this) = self.list.get_mut(segment as usize) {
            this.moved_at = now;
        }
    }

    /// Pins the segment (W14).
    pub fn pin(&self, segment: u32) -> Option<Pin> {
        self.get(segment).map(|this| this.pin.clone())
    }

    /// Takes the state of all segments at a freeze.
    pub fn snapshot(&mut self) -> Snapshot {
        for this in &mut self.list {
            // A run that is in flight now also counts for the time after the freeze.
            (this.is_touched, this.is_new) = (this.in_flight > 0, false);
        }
        self.list.iter().map(|this| (this.phase, this.stream, this.in_flight == 0)).collect()
    }

    /// Computes the usage table of checkpoint `number`. Its freeze was `before`, and it changes
    /// live bytes by `deltas`. Tree segments have their current state, because the checkpoint
    /// itself writes to them. So have segments that were taken since the freeze: records queued at
    /// the freeze may have got their place there. `left`: the bytes of leftover runs of a segment.
    /// They die with the segment (W15).
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

    /// Handles the durable checkpoint `number`. The segments that it found dead are dead now. Those
    /// that the checkpoint before it found dead become free (W13, W14).
    pub fn settle(&mut self, plan: &Plan, number: u64) {
        for (segment, delta) in &plan.deltas {
            if let Some(this) = self.list.get_mut(*segment as usize) {
                this.live_bytes = this.live_bytes.saturating_add_signed(delta.bytes);
                this.since = this.since.max(delta.youngest);
            }
        }
        for (this, entry) in self.list.iter_mut().zip(&plan.entries) {
            let sealed = entry.state == SegmentState::Sealed && this.phase == Phase::Sealed;
            // A run that was in flight at the freeze, or was reserved since, is counted by the next
            // checkpoint.
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

    /// Frees the segments that are dead in two durable checkpoints, of which `newest` is the newer.
    /// Returns how many.
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

    /// Whether one more checkpoint would free a segment.
    pub fn has_dead(&self) -> bool {
        let is_dead = |this: &Segment| this.phase == Phase::Dead && this.stream != Stream::Tree;
        self.list.iter().any(|this| is_dead(this) && Arc::strong_count(&this.pin) == 1)
    }

    /// Segments that are to be discarded and then given back (W16). No discard of them is in
    /// flight.
    pub fn discarding(&self) -> Vec<u32> {
        let is_one = |(segment, this): (u32, &Segment)| {
            (this.phase == Phase::Discarding && this.in_flight == 0).then_some(segment)
        };
        self.iter().filter_map(is_one).collect()
    }

    /// Sets the live bytes of a segment, whatever the tree refers to.
    #[cfg(test)]
    pub fn say_live(&mut self, segment: u32, bytes: u64) {
        self.list[segment as usize].live_bytes = bytes;
        self.known = None;
    }

    /// Marks a segment to be discarded.
    #[cfg(test)]
    pub fn discard_soon(&mut self, segment: u32) {
        self.set(segment, Phase::Discarding, Stream::Data);
    }

    /// Notes a reference into the segment that no checkpoint has counted.
    pub fn touch(&mut self, segment: u32) {
        if let Some(this) = self.list.get_mut(segment as usize) {
            (this.is_touched, this.is_counted) = (true, false);
        }
    }
}

impl Segments {
    /// Reopens the tree segments of a usage table that was just loaded. Their nodes are counted one
    /// by one afterwards.
    pub fn adopt_trees(&mut self) -> Vec<u32> {
        let trees = self.iter().filter(|(_, s)| s.stream == Stream::Tree && s.phase != Phase::Free);
        let trees: Vec<u32> = trees.map(|(segment, _)| segment).collect();
        trees.iter().for_each(|segment| self.open_again(*segment, Stream::Tree));
        trees
    }
}

#[cfg(test)]
mod tests;

#[cfg(test)]
mod life {
    use super::tests::{checkpoint, live, phase};
    use super::*;

    /// W11 to W14, in the course of one segment.
    #[test]
    fn w11_to_w14_segment_becomes_free_after_two_checkpoints() {
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
