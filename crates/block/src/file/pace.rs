//! Reads before write-back, and reads that a caller waits for before read-ahead: while a disk is
//! being read, only little of the less urgent kind is in progress.
//!
//! A disk has a queue of its own, whose order we cannot change: a read that arrives after 64 MiB of
//! write-back, or 2 MiB of read-ahead, waits for all of that. So while a read is in progress, or
//! was within the last [`RECENT`], requests of the less urgent kind above [`WRITE_BACK_BYTES`] or
//! [`READ_AHEAD_BYTES`] are held back here. They are admitted as earlier ones of their kind
//! complete. This includes write-back that a sync waits for: the sync loses little, because the
//! disk stays busy. A [`Pace`] is for one kind on one disk, for all files on it.
//!
//! Invariants: H1 a request is held only while one of its kind is in progress, so that a later
//! completion admits it. H2 held requests are admitted in order of arrival, but those that a sync
//! waits for first; after [`TURN`] of these another one, so that it is not held for ever. H3 an
//! admitted request counts as in progress until `over`, which is called once, however it ends. Lock
//! rule: the lock is innermost; no request is submitted or ended while it is held.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{LazyLock, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// Write-back in progress on a disk that is being read, bytes. A single request may be larger.
pub(crate) const WRITE_BACK_BYTES: u64 = 1 << 20;
/// Read-ahead in progress on a disk with reads that callers wait for, bytes. A single request may
/// be larger. Two of the longest requests: while one completes, the disk works at the other.
pub(crate) const READ_AHEAD_BYTES: u64 = 1 << 20;
/// A disk counts as being read for this long after a read has ended.
const RECENT: Duration = Duration::from_millis(10);
/// A held request that no sync waits for is admitted after this many others at most.
const TURN: u32 = 4;

struct State<T> {
    on_its_way_bytes: u64,
    /// Held requests: first those that a sync waits for, then the rest.
    held: [VecDeque<(u64, T)>; 2],
    /// How many of the first kind were admitted since one of the second.
    turns: u32,
    /// A thread is submitting the requests that may be admitted.
    draining: bool,
}

impl<T> State<T> {
    fn holds(&self) -> bool {
        self.held.iter().any(|held| !held.is_empty())
    }

    /// The kind to admit next (H2).
    fn turn(&self) -> usize {
        let [waited_for, others] = &self.held;
        usize::from(waited_for.is_empty() || self.turns >= TURN && !others.is_empty())
    }
}

/// What one kind of requests to one disk may have in progress. Times are nanoseconds of any clock
/// that starts above [`RECENT`].
pub(crate) struct Pace<T> {
    /// Bytes in progress while the disk is being read.
    depth_bytes: u64,
    state: Mutex<State<T>>,
    /// Number of reads in progress that are more urgent than this kind.
    reads: AtomicU32,
    last_read: AtomicU64,
}

impl<T> Pace<T> {
    pub(crate) fn new(depth_bytes: u64) -> Self {
        let held = [VecDeque::new(), VecDeque::new()];
        let state = State { on_its_way_bytes: 0, held, turns: 0, draining: false };
        let (reads, last_read) = (AtomicU32::new(0), AtomicU64::new(0));
        Self { depth_bytes, state: Mutex::new(state), reads, last_read }
    }

    fn lock(&self) -> MutexGuard<'_, State<T>> {
        let state = self.state.lock().unwrap_or_else(|p| p.into_inner());
        debug_assert!(
            !state.holds() || state.on_its_way_bytes > 0 || state.draining,
            "H1: something is held and nothing is on its way"
        );
        state
    }

    /// A more urgent read begins. [`Self::end_read`] follows, once.
    pub(crate) fn begin_read(&self) {
        self.reads.fetch_add(1, Ordering::Relaxed);
    }

    /// A read has ended.
    pub(crate) fn end_read(&self, now: u64) {
        self.last_read.store(now, Ordering::Relaxed);
        self.reads.fetch_sub(1, Ordering::Relaxed);
    }

    /// Whether the disk is being read.
    pub(crate) fn is_read(&self, now: u64) -> bool {
        let ago = now.saturating_sub(self.last_read.load(Ordering::Relaxed));
        self.reads.load(Ordering::Relaxed) > 0 || ago <= RECENT.as_nanos() as u64
    }

    fn fits(&self, state: &State<T>, bytes: u64, now: u64) -> bool {
        let little = state.on_its_way_bytes + bytes <= self.depth_bytes;
        state.on_its_way_bytes == 0 || little || !self.is_read(now)
    }

    /// Admits a request of `bytes` (above 0), or holds it back. `waited_for`: a sync waits for it.
    pub(crate) fn admit(&self, bytes: u64, waited_for: bool, item: T, now: u64) -> Option<T> {
        let mut state = self.lock();
        if !state.holds() && self.fits(&state, bytes, now) {
            state.on_its_way_bytes += bytes;
            return Some(item);
        }
        state.held[usize::from(!waited_for)].push_back((bytes, item));
        None
    }

    /// A request of `bytes` is over. True if the caller has to call `next` until it returns `None`.
    pub(crate) fn over(&self, bytes: u64) -> bool {
        let mut state = self.state.lock().unwrap_or_else(|p| p.into_inner());
        let left = state.on_its_way_bytes.checked_sub(bytes);
        state.on_its_way_bytes = left.expect("H3: what is over was on its way");
        !std::mem::replace(&mut state.draining, true)
    }

    /// Takes the next held request that may be admitted.
    pub(crate) fn next(&self, now: u64) -> Option<(u64, T)> {
        let mut state = self.lock();
        let turn = state.turn();
        let fits = state.held[turn].front().is_some_and(|next| self.fits(&state, next.0, now));
        state.draining = fits;
        let (bytes, item) = if fits { state.held[turn].pop_front() } else { None }?;
        state.turns = if turn == 0 { state.turns + 1 } else { 0 };
        state.on_its_way_bytes += bytes;
        Some((bytes, item))
    }
}

/// The time, for a pace.
pub(crate) fn now() -> u64 {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    (START.elapsed() + 2 * RECENT).as_nanos() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// A read that ends at once.
    fn read(pace: &Pace<u64>, now: u64) {
        pace.begin_read();
        pace.end_read(now);
    }

    /// The story: a long read of a slow disk stopped counting while it was in progress, and all
    /// held write-back was admitted before it ended.
    #[test]
    fn pace_long_read_counts_until_end() {
        let (pace, start) = (Pace::new(WRITE_BACK_BYTES), 100 * MS);
        pace.begin_read();
        assert_eq!(pace.admit(1 << 20, false, 0, start), Some(0));
        assert_eq!(pace.admit(1 << 20, false, 1, start + 500 * MS), None);
        pace.end_read(start + 900 * MS);
        assert_eq!(pace.admit(1 << 20, false, 2, start + 910 * MS), None);
        assert!(pace.over(1 << 20));
        let all: Vec<_> = std::iter::from_fn(|| pace.next(start + 911 * MS)).collect();
        assert_eq!(all, [(1 << 20, 1), (1 << 20, 2)]);
    }

    /// A stalled disk: nothing completes by itself.
    #[test]
    fn write_back_during_reads_is_held() {
        let pace = Pace::new(WRITE_BACK_BYTES);
        let start = 100 * MS;
        // Without reads all write-back is admitted.
        for n in 0..64 {
            assert_eq!(pace.admit(1 << 20, false, n, start), Some(n));
        }
        for _ in 0..64 {
            assert!(pace.over(1 << 20) && pace.next(start).is_none());
        }
        read(&pace, start);
        assert_eq!(pace.admit(4 << 20, false, 0, start), Some(0), "one goes, whatever its size");
        assert_eq!(pace.admit(4096, false, 1, start), None);
        assert!(pace.over(4 << 20));
        assert_eq!(pace.next(start), Some((4096, 1)));
        for n in 2..6 {
            let left = pace.admit(256 << 10, false, n, start + MS);
            assert_eq!(left, (n < 5).then_some(n), "1 MiB with the 4 KiB");
        }
        // A small request that would fit does not overtake.
        assert_eq!(pace.admit(4096, false, 6, start + MS), None);
        assert_eq!(pace.next(start + MS), None);
        assert!(pace.over(256 << 10));
        assert_eq!(pace.next(start + 9 * MS), Some((256 << 10, 5)));
        assert_eq!(pace.next(start + 9 * MS), Some((4096, 6)));
        assert_eq!(pace.next(start + 9 * MS), None);
    }

    #[test]
    fn write_back_held_is_admitted_after_reads() {
        let pace = Pace::new(WRITE_BACK_BYTES);
        read(&pace, 100 * MS);
        assert_eq!(pace.admit(1 << 20, false, 0, 100 * MS), Some(0));
        (1..9).for_each(|n| assert_eq!(pace.admit(1 << 20, false, n, 105 * MS), None));
        // The disk is still being read: one request is admitted for each that ends.
        assert!(pace.over(1 << 20));
        assert_eq!(pace.next(110 * MS), Some((1 << 20, 1)));
        assert_eq!(pace.next(110 * MS), None);
        // Not any more: all.
        assert!(pace.over(1 << 20));
        let all: Vec<_> = std::iter::from_fn(|| pace.next(111 * MS)).map(|(_, n)| n).collect();
        assert_eq!(all, (2..9).collect::<Vec<_>>(), "H2: in the order in which it came");
    }

    /// The story: a sync submitted 48 MiB to the disk at once, and concurrent readers waited for
    /// all of it.
    #[test]
    fn write_back_of_sync_is_held_and_admitted_first() {
        let (pace, start) = (Pace::new(WRITE_BACK_BYTES), 100 * MS);
        read(&pace, start);
        assert_eq!(pace.admit(1 << 20, true, 0, start), Some(0));
        for n in 1..9 {
            assert_eq!(pace.admit(1 << 20, false, n, start), None);
            assert_eq!(pace.admit(1 << 20, true, 10 + n, start), None, "H2: a sync's, too");
        }
        let mut order = Vec::new();
        while order.len() < 16 {
            assert!(pace.over(1 << 20));
            order.extend(std::iter::from_fn(|| pace.next(start)).map(|(_, n)| n));
        }
        let wanted = [11, 12, 13, 14, 1, 15, 16, 17, 18, 2, 3, 4, 5, 6, 7, 8];
        assert_eq!(order, wanted, "the others have a turn now and then");
    }
}
