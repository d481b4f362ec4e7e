//! The memory that cached bytes live in: one memfd-backed mapping, cut into frames of 4 KiB.
//!
//! Invariants: M1 the mapping lives as long as any [`Arena`] handle, so an address handed to a
//! device stays valid even if its frame has been given to somebody else. M2 no Rust reference
//! into the arena is ever made: bytes move by raw copies only. M3 who may copy is decided by the
//! folio lock and the block states (see [`crate::folio::table`]); a device reading a frame that a writer
//! is changing gets a torn block, which is what the stable-write strategies are for.

use forebay_base::buf::{IoMem, Segment};
use forebay_base::{Error, Result};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};
use std::ffi::c_void;
use std::sync::Arc;

/// Bytes of a frame.
pub const FRAME_SIZE: usize = 4096;
/// Number of a frame in the arena.
pub type Frame = u32;

/// Huge page size that the arena is aligned to and collapsed into, bytes.
const HUGE: usize = 2 << 20;
/// `MADV_COLLAPSE` (Linux 6.1): synchronously makes huge pages, also where THP for shmem is off.
const MADV_COLLAPSE: i32 = 25;
/// Bytes collapsed by one call.
const COLLAPSE_STEP: usize = 256 << 20;

/// The mapping. Shared; unmapped when the last handle goes.
pub struct Arena {
    base: *mut u8,
    bytes: usize,
    map_base: *mut c_void,
    map_bytes: usize,
    huge_bytes: usize,
}

// SAFETY: the arena is plain memory; access goes through raw copies under rule M3.
unsafe impl Send for Arena {}
// SAFETY: as above.
unsafe impl Sync for Arena {}

impl Arena {
    /// Maps `frames` frames. With `huge`, the memory is faulted in and collapsed to huge pages
    /// now; without, pages are faulted in as they are used.
    pub fn new(frames: usize, huge: bool) -> Result<Arc<Self>> {
        let err = |e: rustix::io::Errno| Error::from_io("map arena", e.into());
        let bytes = frames * FRAME_SIZE;
        let fd = memfd_create("forebay-arena", MemfdFlags::CLOEXEC).map_err(err)?;
        ftruncate(&fd, bytes as u64).map_err(err)?;
        let map_bytes = bytes + HUGE;
        // Address space first, larger by one huge page, so that the arena can start on a huge
        // page boundary.
        // SAFETY: a fresh anonymous mapping at an address of the kernel's choice.
        let map_base = unsafe {
            rustix::mm::mmap_anonymous(
                std::ptr::null_mut(),
                map_bytes,
                ProtFlags::empty(),
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )
        }
        .map_err(err)?;
        let base = map_base.cast::<u8>().wrapping_add((map_base as usize).wrapping_neg() % HUGE);
        // SAFETY: [base, base + bytes) lies inside the mapping just made, which nobody uses yet.
        unsafe {
            mmap(
                base.cast(),
                bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED | MapFlags::FIXED,
                &fd,
                0,
            )
        }
        .map_err(err)?;
        let mut arena = Self { base, bytes, map_base, map_bytes, huge_bytes: 0 };
        arena.advise(huge);
        Ok(Arc::new(arena))
    }

    fn advise(&mut self, huge: bool) {
        // SAFETY: the range is the whole arena; this advice does not change its content.
        let _ = unsafe { madvise(self.base.cast(), self.bytes, Advice::LinuxDontDump) };
        if !huge {
            return;
        }
        // One call for many huge pages: each call has a price of its own, of milliseconds.
        let whole = self.bytes / HUGE * HUGE;
        for at in (0..whole).step_by(COLLAPSE_STEP) {
            let len = COLLAPSE_STEP.min(whole - at);
            if self.collapse(at, len) {
                self.huge_bytes += len;
                continue;
            }
            let single = (at..at + len).step_by(HUGE).filter(|&at| self.collapse(at, HUGE)).count();
            self.huge_bytes += single * HUGE;
            if single == 0 {
                let why = std::io::Error::last_os_error();
                log::info!(
                    "arena: {} bytes on huge pages, then none to be had: {why}",
                    self.huge_bytes
                );
                return;
            }
        }
    }

    /// Puts huge pages under a part of the arena. One page of each is touched first, because a range
    /// that has none is not collapsed; the kernel fills the rest with zeros.
    fn collapse(&self, at: usize, len: usize) -> bool {
        let start = self.base.wrapping_add(at);
        let touched = (0..len).step_by(HUGE).all(|at| {
            let page = start.wrapping_add(at).cast();
            // SAFETY: the page lies inside the arena; the call keeps its content.
            unsafe { libc::madvise(page, FRAME_SIZE, libc::MADV_POPULATE_WRITE) == 0 }
        });
        // SAFETY: the range lies inside the arena; the call keeps its content. libc's wrapper is
        // used because rustix knows no COLLAPSE.
        touched && unsafe { libc::madvise(start.cast(), len, MADV_COLLAPSE) == 0 }
    }

    /// Number of frames.
    pub fn frames(&self) -> usize {
        self.bytes / FRAME_SIZE
    }

    /// Size of the pages that back most of it: 2 MiB where the collapse worked, else the system's.
    pub fn page_size(&self) -> usize {
        if self.huge_bytes > self.bytes / 2 { HUGE } else { rustix::param::page_size() }
    }

    /// Bytes that are on huge pages.
    pub fn huge_bytes(&self) -> usize {
        self.huge_bytes
    }

    #[inline]
    fn at(&self, frame: Frame, offset: usize, len: usize) -> *mut u8 {
        let start = frame as usize * FRAME_SIZE + offset;
        assert!(start + len <= self.bytes, "frame {frame} + {offset} + {len} leaves the arena");
        self.base.wrapping_add(start)
    }

    /// Has the processor fetch the beginning of a frame; a hint, for any frame number.
    #[inline]
    pub fn prefetch(&self, frame: Frame, offset: usize) {
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            let at = self.base.wrapping_add(frame as usize * FRAME_SIZE + offset);
            for line in 0..4 {
                // SAFETY: a prefetch reads nothing that the program can see, at any address.
                unsafe { _mm_prefetch::<_MM_HINT_T0>(at.wrapping_add(line * 64).cast()) };
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = (frame, offset);
    }

    /// Copies out of consecutive frames, from `offset` bytes into `frame` on.
    #[inline]
    pub fn copy_out(&self, frame: Frame, offset: usize, dst: &mut [u8]) {
        let src = self.at(frame, offset, dst.len());
        // SAFETY: `at` checked the bounds; dst is the caller's own memory (M2, M3).
        unsafe { std::ptr::copy_nonoverlapping(src, dst.as_mut_ptr(), dst.len()) }
    }

    /// Copies into consecutive frames, from `offset` bytes into `frame` on.
    #[inline]
    pub fn copy_in(&self, frame: Frame, offset: usize, src: &[u8]) {
        let dst = self.at(frame, offset, src.len());
        // SAFETY: as in copy_out.
        unsafe { std::ptr::copy_nonoverlapping(src.as_ptr(), dst, src.len()) }
    }

    /// Sets bytes of one frame to zero.
    pub fn zero(&self, frame: Frame, offset: usize, len: usize) {
        let dst = self.at(frame, offset, len);
        // SAFETY: as in copy_out.
        unsafe { std::ptr::write_bytes(dst, 0, len) }
    }

    /// Sets all bytes of a frame.
    pub fn fill(&self, frame: Frame, value: u8) {
        let dst = self.at(frame, 0, FRAME_SIZE);
        // SAFETY: as in copy_out.
        unsafe { std::ptr::write_bytes(dst, value, FRAME_SIZE) }
    }

    /// Copies part of a frame to the same place of another.
    pub fn copy_between(&self, from: Frame, to: Frame, offset: usize, len: usize) {
        assert!(from != to && offset + len <= FRAME_SIZE);
        let (src, dst) = (self.at(from, offset, len), self.at(to, offset, len));
        // SAFETY: two different frames inside the arena.
        unsafe { std::ptr::copy_nonoverlapping(src, dst, len) }
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        // SAFETY: mapped in `new`, and no address of it is in use any more (M1).
        let _ = unsafe { munmap(self.map_base, self.map_bytes) };
    }
}

/// Has the processor fetch the cache line of a value; a hint.
#[inline]
pub(crate) fn prefetch_line<T>(value: &T) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch reads nothing that the program can see.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(value).cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = value;
}

/// A vector of `len` values in memory that is asked to be huge pages before it is touched: the
/// folio table and the index are read at random, and a miss in the TLB costs as much as the copy
/// of a small block.
pub(crate) fn huge_vec<T>(len: usize, mut value: impl FnMut() -> T) -> Vec<T> {
    let mut vec: Vec<T> = Vec::with_capacity(len);
    let start = (vec.as_ptr() as usize).next_multiple_of(HUGE);
    let end = (vec.as_ptr() as usize + len * size_of::<T>()) / HUGE * HUGE;
    if start < end {
        let at = vec.as_mut_ptr().cast::<u8>().wrapping_add(start - vec.as_ptr() as usize);
        // SAFETY: [start, end) lies inside the vector's own allocation, whole pages of it; the
        // advice changes no content.
        let _ = unsafe { madvise(at.cast(), end - start, Advice::LinuxHugepage) };
    }
    vec.resize_with(len, &mut value);
    vec
}

/// Bytes of frames lent to a device, in order. Adjacent frames become one segment.
pub struct FrameList {
    arena: Arc<Arena>,
    segments: Vec<Segment>,
}

impl FrameList {
    /// An empty list.
    pub fn new(arena: &Arc<Arena>) -> Self {
        Self { arena: arena.clone(), segments: Vec::new() }
    }

    /// Appends `len` bytes from `offset` on in `frame`.
    pub fn push(&mut self, frame: Frame, offset: usize, len: usize) {
        let ptr = self.arena.at(frame, offset, len);
        match self.segments.last_mut() {
            Some(last) if last.ptr.wrapping_add(last.len) == ptr => last.len += len,
            _ => self.segments.push(Segment { ptr, len }),
        }
    }

    /// Number of segments so far.
    pub fn segment_count(&self) -> usize {
        self.segments.len()
    }

    /// Total bytes.
    pub fn bytes(&self) -> usize {
        self.segments.iter().map(|s| s.len).sum()
    }
}

// SAFETY: rule 1 and 3: addresses inside the arena, which `arena` keeps mapped (M1). Rule 2: no
// references into the arena exist (M2); concurrent raw copies are ruled by M3.
unsafe impl IoMem for FrameList {
    fn segments(&mut self, out: &mut Vec<Segment>) {
        out.extend_from_slice(&self.segments);
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn copies_and_lends() {
        let arena = Arena::new(64, false).unwrap();
        arena.copy_in(3, 10, b"hello");
        let mut out = [0; 5];
        arena.copy_out(3, 10, &mut out);
        assert_eq!(&out, b"hello");
        arena.copy_between(3, 9, 0, FRAME_SIZE);
        arena.zero(3, 0, FRAME_SIZE);
        arena.copy_out(9, 10, &mut out);
        assert_eq!(&out, b"hello");
        let mut list = FrameList::new(&arena);
        list.push(4, 0, 4096);
        list.push(5, 0, 4096);
        list.push(8, 512, 512);
        assert_eq!((list.segment_count(), list.bytes()), (2, 8704));
    }

    #[test]
    fn huge_arena_is_usable_either_way() {
        let arena = Arena::new(1024, true).unwrap();
        arena.copy_in(1023, 4095, &[1]);
        assert!(arena.page_size() == HUGE || arena.page_size() == 4096);
    }
}
