//! From a plan to bios: the captured blocks of a pass fill a record ([`crate::records`]).
//!
//! Locks: those of the records.

use crate::file::MappedFile;
use crate::ops::{Reservation, Written};
use crate::records::{Captured, Owner, Part, Plan, Ticket, Work};
use forebay_base::buf::DataRef;
use forebay_base::checksum::crc32c;
use forebay_base::sync::atomic::Ordering;
use forebay_block::{Bio, BioFlags, BioOp, EndBio};
use forebay_cache::{FRAME_SIZE, FrameList};
use std::ops::{Deref, DerefMut};

/// A plan in use; on drop its memory is kept for the next pass.
pub(crate) struct PlanInUse<'a> {
    plan: Plan,
    file: &'a MappedFile,
}

impl Deref for PlanInUse<'_> {
    type Target = Plan;
    fn deref(&self) -> &Plan {
        &self.plan
    }
}

impl DerefMut for PlanInUse<'_> {
    fn deref_mut(&mut self) -> &mut Plan {
        &mut self.plan
    }
}

impl Drop for PlanInUse<'_> {
    fn drop(&mut self) {
        let mut plan = std::mem::take(&mut self.plan);
        plan.runs.clear();
        debug_assert!(plan.captured.is_empty() && plan.bios.is_empty(), "all of a plan is issued");
        let (cache, bytes) = (&self.file.cache, plan.bytes());
        if cache.count_record(&mut plan.counted, bytes) {
            self.file.records.0.lock().plans.push(plan);
        }
    }
}

impl MappedFile {
    /// A plan for a pass, with lists kept for reuse, or new ones.
    pub(crate) fn plan(&self) -> PlanInUse<'_> {
        let kept = self.records.0.lock().plans.pop();
        let mut plan = kept.unwrap_or_default();
        self.cache.count_record(&mut plan.counted, 0);
        PlanInUse { plan, file: self }
    }

    /// Makes bios of the captured blocks, which go to places of `reservation`; returns their bytes.
    pub(crate) fn fill_record(
        &self,
        plan: &mut Plan,
        reservation: Reservation,
        ticket: Ticket,
        flags: BioFlags,
    ) -> u64 {
        let record = self.records.0.lock().records.pop().unwrap_or_default();
        let mut work = record.work.write();
        debug_assert!(work.owner.is_none(), "P1: a kept record is empty");
        self.cache.count_record(&mut work.counted, 0);
        if plan.places.capacity() == 0 {
            // The reservation has taken the list of places: the plan takes the one that the record
            // has kept.
            std::mem::swap(&mut plan.places, &mut work.places);
        }
        let bytes = work.take_pieces(self, &mut plan.captured);
        for (token, bio) in (0..).zip(&work.bios[..work.used]) {
            let end: std::sync::Arc<dyn EndBio> = record.clone();
            let data = DataRef::Shared(bio.frames.clone());
            let len = bio.end - bio.start;
            let bio = Bio::with_token(BioOp::Write, bio.start, len, data, end, token);
            plan.bios.push(bio.with_flags(flags));
        }
        record.left.store(work.used, Ordering::Release);
        work.owner = Some(Owner {
            cache: self.cache.clone(),
            mapping: self.mapping.clone(),
            ops: self.ops.clone(),
            records: self.records.clone(),
            reservation,
            ticket,
        });
        let empty = work.used == 0;
        drop(work);
        if empty {
            record.over();
        }
        bytes
    }
}

impl Work {
    /// Puts pieces that lie one behind the other on the device into one bio; returns their bytes.
    fn take_pieces(&mut self, file: &MappedFile, captured: &mut Vec<Captured>) -> u64 {
        let longest = file.longest_bio();
        let segments = file.device().limits().max_segments as usize;
        let sums = file.ops.info().sums;
        let mut bytes = 0;
        for next in captured.drain(..) {
            bytes += next.place.len;
            let open = self.used.checked_sub(1).map(|at| &self.bios[at]);
            if !open.is_some_and(|bio| bio.takes(&next, longest, segments)) {
                self.open_bio(file, next.place.device_offset);
            }
            self.push(file, next, sums);
        }
        bytes
    }

    fn open_bio(&mut self, file: &MappedFile, start: u64) {
        let pieces = self.pieces.len()..self.pieces.len();
        if self.used == self.bios.len() {
            let frames = std::sync::Arc::new(FrameList::new(file.cache.arena()));
            self.bios.push(Part { pieces: pieces.clone(), start, end: start, frames });
        }
        let bio = &mut self.bios[self.used];
        (bio.pieces, bio.start, bio.end) = (pieces, start, start);
        match std::sync::Arc::get_mut(&mut bio.frames) {
            Some(frames) => frames.clear(),
            // A lower layer still has the list of an ended bio (records.P3).
            None => bio.frames = std::sync::Arc::new(FrameList::new(file.cache.arena())),
        }
        self.used += 1;
    }

    /// Adds a piece to the bio that was opened last.
    fn push(&mut self, file: &MappedFile, next: Captured, with_sums: bool) {
        let Captured { piece, place, sequence } = next;
        let (mapping, arena) = (&file.mapping, file.cache.arena());
        let bio = &mut self.bios[self.used - 1];
        let frames =
            std::sync::Arc::get_mut(&mut bio.frames).expect("records.P3: no bio has the list yet");
        let mut sums = if with_sums { self.sums.pop().unwrap_or_default() } else { Vec::new() };
        let (mut left, block) = (place.len, mapping.block_size());
        let mut bytes = [0; FRAME_SIZE];
        for b in piece.blocks.start..piece.blocks.end {
            let (frame, offset) = piece.place(b, mapping);
            let len = left.min(block) as usize;
            frames.push(frame, offset, len);
            if with_sums {
                arena.copy_out(frame, offset, &mut bytes[..len]);
                sums.push(crc32c(&bytes[..len]));
            }
            left -= len as u64;
        }
        assert_eq!(left, 0, "a piece is as long as its place");
        bio.end += place.len;
        bio.pieces.end += 1;
        self.pieces.push(piece);
        self.written.push(Written { place, sequence, sums });
    }
}

impl Part {
    fn takes(&self, next: &Captured, longest: u64, segments: usize) -> bool {
        let blocks = next.piece.blocks.len() as usize;
        next.place.device_offset == self.end
            && self.end - self.start + next.place.len <= longest
            && self.frames.segment_count() + blocks <= segments
    }
}
