//! What the parts share: images, budget, number of files.

use crate::harness::image::Image;
use forebay_base::units::{MIB, round_down};

/// Files of the set.
pub const FILES: usize = 32;

/// Images, and the budget that goes with their size.
pub struct Setting {
    /// For variants that leave nothing in a cache.
    pub bypass: Image,
    /// For variants that fill a cache.
    pub cached: Image,
    /// Bytes of cache: at most a tenth of an image.
    pub budget: u64,
}

/// The cache for an image of `size` bytes: a tenth of it, whole MiB, at most 128 MiB.
pub fn budget_for(size: u64) -> u64 {
    round_down(size / 10, MIB).clamp(MIB, 128 * MIB)
}
