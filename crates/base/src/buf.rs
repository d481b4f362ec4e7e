//! Owned aligned memory, and the contract under which a device borrows memory.
//!
//! In-flight I/O owns its buffers: a bio (one request to a device) holds a [`DataRef`] until it
//! completes. So a caller that drops its operation cannot leave the device writing into freed
//! memory.

use std::alloc::{Layout, alloc, alloc_zeroed, dealloc, handle_alloc_error};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;

/// Alignment of every [`AlignedBuf`], bytes: enough for O_DIRECT on any device met so far.
pub const BUF_ALIGN: usize = 4096;

/// Initialised heap memory, aligned to [`BUF_ALIGN`], of a fixed length in bytes.
pub struct AlignedBuf {
    ptr: NonNull<u8>,
    len: usize,
}

// SAFETY: the memory is owned by this value alone, like a Box<[u8]>.
unsafe impl Send for AlignedBuf {}
// SAFETY: shared access only hands out &[u8].
unsafe impl Sync for AlignedBuf {}

impl AlignedBuf {
    fn layout(len: usize) -> Layout {
        Layout::from_size_align(len.max(1), BUF_ALIGN).expect("buffer length below isize::MAX")
    }

    /// `len` zero bytes.
    pub fn new(len: usize) -> Self {
        let layout = Self::layout(len);
        // SAFETY: the layout has a size of at least one byte.
        let raw = unsafe { alloc_zeroed(layout) };
        let Some(ptr) = NonNull::new(raw) else { handle_alloc_error(layout) };
        Self { ptr, len }
    }

    /// `len` zero bytes, for a length that a caller chose; `None` if there is not that much memory.
    pub fn try_new(len: usize) -> Option<Self> {
        let layout = Layout::from_size_align(len.max(1), BUF_ALIGN).ok()?;
        // SAFETY: the layout has a size of at least one byte.
        let ptr = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        Some(Self { ptr, len })
    }

    /// A copy of `bytes`.
    pub fn copy_of(bytes: &[u8]) -> Self {
        let (len, layout) = (bytes.len(), Self::layout(bytes.len()));
        // SAFETY: the layout has a size of at least one byte.
        let raw = unsafe { alloc(layout) };
        let Some(ptr) = NonNull::new(raw) else { handle_alloc_error(layout) };
        // SAFETY: both are valid for `len` bytes, and only this value has the new memory. The copy
        // initialises all of it, as the slices made of it later require.
        unsafe { ptr.as_ptr().copy_from_nonoverlapping(bytes.as_ptr(), len) };
        Self { ptr, len }
    }
}

impl Drop for AlignedBuf {
    fn drop(&mut self) {
        // SAFETY: allocated in `new`, `try_new` or `copy_of` with the same layout.
        unsafe { dealloc(self.ptr.as_ptr(), Self::layout(self.len)) }
    }
}

impl Deref for AlignedBuf {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: ptr covers len initialised bytes owned by self.
        unsafe { std::slice::from_raw_parts(self.ptr.as_ptr(), self.len) }
    }
}

impl DerefMut for AlignedBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in deref, and self is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.as_ptr(), self.len) }
    }
}

impl fmt::Debug for AlignedBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AlignedBuf({} bytes)", self.len)
    }
}

/// One contiguous piece of memory of a bio.
#[derive(Clone, Copy, Debug)]
pub struct Segment {
    /// First byte.
    pub ptr: *mut u8,
    /// Length in bytes.
    pub len: usize,
}

// SAFETY: a Segment is only an address; the IoMem it came from decides which threads may touch it.
unsafe impl Send for Segment {}
// SAFETY: a shared reference gives no access to the memory, only its address and length.
unsafe impl Sync for Segment {}

/// Memory that a device may borrow.
///
/// # Safety
/// An implementor promises, until the value is dropped:
/// 1. `segments` always yields the same addresses, valid for reads and writes of their length;
/// 2. no other Rust reference into them exists. Other threads may access them only by raw copies.
///    The implementor has excluded that these interleave with the device, or accepts a torn result
///    (stable writes prevent it);
/// 3. the memory is not returned to an allocator.
pub unsafe trait IoMem: Send {
    /// Appends the pieces, in order.
    fn segments(&mut self, out: &mut Vec<Segment>);
}

// SAFETY: AlignedBuf owns its memory, never moves it, and is borrowed exclusively here.
unsafe impl IoMem for AlignedBuf {
    fn segments(&mut self, out: &mut Vec<Segment>) {
        out.push(Segment { ptr: self.ptr.as_ptr(), len: self.len });
    }
}

/// A buffer of which several bios write parts to a device concurrently. While a part exists, only
/// the bios access the bytes; then [`PartedBuf::into_buf`] makes it an ordinary buffer again.
pub struct PartedBuf(Arc<AlignedBuf>);

struct BufPart {
    whole: Arc<AlignedBuf>,
    at: usize,
    len: usize,
}

// SAFETY: IoMem rule 1: the memory neither moves nor is freed while `whole` holds the Arc, and an
// allocation of our own is valid for writes. Rule 2: the Arc is private to this module, which makes
// no reference into the memory while a part exists: `PartedBuf::into_buf` returns the buffer only
// as the last holder. Parts that overlap are torn at worst, which their maker accepts. Rule 3: the
// memory is freed with the last Arc.
unsafe impl IoMem for BufPart {
    fn segments(&mut self, out: &mut Vec<Segment>) {
        out.push(Segment { ptr: self.whole.ptr.as_ptr().wrapping_add(self.at), len: self.len });
    }
}

impl PartedBuf {
    /// Takes a buffer over.
    pub fn new(buf: AlignedBuf) -> Self {
        Self(Arc::new(buf))
    }

    /// Bytes `at..at + len` for a bio. Panics if the buffer is shorter.
    pub fn part(&self, at: usize, len: usize) -> DataRef {
        assert!(at.checked_add(len).is_some_and(|end| end <= self.0.len), "within the buffer");
        DataRef::Mem(Box::new(BufPart { whole: self.0.clone(), at, len }))
    }

    /// Returns the buffer; `None` if a bio still holds a part of it. The memory is then freed with
    /// the last part.
    pub fn into_buf(self) -> Option<AlignedBuf> {
        Arc::try_unwrap(self.0).ok()
    }
}

/// Memory that a device borrows from an object which its owner keeps and reuses, so that a bio
/// allocates nothing.
///
/// # Safety
/// The rules of [`IoMem`] hold from the moment a bio gets the memory until that bio completes.
pub unsafe trait SharedMem: Send + Sync {
    /// Appends the pieces, in order.
    fn segments(&self, out: &mut Vec<Segment>);
}

/// The data of a bio: memory that the bio owns until it completes.
pub enum DataRef {
    /// No data (flush, discard, write zeroes).
    None,
    /// One owned buffer.
    Buf(AlignedBuf),
    /// Anything else that keeps the [`IoMem`] contract, such as frames of the cache.
    Mem(Box<dyn IoMem>),
    /// Memory that the bio shares with its owner, which reuses it.
    Shared(Arc<dyn SharedMem>),
}

impl DataRef {
    /// The pieces, in order.
    pub fn segments(&mut self) -> Vec<Segment> {
        let mut out = Vec::new();
        self.segments_into(&mut out);
        out
    }

    /// Appends the pieces, in order.
    pub fn segments_into(&mut self, out: &mut Vec<Segment>) {
        match self {
            Self::None => {}
            Self::Buf(buf) => buf.segments(out),
            Self::Mem(mem) => mem.segments(out),
            Self::Shared(mem) => mem.segments(out),
        }
    }

    /// Takes the buffer back after completion; `None` unless it is a [`DataRef::Buf`].
    pub fn into_buf(self) -> Option<AlignedBuf> {
        match self {
            Self::Buf(buf) => Some(buf),
            _ => None,
        }
    }

    /// Copies bytes out of the memory, from `skip` on, while the caller owns the bio. Returns how
    /// many were copied. For devices in memory, and for decorators that inspect data.
    pub fn copy_out(&mut self, skip: usize, dst: &mut [u8]) -> usize {
        let mut done = 0;
        self.each(skip, dst.len(), |seg| {
            // SAFETY: IoMem rule 1: seg is valid for seg.len bytes; `each` clips to the length of
            // dst.
            unsafe { std::ptr::copy_nonoverlapping(seg.ptr, dst[done..].as_mut_ptr(), seg.len) };
            done += seg.len;
        });
        done
    }

    /// Copies bytes into the memory, from `skip` on. Returns how many were copied.
    pub fn copy_in(&mut self, skip: usize, src: &[u8]) -> usize {
        let mut done = 0;
        self.each(skip, src.len(), |seg| {
            // SAFETY: IoMem rule 1: seg is valid for seg.len bytes; `each` clips to the length of
            // src.
            unsafe { std::ptr::copy_nonoverlapping(src[done..].as_ptr(), seg.ptr, seg.len) };
            done += seg.len;
        });
        done
    }

    /// Calls `f` for the pieces of memory of bytes `skip..skip + len`, clipped to the length of the
    /// data.
    fn each(&mut self, mut skip: usize, mut len: usize, mut f: impl FnMut(Segment)) {
        for seg in self.segments() {
            if skip >= seg.len {
                skip -= seg.len;
                continue;
            }
            let take = (seg.len - skip).min(len);
            if take == 0 {
                return;
            }
            f(Segment { ptr: seg.ptr.wrapping_add(skip), len: take });
            len -= take;
            skip = 0;
        }
    }
}

impl fmt::Debug for DataRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("None"),
            Self::Buf(buf) => buf.fmt(f),
            Self::Mem(_) => f.write_str("Mem"),
            Self::Shared(_) => f.write_str("Shared"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parted_buf_last_part_dropped_returns_buffer() {
        let mut buf = AlignedBuf::new(8192);
        buf[4096..].fill(7);
        let parted = PartedBuf::new(buf);
        let (mut low, mut high) = (parted.part(0, 4096), parted.part(4096, 4096));
        let mut out = [9; 2];
        low.copy_out(4095, &mut out);
        assert_eq!(out, [0, 9]);
        assert_eq!(high.copy_out(0, &mut out), 2);
        assert_eq!(out, [7, 7]);
        drop(low);
        assert!(parted.into_buf().is_none(), "a part is out");
        assert_eq!(high.copy_out(4000, &mut [0; 96]), 96, "and keeps the memory");
        let parted = PartedBuf::new(AlignedBuf::new(512));
        drop(parted.part(0, 512));
        assert_eq!(parted.into_buf().map(|buf| buf.len()), Some(512));
    }

    #[test]
    fn try_new_without_memory_returns_none() {
        assert!(AlignedBuf::try_new(usize::MAX).is_none());
        assert!(AlignedBuf::try_new(1 << 62).is_none());
        assert_eq!(AlignedBuf::try_new(512).unwrap()[..], [0; 512]);
    }

    #[test]
    fn aligned_buf_new_is_aligned_zeroed_copyable() {
        let mut data = DataRef::Buf(AlignedBuf::new(8192));
        assert_eq!(data.segments()[0].ptr as usize % BUF_ALIGN, 0);
        assert_eq!(data.copy_in(4000, &[7; 200]), 200);
        let mut out = [0u8; 204];
        assert_eq!(data.copy_out(3998, &mut out), 204);
        assert_eq!(out[..2], [0, 0]);
        assert_eq!(out[2..202], [7; 200]);
        assert_eq!(data.copy_out(8190, &mut out), 2);
        assert_eq!(data.into_buf().unwrap().len(), 8192);
    }
}
