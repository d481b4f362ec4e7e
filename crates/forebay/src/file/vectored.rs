//! Reads and writes of several buffers in one request.

use super::File;
use forebay_base::buf::AlignedBuf;
use forebay_base::{IoFlags, Result};
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
    /// and writers.
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
        let whole: usize = bufs.iter().map(|buf| buf.len()).sum();
        let appends = (flags | self.opener.write_flags).contains(IoFlags::APPEND);
        let step = if appends { whole } else { whole.min(GATHERED_BYTES) };
        let mut done = 0;
        while done < whole {
            let piece = gathered(bufs, done, step.min(whole - done));
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
}

/// `len` bytes of the buffers from byte `skip` on.
fn gathered(bufs: &[IoSlice<'_>], mut skip: usize, len: usize) -> AlignedBuf {
    let (mut piece, mut at) = (AlignedBuf::new(len), 0);
    for buf in bufs {
        let from = skip.min(buf.len());
        skip -= from;
        let count = (buf.len() - from).min(len - at);
        piece[at..at + count].copy_from_slice(&buf[from..from + count]);
        at += count;
    }
    piece
}
