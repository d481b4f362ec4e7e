//! Space for blocks about to become dirty: requested folio by folio, and, for bytes that a write
//! adds, before the file grows.
//!
//! A write that lacks space for the bytes it adds fails before the file grows. A write that begins
//! in a hole below the end may lack space for the hole only after the file has grown. The map
//! counts the space that it admits until the blocks are dirty, so no two writers are granted the
//! same space.
//!
//! No locks.

use crate::file::MappedFile;
use crate::obstacle::Obstacle;
use crate::ops::{Admit, MapOps};
use forebay_base::sync::atomic::{AtomicU64, Ordering};
use forebay_base::units::{round_down, round_up};
use forebay_base::{Error, Result};
use forebay_cache::folio::Blocks;
use forebay_cache::writeback::WriteOutPass;
use forebay_cache::{FolioWrite, State};
use std::ops::Range;

/// How often the map makes space for one write, if other writers take the space each time.
const ROOM_ROUNDS: u32 = 16;

/// Space that a write has for the bytes it adds to the file.
pub(crate) struct Ahead<'a> {
    ops: &'a dyn MapOps,
    /// First byte of the file that the space is for.
    from: u64,
    left: AtomicU64,
}

impl Ahead<'_> {
    /// Whether a range has its space: it lies in the bytes that the write adds, and not all of
    /// their space is used. The write uses it in ascending order.
    pub fn covers(&self, range: &Range<u64>) -> bool {
        self.from <= range.start && self.left.load(Ordering::Relaxed) > 0
    }

    fn used(&self, bytes: u64) {
        self.left.fetch_sub(bytes, Ordering::Relaxed);
        self.ops.arrived(bytes);
    }
}

impl Drop for Ahead<'_> {
    fn drop(&mut self) {
        let left = self.left.load(Ordering::Relaxed);
        if left > 0 {
            self.ops.arrived(left);
        }
    }
}

/// Bytes of a folio that the map has admitted and that are not dirty yet.
pub(crate) struct Admitted<'a> {
    ops: &'a dyn MapOps,
    bytes: u64,
    ahead: &'a Ahead<'a>,
    /// Further bytes, whose space was admitted ahead ([`Ahead`]).
    from_ahead: u64,
}

impl Admitted<'_> {
    /// The blocks are dirty: uses up their space that was admitted ahead. Without this call that
    /// space remains. The other bytes are reported to the map on drop in either case.
    pub fn arrived(self) {
        if self.from_ahead > 0 {
            self.ahead.used(self.from_ahead);
        }
    }
}

impl Drop for Admitted<'_> {
    fn drop(&mut self) {
        if self.bytes > 0 {
            self.ops.arrived(self.bytes);
        }
    }
}

impl MappedFile {
    /// The [`Ahead`] of a write that adds no bytes to the file.
    pub(crate) fn nothing_ahead(&self) -> Ahead<'_> {
        self.arriving(0)
    }

    /// Holds `bytes` of space that the map has granted. The caller drops it when the blocks are
    /// dirty: the drop reports the bytes as arrived.
    pub(crate) fn arriving(&self, bytes: u64) -> Ahead<'_> {
        Ahead { ops: &*self.ops, from: u64::MAX, left: AtomicU64::new(bytes) }
    }

    /// Asks the map for space for the bytes that a write adds to the file: `added`.
    pub(crate) async fn admit_ahead(&self, added: &Range<u64>) -> Result<Ahead<'_>> {
        let block = self.mapping.block_size();
        let from = round_down(added.start, block);
        let bytes = round_up(added.end, block) - from;
        if let Err(error) = self.ops.admit(bytes, self.held(), Admit::New) {
            self.make_room(error, bytes).await?;
            self.ops.admit(bytes, self.held(), Admit::New)?;
        }
        Ok(Ahead { ops: &*self.ops, from, left: AtomicU64::new(bytes) })
    }

    pub(crate) fn held(&self) -> u64 {
        self.mapping.dirty_bytes.load(Ordering::Relaxed)
    }

    /// Asks the map for space for those of the blocks that are not dirty yet; space that was
    /// admitted ahead is used first.
    pub(crate) fn admit<'a>(
        &'a self,
        folio: &FolioWrite<'_>,
        blocks: Blocks,
        ahead: &'a Ahead<'a>,
    ) -> std::result::Result<Admitted<'a>, Obstacle> {
        let mapping = &*self.mapping;
        let block = mapping.block_size();
        let dirty = folio.runs_with(blocks, State::Dirty).map(|run| run.len()).sum::<u32>();
        let new = u64::from(blocks.len() - dirty) * block;
        let range = mapping.range_of(folio.index, blocks);
        let added = range.end.saturating_sub(range.start.max(ahead.from));
        let from_ahead = new.min(added).min(ahead.left.load(Ordering::Relaxed));
        let bytes = new - from_ahead;
        if bytes > 0 {
            self.ops.admit(bytes, self.held(), Admit::Within(&range)).map_err(Obstacle::NoRoom)?;
        }
        Ok(Admitted { ops: &*self.ops, bytes, ahead, from_ahead })
    }

    /// Writes out the file's dirty blocks as far as the map has space for them, for a caller that
    /// needs space in this or another file. The next sync reports errors. Waits for write-outs in
    /// progress, and for the tickets of truncates and of writes past the cache. These have their
    /// space already; they wait for the device, for the map, and for private memory, never for a
    /// writer, a range or frames. The caller must hold no ticket, range or permit.
    pub async fn write_out_dirty(&self) {
        if self.held() > 0 || self.mapping.write_outs() > 0 {
            let pass = WriteOutPass::for_sync(0..u64::MAX >> 1);
            self.write_out_all(&pass, false).await;
        }
    }

    /// Makes space for the blocks of `range` that were refused: writes out the file's dirty blocks,
    /// then lets the map make space, as long as it can.
    pub(crate) async fn make_room_within(&self, error: Error, range: Range<u64>) -> Result<()> {
        let new = range.end - range.start;
        self.write_out_dirty().await;
        let mut rounds = 0;
        while self.ops.admit(new, self.held(), Admit::Within(&range)).is_err() {
            // Other writers may take the space each time.
            rounds += 1;
            if rounds > ROOM_ROUNDS || !self.ops.make_room(range.clone()).await {
                return Err(error);
            }
        }
        self.ops.arrived(new);
        Ok(())
    }

    /// Makes space for `new` bytes that were refused with `error`: writes out the file's dirty
    /// blocks. Until then a block may count twice, as dirty and at its old place. Fails only if the
    /// map refuses again after that.
    pub(crate) async fn make_room(&self, error: Error, new: u64) -> Result<()> {
        self.write_out_dirty().await;
        self.ops.admit(new, self.held(), Admit::New).map_err(|_| error)?;
        self.ops.arrived(new);
        Ok(())
    }
}
