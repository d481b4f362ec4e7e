//! The memory of write-out: records of write-outs in progress, and the lists that a pass plans
//! with. Both are reused, for all files of a cache, so that a warm write-out allocates nothing from
//! its plan to its last completion. Write-out frees memory, so it must not need memory for that.
//!
//! ```text
//!   kept ──plan, reserve, capture──▶ filled ──bios out, a token each──▶ left = 0 ──▶ emptied
//!    ▲                                                                                 │  │
//!    └─────────────────────────────────────────────────────────────────────────────────┘  ▼
//!                                                                     no space: freed ◀────┘
//! ```
//!
//! A record is to write-out what an `InFlight` is to an operation: each of its bios owns it, and
//! with it the ticket, the blocks and the places, so a dropped task releases nothing early. It is a
//! type of its own for two reasons. It publishes each bio as that ends, where an operation gives
//! back everything at once. And it is used again, so that write-out allocates nothing; an
//! `InFlight` is made for each operation.
//!
//! Invariants: P1 a record is emptied once all its bios are over, and before its ticket ends: a
//! task that waited for the ticket finds it among the kept ones. P2 the kept records stay within
//! the cache's limit; a record in use is never refused. records.P3 the lists of frames of a record
//! change only while no bio has them.
//!
//! Locks: a completion takes a record's lock shared; the task that fills or empties the record
//! takes it exclusively, and never while bios can complete, so neither waits. The lock of
//! [`Records`] is a leaf.

use crate::ops::publishable_size;
use crate::ops::{MapOps, Place, Reservation, Written, is_bad};

use forebay_base::sync::atomic::{AtomicUsize, Ordering};
use forebay_base::sync::{Arc, Mutex, RwLock};
use forebay_block::{Bio, Completion, EndBio};
use forebay_cache::dirty::dirty_folios::DirtyCursor;
use forebay_cache::folio::Blocks;
use forebay_cache::writeback::{WritePiece, end_write};
use forebay_cache::{Attached, FrameList, Mapping, PageCache};
use std::ops::Range;

/// A number among the write-outs of a file, held from before blocks are taken until the last of
/// their bios is over.
pub(crate) struct Ticket {
    mapping: Arc<Mapping>,
    number: u64,
}

impl Ticket {
    /// `range`: what it may write.
    pub fn new(mapping: &Arc<Mapping>, range: Range<u64>) -> Self {
        Self { number: mapping.issue_ticket(range), mapping: mapping.clone() }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.mapping.end_ticket(self.number);
    }
}

/// A piece captured, and where it goes.
pub(crate) struct Captured {
    pub piece: WritePiece,
    /// Bytes of the file that are written, and where.
    pub place: Place,
    pub sequence: u64,
}

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
    /// Its bytes in the count of kept memory; 0 while it is in use.
    pub counted: u64,
}

impl Plan {
    pub fn bytes(&self) -> u64 {
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

#[derive(Default)]
pub(crate) struct Kept {
    pub plans: Vec<Plan>,
    pub records: Vec<std::sync::Arc<Record>>,
}

/// Plans and records kept for reuse by all write-outs of one cache.
#[derive(Default)]
pub(crate) struct Records(pub Mutex<Kept>);

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

/// The file whose blocks a record writes, and their places. Released in this order: places are
/// returned before a task that waits for the ticket continues.
pub(crate) struct Owner {
    pub reservation: Reservation,
    pub ticket: Ticket,
    pub ops: std::sync::Arc<dyn MapOps>,
    pub mapping: Arc<Mapping>,
    pub cache: Arc<PageCache>,
    pub records: std::sync::Arc<Records>,
}

/// One bio: the numbers of its pieces, and its range on the device, bytes.
pub(crate) struct Part {
    pub pieces: Range<usize>,
    pub start: u64,
    pub end: u64,
    pub frames: std::sync::Arc<FrameList>,
}

#[derive(Default)]
pub(crate) struct Work {
    /// `None` in a record that is kept for reuse.
    pub owner: Option<Owner>,
    pub pieces: Vec<WritePiece>,
    /// For each piece, what is published when its bio ends.
    pub written: Vec<Written>,
    /// The first `used` of them are in use; the others keep their lists of frames.
    pub bios: Vec<Part>,
    pub used: usize,
    /// Memory for the next use, empty.
    pub sums: Vec<Vec<u32>>,
    pub places: Vec<Place>,
    /// Its bytes in the count of kept memory; 0 while it is in use.
    pub counted: u64,
}

/// The write-outs in progress for one reservation.
#[derive(Default)]
pub(crate) struct Record {
    pub work: RwLock<Work>,
    /// Bios that are not over.
    pub left: AtomicUsize,
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

    /// Publishes the pieces of one bio, or makes them dirty again. `is_last`: all others are over.
    fn end_bio(&self, token: u64, result: forebay_base::Result<()>, is_last: bool) {
        let owner = self.owner.as_ref().expect("P1: a record with bios on their way is filled");
        let Owner { cache, mapping, ops, reservation, ticket, .. } = owner;
        let range = self.bios[token as usize].pieces.clone();
        let pieces = &self.pieces[range.clone()];
        let is_bad = is_bad(&result);
        match result {
            Ok(()) => {
                let uncut = mapping.bounds.uncut();
                // The size goes into the record of these bytes (ops.O5).
                let ended = is_last.then_some(ticket.number);
                let size = publishable_size(cache, mapping, &**ops, ended);
                ops.publish(reservation, &self.written[range], size);
                drop(uncut);
                end_write(cache, mapping, pieces, true);
            }
            Err(error) => {
                log::warn!("write-out failed: {error}");
                // Sets the error first: a writer that is refused because of the failure reports it.
                // Blocks are dirty again before the places are returned, because space is counted
                // by dirty blocks.
                mapping.errseq.set(error);
                for written in self.written[range].iter().filter(|_| is_bad) {
                    reservation.write_failed(&written.place);
                }
                end_write(cache, mapping, pieces, false);
            }
        }
    }

    /// Empties a record whose bios are all over, and keeps its memory; returns its owner.
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
        // The list of frames is the record's alone again (records.P3).
        drop(data);
        let _over = Over(&self);
        let is_last = self.left.load(Ordering::Acquire) == 1;
        self.work.read().end_bio(token, result, is_last);
    }
}

impl Record {
    /// All bios are over: unpublished places are returned, the record is kept for reuse if the
    /// limit allows, the ticket ends (P1).
    pub fn over(self: &std::sync::Arc<Self>) {
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
