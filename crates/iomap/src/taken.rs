//! Dirty blocks that an operation keeps from write-out while it changes their bytes on the device:
//! afterwards they are dirty again, or dropped. The caller holds the range exclusively, so that no
//! new dirty block appears. Unflushed blocks are taken with them: they stay cached until the
//! operation has replaced them, and can be written again if it fails.

use crate::file::MappedFile;
use forebay_cache::folio::Blocks;
use forebay_cache::strategy::DirtyTracking;
use forebay_cache::writeback::{WritePiece, untake};
use forebay_cache::{FolioWrite, Mapping, PageCache, State};
use std::ops::Range;

/// Blocks taken.
#[derive(Default)]
pub(crate) struct Taken(Vec<WritePiece>);

impl Taken {
    /// Whether no block was taken.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Takes those of the blocks that are dirty, none of which is in write-out, and those kept for
    /// the next flush.
    pub fn take(&mut self, folio: &FolioWrite<'_>, blocks: Blocks) {
        folio.begin_write(blocks, DirtyTracking::Block, &mut self.0);
        let kept = folio.runs(blocks, |table, slot, group| {
            table.bits(slot, State::Unflushed, group) & !table.bits(slot, State::Writing, group)
        });
        for run in kept {
            let mut start = run.start;
            while start < run.end {
                let piece = folio.take(Blocks { start, end: run.end });
                start = piece.blocks.end;
                self.0.push(piece);
            }
        }
    }

    /// Gives the blocks back: dirty again, or dropped.
    pub fn give_back(&mut self, cache: &PageCache, mapping: &Mapping, dirty: bool) {
        let pieces = std::mem::take(&mut self.0);
        if !pieces.is_empty() {
            untake(cache, mapping, &pieces, dirty);
        }
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

    /// Locks a folio when none of the blocks is being read or written out; `None` if it is not
    /// cached.
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
