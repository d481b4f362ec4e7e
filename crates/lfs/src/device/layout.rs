//! Maps logical segments to the device, and defines the alignment of records.
//!
//! Invariants: Y1 each place in the volume has one offset on the device, and the other way round.
//! Y2 a record is at most a quarter of a segment, so that the waste at the end of a segment is
//! bounded.
//!
//! No locks, immutable.

use crate::format::place::{Geometry, Place, Seal};
use crate::format::record::{RECORD_ALIGN, RECORD_HEADER_BYTES};
use crate::format::segment::SEGMENT_HEADER_BYTES;
use crate::format::superblock::Superblock;
use forebay_base::units::{round_down, round_up};

/// Bytes of the record that ends a segment: a header, and a change that names the next segment.
pub(crate) const NEXT_RECORD_BYTES: u64 =
    round_up(RECORD_HEADER_BYTES as u64 + 16, RECORD_ALIGN as u64);
/// Most content in a record, bytes.
const INLINE_BYTES_MAX: u64 = 64 << 10;

/// The layout of a volume.
#[derive(Clone, Copy)]
pub(crate) struct Layout {
    /// Units of the volume.
    pub geometry: Geometry,
    /// Checksum seed of the volume.
    pub seal: Seal,
    /// Secret of this volume: seeds the hashes of names.
    pub nonce: [u8; 16],
    /// Offset on the device of segment 0, bytes.
    pub data_start: u64,
    /// Number of segments.
    pub segments: u32,
    /// Alignment of groups of records, bytes: the device's block size.
    pub align: u32,
}

impl Layout {
    /// The layout of a volume on a device with blocks of `align` bytes.
    pub fn of(superblock: &Superblock, align: u32) -> Self {
        Self {
            geometry: superblock.geometry,
            seal: Seal::new(&superblock.nonce),
            nonce: superblock.nonce,
            data_start: superblock.data_start_bytes,
            segments: superblock.segment_count,
            align: align.max(RECORD_ALIGN),
        }
    }

    /// Bytes of a segment.
    pub fn segment_bytes(&self) -> u64 {
        u64::from(self.geometry.segment_bytes())
    }

    /// Bytes of a block.
    pub fn block_bytes(&self) -> u64 {
        u64::from(self.geometry.block_bytes())
    }

    /// Device offset of a place (Y1).
    pub fn device_offset(&self, place: Place) -> u64 {
        self.data_start + u64::from(place.segment) * self.segment_bytes() + u64::from(place.offset)
    }

    /// The place at a device offset (Y1).
    pub fn place_at(&self, device_offset: u64) -> Option<Place> {
        let at = device_offset.checked_sub(self.data_start)?;
        let segment = u32::try_from(at / self.segment_bytes()).ok()?;
        let offset = (at % self.segment_bytes()) as u32;
        (segment < self.segments).then_some(Place::new(segment, offset))
    }

    /// Longest record, bytes (Y2).
    pub fn max_record(&self) -> u64 {
        let quarter = round_down(self.segment_bytes() / 4, self.block_bytes());
        quarter.min(u64::from(self.geometry.max_record_bytes()))
    }

    /// Most content in a record, bytes: a multiple of the block size.
    pub fn max_inline(&self) -> u64 {
        let room = self.max_record() - 2 * self.block_bytes();
        round_down(room.min(INLINE_BYTES_MAX), self.block_bytes())
    }

    /// Offset of the second copy of a log segment's header, which is in another sector, bytes.
    pub fn header_copy(&self) -> u32 {
        self.align
    }

    /// Offset of the first record in a log segment, bytes.
    pub fn first_record(&self) -> u32 {
        self.align + SEGMENT_HEADER_BYTES as u32
    }

    /// Bytes of records that a segment can hold at least, whatever their lengths.
    pub fn log_bytes(&self) -> u64 {
        self.left(2 * u64::from(self.align))
    }

    /// Bytes of records that a segment filled up to `head` can hold at least.
    pub fn left(&self, head: u64) -> u64 {
        let tail = self.next_record() + self.max_record();
        self.segment_bytes().saturating_sub(head + tail)
    }

    /// Space for the record that ends a segment, at any offset and padded to the device's block.
    pub fn next_record(&self) -> u64 {
        let align = u64::from(self.align);
        round_up(NEXT_RECORD_BYTES, align) + align
    }

    /// Most bytes of a record with this body and payload, unless it is the last of its group. The
    /// padding before the payload counts as a block.
    pub fn record_bytes(&self, body_bytes: u64, payload_bytes: u64) -> u64 {
        let block = if payload_bytes > 0 { self.block_bytes() } else { 0 };
        round_up(RECORD_HEADER_BYTES as u64 + body_bytes, u64::from(RECORD_ALIGN))
            + block
            + payload_bytes
    }

    /// Most log space that a record with this body and payload needs, with all padding and with a
    /// mark after it.
    pub fn cost(&self, body_bytes: u64, payload_bytes: u64) -> u64 {
        let block = if payload_bytes > 0 { self.block_bytes() } else { 0 };
        let len = RECORD_HEADER_BYTES as u64 + body_bytes + block + payload_bytes;
        let align = u64::from(self.align);
        round_up(len, align) + 2 * align
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Y1 and Y2, for the smallest segments and for large ones.
    #[test]
    fn y1_y2_places_and_lengths() {
        for shift in [16, 20, 26] {
            let geometry = Geometry::with_segment_shift(shift);
            let seal = Seal::new(&[1; 16]);
            let (data_start, nonce) = (16384, [1; 16]);
            let layout = Layout { geometry, seal, nonce, data_start, segments: 9, align: 512 };
            for place in [Place::new(0, 0), Place::new(3, 512), Place::new(8, 1 << 15)] {
                assert_eq!(layout.place_at(layout.device_offset(place)), Some(place));
            }
            assert_eq!(layout.place_at(16383), None);
            assert_eq!(layout.place_at(layout.device_offset(Place::new(9, 0))), None);
            assert!(layout.max_record() * 4 <= layout.segment_bytes());
            assert!(layout.max_inline() >= 8192 && layout.log_bytes() > layout.max_record());
        }
    }
}
