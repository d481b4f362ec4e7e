//! The system calls that take raw memory or have no safe wrapper, and lists of memory for them.
//!
//! Unsafe code of this crate: here; in `file`, where lists are made; in `engine` (requests and
//! ring), `ioctl` and `loopdev`. Invariant Y1: an [`IoVecs`] never outlives the memory it names;
//! the code that builds one keeps that memory.

use forebay_base::buf::{DataRef, Segment};
use libc::{c_int, c_ulong, iovec};
use rustix::io::Errno;
use std::cell::RefCell;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Longest transfer of one system call, bytes. Longer requests are split.
pub(crate) const MAX_TRANSFER: usize = 4 << 20;
/// Longest list of one system call.
pub(crate) const MAX_SEGMENTS: usize = libc::UIO_MAXIOV as usize;

/// Pieces of memory, consumed from the front.
#[derive(Default)]
pub(crate) struct IoVecs {
    iovs: Vec<iovec>,
    /// The first piece that is not used up, and how many of its bytes are.
    at: usize,
    skip: usize,
}

// SAFETY: addresses only; by Y1 their owner travels along.
unsafe impl Send for IoVecs {}

impl IoVecs {
    /// Lists the pieces, splitting those longer than [`MAX_TRANSFER`].
    ///
    /// # Safety
    /// The memory must stay valid and borrowed by this list until the list is dropped (Y1), for
    /// writing if a read uses it.
    pub(crate) unsafe fn new(segments: &[Segment]) -> Self {
        // SAFETY: the caller promises that the memory stays valid and borrowed until the list is
        // dropped (Y1).
        unsafe { Self::default().refill(segments) }
    }

    /// A list of a bio's data, in the memory of an old list.
    ///
    /// # Safety
    /// As for [`IoVecs::new`]: the data outlives the list.
    pub(crate) unsafe fn of(data: &mut DataRef, old: Self) -> Self {
        std::thread_local! {
            static PIECES: RefCell<Vec<Segment>> = const { RefCell::new(Vec::new()) };
        }
        PIECES.with_borrow_mut(|pieces| {
            pieces.clear();
            data.segments_into(pieces);
            // SAFETY: the caller promises that `data`, which has the pieces, outlives the list.
            unsafe { old.refill(pieces) }
        })
    }

    /// Clears the list and keeps its memory for reuse (Y1).
    pub(crate) fn emptied(mut self) -> Self {
        self.iovs.clear();
        Self { iovs: self.iovs, at: 0, skip: 0 }
    }

    /// # Safety
    /// As for [`IoVecs::new`].
    unsafe fn refill(self, segments: &[Segment]) -> Self {
        let mut iovs = self.iovs;
        iovs.clear();
        if segments.len() > iovs.capacity() {
            // Capacity grows in few steps: each reused list has to grow for itself.
            let least = if segments.len() > 4 { 64 } else { 4 };
            iovs.reserve(segments.len().next_power_of_two().max(least));
        }
        for seg in segments {
            let mut done = 0;
            while done < seg.len {
                let take = (seg.len - done).min(MAX_TRANSFER);
                iovs.push(iovec { iov_base: seg.ptr.wrapping_add(done).cast(), iov_len: take });
                done += take;
            }
        }
        Self { iovs, at: 0, skip: 0 }
    }

    /// Bytes of all pieces, used up or not.
    pub(crate) fn total(&self) -> u64 {
        self.iovs.iter().map(|iov| iov.iov_len as u64).sum::<u64>() + self.skip as u64
    }

    /// The pieces for the next system call, within the limits of one call, and their bytes.
    pub(crate) fn window(&self) -> (&[iovec], usize) {
        let rest = &self.iovs[self.at..];
        let (mut count, mut bytes) = (0, 0);
        for iov in rest.iter().take(MAX_SEGMENTS) {
            if count > 0 && bytes + iov.iov_len > MAX_TRANSFER {
                break;
            }
            count += 1;
            bytes += iov.iov_len;
        }
        (&rest[..count], bytes)
    }

    /// Uses up `n` bytes.
    pub(crate) fn advance(&mut self, mut n: usize) {
        while n > 0 {
            let iov = &mut self.iovs[self.at];
            if n >= iov.iov_len {
                n -= iov.iov_len;
                // A used-up piece gets its start back, for `zero_last`.
                iov.iov_base = iov.iov_base.cast::<u8>().wrapping_sub(self.skip).cast();
                iov.iov_len += self.skip;
                (self.at, self.skip) = (self.at + 1, 0);
            } else {
                iov.iov_base = iov.iov_base.cast::<u8>().wrapping_add(n).cast();
                iov.iov_len -= n;
                self.skip += n;
                return;
            }
        }
    }

    /// Cuts the list, of which nothing is used yet, after `bytes`; returns the rest.
    pub(crate) fn split_off(&mut self, mut bytes: usize) -> IoVecs {
        debug_assert!(self.at == 0 && self.skip == 0);
        let mut index = 0;
        while index < self.iovs.len() && bytes >= self.iovs[index].iov_len {
            bytes -= self.iovs[index].iov_len;
            index += 1;
        }
        let mut rest = self.iovs.split_off(index);
        if bytes > 0 {
            let first = &mut rest[0];
            self.iovs.push(iovec { iov_base: first.iov_base, iov_len: bytes });
            first.iov_base = first.iov_base.cast::<u8>().wrapping_add(bytes).cast();
            first.iov_len -= bytes;
        }
        IoVecs { iovs: rest, at: 0, skip: 0 }
    }

    /// Zeroes the last `bytes` bytes of the memory, used up or not.
    pub(crate) fn zero_last(&mut self, mut bytes: usize) {
        for (index, iov) in self.iovs.iter().enumerate().rev() {
            let skip = if index == self.at { self.skip } else { 0 };
            let (start, len) = (iov.iov_base.cast::<u8>().wrapping_sub(skip), iov.iov_len + skip);
            let take = bytes.min(len);
            // SAFETY: Y1: the piece is valid for writes of its length, and take <= len.
            unsafe { start.add(len - take).write_bytes(0, take) };
            bytes -= take;
            if bytes == 0 {
                return;
            }
        }
    }

    /// Whether every piece starts at a multiple of `memory` and is a multiple of `block` long.
    pub(crate) fn aligned(&self, memory: usize, block: usize) -> bool {
        self.iovs.iter().all(|iov| {
            (iov.iov_base as usize).is_multiple_of(memory) && iov.iov_len.is_multiple_of(block)
        })
    }
}

fn check(n: isize) -> io::Result<usize> {
    usize::try_from(n).map_err(|_| io::Error::last_os_error())
}

/// `preadv2` into the window of `iovs`; does not advance the list.
pub(crate) fn read_at(fd: BorrowedFd<'_>, iovs: &mut IoVecs, pos: u64) -> io::Result<usize> {
    let (window, _) = iovs.window();
    let count = window.len() as c_int;
    // SAFETY: Y1: the pieces are valid for writes, and this list borrows them.
    check(unsafe { libc::preadv2(fd.as_raw_fd(), window.as_ptr(), count, pos as i64, 0) })
}

/// `pwritev2` of the window of `iovs` with RWF flags; does not advance the list.
pub(crate) fn write_at(
    fd: BorrowedFd<'_>,
    iovs: &IoVecs,
    pos: u64,
    flags: c_int,
) -> io::Result<usize> {
    let (window, _) = iovs.window();
    let count = window.len() as c_int;
    // SAFETY: Y1: the pieces are valid for reads.
    check(unsafe { libc::pwritev2(fd.as_raw_fd(), window.as_ptr(), count, pos as i64, flags) })
}

/// First byte of the part of a file's lock that moves to its second open file description. No file
/// is that long.
const LOCK_TAIL: i64 = 1 << 62;

fn lock_kind(write: bool) -> c_int {
    if write { libc::F_WRLCK } else { libc::F_RDLCK }
}

/// Repeats a call that a signal interrupts.
pub(crate) fn retry<T>(mut call: impl FnMut() -> rustix::io::Result<T>) -> rustix::io::Result<T> {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            other => return other,
        }
    }
}

/// Locks the whole file for as long as its open file description lives. Fails with EAGAIN or
/// EACCES if another open file description holds a lock that conflicts.
pub(crate) fn lock_file(fd: BorrowedFd<'_>, write: bool) -> io::Result<()> {
    set_lock(fd, lock_kind(write), 0)
}

/// Releases the lock on all of the file, or on the part that the open file description has.
pub(crate) fn unlock_file(fd: BorrowedFd<'_>) -> io::Result<()> {
    set_lock(fd, libc::F_UNLCK, 0)
}

/// Splits the lock of `first`, which covers the full file, with another open file description of
/// it. An opener that locks the full file fails until both are closed. Fails as [`lock_file`];
/// `first` alone then refuses other openers.
pub(crate) fn share_lock(
    first: BorrowedFd<'_>,
    second: BorrowedFd<'_>,
    write: bool,
) -> io::Result<()> {
    // Meanwhile the part that `first` keeps refuses other openers.
    set_lock(first, libc::F_UNLCK, LOCK_TAIL)?;
    set_lock(second, lock_kind(write), LOCK_TAIL)
}

/// Sets the lock from `start` to the end of all files.
fn set_lock(fd: BorrowedFd<'_>, kind: c_int, start: i64) -> io::Result<()> {
    // SAFETY: flock is plain old data; zero is a valid value for each field.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = kind as _;
    lock.l_whence = libc::SEEK_SET as _;
    lock.l_start = start as _;
    // SAFETY: F_OFD_SETLK reads one flock, which lives until the call returns.
    check(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_OFD_SETLK, &raw const lock) } as isize)?;
    Ok(())
}

const BLKGETSIZE64: c_ulong = 0x8008_1272;
const BLKDISCARD: c_ulong = 0x1277;
const BLKZEROOUT: c_ulong = 0x127f;

/// Size of a block device, bytes.
pub(crate) fn block_size(fd: BorrowedFd<'_>) -> io::Result<u64> {
    let mut size = 0u64;
    // SAFETY: BLKGETSIZE64 writes one u64.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), BLKGETSIZE64 as _, &raw mut size) } as isize)?;
    Ok(size)
}

fn block_range(fd: BorrowedFd<'_>, request: c_ulong, pos: u64, len: u64) -> io::Result<()> {
    let range = [pos, len];
    // SAFETY: both requests read two u64.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), request as _, &raw const range) } as isize)?;
    Ok(())
}

/// Discards a range of a block device.
pub(crate) fn block_discard(fd: BorrowedFd<'_>, pos: u64, len: u64) -> io::Result<()> {
    block_range(fd, BLKDISCARD, pos, len)
}

/// Zeroes a range of a block device, by whatever method the kernel has.
pub(crate) fn block_zero(fd: BorrowedFd<'_>, pos: u64, len: u64) -> io::Result<()> {
    block_range(fd, BLKZEROOUT, pos, len)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn iovecs_split_advance_and_zero_last() {
        let mut memory = vec![9u8; 4000];
        let base = memory.as_mut_ptr();
        let segments: Vec<Segment> =
            (0..4).map(|i| Segment { ptr: base.wrapping_add(i * 1000), len: 1000 }).collect();
        // SAFETY: memory outlives the lists.
        let mut list = unsafe { IoVecs::new(&segments) };
        let rest = list.split_off(2500);
        assert_eq!((list.window().1, rest.window().1), (2500, 1500));
        list.advance(2400);
        assert_eq!(list.window().1, 100);
        list.zero_last(600);
        list.advance(100);
        assert_eq!(list.window().1, 0);
        drop((list, rest));
        assert!(memory[1900..2500].iter().all(|b| *b == 0));
        assert!(memory[..1900].iter().chain(&memory[2500..]).all(|b| *b == 9));
    }

    #[test]
    fn windows_keep_the_limits() {
        let mut memory = vec![0u8; 9 << 20];
        let one = [Segment { ptr: memory.as_mut_ptr(), len: memory.len() }];
        // SAFETY: memory outlives the list.
        let list = unsafe { IoVecs::new(&one) };
        assert_eq!(list.window().1, MAX_TRANSFER);
        let base = memory.as_mut_ptr();
        let many: Vec<Segment> =
            (0..3000).map(|i| Segment { ptr: base.wrapping_add(i * 512), len: 512 }).collect();
        // SAFETY: as above.
        let list = unsafe { IoVecs::new(&many) };
        assert_eq!(list.window().0.len(), MAX_SEGMENTS);
    }
}
