//! Short lists of frames that allocate nothing: the frames of a piece in write-out, and frames on
//! their way to the allocator. Write-out frees memory, so it must not need memory for that.
//!
//! Invariant: B1 a batch never holds more than [`FrameBatch::MOST`] frames.
//!
//! Locks: none of its own; giving frames back takes the allocator's.

use crate::cache::PageCache;
use crate::memory::arena::Frame;
use crate::memory::frames::CHUNK_FRAMES;
use std::ops::Deref;

/// Up to sixteen frames, in order.
#[derive(Debug, Clone, Copy, Default)]
pub struct FrameBatch {
    frames: [Frame; Self::MOST],
    len: u8,
}

impl FrameBatch {
    /// Most frames: 64 KiB of them, a chunk of the allocator.
    pub const MOST: usize = CHUNK_FRAMES as usize;

    /// Appends a frame.
    pub fn push(&mut self, frame: Frame) {
        assert!(!self.is_full(), "B1: a batch has room for {} frames", Self::MOST);
        self.frames[usize::from(self.len)] = frame;
        self.len += 1;
    }

    /// Whether the batch has no space for another frame.
    pub fn is_full(&self) -> bool {
        usize::from(self.len) == Self::MOST
    }

    /// Keeps the first `len`.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len as u8);
    }
}

impl Deref for FrameBatch {
    type Target = [Frame];
    fn deref(&self) -> &[Frame] {
        &self.frames[..usize::from(self.len)]
    }
}

impl Extend<Frame> for FrameBatch {
    fn extend<I: IntoIterator<Item = Frame>>(&mut self, frames: I) {
        frames.into_iter().for_each(|frame| self.push(frame));
    }
}

/// Collects frames without an owner and gives them back to the allocator, a batch at a time.
pub(crate) struct Freed<'a> {
    cache: &'a PageCache,
    batch: FrameBatch,
    /// Some frames were given back, and no waiter was woken for them.
    has_given: bool,
}

impl<'a> Freed<'a> {
    pub fn new(cache: &'a PageCache) -> Self {
        Self { cache, batch: FrameBatch::default(), has_given: false }
    }

    /// Gives all back for a caller that holds a folio lock. True: the caller has to call
    /// [`PageCache::wake_for_frames`] once it has released the lock.
    #[must_use]
    pub fn put(mut self) -> bool {
        self.give();
        std::mem::take(&mut self.has_given)
    }

    /// A frame has left a folio of mapping `id`, whose lock is held. It is given back unless a
    /// write-out or a pin holds it.
    pub fn leave(&mut self, frame: Frame, id: u32) {
        if self.cache.words.leave(frame) {
            self.cache.disown(frame, id);
            self.push(frame);
        }
    }

    pub fn push(&mut self, frame: Frame) {
        self.batch.push(frame);
        if self.batch.is_full() {
            self.give();
        }
    }

    fn give(&mut self) {
        if self.batch.is_empty() {
            return;
        }
        self.cache.put_frames(&self.batch);
        self.batch.truncate(0);
        self.has_given = true;
    }
}

impl Drop for Freed<'_> {
    fn drop(&mut self) {
        self.give();
        if self.has_given {
            self.cache.wake_for_frames();
        }
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn holds_sixteen_in_order() {
        let mut batch = FrameBatch::default();
        batch.extend(10..26);
        assert!(batch.is_full());
        assert_eq!(batch.to_vec(), (10..26).collect::<Vec<Frame>>());
        batch.truncate(3);
        assert_eq!(*batch, [10, 11, 12]);
        assert!(std::panic::catch_unwind(move || batch.extend(0..14)).is_err(), "B1");
    }
}
