//! Memory of requests that wait: what programs have handed over, and what they will be answered with.
//!
//! Who holds some gives it back without a further request of the kernel's: so threads that wait for room wait
//! for a device at most, never for each other.
//!
//! Invariant: M1 a reader thread takes a request only while those that wait hold no more than the
//! bound; each thread may take one beyond it. M2 with a limit, threads stop waiting when there was
//! no space for so long: what holds it does not end. Space that was free in between, if only for a
//! moment, starts that time anew.
//!
//! Locks: one for waiting and one for spare buffers, leaves.

use crate::device::PAYLOAD_MAX;
use forebay_base::buf::AlignedBuf;
use forebay_base::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// See the module.
pub(crate) struct Payload {
    used: AtomicU64,
    max: u64,
    /// Longest time without space (M2).
    limit: Option<Duration>,
    /// Since when there is none, if there is a limit.
    full_since: Mutex<Option<Instant>>,
    freed: Condvar,
}

/// Bytes of a request that waits.
pub(crate) struct Held(Arc<Payload>, u64);

fn is_over(limit: Duration, since: Option<Instant>) -> bool {
    since.is_some_and(|since| since.elapsed() >= limit)
}

impl Payload {
    /// Up to `max` bytes; `limit`: see M2.
    pub fn new(max: u64, limit: Option<Duration>) -> Arc<Self> {
        let (used, full_since, freed) = Default::default();
        Arc::new(Self { used, max, limit, full_since, freed })
    }

    fn has_space(&self) -> bool {
        self.used.load(Ordering::SeqCst) <= self.max
    }

    fn lock(&self) -> MutexGuard<'_, Option<Instant>> {
        self.full_since.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether there was no space for as long as the limit (M2).
    pub fn is_stuck(&self) -> bool {
        let Some(limit) = self.limit else { return false };
        !self.has_space() && is_over(limit, *self.lock())
    }

    /// Waits until another request may be taken (M1), or the limit is over (M2).
    pub fn wait_for_space(&self) {
        if self.has_space() {
            return;
        }
        let mut since = self.lock();
        while !self.has_space() && !self.limit.is_some_and(|limit| is_over(limit, *since)) {
            since = self.freed.wait(since).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Wakes those that wait for space if the limit is over.
    pub fn wake_if_stuck(&self) {
        if self.is_stuck() {
            self.freed.notify_all();
        }
    }

    /// Notes that the bound was crossed. Crossings may be noted in another order than they
    /// happened, so each looks at the present: the last one is right.
    fn note_crossing(&self) {
        let mut since = self.lock();
        if self.limit.is_some() {
            *since = (!self.has_space()).then(Instant::now);
        }
    }

    /// Bytes of requests that wait.
    pub fn used(&self) -> u64 {
        self.used.load(Ordering::SeqCst)
    }

    /// Counts a request that has to wait.
    pub fn hold(self: &Arc<Self>, bytes: u64) -> Held {
        let before = self.used.fetch_add(bytes, Ordering::SeqCst);
        if self.limit.is_some() && before <= self.max && before + bytes > self.max {
            self.note_crossing();
        }
        Held(self.clone(), bytes)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let Self(payload, bytes) = self;
        let before = payload.used.fetch_sub(*bytes, Ordering::SeqCst);
        if before > payload.max && before - *bytes <= payload.max {
            // A thread that saw no space waits by now, or has not looked under the lock yet.
            payload.note_crossing();
            payload.freed.notify_all();
        }
    }
}

/// Buffers of requests that are over, for others: one that is new has to be made zeros, and the system to
/// find memory for it.
pub(crate) struct Spares {
    bufs: Mutex<Vec<AlignedBuf>>,
    max: usize,
}

impl Spares {
    /// Keeps up to `max` of them.
    pub fn new(max: usize) -> Self {
        Self { bufs: Mutex::default(), max }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<AlignedBuf>> {
        self.bufs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One of `len` bytes, at most [`PAYLOAD_MAX`]; what is in it is of no account.
    pub fn take(&self, len: usize) -> AlignedBuf {
        let spare = match len == PAYLOAD_MAX {
            true => self.lock().pop(),
            false => None,
        };
        spare.unwrap_or_else(|| AlignedBuf::new(len.min(PAYLOAD_MAX)))
    }

    /// Nobody needs it any more.
    pub fn give(&self, buf: AlignedBuf) {
        if buf.len() != PAYLOAD_MAX {
            return;
        }
        let mut bufs = self.lock();
        if bufs.len() < self.max {
            bufs.push(buf);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Only whole ones are kept, and no more of them than allowed.
    #[test]
    fn spare_buffers_are_few_and_whole() {
        let spares = Spares::new(1);
        let (mut first, second) = (spares.take(PAYLOAD_MAX), spares.take(PAYLOAD_MAX));
        first[0] = 7;
        spares.give(spares.take(4096));
        assert!(spares.lock().is_empty());
        spares.give(first);
        spares.give(second);
        assert_eq!(spares.lock().len(), 1);
        assert_eq!(spares.take(PAYLOAD_MAX)[0], 7, "the same again");
        assert_eq!(spares.take(5 * PAYLOAD_MAX).len(), PAYLOAD_MAX);
    }

    /// M1: threads wait while there is too much, and go on when it is given back.
    #[test]
    fn m1_requests_that_wait_are_bounded() {
        let payload = Payload::new(100, None);
        let first = payload.hold(100);
        payload.wait_for_space();
        let second = payload.hold(30);
        let third = payload.hold(1);
        let (sender, done) = std::sync::mpsc::channel();
        let thread = {
            let payload = payload.clone();
            std::thread::spawn(move || {
                payload.wait_for_space();
                sender.send(payload.used.load(Ordering::SeqCst)).unwrap();
            })
        };
        drop(third);
        assert!(done.try_recv().is_err() && !payload.has_space());
        drop(first);
        assert_eq!(done.recv().unwrap(), 30);
        thread.join().unwrap();
        drop(second);
        assert_eq!(payload.used.load(Ordering::SeqCst), 0);
    }

    /// M2: threads stop waiting when there was no space for the limit, and not when there was some
    /// in between.
    #[test]
    fn m2_no_space_for_the_limit_ends_the_wait() {
        let ended = Payload::new(100, Some(Duration::ZERO));
        let held = ended.hold(101);
        assert!(ended.is_stuck());
        ended.wait_for_space();
        drop(held);
        assert!(!ended.is_stuck());
        let never = Payload::new(100, Some(Duration::MAX));
        let held = never.hold(101);
        let first = (*never.lock()).unwrap();
        drop(never.hold(5));
        assert_eq!(*never.lock(), Some(first), "no space in between");
        drop(held);
        assert_eq!(*never.lock(), None);
        let _held = never.hold(101);
        assert!((*never.lock()).unwrap() >= first && !never.is_stuck());
    }
}
