//! Shares of the budget that are plain counters: those of open files, of the errors of closed files
//! and of users other than the cache; and the rows that report the budget.
//!
//! No locks.

use forebay_base::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

/// A row of the budget: its name, bytes in use, and its bound in bytes.
pub type Row = (String, u64, u64);

/// Reports the parts of the budget used outside the cache.
pub type RowSource = Arc<dyn Fn() -> Vec<Row> + Send + Sync>;

pub(crate) type MoreRows = Vec<RowSource>;

pub(crate) type CounterRef = forebay_base::sync::Arc<AtomicU64>;

/// The bytes that an open file counts in the budget's part for requests and files. They are
/// subtracted on drop.
pub(crate) struct FileShare {
    counter: CounterRef,
    bytes: u64,
}

impl FileShare {
    pub fn new(counter: &CounterRef, bytes: u64) -> Self {
        counter.fetch_add(bytes, Ordering::Relaxed);
        Self { counter: counter.clone(), bytes }
    }
}

impl Drop for FileShare {
    fn drop(&mut self) {
        self.counter.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// Memory of the error of a closed file, bytes, until an opener has seen it: its texts and paths,
/// and an entry of a table.
pub(crate) const ERROR_BYTES: u64 = 1024;

/// An error's share of the memory of files; given back on drop.
pub struct ErrorGrant {
    errors: CounterRef,
    files: CounterRef,
}

impl ErrorGrant {
    /// The caller has counted the error in both counters.
    pub(crate) fn of(errors: &CounterRef, files: &CounterRef) -> Self {
        Self { errors: errors.clone(), files: files.clone() }
    }
}

impl Drop for ErrorGrant {
    fn drop(&mut self) {
        self.errors.fetch_sub(ERROR_BYTES, Ordering::Relaxed);
        self.files.fetch_sub(ERROR_BYTES, Ordering::Relaxed);
    }
}

/// The purpose of a part of a claim, and the bytes of it in use.
pub(crate) struct Part {
    what: &'static str,
    pub now: AtomicU64,
}

/// Parts of the budget that a user other than the cache claims.
pub(crate) struct Claimed(pub Box<[Part]>);

impl Claimed {
    /// A claim with these parts, of 0 bytes each.
    pub fn new(parts: &[&'static str]) -> Self {
        Self(parts.iter().map(|what| Part { what, now: AtomicU64::new(0) }).collect())
    }

    /// The rows of these parts. The bound is the use itself: more use reduces the frames, and so
    /// raises the bound.
    pub fn rows(&self) -> impl Iterator<Item = Row> {
        self.0.iter().map(|part| {
            let now = part.now.load(Ordering::Relaxed);
            (part.what.to_string(), now, now)
        })
    }
}
