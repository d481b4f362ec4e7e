//! Segments, and who may still take how much: room is promised before anything is done that needs it.
//!
//! ```text
//!   free ──log──▶ open log ──full──▶ log ┐
//!    │ ◀───────── its group failed ──────┤   (reuse comes with checkpoints)
//!    └──data──▶ open data ──full──▶ data ┘
//! ```
//! Invariants: P11 promises of the log are kept: what is left of the open segment and what free segments
//! surely take (see [`Layout::left`]) is at least the sum of all promises. P12 the last [`KEPT_SEGMENTS`]
//! are promised only to what makes room or ends work: unlink, truncate, syncing.
//!
//! No locks: the volume's state lock covers it.

use crate::format::place::Place;
use crate::layout::Layout;
use forebay_base::{Error, ErrorKind, Result};

/// Segments kept for removing, truncating and syncing (P12).
pub(crate) const KEPT_SEGMENTS: u64 = 2;

/// What a segment is used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Use {
    Free,
    Log,
    Data,
}

/// Who asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Need {
    /// Something new: leaves the kept segments alone.
    New,
    /// Makes room, or makes durable what was promised before.
    Urgent,
}

/// See the module.
pub(crate) struct Space {
    layout: Layout,
    uses: Vec<Use>,
    free: u64,
    /// Where the search for a free segment goes on, so that a bad one is not found again at once.
    next: u32,
    /// Bytes that the open log segment surely takes.
    log_left: u64,
    /// Sum of promises, bytes.
    promised: u64,
    /// Open data segment, and the first byte that nobody has.
    data: Option<Place>,
}

impl Space {
    /// All free.
    pub fn new(layout: Layout) -> Self {
        let uses = vec![Use::Free; layout.segments as usize];
        let free = u64::from(layout.segments);
        Self { layout, uses, free, next: 0, log_left: 0, promised: 0, data: None }
    }

    /// Marks a segment, as recovery finds it.
    pub fn mark(&mut self, segment: u32, new: Use) {
        let old = std::mem::replace(&mut self.uses[segment as usize], new);
        self.free = self.free + u64::from(new == Use::Free) - u64::from(old == Use::Free);
    }

    /// Bytes that the log surely takes if `segments` free ones are left alone.
    fn log_room(&self, segments: u64) -> u64 {
        self.log_left + self.free.saturating_sub(segments) * self.layout.log_bytes()
    }

    /// Promises `cost` bytes of the log (P11), or `NoSpace`.
    pub fn promise(&mut self, cost: u64, need: Need) -> Result<()> {
        let kept = if need == Need::New { KEPT_SEGMENTS } else { 0 };
        if self.promised + cost > self.log_room(kept) {
            let text = format!("{cost} bytes of the log wanted");
            return Err(Error::new(ErrorKind::NoSpace, "reserve", text));
        }
        self.promised += cost;
        Ok(())
    }

    /// A promise was used, or is not needed.
    pub fn settle(&mut self, cost: u64) {
        debug_assert!(self.promised >= cost, "P11: what is settled was promised");
        self.promised = self.promised.saturating_sub(cost);
    }

    /// The open log segment is filled up to `head`.
    pub fn log_head(&mut self, head: u64) {
        self.log_left = self.layout.left(head);
    }

    /// Bytes of data that there is room for beside all promises.
    pub fn data_room(&self, need: Need) -> u64 {
        let kept = if need == Need::New { KEPT_SEGMENTS } else { 0 };
        let open = self.data_left();
        let log = self.promised.saturating_sub(self.log_left).div_ceil(self.layout.log_bytes());
        open + self.free.saturating_sub(kept + log) * self.layout.segment_bytes()
    }

    /// A segment for the log; it is to be filled from `head` on.
    pub fn take_log(&mut self) -> Result<u32> {
        self.take(Use::Log)
    }

    /// A log segment of a group that failed: nothing in it counts.
    pub fn give_back_log(&mut self, segment: u32) {
        self.mark(segment, Use::Free);
    }

    fn take(&mut self, new: Use) -> Result<u32> {
        let count = self.uses.len() as u32;
        let found = (0..count).map(|n| (self.next + n) % count);
        let Some(segment) = found.into_iter().find(|s| self.uses[*s as usize] == Use::Free) else {
            return Err(Error::new(ErrorKind::NoSpace, "take segment", "none is free"));
        };
        self.next = (segment + 1) % count;
        self.mark(segment, new);
        Ok(segment)
    }

    /// A run of at most `bytes` bytes, whole blocks, for data: place and length.
    pub fn take_data(&mut self, bytes: u64) -> Result<(Place, u64)> {
        let segment_bytes = self.layout.segment_bytes();
        if self.data_left() == 0 {
            if !self.has_segment() {
                let text = format!("{bytes} bytes of data wanted");
                return Err(Error::new(ErrorKind::NoSpace, "reserve", text));
            }
            self.data = Some(Place::new(self.take(Use::Data)?, 0));
        }
        let at = self.data.expect("opened above");
        let len = bytes.min(segment_bytes - u64::from(at.offset));
        self.data = Some(Place::new(at.segment, at.offset + len as u32));
        Ok((at, len))
    }

    /// Takes back the end of what was given out last; false: it is something else.
    pub fn give_back_data(&mut self, place: Place, bytes: u64) -> bool {
        let Some(at) = self.data.filter(|at| {
            at.segment == place.segment && u64::from(place.offset) + bytes == u64::from(at.offset)
        }) else {
            return false;
        };
        self.data = Some(Place::new(at.segment, place.offset));
        true
    }

    /// Bytes that are left of the open data segment.
    pub fn data_left(&self) -> u64 {
        self.data.map_or(0, |at| self.layout.segment_bytes() - u64::from(at.offset))
    }

    /// Whether data may have another segment.
    pub fn has_segment(&self) -> bool {
        self.data_room(Need::Urgent) - self.data_left() >= self.layout.segment_bytes()
    }

    /// Whether data is being given out of this segment.
    pub fn is_open(&self, segment: u32) -> bool {
        self.data.is_some_and(|at| at.segment == segment)
    }

    /// A data segment that nothing of was ever used: free.
    pub fn release(&mut self, segment: u32) {
        debug_assert_eq!(self.uses[segment as usize], Use::Data, "data was given out of it");
        self.mark(segment, Use::Free);
    }

    /// Sum of promises, bytes.
    #[cfg(test)]
    pub fn promised(&self) -> u64 {
        self.promised
    }

    /// Free segments, and how many runs they make.
    pub fn free_runs(&self) -> (u64, u64) {
        let begins = |n: usize| n == 0 || self.uses[n - 1] != Use::Free;
        let free = (0..self.uses.len()).filter(|n| self.uses[*n] == Use::Free);
        (self.free, free.filter(|n| begins(*n)).count() as u64)
    }

    /// Segments of data.
    pub fn data_segments(&self) -> u64 {
        self.uses.iter().filter(|u| **u == Use::Data).count() as u64
    }

    /// Whether records are in this segment.
    pub fn is_log(&self, segment: u32) -> bool {
        self.uses[segment as usize] == Use::Log
    }

    /// Free segments.
    pub fn free_segments(&self) -> u64 {
        self.free
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::place::{Geometry, Seal};

    fn space(segments: u32) -> Space {
        let geometry = Geometry::with_segment_shift(16);
        let seal = Seal::new(&[1; 16]);
        let (data_start, nonce) = (16384, [1; 16]);
        Space::new(Layout { geometry, seal, nonce, data_start, segments, align: 512 })
    }

    /// P11: whoever was promised room finds it, also when data takes all the rest.
    #[test]
    fn p11_promises_are_kept() {
        let mut space = space(8);
        let each = space.layout.log_bytes() / 3;
        let mut promised = 0;
        while space.promise(each, Need::New).is_ok() {
            promised += 1;
            while space.data_room(Need::New) >= 4096 && space.take_data(4096).is_ok() {}
        }
        assert!(promised >= 3, "{promised}");
        let mut wanted = promised * each;
        while wanted > 0 {
            space.take_log().unwrap();
            wanted = wanted.saturating_sub(space.layout.log_bytes());
        }
    }

    /// P12.
    #[test]
    fn p12_the_last_segments_are_for_removing() {
        let mut space = space(4);
        while space.promise(1024, Need::New).is_ok() {}
        assert_eq!(space.data_room(Need::New), 0);
        assert!(space.promise(1024, Need::Urgent).is_ok());
        assert!(space.data_room(Need::Urgent) >= 1 << 16);
    }
}
