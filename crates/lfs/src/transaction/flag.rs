//! A fact about the state that is read without the state lock.
//!
//! Changes of the fact store the flag in the same hold of the state lock, with release, and a
//! reader loads it with acquire. So a reader sees each change that came before its load: by its own
//! task, or by one that it has synchronized with.

use forebay_base::sync::Arc;
use forebay_base::sync::atomic::{AtomicBool, Ordering};

/// The flag. Clones share it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Flag(Arc<AtomicBool>);

impl Flag {
    /// Whether the fact holds.
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }

    /// The fact holds from now on, or does not. The caller holds the state lock.
    pub fn set(&self, holds: bool) {
        self.0.store(holds, Ordering::Release);
    }
}
