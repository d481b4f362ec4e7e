//! The log as recovery reads it: part after part of a segment, the next one on its way meanwhile.
//!
//! Invariants: R15 a part begins where the last one ended; what is left of that stays in front of it, so
//! that no byte is read twice. R16 the first part is short and each is twice as long as the one before, to
//! [`PART_MAX`]: a short log costs little, and of a long one the device is kept busy. R17 what cannot be
//! read ahead is left to who needs it: a bad sector behind the end of the log is nobody's concern.

use crate::format::place::Place;
use crate::layout::Layout;
use crate::slots::read_at;
use forebay_base::Result;
use forebay_base::buf::{AlignedBuf, DataRef};
use forebay_base::task::{OneReceiver, oneshot};
use forebay_base::units::{KIB, MIB, round_down, round_up};
use forebay_block::{Bio, BioFlags, BioOp, Completion, DeviceRef};

const PART_FIRST: u64 = 128 * KIB;
const PART_MAX: u64 = MIB;

/// A part that was asked for.
struct Coming {
    from: Place,
    done: OneReceiver<Completion>,
}

/// See the module.
pub(super) struct Window<'a> {
    device: &'a DeviceRef,
    layout: Layout,
    have: Option<(Place, AlignedBuf)>,
    next: Option<Coming>,
    part_bytes: u64,
}

impl<'a> Window<'a> {
    pub fn new(device: &'a DeviceRef, layout: Layout) -> Self {
        Self { device, layout, have: None, next: None, part_bytes: PART_FIRST }
    }

    /// At least `len` bytes from `at` on, which lie in the segment.
    pub async fn bytes(&mut self, at: Place, len: u64) -> Result<&[u8]> {
        while self.kept(at).is_none_or(|kept| (kept.len() as u64) < len) {
            let goes_on = self.kept(at).is_some();
            if !goes_on || !self.take_next(at).await {
                self.read(at, len, goes_on).await?;
            }
            if goes_on {
                self.begin_next();
            }
        }
        Ok(self.kept(at).unwrap_or_default())
    }

    /// What there is from `at` on; none if that is beyond what there is.
    fn kept(&self, at: Place) -> Option<&[u8]> {
        let (from, buf) = self.have.as_ref()?;
        let skip = at.offset.checked_sub(from.offset)?;
        buf.get(skip as usize..).filter(|_| from.segment == at.segment)
    }

    fn end_of_have(&self) -> Option<Place> {
        let (from, buf) = self.have.as_ref()?;
        Some(Place::new(from.segment, from.offset + buf.len() as u32))
    }

    /// Puts the part that is coming behind what is there from `at` on (R15). False: there is none.
    async fn take_next(&mut self, at: Place) -> bool {
        let Some(Coming { from, done }) = self.next.take() else { return false };
        if self.end_of_have() != Some(from) {
            return false;
        }
        let part = done.await.filter(|done| done.result.is_ok());
        let Some(part) = part.and_then(|done| done.data.into_buf()) else { return false };
        let Some((have, buf)) = &self.have else { return false };
        let start = round_down(u64::from(at.offset), u64::from(self.layout.align)) as u32;
        let rest = buf.get((start - have.offset) as usize..).unwrap_or_default();
        let mut joined = AlignedBuf::new(rest.len() + part.len());
        joined[..rest.len()].copy_from_slice(rest);
        joined[rest.len()..].copy_from_slice(&part);
        self.have = Some((Place::new(at.segment, start), joined));
        true
    }

    /// Reads from `at` on; no more than is needed, if more cannot be had (R17).
    async fn read(&mut self, at: Place, len: u64, goes_on: bool) -> Result<()> {
        let align = u64::from(self.layout.align);
        let from = round_down(u64::from(at.offset), align);
        let needed = round_up(u64::from(at.offset) + len, align);
        self.part_bytes = if goes_on { self.longer() } else { PART_FIRST };
        let until = needed.max(round_up(from + self.part_bytes, align));
        let ends = [until, needed].map(|end| end.min(self.layout.segment_bytes()));
        let place = Place::new(at.segment, from as u32);
        let offset = self.layout.device_offset(place);
        let mut read = read_at(self.device, offset, (ends[0] - from) as usize).await;
        if read.is_err() && ends[1] < ends[0] {
            read = read_at(self.device, offset, (ends[1] - from) as usize).await;
        }
        self.have = Some((place, read?));
        self.next = None;
        Ok(())
    }

    fn longer(&self) -> u64 {
        (2 * self.part_bytes).min(PART_MAX)
    }

    /// Asks for what follows in the segment, if it is not asked for (R16).
    fn begin_next(&mut self) {
        let Some(from) = self.end_of_have() else { return };
        let left = self.layout.segment_bytes() - u64::from(from.offset);
        if left == 0 || self.next.as_ref().is_some_and(|next| next.from == from) {
            return;
        }
        self.part_bytes = self.longer();
        let bytes = self.part_bytes.min(left);
        let (tx, done) = oneshot();
        let end = Box::new(move |done: Completion| tx.send(done));
        let (data, offset) =
            (DataRef::Buf(AlignedBuf::new(bytes as usize)), self.layout.device_offset(from));
        let bio = Bio::new(BioOp::Read, offset, bytes, data, end);
        self.device.submit(bio.with_flags(BioFlags::SYNC));
        self.next = Some(Coming { from, done });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::place::{Geometry, Seal};
    use forebay_base::task::block_on;
    use forebay_block::target::error::{ErrorDevice, Fault};
    use forebay_block::{BioOp, BlockDevice, RamDevice};
    use std::sync::Arc;

    const SEGMENT: u64 = 8 * MIB;
    const DATA_START: u64 = 16 * KIB;

    fn layout() -> Layout {
        let (geometry, seal) = (Geometry::with_segment_shift(23), Seal::new(&[1; 16]));
        Layout { geometry, seal, nonce: [1; 16], data_start: DATA_START, segments: 2, align: 512 }
    }

    /// A device on which each 8 bytes say where they are; reads of these bytes fail.
    fn device(bad: Option<(u64, u64)>) -> DeviceRef {
        let ram = RamDevice::new(DATA_START + 2 * SEGMENT);
        let all: Vec<u8> = (0..ram.size() / 8).flat_map(|n| (8 * n).to_le_bytes()).collect();
        ram.write_from(0, &all, BioFlags::empty()).unwrap();
        let device = ErrorDevice::new(Arc::new(ram));
        let ops = vec![BioOp::Read];
        bad.map(|_| device.arm(Fault { ops, range: bad, ..Fault::default() }));
        device
    }

    /// Goes through a segment by records of so many bytes, up to `end`: the lengths of the parts.
    fn walk(window: &mut Window<'_>, record: u64, end: u64) -> Vec<u64> {
        let mut parts: Vec<(u32, u64)> = Vec::new();
        for offset in (0..end / record).map(|n| n * record) {
            let at = Place::new(1, offset as u32);
            let bytes = block_on(window.bytes(at, record)).unwrap()[..record as usize].to_vec();
            let there = DATA_START + SEGMENT + offset;
            assert_eq!(bytes[..8], there.to_le_bytes(), "at {offset}");
            assert_eq!(bytes[bytes.len() - 8..], (there + record - 8).to_le_bytes(), "at {offset}");
            let (from, len) =
                window.have.as_ref().map(|(at, buf)| (at.offset, buf.len() as u64)).unwrap();
            if parts.last().is_none_or(|last| last.0 != from) {
                parts.push((from, len));
            }
        }
        parts.into_iter().map(|(_, len)| len).collect()
    }

    /// The story: each part was of 128 KiB, waited for, and read again from the record on that went past it:
    /// a log of large records was read twice.
    #[test]
    fn r15_r16_parts_follow_one_another_and_grow() {
        let (device, layout) = (device(None), layout());
        let mut window = Window::new(&device, layout);
        assert_eq!(walk(&mut window, 4096, 128 * KIB), [128 * KIB], "R16: the first one is short");
        assert!(window.next.is_none(), "R16: a short log has nothing read ahead");
        let record = 72 * KIB;
        let parts = walk(&mut window, record, 6 * MIB);
        assert!(
            parts.iter().skip(5).all(|len| (MIB..MIB + record).contains(len)),
            "R16: {parts:?}"
        );
        let kept = parts.len() as u64 * record;
        assert!(
            parts.iter().sum::<u64>() <= 7 * MIB + kept,
            "R15: nothing is read twice: {parts:?}"
        );
        assert!(window.next.is_some(), "R16: the next one is on its way");
        assert_eq!(window.part_bytes, PART_MAX);
    }

    #[test]
    fn r17_what_is_bad_behind_the_end_is_nobodys_concern() {
        for end in [64 * KIB, 3 * MIB] {
            let bad = DATA_START + SEGMENT + end;
            let (device, layout) = (device(Some((bad, 512))), layout());
            let mut window = Window::new(&device, layout);
            walk(&mut window, 4096, end);
            let at = Place::new(1, end as u32);
            assert!(block_on(window.bytes(at, 512)).is_err(), "R17: who needs it is told");
        }
    }
}
