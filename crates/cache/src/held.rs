//! Blocks held exclusively by a bio, which may outlive the task that waits for it.
//!
//! No locks of its own.

use crate::bounds::{Exclusive, HoldsBlocks};
use crate::mapping::Mapping;
use forebay_base::sync::Arc;
use std::ops::Range;

/// [`Exclusive`], of a file that it keeps alive.
pub struct Held {
    mapping: Arc<Mapping>,
    range: Range<u64>,
}

impl Drop for Held {
    fn drop(&mut self) {
        drop(Exclusive { bounds: &self.mapping.bounds, range: self.range.clone() });
    }
}

impl HoldsBlocks for Held {
    fn range(&self) -> Range<u64> {
        self.range.clone()
    }
}

impl<'a> Exclusive<'a> {
    /// Makes the hold independent of its task: for a bio that may outlive the task that waits for
    /// it.
    pub fn keep(self, mapping: &'a Arc<Mapping>) -> Held {
        assert!(std::ptr::eq(self.bounds, &mapping.bounds), "a range of the same file");
        let range = std::mem::ManuallyDrop::new(self).range();
        Held { mapping: mapping.clone(), range }
    }
}
