//! Write-out: dirty blocks become runs, runs are reserved, issued, published or aborted.

use crate::file::MappedFile;
use crate::ops::{MapOps, Reservation};
use forebay_base::Error;
use forebay_base::buf::DataRef;
use forebay_base::sync::{Arc, Mutex};
use forebay_base::task::BoxFuture;
use forebay_base::units::round_up;
use forebay_block::{Bio, BioFlags, BioOp};
use forebay_cache::folio::Blocks;
use forebay_cache::writeback::dirt::DirtyCursor;
use forebay_cache::writeback::{WriteOut, WriteOutPass, WritePiece, end_write};
use forebay_cache::{FrameList, Mapping, PageCache, State};
use std::ops::Range;

/// Longest run of one reservation, bytes.
const MAX_RUN: u64 = 256 << 10;
/// Longest write of one bio, bytes: many of them under way fill a device and end one after another.
const MAX_BIO: u64 = 256 << 10;
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
    pub fn new(mapping: &Arc<Mapping>) -> Arc<Self> {
        Arc::new(Self { number: mapping.issue_ticket(), mapping: mapping.clone() })
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.mapping.end_ticket(self.number);
    }
}

/// The completion side of one reservation: publishes or aborts when its last bio is over.
struct EndRun {
    cache: Arc<PageCache>,
    mapping: Arc<Mapping>,
    ops: std::sync::Arc<dyn MapOps>,
    /// Given back after the error, if there is one, was recorded.
    _ticket: Arc<Ticket>,
    fua: bool,
    state: Mutex<RunState>,
}

struct RunState {
    bios_left: usize,
    error: Option<Error>,
    pieces: Vec<WritePiece>,
    reservation: Option<Reservation>,
}

impl EndRun {
    /// One bio is over.
    fn end_bio(&self, result: forebay_base::Result<()>) {
        let mut state = self.state.lock();
        if let Err(error) = result {
            state.error.get_or_insert(error);
        }
        state.bios_left -= 1;
        if state.bios_left > 0 {
            return;
        }
        let (pieces, reservation) = (std::mem::take(&mut state.pieces), state.reservation.take());
        let mut error = state.error.take();
        drop(state);
        let reservation = reservation.expect("a run ends once (O3)");
        match &error {
            Some(e) => self.ops.abort(reservation, e),
            None => error = self.ops.publish(reservation).err(),
        }
        end_write(&self.cache, &self.mapping, &pieces, error.is_none(), self.fua);
        if let Some(error) = error {
            log::warn!("write-out failed: {error}");
            self.mapping.errseq.set(error);
        }
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

    /// Captures the dirty blocks of some folios and writes them in runs that are as long as the file
    /// allows.
    async fn write_out_folios(&self, batch: &[u64], pass: &WriteOutPass, here: bool) -> u64 {
        let mut issued = 0;
        let mut bios: Vec<Bio> = Vec::new();
        let ticket = Ticket::new(&self.mapping);
        let mut run: Vec<WritePiece> = Vec::new();
        let mut bytes: Range<u64> = 0..0;
        for &index in batch {
            let mut taken = self.capture(index, pass);
            if taken.is_err() {
                // Nothing that was taken is held back meanwhile.
                if !run.is_empty() {
                    let run = std::mem::take(&mut run);
                    issued += self.plan_run(run, &bytes, pass.fua, &ticket, &mut bios);
                }
                self.device().submit_batch(&mut bios);
            }
            while let Err(blocks) = taken {
                self.cache.wait_while(&self.mapping, index, blocks, State::Writing).await;
                taken = self.capture(index, pass);
            }
            for piece in taken.unwrap_or_default() {
                let part = self.mapping.range_of(piece.index, piece.blocks);
                let fits = part.start == bytes.end && part.end - bytes.start <= MAX_RUN;
                if !run.is_empty() && !fits {
                    let run = std::mem::take(&mut run);
                    issued += self.plan_run(run, &bytes, pass.fua, &ticket, &mut bios);
                }
                if run.is_empty() {
                    bytes = part.start..part.start;
                }
                bytes.end = part.end;
                run.push(piece);
            }
        }
        if !run.is_empty() {
            issued += self.plan_run(run, &bytes, pass.fua, &ticket, &mut bios);
        }
        let last = if here { bios.pop() } else { None };
        self.device().submit_batch(&mut bios);
        if let Some(bio) = last {
            self.device().execute(bio);
        }
        issued
    }

    /// Takes what the pass wants of a folio. `Err`: a sync has to write blocks that were dirtied while
    /// they were in write-out, and these have to be waited for.
    fn capture(&self, index: u64, pass: &WriteOutPass) -> Result<Vec<WritePiece>, Blocks> {
        let Some(folio) = self.cache.lock_folio(&self.mapping, index) else {
            return Ok(Vec::new());
        };
        let blocks = self.mapping.blocks_touched(index, &pass.range);
        let tracking = self.cache.strategies.dirty_tracking();
        match folio.write_conflict(blocks, tracking) {
            Some(blocks) if pass.sync => Err(blocks),
            _ => {
                let mut pieces = folio.begin_write(blocks, tracking);
                self.snapshot(&folio, &mut pieces);
                Ok(pieces)
            }
        }
    }

    /// Reserves room for a run and makes its bios; returns the bytes.
    fn plan_run(
        &self,
        pieces: Vec<WritePiece>,
        bytes: &Range<u64>,
        fua: bool,
        ticket: &Arc<Ticket>,
        bios: &mut Vec<Bio>,
    ) -> u64 {
        let device_block = u64::from(self.device().limits().logical_block);
        // Behind the end of file there is nothing to write, save to fill a device block.
        let eof = round_up(self.size(), device_block);
        let range = bytes.start..bytes.end.min(eof);
        let reservation = match self.ops.reserve(range.clone()) {
            Ok(reservation) => reservation,
            Err(error) => {
                end_write(&self.cache, &self.mapping, &pieces, false, false);
                log::warn!("no room for write-out: {error}");
                self.mapping.errseq.set(error);
                return 0;
            }
        };
        let mut lists = Vec::new();
        for place in &reservation.places {
            self.lend(
                &pieces,
                place.offset..place.offset + place.len,
                place.device_offset,
                &mut lists,
            );
        }
        let end = Arc::new(EndRun {
            cache: self.cache.clone(),
            mapping: self.mapping.clone(),
            ops: self.ops.clone(),
            _ticket: ticket.clone(),
            fua,
            state: Mutex::new(RunState {
                bios_left: lists.len(),
                error: None,
                pieces,
                reservation: Some(reservation),
            }),
        });
        let flags = if fua { BioFlags::FUA | BioFlags::SYNC } else { BioFlags::BACKGROUND };
        bios.extend(lists.into_iter().map(|(at, list)| {
            let (len, end) = (list.bytes() as u64, end.clone());
            let data = DataRef::Mem(Box::new(list));
            let done = Box::new(move |c: forebay_block::Completion| end.end_bio(c.result));
            Bio::new(BioOp::Write, at, len, data, done).with_flags(flags)
        }));
        range.end - range.start
    }

    /// The captured frames of a file range, as lists for bios at `device_offset` and on.
    fn lend(
        &self,
        pieces: &[WritePiece],
        range: Range<u64>,
        device_offset: u64,
        lists: &mut Vec<(u64, FrameList)>,
    ) {
        let limits = self.device().limits();
        let max = MAX_BIO.min(u64::from(limits.max_transfer)) as usize;
        let block = self.mapping.block_size();
        let (mut list, mut list_at, mut at) =
            (FrameList::new(self.cache.arena()), device_offset, device_offset);
        for piece in pieces {
            for b in piece.blocks.start..piece.blocks.end {
                let one = Blocks { start: b, end: b + 1 };
                let bytes = self.mapping.range_of(piece.index, one);
                let part = bytes.start.max(range.start)..bytes.end.min(range.end);
                if part.is_empty() {
                    continue;
                }
                let len = (part.end - part.start) as usize;
                let full = list.bytes() + len > max
                    || list.segment_count() >= limits.max_segments as usize;
                if full && list.bytes() > 0 {
                    let fresh = FrameList::new(self.cache.arena());
                    lists.push((list_at, std::mem::replace(&mut list, fresh)));
                    list_at = at;
                }
                let (frame, offset) = piece.place(b, &self.mapping);
                list.push(frame, offset + (part.start - bytes.start) as usize, len);
                at += len as u64;
                debug_assert!(u64::from(one.len()) * block >= len as u64);
            }
        }
        if list.bytes() > 0 {
            lists.push((list_at, list));
        }
    }
}
