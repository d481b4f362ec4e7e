//! One read or write in progress: which bytes it moves, and the meaning of a short transfer.
//!
//! Invariants: X1 a transfer is over when `pos` has reached `end`; a call that moves no byte before
//! that is an error (lineage.L3). X2 a read leaves zeros in the memory beyond `end`. X3 no call
//! writes at or beyond `end`, so a write never makes the file longer. X4 a request reads the file's
//! size once: the file may grow at any time, and bytes behind the size that the request saw do not
//! exist for it. X5 main part, tail and padding of a transfer add up to its length.

use super::inner::Inner;
use crate::bdev::{Limits, StableWrites};
use crate::bio::{BioFlags, BioOp, verb};
use crate::check::check_range;
use crate::sys::IoVecs;
use forebay_base::units::round_down;
use forebay_base::{Error, ErrorKind, Result};
use std::io;
use std::os::fd::BorrowedFd;

/// The next step after a system call.
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
    /// The part of a write in the file's last, partial block; written through the page cache after
    /// the rest.
    pub(crate) tail: Option<Box<Xfer>>,
    /// Must exclude other requests in the file's last page (file.F7).
    pub(crate) edge: bool,
}

/// Bytes of a page of the system's page cache.
const PAGE: u64 = 4096;

/// The file's size and mode as one request sees them, read once (X4).
#[derive(Clone, Copy)]
pub(crate) struct View {
    pub(crate) limits: Limits,
    /// Of the device, bytes.
    pub(crate) size: u64,
    pub(crate) direct: bool,
}

impl View {
    /// Reads the current values. The caller is inside the gate, so `direct` does not change.
    pub(crate) fn of(file: &Inner) -> Self {
        // The writer of this request has ensured stable bytes already.
        let stable = StableWrites { required: false, reason: "not asked" };
        let limits = file.limits_with(stable);
        Self { limits, size: file.size(), direct: file.is_direct() }
    }

    /// The part of a device range that lies before the end, bytes.
    pub(crate) fn clip(&self, offset: u64, len: u64) -> u64 {
        len.min(self.size.saturating_sub(offset))
    }

    /// Whether a change of this device range may share a page with growing and tails, which go
    /// through the page cache (file.F7): it is direct, and in the page of an unaligned end.
    pub(crate) fn at_edge(&self, file: &Inner, offset: u64, len: u64) -> bool {
        let (pos, end) = (file.offset + offset, file.offset + self.size);
        self.direct && !end.is_multiple_of(PAGE) && pos + len > round_down(end, PAGE)
    }
}

/// How a transfer is split, in order; the parts add up to its length (X5).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Spans {
    /// Moved by the calls of the transfer itself.
    main: u64,
    /// Written afterwards through the page cache: the file's last, partial block of a direct write.
    tail: u64,
    /// Beyond the end: zeros for a read, nothing for a write.
    pad: u64,
}

impl Spans {
    /// Splits a device range that [`check_range`] has accepted for this view.
    fn of(view: &View, write: bool, offset: u64, len: u64) -> Self {
        let there = view.clip(offset, len);
        let pad = len - there;
        let block = u64::from(view.limits.logical_block);
        let tail = if write && view.direct && pad > 0 { there % block } else { 0 };
        let spans = Self { main: there - tail, tail, pad };
        assert!(spans.main + spans.tail + spans.pad == len, "X5: {spans:?} of {len} bytes");
        spans
    }
}

impl Xfer {
    /// Plans a read or write of the device range that starts at `offset` (bytes). The caller is
    /// inside the gate.
    pub(crate) fn plan(
        file: &Inner,
        view: &View,
        op: BioOp,
        range: (u64, u64),
        flags: BioFlags,
        mut iovs: IoVecs,
    ) -> Result<Self> {
        let (offset, len) = range;
        check_range(op, offset, len, &view.limits, view.size)?;
        if iovs.total() != len {
            let text = format!("the data has {} bytes, not {len}", iovs.total());
            return Err(Error::new(ErrorKind::InvalidInput, verb(op), text));
        }
        let (direct, write) = (view.direct, op == BioOp::Write);
        let block = view.limits.logical_block as usize;
        let memory = view.limits.memory_align as usize;
        if direct && !iovs.aligned(memory, block) {
            let text = format!(
                "direct I/O needs memory at multiples of {memory} and pieces of {block} bytes"
            );
            return Err(Error::new(ErrorKind::Unaligned, verb(op), text));
        }
        let spans = Spans::of(view, write, offset, len);
        let pos = file.offset + offset;
        let end = pos + spans.main;
        let rwf = if write && flags.contains(BioFlags::FUA) { libc::RWF_DSYNC } else { 0 };
        let mut tail = None;
        if write && spans.pad > 0 {
            let mut rest = iovs.split_off(spans.main as usize);
            rest.split_off(spans.tail as usize);
            // lineage.L2: no dirty byte stays in the page cache while direct I/O is on.
            let (start, rwf) = (end, libc::RWF_DSYNC);
            tail = (spans.tail > 0).then(|| {
                let end = start + spans.tail;
                let (iovs, direct, tail, edge) = (rest, false, None, false);
                Box::new(Self { iovs, write, pos: start, end, excess: 0, rwf, direct, tail, edge })
            });
        }
        let excess = if write { 0 } else { spans.pad as usize };
        let edge = write && view.at_edge(file, offset, len);
        Ok(Self { iovs, write, pos, end, excess, rwf, direct, tail, edge })
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
                // A direct write that finds no space fails before its sync. So it has not consumed
                // the error of a lost write of the page cache, which the next flush still reports.
                let is_refused = self.direct && e.raw_os_error() == Some(libc::ENOSPC);
                if self.rwf & libc::RWF_DSYNC != 0 && !is_refused {
                    file.note_sync_failure();
                }
                return Err(Error::from_io(op, e).with_path(&file.path));
            }
        };
        self.iovs.advance(moved);
        self.pos += moved as u64;
        assert!(!self.write || self.pos <= self.end, "X3: a write went beyond its end");
        if self.pos >= self.end {
            self.iovs.zero_last(self.excess);
            return Ok(Next::Done);
        }
        // The kernel ends a direct read at an unaligned offset only where the file ends.
        let block = u64::from(View::of(file).limits.logical_block);
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
    use crate::bdev::BlockDevice;
    use crate::file::DirectIo;
    use crate::file::FileOptions;
    use forebay_base::buf::{AlignedBuf, Segment};
    use forebay_base::sync::atomic::Ordering;

    /// The result of a transfer of 8 KiB when the system calls move these numbers of bytes.
    fn moved(file: &Inner, op: BioOp, offset: u64, calls: &[usize]) -> (Result<()>, AlignedBuf) {
        let mut buf = AlignedBuf::new(8192);
        buf.fill(7);
        let segment = Segment { ptr: buf.as_mut_ptr(), len: buf.len() };
        // SAFETY: buf outlives the list, which is only used in this function.
        let iovs = unsafe { IoVecs::new(&[segment]) };
        let range = (offset, 8192);
        let planned = Xfer::plan(file, &View::of(file), op, range, BioFlags::empty(), iovs);
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

    /// X5, for each length of the file's last block, each start before it.
    #[test]
    fn spans_cover_the_range() {
        for (block, direct, write, size) in [512u64, 4096].into_iter().flat_map(|block| {
            [(true, true), (true, false), (false, true), (false, false)].into_iter().flat_map(
                move |(direct, write)| {
                    (1..=2 * block + 1).map(move |size| (block, direct, write, size))
                },
            )
        }) {
            let limits =
                Limits { logical_block: block as u32, ..crate::RamDevice::new(0).limits() };
            let view = View { limits, size, direct };
            let end = size.next_multiple_of(block);
            for offset in (0..end).step_by(block as usize) {
                let spans = Spans::of(&view, write, offset, end - offset);
                let there = size - offset;
                assert_eq!(spans.pad, end - size);
                assert_eq!(spans.main + spans.tail, there);
                let aligned = there - there % block;
                let cut = direct && write && spans.pad > 0;
                assert_eq!(spans.main, if cut { aligned } else { there });
            }
        }
    }

    /// The story: a synchronous write that the host refused for lack of space failed the next
    /// flush, and with it all that the device had completed: a volume on a full host lost intact
    /// content. Through the page cache ENOSPC may be the system's only report of an earlier write
    /// that it lost.
    #[test]
    fn synchronous_direct_write_without_space_fails_no_flush() {
        let path = std::env::temp_dir().join(format!("forebay-refused-{}", std::process::id()));
        let options = FileOptions { create_size: Some(16384), ..Default::default() };
        let file = Inner::open(&path, &options).unwrap();
        std::fs::remove_file(&path).unwrap();
        let cases = [(true, libc::ENOSPC, 0), (true, libc::EIO, 1), (false, libc::ENOSPC, 1)];
        for (direct, errno, failures) in cases {
            let mut buf = AlignedBuf::new(8192);
            let segment = Segment { ptr: buf.as_mut_ptr(), len: buf.len() };
            // SAFETY: buf outlives the list, which ends with this round.
            let iovs = unsafe { IoVecs::new(&[segment]) };
            let view = View { direct, ..View::of(&file) };
            let mut xfer =
                Xfer::plan(&file, &view, BioOp::Write, (0, 8192), BioFlags::FUA, iovs).unwrap();
            let seen = file.sync_failures.load(Ordering::Acquire);
            xfer.note(&file, Err(io::Error::from_raw_os_error(errno))).err().expect("it failed");
            let now = file.sync_failures.load(Ordering::Acquire);
            assert_eq!(now - seen, failures, "direct {direct}, errno {errno}");
            assert_eq!(file.flush(now).is_err(), failures > 0, "direct {direct}, errno {errno}");
        }
    }

    /// lineage.L3: a short transfer continues with the rest; a call without progress is an error.
    /// Neither a short read nor a short write counts as complete. Beyond the file's end, in its
    /// last block, a read returns zeros.
    #[test]
    fn l3_transfer_short_continues_without_progress_fails() {
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
                assert_eq!(error.kind(), ErrorKind::Io, "X1: {op:?} {calls:?}");
                assert!(error.to_string().contains("nothing moved"), "{error}");
            }
        }
        let size = file.size();
        let offset = size.next_multiple_of(u64::from(file.limits().logical_block)) - 8192;
        let there = (size - offset) as usize;
        let (done, buf) = moved(&file, BioOp::Read, offset, &[there]);
        assert!(done.is_ok() && buf[..there].iter().all(|b| *b == 7));
        assert!(buf[there..].iter().all(|b| *b == 0), "X2: zeros behind the end");
    }
}
