//! Dirt taken out of the hands of write-out while something else happens to its place: it is dirty again
//! afterwards, or gone. The caller holds the range exclusively, so that no new dirt appears. What no flush
//! has made durable goes with it: until its place is told to be free it can be had from the cache.

use crate::file::MappedFile;
use forebay_cache::folio::Blocks;
use forebay_cache::strategy::DirtyTracking;
use forebay_cache::writeback::{WritePiece, untake};
use forebay_cache::{FolioWrite, State};
use std::ops::Range;

/// Blocks taken; dirty on drop.
pub(crate) struct Taken<'a> {
    file: &'a MappedFile,
    pieces: Vec<WritePiece>,
}

impl<'a> Taken<'a> {
    /// Nothing taken.
    pub fn new(file: &'a MappedFile) -> Self {
        Self { file, pieces: Vec::new() }
    }

    /// Takes what is dirty of the blocks, none of which is in write-out, and what is kept for the next flush.
    pub fn take(&mut self, folio: &FolioWrite<'_>, blocks: Blocks) {
        folio.begin_write(blocks, DirtyTracking::Block, &mut self.pieces);
        let kept = folio.runs(blocks, |table, slot, group| {
            table.bits(slot, State::Unflushed, group) & !table.bits(slot, State::Writing, group)
        });
        for run in kept {
            let mut start = run.start;
            while start < run.end {
                let piece = folio.take(Blocks { start, end: run.end });
                start = piece.blocks.end;
                self.pieces.push(piece);
            }
        }
    }

    /// What was taken is not wanted any more.
    pub fn drop_dirt(mut self) {
        let pieces = std::mem::take(&mut self.pieces);
        untake(&self.file.cache, &self.file.mapping, &pieces, false);
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        untake(&self.file.cache, &self.file.mapping, &self.pieces, true);
    }
}

impl MappedFile {
    /// Calls `f` for the blocks of each cached folio of the range, when none of them is being read
    /// or written out.
    pub(crate) async fn each_idle(
        &self,
        range: &Range<u64>,
        mut f: impl FnMut(&FolioWrite<'_>, Blocks),
    ) {
        for index in self.cache.folios_present(&self.mapping, range) {
            let blocks = self.mapping.blocks_touched(index, range);
            if let Some(folio) = self.lock_idle(index, blocks).await {
                f(&folio, blocks);
            }
        }
    }

    /// Locks a folio when none of the blocks is being read or written out; `None` if it is not cached.
    pub(crate) async fn lock_idle(&self, index: u64, blocks: Blocks) -> Option<FolioWrite<'_>> {
        loop {
            let folio = self.cache.lock_folio(&self.mapping, index)?;
            let busy = [State::Reading, State::Writing].into_iter().find(|&s| folio.any(s, blocks));
            let Some(state) = busy else { return Some(folio) };
            drop(folio);
            self.cache.wait_while(&self.mapping, index, blocks, state).await;
        }
    }
}
