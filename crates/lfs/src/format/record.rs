//! A record of the log: a header, changes, and a payload with content of synced writes, to which
//! extents refer.
//!
//! ```text
//!   place                                   next block                          place + length
//!     | header 128 | change | change | zeros | payload, whole blocks | zeros      |
//!     |<------------- sum ------------------>|<----------- payload sum ---------->|
//! ```
//! Invariants: R1 a record verifies only at its own place and in its own volume. R2 `sum` covers
//! header and changes, so that they are usable if the payload is damaged; together the two sums
//! cover every byte up to the next record. R3 a payload begins at a block. R4 a record lies in one
//! segment. R5 extents that refer to the payload lie within it. R6 a record of an unknown kind is
//! skipped, unless its flag says that it must be understood; then it is refused.
//!
//! No locks, no state.

use super::change::Change;
use super::extent::{Extent, Source};
use super::place::{Geometry, Place, Seal};
use super::{corrupt, refused, unsupported};
use forebay_base::codec::{Reader, Writer};
use forebay_base::units::round_up;
use forebay_base::{Error, ErrorKind, Result};

/// Length of the header, bytes.
pub const RECORD_HEADER_BYTES: usize = 128;
/// Alignment of records, bytes.
pub const RECORD_ALIGN: u32 = 64;
/// `fbrc`.
pub const MAGIC: u32 = u32::from_le_bytes(*b"fbrc");

const WHAT: &str = "log record";
const VERSION: u8 = 1;
const MUST_UNDERSTAND: u8 = 1;
const SUM_AT: usize = 12;
const PAYLOAD_OFFSET_AT: usize = 68;

/// Kind of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecordKind {
    /// Changes, perhaps with a payload.
    Changes,
    /// Without changes: the record only says up to where the log is durable, or ends a checkpoint.
    Mark,
    /// A newer kind that may be skipped.
    Unknown(u16),
}

impl RecordKind {
    const fn code(self) -> u16 {
        match self {
            Self::Changes => 1,
            Self::Mark => 2,
            Self::Unknown(code) => code,
        }
    }
}

/// The fields of a header that the record's writer chooses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordFields {
    /// The kind of the record, never `Unknown` for a writer.
    pub kind: RecordKind,
    /// The tree that the changes belong to.
    pub tree: u64,
    /// Number of the record in the log: one more than its predecessor's, from 1.
    pub sequence: u64,
    /// Generation of the volume.
    pub generation: u64,
    /// Checksum of the previous record.
    pub predecessor: u32,
    /// Every record up to this one was flushed before this one was written.
    pub durable_through: u64,
}

/// The header of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordHeader {
    /// The fields chosen by its writer.
    pub fields: RecordFields,
    /// The place of the record.
    pub place: Place,
    /// Checksum of header and changes, which the next record has as `predecessor`.
    pub sum: u32,
    /// Length up to the next record, bytes.
    pub length: u32,
    /// Length of the changes after the header, bytes.
    pub body_bytes: u32,
    /// Number of changes.
    pub changes: u32,
    /// Offset of the payload in the record; equal to `length` if there is none.
    pub payload_offset: u32,
    /// Length of the payload, bytes.
    pub payload_bytes: u32,
    /// Checksum from the payload up to the next record.
    pub payload_sum: u32,
}

impl RecordHeader {
    /// Reads a header without verifying its sum, to find the record's length: no other field may be
    /// trusted.
    pub fn peek(bytes: &[u8], at: Place, geometry: &Geometry) -> Result<Self> {
        let mut r = Reader::new(WHAT, bytes);
        Self::decode(&mut r, at, geometry)
    }

    /// Writes the header, with the sum that it contains.
    pub(crate) fn encode_into(&self, w: &mut Writer<'_>) -> Result<()> {
        let fields = &self.fields;
        let skippable = matches!(fields.kind, RecordKind::Unknown(_));
        w.u32("magic", MAGIC)?;
        w.u8("version", VERSION)?;
        w.u8("flags", if skippable { 0 } else { MUST_UNDERSTAND })?;
        w.u16("kind", fields.kind.code())?;
        w.u32("length", self.length)?;
        w.u32("sum", self.sum)?;
        w.u64("tree", fields.tree)?;
        w.u64("sequence", fields.sequence)?;
        w.u64("generation", fields.generation)?;
        self.place.encode_into("place", w)?;
        w.u64("durable through", fields.durable_through)?;
        w.u32("predecessor", fields.predecessor)?;
        w.u32("changes", self.changes)?;
        w.u32("body bytes", self.body_bytes)?;
        w.u32("payload offset", self.payload_offset)?;
        w.u32("payload bytes", self.payload_bytes)?;
        w.u32("payload sum", self.payload_sum)?;
        w.zeros("reserved", RECORD_HEADER_BYTES - w.position())
    }

    fn decode(r: &mut Reader<'_>, at: Place, geometry: &Geometry) -> Result<Self> {
        if r.u32("magic")? != MAGIC {
            return Err(r.bad("magic", "no record begins here"));
        }
        let version = r.u8("version")?;
        if version != VERSION {
            return Err(unsupported(WHAT, format!("version {version} at {at:?}")));
        }
        let flags = r.u8("flags")?;
        if flags & !MUST_UNDERSTAND != 0 {
            return Err(r.bad("flags", "unknown bits"));
        }
        let kind = match r.u16("kind")? {
            1 => RecordKind::Changes,
            2 => RecordKind::Mark,
            code if flags & MUST_UNDERSTAND == 0 => RecordKind::Unknown(code),
            code => {
                return Err(unsupported(
                    WHAT,
                    format!("kind {code} at {at:?}, which must be understood"),
                ));
            }
        };
        let (length, sum) = (r.u32("length")?, r.u32("sum")?);
        let (tree, sequence) = (r.u64("tree")?, r.u64("sequence")?);
        let (generation, place) = (r.u64("generation")?, Place::decode("place", r)?);
        let (durable_through, predecessor) = (r.u64("durable through")?, r.u32("predecessor")?);
        let this = Self {
            fields: RecordFields { kind, tree, sequence, generation, predecessor, durable_through },
            place,
            sum,
            length,
            changes: r.u32("changes")?,
            body_bytes: r.u32("body bytes")?,
            payload_offset: r.u32("payload offset")?,
            payload_bytes: r.u32("payload bytes")?,
            payload_sum: r.u32("payload sum")?,
        };
        r.zeros("reserved", RECORD_HEADER_BYTES - r.position())?;
        if place != at {
            return Err(corrupt(WHAT, format!("a record of {place:?} lies at {at:?}")));
        }
        if matches!(kind, RecordKind::Unknown(_)) == (flags & MUST_UNDERSTAND != 0) {
            return Err(corrupt(WHAT, format!("{kind:?} with flags {flags} at {at:?}")));
        }
        this.check(geometry)?;
        Ok(this)
    }

    fn check(&self, geometry: &Geometry) -> Result<()> {
        let bad = |why: &str| Err(corrupt(WHAT, format!("at {:?}: {why}", self.place)));
        let (offset, length) = (u64::from(self.place.offset), u64::from(self.length));
        let body_end = RECORD_HEADER_BYTES as u64 + u64::from(self.body_bytes);
        let payload_end = u64::from(self.payload_offset) + u64::from(self.payload_bytes);
        if self.length > geometry.max_record_bytes() {
            return bad("field `length`: longer than records are");
        }
        if offset + length > u64::from(geometry.segment_bytes()) {
            return bad("it leaves its segment (R4)");
        }
        if !self.length.is_multiple_of(RECORD_ALIGN)
            || !self.place.offset.is_multiple_of(RECORD_ALIGN)
        {
            return bad("place or length between two records");
        }
        if body_end > u64::from(self.payload_offset) || payload_end > length {
            return bad("changes and payload do not fit");
        }
        if self.payload_bytes == 0 && self.payload_offset != self.length {
            return bad("field `payload offset`: there is no payload");
        }
        let begin = self.place.offset + self.payload_offset;
        if self.payload_bytes > 0 && !begin.is_multiple_of(geometry.block_bytes()) {
            return bad("field `payload offset`: no start of a block (R3)");
        }
        let sequence = self.fields.sequence;
        if sequence == 0 || self.fields.durable_through >= sequence {
            return bad("durable through itself or later");
        }
        let empty = self.changes == 0 && self.body_bytes == 0 && self.payload_bytes == 0;
        if self.fields.kind == RecordKind::Mark && !empty {
            return bad("a mark with content");
        }
        Ok(())
    }
}

/// A record whose header and changes verified.
#[derive(Debug, Clone, Copy)]
pub struct Record<'a> {
    /// The header.
    pub header: RecordHeader,
    body: &'a [u8],
    payload: &'a [u8],
    payload_verifies: bool,
}

impl<'a> Record<'a> {
    /// The record at `at`, at the start of `bytes`.
    ///
    /// At the end of the log the result is `Corrupt`, never `Unsupported`. A damaged payload is
    /// reported by [`payload`](Self::payload).
    pub fn open(bytes: &'a [u8], seal: Seal, at: Place, geometry: &Geometry) -> Result<Self> {
        let mut r = Reader::new(WHAT, bytes);
        let all = r.clone().bytes("header", RECORD_HEADER_BYTES)?;
        // The sum is checked first, because an unknown kind or version may only be trusted if it
        // matches.
        if r.u32("magic")? != MAGIC {
            return Err(r.bad("magic", "no record begins here"));
        }
        let payload_offset =
            u32::from_le_bytes(all[PAYLOAD_OFFSET_AT..][..4].try_into().expect("4 bytes"));
        let summed =
            Reader::new(WHAT, bytes).bytes("header and changes", payload_offset as usize)?;
        if summed.len() < RECORD_HEADER_BYTES {
            return Err(corrupt(WHAT, format!("at {at:?}: the payload lies in the header")));
        }
        let stored = u32::from_le_bytes(all[SUM_AT..][..4].try_into().expect("4 bytes"));
        let sum = seal.sum(at, summed, SUM_AT);
        if stored != sum {
            let text = format!("at {at:?}: the checksum is {sum:#010x}, stored is {stored:#010x}");
            return Err(corrupt(WHAT, text));
        }
        let header = RecordHeader::peek(bytes, at, geometry)?;
        let (body_end, offset) =
            (RECORD_HEADER_BYTES + header.body_bytes as usize, header.payload_offset as usize);
        let body = &bytes[RECORD_HEADER_BYTES..body_end];
        let tail = Reader::new(WHAT, bytes).bytes("record", header.length as usize)?;
        let (gap, tail) = (&bytes[body_end..offset], &tail[offset..]);
        let (payload, end) = tail.split_at(header.payload_bytes as usize);
        let payload_verifies = seal.sum_whole(at, tail) == header.payload_sum;
        let zero = |bytes: &[u8]| bytes.iter().all(|byte| *byte == 0);
        if !zero(gap) || payload_verifies && !zero(end) {
            return Err(corrupt(WHAT, format!("at {at:?}: padding is not zero")));
        }
        Ok(Self { header, body, payload, payload_verifies })
    }

    /// A record that [`open`](Self::open) has verified, of whose bytes `bytes` has the first
    /// [`Self::head_bytes`].
    pub fn reopen(bytes: &'a [u8], at: Place, geometry: &Geometry) -> Result<Self> {
        let header = RecordHeader::peek(bytes, at, geometry)?;
        let mut r = Reader::new(WHAT, bytes);
        r.bytes("header", RECORD_HEADER_BYTES)?;
        let body = r.bytes("changes", header.body_bytes as usize)?;
        Ok(Self { header, body, payload: &[], payload_verifies: false })
    }

    /// Length of header and changes, bytes.
    pub fn head_bytes(&self) -> usize {
        RECORD_HEADER_BYTES + self.body.len()
    }

    /// [`open`](Self::open), and checks every change and the payload.
    pub fn decode(bytes: &'a [u8], seal: Seal, at: Place, geometry: &Geometry) -> Result<Self> {
        let this = Self::open(bytes, seal, at, geometry)?;
        this.check(geometry)?;
        this.payload()?;
        Ok(this)
    }

    /// Fails if any change cannot be applied here: a record is applied completely or not at all.
    pub fn check(&self, geometry: &Geometry) -> Result<()> {
        if matches!(self.header.fields.kind, RecordKind::Unknown(_)) {
            return Ok(());
        }
        let mut walk = self.walk(geometry);
        let mut found = 0;
        while let Some(step) = walk.step() {
            step.map_err(|e| self.with_place(e))?;
            found += 1;
        }
        match found == self.header.changes {
            true => Ok(()),
            false => {
                let text = format!("{found} changes instead of {}", self.header.changes);
                Err(self.with_place(corrupt(WHAT, text)))
            }
        }
    }

    /// The known changes, in order.
    pub fn changes(&self, geometry: &'a Geometry) -> impl Iterator<Item = Result<Change<'a>>> {
        self.walk(geometry)
    }

    fn walk(&self, geometry: &'a Geometry) -> Walk<'a> {
        let known = !matches!(self.header.fields.kind, RecordKind::Unknown(_));
        let body = if known { self.body } else { &[] };
        let reader = Reader::new("changes of a log record", body);
        Walk { reader, geometry, payload: u64::from(self.header.payload_bytes) }
    }

    /// The payload, verified.
    pub fn payload(&self) -> Result<&'a [u8]> {
        match self.payload_verifies {
            true => Ok(self.payload),
            false => Err(self.with_place(corrupt(WHAT, "the payload does not match its checksum"))),
        }
    }

    /// The place of the bytes of an extent in this record.
    pub fn resolve(&self, extent: &Extent<'_>) -> Result<Place> {
        match extent.source {
            Source::Run(place) => Ok(place),
            Source::Inline(at) => {
                let place = self.header.payload_offset.checked_add(at);
                let place = place.and_then(|offset| self.header.place.after(offset));
                place.ok_or_else(|| self.with_place(corrupt(WHAT, "content beyond the segment")))
            }
        }
    }

    fn with_place(&self, error: Error) -> Error {
        let place = self.header.place;
        Error::new(error.kind(), "decode", format!("record at {place:?}: {error}"))
    }
}

struct Walk<'a> {
    reader: Reader<'a>,
    geometry: &'a Geometry,
    payload: u64,
}

impl<'a> Walk<'a> {
    /// The next change, known or not; `None` after an invalid one.
    fn step(&mut self) -> Option<Result<Option<Change<'a>>>> {
        if self.reader.remaining() == 0 {
            return None;
        }
        let found = Change::decode(&mut self.reader, self.geometry).and_then(|change| match change
            .and_then(|change| change.inline_range())
        {
            Some((_, end)) if end > self.payload => {
                Err(self.reader.bad("extent", "points beyond the payload (R5)"))
            }
            _ => Ok(change),
        });
        if found.is_err() {
            self.reader = Reader::new("changes of a log record", &[]);
        }
        Some(found)
    }
}

impl<'a> Iterator for Walk<'a> {
    type Item = Result<Change<'a>>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(found) = self.step()?.transpose() {
                return Some(found);
            }
        }
    }
}

/// Builds a record in the buffer from which it is written: changes first, then at most one payload,
/// then [`finish`](Self::finish).
#[derive(Debug)]
pub struct RecordBuilder<'b> {
    bytes: &'b mut [u8],
    place: Place,
    geometry: Geometry,
    body_end: usize,
    changes: u32,
    payload: Option<(usize, usize)>,
    /// End of the payload range to which extents refer.
    inline_end: u64,
}

/// Result of [`RecordBuilder::finish`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Finished {
    /// Length of the record, after which the next one begins.
    pub length: u32,
    /// The checksum of the record, which is the `predecessor` of the next one.
    pub sum: u32,
}

impl<'b> RecordBuilder<'b> {
    /// Begins a record at `place`; buffer, segment and record limit bound its length.
    pub fn new(bytes: &'b mut [u8], place: Place, geometry: Geometry) -> Result<Self> {
        if !place.offset.is_multiple_of(RECORD_ALIGN) || place.offset >= geometry.segment_bytes() {
            return Err(refused(WHAT, format!("no record can be at {place:?}")));
        }
        let room = (geometry.segment_bytes() - place.offset).min(geometry.max_record_bytes());
        let room = bytes.len().min(room as usize);
        let bytes = &mut bytes[..room];
        if room < RECORD_HEADER_BYTES {
            return Err(no_space("the header", room));
        }
        let body_end = RECORD_HEADER_BYTES;
        Ok(Self { bytes, place, geometry, body_end, changes: 0, payload: None, inline_end: 0 })
    }

    /// Adds a change. `NoSpace` if it does not fit, `InvalidInput` after a payload or if decoders
    /// would refuse it; then the record is unchanged.
    pub fn change(&mut self, change: &Change<'_>) -> Result<()> {
        if self.payload.is_some() {
            return Err(refused(WHAT, "a change behind the payload"));
        }
        let mut w = Writer::new("change", &mut self.bytes[self.body_end..]);
        change.encode_into(&mut w, &self.geometry)?;
        self.body_end += w.position();
        self.changes += 1;
        self.inline_end = self.inline_end.max(change.inline_range().map_or(0, |(_, end)| end));
        Ok(())
    }

    /// Adds contiguous changes that [`Change::encode_into`] has written for this volume. `changes`:
    /// their number; `inline_bytes`: length of the payload to which their extents refer. `NoSpace`
    /// if they do not fit.
    pub fn encoded(&mut self, body: &[u8], changes: u32, inline_bytes: u64) -> Result<()> {
        if self.payload.is_some() {
            return Err(refused(WHAT, "a change behind the payload"));
        }
        let Some(room) = self.bytes[self.body_end..].get_mut(..body.len()) else {
            return Err(no_space("the changes", self.bytes.len()));
        };
        room.copy_from_slice(body);
        self.body_end += body.len();
        self.changes += changes;
        self.inline_end = self.inline_end.max(inline_bytes);
        Ok(())
    }

    /// Number of changes so far.
    pub fn changes(&self) -> u32 {
        self.changes
    }

    /// Begins a payload of `len` bytes at the next block; the caller fills the returned slice.
    pub fn payload(&mut self, len: usize) -> Result<&mut [u8]> {
        if self.payload.is_some() || len == 0 {
            return Err(refused(WHAT, "a second or an empty payload"));
        }
        let offset = self.next(self.body_end, self.geometry.block_bytes());
        let Some(end) = offset.checked_add(len).filter(|end| *end <= self.bytes.len()) else {
            return Err(no_space("the payload", self.bytes.len()));
        };
        self.bytes[self.body_end..offset].fill(0);
        self.payload = Some((offset, end));
        Ok(&mut self.bytes[offset..end])
    }

    /// Completes the record. The next one begins at a multiple of `align` bytes in the segment:
    /// [`RECORD_ALIGN`], or the device's block after the last record of a group.
    pub fn finish(self, seal: Seal, fields: RecordFields, align: u32) -> Result<Finished> {
        if !align.is_power_of_two()
            || !(RECORD_ALIGN..=self.geometry.segment_bytes()).contains(&align)
        {
            return Err(refused(WHAT, format!("{align} is no alignment of records")));
        }
        if matches!(fields.kind, RecordKind::Unknown(_)) {
            return Err(refused(WHAT, "of an unknown kind"));
        }
        let (payload, end) = match self.payload {
            Some((payload, end)) => (Some(payload), end),
            None => (None, self.body_end),
        };
        let length = self.next(end, align);
        if length > self.bytes.len() {
            return Err(no_space("the padding", self.bytes.len()));
        }
        let offset = payload.unwrap_or(length);
        if self.inline_end > (end - offset.min(end)) as u64 {
            return Err(refused(WHAT, "an extent points beyond the payload (R5)"));
        }
        self.bytes[end..length].fill(0);
        let mut header = RecordHeader {
            fields,
            place: self.place,
            sum: 0,
            length: length as u32,
            body_bytes: (self.body_end - RECORD_HEADER_BYTES) as u32,
            changes: self.changes,
            payload_offset: offset as u32,
            payload_bytes: (end - offset.min(end)) as u32,
            payload_sum: seal.sum_whole(self.place, &self.bytes[offset..length]),
        };
        header.check(&self.geometry).map_err(|e| refused(WHAT, e.to_string()))?;
        let head = &mut self.bytes[..RECORD_HEADER_BYTES];
        header.encode_into(&mut Writer::new(WHAT, head))?;
        header.sum = seal.sum(self.place, &self.bytes[..offset], SUM_AT);
        self.bytes[SUM_AT..SUM_AT + 4].copy_from_slice(&header.sum.to_le_bytes());
        Ok(Finished { length: header.length, sum: header.sum })
    }

    /// Offset in the record, `at` or later, that is a multiple of `align` in the segment.
    fn next(&self, at: usize, align: u32) -> usize {
        let start = u64::from(self.place.offset);
        (round_up(start + at as u64, u64::from(align)) - start) as usize
    }
}

fn no_space(of: &str, room: usize) -> Error {
    Error::new(ErrorKind::NoSpace, "encode", format!("{WHAT}: no room for {of} in {room} bytes"))
}
