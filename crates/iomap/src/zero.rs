//! Zeroing and trimming: partly covered blocks are written with zeros in the cache, whole ones are
//! dropped from it and zeroed on the device, with the range held exclusively (D4, L7).

use crate::file::{Handle, MappedFile, Source, ZeroFlags};
use crate::writeout::Ticket;
use forebay_base::units::{round_down, round_up};
use forebay_base::{Error, ErrorKind, IoFlags, Result};
use forebay_cache::folio::Blocks;
use forebay_cache::strategy::DirtyTracking;
use forebay_cache::writeback::{WritePiece, untake};
use forebay_cache::{FolioWrite, State};
use std::ops::Range;

impl MappedFile {
    /// The range reads as zeros afterwards. Past the end of file it is `OutOfRange`.
    pub async fn zero(
        &self,
        handle: &Handle,
        offset: u64,
        len: u64,
        flags: ZeroFlags,
    ) -> Result<()> {
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
        let range = offset..end;
        if range.start >= range.end {
            return Ok(());
        }
        if flags.fast_only && !self.ops.can_zero().0 {
            return Err(Error::new(ErrorKind::Unsupported, "zero", "the device cannot zero fast"));
        }
        let block = self.mapping.block_size();
        let start = round_up(range.start, block);
        let end = if range.end == self.size() { range.end } else { round_down(range.end, block) };
        if start >= end {
            return self.write_zeros(handle, range).await;
        }
        self.write_zeros(handle, range.start..start).await?;
        self.write_zeros(handle, end..range.end).await?;
        self.zero_whole(start..end, flags).await
    }

    async fn write_zeros(&self, handle: &Handle, range: Range<u64>) -> Result<()> {
        let zeros = [0u8; 4096];
        let mut at = range.start;
        while at < range.end {
            let len = (range.end - at).min(zeros.len() as u64) as usize;
            self.write(handle, at, Source::Slice(&zeros[..len]), IoFlags::empty()).await?;
            at += len as u64;
        }
        Ok(())
    }

    async fn zero_whole(&self, range: Range<u64>, flags: ZeroFlags) -> Result<()> {
        let _held = self.mapping.exclusive(range.clone()).await;
        let _ticket = Ticket::new(&self.mapping);
        // Dirt is taken so that nobody writes it out meanwhile, and comes back if the device fails.
        let mut taken = Taken { file: self, pieces: Vec::new() };
        self.each_idle(&range, |folio, blocks| {
            taken.pieces.extend(folio.begin_write(blocks, DirtyTracking::Block));
            // What is clean goes now: a write-out of its whole folio would bring it back.
            for clean in folio.runs(blocks, |t, s, g| !t.bits(s, State::Writing, g)) {
                folio.discard(clean);
            }
        })
        .await;
        self.mapping.unflushed.lock().unpinned = true;
        self.ops.zero(range.clone(), flags.keep_allocated, flags.fast_only).await?;
        untake(&self.cache, &self.mapping, &std::mem::take(&mut taken.pieces), false);
        self.each_idle(&range, |folio, blocks| folio.discard(blocks)).await;
        Ok(())
    }

    /// Calls `f` for the blocks of each cached folio of the range, when none of them is being read
    /// or written out.
    async fn each_idle(&self, range: &Range<u64>, mut f: impl FnMut(&FolioWrite<'_>, Blocks)) {
        let mapping = &*self.mapping;
        for index in self.cache.folios_present(mapping, range) {
            let blocks = mapping.blocks_touched(index, range);
            loop {
                let Some(folio) = self.cache.lock_folio(mapping, index) else { break };
                let busy =
                    [State::Reading, State::Writing].into_iter().find(|&s| folio.any(s, blocks));
                let Some(state) = busy else {
                    f(&folio, blocks);
                    break;
                };
                drop(folio);
                self.cache.wait_while(mapping, index, blocks, state).await;
            }
        }
    }
}

/// Dirty blocks taken for a zeroing; dirty again unless it has worked.
struct Taken<'a> {
    file: &'a MappedFile,
    pieces: Vec<WritePiece>,
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        untake(&self.file.cache, &self.file.mapping, &self.pieces, true);
    }
}
