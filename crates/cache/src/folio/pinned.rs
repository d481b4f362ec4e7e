//! Pinned bytes of files: read where they are cached, without a copy.
//!
//! A pin keeps the frames of a range of a file as they were when it was taken. Writers replace a
//! pinned frame in its folio and change the new one; reclaim passes it over; truncating, punching
//! and direct writes take it out of its folio. In each case the pin goes on to show the old bytes,
//! and its end gives the frames back that nothing else holds.
//!
//! No pin is ever waited for: a writer needs a free frame for each pinned one that it meets, and
//! pins hold an eighth of the frames at most, so reclaim and write-out can make the others free.
//! For the same reason pins keep an eighth of the folio descriptors at most.
//!
//! Invariants: pin.P1 (see `folio/pins.rs`) no byte of a pinned frame changes. So shared references
//! to the pinned bytes are sound. Locks: none; a pin ends without any lock but the allocator's.

use crate::cache::PageCache;
use crate::folio::batch::Freed;
use crate::memory::arena::{FRAME_SIZE, Frame};
use forebay_base::buf::AlignedBuf;
use forebay_base::sync::Arc;
use std::fmt;

/// Bytes of a file as they were at one moment; [`File::pin`] gives them.
///
/// Usually they are the cached bytes themselves, in one or more runs of memory
/// ([`Pinned::extents`]). Where they cannot be pinned they are a copy ([`Pinned::is_copy`]). They
/// do not change: later writes, truncates and evictions leave them as they are. The bytes of one
/// folio are of one moment; those of different folios may be of different moments, as with a read.
///
/// Dropping it ends the pin. It keeps the memory of its cache, and does not keep the file open.
/// After fork(2) a child must not touch it.
///
/// [`File::pin`]: https://docs.rs/forebay/latest/forebay/struct.File.html#method.pin
pub struct Pinned {
    runs: Runs,
    source: Source,
    /// Parts of folios that this pin counts against the limit of [`PageCache::can_pin`].
    pub(crate) folios: u32,
}

/// Runs of bytes in order; a single run, the usual case, needs no list.
enum Runs {
    None,
    One([*const [u8]; 1]),
    Many(Vec<*const [u8]>),
}

/// Where the bytes are.
enum Source {
    /// In frames of the cache, of the mapping with this number.
    Frames(Arc<PageCache>, u32),
    /// In memory of its own.
    Copy(#[expect(dead_code, reason = "the runs point into it")] AlignedBuf),
}

// SAFETY: the bytes are not changed by any thread while it lives (pin.P1, or its own memory), and a
// pin may end on any thread.
unsafe impl Send for Pinned {}
// SAFETY: shared access only hands out shared references to bytes that do not change.
unsafe impl Sync for Pinned {}

impl Pinned {
    /// An empty pin for a file of `cache`; [`FolioWrite::pin`](crate::FolioWrite::pin) adds bytes
    /// to it.
    pub fn new(cache: &Arc<PageCache>, mapping: u32) -> Self {
        Self { runs: Runs::None, source: Source::Frames(cache.clone(), mapping), folios: 0 }
    }

    /// A pin of the first `len` bytes of a buffer.
    pub fn copied(buf: AlignedBuf, len: usize) -> Self {
        let bytes: *const [u8] = &raw const buf[..len];
        let runs = if len == 0 { Runs::None } else { Runs::One([bytes]) };
        Self { runs, source: Source::Copy(buf), folios: 0 }
    }

    /// Appends bytes of a frame, which the caller has pinned for this value.
    pub(crate) fn push(&mut self, bytes: *const [u8]) {
        let runs = match &mut self.runs {
            Runs::None => {
                self.runs = Runs::One([bytes]);
                return;
            }
            Runs::One(runs) => &mut runs[..],
            Runs::Many(runs) => &mut runs[..],
        };
        let last = runs.last_mut().expect("there is one");
        if last.cast::<u8>().wrapping_add(last.len()) == bytes.cast() {
            *last = std::ptr::slice_from_raw_parts(last.cast(), last.len() + bytes.len());
            return;
        }
        let before = *last;
        match &mut self.runs {
            Runs::Many(runs) => runs.push(bytes),
            _ => self.runs = Runs::Many(vec![before, bytes]),
        }
    }

    fn raw(&self) -> &[*const [u8]] {
        match &self.runs {
            Runs::None => &[],
            Runs::One(runs) => runs,
            Runs::Many(runs) => runs,
        }
    }

    /// The runs of memory that hold the bytes, in the order of the file. None is empty.
    #[inline]
    pub fn extents(&self) -> &[&[u8]] {
        let raw = self.raw();
        // SAFETY: a pointer to a slice and a reference to one have the same layout. Each points to
        // initialised bytes that are neither freed nor changed while self lives: those of pinned
        // frames (pin.P1) of an arena that self keeps, or of the buffer that self owns.
        unsafe { std::slice::from_raw_parts(raw.as_ptr().cast::<&[u8]>(), raw.len()) }
    }

    /// The bytes as one slice, if they are in one run of memory: always if they lie in one frame of
    /// 4 KiB or are a copy, otherwise if the cache holds them in neighbouring frames.
    #[inline]
    pub fn as_slice(&self) -> Option<&[u8]> {
        match self.extents() {
            [] => Some(&[]),
            [one] => Some(one),
            _ => None,
        }
    }

    /// Number of bytes: fewer than were asked for only at the end of the file.
    pub fn len(&self) -> usize {
        self.raw().iter().map(|run| run.len()).sum()
    }

    /// Whether it has no bytes: the range was empty, or behind the end of the file.
    pub fn is_empty(&self) -> bool {
        self.raw().is_empty()
    }

    /// Whether the bytes are a copy in memory of their own, outside the budget of the cache: a
    /// limit of pins was reached, frames were short, or the flags asked to cache nothing.
    pub fn is_copy(&self) -> bool {
        matches!(self.source, Source::Copy(_))
    }

    /// All bytes, copied.
    pub fn to_vec(&self) -> Vec<u8> {
        self.extents().concat()
    }
}

impl fmt::Debug for Pinned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pinned")
            .field("len", &self.len())
            .field("extents", &self.raw().len())
            .field("is_copy", &self.is_copy())
            .finish_non_exhaustive()
    }
}

impl Drop for Pinned {
    #[inline]
    fn drop(&mut self) {
        if let Source::Frames(cache, id) = &self.source {
            end_pins(cache, *id, self.raw());
            if self.folios > 0 {
                cache.words.unpin_folios(u64::from(self.folios));
            }
        }
    }
}

/// Ends the pins of these runs: gives back the frames that nothing else holds.
fn end_pins(cache: &PageCache, id: u32, runs: &[*const [u8]]) {
    let mut freed = Freed::new(cache);
    for run in runs {
        let start = cache.arena.offset_of(run.cast());
        let frames = start / FRAME_SIZE..(start + run.len()).div_ceil(FRAME_SIZE);
        for frame in frames {
            if cache.words.unpin(frame as Frame) {
                cache.disown(frame as Frame, id);
                freed.push(frame as Frame);
            }
        }
    }
    drop(freed);
    // The frames that were pinned can be evicted now.
    if !runs.is_empty() && cache.is_starved() {
        cache.wake_frame_waiters();
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::table::Blocks;
    use forebay_base::world::RealWorld;
    use std::future::Future;
    use std::sync::Arc as StdArc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::{Context, Wake};

    #[derive(Default)]
    struct Woken(AtomicUsize);

    impl Wake for Woken {
        fn wake(self: StdArc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn cache() -> Arc<PageCache> {
        let config =
            Config { huge_pages: false, poison_frames: true, ..Config::with_budget(1 << 20) };
        PageCache::new(config, RealWorld::with_seed(1)).unwrap()
    }

    /// Caches the first frames of a folio, all of one value, and pins `range` of its bytes.
    fn pinned(
        cache: &Arc<PageCache>,
        mapping: &crate::Mapping,
        range: std::ops::Range<usize>,
    ) -> Pinned {
        let all = Blocks { start: 0, end: range.end.div_ceil(FRAME_SIZE) as u32 };
        let folio = cache.lock_or_make(mapping, 0, false).unwrap();
        let mut pool = cache.take_frames(folio.frames_missing(all)).unwrap();
        for run in folio.begin_fill(all, false, &mut pool) {
            folio.fill_zero(run);
        }
        let mut pin = Pinned::new(cache, mapping.id);
        assert!(folio.pin(range, &mut pin));
        pin
    }

    /// The story: a task that waits for frames was not woken when a pin ended that had kept them
    /// from being evicted. It slept until something else happened.
    #[test]
    fn pin_end_wakes_waiter_for_frames() {
        let cache = cache();
        let mapping = cache.new_mapping(4096, 1 << 20);
        let pin = pinned(&cache, &mapping, 0..8192);
        let held = cache.take_frames(cache.stats().frames_free as usize).unwrap();
        let woken = StdArc::new(Woken::default());
        let waker = woken.clone().into();
        let mut cx = Context::from_waker(&waker);
        let mut waiter = std::pin::pin!(cache.wait_frames(&mapping, 2));
        assert!(waiter.as_mut().poll(&mut cx).is_pending(), "pinned frames are not evicted");
        drop(pin);
        assert!(woken.0.load(Ordering::Relaxed) > 0, "it sleeps, and two frames can be evicted");
        assert!(waiter.as_mut().poll(&mut cx).is_ready());
        drop(held);
    }

    /// Neighbouring frames are one run, others are not; runs begin and end within frames.
    #[test]
    fn pinned_extents_are_runs_of_adjacent_frames() {
        let cache = cache();
        let mapping = cache.new_mapping(4096, 1 << 20);
        let pin = pinned(&cache, &mapping, 100..12_388);
        let total: usize = pin.extents().iter().map(|run| run.len()).sum();
        assert_eq!((total, pin.len(), pin.is_copy()), (12_288, 12_288, false));
        assert_eq!(pin.as_slice().is_some(), pin.extents().len() == 1);
        assert!(pin.to_vec() == [0; 12_288]);
        assert_eq!(cache.stats().pinned_frames, 4);
        let again = pinned(&cache, &mapping, 4096..8192);
        assert_eq!(again.as_slice().map(<[u8]>::len), Some(4096), "a frame is one run");
        assert_eq!(cache.stats().pinned_frames, 4, "pin.P4: a frame counts once");
        drop((pin, again));
        assert_eq!(cache.stats().pinned_frames, 0);
        cache.drop_clean();
    }

    /// Runs that are no neighbours stay apart, in the order in which they came.
    #[test]
    fn pushed_runs_merge_where_they_touch() {
        let bytes = [7u8; 100];
        let run = |range: std::ops::Range<usize>| -> *const [u8] { &raw const bytes[range] };
        let mut pin = Pinned::copied(AlignedBuf::new(0), 0);
        assert!(pin.is_empty() && pin.as_slice() == Some(&[]));
        for range in [0..10, 10..20, 30..40, 40..50, 20..30] {
            pin.push(run(range));
        }
        let lens: Vec<usize> = pin.extents().iter().map(|run| run.len()).collect();
        assert_eq!(lens, [20, 20, 10]);
        assert_eq!(pin.as_slice(), None);
        let copy = Pinned::copied(AlignedBuf::copy_of(b"hello"), 4);
        assert!(copy.is_copy());
        assert_eq!(copy.as_slice(), Some(&b"hell"[..]));
    }
}
