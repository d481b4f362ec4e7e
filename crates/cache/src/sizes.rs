//! The current sizes of all parts: the division of the budget, now and at most.
//!
//! Invariant: Z2 no part ever exceeds its share of the largest budget, for which address space and
//! numbers are laid out.
//!
//! Locks: none; only the one task whose turn it is to resize stores (resize.Y1). A reader of two
//! sizes may meanwhile see one old and one new.

use crate::config::{Config, Division};
use crate::memory::arena::FRAME_SIZE;
use crate::table::Layout;
use forebay_base::Result;
use forebay_base::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use forebay_base::units::MIB;

/// No running cache is made smaller than this, or than it was at start if that was less.
const FLOOR: u64 = 4 * MIB;

/// The shares of the budget.
pub(crate) struct Sizes {
    budget: AtomicU64,
    frames: AtomicUsize,
    slots: AtomicUsize,
    io_reserve: AtomicU64,
    pub layout: Layout,
    /// The shares of the smallest budget that the cache can be given.
    pub floor: Division,
    /// The shares of the largest.
    pub max: Division,
}

impl Sizes {
    /// Shares of `config.budget`. Errors: that budget, or the largest one, cannot be divided.
    pub fn new(config: &Config, budget_max: u64) -> Result<Self> {
        let now = config.divide()?;
        Ok(Self {
            budget: AtomicU64::new(now.budget),
            frames: AtomicUsize::new(now.frames),
            slots: AtomicUsize::new(now.slots),
            io_reserve: AtomicU64::new(now.io_reserve),
            layout: now.layout,
            floor: config.divide_of(now.budget.min(FLOOR)).unwrap_or(now),
            max: config.divide_of(budget_max.max(now.budget))?,
        })
    }

    /// Bytes for everything.
    pub fn budget(&self) -> u64 {
        self.budget.load(Ordering::Relaxed)
    }

    /// Frames that there may be.
    pub fn frames(&self) -> usize {
        self.frames.load(Ordering::Relaxed)
    }

    /// Bytes of them.
    pub fn frame_bytes(&self) -> u64 {
        (self.frames() * FRAME_SIZE) as u64
    }

    /// Folio descriptors that there may be.
    pub fn slots(&self) -> usize {
        self.slots.load(Ordering::Relaxed)
    }

    /// Bytes for requests in flight.
    pub fn io_reserve(&self) -> u64 {
        self.io_reserve.load(Ordering::Relaxed)
    }

    /// Sets the numbers of frames and slots, and the bytes for requests in flight.
    pub fn set_parts(&self, frames: usize, slots: usize, io_reserve: u64) {
        assert!(frames <= self.max.frames && slots <= self.max.slots, "more than at most (Z2)");
        self.frames.store(frames, Ordering::Relaxed);
        self.slots.store(slots, Ordering::Relaxed);
        self.io_reserve.store(io_reserve, Ordering::Relaxed);
    }

    /// Sets the budget, and none of its parts.
    pub fn set_budget(&self, to: &Division) {
        self.budget.store(to.budget, Ordering::Relaxed);
    }
}
