//! Uncached requests, with the three strategies that can be chosen ([`UncachedStrategy`]).
//!
//! How each treats blocks that are not cached, when they are read; when they are written:
//! - `noaccess`: cached, with readahead, and not touched; cached and not touched.
//! - `dropbehind`: cached for the request, dropped after the copy; cached, the writer starts
//!   write-out, waits for it, and then drops them.
//! - `ours`: straight into the caller's memory, with a window ahead for streams; cached for a
//!   window behind, which the flusher writes.
//!
//! Invariants, whatever the strategy: P1 cached blocks are served and updated in place, keep their
//! age, and stay cached (lineage.U1). P2 a request ends by the strategy with which it began;
//! requests of different strategies use the same folios and range locks, so they are coherent. P3
//! no block is dropped that is dirty, in write-out, or held until a flush (lineage.U5).
//!
//! No locks.

use crate::admitted::Ahead;
use crate::file::{Handle, MappedFile, Source, Target};
use crate::passing::Passing;
use crate::write::Beyond;
use forebay_base::{IoFlags, Result};
use forebay_cache::strategy::UncachedStrategy;
use forebay_cache::writeback::WriteOutPass;
use std::ops::Range;

/// Drops the blocks that a request has brought in when it ends, also by an error or a drop.
struct Behind<'a>(&'a MappedFile, Range<u64>);

impl Drop for Behind<'_> {
    fn drop(&mut self) {
        self.0.drop_uncached(self.1.clone());
    }
}

impl MappedFile {
    pub(crate) async fn read_uncached(
        &self,
        handle: &Handle,
        range: &Range<u64>,
        dst: &mut Target<'_>,
    ) -> Result<()> {
        match self.cache.strategies.uncached() {
            UncachedStrategy::NoAccess => {
                self.read_through(handle, range, dst, Passing::Untouched).await
            }
            UncachedStrategy::DropBehind => {
                let _behind = Behind(self, range.clone());
                self.read_through(handle, range, dst, Passing::Marked).await
            }
            UncachedStrategy::Ours => self.read_ahead_and_around(handle, range, dst).await,
        }
    }

    /// How a write that must not wait for the device passes through the cache; `None` if its
    /// strategy would wait.
    pub(crate) fn write_now(&self, flags: IoFlags) -> Option<Passing> {
        if !flags.intersects(IoFlags::UNCACHED | IoFlags::DIRECT) {
            return Some(Passing::of_write(flags));
        }
        match self.cache.strategies.uncached() {
            UncachedStrategy::NoAccess => Some(Passing::Untouched),
            UncachedStrategy::DropBehind => None,
            UncachedStrategy::Ours => Some(Passing::Marked),
        }
    }

    pub(crate) async fn write_uncached(
        &self,
        range: &Range<u64>,
        src: &Source<'_>,
        ahead: &Ahead<'_>,
    ) -> Result<()> {
        // A hint: a map that allocates in advance reserves places now, a window at a time
        // (lineage.X6).
        self.ops.announce(range);
        match self.cache.strategies.uncached() {
            UncachedStrategy::NoAccess => {
                self.write_buffered(
                    range,
                    range.start,
                    src,
                    Passing::Untouched,
                    Beyond::Grow(ahead),
                )
                .await?;
                Ok(())
            }
            UncachedStrategy::DropBehind => {
                self.write_buffered(range, range.start, src, Passing::Marked, Beyond::Grow(ahead))
                    .await?;
                let range = range.clone();
                let pass = WriteOutPass::for_sync(range);
                self.write_out_pass(&pass).await;
                // The next sync reports an error (lineage.U14).
                self.mapping.wait_write_outs().await;
                Ok(())
            }
            UncachedStrategy::Ours => {
                self.write_buffered(range, range.start, src, Passing::Marked, Beyond::Grow(ahead))
                    .await?;
                Ok(())
            }
        }
    }
}
