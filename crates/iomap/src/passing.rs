//! How a request passes through the cache: what becomes of the blocks that it meets or brings in.
//!
//! No locks.

use crate::fill::FillMode;
use forebay_cache::FolioWrite;
use forebay_cache::folio::Blocks;

/// How a request passes through the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Passing {
    /// Cached like an ordinary request.
    Cached,
    /// Its blocks stay, and it counts as no touch.
    Untouched,
    /// Blocks that it brings in are marked *uncached*, and go.
    Marked,
}

impl Passing {
    pub fn is_passing(self) -> bool {
        self != Self::Cached
    }

    /// The fill that goes with it.
    pub fn fill(self) -> FillMode {
        let uncached = self == Self::Marked;
        FillMode { uncached, passing: self.is_passing(), ..FillMode::default() }
    }

    /// Blocks of the folio have been copied out. `same`: the read goes on within the block that the
    /// read before ended in, and is one touch with it.
    pub fn read(self, folio: &FolioWrite<'_>, blocks: Blocks, same: bool) {
        match self {
            Self::Cached => {
                folio.keep(blocks);
                folio.touch(blocks, same);
            }
            Self::Untouched => {}
            Self::Marked => folio.drop_uncached(blocks),
        }
    }
}
