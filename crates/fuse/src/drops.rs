//! Pages that uncached openings leave in the kernel's cache, and the notices that drop them.
//!
//! ```text
//!   READ through the handle ─▶ Behind: its FIFO ── more than the window ──▶ Drops ─▶ kernel
//!                                        └──────── the rest, at RELEASE ──────▲
//! ```
//! The kernel reads an uncached opening ahead as any other. Each handle remembers the ranges that
//! were read through it, and drops them some MiB behind the reader. Pages that were cached before
//! cause no `READ`, so they stay.
//!
//! Invariants: drop.D1 a notice covers only ranges that were read through its handle. D2 the ranges
//! of a handle are dropped oldest first, all of them before its release has been answered.
//! D3 the queue is bounded. A range that finds it full stays with its handle, and a release waits.
//! These notices have a thread of their own: those about changes never wait for them.
//!
//! Lock: the queue's, a leaf; the thread holds none while the kernel works.

use crate::inodes::Inodes;
use crate::proto::notify::Notice;
use forebay_base::task::WaitQueue;
use forebay_vfs::Ino;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// Bytes that stay behind a reader: more than the kernel reads ahead, so that no page is dropped
/// before it was used.
const WINDOW_BYTES: u64 = 4 << 20;
/// Bytes that a sequential reader drops at a time. Where such a piece ends is a multiple of it: a
/// page of several would go as a whole.
const STEP_BYTES: u64 = 1 << 20;
/// All of a file.
pub(crate) const ALL: Range<u64> = 0..u64::MAX;
/// Most notices in the queue.
const QUEUE_MAX: usize = 4096;

/// Ranges that were read through one handle and have not been dropped, oldest first.
#[derive(Default)]
pub(crate) struct Behind {
    ranges: VecDeque<Range<u64>>,
    bytes: u64,
}

impl Behind {
    /// A range is being read.
    pub fn push(&mut self, range: Range<u64>) {
        self.bytes += range.end - range.start;
        match self.ranges.back_mut() {
            Some(last) if last.end == range.start => last.end = range.end,
            _ => self.ranges.push_back(range),
        }
    }

    /// Removes the oldest range, or a first part of it, if more than the window and a step remain.
    pub fn pop_old(&mut self) -> Option<Range<u64>> {
        if self.bytes <= WINDOW_BYTES + STEP_BYTES {
            return None;
        }
        let excess = self.bytes - WINDOW_BYTES;
        let oldest = self.ranges.front_mut()?;
        let cut = (oldest.start + excess) / STEP_BYTES * STEP_BYTES;
        if oldest.end <= oldest.start + excess || cut <= oldest.start {
            return self.pop();
        }
        let part = oldest.start..cut;
        oldest.start = cut;
        self.bytes -= part.end - part.start;
        Some(part)
    }

    /// Removes the oldest range.
    pub fn pop(&mut self) -> Option<Range<u64>> {
        let oldest = self.ranges.pop_front()?;
        self.bytes -= oldest.end - oldest.start;
        Some(oldest)
    }

    /// Puts back what could not be dropped.
    pub fn unpop(&mut self, range: Range<u64>) {
        self.bytes += range.end - range.start;
        self.ranges.push_front(range);
    }
}

#[derive(Default)]
struct State {
    queue: VecDeque<(u64, Range<u64>)>,
    closed: bool,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    /// For the thread.
    changed: Condvar,
    /// For releases that wait for space.
    waiting: WaitQueue,
}

/// The queue of ranges that the kernel is to drop. Clones share it.
#[derive(Clone, Default)]
pub(crate) struct Drops(Arc<Shared>);

impl Drops {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues a range of a file; false if the queue is full (D3).
    pub fn try_push(&self, node: u64, range: &Range<u64>) -> bool {
        let mut state = self.lock();
        if state.closed {
            return true;
        }
        if state.queue.len() >= QUEUE_MAX {
            return false;
        }
        state.queue.push_back((node, range.clone()));
        self.0.changed.notify_one();
        true
    }

    /// Queues a range of a file, and waits for space.
    pub async fn push(&self, node: u64, range: Range<u64>) {
        self.0.waiting.wait_until(|| self.try_push(node, &range).then_some(())).await;
    }

    /// No notice is of use any more.
    pub fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        state.queue.clear();
        drop(state);
        self.0.changed.notify_all();
        self.0.waiting.wake_all();
    }

    /// The thread's work, until [`Drops::close`]; `notify` gives the kernel a notice.
    pub fn run(&self, inodes: &Inodes, notify: impl Fn(&Notice)) {
        loop {
            let mut state = self.lock();
            let (node, range) = loop {
                if state.closed {
                    return;
                }
                if let Some(oldest) = state.queue.pop_front() {
                    break oldest;
                }
                state = self.0.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            };
            let has_space = state.queue.len() == QUEUE_MAX - 1;
            drop(state);
            let notice = Notice::content(node, range.start, range.end - range.start);
            match range == ALL {
                true => inodes.drop_content(Ino(node), || notify(&notice)),
                false => notify(&notice),
            }
            if has_space {
                self.0.waiting.wake_all();
            }
        }
    }

    /// The nodes and ranges in the queue.
    #[cfg(test)]
    pub fn queued(&self) -> Vec<(u64, Range<u64>)> {
        self.lock().queue.iter().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_base::task::block_on;
    use std::future::Future;
    use std::task::{Context, Waker};

    const MIB: u64 = 1 << 20;

    /// D1, D2: a sequential reader drops a step at a time, the window behind it.
    #[test]
    fn d1_d2_sequential_ranges_are_dropped_in_steps_behind_the_reader() {
        let (mut behind, mut dropped, step) = (Behind::default(), Vec::new(), 128 << 10);
        let start = 3 * step;
        for at in (start..20 * MIB).step_by(step as usize) {
            behind.push(at..at + step);
            while let Some(range) = behind.pop_old() {
                assert!(range.end + WINDOW_BYTES <= at + step, "{range:?} at {at}");
                dropped.push(range);
            }
        }
        assert!(dropped.len() <= 16, "{}", dropped.len());
        while let Some(range) = behind.pop() {
            dropped.push(range);
        }
        assert_eq!(behind.bytes, 0);
        let mut next = start;
        for range in dropped {
            assert_eq!(range.start, next);
            next = range.end;
        }
        assert_eq!(next, 20 * MIB);
    }

    /// D1, D2: what lies between the ranges of a random reader is not dropped.
    #[test]
    fn d1_d2_random_ranges_are_dropped_oldest_first() {
        let mut behind = Behind::default();
        let at = |n: u64| n * 7919 % 10_000 * 8192;
        let mut dropped = Vec::new();
        for n in 0..5000 {
            behind.push(at(n)..at(n) + 4096);
            while let Some(range) = behind.pop_old() {
                dropped.push(range);
            }
        }
        assert!(dropped.len() > 3000 && behind.bytes <= WINDOW_BYTES + STEP_BYTES);
        let wanted = (0..dropped.len() as u64).map(|n| at(n)..at(n) + 4096);
        assert!(dropped.iter().cloned().eq(wanted));
    }

    /// D3: a full queue refuses, and a release waits until the thread has taken one.
    #[test]
    fn d3_queue_is_bounded_and_releases_wait() {
        let drops = Drops::default();
        (0..QUEUE_MAX as u64).for_each(|n| assert!(drops.try_push(n, &(0..4096))));
        assert!(!drops.try_push(0, &(0..4096)));
        let mut cx = Context::from_waker(Waker::noop());
        let mut waits = Box::pin(drops.push(7, 0..4096));
        assert!(waits.as_mut().poll(&mut cx).is_pending());
        drops.lock().queue.pop_front();
        assert!(waits.as_mut().poll(&mut cx).is_ready());
        assert_eq!(drops.queued().last(), Some(&(7, 0..4096)));
        drops.close();
        block_on(drops.push(8, 0..4096));
        assert_eq!(drops.queued(), []);
    }
}
