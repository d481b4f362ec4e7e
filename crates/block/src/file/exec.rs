//! Requests carried out by blocking system calls, on the caller's thread or a worker's.
//!
//! Invariants: V1 the caller of `run` is inside the gate. V2 an operation that the file system does
//! not support is tried once, then not advertised any more, and emulated (lineage.L7).

use super::inner::{Edge, Inner};
use super::kind::Kind;
use super::xfer::{Next, View, Xfer};
use crate::bdev::MapRuns;
use crate::bio::{Bio, BioFlags, BioOp, verb};
use crate::check::check_range;
use crate::sys::{self, IoVecs, retry};
use forebay_base::buf::{AlignedBuf, Segment};
use forebay_base::{Error, ErrorKind, Result};
use rustix::fs::{FallocateFlags, SeekFrom};
use rustix::io::Errno;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

/// Most runs of a map per call: two system calls each.
const EXTENTS_MAX: usize = 256;

impl Inner {
    /// The file as seen by a request that this thread will carry out. It includes the right to the
    /// last page if the request needs that: then the file does not grow meanwhile (file.F7).
    pub(crate) fn view_to(&self, op: BioOp, offset: u64, len: u64) -> (View, Option<Edge<'_>>) {
        let view = View::of(self);
        if matches!(op, BioOp::Read | BioOp::Flush) || !view.at_edge(self, offset, len) {
            return (view, None);
        }
        let edge = self.edge();
        (View::of(self), Some(edge))
    }

    /// Carries out one request that arrived after `seen` syncs had failed. `spare` is the memory of
    /// a list of segments, for reuse.
    pub(crate) fn run(&self, bio: &mut Bio, seen: u64, spare: &mut IoVecs) -> Result<()> {
        debug_assert!(self.gate.is_entered(), "V1: {:?} at {} past the gate", bio.op, bio.offset);
        let (offset, len, flags) = (bio.offset, bio.len, bio.flags);
        let (view, edge) = self.view_to(bio.op, offset, len);
        if bio.op != BioOp::Read && bio.op != BioOp::Write {
            check_range(bio.op, offset, len, &view.limits, view.size)?;
        }
        match bio.op {
            BioOp::Read | BioOp::Write => {
                // SAFETY: the bio owns the memory, and outlives this list, which ends here
                // (sys.Y1).
                let iovs = unsafe { IoVecs::of(&mut bio.data, std::mem::take(spare)) };
                let mut xfer = Xfer::plan(self, &view, bio.op, (offset, len), flags, iovs)?;
                let done = self.transfer(&mut xfer);
                *spare = xfer.iovs.emptied();
                done
            }
            BioOp::Flush => self.flush(seen),
            BioOp::Discard => self.discard(offset, view.clip(offset, len)),
            BioOp::WriteZeroes => {
                self.write_zeroes(&view, (offset, len), flags)?;
                drop(edge);
                if flags.contains(BioFlags::FUA) { self.flush_fua(seen) } else { Ok(()) }
            }
        }
    }

    /// Moves all bytes of a planned transfer. The kernel follows a write with `RWF_DSYNC` to a
    /// block device by a flush, even if the device was told FUA. That makes two flushes on a device
    /// without FUA. So there a write with FUA is a write and a flush (lineage.L6).
    pub(crate) fn transfer(&self, xfer: &mut Xfer) -> Result<()> {
        let is_split = self.kind == Kind::Block && xfer.rwf & libc::RWF_DSYNC != 0;
        if is_split {
            xfer.rwf &= !libc::RWF_DSYNC;
        }
        let seen = self.sync_failures.load(Ordering::Acquire);
        while !xfer.is_over() {
            let fd = xfer.fd(self);
            let outcome = if xfer.write {
                sys::write_at(fd, &xfer.iovs, xfer.pos, xfer.rwf)
            } else {
                sys::read_at(fd, &mut xfer.iovs, xfer.pos)
            };
            if let Next::Done = xfer.note(self, outcome)? {
                break;
            }
        }
        if is_split {
            self.flush_fua(seen)?;
        }
        match &mut xfer.tail {
            Some(tail) => self.transfer(tail),
            None => Ok(()),
        }
    }

    /// Makes completed writes durable, with the metadata to find them (lineage.L5).
    pub(crate) fn flush(&self, seen: u64) -> Result<()> {
        let fd = self.fd(false);
        let resized = self.take_resized();
        let done =
            retry(|| if resized { rustix::fs::fsync(fd) } else { rustix::fs::fdatasync(fd) });
        self.note_flush(seen, resized, done.map_err(io::Error::from))
    }

    /// The flush of a write with FUA. If it fails, so does the next flush (file.F5).
    fn flush_fua(&self, seen: u64) -> Result<()> {
        self.flush(seen).inspect_err(|_| self.note_sync_failure())
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        let pos = self.offset + offset;
        if len == 0 || !self.punch_ok.load(Ordering::Relaxed) {
            return Ok(());
        }
        let done = match self.kind {
            Kind::Regular => self.fallocate(punch(), pos, len),
            Kind::Block => sys::block_discard(self.fd(false), pos, len),
        };
        // A discard is advisory: success also where the file system cannot do it.
        self.supported(&self.punch_ok, "discard", done).map(drop)
    }

    fn write_zeroes(&self, view: &View, (offset, len): (u64, u64), flags: BioFlags) -> Result<()> {
        let there = view.clip(offset, len);
        if there == 0 {
            return Ok(());
        }
        if !self.zero_by_call(self.offset + offset, there, flags)? {
            if flags.contains(BioFlags::FAST_ONLY) {
                let text = "the file system below cannot zero without writing";
                return Err(Error::new(ErrorKind::Unsupported, verb(BioOp::WriteZeroes), text)
                    .with_path(&self.path));
            }
            self.zero_by_writing(view, offset, there)?;
        }
        Ok(())
    }

    /// Zeroes by one system call; false if there is none for this file.
    fn zero_by_call(&self, pos: u64, len: u64, flags: BioFlags) -> Result<bool> {
        let keep = flags.contains(BioFlags::NO_UNMAP);
        let ways: &[(&AtomicBool, FallocateFlags)] = if keep {
            &[(&self.zero_ok, zero_range())]
        } else {
            &[(&self.punch_ok, punch()), (&self.zero_ok, zero_range())]
        };
        if self.kind == Kind::Block {
            if flags.contains(BioFlags::FAST_ONLY) {
                // BLKZEROOUT may write zeros itself; the punching call never does.
                if keep || !self.fast_zero_ok.load(Ordering::Relaxed) {
                    return Ok(false);
                }
                let done = self.fallocate(punch(), pos, len);
                return self.supported(&self.fast_zero_ok, "fast zero", done);
            }
            if !self.zero_ok.load(Ordering::Relaxed) {
                return Ok(false);
            }
            let done = sys::block_zero(self.fd(false), pos, len);
            return self.supported(&self.zero_ok, "write zeroes", done);
        }
        for (ok, mode) in ways {
            if ok.load(Ordering::Relaxed) {
                let done = self.fallocate(*mode, pos, len);
                if self.supported(ok, "write zeroes", done)? {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    /// The mode of the first call for a discard of a regular file, or for zeroing it (`keep`: its
    /// blocks stay allocated). `None` if the file system supports no such call.
    pub(crate) fn fallocate_mode(&self, discard: bool, keep: bool) -> Option<FallocateFlags> {
        let zero = !discard && keep;
        let ok = if zero { &self.zero_ok } else { &self.punch_ok };
        let mode = if zero { zero_range() } else { punch() };
        (self.kind == Kind::Regular && ok.load(Ordering::Relaxed)).then_some(mode)
    }

    fn fallocate(&self, mode: FallocateFlags, pos: u64, len: u64) -> io::Result<()> {
        retry(|| rustix::fs::fallocate(self.fd(false), mode, pos, len)).map_err(io::Error::from)
    }

    /// True for success. False if the file system does not support the call: clears `ok`, so that
    /// it is not tried again.
    fn supported(&self, ok: &AtomicBool, op: &'static str, done: io::Result<()>) -> Result<bool> {
        match done {
            Ok(()) => Ok(true),
            Err(e) if is_unsupported(&e) => {
                ok.store(false, Ordering::Relaxed);
                log::info!("{}: {op} is not supported: {e}", self.path.display());
                Ok(false)
            }
            Err(e) => Err(Error::from_io(op, e).with_path(&self.path)),
        }
    }

    /// Zeroes `[offset, offset + len)`, a range that ends at a block or at the end of the device.
    fn zero_by_writing(&self, view: &View, offset: u64, len: u64) -> Result<()> {
        const PIECE: usize = 64 << 10;
        // The last, partial block is planned in full, as in every write of it.
        let len = len.next_multiple_of(u64::from(view.limits.logical_block));
        let mut zeros = AlignedBuf::new(PIECE.min(len as usize).next_multiple_of(4096));
        let mut done = 0;
        while done < len {
            let mut segments = Vec::new();
            let mut take = 0;
            while take < (len - done).min(sys::MAX_TRANSFER as u64) {
                let piece = (len - done - take).min(zeros.len() as u64);
                segments.push(Segment { ptr: zeros.as_mut_ptr(), len: piece as usize });
                take += piece;
            }
            // SAFETY: zeros outlives the list; it is only read.
            let iovs = unsafe { IoVecs::new(&segments) };
            let (range, flags) = ((offset + done, take), BioFlags::empty());
            let mut xfer = Xfer::plan(self, view, BioOp::Write, range, flags, iovs)?;
            self.transfer(&mut xfer)?;
            done += take;
        }
        Ok(())
    }

    /// Runs of data and of holes in a range, by SEEK_DATA and SEEK_HOLE. A block device is one run
    /// of data. See [`crate::BlockDevice::extents`].
    pub(crate) fn extents(&self, offset: u64, len: u64, max: usize) -> Result<MapRuns> {
        let start = self.offset + offset;
        let mut rest = len.min(self.size().saturating_sub(offset));
        if self.kind == Kind::Block {
            return Ok(vec![(offset, len, true)]);
        }
        let end = start + rest;
        let mut runs = Vec::new();
        let most = max.clamp(1, EXTENTS_MAX);
        while rest > 0 && runs.len() < most {
            let pos = end - rest;
            let data = match rustix::fs::seek(self.fd(false), SeekFrom::Data(pos)) {
                Ok(at) => at.min(end),
                Err(Errno::NXIO) => end,
                Err(_) => pos,
            };
            let (is_data, until) = if data > pos {
                (false, data)
            } else {
                let hole = rustix::fs::seek(self.fd(false), SeekFrom::Hole(pos));
                (true, hole.map_or(end, |at| at.clamp(pos + 1, end)))
            };
            runs.push((pos - self.offset, until - pos, is_data));
            rest = end - until;
        }
        // In the last block, the bytes behind the end of the file read as zeros.
        let covered = end - start;
        if rest == 0 && covered < len && runs.len() < most {
            runs.push((offset + covered, len - covered, false));
        }
        Ok(runs)
    }
}

fn punch() -> FallocateFlags {
    FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE
}

fn zero_range() -> FallocateFlags {
    FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE
}

fn is_unsupported(e: &io::Error) -> bool {
    matches!(e.raw_os_error(), Some(libc::EOPNOTSUPP | libc::ENOSYS | libc::ENOTTY))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file::FileOptions;
    use forebay_base::buf::DataRef;

    #[test]
    fn sync_failed_fails_concurrent_flushes() {
        let name = format!("forebay-sync-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let options = FileOptions { create_size: Some(4096), ..Default::default() };
        let file = Inner::open(&path, &options).unwrap();
        std::fs::remove_file(&path).unwrap();
        let eio = || Err(io::Error::from_raw_os_error(libc::EIO));
        file.flush(0).unwrap();
        assert_eq!(file.note_flush(0, false, eio()).unwrap_err().kind(), ErrorKind::Io);
        // A flush that came before the failure fails, a flush that comes after it does not.
        assert_eq!(file.flush(0).unwrap_err().kind(), ErrorKind::Io);
        file.flush(1).unwrap();
        // A failed synchronous write fails the next flush, once.
        file.note_sync_failure();
        assert_eq!(file.flush(2).unwrap_err().kind(), ErrorKind::Io);
        file.flush(2).unwrap();
    }

    /// A file whose syncs fail, because an eventfd replaces its descriptor. Direct I/O is off. The
    /// second result is the real descriptor.
    fn unsyncable(name: &str) -> (Inner, rustix::fd::OwnedFd) {
        use crate::file::DirectIo;
        use rustix::event::{EventfdFlags, eventfd};
        let name = format!("forebay-{name}-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let options = FileOptions { create_size: Some(4096), ..Default::default() };
        let mut file = Inner::open(&path, &options).unwrap();
        file.set_direct(DirectIo::On, file.check_direct())
            .expect("this test requires direct I/O on the temporary folder");
        file.set_direct(DirectIo::Off, Ok(())).unwrap();
        std::fs::remove_file(&path).unwrap();
        // An eventfd cannot be synced: EINVAL.
        let not_a_file = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        let real = std::mem::replace(&mut file.buffered, not_a_file);
        (file, real)
    }

    /// The story: the sync made by turning direct I/O on consumed the system's only report of a
    /// lost write, and no later flush reported it.
    #[test]
    fn f5_direct_io_switch_sync_failure_fails_next_flush() {
        use crate::file::DirectIo;
        let (mut file, real) = unsyncable("sync-on");
        file.set_direct(DirectIo::On, Ok(())).unwrap_err();
        assert!(!file.is_direct(), "F2: what may be dirty below is not bypassed");
        file.buffered = real;
        let now = || file.sync_failures.load(Ordering::Acquire);
        assert!(file.flush(now()).is_err(), "F5: told once");
        file.flush(now()).unwrap();
        file.set_direct(DirectIo::On, Ok(())).unwrap();
        assert!(file.is_direct());
    }

    /// The story: zeroing with FUA consumed the system's only report of a lost write, too.
    #[test]
    fn f5_zeroing_sync_failure_fails_next_flush() {
        let (mut file, real) = unsyncable("sync-zeroes");
        let now = |file: &Inner| file.sync_failures.load(Ordering::Acquire);
        // The file system below can neither punch nor zero, so the zeros are written, and through
        // direct I/O: of the request only the sync fails.
        file.punch_ok.store(false, Ordering::Relaxed);
        file.zero_ok.store(false, Ordering::Relaxed);
        file.direct_on.store(true, Ordering::Release);
        let zero = |file: &Inner, flags| {
            let op = BioOp::WriteZeroes;
            let bio = Bio::new(op, 0, 4096, DataRef::None, Box::new(drop));
            let mut bio = bio.with_flags(flags);
            file.gate.enter_wait();
            let done = file.run(&mut bio, now(file), &mut IoVecs::default());
            file.gate.leave();
            bio.complete(Ok(()));
            done
        };
        zero(&file, BioFlags::empty()).unwrap();
        zero(&file, BioFlags::FUA).unwrap_err();
        file.buffered = real;
        assert!(file.flush(now(&file)).is_err(), "F5: told once");
        file.flush(now(&file)).unwrap();
    }
}
