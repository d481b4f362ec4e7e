//! Stable writes of one file: whether they are needed, and how a writer treats blocks in flight.
//! The mechanism is [`forebay_cache::stable`].
//!
//! Invariant: every write into cached blocks, and the zeroing of part of a block, goes through
//! [`MappedFile::resolve_hits`] under the folio lock, before the first byte changes (lineage.S3).
//! Direct writes, zeroing of whole blocks and truncates hold their blocks exclusively, and wait
//! until none is in write-out.

use crate::file::MappedFile;
use crate::obstacle::Obstacle;
use forebay_base::sync::atomic::Ordering;
use forebay_base::{Error, ErrorKind, Result};
use forebay_block::StableWrites;
use forebay_cache::folio::Blocks;
use forebay_cache::stable::Answer;
use forebay_cache::stats::Counters;
use forebay_cache::strategy::{StablePages, StableStrategy};
use forebay_cache::writeback::WritePiece;
use forebay_cache::{FolioWrite, FramePool};

/// Fresh frames that a write needs to replace others.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Fresh {
    /// How many in all.
    pub frames: usize,
    /// How many of these are for blocks in flight.
    hits: usize,
    /// Bytes in flight must not change: their frames are replaced even if the pins on them end
    /// meanwhile.
    pub stable: bool,
}

impl Fresh {
    /// The obstacle of a write that lacks these frames, and `missing` others.
    pub fn obstacle(self, missing: usize) -> Obstacle {
        let count = missing + self.frames;
        if self.hits > 0 { Obstacle::Fresh(count) } else { Obstacle::Frames(count) }
    }
}

impl MappedFile {
    /// Whether bytes in flight must not change, and why: what the map asks for now, unless the
    /// file or the cache has a setting. A map with checksums always asks: they would not match the
    /// bytes written.
    pub fn stable_need(&self) -> StableWrites {
        match self.stable_pages() {
            StablePages::Auto => self.ops.info().stable,
            StablePages::On => StableWrites { required: true, reason: "switched on" },
            StablePages::Off => match self.ops.info() {
                limits if limits.sums => limits.stable,
                _ => StableWrites { required: false, reason: "switched off" },
            },
        }
    }

    /// The file's own setting, unless that is `Auto`: then that of the cache.
    pub fn stable_pages(&self) -> StablePages {
        match StablePages::from_index(self.stable_pages.load(Ordering::Relaxed)) {
            StablePages::Auto => self.cache.strategies.stable_pages(),
            own => own,
        }
    }

    /// Overrides the map's need from the next write on; `Auto` leaves it to the cache's setting.
    /// `Off` is `Unsupported` while the map keeps checksums: they would not match the bytes
    /// written.
    pub fn set_stable_pages(&self, to: StablePages) -> Result<()> {
        if to == StablePages::Off && self.ops.info().sums {
            let text = "stable_pages=off: the map keeps checksums of what is written";
            return Err(Error::new(ErrorKind::Unsupported, "tune", text));
        }
        self.stable_pages.store(to as u8, Ordering::Relaxed);
        Ok(())
    }

    /// Returns the frames that a write to `blocks` needs in addition to the missing ones, because
    /// readers have pinned its frames or it hits blocks in flight. `Err`: the write has to wait,
    /// for the write-out or for a fill, never for a pin. `writing`: some blocks are in write-out.
    #[inline]
    pub(crate) fn resolve_hits(
        &self,
        folio: &FolioWrite<'_>,
        blocks: Blocks,
        writing: bool,
    ) -> std::result::Result<Fresh, Obstacle> {
        let pinned = folio.frames_pinned(blocks);
        let stable = writing && self.stable_need().required;
        let hits = if stable { self.resolve_in_flight(folio, blocks)? } else { 0 };
        Ok(Fresh { frames: pinned + hits, hits, stable })
    }

    /// Frames for the blocks in flight that are in no pinned frame.
    fn resolve_in_flight(
        &self,
        folio: &FolioWrite<'_>,
        blocks: Blocks,
    ) -> std::result::Result<usize, Obstacle> {
        let hit = folio.hit(blocks);
        if hit.frames == 0 {
            return Ok(0);
        }
        if self.cache.answer_hit(&self.mapping, hit.frames) == Answer::Wait {
            return Err(Obstacle::Stable);
        }
        if hit.reading {
            return Err(Obstacle::Reading(blocks.whole_frames(self.mapping.blocks_per_frame())));
        }
        Ok(hit.frames)
    }

    /// Waits until a write to the blocks hits none in write-out, and counts the wait.
    pub(crate) async fn wait_stable(&self, index: u64, blocks: Blocks) {
        let counters = &self.cache.counters;
        let hit = self.cache.lock_folio(&self.mapping, index).map(|folio| folio.hit(blocks));
        let Some(hit) = hit.filter(|hit| hit.blocks > 0) else { return };
        Counters::add(&counters.stable_hits, u64::from(hit.blocks));
        Counters::add(&counters.stable_waits, 1);
        let start = self.cache.world.now();
        self.cache.wait_not_hit(&self.mapping, index, blocks).await;
        Counters::add(&counters.stable_wait_nanos, self.cache.world.now() - start);
    }

    /// Takes fresh frames for a write that hit blocks in flight. If there are none, waits for the
    /// write-out instead: after its end the write needs no fresh frames (lineage.S8).
    pub(crate) async fn fresh_frames<'a>(
        &'a self,
        index: u64,
        blocks: Blocks,
        count: usize,
        pool: &mut FramePool<'a>,
    ) {
        if let Some(frames) = self.cache.take_frames(count) {
            *pool = frames;
            return;
        }
        Counters::add(&self.cache.counters.stable_fallbacks, 1);
        *pool = FramePool::empty(&self.cache);
        self.wait_stable(index, blocks).await;
    }

    /// Replaces a piece just taken for write-out, its folio still locked, by a copy, if the
    /// strategy is `snapshot` and the file needs stable bytes.
    pub(crate) fn snapshot(&self, folio: &FolioWrite<'_>, piece: &mut WritePiece) {
        let wanted = self.cache.strategies.stable() == StableStrategy::Snapshot;
        if wanted && self.stable_need().required {
            folio.snapshot(piece);
        }
    }
}
