//! What later records say of the end of the log.
//!
//! Each record names the last record that was flushed when it was laid out (`durable_through`). A
//! record that lies behind the end of the log is not applied, for one before it is missing, but
//! what it says still holds: the record at the end was durable, so the log is damaged, or records
//! before it were, so their data counts as it is.
//!
//! Invariants: R19 the search covers the [`SCAN_BYTES`] behind the head, behind the headers of the
//! next [`SEGMENTS_MAX`] segments of the log, in the segment that the log names as its next one
//! though it has no valid header, and in each segment whose header cannot be read. R20 a record
//! counts as evidence only if it is valid at its place, and of the head's generation or a younger
//! one: what an earlier life wrote behind its own end says nothing. R25 what cannot be read is
//! passed over unit by unit, and reported; after [`UNREAD_MAX`] units the search ends, and the
//! device is what is wrong: the volume opens for reading only. R26 the search checksums at most
//! [`SUMS_PER_BYTE`] times what it reads, whatever looks like records there: content of users may.
//!
//! No locks: recovery has the volume to itself.

use super::walk::Walk;
use crate::btree::store::is_unreadable;
use crate::device::slots::read_at;
use crate::format::place::Place;
use crate::format::record::{MAGIC, RECORD_ALIGN, Record, RecordHeader};
use forebay_base::units::{round_down, round_up};
use forebay_base::{Error, ErrorKind, Result};
use std::ops::Range;

/// Bytes of a region read at a time.
const READ_BYTES: u64 = 128 << 10;
/// How far the search goes in each segment: groups of a MiB, and what may be written ahead of a
/// flush, several times over.
const SCAN_BYTES: u64 = 8 << 20;
/// Later segments that the search covers. What was not flushed is 3 MiB (L6), 48 of the smallest
/// segments.
const SEGMENTS_MAX: usize = 256;
/// Units of the device that the search passes over because they cannot be read.
const UNREAD_MAX: u32 = 64;

/// Bytes that the search checksums for each byte that it reads. Records do not overlap, so those
/// that are valid take one.
const SUMS_PER_BYTE: u64 = 4;

/// What the search found.
#[derive(Default)]
pub(super) struct Evidence {
    /// Every record up to this one was durable.
    pub durable: u64,
    /// The record that calls the one at the head durable: where it is, and its number.
    pub refutes_end: Option<(Place, u64)>,
    /// Why a place that may hold evidence could not be read; the first of them.
    pub unread: Option<Error>,
    /// Too much cannot be read: the search has ended before its time (R25).
    pub refused: Option<Error>,
    unread_units: u32,
    read_bytes: u64,
    summed_bytes: u64,
    /// What the end of the log itself takes on the device: that this cannot be read is known.
    own: Range<u64>,
}

impl Walk<'_> {
    /// Searches what lies behind the head for records that call others durable (R19).
    /// `is_unreadable`: the record at the head itself could not be read.
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

    /// Adds what the records from `start` on say, in its segment. Content of users may lie there,
    /// too: the region is read once, whatever lengths are found in it. A record of a newer version
    /// says nothing, for only the sum of all that may belong to it could tell whether it is one.
    async fn search_from(&self, start: Place, found: &mut Evidence) -> Result<()> {
        let (layout, segment) = (self.layout, self.layout.segment_bytes());
        let (wanted, generation) = (self.head.sequence, self.head.generation);
        let first = round_up(u64::from(start.offset), u64::from(RECORD_ALIGN));
        let end = segment.min(u64::from(start.offset) + SCAN_BYTES);
        if first >= end {
            return Ok(());
        }
        // The last one may begin right before the end.
        let until = segment.min(end + layout.max_record());
        let there = self.region(start.segment, first..until, found).await?;
        found.read_bytes += there.len() as u64;
        let mut at = first;
        while at < end {
            let place = Place::new(start.segment, at as u32);
            let bytes = &there[(at - first) as usize..];
            let mut step = RECORD_ALIGN;
            // Most places hold no record; the error of `peek` is text, and costs more than the
            // rest. The sum is taken only of what would say more, if it is a record.
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

    /// These bytes of a segment, read in steps; zeros where they cannot be read (R25).
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
                // Once more in units, to find out which of them it is.
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

    /// So much looks like records and is none that the rest of a segment is left out (R26).
    fn note_crowd(&mut self, at: Place) {
        let text = format!("too much before {at:?} looks like records and is none");
        self.unread.get_or_insert_with(|| Error::new(ErrorKind::Corrupt, "recover", text));
    }
}
