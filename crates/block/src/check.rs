//! The rules every device applies to a request before it starts the request.
//!
//! Invariants: C1 offset and length are multiples of the logical block; only the end of the
//! device may lie inside the last block. C2 nothing beyond the device's last block is touched.
//! C3 a write to a read-only device fails before it starts.

use crate::bdev::Limits;
use crate::bio::{Bio, BioOp, verb};
use forebay_base::units::round_up;
use forebay_base::{Error, ErrorKind, Result};

/// Logical block of a device that needs no larger one, bytes.
pub const SECTOR: u32 = 512;

/// Checks one request against the limits and the size (bytes) of a device.
///
/// The last block of a device whose size is no multiple of the block may be named in full or
/// up to the exact size: bytes beyond it read as zeros, and are not written.
pub fn check_range(op: BioOp, offset: u64, len: u64, limits: &Limits, size: u64) -> Result<()> {
    if limits.read_only && matches!(op, BioOp::Write | BioOp::Discard | BioOp::WriteZeroes) {
        return Err(fail(ErrorKind::ReadOnly, op, "the device is open for reading only"));
    }
    if op == BioOp::Flush {
        return Ok(());
    }
    let block = u64::from(limits.logical_block);
    let end = offset.checked_add(len).filter(|end| *end < 1 << 63);
    let Some(end) = end else {
        return Err(fail(ErrorKind::OutOfRange, op, "the range overflows"));
    };
    if end > round_up(size, block) {
        return Err(fail(ErrorKind::OutOfRange, op, &format!("the device ends at {size}")));
    }
    if !offset.is_multiple_of(block) || (!len.is_multiple_of(block) && end != size) {
        let text = format!("the device addresses blocks of {block} bytes");
        return Err(fail(ErrorKind::Unaligned, op, &text));
    }
    Ok(())
}

/// Checks a bio: its range, and that its data is as long as it says (bio.B3).
pub fn check_bio(bio: &mut Bio, limits: &Limits, size: u64) -> Result<()> {
    check_range(bio.op, bio.offset, bio.len, limits, size)?;
    if matches!(bio.op, BioOp::Read | BioOp::Write) {
        let have: u64 = bio.data.segments().iter().map(|s| s.len as u64).sum();
        if have != bio.len {
            let text = format!("the data has {have} bytes, not {}", bio.len);
            return Err(fail(ErrorKind::InvalidInput, bio.op, &text));
        }
    }
    Ok(())
}

fn fail(kind: ErrorKind, op: BioOp, text: &str) -> Error {
    Error::new(kind, verb(op), text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bdev::StableWrites;

    #[test]
    fn check_bio_invalid_request_is_refused() {
        let limits = |read_only| Limits {
            logical_block: 4096,
            physical_block: 4096,
            memory_align: 1,
            max_transfer: 1 << 20,
            max_segments: 16,
            stable_writes: StableWrites { required: false, reason: "" },
            discard: true,
            write_zeroes: true,
            read_only,
        };
        let kind = |op, offset, len, read_only| {
            let done = check_range(op, offset, len, &limits(read_only), 10_000);
            done.err().map(|e| e.kind())
        };
        for op in [BioOp::Write, BioOp::Discard, BioOp::WriteZeroes] {
            assert_eq!(kind(op, 0, 4096, true), Some(ErrorKind::ReadOnly), "C3: {op:?}");
        }
        for op in [BioOp::Read, BioOp::Flush] {
            assert_eq!(kind(op, 0, 4096, true), None, "C3: {op:?} writes nothing");
        }
        // A request may end where the device ends, or its last block, and nowhere else within a
        // block.
        for (len, want) in [(1808, None), (4096, None), (1807, Some(ErrorKind::Unaligned))] {
            assert_eq!(kind(BioOp::Write, 8192, len, false), want, "C1: {len}");
        }
        for (offset, len) in [(8192, 4097), (12_288, 4096), (u64::MAX - 4095, 4096), (0, 1 << 63)] {
            let found = kind(BioOp::Write, offset, len, false);
            assert_eq!(found, Some(ErrorKind::OutOfRange), "C2: {offset}+{len}");
        }
    }
}
