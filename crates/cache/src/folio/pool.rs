//! [`FramePool`]: frames on their way into a folio. No locks.

use crate::cache::PageCache;
use crate::memory::arena::Frame;

/// Frames taken and not yet installed; given back on drop.
pub struct FramePool<'a> {
    pub(crate) cache: &'a PageCache,
    pub(crate) frames: Vec<Frame>,
}

impl<'a> FramePool<'a> {
    /// An empty pool.
    pub fn empty(cache: &'a PageCache) -> Self {
        Self { cache, frames: Vec::new() }
    }

    /// Frames in the pool.
    pub fn len(&self) -> usize {
        self.frames.len()
    }

    /// Whether it has no frame.
    pub fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }
}

impl Drop for FramePool<'_> {
    #[inline]
    fn drop(&mut self) {
        if !self.frames.is_empty() {
            self.cache.give_frames(&self.frames);
        }
    }
}
