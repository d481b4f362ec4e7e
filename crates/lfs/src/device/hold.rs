//! Write turns that end only when the device has ended every write of them.
//!
//! A task may be dropped at any await, while a write that it submitted goes on and lands much
//! later. If another task wrote the same addresses in the meantime, the late write would replace
//! the newer bytes: a superblock slot would name tree nodes that were freed and used again. So
//! every such write carries a [`Hold`], and the turn stays taken until the last hold is dropped
//! (log.L9, checkpoint.H18).
//!
//! Locks: a hold may be dropped on a completion thread. Dropping it takes the log's `ctl`, or the
//! lock of the wait queue here. So no hold and no turn may be dropped while one of these locks is
//! held.

use forebay_base::sync::atomic::{AtomicBool, Ordering};
use forebay_base::sync::{Arc, Mutex, Weak};
use forebay_base::task::WaitQueue;

/// Keeps a turn taken; each write owns one until the device has ended it.
#[derive(Clone, Default)]
pub(crate) struct Hold {
    _log: Option<Arc<dyn Send + Sync>>,
    _checkpoint: Option<Arc<TurnGuard>>,
}

impl Hold {
    /// Keeps the log's write turn taken.
    pub fn log(writes: Arc<dyn Send + Sync>) -> Self {
        Self { _log: Some(writes), _checkpoint: None }
    }
}

/// A lock that a task holds across awaits; if the task is dropped, its writes in flight keep it
/// taken.
pub(crate) struct TurnLock {
    shared: Arc<Shared>,
    holder: Mutex<Weak<TurnGuard>>,
}

struct Shared {
    is_taken: AtomicBool,
    wait: WaitQueue,
}

impl TurnLock {
    /// An unlocked lock.
    pub fn new() -> Self {
        let shared = Shared { is_taken: AtomicBool::new(false), wait: WaitQueue::new() };
        Self { shared: Arc::new(shared), holder: Mutex::new(Weak::new()) }
    }

    /// Waits until the lock is free and takes it.
    pub async fn take(&self) -> Arc<TurnGuard> {
        let free = || (!self.shared.is_taken.swap(true, Ordering::AcqRel)).then_some(());
        self.shared.wait.wait_until(free).await;
        let guard = Arc::new(TurnGuard(self.shared.clone()));
        *self.holder.lock() = Arc::downgrade(&guard);
        guard
    }

    /// A hold for a write of the task that has the lock; empty if the lock is free.
    pub fn hold(&self) -> Hold {
        Hold { _log: None, _checkpoint: self.holder.lock().upgrade() }
    }
}

/// The lock is free when the last reference to this is dropped.
pub(crate) struct TurnGuard(Arc<Shared>);

impl Drop for TurnGuard {
    fn drop(&mut self) {
        self.0.is_taken.store(false, Ordering::Release);
        self.0.wait.wake_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_base::task::BoxFuture;
    use std::task::{Context, Poll, Waker};

    /// checkpoint.H18: the next task gets the turn of checkpoints when the write of a dropped task
    /// has ended.
    #[test]
    fn turn_lock_of_dropped_task_waits_for_its_write() {
        let lock = TurnLock::new();
        let cx = &mut Context::from_waker(Waker::noop());
        let take = |lock| -> BoxFuture<'_, Arc<TurnGuard>> { Box::pin(TurnLock::take(lock)) };
        let Poll::Ready(guard) = take(&lock).as_mut().poll(cx) else { panic!("it is free") };
        let write = lock.hold();
        drop(guard);
        let mut next = take(&lock);
        assert!(next.as_mut().poll(cx).is_pending(), "H18: the device has a write");
        drop(write);
        let Poll::Ready(guard) = next.as_mut().poll(cx) else { panic!("its last write ended") };
        drop(guard);
        let unheld = lock.hold();
        assert!(take(&lock).as_mut().poll(cx).is_ready(), "a hold of a free lock takes nothing");
        drop(unheld);
    }
}
