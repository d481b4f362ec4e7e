//! Why a function that may not wait cannot go on: its caller waits until the obstacle is gone, and
//! tries again.
//!
//! No locks.

use forebay_base::Error;
use forebay_cache::folio::Blocks;
use std::ops::Range;

/// What stands in the way of a write to one folio.
pub(crate) enum Obstacle {
    /// Frames are missing: the write needs this many in all.
    Frames(usize),
    /// As `Frames`, but some of them are to replace frames of blocks in write-out.
    Fresh(usize),
    /// No folio descriptor is to be had.
    Slots,
    /// Another task holds the range exclusively.
    Exclusive,
    /// A fill of these blocks of the folio is in progress.
    Reading(Blocks),
    /// The write hits blocks in write-out, which must not change, and has to wait for its end.
    Stable,
    /// A partly written block has to be read first.
    Fill(Range<u64>),
    /// A truncate came before the write: the file ends within the piece to be written.
    Shrunk,
    /// The map has no space for the blocks that would become dirty.
    NoRoom(Error),
}
