//! Reads of cached blocks, which never wait for I/O or for another task's operation.

use crate::file::{Handle, MappedFile};
use crate::passing::Passing;
use forebay_base::units::is_aligned;
use forebay_base::{Error, ErrorKind, IoFlags, Result};
use forebay_cache::folio::{Blocks, fault_in_for_writing};
use forebay_cache::{FolioRead, State};
use std::ops::Range;

impl MappedFile {
    /// Reads if it needs no waiting, and no readahead is due: otherwise `None`, and `dst` may hold
    /// anything. Returns the bytes read, fewer than asked only at the end of file.
    #[inline]
    pub fn try_read(
        &self,
        handle: &Handle,
        offset: u64,
        dst: &mut [u8],
        flags: IoFlags,
    ) -> Option<Result<usize>> {
        let mapping = &*self.mapping;
        let cuts = mapping.bounds.cuts();
        let range = match self.check_read(offset, dst.len(), flags) {
            Ok(range) => range,
            Err(error) => return Some(Err(error)),
        };
        if flags.contains(IoFlags::DIRECT) {
            return None;
        }
        let is_touch = !flags.intersects(IoFlags::UNCACHED | IoFlags::HELD_ABOVE);
        // A stream whose window is to be topped up takes the slow path before a block is touched:
        // one read is one touch.
        if is_touch && handle.streams.hit(offset, range.end) {
            return None;
        }
        let len = range.end - range.start;
        let index = mapping.folio_index(range.start);
        let at = range.start - mapping.folio_start(index);
        let blocks_hit = if len == 0 {
            0
        } else if at + len <= mapping.folio_size() {
            self.copy_cached(index, at, &mut dst[..len as usize], is_touch)?
        } else {
            self.copy_cached_folios(range.clone(), dst, is_touch)?
        };
        if mapping.bounds.cuts() != cuts {
            // A truncate ran meanwhile: the bytes may be zeros that lie below a newer end.
            return None;
        }
        self.cache.hits.add(blocks_hit);
        if flags.contains(IoFlags::HELD_ABOVE) {
            self.drop_unreferenced(range);
        }
        Some(Ok(len as usize))
    }

    /// Copies bytes out of one folio, from `at` bytes into it on, if all their blocks are cached.
    /// Returns the number of these blocks.
    #[inline]
    fn copy_cached(&self, index: u64, at: u64, dst: &mut [u8], is_touch: bool) -> Option<u64> {
        let mapping = &*self.mapping;
        let folio = self.cache.lookup(mapping, index, at as usize)?;
        let blocks = mapping.blocks_within(at, dst.len() as u64);
        if !folio.is_hit(blocks) || !folio.copy_out(dst) {
            return None;
        }
        if is_touch {
            folio.touch(blocks, !is_aligned(at, mapping.block_size()));
        }
        Some(u64::from(blocks.len()))
    }

    /// As `copy_cached`, without touching the blocks. Returns the folio and the blocks. It shares
    /// no code with `copy_cached`, because that would cost the hit path two instructions.
    fn copy_untouched(
        &self,
        index: u64,
        at: u64,
        dst: &mut [u8],
    ) -> Option<(FolioRead<'_>, Blocks)> {
        let mapping = &*self.mapping;
        let folio = self.cache.lookup(mapping, index, at as usize)?;
        let blocks = mapping.blocks_within(at, dst.len() as u64);
        (folio.is_hit(blocks) && folio.copy_out(dst)).then_some((folio, blocks))
    }

    /// As `copy_cached`, for a range of several folios. A range that is only partly cached touches
    /// nothing, because the slow path reads all of it: one read is one touch. (Unless a block is
    /// evicted between the look and the copy.)
    #[inline(never)]
    fn copy_cached_folios(&self, range: Range<u64>, dst: &mut [u8], is_touch: bool) -> Option<u64> {
        let (mapping, start) = (&*self.mapping, range.start);
        if range.end - start > mapping.folio_size() && !self.all_hit(&range) {
            return None;
        }
        // Touches each folio only when the next one was copied: a range that skipped the check
        // above has at most two folios, so a miss in the second touches neither.
        let (mut blocks_hit, mut before) = (0, None::<(FolioRead<'_>, Blocks, bool)>);
        let touch = |copied: Option<(FolioRead<'_>, Blocks, bool)>| {
            if let Some((folio, blocks, is_same)) = copied.filter(|_| is_touch) {
                folio.touch(blocks, is_same);
            }
        };
        for (index, part) in self.pieces(range) {
            let at = part.start - mapping.folio_start(index);
            let into = (part.start - start) as usize..(part.end - start) as usize;
            let (folio, blocks) = self.copy_untouched(index, at, &mut dst[into])?;
            blocks_hit += u64::from(blocks.len());
            touch(before.replace((folio, blocks, !is_aligned(at, mapping.block_size()))));
        }
        touch(before);
        Some(blocks_hit)
    }

    pub(crate) fn read_nowait(
        &self,
        handle: &Handle,
        offset: u64,
        dst: &mut [u8],
        flags: IoFlags,
    ) -> Result<usize> {
        let block = || Err(Error::new(ErrorKind::WouldBlock, "read", "not all of it is cached"));
        // Tries twice, because the first try may have failed only because readahead was due.
        let first = self.try_read(handle, offset, dst, flags);
        let done = first.or_else(|| self.try_read(handle, offset, dst, flags));
        done.or_else(|| self.read_uncached_now(offset, dst, flags)).unwrap_or_else(block)
    }

    /// Serves a range that is fully cached, in part by blocks that uncached requests brought in.
    fn read_uncached_now(
        &self,
        offset: u64,
        dst: &mut [u8],
        flags: IoFlags,
    ) -> Option<Result<usize>> {
        let mapping = &*self.mapping;
        let cuts = mapping.bounds.cuts();
        let range = self.check_read(offset, dst.len(), flags).ok()?;
        for (index, piece) in self.pieces(range.clone()) {
            let into = (piece.start - range.start) as usize..(piece.end - range.start) as usize;
            // Before the folio is locked: a page fault may wait long.
            fault_in_for_writing(&mut dst[into.clone()]);
            let folio = self.cache.lock_folio(mapping, index)?;
            let blocks = mapping.blocks_touched(index, &piece);
            if !folio.all(State::Uptodate, blocks) {
                return None;
            }
            folio.copy_out((piece.start - mapping.folio_start(index)) as usize, &mut dst[into]);
        }
        if !flags.intersects(IoFlags::UNCACHED | IoFlags::DIRECT | IoFlags::HELD_ABOVE) {
            self.touch_read(&range);
        }
        (mapping.bounds.cuts() == cuts).then_some(Ok((range.end - range.start) as usize))
    }

    /// Touches and keeps what a read has copied. It does so after the last folio, because a read
    /// that is not served touches nothing.
    fn touch_read(&self, range: &Range<u64>) {
        let mapping = &*self.mapping;
        for (index, piece) in self.pieces(range.clone()) {
            let blocks = mapping.blocks_touched(index, &piece);
            let folio = self.cache.lock_folio(mapping, index);
            if let Some(folio) = folio.filter(|folio| folio.all(State::Uptodate, blocks)) {
                let is_same = !is_aligned(piece.start, mapping.block_size());
                Passing::Cached.read(&folio, blocks, is_same);
            }
        }
    }
}
