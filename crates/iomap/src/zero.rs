//! Zeroing and trimming: partly covered blocks are written with zeros in the cache, whole ones are
//! dropped from it and zeroed on the device, with the range held exclusively (lineage.D4,
//! lineage.L7).

use crate::file::{MappedFile, Source, ZeroFlags};
use crate::inflight::InFlight;
use crate::ops::Change;
use crate::passing::Passing;
use crate::write::Beyond;
use forebay_base::units::{is_aligned, round_down, round_up};
use forebay_base::{Error, ErrorKind, Result};
use forebay_cache::State;
use std::ops::Range;

impl MappedFile {
    /// The range reads as zeros afterwards. A range that ends behind the file is `OutOfRange`.
    pub async fn zero(&self, offset: u64, len: u64, flags: ZeroFlags) -> Result<()> {
        let end = offset.checked_add(len).filter(|&end| end < 1 << 63);
        let Some(end) = end else {
            let error = Error::new(ErrorKind::OutOfRange, "zero", "the range overflows");
            return Err(error.with_range(offset, len));
        };
        if self.read_only() {
            return Err(Error::new(ErrorKind::ReadOnly, "zero", "opened for reading only"));
        }
        if end > self.size() {
            let text = format!("the object ends at {}", self.size());
            return Err(Error::new(ErrorKind::OutOfRange, "zero", text).with_range(offset, len));
        }
        if flags.fast_only && !self.ops.info().zeroes_fast {
            return Err(Error::new(ErrorKind::Unsupported, "zero", "the device cannot zero fast"));
        }
        let block = self.mapping.block_size();
        loop {
            // The size may move after this. `zero_whole` reads it again while it cannot move, and
            // returns false if the range does not end with the file any more: then all begins anew.
            let size = self.end();
            let range = offset..end.min(size).max(offset);
            if range.is_empty() {
                return Ok(());
            }
            let first = round_up(range.start, block);
            let last = if range.end == size { range.end } else { round_down(range.end, block) };
            if first >= last {
                if self.write_zeros(range).await? {
                    return Ok(());
                }
            } else if self.write_zeros(range.start..first).await?
                && self.write_zeros(last..range.end).await?
                && self.zero_whole(first..last, flags).await?
            {
                return Ok(());
            }
        }
    }

    /// Writes zeros into part of a block, in the cache. False: the file was truncated meanwhile.
    async fn write_zeros(&self, range: Range<u64>) -> Result<bool> {
        let zeros = [0u8; 4096];
        let mut at = range.start;
        while at < range.end {
            let end = range.end.min(at + zeros.len() as u64);
            let src = Source::Slice(&zeros[..(end - at) as usize]);
            if !self.write_buffered(&(at..end), at, &src, Passing::Cached, Beyond::Stop).await? {
                return Ok(false);
            }
            at = end;
        }
        Ok(true)
    }

    /// Zeroes whole blocks on the device. Returns false, and zeroes nothing, if the range ends
    /// behind the file, or within a block that is not the last any more.
    async fn zero_whole(&self, range: Range<u64>, flags: ZeroFlags) -> Result<bool> {
        let mapping = &*self.mapping;
        let held = mapping.bounds.exclusive(range.clone()).await;
        // The size does not move while its block is held (bounds.E5).
        let size = self.end();
        if range.end > size || (range.end != size && !is_aligned(range.end, mapping.block_size())) {
            return Ok(false);
        }
        let mut flight = InFlight::new(self, held, range.clone());
        // Dirty blocks are taken so that no pass writes them out meanwhile; they are dirty again if
        // the device fails.
        self.each_idle(&range, |folio, blocks| {
            flight.replaced.take(folio, blocks);
            // Clean blocks are dropped first: a write-out of their whole folio would write them to
            // the device again.
            for clean in folio.runs(blocks, |t, s, g| !t.bits(s, State::Writing, g)) {
                folio.discard(clean);
            }
        })
        .await;
        let flight = flight.share();
        let (keep_allocated, fast_only) = (flags.keep_allocated, flags.fast_only);
        let owned = flight.owned();
        self.ops.change(Change::Zero { range, keep_allocated, fast_only, owned }).await?;
        flight.done();
        Ok(true)
    }
}
