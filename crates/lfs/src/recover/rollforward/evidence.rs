//! The search for later records that show whether the log really ends where the walk stopped.
//!
//! Each record names the last record that was flushed when it was laid out (`durable_through`). A
//! record after the end of the log is not applied, because one before it is missing. But its
//! statement still holds. Either the record at the end was durable, so the log is damaged. Or
//! earlier records were durable, so they are applied whatever their data is like.
//!
//! Invariants: R19 the search covers [`SCAN_BYTES`] in each of these places: behind the head;
//! behind the headers of the next [`SEGMENTS_MAX`] log segments; in the segment that the log names
//! as the next one, although it has no valid header; in each segment whose header cannot be read.
//! R20 a record is evidence only if it is valid at its place, and has the head's generation or a
//! younger one. What an earlier generation wrote behind its end proves nothing. R25 the search
//! skips and reports each unit that cannot be read. After [`UNREAD_MAX`] units it ends: the device
//! is faulty, and the volume opens read-only. R26 the search checksums at most [`SUMS_PER_BYTE`]
//! times the bytes that it reads. Content of users may contain bytes that look like records.
//!
//! No locks: during recovery nothing else uses the volume.

use super::walk::Walk;
use crate::btree::store::is_unreadable;
use crate::device::slots::read_at;
use crate::format::place::Place;
use crate::format::record::{MAGIC, RECORD_ALIGN, Record, RecordHeader};
use forebay_base::units::{round_down, round_up};
use forebay_base::{Error, ErrorKind, Result};
use std::ops::Range;

/// Bytes that the search reads at a time.
const READ_BYTES: u64 = 128 << 10;
/// How many bytes the search covers in each segment. The writer may write a few groups of 1 MiB
/// before a flush; this is several times as much.
const SCAN_BYTES: u64 = 8 << 20;
/// How many later segments the search covers. At most 3 MiB are not flushed (log.L6), which is 48
/// of the smallest segments.
const SEGMENTS_MAX: usize = 256;
/// How many unreadable units of the device the search skips before it ends.
const UNREAD_MAX: u32 = 64;

/// The number of bytes that the search may checksum per byte that it reads. Records do not overlap,
/// so valid ones need only one.
const SUMS_PER_BYTE: u64 = 4;

/// The result of the search.
#[derive(Default)]
pub(super) struct Evidence {
    /// All records up to this one were durable.
    pub durable: u64,
    /// The place and number of a record that calls the record at the head durable.
    pub refutes_end: Option<(Place, u64)>,
    /// The first read error at a place that may hold evidence.
    pub unread: Option<Error>,
    /// Too many units cannot be read, so the search ended early (R25).
    pub refused: Option<Error>,
    unread_units: u32,
    read_bytes: u64,
    summed_bytes: u64,
    /// The byte range of the record at the end of the log, if it is unreadable: that error is known
    /// already.
    own: Range<u64>,
}

impl Walk<'_> {
    /// Searches behind the head for records that call other records durable (R19). `is_unreadable`:
    /// the record at the head could not be read.
    pub(super) async fn search(&mut self, is_unreadable: bool) -> Result<Evidence> {
        let mut found = Evidence::default();
        if is_unreadable {
            let (at, len) = (self.layout.device_offset(self.asked.0), self.asked.1);
            let align = u64::from(self.layout.align);
            found.own = round_down(at, align)..round_up(at + len, align);
        }
        let (wanted, generation) = (self.head.sequence, self.head.generation);
        let mut from: Vec<Place> = Vec::new();
        match (self.head.segment, self.named) {
            (Some(segment), _) => from.push(Place::new(segment, self.head.offset)),
            (None, Some(named)) if named < self.layout.segments => from.push(Place::new(named, 0)),
            (None, _) => {}
        }
        let later = self.headers.range(wanted..).flat_map(|(_, headers)| headers);
        let later = later.filter(|header| header.generation >= generation).take(SEGMENTS_MAX);
        from.extend(later.map(|header| Place::new(header.segment, header.first_record)));
        let hidden = self.hidden.iter().filter(|hidden| self.head.segment != Some(**hidden));
        from.extend(hidden.map(|hidden| Place::new(*hidden, 0)));
        for start in from {
            self.search_from(start, &mut found).await?;
            if found.refutes_end.is_some() || found.refused.is_some() {
                break;
            }
        }
        Ok(found)
    }

    /// Adds the evidence in one segment from `start` on. The segment may also contain content of
    /// users. So the region is read once, whatever lengths its bytes claim. A record of a newer
    /// format version is no evidence: only a checksum over all its possible bytes could prove it a
    /// record.
    async fn search_from(&self, start: Place, found: &mut Evidence) -> Result<()> {
        let (layout, segment) = (self.layout, self.layout.segment_bytes());
        let (wanted, generation) = (self.head.sequence, self.head.generation);
        let first = round_up(u64::from(start.offset), u64::from(RECORD_ALIGN));
        let end = segment.min(u64::from(start.offset) + SCAN_BYTES);
        if first >= end {
            return Ok(());
        }
        // The last record may begin just before the end.
        let until = segment.min(end + layout.max_record());
        let there = self.region(start.segment, first..until, found).await?;
        found.read_bytes += there.len() as u64;
        let mut at = first;
        while at < end {
            let place = Place::new(start.segment, at as u32);
            let bytes = &there[(at - first) as usize..];
            let mut step = RECORD_ALIGN;
            // Most places hold no record, and the error of `peek` builds a text, which costs more
            // than the other checks. The checksum is computed only for a header that would add
            // evidence.
            let is_marked = bytes.starts_with(&MAGIC.to_le_bytes());
            let peek = || RecordHeader::peek(bytes, place, &layout.geometry).ok();
            let header = is_marked.then(peek).flatten().filter(|header| {
                let fields = &header.fields;
                let is_later = fields.sequence > wanted && fields.generation >= generation;
                is_later && fields.durable_through > found.durable
            });
            if let Some(header) = header {
                found.summed_bytes += u64::from(header.length);
                if found.summed_bytes > SUMS_PER_BYTE * found.read_bytes {
                    found.note_crowd(place);
                    return Ok(());
                }
                if Record::open(bytes, layout.seal, place, &layout.geometry).is_ok() {
                    let fields = header.fields;
                    found.durable = fields.durable_through;
                    if fields.durable_through >= wanted {
                        found.refutes_end = Some((place, fields.sequence));
                        return Ok(());
                    }
                    step = header.length;
                }
            }
            at += u64::from(step);
        }
        Ok(())
    }

    /// A byte range of a segment, read in steps. Bytes that cannot be read are zeros (R25).
    async fn region(
        &self,
        segment: u32,
        range: Range<u64>,
        found: &mut Evidence,
    ) -> Result<Vec<u8>> {
        let align = u64::from(self.layout.align);
        let mut bytes = Vec::with_capacity((range.end - range.start) as usize);
        let (mut at, mut step) = (round_down(range.start, align), READ_BYTES);
        while at < range.end {
            let until = round_up(range.end, align).min(at + step);
            let (offset, len) =
                (self.layout.device_offset(Place::new(segment, at as u32)), until - at);
            let skip = range.start.saturating_sub(at) as usize;
            match read_at(self.device, offset, len as usize).await {
                Ok(part) => bytes.extend_from_slice(&part[skip..]),
                // The step is read again in single units, to find the unit that cannot be read.
                Err(error) if is_unreadable(&error) && len > align => {
                    step = align;
                    continue;
                }
                Err(error) if is_unreadable(&error) => {
                    found.note_unread(offset..offset + len, error);
                    bytes.resize(bytes.len() + len as usize - skip, 0);
                    if found.refused.is_some() {
                        break;
                    }
                }
                Err(error) => return Err(error),
            }
            at = until;
            if at.is_multiple_of(READ_BYTES) {
                step = READ_BYTES;
            }
        }
        bytes.resize((range.end - range.start) as usize, 0);
        Ok(bytes)
    }
}

impl Evidence {
    fn note_unread(&mut self, range: Range<u64>, error: Error) {
        if range.start >= self.own.start && range.end <= self.own.end {
            return;
        }
        let error = error.with_range(range.start, range.end - range.start);
        self.unread_units += 1;
        if self.unread_units > UNREAD_MAX {
            self.refused = Some(error);
        } else {
            self.unread.get_or_insert(error);
        }
    }

    /// Notes that the rest of a segment is skipped, because too many of its bytes look like records
    /// and are none (R26).
    fn note_crowd(&mut self, at: Place) {
        let text = format!("too much before {at:?} looks like records and is none");
        self.unread.get_or_insert_with(|| Error::new(ErrorKind::Corrupt, "recover", text));
    }
}
