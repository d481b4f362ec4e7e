//! How much of a file's size may be made recoverable (ops.O5): a size is published with, or after,
//! the bytes below it, and never beyond the size that readers see (bounds.E7). For maps that store
//! a size of their own.

use crate::file::MappedFile;
use crate::ops::{Reservation, publishable_size};
use forebay_base::{Error, ErrorKind, Result};
use forebay_cache::errseq::Cursor;
use forebay_cache::rangeset::RangeSet;
use forebay_cache::writeback::WriteOutPass;

/// A sync gives up after this many rounds, if a concurrent writer dirties the same unpublished
/// block each time.
const PUBLISH_TRIES: usize = 64;

impl MappedFile {
    /// Publishes the size, as far as all blocks below it are written.
    pub fn publish_size(&self) {
        if self.covered_size().is_some_and(|covered| covered < self.size()) {
            let _uncut = self.mapping.bounds.uncut();
            let size = publishable_size(&self.cache, &self.mapping, &*self.ops, None);
            self.ops.publish(&Reservation::in_place(Vec::new()), &[], size);
        }
    }

    /// Publishes the size up to `end`, which was within the file when the caller looked.
    /// Unpublished blocks that a writer dirties hold the size back, so these are written first.
    /// That may wait for ranges, so the caller must hold none. An error means: the size is not
    /// published that far, and a crash would lose the bytes behind it.
    pub(crate) async fn publish_upto(&self, end: u64, here: bool) -> Result<()> {
        let entered = self.mapping.errseq.now();
        for _ in 0..PUBLISH_TRIES {
            if self.is_published(end) {
                return Ok(());
            }
            self.write_below(end, here).await;
            self.publish_size();
            let wanted = end.min(self.size());
            if self.is_published(end) {
                return Ok(());
            }
            let block = self.mapping.block_size();
            let below = self.ops.published_size().unwrap_or(0) / block..wanted.div_ceil(block);
            if self.mapping.failed_in(&below) {
                break;
            }
        }
        let text = "the size could not be made recoverable: bytes below it are not written";
        Err(Error::new(self.failure_since(entered), "sync", text))
    }

    /// Why a write-out failed since the caller sampled `errseq`. An earlier failure does not count:
    /// whether the host lacks space may have changed since.
    pub(crate) fn failure_since(&self, entered: Cursor) -> ErrorKind {
        self.mapping.errseq.error_since(entered).map_or(ErrorKind::Io, |error| error.kind())
    }

    /// [`LostContent::covered_size`](crate::ops::LostContent::covered_size).
    fn covered_size(&self) -> Option<u64> {
        self.ops.lost(&RangeSet::default()).covered_size
    }

    fn is_published(&self, end: u64) -> bool {
        self.covered_size().is_none_or(|covered| covered >= end.min(self.size()))
    }

    /// Writes the dirty blocks between the published size and `end`, which hold the size back
    /// (ops.O5).
    pub(crate) async fn write_below(&self, end: u64, here: bool) {
        let Some(published) = self.ops.published_size().filter(|&p| p < end) else { return };
        let pass = WriteOutPass::for_sync(published..end);
        self.write_out_all(&pass, here).await;
    }
}
