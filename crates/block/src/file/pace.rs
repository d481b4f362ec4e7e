//! Reads go before write-back: while a disk is being read, only little write-back is on its way.
//!
//! A disk has a queue of its own, and what is in there is beyond our order: a read that comes after
//! 64 MiB of write-back waits for them. So while a read came within the last [`RECENT`], write-back
//! above [`DEPTH_BYTES`] is held here, and leaves as what is on its way completes. There is one
//! pace per disk, whichever files are on it.
//!
//! Invariants: H1 something is held only while something is on its way, so a completion is to
//! come that looks again. H2 what is held leaves in the order in which it came. H3 what leaves
//! counts as on its way until `over`, which is called once, however it ends.
//! Lock rule: the lock is innermost; nothing is submitted or ended while it is held.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{LazyLock, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// Write-back on its way to a disk that is being read, bytes. One request may be larger.
const DEPTH_BYTES: u64 = 1 << 20;
/// A disk is being read so long after a read came.
const RECENT: Duration = Duration::from_millis(10);

struct State<T> {
    on_its_way_bytes: u64,
    held: VecDeque<(u64, T)>,
    /// Somebody submits what may leave.
    draining: bool,
}

/// The order of one disk. Times are nanoseconds of any clock that starts above [`RECENT`].
pub(crate) struct Pace<T> {
    state: Mutex<State<T>>,
    last_read: AtomicU64,
}

impl<T> Pace<T> {
    pub(crate) fn new() -> Self {
        let state = State { on_its_way_bytes: 0, held: VecDeque::new(), draining: false };
        Self { state: Mutex::new(state), last_read: AtomicU64::new(0) }
    }

    fn lock(&self) -> MutexGuard<'_, State<T>> {
        let state = self.state.lock().unwrap_or_else(|p| p.into_inner());
        debug_assert!(
            state.held.is_empty() || state.on_its_way_bytes > 0 || state.draining,
            "H1: something is held and nothing is on its way"
        );
        state
    }

    pub(crate) fn note_read(&self, now: u64) {
        self.last_read.store(now, Ordering::Relaxed);
    }

    fn fits(&self, state: &State<T>, bytes: u64, now: u64) -> bool {
        let read = now.saturating_sub(self.last_read.load(Ordering::Relaxed));
        state.on_its_way_bytes == 0
            || read > RECENT.as_nanos() as u64
            || state.on_its_way_bytes + bytes <= DEPTH_BYTES
    }

    /// Lets a write of `bytes` (above 0) leave, or holds it.
    pub(crate) fn admit(&self, bytes: u64, item: T, now: u64) -> Option<T> {
        let mut state = self.lock();
        if state.held.is_empty() && self.fits(&state, bytes, now) {
            state.on_its_way_bytes += bytes;
            return Some(item);
        }
        state.held.push_back((bytes, item));
        None
    }

    /// A write of `bytes` is over. True if the caller has to call `next` until it gives none.
    pub(crate) fn over(&self, bytes: u64) -> bool {
        let mut state = self.state.lock().unwrap_or_else(|p| p.into_inner());
        let left = state.on_its_way_bytes.checked_sub(bytes);
        state.on_its_way_bytes = left.expect("H3: what is over was on its way");
        !std::mem::replace(&mut state.draining, true)
    }

    /// What may leave next.
    pub(crate) fn next(&self, now: u64) -> Option<(u64, T)> {
        let mut state = self.lock();
        let fits = state.held.front().is_some_and(|(bytes, _)| self.fits(&state, *bytes, now));
        state.draining = fits;
        let (bytes, item) = if fits { state.held.pop_front() } else { None }?;
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

    /// A stalled disk: nothing completes by itself.
    #[test]
    fn write_back_is_held_while_the_disk_is_read() {
        let pace = Pace::new();
        let start = 100 * MS;
        // Nobody reads: all of it may leave.
        for n in 0..64 {
            assert_eq!(pace.admit(1 << 20, n, start), Some(n));
        }
        for _ in 0..64 {
            assert!(pace.over(1 << 20) && pace.next(start).is_none());
        }
        pace.note_read(start);
        assert_eq!(pace.admit(4 << 20, 0, start), Some(0), "one goes, whatever its size");
        assert_eq!(pace.admit(4096, 1, start), None);
        assert!(pace.over(4 << 20));
        assert_eq!(pace.next(start), Some((4096, 1)));
        for n in 2..6 {
            let left = pace.admit(256 << 10, n, start + MS);
            assert_eq!(left, (n < 5).then_some(n), "1 MiB with the 4 KiB");
        }
        // A small one that would fit does not overtake.
        assert_eq!(pace.admit(4096, 6, start + MS), None);
        assert_eq!(pace.next(start + MS), None);
        assert!(pace.over(256 << 10));
        assert_eq!(pace.next(start + 9 * MS), Some((256 << 10, 5)));
        assert_eq!(pace.next(start + 9 * MS), Some((4096, 6)));
        assert_eq!(pace.next(start + 9 * MS), None);
    }

    #[test]
    fn held_write_back_leaves_when_reading_has_ended() {
        let pace = Pace::new();
        pace.note_read(100 * MS);
        assert_eq!(pace.admit(1 << 20, 0, 100 * MS), Some(0));
        (1..9).for_each(|n| assert_eq!(pace.admit(1 << 20, n, 105 * MS), None));
        // Still being read: one for one.
        assert!(pace.over(1 << 20));
        assert_eq!(pace.next(110 * MS), Some((1 << 20, 1)));
        assert_eq!(pace.next(110 * MS), None);
        // Not any more: all.
        assert!(pace.over(1 << 20));
        let all: Vec<_> = std::iter::from_fn(|| pace.next(111 * MS)).map(|(_, n)| n).collect();
        assert_eq!(all, (2..9).collect::<Vec<_>>(), "H2: in the order in which it came");
    }
}
