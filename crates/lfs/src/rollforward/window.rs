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
