//! Direct writes: past the cache, coherent with it, out of the caller's memory.
//!
//! The range is held exclusively while the write is in flight: dirt under it is written out first,
//! what is cached is dropped, and nothing can be filled from the device's old content meanwhile.

use crate::file::{MappedFile, Source, Target};
use crate::ops::{Class, Place, Reservation, Written, is_bad};
use crate::published::publishable_size;
use crate::writeout::Ticket;
use forebay_base::buf::{AlignedBuf, DataRef, PartedBuf};
use forebay_base::checksum::{crc32c, crc32c_append};
use forebay_base::task::oneshot;
use forebay_base::units::{is_aligned, round_up};
use forebay_base::{Error, ErrorKind, IoFlags, Result};
use forebay_block::{Bio, BioFlags, BioOp, BlockDevice, Completion};
use forebay_cache::State;
use forebay_cache::bounds::{Arriving, Exclusive, Held};
use forebay_cache::stats::Counters;
use forebay_cache::writeback::WriteOutPass;
use forebay_cache::writeback::unflushed::Epoch;
use std::ops::Range;
use std::sync::Arc;

/// Room for a run that is about to be written past the cache.
pub(crate) struct Room {
    kept: Arc<Kept>,
    /// Bytes of a unit of the map and the device.
    unit: u64,
    sums: bool,
}

/// What each bio on its way holds, too, for the task that waits for it may be dropped. Let go in this order.
pub(crate) struct Kept {
    /// O3.
    reservation: Reservation,
    /// E4.
    _held: Arc<Held>,
    /// Its number among the write-outs.
    _ticket: Ticket,
}

impl MappedFile {
    /// Checks the alignment of a direct request, which may end at the end of file. `Ok(true)`: not
    /// aligned, and the caller takes `UNCACHED` instead.
    pub(crate) fn check_direct(
        &self,
        op: &'static str,
        range: &Range<u64>,
        memory: u64,
        size: u64,
        flags: IoFlags,
    ) -> Result<bool> {
        let limits = self.device().limits();
        let unit = u64::from(self.ops.unit().max(limits.logical_block));
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

    /// False, and nothing was written: the end of file has moved, and the request ends within a block
    /// that is not the last any more. The caller takes `UNCACHED` instead.
    pub(crate) async fn write_direct(
        &self,
        range: &Range<u64>,
        src: &mut Source<'_>,
        flags: IoFlags,
        arriving: &mut Option<Arriving<'_>>,
    ) -> Result<bool> {
        let held = self.mapping.bounds.exclusive(range.clone()).await;
        let unit = u64::from(self.ops.unit().max(self.device().limits().logical_block));
        // The size stands while its block is held (E5).
        let size = self.size();
        if range.end > size || (range.end != size && !is_aligned(range.end, unit)) {
            Counters::add(&self.cache.counters.direct_fallbacks, 1);
            return Ok(false);
        }
        // Whole blocks: the exclusive range is (E3).
        self.evict_for_direct(&held.range()).await?;
        let epoch = self.mapping.unflushed.epoch();
        Counters::add(&self.cache.counters.direct_write_bytes, range.end - range.start);
        let durable = flags.intersects(IoFlags::DSYNC | IoFlags::SYNC);
        // In place, FUA is all there is to it; what has moved is found after a commit.
        let bio_flags = if durable { BioFlags::FUA | BioFlags::SYNC } else { BioFlags::SYNC };
        let (held, room) = self.reserve_run(range, held).await;
        let room = room?;
        // From here on its ticket says so.
        drop(arriving.take());
        self.write_reserved(room, range, src, bio_flags, false).await?;
        if !durable {
            self.remember_unpinned(epoch);
        }
        // Who is on his way to a place below may wait for the range.
        drop(held);
        if durable && !self.ops.fua_suffices() {
            self.publish_upto(range.end, src.blocking()).await?;
            // As any flush: if it fails, it fails for all that was written before it.
            self.flush_on(src.blocking()).await?;
        }
        Ok(true)
    }

    /// Bytes that nobody holds were written, or zeroed, since `epoch` was sampled: a flush that fails
    /// from now on, or has failed meanwhile, cannot be made good.
    pub(crate) fn remember_unpinned(&self, epoch: Epoch) {
        if !self.mapping.unflushed.completed(epoch, None, Default::default) {
            self.mapping.poison("a flush failed beside a write that is not held any more");
        }
    }

    /// Room for a range that is held exclusively: from then on the bios hold it, too. May wait for others to
    /// make some, who may need private memory for that: not for a caller that has a permit.
    pub(crate) async fn reserve_run(
        &self,
        range: &Range<u64>,
        held: Exclusive<'_>,
    ) -> (Arc<Held>, Result<Room>) {
        let held = Arc::new(held.keep(&self.mapping));
        let limits = self.ops.limits();
        let unit = u64::from(limits.unit.max(self.device().limits().logical_block));
        let ticket = Ticket::new(&self.mapping, range.clone());
        let whole = range.start..round_up(range.end, unit);
        let room = match self.ops.reserve(std::slice::from_ref(&whole), Class::Direct).await {
            Ok(reservation) => {
                let kept = Kept { reservation, _held: held.clone(), _ticket: ticket };
                Ok(Room { kept: Arc::new(kept), unit, sums: limits.sums })
            }
            Err(error) => Err(error),
        };
        (held, room)
    }

    /// Writes a range that is held exclusively to its room, and publishes it. `covered`: the caller has a
    /// permit for copies of it.
    pub(crate) async fn write_reserved(
        &self,
        room: Room,
        range: &Range<u64>,
        src: &mut Source<'_>,
        flags: BioFlags,
        covered: bool,
    ) -> Result<()> {
        let Room { kept, unit, sums: summed } = room;
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
        let written: Vec<Written> = kept.reservation.places().iter().map(written).collect();
        let mut failed = Vec::new();
        let done = self.write_places(&kept, range, src, (flags, covered), &mut failed).await;
        failed.iter().for_each(|place| self.ops.write_failed(place));
        done?;
        let _uncut = self.mapping.bounds.uncut();
        let size = publishable_size(&self.cache, &self.mapping, &*self.ops);
        self.ops.publish(&kept.reservation, &written, size);
        Ok(())
    }

    /// Writes dirt out and drops what is cached of the range, which is held exclusively.
    pub(crate) async fn evict_for_direct(&self, range: &Range<u64>) -> Result<()> {
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
                let pass = WriteOutPass::for_sync(bytes);
                self.write_out_pass(&pass).await;
                mapping.wait_write_outs().await;
                if mapping.failed_in(&mapping.block_numbers(index, blocks)) {
                    let text = "dirty data under the range cannot be written out";
                    return Err(Error::new(ErrorKind::Io, "write directly", text));
                }
            }
        }
        Ok(())
    }

    /// Writes all places at once, each as one bio or as few as the device takes. `failed`: which of these
    /// did, is added there.
    async fn write_places(
        &self,
        kept: &Arc<Kept>,
        range: &Range<u64>,
        src: &mut Source<'_>,
        (flags, covered): (BioFlags, bool),
        failed: &mut Vec<Place>,
    ) -> Result<()> {
        let device = self.device();
        let tail = self.ops.unit().max(device.limits().logical_block) as usize;
        let longest = u64::from(device.limits().max_transfer);
        let pieces = kept.reservation.places().iter().flat_map(|place| {
            (0..place.len).step_by(longest as usize).map(move |skip| Place {
                offset: place.offset + skip,
                len: longest.min(place.len - skip),
                device_offset: place.device_offset + skip,
            })
        });
        let pieces: Vec<Place> = pieces.collect();
        let len = src.bytes().len();
        let aligned = len.is_multiple_of(tail);
        if let Source::Slice(bytes) = src
            && aligned
            && let [piece] = &pieces[..]
        {
            let done = device.write_from(piece.device_offset, bytes, flags);
            failed.extend(is_bad(&done).then(|| piece.clone()));
            return done;
        }
        if let Source::Owned(buf) = src
            && aligned
            && let [piece] = &pieces[..]
        {
            let data = DataRef::Buf(std::mem::replace(*buf, AlignedBuf::new(0)));
            let done = write_piece(&**device, data, kept, piece, flags).await;
            if let Some(back) = done.data.into_buf() {
                **buf = back;
            }
            failed.extend(is_bad(&done.result).then(|| piece.clone()));
            return done.result;
        }
        let copied = !aligned || matches!(src, Source::Slice(_));
        let _permit = match copied && !covered {
            true => Some(self.cache.private(len.next_multiple_of(tail) as u64).await),
            false => None,
        };
        let whole = match src {
            Source::Owned(buf) if aligned => std::mem::replace(*buf, AlignedBuf::new(0)),
            _ => {
                // The last block of a file that ends within it is padded with zeros.
                let mut padded = AlignedBuf::new(len.next_multiple_of(tail));
                padded[..len].copy_from_slice(src.bytes());
                padded
            }
        };
        let parted = PartedBuf::new(whole);
        let to = (&pieces[..], range.start);
        let result = write_parts(&**device, &parted, kept, to, flags, failed).await;
        if let Source::Owned(buf) = src
            && !copied
            && let Some(back) = parted.into_buf()
        {
            **buf = back;
        }
        result
    }
}

/// Writes one piece, of which the bio holds what its writer has.
async fn write_piece(
    device: &dyn BlockDevice,
    data: DataRef,
    kept: &Arc<Kept>,
    piece: &Place,
    flags: BioFlags,
) -> Completion {
    if device.is_crowded() {
        device.room().await;
    }
    let ((tx, rx), holder) = (oneshot(), kept.clone());
    let end = Box::new(move |done| {
        drop(holder);
        tx.send(done);
    });
    let bio = Bio::new(BioOp::Write, piece.device_offset, piece.len, data, end);
    device.submit(bio.with_flags(flags));
    rx.await.unwrap_or_else(|| Completion { data: DataRef::None, result: Err(gone()) })
}

fn gone() -> Error {
    Error::new(ErrorKind::Shutdown, "write directly", "the device went away")
}

/// Writes parts of a buffer, whose first byte belongs at `base`, all at once, and waits for all. `failed`:
/// those that did are added there.
async fn write_parts(
    device: &dyn BlockDevice,
    buf: &PartedBuf,
    kept: &Arc<Kept>,
    (pieces, base): (&[Place], u64),
    flags: BioFlags,
    failed: &mut Vec<Place>,
) -> Result<()> {
    if device.is_crowded() {
        device.room().await;
    }
    let (mut bios, mut waiting) = (Vec::new(), Vec::new());
    for piece in pieces {
        let (tx, rx) = oneshot();
        let data = buf.part((piece.offset - base) as usize, piece.len as usize);
        // The part goes before whoever waits learns that it is over.
        let holder = kept.clone();
        let end = Box::new(move |Completion { data, result }| {
            drop((data, holder));
            tx.send(result);
        });
        let bio = Bio::new(BioOp::Write, piece.device_offset, piece.len, data, end);
        bios.push(bio.with_flags(flags));
        waiting.push((piece, rx));
    }
    device.submit_batch(&mut bios);
    let mut result = Ok(());
    for (piece, rx) in waiting {
        let done = rx.await.unwrap_or_else(|| Err(gone()));
        failed.extend(is_bad(&done).then(|| piece.clone()));
        result = result.and(done);
    }
    result
}

/// The sum of a unit of which `bytes` are given and the rest is zeros.
fn padded_sum(bytes: &[u8], unit: usize) -> u32 {
    const ZEROS: [u8; 4096] = [0; 4096];
    crc32c_append(crc32c(bytes), &ZEROS[..unit - bytes.len()])
}
