//! Reads of cached blocks, which never wait for I/O or for another task's operation.

use crate::file::{Handle, MappedFile};
use forebay_base::units::is_aligned;
use forebay_base::{Error, ErrorKind, IoFlags, Result};
use forebay_cache::State;

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
        let cuts = self.mapping.bounds.cuts();
        let range = match self.check_read(offset, dst.len(), flags) {
            Ok(range) => range,
            Err(error) => return Some(Err(error)),
        };
        let bypass = flags.intersects(IoFlags::UNCACHED | IoFlags::DIRECT | IoFlags::HELD_ABOVE);
        if flags.contains(IoFlags::DIRECT) {
            return None;
        }
        // A stream whose window is to be topped up, and a read of more than a folio that is only
        // partly cached, take the slow path before a block is touched: one read is one touch.
        if !bypass && handle.streams.hit(offset, range.end) {
            return None;
        }
        let mapping = &*self.mapping;
        if range.end - range.start > mapping.folio_size() && !self.all_cached(&range) {
            return None;
        }
        let start = range.start;
        let mut blocks_hit = 0;
        for (index, part) in self.pieces(range.clone()) {
            let at = (part.start - mapping.folio_start(index)) as usize;
            let folio = self.cache.lookup(mapping, index, at)?;
            let blocks = mapping.blocks_touched(index, &part);
            // An ordinary read makes such blocks stay, which takes the lock.
            let is_passing = folio.any_uncached(blocks) || !bypass && folio.any_held_above(blocks);
            if !folio.uptodate(blocks) || is_passing {
                return None;
            }
            let into = &mut dst[(part.start - start) as usize..(part.end - start) as usize];
            if !folio.copy_out(at, into) {
                return None;
            }
            if !bypass {
                let same = !is_aligned(part.start, mapping.block_size());
                folio.touch(blocks, same);
            }
            blocks_hit += u64::from(blocks.len());
        }
        if mapping.bounds.cuts() != cuts {
            // A truncate ran meanwhile: the bytes may be zeros that lie below a newer end.
            return None;
        }
        self.cache.hits.add(blocks_hit);
        if flags.contains(IoFlags::HELD_ABOVE) {
            self.drop_unreferenced(&range);
        }
        Some(Ok((range.end - start) as usize))
    }

    pub(crate) fn read_nowait(
        &self,
        handle: &Handle,
        offset: u64,
        dst: &mut [u8],
        flags: IoFlags,
    ) -> Result<usize> {
        let block = || Err(Error::new(ErrorKind::WouldBlock, "read", "not all of it is cached"));
        // Once more, because the first try may have asked for readahead only.
        let first = self.try_read(handle, offset, dst, flags);
        let done = first.or_else(|| self.try_read(handle, offset, dst, flags));
        done.or_else(|| self.read_uncached_now(offset, dst, flags)).unwrap_or_else(block)
    }

    /// Serves a range that is all there, some of it brought in by uncached requests.
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
            let folio = self.cache.lock_folio(mapping, index)?;
            let blocks = mapping.blocks_touched(index, &piece);
            if !folio.all(State::Uptodate, blocks) {
                return None;
            }
            let into = (piece.start - range.start) as usize..(piece.end - range.start) as usize;
            folio.copy_out((piece.start - mapping.folio_start(index)) as usize, &mut dst[into]);
            if !flags.intersects(IoFlags::UNCACHED | IoFlags::DIRECT | IoFlags::HELD_ABOVE) {
                folio.keep(blocks);
                folio.touch(blocks, !is_aligned(piece.start, mapping.block_size()));
            }
        }
        (mapping.bounds.cuts() == cuts).then_some(Ok((range.end - range.start) as usize))
    }
}
