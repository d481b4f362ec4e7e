//! Divides content of a file into records: which pieces share a record, and the changes that map
//! them.
//!
//! No locks, no state.

use crate::format::MAX_EXTENT_BLOCKS;
use crate::format::change::Change;
use crate::format::extent::{Extent, Source, Sums};
use crate::format::place::Geometry;
use crate::log::staging::Staging;
use forebay_iomap::Written;

/// Bytes of a `Map` change without its sums, with the overhead of a content record.
pub(crate) const CHANGE_BYTES: u64 = 96;

/// Blocks of a piece in a record.
pub(super) struct Part {
    pub block: u64,
    /// A range of the record's content, or a run.
    pub source: Source,
    pub blocks: u16,
    pub birth: u64,
    /// Sums in stored form.
    pub sums: Vec<u8>,
}

impl Part {
    /// The change that maps it. `before`: bytes of other content that precede it in the record.
    pub fn change<'a>(&'a self, data_id: u64, before: u64, geometry: &Geometry) -> Change<'a> {
        let sums = match self.sums.is_empty() {
            true => Sums::NONE,
            false => Sums::crc32c(&self.sums),
        };
        let source = match self.source {
            Source::Inline(at) => Source::Inline(before as u32 + at),
            run => run,
        };
        let extent = Extent::plain(source, self.blocks, self.birth, sums, geometry);
        Change::Map(data_id, self.block, extent)
    }
}

/// Groups pieces into records: staged ones that are contiguous, or about as many runs as fit.
pub(super) fn records(written: &[Written], room: u64, unit: u64) -> Vec<Vec<&Written>> {
    let mut records: Vec<Vec<&Written>> = Vec::new();
    let mut used = 0;
    for piece in written {
        let at = piece.place.device_offset;
        let blocks = piece.place.len / unit;
        let body = (blocks.div_ceil(u64::from(MAX_EXTENT_BLOCKS)) + 1) * CHANGE_BYTES + blocks * 4;
        let joins = records.last().and_then(|r| r.last()).is_some_and(|last| {
            let behind = last.place.device_offset + last.place.len == at;
            used + body <= room && (behind || !Staging::is_staged(at))
        });
        match records.last_mut() {
            Some(record) if joins => record.push(piece),
            _ => {
                records.push(vec![piece]);
                used = 0;
            }
        }
        used += body;
    }
    records
}
