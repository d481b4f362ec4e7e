//! Content of a file as records say it: which pieces share a record, and the changes that map them.
//!
//! No locks, no state.

use crate::format::MAX_EXTENT_BLOCKS;
use crate::format::change::Change;
use crate::format::extent::{Extent, Source, Sums};
use crate::format::place::Geometry;
use crate::log::staging::Staging;
use forebay_iomap::Written;

/// Bytes that a `Map` change takes without its sums, and the others of a record of content.
pub(crate) const CHANGE_BYTES: u64 = 96;

/// Blocks of a piece as a record says them.
pub(super) struct Part {
    pub block: u64,
    /// In the content of the record; or a run.
    pub source: Source,
    pub blocks: u16,
    pub birth: u64,
    /// Stored form.
    pub sums: Vec<u8>,
}

impl Part {
    /// The change that maps it. `before`: bytes of other content in the record.
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

/// Pieces that go into one record: staged ones that lie one behind the other, or about as many runs
/// as fit.
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
