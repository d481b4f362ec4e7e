//! Counts the requests that an engine has accepted and not ended, so that a caller with many
//! requests can wait.
//!
//! Invariant: M1 `held` is the number of requests accepted and not ended. An engine never refuses a
//! request and never carries it out on the submitting thread. Above [`CROWD`] requests the engine
//! is crowded, and callers that can wait do so. A waiting request takes the memory of its bio,
//! which its maker accounts for, and a pointer.

use forebay_base::task::WaitQueue;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Requests above which an engine is crowded: enough to keep any device busy.
pub(crate) const CROWD: usize = 8192;

#[derive(Default)]
pub(crate) struct Space {
    held: AtomicUsize,
    wait: WaitQueue,
}

impl Space {
    pub(crate) fn enter(&self) {
        self.held.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn leave(&self) {
        let before = self.held.fetch_sub(1, Ordering::AcqRel);
        assert!(before > 0, "M1: who leaves has entered");
        if before == CROWD {
            self.wait.wake_all();
        }
    }

    pub(crate) fn is_crowded(&self) -> bool {
        self.held.load(Ordering::Acquire) >= CROWD
    }

    pub(crate) async fn free(&self) {
        self.wait.wait_until(|| (!self.is_crowded()).then_some(())).await;
    }
}
