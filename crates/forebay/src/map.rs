//! Which blocks of a file are cached, and which runs of it hold data.
//!
//! No locks but that of one folio at a time, to read its state.

use forebay_base::task::yield_now;
use forebay_base::{Error, ErrorKind, Result};
use forebay_cache::State;
use forebay_iomap::MappedFile;
use forebay_vfs::Extent;

/// The state of a range in the cache.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Residency {
    /// Bytes of a block.
    pub block_size: u32,
    /// Blocks of the range.
    pub total_blocks: u64,
    /// Blocks in the cache.
    pub resident_blocks: u64,
    /// Blocks newer than the device.
    pub dirty_blocks: u64,
    /// Blocks used since reclaim last passed them.
    pub referenced_blocks: u64,
    /// Blocks in frames that a pin holds. They are not evicted.
    pub pinned_blocks: u64,
    /// Runs that are in the cache: (offset, length) in bytes.
    pub runs: Vec<(u64, u64)>,
}

/// Reads the state of a range of a file in the cache.
pub(crate) fn residency(file: &MappedFile, offset: u64, len: u64) -> Residency {
    let (mapping, pages) = (&*file.mapping, &*file.cache);
    let block = mapping.block_size();
    let end = offset.saturating_add(len).min(file.size());
    let range = offset.min(end)..end;
    let mut out = Residency { block_size: block as u32, ..Residency::default() };
    if range.is_empty() {
        return out;
    }
    out.total_blocks = range.end.div_ceil(block) - range.start / block;
    for index in pages.folios_present(mapping, &range) {
        let Some(folio) = pages.lock_folio(mapping, index) else { continue };
        let blocks = mapping.blocks_touched(index, &range);
        let count =
            |state| -> u64 { folio.runs_with(blocks, state).map(|r| u64::from(r.len())).sum() };
        out.dirty_blocks += count(State::Dirty);
        out.referenced_blocks += count(State::Referenced);
        out.pinned_blocks += u64::from(folio.blocks_pinned(blocks));
        for run in folio.runs_with(blocks, State::Uptodate) {
            out.resident_blocks += u64::from(run.len());
            let bytes = mapping.range_of(index, run);
            match out.runs.last_mut() {
                Some((at, len)) if *at + *len == bytes.start => *len += bytes.end - bytes.start,
                _ => out.runs.push((bytes.start, bytes.end - bytes.start)),
            }
        }
    }
    out
}

/// Most runs of the file's map that one step reads.
const RUNS_STEP: usize = 256;
/// Folios that one poll inspects.
const FOLIOS_STEP: u64 = 512;

/// The extents of a range from its start on, at most `max`. Blocks that are dirty in the cache
/// count as data. Yields between its steps, so that an event loop may drive it.
pub(crate) async fn extents(
    file: &MappedFile,
    offset: u64,
    len: u64,
    max: usize,
) -> Result<Vec<Extent>> {
    let end = offset.checked_add(len).filter(|&end| end <= file.size());
    let Some(end) = end else {
        let error = Error::new(ErrorKind::OutOfRange, "map", "past the end");
        return Err(error.with_range(offset, len));
    };
    let mut out = Extents { list: Vec::new(), max: max.max(1), full: false };
    let mut at = offset;
    while at < end && !out.full {
        let runs = file.ops.extents(at..end, RUNS_STEP).await?;
        if runs.is_empty() {
            return Err(Error::new(ErrorKind::Io, "map", "the device gave no map"));
        }
        for (start, len, data) in runs {
            at = start + len;
            if data {
                out.push(len, false);
            } else {
                hole(file, start..at, &mut out).await;
            }
        }
        yield_now().await;
    }
    Ok(out.list)
}

/// Splits a hole of the file's map at the blocks in it that are dirty in the cache.
async fn hole(file: &MappedFile, range: std::ops::Range<u64>, out: &mut Extents) {
    let step = file.mapping.folio_size() * FOLIOS_STEP;
    let mut at = range.start;
    while at < range.end && !out.full {
        let part = at..range.end.min((at / step + 1) * step);
        for run in dirty_runs(file, part.clone()) {
            out.push(run.start - at, true);
            out.push(run.end - run.start, false);
            at = run.end;
        }
        out.push(part.end - at, true);
        at = part.end;
        if at < range.end {
            yield_now().await;
        }
    }
}

/// The extents found so far; adjacent ones of one kind are merged.
struct Extents {
    list: Vec<Extent>,
    max: usize,
    full: bool,
}

impl Extents {
    fn push(&mut self, len: u64, hole: bool) {
        if len == 0 || self.full {
            return;
        }
        let at_most = self.list.len() == self.max;
        match self.list.last_mut() {
            Some(last) if last.hole == hole => last.len += len,
            _ if at_most => self.full = true,
            _ => self.list.push(Extent { len, hole, zero: hole }),
        }
    }
}

fn dirty_runs(file: &MappedFile, range: std::ops::Range<u64>) -> Vec<std::ops::Range<u64>> {
    let (mapping, pages) = (&*file.mapping, &*file.cache);
    let mut out = Vec::new();
    for index in pages.folios_present(mapping, &range) {
        let Some(folio) = pages.lock_folio(mapping, index) else { continue };
        let blocks = mapping.blocks_touched(index, &range);
        let runs =
            folio.runs(blocks, |t, s, g| t.bits(s, State::Dirty, g) | t.bits(s, State::Writing, g));
        out.extend(runs.into_iter().map(|run| {
            let bytes = mapping.range_of(index, run);
            bytes.start.max(range.start)..bytes.end.min(range.end)
        }));
    }
    out
}
