//! Memory of requests that wait: what programs have handed over, and what they will be answered with.
//!
//! Who holds some gives it back without a further request of the kernel's: so threads that wait for room wait
//! for a device at most, never for each other.
//!
//! Invariant: M1 a reader thread takes a request only while those that wait hold no more than the bound; each
//! thread may take one beyond it.
//!
//! Locks: one for waiting and one for spare buffers, leaves.

use crate::device::PAYLOAD_MAX;
use forebay_base::buf::AlignedBuf;
use forebay_base::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// See the module.
pub(crate) struct Payload {
    used: AtomicU64,
    max: u64,
    lock: Mutex<()>,
    freed: Condvar,
}

/// Bytes of a request that waits.
pub(crate) struct Held(Arc<Payload>, u64);

impl Payload {
    /// Up to `max` bytes.
    pub fn new(max: u64) -> Arc<Self> {
        let (used, lock, freed) = Default::default();
        Arc::new(Self { used, max, lock, freed })
    }

    /// Whether there is space for more requests that wait.
    pub fn has_room(&self) -> bool {
        self.used.load(Ordering::SeqCst) <= self.max
    }

    /// Waits until another request may be taken (M1), or there is no space to be expected: `is_stuck`.
    pub fn room(&self, is_stuck: impl Fn() -> bool) {
        if self.has_room() {
            return;
        }
        let mut turn = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        while !self.has_room() && !is_stuck() {
            turn = self.freed.wait(turn).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// What [`Payload::room`] asks has changed.
    pub fn wake(&self) {
        drop(self.lock.lock());
        self.freed.notify_all();
    }

    /// Bytes of requests that wait.
    pub fn used(&self) -> u64 {
        self.used.load(Ordering::SeqCst)
    }

    /// Counts a request that has to wait.
    pub fn hold(self: &Arc<Self>, bytes: u64) -> Held {
        self.used.fetch_add(bytes, Ordering::SeqCst);
        Held(self.clone(), bytes)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let Self(payload, bytes) = self;
        let before = payload.used.fetch_sub(*bytes, Ordering::SeqCst);
        if before > payload.max && before - *bytes <= payload.max {
            // Who looked before waits by now, or has not looked yet.
            drop(payload.lock.lock());
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
        let payload = Payload::new(100);
        let first = payload.hold(100);
        payload.room(|| false);
        let second = payload.hold(30);
        let third = payload.hold(1);
        let (sender, done) = std::sync::mpsc::channel();
        let thread = {
            let payload = payload.clone();
            std::thread::spawn(move || {
                payload.room(|| false);
                sender.send(payload.used.load(Ordering::SeqCst)).unwrap();
            })
        };
        drop(third);
        assert!(done.try_recv().is_err() && !payload.has_room());
        drop(first);
        assert_eq!(done.recv().unwrap(), 30);
        thread.join().unwrap();
        let more = payload.hold(100);
        payload.room(|| true);
        assert!(!payload.has_room(), "none is to be expected");
        drop((second, more));
        assert_eq!(payload.used.load(Ordering::SeqCst), 0);
    }
}
