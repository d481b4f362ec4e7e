//! Lays out a group of records: contiguously from the head of the log, across as many segments as
//! necessary.
//!
//! Invariants: J11 a group begins and ends at the device's block: no write touches bytes of an
//! earlier one. J12 each segment but the last ends with a record that names the next one. J13 a
//! record, and space for the one that ends the segment, lie within the segment.
//!
//! The layout follows a plan ([`crate::log::group_plan`], group_plan.J14), which has the segments.
//!
//! No locks: the holder of the write turn works on its own memory.

use crate::device::layout::Layout;
use crate::format::change::Change;
use crate::format::place::Place;
use crate::format::record::{RECORD_HEADER_BYTES, RecordBuilder, RecordFields, RecordKind};
use crate::format::segment::{SEGMENT_HEADER_BYTES, SegmentHeader};
use crate::format::superblock::FILES_TREE;
use crate::log::group_plan::{Start, align_of, end_of, start_of};
use crate::log::{Head, Pending};
use forebay_base::units::round_up;
use forebay_base::{Error, ErrorKind, Result};

/// A group that is being laid out.
pub(crate) struct Batch<'a> {
    layout: &'a Layout,
    /// The segments of the plan that are left.
    segments: std::vec::IntoIter<Result<u32>>,
    /// The value of this field in every record of the group.
    durable_through: u64,
    pub head: Head,
    /// Offset in the segment of the part that is being filled, and its bytes.
    start: u32,
    part: Vec<u8>,
    /// Finished parts, with their places.
    pub writes: Vec<(Place, Vec<u8>)>,
}

impl<'a> Batch<'a> {
    /// A group at `head`, with the segments of its plan.
    pub fn new(
        layout: &'a Layout,
        head: Head,
        durable_through: u64,
        segments: Vec<Result<u32>>,
    ) -> Self {
        let (part, writes, segments) = (Vec::new(), Vec::new(), segments.into_iter());
        Self { layout, segments, durable_through, head, start: head.offset, part, writes }
    }

    /// Adds a record; returns the place of its content.
    pub fn add(&mut self, record: &Pending, last: bool) -> Result<Option<Place>> {
        let align = align_of(self.layout, last);
        let segment = self.segment_for(record)?;
        let at = Place::new(segment, self.head.offset);
        let from = (self.head.offset - self.start) as usize;
        let upper = end_of(self.layout, at.offset, record, self.layout.align);
        self.part.resize((upper - u64::from(self.start)) as usize, 0);
        let (geometry, fields) = (self.layout.geometry, self.fields(record.kind));
        let mut builder = RecordBuilder::new(&mut self.part[from..], at, geometry)?;
        let inline = record.payload_bytes() as usize;
        builder.encoded(&record.body, record.changes, inline as u64)?;
        if inline > 0 {
            let mut room = builder.payload(inline)?;
            for payload in &record.payloads {
                let (part, rest) = room.split_at_mut(payload.bytes.len());
                part.copy_from_slice(&payload.bytes);
                room = rest;
            }
        }
        let done = builder.finish(self.layout.seal, fields, align)?;
        self.advance(done.length, done.sum);
        let end = u64::from(self.head.offset) + self.layout.next_record();
        debug_assert!(end <= self.layout.segment_bytes(), "J13: the segment can still be ended");
        let body_end = u64::from(at.offset) + (RECORD_HEADER_BYTES + record.body.len()) as u64;
        let content = round_up(body_end, self.layout.block_bytes());
        Ok((inline > 0).then(|| Place::new(segment, content as u32)))
    }

    /// Ends the group: `writes` has the data to write.
    pub fn finish(&mut self) {
        let whole = self.part.len().is_multiple_of(self.layout.align as usize);
        debug_assert!(whole, "J11: a group ends at the device's block");
        if !self.part.is_empty() {
            let place = Place::new(self.head.segment.unwrap_or_default(), self.start);
            self.writes.push((place, std::mem::take(&mut self.part)));
        }
        self.start = self.head.offset;
    }

    fn fields(&self, kind: RecordKind) -> RecordFields {
        RecordFields {
            kind,
            tree: FILES_TREE,
            sequence: self.head.sequence,
            generation: self.head.generation,
            predecessor: self.head.predecessor,
            durable_through: self.durable_through,
        }
    }

    fn advance(&mut self, length: u32, sum: u32) {
        self.head.offset += length;
        self.head.sequence += 1;
        self.head.predecessor = sum;
        self.part.truncate((self.head.offset - self.start) as usize);
    }

    /// Ensures that the record fits at the head (J13); returns its segment.
    fn segment_for(&mut self, record: &Pending) -> Result<u32> {
        let Head { segment, offset, .. } = self.head;
        match (segment, start_of(self.layout, segment, offset, record)) {
            (Some(segment), Start::Here) => Ok(segment),
            (Some(segment), Start::Begin) => self.open(segment),
            (segment, start) => {
                let fits = matches!(start, Start::Next { fits: true });
                let next = match (self.next(), segment) {
                    // The checkpoint wanted another segment to save space, but there is none.
                    (Err(_), Some(segment)) if fits => return Ok(segment),
                    (next, _) => next?,
                };
                if let Some(segment) = segment {
                    self.end_segment(segment, next)?;
                }
                self.open(next)
            }
        }
    }

    /// The next segment of the plan (group_plan.J14).
    fn next(&mut self) -> Result<u32> {
        let none = || Error::new(ErrorKind::NoSpace, "commit", "no segment was planned");
        self.segments.next().ok_or_else(none)?
    }

    /// Ends a segment with a record that names the next one (J12).
    fn end_segment(&mut self, segment: u32, next: u32) -> Result<()> {
        let at = Place::new(segment, self.head.offset);
        let from = (self.head.offset - self.start) as usize;
        let room =
            self.layout.next_record().min(self.layout.segment_bytes() - u64::from(at.offset));
        let room = room as usize;
        self.part.resize(from + room, 0);
        let (geometry, fields) = (self.layout.geometry, self.fields(RecordKind::Changes));
        let mut builder = RecordBuilder::new(&mut self.part[from..], at, geometry)?;
        builder.change(&Change::NextSegment(next))?;
        let done = builder.finish(self.layout.seal, fields, self.layout.align)?;
        self.advance(done.length, done.sum);
        self.finish();
        self.head.previous = Some(segment);
        Ok(())
    }

    fn open(&mut self, segment: u32) -> Result<u32> {
        let first_record = self.layout.first_record();
        let header = SegmentHeader {
            segment,
            generation: self.head.generation,
            first_sequence: self.head.sequence,
            previous: self.head.previous,
            first_record,
            predecessor: self.head.predecessor,
            key_id: 0,
            object_tag: 0,
        };
        self.part = vec![0; first_record as usize];
        header.encode_into(self.layout.seal, &self.layout.geometry, &mut self.part)?;
        self.part.copy_within(..SEGMENT_HEADER_BYTES, self.layout.header_copy() as usize);
        (self.head.segment, self.head.offset, self.start) = (Some(segment), first_record, 0);
        Ok(segment)
    }
}
