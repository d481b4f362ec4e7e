//! Write-out: dirty runs are looked at, room for them is reserved, then they are captured, issued, and
//! published as each bio ends. The steps and their rules (O1..O6) are in [`crate::ops`].

use crate::file::MappedFile;
use crate::ops::{Class, MapOps, Place, Reservation, Written};
use crate::published::publishable_size;
use forebay_base::buf::DataRef;
use forebay_base::checksum::crc32c;
use forebay_base::sync::Arc;
use forebay_base::task::BoxFuture;
use forebay_base::units::{round_down, round_up};
use forebay_block::{Bio, BioFlags, BioOp};
use forebay_cache::folio::Blocks;
use forebay_cache::strategy::DirtyTracking;
use forebay_cache::writeback::dirt::DirtyCursor;
use forebay_cache::writeback::{WriteOut, WriteOutPass, WritePiece, end_write, fail_unwritten};
use forebay_cache::{FRAME_SIZE, FrameList, Mapping, PageCache, State};
use std::ops::Range;

/// Longest write of one bio, bytes: many of them under way fill a device and end one after another.
const MAX_BIO: u64 = 256 << 10;
/// No folio is added to a reservation of so many bytes.
const MAX_RESERVATION: u64 = 1 << 20;
/// Folios looked at between two looks at the device's queue.
const BATCH: usize = 16;

impl WriteOut for MappedFile {
    fn write_out(self: std::sync::Arc<Self>, pass: WriteOutPass) -> BoxFuture<'static, u64> {
        Box::pin(async move { self.write_out_pass(&pass).await })
    }

    fn flush(self: std::sync::Arc<Self>) -> BoxFuture<'static, ()> {
        // Whoever syncs next is told of a failure, by way of the error sequence.
        Box::pin(async move { drop(self.flush_shared().await) })
    }

    fn is_settled(&self) -> bool {
        self.mapping.is_settled()
    }
}

/// A number among the write-outs of a file, held from before blocks are taken until the last of
/// their bios is over.
pub(crate) struct Ticket {
    mapping: Arc<Mapping>,
    number: u64,
}

impl Ticket {
    /// `range`: what it may write.
    pub fn new(mapping: &Arc<Mapping>, range: Range<u64>) -> Arc<Self> {
        Arc::new(Self { number: mapping.issue_ticket(range), mapping: mapping.clone() })
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.mapping.end_ticket(self.number);
    }
}

/// A piece captured, and where it goes.
struct Captured {
    piece: WritePiece,
    /// Bytes of the file that are written, and where.
    place: Place,
    sequence: u64,
}

/// The completion side of one bio: publishes its pieces, or makes them dirty again.
struct EndWrite {
    cache: Arc<PageCache>,
    mapping: Arc<Mapping>,
    ops: std::sync::Arc<dyn MapOps>,
    reservation: std::sync::Arc<Reservation>,
    pieces: Vec<WritePiece>,
    written: Vec<Written>,
    fua: bool,
    /// Given back after the error, if there is one, was recorded.
    ticket: Arc<Ticket>,
}

impl EndWrite {
    fn end(self, result: forebay_base::Result<()>) {
        let Self { cache, mapping, ops, reservation, pieces, written, fua, ticket } = self;
        match result {
            Ok(()) => {
                let size = publishable_size(&mapping, &*ops);
                ops.publish(&reservation, &written, size);
                end_write(&cache, &mapping, &pieces, true, fua);
            }
            Err(error) => {
                log::warn!("write-out failed: {error}");
                // The error first: a writer that is refused for it says why. Dirty again before the places
                // go back: dirt is what room is counted by.
                mapping.errseq.set(error);
                end_write(&cache, &mapping, &pieces, false, fua);
            }
        }
        drop(reservation);
        drop(ticket);
    }
}

impl MappedFile {
    /// Issues one pass; returns the bytes issued.
    pub(crate) async fn write_out_pass(&self, pass: &WriteOutPass) -> u64 {
        self.write_out_pass_on(pass, false).await
    }

    /// The same. `here`: the caller blocks, and would wait for the I/O anyway: the last request of each
    /// batch may be carried out on its thread, which spares the way to the engine and back.
    pub(crate) async fn write_out_pass_on(&self, pass: &WriteOutPass, here: bool) -> u64 {
        let mapping = &*self.mapping;
        let folios = mapping.folios(&pass.range);
        let mut cursor = DirtyCursor::new(pass, &folios, self.cache.world.now());
        let mut issued = 0;
        while issued < pass.max_bytes {
            let batch = mapping.dirty.next_of_pass(pass, &folios, &mut cursor, BATCH);
            if batch.is_empty() {
                break;
            }
            self.cache.wait_write_room(mapping).await;
            issued += self.write_out_folios(&batch, pass, here).await;
        }
        issued
    }

    /// Writes what the pass wants of some folios, a reservation at a time.
    async fn write_out_folios(&self, batch: &[u64], pass: &WriteOutPass, here: bool) -> u64 {
        let mut issued = 0;
        let mut runs: Vec<Range<u64>> = Vec::new();
        let mut bytes = 0;
        for &index in batch {
            let mut wanted = self.dirty_runs(index, pass);
            if wanted.is_err() {
                // Nothing that could go is held back meanwhile.
                issued += self.write_runs(std::mem::take(&mut runs), pass, false).await;
                bytes = 0;
            }
            while let Err(blocks) = wanted {
                self.cache.wait_while(&self.mapping, index, blocks, State::Writing).await;
                wanted = self.dirty_runs(index, pass);
            }
            for run in wanted.unwrap_or_default() {
                bytes += run.end - run.start;
                match runs.last_mut() {
                    Some(last) if last.end == run.start => last.end = run.end,
                    _ => runs.push(run),
                }
            }
            // All of a folio in one reservation: where folios are written whole, its first part takes all.
            if bytes >= MAX_RESERVATION {
                issued += self.write_runs(std::mem::take(&mut runs), pass, false).await;
                bytes = 0;
            }
        }
        issued + self.write_runs(runs, pass, here).await
    }

    /// What the pass wants of a folio, as bytes of the file, whole blocks: where the file ends is seen
    /// when they are captured. `Err`: a sync has to write blocks
    /// that were dirtied while they were in write-out, and these have to be waited for.
    fn dirty_runs(&self, index: u64, pass: &WriteOutPass) -> Result<Vec<Range<u64>>, Blocks> {
        let Some(folio) = self.cache.lock_folio(&self.mapping, index) else {
            return Ok(Vec::new());
        };
        let blocks = self.mapping.blocks_touched(index, &pass.range);
        let tracking = self.cache.strategies.dirty_tracking();
        match folio.write_conflict(blocks, tracking) {
            Some(blocks) if pass.sync => Err(blocks),
            _ => {
                let runs = folio.writable(blocks, tracking).into_iter();
                Ok(runs.map(|run| self.mapping.range_of(index, run)).collect())
            }
        }
    }

    /// Behind the end of file there is nothing to write, save to fill a unit of the map: what a place
    /// held before must not show when the file grows (E1).
    fn end_of_units(&self) -> u64 {
        let unit = u64::from(self.ops.unit().max(self.device().limits().logical_block));
        round_up(self.size(), unit)
    }

    /// Reserves room for the runs, captures what is still dirty of them, and issues it; returns the bytes.
    async fn write_runs(&self, runs: Vec<Range<u64>>, pass: &WriteOutPass, here: bool) -> u64 {
        let (Some(first), Some(last)) = (runs.first(), runs.last()) else { return 0 };
        let range = first.start..last.end;
        let class = if pass.sync { Class::Sync } else { Class::Background };
        let reservation = match self.ops.reserve(&runs, class).await {
            Ok(reservation) => std::sync::Arc::new(reservation),
            Err(error) => {
                log::warn!("no room for write-out: {error}");
                self.mapping.errseq.set(error);
                self.no_room(&runs);
                return 0;
            }
        };
        let ticket = Ticket::new(&self.mapping, range);
        let captured = self.capture(&reservation, pass.sync);
        let flags = match (pass.fua, pass.sync) {
            (true, _) => BioFlags::FUA | BioFlags::SYNC,
            (false, true) => BioFlags::SYNC,
            (false, false) => BioFlags::BACKGROUND,
        };
        let (mut bios, bytes) = self.plan_writes(captured, &reservation, &ticket, flags);
        let last = if here { bios.pop() } else { None };
        self.device().submit_batch(&mut bios);
        if let Some(bio) = last {
            self.device().execute(bio);
        }
        bytes
    }

    /// The runs stay dirty, and a sync has to say that they could not be written.
    fn no_room(&self, runs: &[Range<u64>]) {
        for run in runs {
            for (index, part) in self.pieces(run.clone()) {
                let blocks = self.mapping.blocks_touched(index, &part);
                fail_unwritten(&self.cache, &self.mapping, index, blocks);
            }
        }
    }

    /// Takes what is dirty of the places: its content is fixed now, and so is its sequence (O1). Nothing else
    /// is taken, not even for a moment: up-to-date blocks that joined a folio written whole after room was
    /// reserved for it, and what a truncate is about to drop, stay as they are.
    fn capture(&self, reservation: &Reservation, sync: bool) -> Vec<Captured> {
        let mapping = &*self.mapping;
        let tracking = self.cache.strategies.dirty_tracking();
        let mut captured = Vec::new();
        let places = reservation.places().iter();
        let parts: Vec<(u64, Range<u64>, &Place)> = places
            .flat_map(|place| self.pieces(place.range()).map(move |(i, part)| (i, part, place)))
            .collect();
        for parts in parts.chunk_by(|a, b| a.0 == b.0) {
            let Some(folio) = self.cache.lock_folio(mapping, parts[0].0) else { continue };
            let first = captured.len();
            let sequence = self.ops.sequence();
            // The size as it is under the lock, with the content.
            let eof = self.end_of_units();
            let all = mapping.blocks_touched(folio.index, &(0..u64::MAX >> 1));
            let writable = folio.writable(all, tracking);
            let whole = tracking == DirtyTracking::Folio;
            if sync && whole && folio.write_conflict(all, tracking).is_some() {
                // Another pass was faster, and may have left out what this one is to write.
                mapping.note_leftover();
            }
            for (index, part, place) in parts {
                let part = part.start..part.end.min(eof).max(part.start);
                let whole = part.start..round_up(part.end, mapping.block_size());
                let inside = mapping.blocks_inside(*index, &whole);
                for run in writable.iter().map(|run| run.within(inside)).filter(|r| !r.is_empty()) {
                    self.cut(folio.take(run), &part, place, sequence, &mut captured);
                }
            }
            captured[first..].iter_mut().for_each(|c| self.snapshot(&folio, &mut c.piece));
        }
        captured
    }

    /// Moves a piece within `part` of a place over to `captured`, in portions of a bio.
    fn cut(
        &self,
        mut piece: WritePiece,
        part: &Range<u64>,
        place: &Place,
        sequence: u64,
        captured: &mut Vec<Captured>,
    ) {
        let mapping = &*self.mapping;
        let most = (self.longest_bio() / mapping.block_size()).max(1) as u32;
        loop {
            let rest = (piece.blocks.len() > most)
                .then(|| piece.split_off(piece.blocks.start + most, &self.cache, mapping));
            let bytes = mapping.range_of(piece.index, piece.blocks);
            let bytes = bytes.start..bytes.end.min(part.end);
            let device_offset = place.device_offset + (bytes.start - place.offset);
            let place = Place { offset: bytes.start, len: bytes.end - bytes.start, device_offset };
            captured.push(Captured { piece, place, sequence });
            let Some(rest) = rest else { break };
            piece = rest;
        }
    }

    fn longest_bio(&self) -> u64 {
        let limits = self.device().limits();
        let segments = u64::from(limits.max_segments) * FRAME_SIZE as u64;
        let most = MAX_BIO.min(u64::from(limits.max_transfer)).min(segments / 2);
        round_down(most, self.mapping.block_size())
    }

    /// Makes bios of pieces that lie one behind the other on the device; returns the bytes, too.
    fn plan_writes(
        &self,
        captured: Vec<Captured>,
        reservation: &std::sync::Arc<Reservation>,
        ticket: &Arc<Ticket>,
        flags: BioFlags,
    ) -> (Vec<Bio>, u64) {
        let longest = self.longest_bio();
        let segments = self.device().limits().max_segments as usize;
        let (mut bios, mut bytes) = (Vec::new(), 0);
        let mut open: Option<RunBuilder<'_>> = None;
        for next in captured {
            bytes += next.place.len;
            if open.as_ref().is_some_and(|open| !open.takes(&next, longest, segments)) {
                bios.extend(open.take().map(|open| open.close(reservation, ticket, flags)));
            }
            open.get_or_insert_with(|| RunBuilder::new(self, &next)).push(next);
        }
        bios.extend(open.map(|open| open.close(reservation, ticket, flags)));
        (bios, bytes)
    }
}

/// A bio being put together.
struct RunBuilder<'a> {
    file: &'a MappedFile,
    sums: bool,
    start: u64,
    end: u64,
    frames: FrameList,
    pieces: Vec<WritePiece>,
    written: Vec<Written>,
}

impl<'a> RunBuilder<'a> {
    fn new(file: &'a MappedFile, first: &Captured) -> Self {
        let at = first.place.device_offset;
        let frames = FrameList::new(file.cache.arena());
        let sums = file.ops.limits().sums;
        Self { file, sums, start: at, end: at, frames, pieces: Vec::new(), written: Vec::new() }
    }

    fn takes(&self, next: &Captured, longest: u64, segments: usize) -> bool {
        let blocks = next.piece.blocks.len() as usize;
        next.place.device_offset == self.end
            && self.end - self.start + next.place.len <= longest
            && self.frames.segment_count() + blocks <= segments
    }

    fn push(&mut self, next: Captured) {
        let Captured { piece, place, sequence } = next;
        let (mapping, arena) = (&self.file.mapping, self.file.cache.arena());
        let block = mapping.block_size();
        let (mut left, mut sums) = (place.len, Vec::new());
        for b in piece.blocks.start..piece.blocks.end {
            let (frame, offset) = piece.place(b, mapping);
            let len = left.min(block) as usize;
            self.frames.push(frame, offset, len);
            if self.sums {
                let mut bytes = [0; FRAME_SIZE];
                arena.copy_out(frame, offset, &mut bytes[..len]);
                sums.push(crc32c(&bytes[..len]));
            }
            left -= len as u64;
        }
        assert_eq!(left, 0, "a piece is as long as its place");
        self.end += place.len;
        self.pieces.push(piece);
        self.written.push(Written { place, sequence, sums });
    }

    fn close(
        self,
        reservation: &std::sync::Arc<Reservation>,
        ticket: &Arc<Ticket>,
        flags: BioFlags,
    ) -> Bio {
        let Self { file, start, end, frames, pieces, written, .. } = self;
        let end_write = EndWrite {
            cache: file.cache.clone(),
            mapping: file.mapping.clone(),
            ops: file.ops.clone(),
            reservation: reservation.clone(),
            pieces,
            written,
            fua: flags.contains(BioFlags::FUA),
            ticket: ticket.clone(),
        };
        let data = DataRef::Mem(Box::new(frames));
        let done = Box::new(move |c: forebay_block::Completion| end_write.end(c.result));
        Bio::new(BioOp::Write, start, end - start, data, done).with_flags(flags)
    }
}
