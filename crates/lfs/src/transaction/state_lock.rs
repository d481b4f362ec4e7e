//! The state lock: the one mutex over names, map, space and the queue of records.
//!
//! Tests count how often an operation takes it (`tests::lock_count`); other builds have no counter.

use crate::transaction::state::State;
use forebay_base::sync::{Mutex, MutexGuard};

/// The state, and the mutex around it.
pub(crate) struct StateLock {
    state: Mutex<State>,
    #[cfg(test)]
    acquisitions: forebay_base::sync::atomic::AtomicU64,
}

impl StateLock {
    pub fn new(state: State) -> Self {
        Self {
            state: Mutex::new(state),
            #[cfg(test)]
            acquisitions: forebay_base::sync::atomic::AtomicU64::new(0),
        }
    }

    /// Waits for the lock. It is held for a lookup or a change, never across a wait.
    pub fn lock(&self) -> MutexGuard<'_, State> {
        #[cfg(test)]
        self.acquisitions.fetch_add(1, forebay_base::sync::atomic::Ordering::Relaxed);
        self.state.lock()
    }

    /// How often the lock was taken.
    #[cfg(test)]
    pub fn acquisitions(&self) -> u64 {
        self.acquisitions.load(forebay_base::sync::atomic::Ordering::Relaxed)
    }
}
