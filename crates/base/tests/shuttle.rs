//! Random interleavings of waiting and waking, in a build of its own: `RUSTFLAGS="--cfg shuttle"
//! cargo test --profile fsx --test shuttle`, with a target directory of its own.
//!
//! In every schedule each waiter whose condition holds is woken. Shuttle reports a schedule without
//! that wake as a deadlock.
#![cfg(shuttle)]

use forebay_base::schedules::check;
use forebay_base::sync::atomic::{AtomicUsize, Ordering};
use forebay_base::sync::{Arc, Mutex, thread};
use forebay_base::task::{Pick, WaitQueue, block_on};
use std::future::{Future, poll_fn};
use std::ops::Range;
use std::pin::pin;
use std::task::Poll;

type Job = Box<dyn FnOnce() + Send>;

fn together(jobs: Vec<Job>) {
    let threads: Vec<_> = jobs.into_iter().map(thread::spawn).collect();
    threads.into_iter().for_each(|t| t.join().unwrap());
}

#[test]
fn wake_all_wakes_every_waiter() {
    check(|| {
        let (queue, value) = (Arc::new(WaitQueue::new()), Arc::new(AtomicUsize::new(0)));
        let waiter = |want: usize| -> Job {
            let (queue, value) = (queue.clone(), value.clone());
            Box::new(move || {
                let reached = || (value.load(Ordering::Acquire) >= want).then_some(());
                block_on(queue.wait_until(reached));
            })
        };
        let waker = || -> Job {
            let (queue, value) = (queue.clone(), value.clone());
            Box::new(move || {
                value.fetch_add(1, Ordering::AcqRel);
                queue.wake_all();
            })
        };
        together(vec![waiter(1), waiter(2), waker(), waker()]);
        assert_eq!(queue.waiters(), 0);
    });
}

/// Ranges with one holder at a time, as mappings have them.
#[derive(Default)]
struct Ranges {
    held: Mutex<Vec<Range<u64>>>,
    queue: WaitQueue<Range<u64>>,
}

impl Ranges {
    fn take(&self, range: &Range<u64>) -> Option<()> {
        let mut held = self.held.lock();
        let free = held.iter().all(|r| r.end <= range.start || range.end <= r.start);
        free.then(|| held.push(range.clone()))
    }

    fn give(&self, range: &Range<u64>) {
        self.held.lock().retain(|r| r != range);
        self.queue.wake_matching(|key| {
            if key.end <= range.start || range.end <= key.start {
                Pick::Skip
            } else if key.start <= range.start && range.end <= key.end {
                Pick::WakeAndStop
            } else {
                Pick::Wake
            }
        });
    }

    /// Takes a range and releases it. A `hasty` waiter is cancelled when it is woken.
    async fn hold(&self, range: Range<u64>, hasty: bool) {
        let mut wait = pin!(self.queue.wait_for(range.clone(), || self.take(&range)));
        let mut polls = 0;
        let taken = poll_fn(|cx| {
            polls += 1;
            if hasty && polls > 1 {
                return Poll::Ready(false);
            }
            wait.as_mut().poll(cx).map(|()| true)
        });
        if taken.await {
            self.give(&range);
        }
    }
}

fn ranges(plan: &'static [(Range<u64>, bool)]) {
    check(move || {
        let ranges = Arc::new(Ranges::default());
        let job = |(range, hasty): (Range<u64>, bool)| -> Job {
            let ranges = ranges.clone();
            Box::new(move || {
                block_on(ranges.hold(range.clone(), hasty));
                // A cancelled waiter does not run again, so it cannot complete work it left undone.
                if !hasty {
                    block_on(ranges.hold(range, false));
                }
            })
        };
        together(plan.iter().cloned().map(job).collect());
        assert!(ranges.held.lock().is_empty() && ranges.queue.waiters() == 0);
    });
}

#[test]
fn range_released_wakes_next_waiter() {
    ranges(&[(0..4, false), (0..4, false), (0..4, false)]);
}

#[test]
fn ranges_overlapping_wake_all_waiters() {
    ranges(&[(0..4, false), (2..6, false), (4..8, false), (0..8, false)]);
}

#[test]
fn chosen_waiter_dropped_passes_wake_on() {
    ranges(&[(0..4, true), (0..4, false), (2..4, true)]);
}
