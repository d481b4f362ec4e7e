//! Giving data up on request: drops blocks that could not be written, and counts them.

use crate::file::MappedFile;
use forebay_cache::State;
use std::ops::Range;

impl MappedFile {
    /// Drops the blocks whose write-out has failed, so that the file shows the device's bytes
    /// there. Returns the bytes dropped. Waits for blocks whose write-out is being retried, and
    /// keeps them if it succeeds.
    pub async fn discard_failed(&self) -> u64 {
        let block = self.mapping.block_size();
        let mut dropped = 0;
        for run in self.mapping.failed_blocks() {
            for (index, part) in self.pieces(run.start * block..run.end * block) {
                dropped += self.discard_failed_of(index, &part).await;
            }
        }
        if dropped > 0 {
            let name = self.device().name();
            log::warn!("{name}: {dropped} bytes that could not be written were dropped on request");
        }
        dropped
    }

    async fn discard_failed_of(&self, index: u64, part: &Range<u64>) -> u64 {
        let mapping = &*self.mapping;
        let blocks = mapping.blocks_touched(index, part);
        loop {
            let Some(folio) = self.cache.lock_folio(mapping, index) else { return 0 };
            if !folio.any(State::Writing, blocks) {
                let (mut bytes, dirty) = (0, folio.runs_with(blocks, State::Dirty));
                for run in dirty {
                    for failed in mapping.failed_within(mapping.block_numbers(index, run)) {
                        let range =
                            failed.start * mapping.block_size()..failed.end * mapping.block_size();
                        folio.discard(mapping.blocks_inside(index, &range));
                        bytes += range.end - range.start;
                    }
                }
                return bytes;
            }
            drop(folio);
            self.cache.wait_while(mapping, index, blocks, State::Writing).await;
        }
    }
}
