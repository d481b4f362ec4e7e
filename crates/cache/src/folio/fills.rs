//! Fills of a folio: planned, zeroed, ended. States and invariants (table.F1..F6) are in
//! [`crate::table`]. All of it under the folio lock.

use crate::folio::guard::{FolioWrite, FramePool};
use crate::memory::arena::{FRAME_SIZE, Frame};
use crate::table::{Blocks, State, Table};
use std::ops::Range;

impl FolioWrite<'_> {
    /// Plans a fill: the blocks that are neither up to date nor being read become *reading*.
    /// Returns their runs, which the caller then reads. The frames for them must be in `pool`
    /// ([`FolioWrite::frames_to_fill`]). Blocks become *uncached* if the request is.
    pub fn begin_fill(
        &self,
        blocks: Blocks,
        uncached: bool,
        pool: &mut FramePool<'_>,
    ) -> Vec<Blocks> {
        let runs = self.fillable(blocks);
        for &run in &runs {
            self.detach_pinned(run, &(0..0), pool);
            self.install_frames(run, pool);
            for (g, mask) in run.masks() {
                self.cache.table.set_bits(self.slot, State::Reading, g, mask);
                if uncached {
                    self.cache.table.set_bits(self.slot, State::Uncached, g, mask);
                }
                self.cache.table.check_block(self.slot, g);
            }
        }
        runs
    }

    /// The runs of blocks that are neither up to date nor being read.
    pub fn fillable(&self, blocks: Blocks) -> Vec<Blocks> {
        let lacks =
            |t: &Table, s, g| !(t.bits(s, State::Uptodate, g) | t.bits(s, State::Reading, g));
        self.runs(blocks, lacks).collect()
    }

    /// Frame of a block, and its offset in the frame, for a device that is to read or fill it.
    pub fn place(&self, block: u32) -> (Frame, usize) {
        let within = block % self.mapping.blocks_per_frame();
        (self.frame_at(block), within as usize * self.mapping.block_size() as usize)
    }

    /// Fills blocks with zeros: a hole, or what lies behind the end of file. They must be *reading*
    /// by the caller's own plan; they become up to date.
    pub fn fill_zero(&self, blocks: Blocks) {
        for block in blocks.start..blocks.end {
            let (frame, at) = self.place(block);
            self.cache.arena.zero(frame, at, self.mapping.block_size() as usize);
        }
        self.end_fill(blocks, true);
    }

    /// Zeroes bytes of the folio, in blocks that are being read or up to date.
    pub fn zero_bytes(&self, range: Range<usize>) {
        let mut at = range.start;
        while at < range.end {
            let len = (FRAME_SIZE - at % FRAME_SIZE).min(range.end - at);
            if let Some(frame) = self.cache.table.frame(self.slot, at / FRAME_SIZE) {
                debug_assert!(
                    !self.cache.words.is_pinned(frame),
                    "pin.P1: zeros into a pinned frame"
                );
                self.cache.arena.zero(frame, at % FRAME_SIZE, len);
            }
            at += len;
        }
    }

    /// Ends a fill: the blocks are up to date, or, if it failed, absent. Drops blocks that no
    /// reader needs any more, and frames that hold no block then.
    pub fn end_fill(&self, blocks: Blocks, ok: bool) {
        for (g, mask) in blocks.masks() {
            let was = self.cache.table.clear_bits(self.slot, State::Reading, g, mask);
            assert_eq!(was, mask, "a fill ends once (D11)");
            if ok {
                self.cache.table.set_bits(self.slot, State::Uptodate, g, mask);
            } else {
                self.cache.table.clear_bits(self.slot, State::Uncached, g, mask);
                self.cache.table.clear_bits(self.slot, State::Referenced, g, mask);
                self.cache.table.clear_bits(self.slot, State::Active, g, mask);
            }
            self.cache.table.check_block(self.slot, g);
        }
        if ok {
            debug_assert!(self.tail_is_zero(blocks), "E6: a fill left bytes behind the end");
            self.drop_abandoned(blocks);
            return;
        }
        self.strip_frames(blocks);
    }

    /// Whether the bytes behind the end of file are zero (bounds.E1). True also if the end does not
    /// lie within one of the blocks, or that block is not up to date. For assertions.
    pub fn tail_is_zero(&self, blocks: Blocks) -> bool {
        let (mapping, size) = (self.mapping, self.mapping.size());
        let block = mapping.block_size();
        let last = mapping.blocks_touched(self.index, &(size..size + 1));
        if size.is_multiple_of(block)
            || mapping.folio_index(size) != self.index
            || last.within(blocks).is_empty()
            || !self.all(State::Uptodate, last)
        {
            return true;
        }
        let mut tail = vec![0; (block - size % block) as usize];
        self.copy_out((size - mapping.folio_start(self.index)) as usize, &mut tail);
        assert_eq!(mapping.size(), size, "E5: it stands for the holder of its block");
        tail.iter().all(|&byte| byte == 0)
    }
}
