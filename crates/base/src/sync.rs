//! Locks and atomics, chosen at compile time: std normally, shuttle under `--cfg shuttle` (with a
//! target directory of its own, see docs/internals/testing.md). Concurrent code that shuttle tests
//! takes its primitives from this module.
//!
//! These locks are never poisoned: `lock` returns the guard even if an earlier holder panicked.
//! Such a panic is a bug, which must not fail every later user of the lock as well.

#[cfg(not(shuttle))]
mod imp {
    pub use std::sync::atomic;
    pub use std::sync::{Arc, Weak};
    pub use std::thread;

    /// One step of a spin loop between two attempts.
    #[inline]
    pub fn relax(spins: &mut u32) {
        *spins += 1;
        if *spins < 128 {
            std::hint::spin_loop();
        } else {
            std::thread::yield_now();
        }
    }
}

#[cfg(shuttle)]
mod imp {
    pub use shuttle::sync::atomic;
    pub use shuttle::sync::{Arc, Weak};
    pub use shuttle::thread;

    /// One step of a spin loop between two attempts: lets the scheduler run another thread.
    pub fn relax(_spins: &mut u32) {
        shuttle::thread::yield_now();
    }
}

pub use imp::{Arc, Weak, atomic, relax, thread};

#[cfg(not(shuttle))]
use std::sync as raw;

#[cfg(shuttle)]
use shuttle::sync as raw;

pub use raw::{MutexGuard, RwLockReadGuard, RwLockWriteGuard};

/// A mutex without poisoning.
#[derive(Default, Debug)]
pub struct Mutex<T>(raw::Mutex<T>);

impl<T> Mutex<T> {
    /// A new unlocked mutex.
    pub fn new(value: T) -> Self {
        Self(raw::Mutex::new(value))
    }

    /// Waits for the lock. A panic under the lock does not poison it.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(|p| p.into_inner())
    }

    /// Takes the lock if it is free.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        match self.0.try_lock() {
            Ok(guard) => Some(guard),
            Err(raw::TryLockError::Poisoned(p)) => Some(p.into_inner()),
            Err(raw::TryLockError::WouldBlock) => None,
        }
    }
}

/// A reader-writer lock without poisoning.
#[derive(Default, Debug)]
pub struct RwLock<T>(raw::RwLock<T>);

impl<T> RwLock<T> {
    /// A new unlocked lock.
    pub fn new(value: T) -> Self {
        Self(raw::RwLock::new(value))
    }

    /// Locks shared.
    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        self.0.read().unwrap_or_else(|p| p.into_inner())
    }

    /// Locks exclusively.
    pub fn write(&self) -> RwLockWriteGuard<'_, T> {
        self.0.write().unwrap_or_else(|p| p.into_inner())
    }
}
