//! The end of a file, and the ranges of it that somebody holds exclusively.
//!
//! ```text
//!              grow(to > size)                               shrink(to < size)
//!   standing ─────────────────▶ growing                  standing ─────────────────▶ shrinking
//!      ▲      the block of the old end is held, and idle    ▲     blocks from `to` on are held, and idle
//!      │                          │                         │       their dirt is taken, the size is moved
//!      ├── refused: no room ◀─────┤                         ├── failed: size and dirt come back ◀──┤
//!      └── room made, size moved ◀┘                         └── storage cut, dirt dropped ◀────────┘
//! ```
//! One [`Resize`] at a time: it is the only way to move the size. There are two ends. The *size* is where the
//! cache and storage end: fills, writers and write-out go by it. The *visible size* is what readers see, and
//! what is made recoverable. A write that makes the file longer keeps its `Resize` until its bytes are there:
//! it moves the size before its bytes and the visible size after them. If it fails, or is dropped, the bytes
//! between the two are cut off, by itself or by the next `Resize`. An operation takes one snapshot of the
//! size for each look at a folio, under that folio's lock.
//!
//! Invariants:
//! E1 bytes behind the size in an up-to-date block are zero, in the cache and on storage.
//! E2 the size moves only in the hands of a [`Resize`] that holds the block of the old end, and of
//!    the new one if that is lower, unless they are borders of blocks.
//! E3 exclusive ranges are whole blocks and disjoint: work at the end of file is done in whole blocks.
//! E4 nobody but the holder changes or fills a block that is held: writers and fills ask under the folio
//!    lock, the holder looks at each folio after it registered.
//! E5 so whoever holds the last block while the size is within it sees a size that stands.
//! E6 a fill zeroes what of its blocks lies behind the size at its plan; no later size counts.
//! E7 the visible size is at most the size, and covers no byte that is still to be written by the write that
//!    adds it. Without a write that adds bytes the two are equal, or what lies between them is cut off next.
//! E9 between the look at a size that is to be published and its publication the file does not become
//!    shorter: a truncate waits for who publishes, and then cuts what is published.
//!
//! Whoever waits for a range is woken when that range has become free, not whenever some range has: of those
//! who are to take the same blocks, one after the other.
//!
//! Locks: `held` and `resizing` are leaves; `held` is also taken below the list of those who
//! wait. `publishing` is taken above the map's own, and never while a folio is locked.

use crate::mapping::Mapping;
use forebay_base::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use forebay_base::sync::{Arc, Mutex, RwLock, RwLockReadGuard};
use forebay_base::task::{Pick, WaitQueue};
use forebay_base::units::{is_aligned, round_down, round_up};
use std::collections::BTreeMap;
use std::ops::Range;

/// What somebody waits for.
struct Want {
    range: Range<u64>,
    /// To hold it; otherwise to see that nobody does.
    takes: bool,
}

/// See the module.
pub struct Bounds {
    block: u64,
    size: AtomicU64,
    visible: AtomicU64,
    /// Times the file became shorter.
    cuts: AtomicU64,
    resizing: AtomicBool,
    resize_wait: WaitQueue,
    /// Start to end: they are disjoint (E3).
    held: Mutex<BTreeMap<u64, u64>>,
    held_count: AtomicU64,
    held_wait: WaitQueue<Want>,
    /// Shared by those who publish the size, taken alone by who makes the file shorter (E9).
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
            resizing: AtomicBool::new(false),
            resize_wait: WaitQueue::new(),
            held: Mutex::default(),
            held_count: AtomicU64::new(0),
            held_wait: WaitQueue::with_keys(),
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

    /// Whether bytes lie behind the visible size: of a write under way, or of one that has failed.
    pub fn has_hidden_bytes(&self) -> bool {
        self.visible() < self.size()
    }

    /// How often the file became shorter. Who reads storage without holding anything samples it, then the
    /// size, and looks again afterwards: what was read counts if it is the same.
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
        self.held_count.load(Ordering::SeqCst) != 0 && self.overlaps(range)
    }

    fn overlaps(&self, range: &Range<u64>) -> bool {
        overlap(&self.held.lock(), &self.rounded(range))
    }

    /// Takes the blocks of a range for exclusive use, if nobody holds one of them.
    pub fn try_exclusive(&self, range: Range<u64>) -> Option<Exclusive<'_>> {
        let range = self.rounded(&range);
        let mut held = self.held.lock();
        if overlap(&held, &range) {
            return None;
        }
        debug_assert!(!range.is_empty(), "E3: whole blocks");
        held.insert(range.start, range.end);
        self.held_count.fetch_add(1, Ordering::SeqCst);
        Some(Exclusive { bounds: self, range })
    }

    /// Takes the blocks of a range for exclusive use; waits for those who hold one of them.
    pub async fn exclusive(&self, range: Range<u64>) -> Exclusive<'_> {
        let want = Want { range: self.rounded(&range), takes: true };
        self.held_wait.wait_for(want, || self.try_exclusive(range.clone())).await
    }

    /// Waits until nobody holds a block of `range`.
    pub async fn wait_not_exclusive(&self, range: Range<u64>) {
        let want = Want { range: self.rounded(&range), takes: false };
        self.held_wait.wait_for(want, || (!self.overlaps(&range)).then_some(())).await;
    }

    /// The blocks of `freed` are not held any more: wakes who waited for that. Who is left out hears of it
    /// from whoever holds a block of his range then.
    fn wake(&self, freed: &Range<u64>) {
        self.held_wait.wake_matching(|Want { range, takes }| {
            if range.start >= freed.end || freed.start >= range.end || self.overlaps(range) {
                Pick::Skip
            } else if *takes && range.start <= freed.start && freed.end <= range.end {
                // It takes all that has become free.
                Pick::WakeAndStop
            } else {
                Pick::Wake
            }
        });
    }

    /// As long as it is kept the file does not become shorter: from before the look at a size until that is
    /// published (E9). Not across a wait.
    pub fn uncut(&self) -> RwLockReadGuard<'_, ()> {
        self.publishing.read()
    }

    /// The right to move the size; waits for whoever has it.
    pub async fn resize(&self) -> Resize<'_> {
        let free = || !self.resizing.swap(true, Ordering::AcqRel);
        self.resize_wait.wait_until(|| free().then(|| Resize { bounds: self })).await
    }

    /// The same if it can be had at once.
    pub fn try_resize(&self) -> Option<Resize<'_>> {
        (!self.resizing.swap(true, Ordering::AcqRel)).then(|| Resize { bounds: self })
    }
}

/// Whether one of the ranges, which are disjoint, has a byte of `range`.
fn overlap(held: &BTreeMap<u64, u64>, range: &Range<u64>) -> bool {
    held.range(..range.end).next_back().is_some_and(|(_, &end)| end > range.start)
}

/// A range held exclusively, whole blocks; given back on drop.
pub struct Exclusive<'a> {
    bounds: &'a Bounds,
    range: Range<u64>,
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

impl HoldsBlocks for Held {
    fn range(&self) -> Range<u64> {
        self.range.clone()
    }
}

impl<'a> Exclusive<'a> {
    /// The same for who may outlive its holder: a bio, if the task that waits for it is dropped.
    pub fn keep(self, mapping: &'a Arc<Mapping>) -> Held {
        assert!(std::ptr::eq(self.bounds, &mapping.bounds), "a range of the same file");
        let range = std::mem::ManuallyDrop::new(self).range();
        Held { mapping: mapping.clone(), range }
    }
}

/// [`Exclusive`], of a file that it keeps alive.
pub struct Held {
    mapping: Arc<Mapping>,
    range: Range<u64>,
}

impl Drop for Held {
    fn drop(&mut self) {
        drop(Exclusive { bounds: &self.mapping.bounds, range: self.range.clone() });
    }
}

impl Drop for Exclusive<'_> {
    fn drop(&mut self) {
        let mut held = self.bounds.held.lock();
        let end = held.remove(&self.range.start);
        assert_eq!(end, Some(self.range.end), "E3: registered once, alone");
        self.bounds.held_count.fetch_sub(1, Ordering::SeqCst);
        drop(held);
        self.bounds.wake(&self.range);
    }
}

/// The right to move the size; given back on drop.
pub struct Resize<'a> {
    bounds: &'a Bounds,
}

impl Resize<'_> {
    /// Readers see the bytes up to `size` from now on: they are there (E7).
    pub fn show(&self, size: u64) {
        assert!(size <= self.bounds.size(), "E7: the visible size is at most the size");
        self.bounds.visible.store(size, Ordering::Release);
    }

    /// Moves the size, and the visible one with it if that becomes lower. `held` is what the caller holds of the file: the block of the old end, and the
    /// one of the new end if that is lower.
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
        self.bounds.resizing.store(false, Ordering::Release);
        self.bounds.resize_wait.wake_all();
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;
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

    /// The story: 1,024 trims of one range from 128 clients stopped the loop, because each release woke all
    /// who waited, and each of them looked and registered again.
    #[test]
    fn who_waits_for_one_range_is_woken_one_by_one() {
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
        // The wide one's range is not free yet, and nobody takes what the writers wait for.
        let before = woken.0.load(Ordering::Relaxed);
        drop(held);
        assert_eq!(woken.0.load(Ordering::Relaxed) - before, 2, "the writers");
        assert!(writers.iter_mut().all(|w| w.as_mut().poll(&mut cx).is_ready()));
        drop(elsewhere);
        assert_eq!(woken.0.load(Ordering::Relaxed) - before, 3);
        assert!(wide.as_mut().poll(&mut cx).is_ready());
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

    /// E9: whoever had looked at a size published it after the file had been cut, as long as before.
    #[test]
    fn e9_the_file_is_not_cut_while_its_size_is_published() {
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
                // As the map does.
                published.store(0, Ordering::SeqCst);
                std::thread::yield_now();
                undone += published.load(Ordering::SeqCst);
            }
            over.store(true, Ordering::Relaxed);
        });
        assert_eq!(undone, 0, "E9");
    }

    #[test]
    fn the_size_moves_with_its_block_held() {
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
    fn the_size_does_not_move_past_a_block_that_is_not_held() {
        let bounds = Bounds::new(4096, 5000);
        block_on(bounds.resize()).move_to(9000, None);
    }
}
