//! Where data and holes begin: by the map's extents, and by dirty blocks in the cache, which the
//! map may not have yet.
//!
//! A search writes nothing out. It examines the cache before the map: a block that is written out
//! meanwhile is found in both, not in neither.
//!
//! No locks of its own; each folio's in turn.

use crate::file::MappedFile;
use crate::ops::Lookup;
use forebay_base::Result;
use forebay_cache::State;
use std::ops::Range;

/// A search for a hole examines the cache for this many bytes, then the map for them.
const WINDOW_BYTES: u64 = 4 << 20;

impl MappedFile {
    /// Runs of `range`, in order, that are dirty or in write-out. Stops after the folio with which
    /// `max` runs are found.
    fn unwritten(&self, range: &Range<u64>, max: usize) -> Vec<Range<u64>> {
        let mut found: Vec<Range<u64>> = Vec::new();
        let first = self.cache.lowest_unwritten(&self.mapping, range.start);
        if first >= range.end {
            return found;
        }
        for index in self.cache.folios_present(&self.mapping, &(first..range.end)) {
            let Some(folio) = self.cache.lock_folio(&self.mapping, index) else { continue };
            let blocks = self.mapping.blocks_touched(index, range);
            let unwritten = folio.runs(blocks, |table, slot, group| {
                table.bits(slot, State::Dirty, group) | table.bits(slot, State::Writing, group)
            });
            for run in unwritten {
                let run = self.mapping.range_of(index, run);
                found.push(run.start.max(range.start)..run.end.min(range.end));
            }
            if found.len() >= max {
                break;
            }
        }
        found
    }

    /// The first byte of `range` that may be other than zero; none, if all of it is a hole.
    pub async fn next_data(&self, range: Range<u64>) -> Result<Option<u64>> {
        let dirty = self.unwritten(&range, 1).first().map(|run| run.start);
        let (mut at, upto) = (range.start, dirty.unwrap_or(range.end));
        while at < upto {
            let extent = self.ops.map(at..upto, Lookup::Find).await?;
            if extent.device_offset.is_some() {
                return Ok(Some(at));
            }
            at += extent.len;
        }
        Ok(dirty)
    }

    /// The first byte of `range` that is in a hole; the end of `range`, if none is.
    pub async fn next_hole(&self, range: Range<u64>) -> Result<u64> {
        let mut at = range.start;
        while at < range.end {
            let window = at..range.end.min(at.saturating_add(WINDOW_BYTES));
            let dirty = self.unwritten(&window, usize::MAX);
            while at < window.end {
                if let Some(run) = dirty.iter().find(|run| run.contains(&at)) {
                    at = run.end;
                    continue;
                }
                let next = dirty.iter().find(|run| run.start > at);
                let upto = at..next.map_or(window.end, |run| run.start);
                let extent = self.ops.map(upto, Lookup::Find).await?;
                if extent.device_offset.is_none() {
                    return Ok(at);
                }
                at += extent.len;
            }
        }
        Ok(range.end)
    }
}
