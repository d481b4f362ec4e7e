//! The memory of cached bytes: one memory mapping, divided into frames of 4 KiB, sized for the
//! largest budget and resident as far as it is used.
//!
//! Memory becomes resident as it is used. With huge pages it is populated a step ahead of use: a
//! task that takes frames which were never used starts a background task for the next ones. Without
//! huge pages, or if that task is late, the first access populates a page. A smaller budget
//! releases memory.
//!
//! Invariants: M1 the mapping lives as long as any [`Arena`] handle, so an address handed to a
//! device stays valid even if its frame has been given to another owner. M2 the only Rust
//! references into the arena are shared ones to bytes of pinned frames, which do not change
//! ([`crate::folio::pinned`]); all other bytes move by raw copies. M3 the folio lock and the block
//! states decide which task may copy (see [`crate::table`]). A device that reads a frame while a
//! writer changes it gets a torn block; the stable-write strategies prevent that. M4 no memory
//! above the current limit is populated, and none is released while a frame there is in use.
//!
//! Lock: `ahead`, a leaf, held while a huge page is populated.

use crate::memory::region::{HUGE, Region, huge_on_touch};
use forebay_base::Result;
use forebay_base::buf::{IoMem, Segment, SharedMem};
use forebay_base::world::World;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

/// Bytes of a frame.
pub const FRAME_SIZE: usize = 4096;
/// Number of a frame in the arena.
pub type Frame = u32;

/// With huge pages, at least this many bytes are populated ahead of use, as far as the limit
/// allows.
const STEP: usize = 16 << 20;

/// How far the arena is populated, is to be, and may be: in bytes from its beginning.
#[derive(Default)]
struct Ahead {
    done: usize,
    wanted: usize,
    limit: usize,
}

/// The memory of all frames. Shared; unmapped with the last handle.
pub struct Arena {
    region: Region,
    bytes: usize,
    huge: bool,
    on_touch: bool,
    // The mutex of std, because populating is never part of a shuttle test.
    ahead: Mutex<Ahead>,
    /// A hint of `Ahead::done`.
    done: AtomicUsize,
    populating: AtomicBool,
}

impl Arena {
    /// Maps memory for `max` frames, of which the first `frames` may be used. With `huge`, on huge
    /// pages.
    pub fn new(frames: usize, max: usize, huge: bool) -> Result<Arc<Self>> {
        let bytes = max * FRAME_SIZE;
        let arena = Self {
            region: Region::new(bytes)?,
            bytes,
            huge,
            on_touch: huge_on_touch(),
            ahead: Mutex::default(),
            done: AtomicUsize::new(0),
            populating: AtomicBool::new(false),
        };
        arena.set_limit(frames);
        Ok(Arc::new(arena))
    }

    fn ahead(&self) -> MutexGuard<'_, Ahead> {
        self.ahead.lock().unwrap_or_else(|p| p.into_inner())
    }

    /// The first `frames` frames may be used from now on, and populated.
    pub fn set_limit(&self, frames: usize) {
        let mut ahead = self.ahead();
        ahead.limit = frames * FRAME_SIZE;
        ahead.wanted = ahead.wanted.min(ahead.limit);
        if self.huge {
            self.region.advise(ahead.limit);
        }
    }

    /// Gives the memory of the frames above the limit back to the system. None of them is in use
    /// (M4).
    pub fn release_above(&self) {
        let mut ahead = self.ahead();
        self.region.release(ahead.limit);
        ahead.done = ahead.done.min(ahead.limit);
        self.done.store(ahead.done, Ordering::Relaxed);
    }

    /// The first `touched` frames are used, or will be: a task of the world populates the next
    /// ones, unless they are populated.
    pub fn stay_ahead(self: &Arc<Self>, touched: usize, world: &dyn World) {
        let used = touched * FRAME_SIZE;
        if !self.huge || used + STEP <= self.done.load(Ordering::Relaxed) {
            return;
        }
        let more = {
            let Ok(mut ahead) = self.ahead.try_lock() else { return };
            ahead.wanted = ahead.wanted.max((used + 2 * STEP).min(ahead.limit));
            ahead.done < ahead.wanted
        };
        if more && !self.populating.swap(true, Ordering::AcqRel) {
            let arena = self.clone();
            world.spawn("forebay-memory", Box::pin(async move { arena.catch_up() }));
        }
    }

    fn catch_up(&self) {
        loop {
            while self.populate_next() {}
            self.populating.store(false, Ordering::Release);
            let ahead = self.ahead();
            let done = ahead.done >= ahead.wanted;
            drop(ahead);
            if done || self.populating.swap(true, Ordering::AcqRel) {
                return;
            }
        }
    }

    /// Populates the next huge page that is wanted. Returns whether another one is wanted after it.
    fn populate_next(&self) -> bool {
        let mut ahead = self.ahead();
        if ahead.done >= ahead.wanted {
            return false;
        }
        let range = ahead.done..(ahead.done + HUGE).min(ahead.limit);
        if !self.populate(range.clone()) {
            // The task that touches the memory meets the system's error.
            let why = std::io::Error::last_os_error();
            log::info!("arena: nothing populated ahead of use from {} on: {why}", range.start);
            ahead.done = ahead.wanted;
            return false;
        }
        ahead.done = range.end;
        self.done.store(ahead.done, Ordering::Relaxed);
        ahead.done < ahead.wanted
    }

    fn populate(&self, range: std::ops::Range<usize>) -> bool {
        if !self.huge || self.on_touch || range.len() < HUGE {
            return self.region.populate(range);
        }
        // Where huge pages are off, one can still be made on demand, of a range with a resident
        // page.
        self.region.populate(range.start..range.start + FRAME_SIZE)
            && (self.region.collapse(range.clone()) || self.region.populate(range))
    }

    /// Populates all that may be used, now.
    pub fn prefault(&self) {
        let mut ahead = self.ahead();
        ahead.wanted = ahead.limit;
        drop(ahead);
        while self.populate_next() {}
    }

    /// Number of frames in the mapping.
    pub fn frames(&self) -> usize {
        self.bytes / FRAME_SIZE
    }

    /// Size of the pages behind most of the used memory, and the bytes on huge pages. Queries the
    /// kernel, which takes a while on small pages.
    pub fn pages(&self) -> (usize, usize) {
        if !self.huge {
            return (rustix::param::page_size(), 0);
        }
        let (resident, huge) = self.region.resident();
        let page = if huge > resident / 2 { HUGE } else { rustix::param::page_size() };
        (page, huge)
    }

    #[inline]
    fn at(&self, frame: Frame, offset: usize, len: usize) -> *mut u8 {
        let start = frame as usize * FRAME_SIZE + offset;
        if start + len > self.bytes {
            leaves_arena(frame, offset, len);
        }
        self.region.base().wrapping_add(start)
    }

    /// Has the processor fetch four cache lines of a frame, from `offset` on; a hint, for any frame
    /// number.
    #[inline]
    pub fn prefetch(&self, frame: Frame, offset: usize) {
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            let at = self.region.base().wrapping_add(frame as usize * FRAME_SIZE + offset);
            for line in 0..4 {
                // SAFETY: a prefetch reads nothing that the program can see, at any address.
                unsafe { _mm_prefetch::<_MM_HINT_T0>(at.wrapping_add(line * 64).cast()) };
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = (frame, offset);
    }

    /// The bytes from `offset` into `frame` on, as a pointer.
    pub(crate) fn bytes(&self, frame: Frame, offset: usize, len: usize) -> *const [u8] {
        std::ptr::slice_from_raw_parts(self.at(frame, offset, len), len)
    }

    /// Offset of an address from the beginning of the arena, bytes.
    pub(crate) fn offset_of(&self, address: *const u8) -> usize {
        address.addr() - self.region.base().addr()
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

    /// As [`Arena::copy_in`], but around the processor's caches if the bytes fill a frame. For much
    /// data that is not read again soon: an ordinary store first reads the line that it overwrites.
    pub fn stream_in(&self, frame: Frame, offset: usize, src: &[u8]) {
        if src.len() != FRAME_SIZE {
            return self.copy_in(frame, offset, src);
        }
        let dst = self.at(frame, offset, src.len());
        // SAFETY: as in copy_out. A run of FRAME_SIZE bytes begins where a frame does, because it
        // lies inside one.
        unsafe { stream(src, dst) }
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

    /// Copies part of a frame to the same offset of another.
    pub fn copy_between(&self, from: Frame, to: Frame, offset: usize, len: usize) {
        assert!(from != to && offset + len <= FRAME_SIZE);
        let (src, dst) = (self.at(from, offset, len), self.at(to, offset, len));
        // SAFETY: two different frames inside the arena.
        unsafe { std::ptr::copy_nonoverlapping(src, dst, len) }
    }
}

/// Copies `src` to `dst` with stores that bypass the caches of the processor.
///
/// # Safety
/// `dst` is valid for writes of as many bytes as `src` has, aligned to 64 bytes, and does not
/// overlap `src`; their number is a multiple of 64.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[target_feature(enable = "sse2")]
unsafe fn stream(src: &[u8], dst: *mut u8) {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_sfence, _mm_stream_si128};
    for (at, line) in src.chunks_exact(64).enumerate() {
        let from = line.as_ptr().cast::<__m128i>();
        let to = dst.wrapping_add(at * 64).cast::<__m128i>();
        for part in 0..4 {
            // SAFETY: `line` has 64 bytes; the caller vouches for `dst`.
            unsafe { _mm_stream_si128(to.wrapping_add(part), _mm_loadu_si128(from.add(part))) };
        }
    }
    // These stores are not ordered with later ones, which publish the bytes to other processors.
    _mm_sfence();
}

/// As on x86-64, with ordinary stores.
///
/// # Safety
/// `dst` is valid for writes of as many bytes as `src` has, and does not overlap it.
#[cfg(not(all(target_arch = "x86_64", not(miri))))]
unsafe fn stream(src: &[u8], dst: *mut u8) {
    // SAFETY: the caller vouches for it.
    unsafe { std::ptr::copy_nonoverlapping(src.as_ptr(), dst, src.len()) }
}

/// A function of its own, so that the hit path does not store the numbers for the message.
#[cold]
fn leaves_arena(frame: Frame, offset: usize, len: usize) -> ! {
    panic!("frame {frame} + {offset} + {len} leaves the arena")
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

/// Bytes of frames borrowed by a device, in order. Adjacent frames become one segment.
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
            _ => {
                if self.segments.len() == self.segments.capacity() {
                    // Grows in few, large steps, because each reused list has to grow to its full
                    // length.
                    self.segments.reserve(if self.segments.is_empty() { 16 } else { 64 });
                }
                self.segments.push(Segment { ptr, len });
            }
        }
    }

    /// Starts anew, in the memory that it has.
    pub fn clear(&mut self) {
        self.segments.clear();
    }

    /// Bytes of memory that the list takes.
    pub fn bytes_held(&self) -> usize {
        size_of::<Self>() + self.segments.capacity() * size_of::<Segment>()
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

// SAFETY: rules 1 and 3 of `IoMem`: addresses inside the arena, which `arena` keeps mapped (M1).
// Rule 2: no references into the arena exist but to pinned bytes, which no device fills (M2);
// concurrent raw copies are ruled by M3.
unsafe impl IoMem for FrameList {
    fn segments(&mut self, out: &mut Vec<Segment>) {
        out.extend_from_slice(&self.segments);
    }
}

// SAFETY: as for IoMem; and no reference that could change the list exists while it is shared.
unsafe impl SharedMem for FrameList {
    fn segments(&self, out: &mut Vec<Segment>) {
        out.extend_from_slice(&self.segments);
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn copies_and_lends() {
        let arena = Arena::new(64, 64, false).unwrap();
        arena.copy_in(3, 10, b"hello");
        let mut out = [0; 5];
        arena.copy_out(3, 10, &mut out);
        assert_eq!(&out, b"hello");
        arena.copy_between(3, 9, 0, FRAME_SIZE);
        arena.zero(3, 0, FRAME_SIZE);
        arena.copy_out(9, 10, &mut out);
        assert_eq!(&out, b"hello");
        // Complete frames around the caches, from memory of any alignment, and a part of one.
        let bytes: Vec<u8> = (0..2 * FRAME_SIZE).map(|n| (n % 251) as u8).collect();
        let mut back = vec![0; FRAME_SIZE];
        for (at, frame) in [(0, 5), (1, 6), (77, 7)] {
            arena.stream_in(frame, 0, &bytes[at..at + FRAME_SIZE]);
            arena.copy_out(frame, 0, &mut back);
            assert!(back == bytes[at..at + FRAME_SIZE]);
        }
        arena.stream_in(8, 100, &bytes[..200]);
        arena.copy_out(8, 0, &mut back);
        assert!(back[100..300] == bytes[..200] && back[..100] == [0; 100]);
        let mut list = FrameList::new(&arena);
        list.push(4, 0, 4096);
        list.push(5, 0, 4096);
        list.push(8, 512, 512);
        assert_eq!((list.segment_count(), list.bytes()), (2, 8704));
    }

    /// M1: a device still writes to a frame when the cache has gone.
    #[test]
    fn borrowed_memory_outlives_arena() {
        let arena = Arena::new(8, 8, false).unwrap();
        let mut list = FrameList::new(&arena);
        list.push(5, 100, 50);
        drop(arena);
        let mut borrowed = forebay_base::buf::DataRef::Mem(Box::new(list));
        assert_eq!(borrowed.copy_in(0, &[7; 50]), 50);
        let mut back = [0; 50];
        assert_eq!((borrowed.copy_out(0, &mut back), back), (50, [7; 50]));
    }

    /// The story: the complete arena was populated before the first request: 12 s and 5.6 GiB by
    /// default.
    #[test]
    fn arena_populates_ahead_of_use_and_releases_at_limit() {
        const MIB: usize = 1 << 20;
        let frames = |mib: usize| mib * MIB / FRAME_SIZE;
        let arena = Arena::new(frames(1024), frames(64 << 10), true).unwrap();
        assert_eq!(arena.region.resident().0, 0);
        let world = forebay_base::world::RealWorld::with_seed(1);
        arena.stay_ahead(frames(1), &*world);
        while arena.populating.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
        let (resident, _) = arena.region.resident();
        assert!((17 * MIB..64 * MIB).contains(&resident), "{resident}");
        arena.copy_in(frames(1024) as Frame - 1, 4095, &[1]);
        arena.set_limit(frames(3));
        arena.prefault();
        arena.release_above();
        assert!(arena.region.resident().0 <= 3 * MIB, "M4");
        let (page, huge) = arena.pages();
        assert!(page == 4096 || huge > 0);
    }

    #[test]
    fn arena_prefault_populates_all() {
        let arena = Arena::new(1024 + 100, 4096, true).unwrap();
        arena.prefault();
        assert!(arena.region.resident().0 >= 1124 * FRAME_SIZE);
    }
}
