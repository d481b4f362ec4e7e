//! How a request passes through the cache: what becomes of the blocks that it uses or brings in.
//!
//! No locks.

use crate::fill::FillMode;
use forebay_base::IoFlags;
use forebay_cache::folio::Blocks;
use forebay_cache::{FolioWrite, Retention};

/// How a request passes through the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Passing {
    /// Cached like an ordinary request.
    Cached,
    /// Its blocks stay cached, but it does not count as a touch of them.
    Untouched,
    /// Blocks that it brings in are marked *uncached*, and dropped after use.
    Marked,
    /// A write of a cache above, which keeps the bytes: its blocks are dropped once flushed.
    HeldAbove,
}

impl Passing {
    pub fn is_passing(self) -> bool {
        self != Self::Cached
    }

    /// Whether the request is an uncached one.
    pub fn is_uncached(self) -> bool {
        matches!(self, Self::Untouched | Self::Marked)
    }

    /// How a cached write with these flags passes.
    pub fn of_write(flags: IoFlags) -> Self {
        if flags.contains(IoFlags::HELD_ABOVE) { Self::HeldAbove } else { Self::Cached }
    }

    /// What becomes of the blocks that a write dirties.
    pub fn retention(self) -> Retention {
        match self {
            Self::Cached | Self::Untouched => Retention::Keep,
            Self::Marked => Retention::Window,
            Self::HeldAbove => Retention::UntilFlushed,
        }
    }

    /// The mode of the fills for such a request.
    pub fn fill(self) -> FillMode {
        let uncached = matches!(self, Self::Marked | Self::HeldAbove);
        FillMode { uncached, passing: self.is_passing(), ..FillMode::default() }
    }

    /// Blocks of the folio have been copied out: ages, keeps or drops them. `same`: the read begins
    /// within a block, which the previous read has touched: both count as one touch.
    pub fn read(self, folio: &FolioWrite<'_>, blocks: Blocks, same: bool) {
        match self {
            Self::Cached => {
                folio.keep(blocks);
                folio.touch(blocks, same);
            }
            Self::Untouched => {}
            Self::Marked | Self::HeldAbove => folio.drop_uncached(blocks),
        }
    }
}
