//! Counters. Relaxed atomics on the inside, a plain struct outside.

use forebay_base::sync::atomic::{AtomicU64, Ordering};
use std::cell::Cell;
use std::collections::BTreeSet;
use std::sync::PoisonError;

macro_rules! counters {
    (is_gauge gauge) => { true };
    (is_gauge counter) => { false };
    ($($(#[doc = $doc:literal])* $kind:ident $name:ident),* $(,)?) => {
        /// Live counters of a cache; see [`Stats`] for their meaning.
        #[derive(Default)]
        pub struct Counters {
            $(#[expect(missing_docs, reason = "documented in Stats")] pub $name: AtomicU64,)*
        }
        /// A snapshot of a cache's counters and gauges.
        #[derive(Debug, Clone, Default, PartialEq, Eq)]
        pub struct Stats { $($(#[doc = $doc])* pub $name: u64,)* }
        impl Counters {
            /// Reads them all.
            pub fn snapshot(&self) -> Stats {
                Stats { $($name: self.$name.load(Ordering::Relaxed),)* }
            }
        }
        impl Stats {
            /// Names and values, in order.
            pub fn fields(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name),)*]
            }
            /// The increase of each value since `before`; 0 for a gauge that has fallen.
            pub fn since(&self, before: &Self) -> Self {
                Self { $($name: self.$name.saturating_sub(before.$name),)* }
            }
            /// All of them with what they mean, in order.
            pub fn described(&self) -> Vec<Described> {
                vec![$(Described {
                    name: stringify!($name),
                    help: concat!($($doc),*).trim_ascii(),
                    is_gauge: counters!(is_gauge $kind),
                    value: self.$name,
                },)*]
            }
        }
    };
}

/// One figure of [`Stats`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Described {
    /// Its field.
    pub name: &'static str,
    /// What it means, with its unit.
    pub help: &'static str,
    /// It may fall; a counter only rises.
    pub is_gauge: bool,
    /// Its value.
    pub value: u64,
}

counters! {
    /// The cache's budget, bytes.
    gauge budget_bytes,
    /// Memory of the arena, which holds the frames, bytes.
    gauge arena_bytes,
    /// Size of the pages behind most of the arena, bytes.
    gauge arena_page_bytes,
    /// Bytes of the arena on huge pages.
    gauge arena_huge_bytes,
    /// Frames of the arena.
    gauge frames_total,
    /// Free frames.
    gauge frames_free,
    /// Folios in the cache.
    gauge folios,
    /// Blocks found in the cache by reads.
    counter hits,
    /// Blocks not found by reads.
    counter misses,
    /// Bytes that readers waited for until the device had read them.
    counter miss_bytes,
    /// Blocks evicted by reclaim.
    counter evicted_blocks,
    /// Folios evicted by reclaim.
    counter evicted_folios,
    /// Time spent in reclaim, ns.
    counter reclaim_nanos,
    /// Batches of reclaim.
    counter reclaim_runs,
    /// Evicted folios whose identity the cache remembers.
    gauge ghosts,
    /// Folios that were read again while the cache remembered them.
    counter ghost_hits,
    /// Folios promoted to the main queue.
    counter promoted,
    /// Bytes read ahead of the reader, neighbours of small files included.
    counter readahead_bytes,
    /// Bytes that uncached reads requested from the device, without what was read ahead of them.
    counter uncached_read_bytes,
    /// Bytes of uncached writes.
    counter uncached_write_bytes,
    /// Bytes read past the cache.
    counter direct_read_bytes,
    /// Bytes written past the cache.
    counter direct_write_bytes,
    /// Direct requests that were not aligned and were served as uncached ones.
    counter direct_fallbacks,
    /// Dirty bytes.
    gauge dirty_bytes,
    /// Bytes in write-out.
    gauge writeback_bytes,
    /// Bytes written out and kept until the next flush, in case it fails.
    gauge unflushed_bytes,
    /// Bytes of blocks whose write-out succeeded.
    counter written_bytes,
    /// Of `written_bytes`, those that were dirty. The others were written because they share a
    /// folio.
    counter cleaned_bytes,
    /// Bytes of blocks that writers made dirty.
    counter dirtied_bytes,
    /// Time that the dirty limits held writers back, ns.
    counter throttled_nanos,
    /// Writers that waited for a block in write-out, where bytes in flight must not change.
    counter stable_waits,
    /// Time that writers waited for such a block, ns.
    counter stable_wait_nanos,
    /// Blocks that writers hit in write-out where bytes in flight must not change.
    counter stable_hits,
    /// Blocks given a fresh frame because a writer hit them in write-out, their neighbours in the
    /// frame included.
    counter stable_copies,
    /// Bytes copied for fresh frames and snapshots; what a writer overwrites is not copied.
    counter stable_copied_bytes,
    /// Blocks whose write-out was of a copy.
    counter stable_snapshots,
    /// Fresh frames or snapshots for which there was no memory, so that the writer waited.
    counter stable_fallbacks,
    /// Frames that hold pinned bytes.
    gauge pinned_frames,
    /// Pinned frames that no file has any more: they were replaced, truncated or dropped since.
    gauge pinned_orphans,
    /// Pins taken, each of some bytes of one file.
    counter pins,
    /// Pins that were served by a copy, because nothing more may be pinned.
    counter pin_copies,
    /// Pins that were refused, because nothing more may be pinned and the caller wants no copy.
    counter pin_refusals,
    /// Frames replaced because a writer or a fill met a pin.
    counter pin_detached_frames,
    /// Bytes read again because what came into the caller's memory did not match its checksum.
    counter reread_bytes,
    /// Device errors seen by fills and write-out.
    counter io_errors,
    /// Flushes sent to devices.
    counter flushes,
    /// Bytes of buffers outside the arena for requests in flight.
    gauge private_bytes,
    /// Highest value of `private_bytes`.
    gauge private_bytes_max,
}

const STRIPES: usize = 64;

#[repr(align(128))]
#[derive(Default)]
struct Stripe(AtomicU64);

/// The number of a living thread that counts. Another thread takes it over when this one has ended.
struct ThreadNumber(usize);

/// Numbers that ended threads returned, and the lowest that no thread had. A mutex of std, because
/// it is a static.
static NUMBERS: std::sync::Mutex<(BTreeSet<usize>, usize)> =
    std::sync::Mutex::new((BTreeSet::new(), 0));

impl ThreadNumber {
    /// The lowest number that no living thread has.
    fn take() -> Self {
        let mut numbers = NUMBERS.lock().unwrap_or_else(PoisonError::into_inner);
        let (returned, fresh) = &mut *numbers;
        Self(returned.pop_first().unwrap_or_else(|| {
            *fresh += 1;
            *fresh - 1
        }))
    }
}

impl Drop for ThreadNumber {
    fn drop(&mut self) {
        STRIPE.set(NO_STRIPE);
        NUMBERS.lock().unwrap_or_else(PoisonError::into_inner).0.insert(self.0);
    }
}

/// The stripe of a thread that has not counted yet, or that has returned its number.
const NO_STRIPE: usize = STRIPES;

std::thread_local! {
    static NUMBER: ThreadNumber = ThreadNumber::take();
    /// The stripe of `NUMBER`, without a destructor: the hit path reads it.
    static STRIPE: Cell<usize> = const { Cell::new(NO_STRIPE) };
}

/// A counter for the hit path: each thread adds to a stripe of its own with a load and a store.
/// Exact while at most 64 threads that count are alive; more of them share stripes, and a count
/// may be lost.
#[derive(Default)]
pub struct Striped {
    stripes: Box<Stripes>,
    /// Counts that destructors of thread locals add after their thread has returned its number.
    ending: AtomicU64,
}

struct Stripes([Stripe; STRIPES]);

impl Default for Stripes {
    fn default() -> Self {
        Self(std::array::from_fn(|_| Stripe::default()))
    }
}

impl Striped {
    /// Adds to the calling thread's stripe.
    #[inline]
    pub fn add(&self, value: u64) {
        match self.stripes.0.get(STRIPE.get()) {
            Some(Stripe(stripe)) => {
                stripe.store(stripe.load(Ordering::Relaxed) + value, Ordering::Relaxed);
            }
            None => self.add_first(value),
        }
    }

    #[cold]
    fn add_first(&self, value: u64) {
        match NUMBER.try_with(|number| number.0 % STRIPES) {
            Ok(stripe) => {
                STRIPE.set(stripe);
                self.add(value);
            }
            Err(_) => Counters::add(&self.ending, value),
        }
    }

    /// The sum.
    pub fn total(&self) -> u64 {
        let ending = self.ending.load(Ordering::Relaxed);
        self.stripes.0.iter().map(|stripe| stripe.0.load(Ordering::Relaxed)).sum::<u64>() + ending
    }
}

impl Counters {
    /// Adds to a counter.
    #[inline]
    pub fn add(counter: &AtomicU64, value: u64) {
        counter.fetch_add(value, Ordering::Relaxed);
    }
}

impl Stats {
    /// Bytes that write-out wrote for each byte that was dirty, since the cache was made: exactly 1
    /// where only dirty blocks are written. 0 as long as nothing was written.
    pub fn write_amplification(&self) -> f64 {
        if self.cleaned_bytes == 0 {
            return 0.0;
        }
        self.written_bytes as f64 / self.cleaned_bytes as f64
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;
    use std::cell::RefCell;

    /// The story: a thread that ended took its stripe with it. Threads of a pool come and go, so
    /// from the 65th on two living threads shared a stripe, and overwrote counts of each other.
    #[test]
    fn living_threads_share_no_stripe_however_many_have_ended() {
        let counter = Striped::default();
        let count = || {
            counter.add(1);
            STRIPE.get()
        };
        let mine = count();
        for round in 1..=2 * STRIPES as u64 {
            let theirs = std::thread::scope(|scope| scope.spawn(count).join().unwrap());
            assert_ne!(theirs, mine, "after {round} threads");
            assert_eq!(counter.total(), round + 1);
        }
    }

    /// A destructor that counts after its thread has returned the number counts nowhere else.
    #[test]
    fn count_of_ending_thread_is_in_no_stripe() {
        struct CountsAtEnd(std::sync::Arc<Striped>);
        impl Drop for CountsAtEnd {
            fn drop(&mut self) {
                self.0.add(1);
            }
        }
        std::thread_local! {
            static AT_END: RefCell<Option<CountsAtEnd>> = const { RefCell::new(None) };
        }
        let counter = std::sync::Arc::new(Striped::default());
        // The first use decides which thread local is dropped first: both orders are tried.
        let count = |counter: std::sync::Arc<Striped>, counts_first: bool| {
            if counts_first {
                counter.add(1);
            }
            AT_END.with(|at_end| *at_end.borrow_mut() = Some(CountsAtEnd(counter.clone())));
            counter.add(1);
        };
        for counts_first in [false, true] {
            let counter = counter.clone();
            std::thread::spawn(move || count(counter, counts_first)).join().unwrap();
        }
        assert_eq!(counter.total(), 5);
        assert!(counter.ending.load(Ordering::Relaxed) > 0, "one of both orders ends so");
    }
}
