//! One word for each frame: write-outs that captured it, pins of readers, and whether it has left
//! its folio while any of these hold it (an *orphan*).
//!
//! ```text
//!   bit 31: orphan     bits 8..=30: pins     bits 0..=7: captures
//! ```
//! Captures and pins are added under the lock of the folio that holds the frame, and so is the
//! orphan bit. A capture ends under that lock, a pin ends without a lock. The step after which the
//! orphan bit is the only one set gives the frame back: each step is one atomic operation, so
//! exactly one thread sees that.
//!
//! Invariants: pin.P3 a frame is given back only by the step after which nothing holds it, and its
//! word is zero then. pin.P4 `pinned` is never less than the number of frames with a pin; frames
//! that a pin is about to take are counted before their words change. pin.P5 no pin is taken that
//! would bring `pinned` above the limit, or `folio_pins` above its own.
//! Locks: none; words and counters are atomics.

use crate::memory::arena::Frame;
use crate::memory::zeroed::ZeroTable;
use forebay_base::Result;
use forebay_base::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering};

const CAPTURE: u32 = 1;
const CAPTURES: u32 = 0xff;
const PIN: u32 = 1 << 8;
const PINS: u32 = 0x7fff_ff00;
const ORPHAN: u32 = 1 << 31;
/// Most pins of one frame.
const PINS_MAX: u32 = PINS / 2;

/// The words, and how many frames are pinned.
pub(crate) struct FrameWords {
    words: ZeroTable<AtomicU32>,
    /// Frames with a pin, in a folio or not (pin.P4).
    pinned: AtomicU64,
    /// Those of the pinned frames that are orphans. May be a step behind the words.
    orphans: AtomicI64,
    /// Pins of parts of folios, counted if there are fewer folios than frames: at least as many as
    /// there are folios with pinned frames.
    folio_pins: AtomicU64,
}

impl FrameWords {
    /// Words for `max` frames. Errors: no address space.
    pub fn new(max: usize) -> Result<Self> {
        let (pinned, orphans) = (AtomicU64::new(0), AtomicI64::new(0));
        let folio_pins = AtomicU64::new(0);
        Ok(Self { words: ZeroTable::new(max)?, pinned, orphans, folio_pins })
    }

    /// The table, for a caller that advises, populates or gives back its memory.
    pub fn table(&self) -> &ZeroTable<AtomicU32> {
        &self.words
    }

    fn word(&self, frame: Frame) -> &AtomicU32 {
        &self.words[frame as usize]
    }

    /// A write-out begins to hold a frame, to write its bytes. Folio lock held.
    pub fn capture(&self, frame: Frame) {
        let was = self.word(frame).fetch_add(CAPTURE, Ordering::AcqRel);
        assert!(was & CAPTURES < CAPTURES, "frame {frame} is captured too often");
    }

    /// A write-out takes a frame that is a copy, in no folio.
    pub fn capture_copy(&self, frame: Frame) {
        let was = self.word(frame).swap(ORPHAN | CAPTURE, Ordering::AcqRel);
        assert_eq!(was, 0, "frame {frame} was free (pin.P3)");
    }

    /// A write-out lets go of a frame; true if the caller gives it back. Folio lock held.
    #[must_use]
    pub fn release(&self, frame: Frame) -> bool {
        let was = self.word(frame).fetch_sub(CAPTURE, Ordering::AcqRel);
        assert!(was & CAPTURES > 0, "frame {frame} was not captured");
        self.is_last(frame, was - CAPTURE)
    }

    /// A frame has left its folio; true if the caller gives it back: nothing else holds it. Folio
    /// lock held, so that nothing can begin to hold it.
    #[must_use]
    pub fn leave(&self, frame: Frame) -> bool {
        let word = self.word(frame);
        if word.load(Ordering::SeqCst) == 0 {
            return true;
        }
        let was = word.fetch_or(ORPHAN, Ordering::AcqRel);
        assert_eq!(was & ORPHAN, 0, "frame {frame} leaves its folio once");
        if was & PINS != 0 {
            self.orphans.fetch_add(1, Ordering::Relaxed);
        }
        self.is_last(frame, was | ORPHAN)
    }

    /// Whether nothing holds the frame after the step that left `now`: then clears its word
    /// (pin.P3).
    fn is_last(&self, frame: Frame, now: u32) -> bool {
        let last = now == ORPHAN;
        if last {
            self.word(frame).store(0, Ordering::Release);
        }
        last
    }

    /// Pins the frames of a folio whose lock is held. False, and nothing is pinned: with each of
    /// them counted as new, pins exceed `limit` (pin.P5), or one of them has too many pins.
    #[must_use]
    pub fn pin(&self, frames: impl ExactSizeIterator<Item = Frame> + Clone, limit: u64) -> bool {
        let most = |frame| self.word(frame).load(Ordering::Relaxed) & PINS >= PINS_MAX;
        let wanted = frames.len() as u64;
        if self.pinned.fetch_add(wanted, Ordering::SeqCst) + wanted > limit
            || frames.clone().any(most)
        {
            self.unreserve(wanted);
            return false;
        }
        let mut again = 0;
        for frame in frames {
            let was = self.word(frame).fetch_add(PIN, Ordering::SeqCst);
            assert_eq!(was & ORPHAN, 0, "frame {frame} is in a folio (pin.P3)");
            again += u64::from(was & PINS != 0);
        }
        self.unreserve(again);
        true
    }

    fn unreserve(&self, count: u64) {
        if count > 0 {
            let was = self.pinned.fetch_sub(count, Ordering::SeqCst);
            debug_assert!(was >= count, "pin.P4: {was} pinned frames, {count} of them unpinned");
        }
    }

    /// A pin of a frame ends; true if the caller gives the frame back. Without a lock.
    #[must_use]
    pub fn unpin(&self, frame: Frame) -> bool {
        let was = self.word(frame).fetch_sub(PIN, Ordering::SeqCst);
        assert!(was & PINS > 0, "frame {frame} was not pinned");
        if was & PINS == PIN {
            if was & ORPHAN != 0 {
                self.orphans.fetch_sub(1, Ordering::Relaxed);
            }
            let last = self.is_last(frame, was - PIN);
            // After the word has changed: while the count is zero no word has a pin (pin.P4).
            self.unreserve(1);
            return last;
        }
        false
    }

    /// Whether any frame may be pinned. Under the lock of a folio, false means that none of its
    /// frames is, and that all earlier pins of them have ended.
    #[inline]
    pub fn any_pinned(&self) -> bool {
        self.pinned.load(Ordering::SeqCst) != 0
    }

    /// Whether a frame is pinned. An answer of false holds until the lock of its folio is released.
    #[inline]
    pub fn is_pinned(&self, frame: Frame) -> bool {
        self.word(frame).load(Ordering::SeqCst) & PINS != 0
    }

    /// Whether a write-out holds a frame.
    #[inline]
    pub fn is_captured(&self, frame: Frame) -> bool {
        self.word(frame).load(Ordering::Acquire) & CAPTURES != 0
    }

    /// Whether nothing but its folio holds a frame.
    pub fn is_idle(&self, frame: Frame) -> bool {
        self.word(frame).load(Ordering::SeqCst) == 0
    }

    /// Whether a frame is in no folio and still held.
    pub fn is_orphan(&self, frame: Frame) -> bool {
        self.word(frame).load(Ordering::SeqCst) & ORPHAN != 0
    }

    /// Counts a pin of a part of a folio. False, and it does not count: `limit` is reached.
    #[must_use]
    pub fn pin_folio(&self, limit: u64) -> bool {
        let taken = self.folio_pins.fetch_add(1, Ordering::SeqCst) < limit;
        if !taken {
            self.unpin_folios(1);
        }
        taken
    }

    /// Pins of parts of folios end.
    pub fn unpin_folios(&self, count: u64) {
        let was = self.folio_pins.fetch_sub(count, Ordering::SeqCst);
        debug_assert!(was >= count, "{was} pins of folios, {count} of them end");
    }

    /// Pins that [`FrameWords::pin_folio`] counts.
    pub fn folio_pins(&self) -> u64 {
        self.folio_pins.load(Ordering::SeqCst)
    }

    /// Frames with a pin, orphans included.
    pub fn pinned(&self) -> u64 {
        self.pinned.load(Ordering::SeqCst)
    }

    /// Frames with a pin that are in no folio any more.
    pub fn orphans(&self) -> u64 {
        self.orphans.load(Ordering::Relaxed).max(0) as u64
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    fn words() -> FrameWords {
        FrameWords::new(64).unwrap()
    }

    fn pin(words: &FrameWords, frames: &[Frame], limit: u64) -> bool {
        words.pin(frames.iter().copied(), limit)
    }

    /// pin.P3 in each order of the three holders.
    #[test]
    fn frame_is_freed_once_by_last_holder() {
        type Step = fn(&FrameWords) -> bool;
        let steps: [Step; 3] = [|w| w.leave(7), |w| w.release(7), |w| w.unpin(7)];
        for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
            let words = words();
            words.capture(7);
            assert!(pin(&words, &[7], 8));
            let given = order.map(|step| steps[step](&words));
            assert_eq!(given, [false, false, true], "pin.P3: {order:?}");
            assert!(words.is_idle(7) && !words.any_pinned(), "pin.P3: {order:?}");
            assert_eq!(words.orphans(), 0);
        }
    }

    /// pin.P4 and pin.P5: a frame counts once, however often it is pinned.
    #[test]
    fn pins_above_limit_are_refused_without_effect() {
        let words = words();
        assert!(pin(&words, &[1, 2], 3) && pin(&words, &[2], 3));
        assert_eq!(words.pinned(), 2);
        assert!(!pin(&words, &[3, 4], 3), "pin.P5");
        assert!(words.is_idle(3) && words.is_idle(4));
        assert!(!words.unpin(2) && words.is_pinned(2));
        assert!(!words.unpin(2) && words.is_idle(2) && words.pinned() == 1, "pin.P4");
        assert!(!words.leave(1) && words.orphans() == 1);
        assert!(words.unpin(1) && words.pinned() == 0 && words.orphans() == 0);
    }

    #[test]
    fn write_out_copy_is_freed_at_its_end() {
        let words = words();
        words.capture_copy(5);
        assert!(words.is_captured(5) && words.is_orphan(5));
        assert!(words.release(5) && words.is_idle(5));
    }
}
