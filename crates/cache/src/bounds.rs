//! The end of a file, and the ranges of it that are held exclusively.
//!
//! ```text
//!               grow(to > size)                            shrink(to < size)
//!   standing ─────────────▶ growing                standing ────────────▶ shrinking
//!      ▲         block of the old end held, idle      ▲    blocks from `to` on held, idle and
//!      │                       │                      │    clean; the size is moved
//!      ├── refused: no space ◀─┤                      ├── failed: size, dirty set restored ◀──┤
//!      └── space, size moved ◀─┘                      └── storage cut off, blocks dropped ◀───┘
//! ```
//!
//! One [`Resize`] at a time, in order of arrival; only its holder moves the size. There are two
//! ends. The *size* is where the cache and storage end: fills, writers and write-out use it. The
//! *visible size* is the one that readers see, and that is made recoverable. A write that makes the
//! file longer keeps its `Resize` until its bytes are there: it moves the size before its bytes and
//! the visible size after them. If it fails or is dropped, it truncates the bytes between the two
//! sizes, or the next `Resize` does. An operation reads the size once for each folio, under that
//! folio's lock.
//!
//! Invariants: E1 bytes behind the size in an up-to-date block are zero, in the cache and on
//! storage. E2 only a [`Resize`] moves the size. It holds the block of the old end, and of the new
//! one if that is lower, unless these ends are block boundaries. E3 exclusive ranges are whole
//! blocks and disjoint: work at the end of file is done in whole blocks. E4 only the holder changes
//! or fills a block that is held. Writers and fills check under the folio lock; the holder locks
//! each folio after it registered. E5 so if the size lies within a held block, the size does not
//! move. E6 a fill zeroes the part of its blocks behind the size that it read when it was planned;
//! a later size makes no difference. E7 the visible size is at most the size, and covers no byte
//! that the write adding it has yet to write. Without such a write the two are equal, or the bytes
//! between them are truncated next. E9 between reading a size to publish and its publication the
//! file does not become shorter: a truncate waits for the publisher, and then truncates the
//! published size.
//!
//! Exclusive ranges are granted in order of arrival: a request waits behind an older one that wants
//! a part of its range, held or not (`ranges.rs`). A buffered write or a fill waits only for held
//! ranges. There is no deadlock: the holder of a range takes no second one of the file. It does not
//! wait for [`Resize`], nor for an operation that waits for either. It does not wait for frames,
//! because other tasks may need the range to free frames. A [`Resize`] is taken before a range,
//! never while a range is held. The holder itself reads a block that it needs in the cache. If it
//! released the range for that, a direct write could drop the block again, each time.
//!
//! Locks: those of the ranges are leaves. `publishing` is taken before the map's own lock, and
//! never while a folio is locked.

use crate::ranges::Ranges;
use forebay_base::sync::atomic::{AtomicU64, Ordering};
use forebay_base::sync::{RwLock, RwLockReadGuard};
use forebay_base::units::{is_aligned, round_down, round_up};
use std::ops::Range;

/// The range of [`Bounds::resizing`] that stands for the size.
const SIZE: Range<u64> = 0..1;

/// The sizes of a file, and its exclusively held ranges.
pub struct Bounds {
    block: u64,
    size: AtomicU64,
    visible: AtomicU64,
    /// Times the file became shorter.
    cuts: AtomicU64,
    /// The right to move the size: a lock on one range, always [`SIZE`].
    resizing: Ranges,
    /// Whole blocks (E3).
    held: Ranges,
    /// Shared by tasks that publish the size; exclusive for a task that shortens the file (E9).
    publishing: RwLock<()>,
}

impl Bounds {
    /// A file of `size` bytes, in blocks of `block` bytes.
    pub(crate) fn new(block: u64, size: u64) -> Self {
        Self {
            block,
            size: AtomicU64::new(size),
            visible: AtomicU64::new(size),
            cuts: AtomicU64::new(0),
            resizing: Ranges::default(),
            held: Ranges::default(),
            publishing: RwLock::new(()),
        }
    }

    /// End of file, bytes.
    #[inline]
    pub fn size(&self) -> u64 {
        self.size.load(Ordering::Acquire)
    }

    /// Where the file ends for readers, bytes (E7).
    #[inline]
    pub fn visible(&self) -> u64 {
        self.visible.load(Ordering::Acquire)
    }

    /// Whether bytes lie behind the visible size: of a write in progress, or of a failed one.
    pub fn has_hidden_bytes(&self) -> bool {
        self.visible() < self.size()
    }

    /// How often the file became shorter. A task that reads storage without holding a range samples
    /// this, then the size, and compares afterwards: its bytes are valid if the count is the same.
    #[inline]
    pub fn cuts(&self) -> u64 {
        self.cuts.load(Ordering::Acquire)
    }

    fn rounded(&self, range: &Range<u64>) -> Range<u64> {
        round_down(range.start, self.block)..round_up(range.end, self.block)
    }

    /// Whether a block of `range` is held exclusively. Ask under the folio lock, before bytes or
    /// states of the folio change (E4).
    #[inline]
    pub fn is_exclusive(&self, range: &Range<u64>) -> bool {
        !self.held.is_idle() && self.held.is_held(&self.rounded(range))
    }

    /// Takes the blocks of a range for exclusive use, unless one of them is held or an older
    /// request waits for it.
    pub fn try_exclusive(&self, range: Range<u64>) -> Option<Exclusive<'_>> {
        let range = self.rounded(&range);
        self.held.try_take(&range).then(|| Exclusive { bounds: self, range })
    }

    /// Takes the blocks of a range for exclusive use, behind older requests for one of them. Not
    /// for a task that holds a range of the file.
    pub async fn exclusive(&self, range: Range<u64>) -> Exclusive<'_> {
        let range = self.rounded(&range);
        self.held.take(&range).await;
        Exclusive { bounds: self, range }
    }

    /// Waits until no block of `range` is held.
    pub async fn wait_not_exclusive(&self, range: Range<u64>) {
        self.held.wait_not_held(&self.rounded(&range)).await;
    }

    /// While the guard lives the file does not become shorter. Take it before reading the size, and
    /// keep it until that size is published (E9). Not across a wait.
    pub fn uncut(&self) -> RwLockReadGuard<'_, ()> {
        self.publishing.read()
    }

    /// Takes the right to move the size, behind older requests for it. Not for a task that holds a
    /// range.
    pub async fn resize(&self) -> Resize<'_> {
        self.resizing.take(&SIZE).await;
        Resize { bounds: self }
    }

    /// Takes the [`Resize`] if it is free.
    pub fn try_resize(&self) -> Option<Resize<'_>> {
        self.resizing.try_take(&SIZE).then(|| Resize { bounds: self })
    }
}

/// A range held exclusively, whole blocks; given back on drop.
pub struct Exclusive<'a> {
    pub(crate) bounds: &'a Bounds,
    pub(crate) range: Range<u64>,
}

/// Proof that blocks are held exclusively.
pub trait HoldsBlocks {
    /// The bytes of the blocks.
    fn range(&self) -> Range<u64>;
}

impl HoldsBlocks for Exclusive<'_> {
    fn range(&self) -> Range<u64> {
        self.range.clone()
    }
}

impl Drop for Exclusive<'_> {
    fn drop(&mut self) {
        self.bounds.held.release(&self.range);
    }
}

/// The right to move the size; given back on drop.
pub struct Resize<'a> {
    bounds: &'a Bounds,
}

impl Resize<'_> {
    /// Readers see the bytes up to `size` from now on. The caller has written them (E7).
    pub fn show(&self, size: u64) {
        assert!(size <= self.bounds.size(), "E7: the visible size is at most the size");
        self.bounds.visible.store(size, Ordering::Release);
    }

    /// Moves the size, and the visible size with it if that becomes lower. `held` is the range that
    /// the caller holds: the block of the old end, and that of the new end if it is lower.
    pub fn move_to(&self, size: u64, held: Option<&dyn HoldsBlocks>) {
        let (old, block) = (self.bounds.size(), self.bounds.block);
        let aligned = is_aligned(old, block) && (size >= old || is_aligned(size, block));
        let covers = |range: &Range<u64>, at| is_aligned(at, block) || range.contains(&at);
        let holds = held
            .map(HoldsBlocks::range)
            .is_some_and(|held| covers(&held, old) && (size >= old || covers(&held, size)));
        assert!(
            aligned && size >= old || holds,
            "E2: the size moves under its block: {old} {size}"
        );
        let _alone = (size < old).then(|| self.bounds.publishing.write());
        self.bounds.visible.fetch_min(size, Ordering::AcqRel);
        self.bounds.size.store(size, Ordering::Release);
        if size < old {
            self.bounds.cuts.fetch_add(1, Ordering::AcqRel);
        }
    }
}

impl Drop for Resize<'_> {
    fn drop(&mut self) {
        self.bounds.resizing.release(&SIZE);
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;
    use forebay_base::sync::atomic::AtomicBool;
    use forebay_base::task::block_on;
    use std::future::Future;

    #[test]
    fn exclusive_ranges_are_whole_blocks_and_exclude() {
        let bounds = Bounds::new(4096, 1 << 20);
        let held = bounds.try_exclusive(100..200).unwrap();
        assert_eq!(held.range(), 0..4096);
        assert!(bounds.is_exclusive(&(4095..5000)) && !bounds.is_exclusive(&(4096..5000)));
        assert!(bounds.try_exclusive(4000..4001).is_none(), "the same block (E3)");
        let other = bounds.try_exclusive(4096..4097).unwrap();
        drop(held);
        assert!(bounds.try_exclusive(100..200).is_some());
        drop(other);
    }

    /// Counts how often it was woken.
    #[derive(Default)]
    struct Count(AtomicU64);

    impl std::task::Wake for Count {
        fn wake(self: std::sync::Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The story: 1,024 trims of one range from 128 clients stopped the event loop. Each release
    /// woke all waiters, and each of them checked its condition and registered again.
    #[test]
    fn range_released_wakes_one_waiter_at_a_time() {
        let bounds = Bounds::new(4096, 1 << 20);
        let woken = std::sync::Arc::new(Count::default());
        let waker = std::task::Waker::from(woken.clone());
        let mut cx = std::task::Context::from_waker(&waker);
        let (first, elsewhere) = (bounds.try_exclusive(0..8192), bounds.try_exclusive(8192..8193));
        let mut waiting: Vec<_> = (0..1024).map(|_| Box::pin(bounds.exclusive(1..8192))).collect();
        let mut wide = Box::pin(bounds.exclusive(0..9000));
        let mut writers: Vec<_> =
            (0..2).map(|_| Box::pin(bounds.wait_not_exclusive(4096..4097))).collect();
        assert!(waiting.iter_mut().all(|w| w.as_mut().poll(&mut cx).is_pending()));
        assert!(writers.iter_mut().all(|w| w.as_mut().poll(&mut cx).is_pending()));
        assert!(wide.as_mut().poll(&mut cx).is_pending());
        let mut held = first;
        for waiter in &mut waiting {
            let before = woken.0.load(Ordering::Relaxed);
            drop(held);
            assert_eq!(woken.0.load(Ordering::Relaxed) - before, 1, "the next in line, alone");
            let std::task::Poll::Ready(next) = waiter.as_mut().poll(&mut cx) else {
                panic!("the one that came first has it")
            };
            held = Some(next);
        }
        // The range of the wide request is not free yet, and no task takes what the writers wait
        // for.
        let before = woken.0.load(Ordering::Relaxed);
        drop(held);
        assert_eq!(woken.0.load(Ordering::Relaxed) - before, 2, "the writers");
        assert!(writers.iter_mut().all(|w| w.as_mut().poll(&mut cx).is_ready()));
        drop(elsewhere);
        assert_eq!(woken.0.load(Ordering::Relaxed) - before, 3);
        assert!(wide.as_mut().poll(&mut cx).is_ready());
    }

    /// The story: a truncate waited for ever behind direct writes. Each of them overlapped the one
    /// before, so some block was always held, and writes that came later took what became free.
    #[test]
    fn range_behind_wider_waiter_waits_its_turn() {
        let bounds = Bounds::new(4096, 1 << 20);
        let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
        let first = bounds.try_exclusive(0..4096).unwrap();
        let mut wide = Box::pin(bounds.exclusive(0..1 << 20));
        assert!(wide.as_mut().poll(&mut cx).is_pending());
        let mut later = Box::pin(bounds.exclusive(8192..12288));
        assert!(later.as_mut().poll(&mut cx).is_pending(), "it came after the wide range");
        assert!(bounds.try_exclusive(8192..8193).is_none(), "it neither waits nor goes ahead");
        let elsewhere = bounds.try_exclusive(1 << 20..2 << 20);
        assert!(elsewhere.is_some(), "a range that does not overlap does not wait");
        // A buffered write or a fill waits only for blocks that are held, not for those wanted.
        let mut writer = Box::pin(bounds.wait_not_exclusive(8192..8193));
        assert!(writer.as_mut().poll(&mut cx).is_ready());
        drop(first);
        assert!(later.as_mut().poll(&mut cx).is_pending(), "the wide range is next");
        let std::task::Poll::Ready(held) = wide.as_mut().poll(&mut cx) else {
            panic!("the wide range has waited for all before it")
        };
        assert!(later.as_mut().poll(&mut cx).is_pending());
        drop(held);
        assert!(later.as_mut().poll(&mut cx).is_ready());
    }

    /// A task that is dropped while it waits, woken already or not, wakes those behind it.
    #[test]
    fn range_wait_dropped_wakes_those_behind_it() {
        for chosen in [false, true] {
            let bounds = Bounds::new(4096, 1 << 20);
            let woken = std::sync::Arc::new(Count::default());
            let waker = std::task::Waker::from(woken.clone());
            let mut cx = std::task::Context::from_waker(&waker);
            let mut noop = std::task::Context::from_waker(std::task::Waker::noop());
            let first = bounds.try_exclusive(0..4096).unwrap();
            let mut wide = Box::pin(bounds.exclusive(0..1 << 20));
            assert!(wide.as_mut().poll(&mut noop).is_pending());
            let mut later = Box::pin(bounds.exclusive(8192..12288));
            assert!(later.as_mut().poll(&mut cx).is_pending(), "behind the wide range");
            if chosen {
                drop(first);
            }
            assert_eq!(woken.0.load(Ordering::Relaxed), 0);
            drop(wide);
            assert!(woken.0.load(Ordering::Relaxed) > 0, "nothing stands before it any more");
            assert!(later.as_mut().poll(&mut cx).is_ready());
        }
    }

    /// The story: an append took the `Resize` whenever an older truncate had been woken and not
    /// polled yet. It is granted in order of arrival.
    #[test]
    fn resize_goes_to_the_request_that_waits_longest() {
        let bounds = Bounds::new(4096, 0);
        let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
        let first = block_on(bounds.resize());
        let mut truncate = Box::pin(bounds.resize());
        assert!(truncate.as_mut().poll(&mut cx).is_pending());
        drop(first);
        let mut append = Box::pin(bounds.resize());
        assert!(append.as_mut().poll(&mut cx).is_pending(), "the truncate came first");
        assert!(truncate.as_mut().poll(&mut cx).is_ready());
    }

    #[test]
    fn visible_size_moves_after_the_size_and_back_with_it() {
        let bounds = Bounds::new(4096, 4096);
        let resize = block_on(bounds.resize());
        assert!(bounds.try_resize().is_none() && !bounds.has_hidden_bytes());
        assert!(bounds.try_resize().is_none(), "a refused one leaves it to its holder");
        resize.move_to(9000, None);
        assert_eq!((bounds.size(), bounds.visible()), (9000, 4096), "E7");
        assert!(bounds.has_hidden_bytes());
        resize.show(9000);
        let held = bounds.try_exclusive(0..u64::MAX >> 1).unwrap();
        resize.move_to(100, Some(&held));
        assert_eq!((bounds.size(), bounds.visible()), (100, 100));
    }

    /// E9. The story: a task that had read the size published the old one after a truncate.
    #[test]
    fn e9_truncate_waits_for_publication_of_size() {
        let (bounds, published) = (Bounds::new(4096, 0), AtomicU64::new(0));
        let (over, mut undone) = (AtomicBool::new(false), 0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    let _uncut = bounds.uncut();
                    published.fetch_max(bounds.size(), Ordering::SeqCst);
                }
            });
            let resize = block_on(bounds.resize());
            for _ in 0..5000 {
                let held = bounds.try_exclusive(0..u64::MAX >> 1).unwrap();
                resize.move_to(4096, Some(&held));
                resize.move_to(0, Some(&held));
                // As the map does when it truncates: sets the published size.
                published.store(0, Ordering::SeqCst);
                std::thread::yield_now();
                undone += published.load(Ordering::SeqCst);
            }
            over.store(true, Ordering::Relaxed);
        });
        assert_eq!(undone, 0, "E9");
    }

    #[test]
    fn size_moves_with_its_block_held() {
        let bounds = Bounds::new(4096, 5000);
        let resize = block_on(bounds.resize());
        let held = bounds.try_exclusive(5000..5001).unwrap();
        resize.move_to(9000, Some(&held));
        drop(held);
        let held = bounds.try_exclusive(100..u64::MAX >> 1).unwrap();
        resize.move_to(100, Some(&held));
        assert_eq!(bounds.size(), 100);
    }

    #[test]
    #[should_panic(expected = "E2")]
    fn size_does_not_move_past_unheld_block() {
        let bounds = Bounds::new(4096, 5000);
        block_on(bounds.resize()).move_to(9000, None);
    }
}
