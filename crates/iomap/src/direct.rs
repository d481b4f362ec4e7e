//! Direct writes: past the cache, coherent with it, out of the caller's memory where the device can
//! borrow that.
//!
//! The range is held exclusively while the write is in flight. Dirty blocks in it are written out
//! first and cached ones dropped, and no fill can read the device's old content meanwhile.

use crate::file::{MappedFile, Source, Target};
use crate::inflight::InFlight;
use crate::ops::publishable_size;
use crate::ops::{Class, Place, Written};
use crate::resize::Growth;
use forebay_base::buf::{AlignedBuf, DataRef, PartedBuf};
use forebay_base::checksum::{crc32c, crc32c_append};
use forebay_base::units::{is_aligned, round_up};
use forebay_base::{Error, ErrorKind, IoFlags, Result};
use forebay_block::{Bio, BioFlags, BioOp, BlockDevice, Completion, io_with_end};
use forebay_cache::State;
use forebay_cache::bounds::{Exclusive, HoldsBlocks};
use forebay_cache::stats::Counters;
use forebay_cache::writeback::WriteOutPass;
use std::ops::Range;
use std::sync::Arc;

/// A run that is about to be written past the cache, with its places.
struct Run {
    pub flight: InFlight,
    /// Bytes: the larger of the map's unit and the device's logical block.
    unit: u64,
    sums: bool,
}

impl MappedFile {
    /// Checks the alignment of a direct request, which may end at the end of file. `Ok(true)`: not
    /// aligned, but `FALLBACK` is set: the caller uses `UNCACHED` instead.
    pub(crate) fn check_direct(
        &self,
        op: &'static str,
        range: &Range<u64>,
        memory: u64,
        size: u64,
        flags: IoFlags,
    ) -> Result<bool> {
        let limits = self.device().limits();
        let unit = u64::from(self.ops.info().unit.max(limits.logical_block));
        let end_ok = is_aligned(range.end, unit) || range.end == size;
        let align = u64::from(limits.memory_align);
        let why = if !is_aligned(range.start, unit) || !end_ok {
            format!("offset and length must be multiples of {unit}")
        } else if !is_aligned(memory, align) {
            format!("the buffer must be aligned to {align} bytes in memory")
        } else {
            return Ok(false);
        };
        if flags.contains(IoFlags::FALLBACK) {
            Counters::add(&self.cache.counters.direct_fallbacks, 1);
            return Ok(true);
        }
        let error = Error::new(ErrorKind::Unaligned, op, why);
        Err(error.with_range(range.start, range.end - range.start))
    }

    pub(crate) fn direct_fallback(
        &self,
        asked: &Range<u64>,
        dst: &mut Target<'_>,
        flags: IoFlags,
    ) -> Result<bool> {
        let memory = dst.bytes().as_ptr() as u64;
        self.check_direct("read directly", asked, memory, self.size(), flags)
    }

    pub(crate) fn direct_write_fallback(
        &self,
        range: &Range<u64>,
        size: u64,
        src: &Source<'_>,
        flags: IoFlags,
    ) -> Result<bool> {
        let memory = src.bytes().as_ptr() as u64;
        self.check_direct("write directly", range, memory, size, flags)
    }

    /// Returns false, and writes nothing, if the end of file has moved and the request now ends
    /// behind it, or within a block that is not the last any more. The caller uses `UNCACHED`
    /// instead.
    pub(crate) async fn write_direct(
        &self,
        range: &Range<u64>,
        src: &mut Source<'_>,
        flags: IoFlags,
        growth: &mut Option<Growth<'_>>,
    ) -> Result<bool> {
        let held = self.mapping.bounds.exclusive(range.clone()).await;
        let unit = u64::from(self.ops.info().unit.max(self.device().limits().logical_block));
        // The size does not move while its block is held (bounds.E5).
        let size = self.end();
        if range.end > size || (range.end != size && !is_aligned(range.end, unit)) {
            Counters::add(&self.cache.counters.direct_fallbacks, 1);
            return Ok(false);
        }
        // `held` has complete blocks (bounds.E3), so it may be larger than `range`.
        self.evict_for_direct(&held.range()).await?;
        Counters::add(&self.cache.counters.direct_write_bytes, range.end - range.start);
        let durable = flags.intersects(IoFlags::DSYNC | IoFlags::SYNC);
        // FUA makes a write in place durable. A block that moved is found only after a commit.
        let bio_flags = if durable { BioFlags::FUA | BioFlags::SYNC } else { BioFlags::SYNC };
        let run = self.reserve_run(range, held).await?;
        let flight = self.write_reserved(run, range, src, bio_flags).await?;
        if durable {
            flight.durable();
        }
        // Releases the range: `publish_upto` writes out blocks, and may wait for ranges.
        drop(flight);
        if let Some(growth) = growth.take() {
            growth.done();
        }
        if durable && !self.ops.info().fua_suffices {
            self.publish_upto(range.end, src.blocking()).await?;
            // If this flush fails, all unflushed writes of the file may be lost, as after any
            // failed flush.
            self.flush_on(src.blocking()).await?;
        }
        Ok(true)
    }

    /// Reserves space for a range that is held exclusively. May wait for other tasks to make space,
    /// which may need private memory for that: the caller must hold no permit.
    async fn reserve_run(&self, range: &Range<u64>, held: Exclusive<'_>) -> Result<Run> {
        let mut flight = InFlight::new(self, held, range.clone());
        let info = self.ops.info();
        let unit = u64::from(info.unit.max(self.device().limits().logical_block));
        let whole = range.start..round_up(range.end, unit);
        let places =
            self.ops.reserve(std::slice::from_ref(&whole), Class::Direct, &mut Vec::new()).await?;
        flight.reservation = Some(places);
        Ok(Run { flight, unit, sums: info.sums })
    }

    /// Writes a run to its places, and publishes it. Returns the resources of the operation, which
    /// are released when the caller and all bios have dropped them.
    async fn write_reserved(
        &self,
        run: Run,
        range: &Range<u64>,
        src: &mut Source<'_>,
        flags: BioFlags,
    ) -> Result<Arc<InFlight>> {
        let Run { mut flight, unit, sums: summed } = run;
        let sequence = self.ops.sequence();
        let sums = |place: &Place| {
            let from = (place.offset - range.start) as usize;
            let bytes = &src.bytes()[from..(from + place.len as usize).min(src.bytes().len())];
            bytes.chunks(unit as usize).map(|bytes| padded_sum(bytes, unit as usize)).collect()
        };
        let written = |place: &Place| Written {
            place: place.clone(),
            sequence,
            sums: if summed { sums(place) } else { Vec::new() },
        };
        let written: Vec<Written> = flight.places().iter().map(written).collect();
        let pieces = self.pieces_of(&flight);
        let (len, tail) = (src.bytes().len(), unit as usize);
        let is_copied = match &*src {
            Source::Owned(_) => !len.is_multiple_of(tail),
            Source::Slice(_) => pieces.len() > 1 || !len.is_multiple_of(tail),
        };
        if is_copied {
            let permit = self.cache.private(len.next_multiple_of(tail) as u64).await;
            flight.permit = Some(permit.keep(&self.cache));
        }
        let flight = flight.share();
        self.write_places(&flight, (&pieces, range.start), src, tail, flags).await?;
        let _uncut = self.mapping.bounds.uncut();
        let size = publishable_size(&self.cache, &self.mapping, &*self.ops, None);
        if let Some(reservation) = &flight.reservation {
            self.ops.publish(reservation, &written, size);
        }
        flight.done();
        Ok(flight)
    }

    /// The places of a run, in pieces that the device takes.
    fn pieces_of(&self, flight: &InFlight) -> Vec<Place> {
        let longest = u64::from(self.device().limits().max_transfer);
        let cut = |place: &Place| {
            let place = place.clone();
            (0..place.len).step_by(longest as usize).map(move |skip| Place {
                offset: place.offset + skip,
                len: longest.min(place.len - skip),
                device_offset: place.device_offset + skip,
            })
        };
        flight.places().iter().flat_map(cut).collect()
    }

    /// Writes dirty blocks of the range out and drops cached ones; the caller holds the range
    /// exclusively.
    async fn evict_for_direct(&self, range: &Range<u64>) -> Result<()> {
        let mapping = &*self.mapping;
        for index in self.cache.folios_present(mapping, range) {
            let blocks = mapping.blocks_touched(index, range);
            while let Some(folio) = self.lock_idle(index, blocks).await {
                if !folio.any(State::Dirty, blocks) {
                    folio.discard(blocks);
                    break;
                }
                drop(folio);
                let bytes = mapping.range_of(index, blocks);
                let (pass, entered) = (WriteOutPass::for_sync(bytes), mapping.errseq.now());
                self.write_out_pass(&pass).await;
                mapping.wait_write_outs().await;
                if mapping.failed_in(&mapping.block_numbers(index, blocks)) {
                    let text = "dirty data under the range cannot be written out";
                    return Err(Error::new(self.failure_since(entered), "write directly", text));
                }
            }
        }
        Ok(())
    }

    /// Writes all pieces at once, each as one bio. The last piece is padded with zeros to a
    /// multiple of `tail`, if the file ends within it. The first byte of `src` belongs at `base`.
    async fn write_places(
        &self,
        flight: &Arc<InFlight>,
        (pieces, base): (&[Place], u64),
        src: &mut Source<'_>,
        tail: usize,
        flags: BioFlags,
    ) -> Result<()> {
        let device = self.device();
        let len = src.bytes().len();
        let aligned = len.is_multiple_of(tail);
        if let Source::Slice(bytes) = src
            && aligned
            && let [piece] = pieces
        {
            let done = device.write_from(piece.device_offset, bytes, flags);
            flight.wrote(piece, &done);
            return done;
        }
        if let Source::Owned(buf) = src
            && aligned
            && let [piece] = pieces
        {
            let data = DataRef::Buf(std::mem::replace(*buf, AlignedBuf::new(0)));
            // The bio keeps the operation's resources until it ends.
            let (flight, place) = (flight.clone(), piece.clone());
            let on_end = move |done: &Completion| flight.wrote(&place, &done.result);
            let (op, offset, len) = (BioOp::Write, piece.device_offset, piece.len);
            let done = io_with_end(&**device, op, offset, len, data, flags, on_end).await;
            if let Some(back) = done.data.into_buf() {
                **buf = back;
            }
            return done.result;
        }
        let is_borrowed = aligned && !src.blocking();
        let whole = match src {
            Source::Owned(buf) if is_borrowed => std::mem::replace(*buf, AlignedBuf::new(0)),
            _ => {
                // The last block of a file that ends within it is padded with zeros.
                let mut padded = AlignedBuf::new(len.next_multiple_of(tail));
                padded[..len].copy_from_slice(src.bytes());
                padded
            }
        };
        let parted = PartedBuf::new(whole);
        let result = write_parts(&**device, &parted, flight, (pieces, base), flags).await;
        if let Source::Owned(buf) = src
            && is_borrowed
            && let Some(back) = parted.into_buf()
        {
            **buf = back;
        }
        result
    }
}

/// Writes parts of a buffer, whose first byte belongs at `base`, all at once, and waits for all.
async fn write_parts(
    device: &dyn BlockDevice,
    buf: &PartedBuf,
    flight: &Arc<InFlight>,
    (pieces, base): (&[Place], u64),
    flags: BioFlags,
) -> Result<()> {
    if device.is_crowded() {
        device.wait_for_capacity().await;
    }
    let (mut bios, mut waiting) = (Vec::new(), Vec::new());
    for piece in pieces {
        let data = buf.part((piece.offset - base) as usize, piece.len as usize);
        let (flight, place) = (flight.clone(), piece.clone());
        // Drops the part before the waiting task is woken: that task can take the buffer back only
        // when no part is left.
        let on_end = move |Completion { data, result }| {
            flight.wrote(&place, &result);
            drop((data, flight));
            Completion { data: DataRef::None, result }
        };
        let (offset, len) = (piece.device_offset, piece.len);
        let (bio, completion) = Bio::awaited(BioOp::Write, offset, len, data, on_end);
        bios.push(bio.with_flags(flags));
        waiting.push(completion);
    }
    device.submit_batch(&mut bios);
    let mut result = Ok(());
    for completion in waiting {
        result = result.and(completion.await.result);
    }
    result
}

/// The sum of a unit of which `bytes` are given and the rest is zeros.
fn padded_sum(bytes: &[u8], unit: usize) -> u32 {
    const ZEROS: [u8; 4096] = [0; 4096];
    crc32c_append(crc32c(bytes), &ZEROS[..unit - bytes.len()])
}
