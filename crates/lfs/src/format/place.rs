//! Places of stored bytes, the units of a volume, and the seal that binds a structure to its volume
//! and its place.
//!
//! Invariants: P1 a place has a logical segment and an offset in it, never a device offset. P2 a
//! sealed structure that is read at another place, or in another volume, does not verify.
//!
//! No locks, no state.

use super::corrupt;
use super::features::{COMPRESSION, ENCRYPTION, SHORT_EXTENTS};
use forebay_base::Result;
use forebay_base::checksum::{crc32c, crc32c_append};
use forebay_base::codec::{Reader, Writer};
use std::ops::Range;

/// Larger segment numbers have a special meaning in stored places.
pub const MAX_SEGMENT: u32 = 0xffff_fffd;
/// Special segment number: the offset is in the payload of the record that contains the place.
pub(crate) const IN_PAYLOAD: u32 = 0xffff_fffe;
/// Special segment number: no place.
const NOWHERE: u32 = 0xffff_ffff;
/// Length of a stored place, bytes.
pub const PLACE_BYTES: usize = 8;

/// Where something is stored: a logical segment, and bytes from its start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    /// Logical segment, up to [`MAX_SEGMENT`].
    pub segment: u32,
    /// Bytes from the start of the segment.
    pub offset: u32,
}

impl Place {
    /// A place.
    pub const fn new(segment: u32, offset: u32) -> Self {
        Self { segment, offset }
    }

    /// The place `bytes` later in the same segment, if that is not out of range.
    pub fn after(self, bytes: u32) -> Option<Self> {
        self.offset.checked_add(bytes).map(|offset| Self { offset, ..self })
    }

    /// The bytes that a run of `len` bytes at this place shares with another, counted from here.
    pub fn overlap(self, len: u64, (other, other_len): (Self, u64)) -> Option<Range<u64>> {
        let (from, start) = (u64::from(self.offset), u64::from(other.offset));
        let (first, last) = (from.max(start), (from + len).min(start + other_len));
        (self.segment == other.segment && first < last).then(|| first - from..last - from)
    }

    /// The stored form.
    pub fn to_bytes(self) -> [u8; PLACE_BYTES] {
        let value = u64::from(self.segment) | u64::from(self.offset) << 32;
        value.to_le_bytes()
    }

    /// Writes the place.
    pub fn encode_into(self, field: &str, w: &mut Writer<'_>) -> Result<()> {
        w.bytes(field, &self.to_bytes())
    }

    /// Reads a place.
    pub fn decode(field: &str, r: &mut Reader<'_>) -> Result<Self> {
        let place = Self { segment: r.u32(field)?, offset: r.u32(field)? };
        if place.segment > MAX_SEGMENT {
            return Err(r.bad(field, "names no segment"));
        }
        Ok(place)
    }

    /// Writes the place, or its absence.
    pub fn encode_option(this: Option<Self>, field: &str, w: &mut Writer<'_>) -> Result<()> {
        this.unwrap_or(Self::new(NOWHERE, 0)).encode_into(field, w)
    }

    /// Reads a place, or its absence.
    pub fn decode_option(field: &str, r: &mut Reader<'_>) -> Result<Option<Self>> {
        let place = Self { segment: r.u32(field)?, offset: r.u32(field)? };
        match place {
            Self { segment: NOWHERE, offset: 0 } => Ok(None),
            Self { segment: 0..=MAX_SEGMENT, .. } => Ok(Some(place)),
            _ => Err(r.bad(field, "names no segment")),
        }
    }
}

/// Checksum algorithm of file blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SumAlgorithm {
    /// No checksums.
    None,
    /// CRC-32C, four bytes.
    Crc32c,
}

impl SumAlgorithm {
    /// Bytes of one sum.
    pub const fn width(self) -> usize {
        match self {
            Self::None => 0,
            Self::Crc32c => 4,
        }
    }

    pub(crate) const fn code(self) -> u8 {
        match self {
            Self::None => 0,
            Self::Crc32c => 1,
        }
    }

    pub(crate) fn from_code(what: &str, code: u8) -> Result<Self> {
        match code {
            0 => Ok(Self::None),
            1 => Ok(Self::Crc32c),
            _ => Err(super::unsupported(what, format!("sum algorithm {code} is not known here"))),
        }
    }
}

/// The units of a volume, against which decoders check places and lengths.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Geometry {
    /// Block size, as the exponent of a power of two: 9 to 12.
    pub block_shift: u8,
    /// Size of a tree node, as the exponent of a power of two: 12 to 15.
    pub node_shift: u8,
    /// Size of a segment, as the exponent of a power of two: 16 to 30.
    pub segment_shift: u8,
    /// Checksum algorithm of new blocks.
    pub sum: SumAlgorithm,
    /// Incompatible features of the volume, which determine the form of extents.
    pub incompat: u64,
}

impl Geometry {
    /// 4 KiB blocks and nodes, CRC-32C, segments of `2^segment_shift` bytes.
    pub const fn with_segment_shift(segment_shift: u8) -> Self {
        let sum = SumAlgorithm::Crc32c;
        Self { block_shift: 12, node_shift: 12, segment_shift, sum, incompat: 0 }
    }

    /// Fails for shifts out of their ranges.
    pub fn check(&self, what: &str) -> Result<()> {
        let shifts = [
            ("block", self.block_shift, 9..=12),
            ("node", self.node_shift, 12..=15),
            ("segment", self.segment_shift, 16..=30),
        ];
        for (name, shift, range) in shifts {
            if !range.contains(&shift) {
                let (low, high) = (range.start(), range.end());
                return Err(corrupt(
                    what,
                    format!("{name} shift {shift} is not in {low}..={high}"),
                ));
            }
        }
        Ok(())
    }

    /// Block size, bytes.
    pub const fn block_bytes(&self) -> u32 {
        1 << self.block_shift
    }

    /// Size of a tree node, bytes.
    pub const fn node_bytes(&self) -> usize {
        1 << self.node_shift
    }

    /// Size of a segment, bytes.
    pub const fn segment_bytes(&self) -> u32 {
        1 << self.segment_shift
    }

    /// Number of blocks in a segment.
    pub const fn blocks_per_segment(&self) -> u32 {
        1 << (self.segment_shift - self.block_shift)
    }

    /// Longest record: 1 MiB, and at most a segment without the block of its header.
    pub const fn max_record_bytes(&self) -> u32 {
        let segment = self.segment_bytes() - self.block_bytes();
        if segment < 1 << 20 { segment } else { 1 << 20 }
    }

    /// Most blocks of a file.
    pub const fn max_blocks(&self) -> u64 {
        1 << (63 - self.block_shift)
    }

    /// Whether extents have a short form.
    pub(crate) const fn has_short_extents(&self) -> bool {
        self.incompat & SHORT_EXTENTS != 0
    }

    /// Whether an extent may be a part of a piece with a codec or key.
    pub(crate) const fn stores_pieces(&self) -> bool {
        self.incompat & (COMPRESSION | ENCRYPTION) != 0
    }

    /// Checks that `bytes` bytes from `place` on lie in the segment, and begin at a block.
    pub(crate) fn check_run(&self, what: &str, place: Place, bytes: u64) -> Result<()> {
        if u64::from(place.offset) + bytes > u64::from(self.segment_bytes()) {
            let text = format!("{bytes} bytes at {place:?} leave the segment");
            return Err(corrupt(what, text));
        }
        if !place.offset.is_multiple_of(self.block_bytes()) {
            return Err(corrupt(what, format!("{place:?} does not begin at a block")));
        }
        Ok(())
    }
}

/// Binds checksums to one volume, through its secret nonce, and to one place. Bytes of other origin
/// verify only with a probability of one in 2^32. Bytes of an older use of the same place do
/// verify: readers compare generation, birth or sequence, too.
#[derive(Clone, Copy)]
pub struct Seal(u32);

impl Seal {
    /// The seal of the volume with this nonce.
    pub fn new(nonce: &[u8; 16]) -> Self {
        Self(crc32c(nonce))
    }

    /// The checksum of `bytes` at `place`. The four bytes at `hole`, where it is stored, count as
    /// zeros. `bytes` must extend beyond the hole.
    pub(crate) fn sum(self, place: Place, bytes: &[u8], hole: usize) -> u32 {
        #[cfg(test)]
        SUMMED_BYTES.set(SUMMED_BYTES.get() + bytes.len() as u64);
        sum_around(crc32c_append(self.0, &place.to_bytes()), bytes, hole)
    }

    /// The checksum of bytes that do not contain it.
    pub(crate) fn sum_whole(self, place: Place, bytes: &[u8]) -> u32 {
        #[cfg(test)]
        SUMMED_BYTES.set(SUMMED_BYTES.get() + bytes.len() as u64);
        crc32c_append(crc32c_append(self.0, &place.to_bytes()), bytes)
    }
}

#[cfg(test)]
thread_local! {
    /// Number of bytes for which this thread has computed sealed checksums.
    pub(crate) static SUMMED_BYTES: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

/// `seed` continued over `bytes`, with zeros in place of the four bytes at `hole`.
pub(crate) fn sum_around(seed: u32, bytes: &[u8], hole: usize) -> u32 {
    debug_assert!(hole + 4 <= bytes.len(), "the sum lies within what it covers");
    let before = crc32c_append(seed, &bytes[..hole]);
    crc32c_append(crc32c_append(before, &[0; 4]), &bytes[hole + 4..])
}
