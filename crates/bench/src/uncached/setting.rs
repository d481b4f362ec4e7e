//! Common to the parts: images, budget, number of files.

use crate::harness::image::Image;
use forebay_base::units::{MIB, round_down};

/// Number of files in the set.
pub const FILES: usize = 32;

/// The images, and a budget that depends on their size.
pub struct Setting {
    /// For variants that bypass the caches.
    pub bypass: Image,
    /// For variants that fill a cache.
    pub cached: Image,
    /// Size of the cache: at most a tenth of an image, bytes.
    pub budget: u64,
}

/// Size of the cache for an image of `size` bytes: a tenth of it, in MiB, at most 128 MiB.
pub fn budget_for(size: u64) -> u64 {
    round_down(size / 10, MIB).clamp(MIB, 128 * MIB)
}
