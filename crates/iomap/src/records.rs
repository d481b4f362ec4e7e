//! The memory of write-out: records of write-outs in progress, and the lists that a pass plans
//! with. Both are reused, for all files of a cache, so that a warm write-out allocates nothing from
//! its plan to its last completion. Write-out that makes memory free must not need memory for it.
//!
//! ```text
//!   kept ──plan, reserve, capture──▶ filled ──bios out, a token each──▶ left = 0 ──▶ emptied
//!    ▲                                                                                 │  │
//!    └─────────────────────────────────────────────────────────────────────────────────┘  ▼
//!                                                                     no space: freed ◀────┘
//! ```
//!
//! Invariants: P1 a record is emptied once all its bios are over, and before its ticket ends: a
//! task that waited for the ticket finds it among the kept ones. P2 the kept records stay within
//! the cache's limit; a record in use is never refused. P3 the lists of frames of a record change
//! only while no bio has them.
//!
//! Locks: completions take a record's shared, the task that fills or empties it exclusively: never
//! both at a time, so neither waits. The lock of the kept ones is a leaf.

use crate::file::MappedFile;
use crate::ops::{MapOps, Place, Reservation, Written, is_bad};
use crate::published::publishable_size;
use crate::writeout::{Captured, Ticket};
use forebay_base::buf::DataRef;
use forebay_base::checksum::crc32c;
use forebay_base::sync::atomic::{AtomicUsize, Ordering};
use forebay_base::sync::{Arc, Mutex, RwLock};
use forebay_block::{Bio, BioFlags, BioOp, Completion, EndBio};
use forebay_cache::folio::Blocks;
use forebay_cache::writeback::dirty_folios::DirtyCursor;
use forebay_cache::writeback::{WritePiece, end_write};
use forebay_cache::{Attached, FRAME_SIZE, FrameList, Mapping, PageCache};
use std::ops::{Deref, DerefMut, Range};

/// The lists that a pass plans with.
#[derive(Default)]
pub(crate) struct Plan {
    pub cursor: DirtyCursor,
    /// Dirty folios visited together.
    pub batch: Vec<u64>,
    /// The runs to write from them, ascending.
    pub runs: Vec<Range<u64>>,
    /// Folio, bytes of the file, number of the place.
    pub parts: Vec<(u64, Range<u64>, usize)>,
    /// Runs of a folio that may be taken.
    pub writable: Vec<Blocks>,
    pub captured: Vec<Captured>,
    pub bios: Vec<Bio>,
    /// Memory for the next places, empty.
    pub places: Vec<Place>,
    /// Bytes that it is counted with while it is kept.
    counted: u64,
}

impl Plan {
    fn bytes(&self) -> u64 {
        let lists = bytes_of(&self.batch)
            + bytes_of(&self.runs)
            + bytes_of(&self.parts)
            + bytes_of(&self.writable)
            + bytes_of(&self.captured)
            + bytes_of(&self.bios)
            + bytes_of(&self.places);
        size_of::<Self>() as u64 + lists + self.cursor.bytes()
    }
}

fn bytes_of<T>(list: &Vec<T>) -> u64 {
    (list.capacity() * size_of::<T>()) as u64
}

/// A plan in use; kept for the next pass on drop.
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

#[derive(Default)]
struct Kept {
    plans: Vec<Plan>,
    records: Vec<std::sync::Arc<Record>>,
}

/// What write-outs of one cache have left to be used again.
#[derive(Default)]
pub(crate) struct Records(Mutex<Kept>);

impl Attached for Records {
    fn trim(&self, cache: &PageCache) {
        let Kept { plans, records } = std::mem::take(&mut *self.0.lock());
        plans.into_iter().for_each(|mut plan| {
            cache.count_record(&mut plan.counted, 0);
        });
        for record in records {
            cache.count_record(&mut record.work.write().counted, 0);
        }
    }
}

impl MappedFile {
    /// Lists for a pass.
    pub(crate) fn plan(&self) -> PlanInUse<'_> {
        let kept = self.records.0.lock().plans.pop();
        let mut plan = kept.unwrap_or_default();
        self.cache.count_record(&mut plan.counted, 0);
        PlanInUse { plan, file: self }
    }

    /// Makes bios of the captured blocks, which are the pieces of `reservation`; returns the bytes.
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
            // Gone into the reservation.
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

/// The owner of the written blocks, and their places. Dropped in this order: places are returned
/// before a task that waits for the ticket continues.
struct Owner {
    reservation: Reservation,
    ticket: Ticket,
    ops: std::sync::Arc<dyn MapOps>,
    mapping: Arc<Mapping>,
    cache: Arc<PageCache>,
    records: std::sync::Arc<Records>,
}

/// One bio: its pieces, by number, and where it goes, bytes on the device.
struct Part {
    pieces: Range<usize>,
    start: u64,
    end: u64,
    frames: std::sync::Arc<FrameList>,
}

#[derive(Default)]
struct Work {
    /// None in a record that waits to be used again.
    owner: Option<Owner>,
    pieces: Vec<WritePiece>,
    /// Of each piece.
    written: Vec<Written>,
    /// The first `used` of them are in use; the others keep their lists of frames.
    bios: Vec<Part>,
    used: usize,
    /// Memory for the next use, empty.
    sums: Vec<Vec<u32>>,
    places: Vec<Place>,
    /// Bytes that it is counted with while it is kept.
    counted: u64,
}

/// The write-outs in progress for one reservation.
#[derive(Default)]
pub(crate) struct Record {
    work: RwLock<Work>,
    /// Bios that are not over.
    left: AtomicUsize,
}

impl Work {
    fn bytes(&self) -> u64 {
        let sums: u64 = self.sums.iter().map(bytes_of).sum();
        let used: u64 = self.written.iter().map(|w| bytes_of(&w.sums)).sum();
        let frames: usize = self.bios.iter().map(|bio| bio.frames.bytes_held()).sum();
        let lists = bytes_of(&self.pieces)
            + bytes_of(&self.written)
            + bytes_of(&self.bios)
            + bytes_of(&self.sums)
            + bytes_of(&self.places);
        size_of::<Record>() as u64 + lists + sums + used + frames as u64
    }

    /// Puts pieces that lie one behind the other on the device into one bio; returns their bytes.
    fn take_pieces(&mut self, file: &MappedFile, captured: &mut Vec<Captured>) -> u64 {
        let longest = file.longest_bio();
        let segments = file.device().limits().max_segments as usize;
        let sums = file.ops.limits().sums;
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
            // A lower layer has kept the list of an ended bio (P3).
            None => bio.frames = std::sync::Arc::new(FrameList::new(file.cache.arena())),
        }
        self.used += 1;
    }

    /// Adds a piece to the bio that was opened last.
    fn push(&mut self, file: &MappedFile, next: Captured, with_sums: bool) {
        let Captured { piece, place, sequence } = next;
        let (mapping, arena) = (&file.mapping, file.cache.arena());
        let bio = &mut self.bios[self.used - 1];
        let frames = std::sync::Arc::get_mut(&mut bio.frames).expect("P3: no bio has the list yet");
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

    /// Publishes the pieces of one bio, or makes them dirty again.
    fn end_bio(&self, token: u64, result: forebay_base::Result<()>) {
        let owner = self.owner.as_ref().expect("P1: a record with bios on their way is filled");
        let Owner { cache, mapping, ops, reservation, .. } = owner;
        let range = self.bios[token as usize].pieces.clone();
        let pieces = &self.pieces[range.clone()];
        let is_bad = is_bad(&result);
        match result {
            Ok(()) => {
                let uncut = mapping.bounds.uncut();
                let size = publishable_size(cache, mapping, &**ops);
                ops.publish(reservation, &self.written[range], size);
                drop(uncut);
                end_write(cache, mapping, pieces, true);
            }
            Err(error) => {
                log::warn!("write-out failed: {error}");
                // The error first: a writer that is refused because of it reports it. Blocks are
                // dirty again before the places are returned, because space is counted by dirty
                // blocks.
                mapping.errseq.set(error);
                for written in self.written[range].iter().filter(|_| is_bad) {
                    ops.write_failed(&written.place);
                }
                end_write(cache, mapping, pieces, false);
            }
        }
    }

    /// Nothing is on its way any more; its memory stays.
    fn empty(&mut self) -> Option<Owner> {
        self.used = 0;
        self.pieces.clear();
        let sums = self.written.drain(..).map(|written| written.sums);
        self.sums.extend(sums.filter(|sums| sums.capacity() > 0).map(|mut sums| {
            sums.clear();
            sums
        }));
        self.owner.take()
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

/// Ends one bio, also if its completion panics.
struct Over<'a>(&'a std::sync::Arc<Record>);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        if self.0.left.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.over();
        }
    }
}

impl EndBio for Record {
    fn end_bio(self: std::sync::Arc<Self>, token: u64, done: Completion) {
        let Completion { data, result } = done;
        // The list of frames is the record's alone again (P3).
        drop(data);
        let _over = Over(&self);
        self.work.read().end_bio(token, result);
    }
}

impl Record {
    /// All bios are over: unpublished places are returned, the record is kept for reuse if the
    /// limit allows, the ticket ends (P1).
    fn over(self: &std::sync::Arc<Self>) {
        let Some(owner) = self.work.write().empty() else { return };
        let Owner { reservation, ticket, ops, mapping, cache, records } = owner;
        let places = reservation.end();
        let keep = {
            let mut work = self.work.write();
            work.places = places;
            let bytes = work.bytes();
            let keep = cache.count_record(&mut work.counted, bytes);
            if !keep {
                *work = Default::default();
            }
            keep
        };
        if keep {
            debug_assert!(self.work.read().counted > 0, "P2: what is kept is counted");
            records.0.lock().records.push(self.clone());
        }
        drop(ticket);
        drop((ops, mapping, cache, records));
    }
}
