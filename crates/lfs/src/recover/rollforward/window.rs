//! A read window over the log for recovery: it reads a segment in parts, and prefetches the next
//! ones.
//!
//! ```text
//!   ── joint ──▶├──── the current part ────┤── coming ──┤── coming ──┤── ...
//!   end of the part before, and the bytes of this one that a record that begins there has
//! ```
//! Invariants: R15 a part begins where the part before it ended. A record that lies in two parts is
//! joined in a buffer. So no byte is read twice, and few are copied. R16 the first part is short,
//! and each next part is twice as long, up to [`PART_MAX`]. So a short log costs little. In a long
//! log at most [`AHEAD`] parts are prefetched, and several are requested at a time. That keeps the
//! device busy with few requests. R17 an error of a prefetch is not reported: only a read of the
//! bytes that recovery needs can fail. So a bad sector behind the end of the log does no harm.

use crate::device::layout::Layout;
use crate::device::slots::read_at;
use crate::format::place::Place;
use forebay_base::Result;
use forebay_base::buf::{AlignedBuf, DataRef};
use forebay_base::units::{KIB, MIB, round_down, round_up};
use forebay_block::{Awaited, Bio, BioFlags, BioOp, Completion, DeviceRef};
use std::collections::VecDeque;

const PART_FIRST: u64 = 128 * KIB;
const PART_MAX: u64 = MIB;
/// The most parts of a long log that are prefetched. More are requested when only one is left.
const AHEAD: usize = 4;

/// A part whose read was submitted.
struct Coming {
    from: Place,
    bytes: u64,
    completion: Awaited,
}

/// The parts of the log that replay has read or is reading, up to four in flight.
pub(super) struct Window<'a> {
    device: &'a DeviceRef,
    layout: Layout,
    /// The current part.
    have: Option<(Place, AlignedBuf)>,
    /// Bytes from a place before the current part up to a place in it; may be empty.
    joint: (Place, Vec<u8>),
    /// Prefetched parts. Each begins where the one before it ends.
    coming: VecDeque<Coming>,
    part_bytes: u64,
    /// The segment in which a prefetch failed.
    bad_ahead: Option<u32>,
}

fn after(at: Place, bytes: u64) -> Place {
    Place::new(at.segment, at.offset + bytes as u32)
}

impl<'a> Window<'a> {
    pub fn new(device: &'a DeviceRef, layout: Layout) -> Self {
        let (joint, coming) = ((Place::new(0, 0), Vec::new()), VecDeque::new());
        Self { device, layout, have: None, joint, coming, part_bytes: PART_FIRST, bad_ahead: None }
    }

    /// Returns at least `len` bytes from `at` on. The caller makes sure that they lie in one
    /// segment.
    pub async fn bytes(&mut self, at: Place, len: u64) -> Result<&[u8]> {
        while self.covered(at).is_none_or(|covered| covered < len) {
            let goes_on = self.covered(at).is_some();
            if !goes_on || !self.take_next(at).await {
                self.read(at, len, goes_on).await?;
            }
            if (goes_on || self.part_bytes == PART_MAX) && self.bad_ahead != Some(at.segment) {
                self.begin_next();
            }
        }
        Ok(self.kept(at, len as usize))
    }

    /// The number of bytes that the window has from `at` on. None: `at` is outside the window.
    fn covered(&self, at: Place) -> Option<u64> {
        let (from, end) = (self.have.as_ref()?.0, self.end_of_have()?);
        let is_in_have = (from.offset..=end.offset).contains(&at.offset);
        let is_there = at.segment == end.segment && is_in_have || self.joint_at(at).is_some();
        is_there.then(|| u64::from(end.offset - at.offset))
    }

    /// The index of a place in `joint`.
    fn joint_at(&self, at: Place) -> Option<usize> {
        let (from, bytes) = &self.joint;
        let skip = at.offset.checked_sub(from.offset)? as usize;
        (at.segment == from.segment && skip < bytes.len()).then_some(skip)
    }

    /// The bytes from `at` on: the rest of the current part, or `len` bytes that lie in two parts.
    fn kept(&mut self, at: Place, len: usize) -> &[u8] {
        let Some((from, buf)) = &self.have else { return &[] };
        if let Some(skip) = at.offset.checked_sub(from.offset) {
            return buf.get(skip as usize..).unwrap_or_default();
        }
        let Some(skip) = self.joint_at(at) else { return &[] };
        let (start, bytes) = &mut self.joint;
        let missing = (skip + len).saturating_sub(bytes.len());
        let in_have = start.offset as usize + bytes.len() - from.offset as usize;
        bytes.extend_from_slice(buf.get(in_have..in_have + missing).unwrap_or_default());
        &bytes[skip..]
    }

    fn end_of_have(&self) -> Option<Place> {
        self.have.as_ref().map(|(from, buf)| after(*from, buf.len() as u64))
    }

    /// Makes the next prefetched part the current one. The bytes from `at` on before it are kept in
    /// `joint` (R15). False: no such part arrived.
    async fn take_next(&mut self, at: Place) -> bool {
        let Some(Coming { from, completion, .. }) = self.coming.pop_front() else { return false };
        if self.end_of_have() != Some(from) {
            return false;
        }
        let Completion { data, result } = completion.await;
        let Some(part) = result.ok().and_then(|()| data.into_buf()) else { return false };
        let rest = self.kept(at, (from.offset - at.offset) as usize).to_vec();
        self.joint = (at, rest);
        self.have = Some((from, part));
        true
    }

    /// Reads from `at` on. If the longer read fails, this reads only the bytes that are needed
    /// (R17).
    async fn read(&mut self, at: Place, len: u64, goes_on: bool) -> Result<()> {
        let align = u64::from(self.layout.align);
        let from = round_down(u64::from(at.offset), align);
        let needed = round_up(u64::from(at.offset) + len, align);
        if goes_on && self.bad_ahead != Some(at.segment) {
            self.part_bytes = self.longer();
        }
        let until = needed.max(round_up(from + self.part_bytes, align));
        let ends = [until, needed].map(|end| end.min(self.layout.segment_bytes()));
        let place = Place::new(at.segment, from as u32);
        let offset = self.layout.device_offset(place);
        let mut read = read_at(self.device, offset, (ends[0] - from) as usize).await;
        if read.is_err() && ends[1] < ends[0] {
            // Each record before the bad place would request the same bytes again. So from now on
            // the parts are short.
            (self.part_bytes, self.bad_ahead) = (PART_FIRST, Some(at.segment));
            read = read_at(self.device, offset, (ends[1] - from) as usize).await;
        }
        self.have = Some((place, read?));
        self.joint.1.clear();
        self.coming.clear();
        Ok(())
    }

    fn longer(&self) -> u64 {
        (2 * self.part_bytes).min(PART_MAX)
    }

    /// Submits reads of the parts that follow in the segment, if too few are on their way (R16).
    fn begin_next(&mut self) {
        let Some(end) = self.end_of_have() else { return };
        if self.coming.len() > 1 || self.coming.front().is_some_and(|next| next.from != end) {
            return;
        }
        let mut from = self.coming.back().map_or(end, |last| after(last.from, last.bytes));
        let mut bios = Vec::new();
        loop {
            let most = if self.part_bytes == PART_MAX { AHEAD } else { 1 };
            let left = self.layout.segment_bytes() - u64::from(from.offset);
            if self.coming.len() >= most || left == 0 {
                break;
            }
            self.part_bytes = self.longer();
            let bytes = self.part_bytes.min(left);
            let data = DataRef::Buf(AlignedBuf::new(bytes as usize));
            let offset = self.layout.device_offset(from);
            let (bio, completion) = Bio::awaited(BioOp::Read, offset, bytes, data, |done| done);
            bios.push(bio.with_flags(BioFlags::SYNC));
            self.coming.push_back(Coming { from, bytes, completion });
            from = after(from, bytes);
        }
        self.device.submit_batch(&mut bios);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::place::{Geometry, Seal};
    use forebay_base::task::block_on;
    use forebay_block::{BioOp, BlockDevice, RamDevice};
    use forebay_testkit::target::error::{ErrorDevice, Fault};
    use std::sync::Arc;

    const SEGMENT: u64 = 8 * MIB;
    const DATA_START: u64 = 16 * KIB;

    fn layout() -> Layout {
        let (geometry, seal) = (Geometry::with_segment_shift(23), Seal::new(&[1; 16]));
        Layout { geometry, seal, nonce: [1; 16], data_start: DATA_START, segments: 2, align: 512 }
    }

    /// A device on which every 8 bytes contain their own offset. Reads that include the `bad` bytes
    /// fail.
    fn device(bad: Option<(u64, u64)>) -> DeviceRef {
        let ram = RamDevice::new(DATA_START + 2 * SEGMENT);
        let all: Vec<u8> = (0..ram.size() / 8).flat_map(|n| (8 * n).to_le_bytes()).collect();
        ram.write_from(0, &all, BioFlags::empty()).unwrap();
        let device = ErrorDevice::new(Arc::new(ram));
        let ops = vec![BioOp::Read];
        bad.map(|_| device.arm(Fault { ops, range: bad, ..Fault::default() }));
        device
    }

    /// Reads a segment in records of `record` bytes, up to `end`. Returns the lengths of the parts.
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

    /// The story: each part had 128 KiB, recovery waited for it, and read it again from the last
    /// record that crossed its end. So a log of large records was read twice.
    #[test]
    fn r15_r16_parts_follow_one_another_and_grow() {
        let (device, layout) = (device(None), layout());
        let mut window = Window::new(&device, layout);
        assert_eq!(walk(&mut window, 4096, 128 * KIB), [128 * KIB], "R16: the first one is short");
        assert!(window.coming.is_empty(), "R16: a short log has nothing read ahead");
        let record = 72 * KIB;
        let parts = walk(&mut window, record, 6 * MIB);
        let doubled = [128, 256, 512].map(|kib| kib * KIB);
        assert!(parts.starts_with(&doubled), "R16: {parts:?}");
        assert!(parts.iter().skip(3).all(|len| *len == MIB), "R16: {parts:?}");
        assert!(parts.iter().sum::<u64>() <= 7 * MIB, "R15: nothing is read twice: {parts:?}");
        assert!((1..=AHEAD).contains(&window.coming.len()), "R16: the next ones are on their way");
        assert_eq!(window.part_bytes, PART_MAX);
        // The log continues in another segment: it is a long one.
        assert_eq!(block_on(window.bytes(Place::new(0, 512), 512)).unwrap().len() as u64, MIB);
        assert_eq!(window.coming.len(), AHEAD, "R16");
    }

    /// R15: records that lie in three parts, records that are requested again with a greater
    /// length, and a part that cannot be read between them.
    #[test]
    fn r15_records_in_several_parts_are_put_together() {
        for bad in [None, Some((DATA_START + SEGMENT + 5 * MIB / 2, 512))] {
            let (device, layout) = (device(bad), layout());
            let mut window = Window::new(&device, layout);
            walk(&mut window, 4096, 256 * KIB);
            let mut at = 256 * KIB;
            for record in [40, 8, 1500, 300, 64, 2800, 16].map(|kib| kib * KIB + 8) {
                let place = Place::new(1, at as u32);
                for len in [8, record / 2, record] {
                    let there = block_on(window.bytes(place, len)).map(<[u8]>::to_vec);
                    let from = DATA_START + SEGMENT + at;
                    let is_bad = bad.is_some_and(|(bad, n)| bad < from + len && from < bad + n);
                    assert_eq!(there.is_err(), is_bad, "R17: {at}, {len}");
                    for (n, word) in there.unwrap_or_default()[..].chunks_exact(8).enumerate() {
                        let value = DATA_START + SEGMENT + at + 8 * n as u64;
                        assert_eq!(word, value.to_le_bytes(), "at {at}, {len}");
                    }
                    assert!(window.coming.len() <= AHEAD, "R16");
                }
                at += record;
            }
        }
    }

    #[test]
    fn r17_bad_part_read_ahead_fails_only_its_reader() {
        for end in [64 * KIB, 3 * MIB] {
            let bad = DATA_START + SEGMENT + end;
            let (device, layout) = (device(Some((bad, 512))), layout());
            let mut window = Window::new(&device, layout);
            walk(&mut window, 4096, end);
            let at = Place::new(1, end as u32);
            assert!(block_on(window.bytes(at, 512)).is_err(), "R17: its reader gets the error");
            // The story: each record requested the bad part again. That was megabytes of reads, and
            // as many errors.
            let is_careful = window.coming.is_empty() && window.part_bytes == PART_FIRST;
            assert!(is_careful && window.bad_ahead == Some(1), "R17: little is asked for ahead");
        }
    }
}
