//! Holds bios back until their time: the common part of delay and throttle.
//!
//! Invariants: P1 bios are submitted in order of arrival; their times never decrease. P2 when the
//! device is dropped, held bios are still submitted at their time. Lock rule: the queue's lock is
//! not held while a bio is passed on.

use forebay_base::sync::Mutex;
use forebay_base::task::WaitQueue;
use forebay_base::world::{Nanos, WorldRef};
use forebay_block::bdev::DeviceRef;
use forebay_block::bio::Bio;
use std::collections::VecDeque;
use std::sync::Arc;

#[derive(Default)]
struct Queue {
    bios: VecDeque<(Nanos, Bio)>,
    closing: bool,
}

#[derive(Default)]
struct Shared {
    queue: Mutex<Queue>,
    changed: WaitQueue,
}

enum Event {
    Due(Nanos, Bio),
    Close,
}

/// A task that submits bios to the device below when their time has come.
pub(super) struct Pacer {
    shared: Arc<Shared>,
}

impl Pacer {
    pub(super) fn new(name: &str, world: &WorldRef, lower: DeviceRef) -> Self {
        let shared = Arc::new(Shared::default());
        let (theirs, clock) = (shared.clone(), world.clone());
        let task = async move {
            loop {
                let next = theirs.changed.wait_until(|| {
                    let mut queue = theirs.queue.lock();
                    let due = queue.bios.pop_front().map(|(at, bio)| Event::Due(at, bio));
                    due.or(queue.closing.then_some(Event::Close))
                });
                match next.await {
                    Event::Due(at, bio) => {
                        if at > clock.now() {
                            clock.sleep_until(at).await;
                        }
                        lower.submit(bio);
                    }
                    Event::Close => return,
                }
            }
        };
        world.spawn(name, Box::pin(task));
        Self { shared }
    }

    /// Holds a bio back until `at`.
    pub(super) fn put(&self, at: Nanos, bio: Bio) {
        {
            let bios = &mut self.shared.queue.lock().bios;
            let in_order = bios.back().is_none_or(|(before, _)| *before <= at);
            debug_assert!(in_order, "P1: a bio for {at} ns comes after one for later");
            bios.push_back((at, bio));
        }
        self.shared.changed.wake_all();
    }
}

impl Drop for Pacer {
    fn drop(&mut self) {
        self.shared.queue.lock().closing = true;
        self.shared.changed.wake_all();
    }
}
