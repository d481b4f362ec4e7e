//! One read or write on its way: which bytes are moved, and what a short transfer means.
//!
//! Invariants: X1 a transfer is over when `pos` has reached `end`; a call that moves nothing
//! before that is an error (checklist L3). X2 a read leaves zeros in the memory beyond `end`.
//! X3 no call writes at or beyond `end`, so a write never makes the file longer.

use super::Inner;
use crate::bio::{BioFlags, BioOp};
use crate::check::{check_range, verb};
use crate::sys::IoVecs;
use forebay_base::units::round_down;
use forebay_base::{Error, ErrorKind, Result};
use std::io;
use std::os::fd::BorrowedFd;

/// What comes after one system call.
pub(crate) enum Next {
    /// Another call, for the rest.
    More,
    /// Nothing: it is over.
    Done,
}

pub(crate) struct Xfer {
    pub(crate) iovs: IoVecs,
    pub(crate) write: bool,
    /// Next byte, in the file.
    pub(crate) pos: u64,
    /// First byte that is not to be moved, in the file.
    end: u64,
    /// Bytes of memory beyond `end`.
    excess: usize,
    /// RWF flags.
    pub(crate) rwf: i32,
    pub(crate) direct: bool,
    /// What has to be written through the page cache, once the rest is done: the part of a
    /// write that lies in the file's last, partial block.
    pub(crate) tail: Option<Box<Xfer>>,
}

impl Xfer {
    /// Plans a read or write of the device range that starts at `offset` (bytes). The caller is
    /// inside the gate.
    pub(crate) fn plan(
        file: &Inner,
        op: BioOp,
        offset: u64,
        len: u64,
        flags: BioFlags,
        mut iovs: IoVecs,
    ) -> Result<Self> {
        let limits = file.limits();
        check_range(op, offset, len, &limits, file.size())?;
        if iovs.total() != len {
            let text = format!("the data has {} bytes, not {len}", iovs.total());
            return Err(Error::new(ErrorKind::InvalidInput, verb(op), text));
        }
        let direct = file.is_direct();
        let (block, memory) = (limits.logical_block as usize, limits.memory_align as usize);
        if direct && !iovs.aligned(memory, block) {
            let text = format!(
                "direct I/O needs memory at multiples of {memory} and pieces of {block} bytes"
            );
            return Err(Error::new(ErrorKind::Unaligned, verb(op), text));
        }
        let write = op == BioOp::Write;
        let pos = file.offset + offset;
        let end = (pos + len).min(file.offset + file.size());
        let excess = (pos + len - end) as usize;
        let rwf = if write && flags.contains(BioFlags::FUA) { libc::RWF_DSYNC } else { 0 };
        let mut xfer = Self { iovs, write, pos, end, excess, rwf, direct, tail: None };
        if write && excess > 0 {
            let cut =
                if direct { file.offset + round_down(file.size(), block as u64) } else { end };
            iovs = xfer.iovs.split_off((cut - pos) as usize);
            if direct {
                iovs.split_off((end - cut) as usize);
                // L2: nothing dirty stays in the page cache while direct I/O is on.
                let rwf = libc::RWF_DSYNC;
                let tail =
                    Self { iovs, write, pos: cut, end, excess: 0, rwf, direct: false, tail: None };
                xfer.end = cut;
                xfer.tail = Some(Box::new(tail));
            }
            xfer.excess = 0;
        }
        Ok(xfer)
    }

    /// The file descriptor for the next call.
    pub(crate) fn fd<'f>(&self, file: &'f Inner) -> BorrowedFd<'f> {
        file.fd(self.direct)
    }

    /// Whether there is nothing to do, as for a length of zero.
    pub(crate) fn is_over(&self) -> bool {
        self.pos >= self.end
    }

    /// Takes note of the outcome of one system call.
    pub(crate) fn note(&mut self, file: &Inner, outcome: io::Result<usize>) -> Result<Next> {
        let op = if self.write { "write" } else { "read" };
        let moved = match outcome {
            Ok(moved) => moved,
            Err(e) if matches!(e.raw_os_error(), Some(libc::EINTR | libc::EAGAIN)) => {
                return Ok(Next::More);
            }
            Err(e) => {
                if self.rwf & libc::RWF_DSYNC != 0 {
                    file.note_sync_failure();
                }
                return Err(Error::from_io(op, e).with_path(&file.path));
            }
        };
        self.iovs.advance(moved);
        self.pos += moved as u64;
        if self.pos >= self.end {
            self.iovs.zero_last(self.excess);
            return Ok(Next::Done);
        }
        // The kernel cuts a direct read at an odd place only where the file ends.
        let block = u64::from(file.limits().logical_block);
        let odd = self.direct && !self.write && !self.pos.is_multiple_of(block);
        if moved > 0 && !odd {
            return Ok(Next::More);
        }
        file.check_unchanged()?;
        let text = format!("{} bytes before the end of the range, nothing moved", self.left());
        Err(Error::new(ErrorKind::Io, op, text).with_path(&file.path))
    }

    fn left(&self) -> u64 {
        self.end - self.pos
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file::DirectIo;
    use crate::file::FileOptions;
    use forebay_base::buf::{AlignedBuf, Segment};

    /// What comes of a transfer of 8 KiB when the system calls move these many bytes.
    fn moved(file: &Inner, op: BioOp, offset: u64, calls: &[usize]) -> (Result<()>, AlignedBuf) {
        let mut buf = AlignedBuf::new(8192);
        buf.fill(7);
        let segment = Segment { ptr: buf.as_mut_ptr(), len: buf.len() };
        // SAFETY: buf outlives the list, which is only used in this function.
        let iovs = unsafe { IoVecs::new(&[segment]) };
        let planned = Xfer::plan(file, op, offset, 8192, BioFlags::empty(), iovs);
        let mut xfer = planned.unwrap();
        let mut result = Err(Error::new(ErrorKind::Io, "test", "not over yet"));
        for &bytes in calls {
            match xfer.note(file, Ok(bytes)) {
                Ok(Next::More) => {}
                Ok(Next::Done) => result = Ok(()),
                Err(e) => return (Err(e), buf),
            }
        }
        (result, buf)
    }

    /// L3: a short transfer is tried again for the rest; one that moves nothing is an error, and
    /// neither a short read nor a short write passes for a whole one. Beyond the file's end, in
    /// its last block, a read is zeros.
    #[test]
    fn l3_short_transfers_go_on_and_no_progress_is_an_error() {
        let path = std::env::temp_dir().join(format!("forebay-l3-{}", std::process::id()));
        let direct_io = DirectIo::Off;
        let options =
            FileOptions { create_size: Some(16384 + 700), direct_io, ..Default::default() };
        let file = Inner::open(&path, &options).unwrap();
        std::fs::remove_file(&path).unwrap();
        for op in [BioOp::Read, BioOp::Write] {
            assert!(moved(&file, op, 0, &[8192]).0.is_ok());
            assert!(moved(&file, op, 0, &[4096, 512, 3584]).0.is_ok());
            for calls in [&[0][..], &[4096, 0], &[8191, 0]] {
                let error = moved(&file, op, 0, calls).0.unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Io, "{op:?} {calls:?}");
                assert!(error.to_string().contains("nothing moved"), "{error}");
            }
        }
        let size = file.size();
        let offset = size.next_multiple_of(u64::from(file.limits().logical_block)) - 8192;
        let there = (size - offset) as usize;
        let (done, buf) = moved(&file, BioOp::Read, offset, &[there]);
        assert!(done.is_ok() && buf[..there].iter().all(|b| *b == 7));
        assert!(buf[there..].iter().all(|b| *b == 0));
    }
}
