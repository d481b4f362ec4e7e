//! Reads and writes of several buffers in one request.

use super::File;
use super::Kind;
use forebay_base::buf::AlignedBuf;
use forebay_base::{Error, ErrorKind, IoFlags, Result};
use std::io::{IoSlice, IoSliceMut};

/// A write of several buffers is split into steps of this many bytes at most, each gathered into
/// one buffer.
const GATHERED_BYTES: usize = 1 << 20;

impl File {
    /// Reads at `offset` into the buffers in turn, as preadv2(2). Returns the bytes read. `flags`
    /// and errors: as for [`File::read_at_with`]; an error after the first bytes ends the read
    /// early instead.
    pub fn read_vectored_at(
        &self,
        bufs: &mut [IoSliceMut<'_>],
        offset: u64,
        flags: IoFlags,
    ) -> Result<usize> {
        let mut done = 0;
        for buf in bufs.iter_mut().filter(|buf| !buf.is_empty()) {
            match self.read_at_with(buf, offset.saturating_add(done as u64), flags) {
                Ok(read) => {
                    done += read;
                    if read < buf.len() {
                        break;
                    }
                }
                Err(_) if done > 0 => break,
                Err(error) => return Err(error),
            }
        }
        Ok(done)
    }

    /// Writes the buffers in turn at `offset`, as pwritev2(2). Returns the bytes written. `flags`
    /// and errors: as for [`File::write_at_with`]; an error after the first bytes ends the write
    /// early instead. Up to 1 MiB, and an append of any length, is one request to other readers
    /// and writers. `NoMemory` for an append of several buffers that are longer than the budget of
    /// the cache: they are gathered in one.
    pub fn write_vectored_at(
        &self,
        bufs: &[IoSlice<'_>],
        offset: u64,
        flags: IoFlags,
    ) -> Result<usize> {
        let mut full = bufs.iter().filter(|buf| !buf.is_empty());
        let (first, second) = (full.next(), full.next());
        if second.is_none() {
            return self.write_at_with(first.map_or(&[], |buf| &**buf), offset, flags);
        }
        self.check_writable("write")?;
        let whole: usize = bufs.iter().map(|buf| buf.len()).sum();
        let appends = (flags | self.opener.write_flags).contains(IoFlags::APPEND);
        let step = if appends { whole } else { whole.min(GATHERED_BYTES) };
        let mut done = 0;
        while done < whole {
            let piece = self.memory_for(step.min(whole - done)).map(|to| gathered(bufs, done, to));
            let piece = match piece {
                Err(_) if done > 0 => break,
                piece => piece?,
            };
            match self.write_at_with(&piece, offset.saturating_add(done as u64), flags) {
                Ok(wrote) => {
                    done += wrote;
                    if wrote < piece.len() {
                        break;
                    }
                }
                Err(_) if done > 0 => break,
                Err(error) => return Err(error),
            }
        }
        Ok(done)
    }

    /// Memory for `len` bytes of the caller, at most as much as the budget of the cache.
    fn memory_for(&self, len: usize) -> Result<AlignedBuf> {
        let cache = match &self.opener.kind {
            Kind::Raw(raw) => &raw.cache,
            Kind::Volume(inside) => inside.volume.cache(),
        };
        let budget = cache.shared.pages.budget_bytes();
        let buf = Some(len).filter(|len| *len as u64 <= budget).and_then(AlignedBuf::try_new);
        buf.ok_or_else(|| {
            let text = format!("{len} bytes to gather, with a budget of {budget}");
            Error::new(ErrorKind::NoMemory, "write", text)
        })
    }
}

/// Fills `piece` with the bytes of the buffers from byte `skip` on.
fn gathered(bufs: &[IoSlice<'_>], mut skip: usize, mut piece: AlignedBuf) -> AlignedBuf {
    let (len, mut at) = (piece.len(), 0);
    for buf in bufs {
        let from = skip.min(buf.len());
        skip -= from;
        let count = (buf.len() - from).min(len - at);
        piece[at..at + count].copy_from_slice(&buf[from..from + count]);
        at += count;
    }
    piece
}
