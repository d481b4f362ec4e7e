//! The gate in front of a file: lets requests in, and can be closed to wait for those inside.
//!
//! Invariants: G1 while the gate is closed and drained, no request is inside. G2 a bio that arrives
//! at a closed gate is parked, never lost: the thread that opens the gate gets all parked ones.
//! Lock rule: the mutex is only held for a few instructions, never across a system call.

use crate::bio::Bio;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

const CLOSED: u64 = 1 << 63;

#[derive(Default)]
pub(crate) struct Gate {
    /// Requests inside, and the CLOSED bit.
    state: AtomicU64,
    parked: Mutex<Vec<Bio>>,
    changed: Condvar,
}

impl Gate {
    fn lock(&self) -> MutexGuard<'_, Vec<Bio>> {
        self.parked.lock().unwrap_or_else(|p| p.into_inner())
    }

    /// Goes in; false if closed.
    pub(crate) fn enter(&self) -> bool {
        if self.state.fetch_add(1, Ordering::Acquire) & CLOSED == 0 {
            return true;
        }
        self.leave();
        false
    }

    /// Goes in with the bio, or parks it.
    pub(crate) fn enter_or_park(&self, bio: Bio) -> Option<Bio> {
        if self.enter() {
            return Some(bio);
        }
        let mut parked = self.lock();
        // `open` clears the bit under the lock, so it finds a bio that is parked here.
        if self.state.load(Ordering::Acquire) & CLOSED != 0 {
            parked.push(bio);
            return None;
        }
        drop(parked);
        self.enter_or_park(bio)
    }

    /// Goes in, and waits while the gate is closed.
    pub(crate) fn enter_wait(&self) {
        while !self.enter() {
            let mut parked = self.lock();
            while self.state.load(Ordering::Acquire) & CLOSED != 0 {
                parked = self.changed.wait(parked).unwrap_or_else(|p| p.into_inner());
            }
        }
    }

    /// Whether any request is inside.
    pub(crate) fn is_entered(&self) -> bool {
        self.state.load(Ordering::Acquire) & !CLOSED > 0
    }

    /// Goes out.
    pub(crate) fn leave(&self) {
        let was = self.state.fetch_sub(1, Ordering::AcqRel);
        debug_assert!(was & !CLOSED > 0, "G1: who leaves was inside");
        if was == CLOSED | 1 {
            drop(self.lock());
            self.changed.notify_all();
        }
    }

    /// Closes the gate and waits until no request is inside; false if that took longer than `limit`
    /// (the gate stays closed: open it). One closer at a time.
    pub(crate) fn close(&self, limit: Duration) -> bool {
        let start = Instant::now();
        self.state.fetch_or(CLOSED, Ordering::AcqRel);
        let mut parked = self.lock();
        while self.state.load(Ordering::Acquire) != CLOSED {
            let Some(left) = limit.checked_sub(start.elapsed()) else { return false };
            let (guard, _) =
                self.changed.wait_timeout(parked, left).unwrap_or_else(|p| p.into_inner());
            parked = guard;
        }
        true
    }

    /// Opens the gate; the caller submits the bios that were parked.
    #[must_use]
    pub(crate) fn open(&self) -> Vec<Bio> {
        let mut parked = self.lock();
        self.state.fetch_and(!CLOSED, Ordering::AcqRel);
        let bios = std::mem::take(&mut *parked);
        debug_assert!(parked.is_empty(), "G2: all that was parked is given back");
        drop(parked);
        self.changed.notify_all();
        bios
    }
}
