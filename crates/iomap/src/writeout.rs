//! Write-out: finds dirty runs, reserves space for them, captures and issues them, and publishes
//! each as its bio ends. The steps and their rules (ops.O1 to O6) are in [`crate::ops`].

use crate::file::MappedFile;
use crate::ops::{Class, Place, Reservation};
use crate::records::{Captured, Plan, Ticket};
use forebay_base::Result;
use forebay_base::task::FutureSlot;
use forebay_base::units::{round_down, round_up};
use forebay_block::BioFlags;
use forebay_cache::folio::Blocks;
use forebay_cache::strategy::DirtyTracking;
use forebay_cache::writeback::{WriteOut, WriteOutPass, fail_unwritten};
use forebay_cache::{FRAME_SIZE, FolioWrite, State};
use std::ops::Range;

/// Longest write of one bio, bytes. Each bio costs a round trip to the device, a record of the map,
/// and, on a file with holes, a change of the host's map: shorter bios made big streams slower.
const MAX_BIO: u64 = 1 << 20;
/// A reservation of this many bytes, or of as many as a domain keeps in flight, gets no further
/// folio.
const MAX_RESERVATION: u64 = 4 << 20;
/// Folios visited together: with a block of 4 KiB each they fill a bio. A map that writes out of
/// place puts such blocks one behind the other: they need few bios.
const BATCH: usize = 256;

impl WriteOut for MappedFile {
    fn write_out(self: std::sync::Arc<Self>, pass: WriteOutPass, slot: &mut FutureSlot<u64>) {
        slot.put(async move { self.write_out_pass(&pass).await });
    }

    fn flush(self: std::sync::Arc<Self>, slot: &mut FutureSlot<()>) {
        // The next sync reports a failure, through the error sequence.
        slot.put(async move { drop(self.flush_shared().await) });
    }

    fn is_settled(&self) -> bool {
        self.mapping.is_settled()
    }
}

impl MappedFile {
    /// Issues one pass; returns the bytes issued.
    pub(crate) async fn write_out_pass(&self, pass: &WriteOutPass) -> u64 {
        self.write_out_pass_on(pass, false).await
    }

    /// A pass of write-out. `here`: the caller blocks, and would wait for the I/O anyway, so the
    /// last request of each batch may run on its thread. That saves a round trip to the engine.
    pub(crate) async fn write_out_pass_on(&self, pass: &WriteOutPass, here: bool) -> u64 {
        let mapping = &*self.mapping;
        let folios = mapping.folios(&pass.range);
        let mut plan = self.plan();
        let plan = &mut *plan;
        plan.cursor.begin(pass, &folios, self.cache.world.now());
        let mut issued = 0;
        while issued < pass.max_bytes {
            let batch = (BATCH, &mut plan.batch);
            mapping.dirty.next_of_pass(pass, &folios, &mut plan.cursor, batch);
            if plan.batch.is_empty() {
                break;
            }
            issued += self.write_out_folios(plan, pass, pass.max_bytes - issued, here).await;
        }
        issued
    }

    /// Writes the blocks that the pass selects from the folios of its batch, a reservation at a
    /// time, until `most` bytes are issued.
    async fn write_out_folios(
        &self,
        plan: &mut Plan,
        pass: &WriteOutPass,
        most: u64,
        here: bool,
    ) -> u64 {
        let (mut issued, mut bytes) = (0, 0);
        let reservation = MAX_RESERVATION.min(self.cache.write_depth());
        for at in 0..plan.batch.len() {
            if issued + bytes >= most {
                break;
            }
            let index = plan.batch[at];
            let mut wanted = self.add_dirty_runs(index, pass, &mut plan.runs);
            if wanted.is_err() {
                // The runs gathered so far need not wait for this folio.
                issued += self.write_runs(plan, pass, false).await;
                bytes = 0;
            }
            while let Err(blocks) = wanted {
                self.cache.wait_while(&self.mapping, index, blocks, State::Writing).await;
                wanted = self.add_dirty_runs(index, pass, &mut plan.runs);
            }
            bytes += wanted.unwrap_or(0);
            // A folio is in one reservation: where folios are written as a whole, its first part
            // takes all of it.
            if bytes >= reservation {
                issued += self.write_runs(plan, pass, false).await;
                bytes = 0;
            }
        }
        issued + self.write_runs(plan, pass, here).await
    }

    /// Adds the blocks that the pass selects from a folio to `runs`, as bytes of the file, whole
    /// blocks; the capture applies the end of file. Returns the bytes. `Err`: a sync has to write
    /// blocks that were dirtied while they were in write-out, and must wait for these.
    fn add_dirty_runs(
        &self,
        index: u64,
        pass: &WriteOutPass,
        runs: &mut Vec<Range<u64>>,
    ) -> std::result::Result<u64, Blocks> {
        let Some(folio) = self.cache.lock_folio(&self.mapping, index) else { return Ok(0) };
        let blocks = self.mapping.blocks_touched(index, &pass.range);
        let tracking = self.cache.strategies.dirty_tracking();
        if pass.sync
            && let Some(blocks) = folio.write_conflict(blocks, tracking)
        {
            return Err(blocks);
        }
        let mut bytes = 0;
        for run in folio.writable(blocks, tracking) {
            let run = self.mapping.range_of(index, run);
            bytes += run.end - run.start;
            match runs.last_mut() {
                Some(last) if last.end == run.start => last.end = run.end,
                _ => runs.push(run),
            }
        }
        Ok(bytes)
    }

    /// Where write-out ends: behind the end of file it writes only to fill a unit of the map, as
    /// old bytes of a place must not show when the file grows (bounds.E1).
    fn end_of_units(&self) -> u64 {
        let unit = u64::from(self.ops.info().unit.max(self.device().limits().logical_block));
        round_up(self.end(), unit)
    }

    /// Reserves space for the runs of the plan, captures their blocks that are still dirty, and
    /// issues them; returns the bytes.
    async fn write_runs(&self, plan: &mut Plan, pass: &WriteOutPass, here: bool) -> u64 {
        if plan.runs.is_empty() {
            return 0;
        }
        self.cache.wait_write_room(&self.mapping).await;
        let class = if pass.sync { Class::Sync } else { Class::Background };
        let reserved = self.ops.reserve(&plan.runs, class, &mut plan.places).await;
        let bytes = self.issue(plan, pass, reserved, here);
        plan.runs.clear();
        bytes
    }

    fn issue(
        &self,
        plan: &mut Plan,
        pass: &WriteOutPass,
        reserved: Result<Reservation>,
        here: bool,
    ) -> u64 {
        let reservation = match reserved {
            Ok(reservation) => reservation,
            Err(error) => {
                log::warn!("no room for write-out: {error}");
                self.mapping.errseq.set(error);
                self.no_room(&plan.runs);
                return 0;
            }
        };
        let wanted: u64 = plan.runs.iter().map(|run| run.end - run.start).sum();
        let reserved: u64 = reservation.places().iter().map(|place| place.len).sum();
        if reserved < wanted && pass.sync {
            // The rest is written when there is space again: the sync runs another pass.
            self.mapping.note_leftover();
        }
        let end = plan.runs.last().map_or(0, |run| run.end);
        let ticket = Ticket::new(&self.mapping, plan.runs[0].start..end);
        self.capture(plan, &reservation, pass.sync);
        let waited_for = if pass.sync { BioFlags::SYNC } else { BioFlags::empty() };
        let flags = BioFlags::BACKGROUND | waited_for;
        let bytes = self.fill_record(plan, reservation, ticket, flags);
        let last = if here { plan.bios.pop() } else { None };
        self.device().submit_batch(&mut plan.bios);
        if let Some(bio) = last {
            self.device().execute(bio);
        }
        bytes
    }

    /// Marks the runs failed: they stay dirty, and a sync fails while they are not written.
    fn no_room(&self, runs: &[Range<u64>]) {
        for run in runs {
            for (index, part) in self.pieces(run.clone()) {
                let blocks = self.mapping.blocks_touched(index, &part);
                fail_unwritten(&self.cache, &self.mapping, index, blocks);
            }
        }
    }

    /// Takes the dirty blocks of the places: their content is fixed now, and so is their sequence
    /// (ops.O1). Other blocks are not taken, not even for a moment: up-to-date blocks that joined a
    /// folio written as a whole after space was reserved, and blocks that a truncate is about to
    /// drop.
    fn capture(&self, plan: &mut Plan, reservation: &Reservation, sync: bool) {
        let mapping = &*self.mapping;
        let tracking = self.cache.strategies.dirty_tracking();
        let places = reservation.places();
        let Plan { parts, writable, captured, .. } = plan;
        parts.clear();
        for (at, place) in places.iter().enumerate() {
            parts.extend(self.pieces(place.range()).map(|(index, part)| (index, part, at)));
        }
        for parts in parts.chunk_by(|a, b| a.0 == b.0) {
            let Some(folio) = self.cache.lock_folio(mapping, parts[0].0) else { continue };
            let first = captured.len();
            let sequence = self.ops.sequence();
            // The size is read under the folio lock, as the content is.
            let eof = self.end_of_units();
            let all = mapping.blocks_touched(folio.index, &(0..u64::MAX >> 1));
            writable.clear();
            writable.extend(folio.writable(all, tracking));
            let whole = tracking == DirtyTracking::Folio;
            if sync && whole && folio.write_conflict(all, tracking).is_some() {
                // Another pass has taken the folio, and may have left out blocks of this pass.
                mapping.note_leftover();
            }
            for (index, part, at) in parts {
                let part = part.start..part.end.min(eof).max(part.start);
                let whole = part.start..round_up(part.end, mapping.block_size());
                let inside = mapping.blocks_inside(*index, &whole);
                for run in writable.iter().map(|run| run.within(inside)).filter(|r| !r.is_empty()) {
                    self.take(&folio, run, &part, (&places[*at], sequence), captured);
                }
            }
            captured[first..].iter_mut().for_each(|c| self.snapshot(&folio, &mut c.piece));
        }
    }

    /// Takes a run for write-out, and adds it to `captured` in portions of at most a bio. `part`:
    /// the bytes of the run's folio that belong to `place`.
    fn take(
        &self,
        folio: &FolioWrite<'_>,
        run: Blocks,
        part: &Range<u64>,
        (place, sequence): (&Place, u64),
        captured: &mut Vec<Captured>,
    ) {
        let mapping = &*self.mapping;
        let most = (self.longest_bio() / mapping.block_size()).max(1) as u32;
        let mut start = run.start;
        while start < run.end {
            let piece = folio.take(Blocks { start, end: run.end.min(start + most) });
            start = piece.blocks.end;
            let bytes = mapping.range_of(piece.index, piece.blocks);
            let (offset, len) = (bytes.start, bytes.end.min(part.end) - bytes.start);
            let device_offset = place.device_offset + (offset - place.offset);
            let place = Place { offset, len, device_offset };
            captured.push(Captured { piece, place, sequence });
        }
    }

    /// Bytes of one bio at most.
    pub(crate) fn longest_bio(&self) -> u64 {
        let limits = self.device().limits();
        let segments = u64::from(limits.max_segments) * FRAME_SIZE as u64;
        let most = MAX_BIO.min(u64::from(limits.max_transfer)).min(segments / 2);
        round_down(most, self.mapping.block_size())
    }
}
