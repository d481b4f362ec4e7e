//! Bound on the memory of requests that wait: data that programs have written, and buffers of
//! replies.
//!
//! A request that holds memory releases it without a further request of the kernel. So a reader
//! thread that waits for space waits at most for a device, never for another reader thread.
//!
//! Invariants: M1 a reader thread takes a request only while waiting requests hold no more than the
//! bound; each thread may exceed it by one request. M2 if a limit is set, threads stop waiting
//! after that time without space, because the requests that hold the memory do not end. Any moment
//! with free space restarts the time.
//!
//! Locks: one for waiting and one for spare buffers, leaves.

use crate::device::PAYLOAD_MAX;
use forebay_base::buf::AlignedBuf;
use forebay_base::sync::atomic::{AtomicU64, Ordering};
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Counter of the bytes that waiting requests hold, with its bound.
pub(crate) struct Payload {
    used: AtomicU64,
    max: u64,
    /// Longest time without free space (M2).
    limit: Option<Duration>,
    /// Since when there has been no free space; only kept if a limit is set.
    full_since: Mutex<Option<Instant>>,
    freed: Condvar,
}

/// Bytes that one waiting request holds; dropping this releases them.
pub(crate) struct Held(Arc<Payload>, u64);

fn is_over(limit: Duration, since: Option<Instant>) -> bool {
    since.is_some_and(|since| since.elapsed() >= limit)
}

impl Payload {
    /// A bound of `max` bytes. `limit`: see M2.
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

    /// Whether there has been no free space for as long as the limit (M2).
    pub fn is_stuck(&self) -> bool {
        let Some(limit) = self.limit else { return false };
        !self.has_space() && is_over(limit, *self.lock())
    }

    /// Waits until another request may be taken (M1), or until the limit has passed (M2).
    pub fn wait_for_space(&self) {
        if self.has_space() {
            return;
        }
        let mut since = self.lock();
        while !self.has_space() && !self.limit.is_some_and(|limit| is_over(limit, *since)) {
            since = self.freed.wait(since).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Wakes threads that wait for space if the limit has passed.
    pub fn wake_if_stuck(&self) {
        if self.is_stuck() {
            self.freed.notify_all();
        }
    }

    /// Notes that the bound was crossed. Threads may call this in another order than they crossed
    /// it, so each reads the present state: the last call is right.
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
            // `note_crossing` takes the lock. So a thread that saw no space is waiting by now, or
            // checks again under the lock.
            payload.note_crossing();
            payload.freed.notify_all();
        }
    }
}

/// A shorter buffer costs little to allocate, and is not kept.
const SPARE_MIN: usize = 64 << 10;

/// Buffers of finished requests for reuse: a new buffer is mapped, zeroed, and unmapped later.
pub(crate) struct Spares {
    kept: Mutex<Kept>,
    max_bytes: usize,
}

#[derive(Default)]
struct Kept {
    /// The last one was returned last.
    bufs: VecDeque<AlignedBuf>,
    bytes: usize,
}

impl Spares {
    /// Keeps buffers of up to `max_bytes` bytes in all.
    pub fn new(max_bytes: usize) -> Self {
        Self { kept: Mutex::default(), max_bytes }
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Bytes of the buffers that are kept.
    pub fn bytes(&self) -> u64 {
        self.lock().bytes as u64
    }

    /// Removes a spare buffer of exactly `len` bytes, the one that was returned last.
    fn find(&self, len: usize) -> Option<AlignedBuf> {
        if len < SPARE_MIN {
            return None;
        }
        let mut kept = self.lock();
        let at = kept.bufs.iter().rposition(|buf| buf.len() == len)?;
        kept.bytes -= len;
        kept.bufs.remove(at)
    }

    /// A buffer of `len` bytes, at most [`PAYLOAD_MAX`], with arbitrary content.
    pub fn take(&self, len: usize) -> AlignedBuf {
        let len = len.min(PAYLOAD_MAX);
        self.find(len).unwrap_or_else(|| AlignedBuf::new(len))
    }

    /// A copy of `bytes`.
    pub fn copy_of(&self, bytes: &[u8]) -> AlignedBuf {
        let Some(mut buf) = self.find(bytes.len()) else { return AlignedBuf::copy_of(bytes) };
        buf.copy_from_slice(bytes);
        buf
    }

    /// Returns a buffer for reuse. If too many bytes are kept, those returned first are freed.
    pub fn give(&self, buf: AlignedBuf) {
        if buf.len() < SPARE_MIN || buf.len() > self.max_bytes {
            return;
        }
        let mut kept = self.lock();
        kept.bytes += buf.len();
        kept.bufs.push_back(buf);
        while kept.bytes > self.max_bytes {
            let Some(oldest) = kept.bufs.pop_front() else { break };
            kept.bytes -= oldest.len();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The story: only buffers of 1 MiB were used again. Each read-ahead of the kernel, of 128 KiB,
    /// mapped, zeroed and unmapped one.
    #[test]
    fn buffers_of_any_length_are_used_again() {
        let spares = Spares::new(PAYLOAD_MAX);
        let returned = |len: usize, first: u8| {
            let mut buf = AlignedBuf::new(len);
            buf[0] = first;
            spares.give(buf);
        };
        returned(128 << 10, 7);
        returned(64 << 10, 8);
        assert_eq!(spares.take(128 << 10)[0], 7);
        assert_eq!(spares.take(64 << 10)[0], 8);
        assert_eq!(spares.take(64 << 10)[0], 0, "each is given out once");
        returned(64 << 10, 9);
        assert_eq!(*spares.copy_of(&[1; 64 << 10]), [1; 64 << 10]);
        assert!(spares.lock().bufs.is_empty(), "the copy is in the spare buffer");
    }

    /// Buffers of at most so many bytes are kept, and no short ones.
    #[test]
    fn spare_buffers_are_bounded() {
        let spares = Spares::new(PAYLOAD_MAX);
        spares.give(AlignedBuf::new(4096));
        assert!(spares.lock().bufs.is_empty());
        for len in [64 << 10, PAYLOAD_MAX, 64 << 10, 128 << 10] {
            spares.give(AlignedBuf::new(len));
        }
        let lens: Vec<usize> = spares.lock().bufs.iter().map(|buf| buf.len()).collect();
        assert_eq!(lens, [64 << 10, 128 << 10]);
        assert_eq!(spares.take(5 * PAYLOAD_MAX).len(), PAYLOAD_MAX);
    }

    /// M1: threads wait while the bound is exceeded, and continue when bytes are released.
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

    /// M2: threads stop waiting after the limit without free space, but a moment with free space
    /// restarts it.
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
