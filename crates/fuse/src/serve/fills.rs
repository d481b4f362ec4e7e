//! Counts the reads by which the kernel fills its own cache.
//!
//! No locks.

use forebay_base::sync::atomic::{AtomicU64, Ordering};

#[derive(Default)]
pub(crate) struct Fills {
    requests: AtomicU64,
    bytes: AtomicU64,
}

impl Fills {
    /// Counts one read.
    pub fn add(&self, bytes: u64) {
        self.requests.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Requests and bytes so far.
    pub fn totals(&self) -> (u64, u64) {
        (self.requests.load(Ordering::Relaxed), self.bytes.load(Ordering::Relaxed))
    }
}
