//! The staging area: content of records that are not durable yet, at offsets beyond the end of
//! every device. Used as a device, it passes other offsets on to the real one, so that callers need
//! not distinguish them.
//!
//! ```text
//!   0 ........ device ........ | nothing | BASE ... staged runs, each at an offset of its own
//! ```
//! Invariants: G11 an offset of the area is used once, and runs are never adjacent, so that one
//! read never covers two runs. G12 staged content can be read until it is forgotten. That happens
//! when its record is durable and the content can be read from the device. A pin that was taken
//! before keeps it readable for longer.
//!
//! Lock: one, a leaf lock, below the state lock.

use crate::fault::{Plant, Planted};
use forebay_base::buf::{AlignedBuf, DataRef};
use forebay_base::sync::Mutex;
use forebay_base::units::round_up;
use forebay_base::{Error, ErrorKind, Result};
use forebay_block::{Bio, BioFlags, BioOp, BlockDevice, Completion, DeviceRef};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Weak};

/// Gap between two runs (G11), bytes: large enough to align runs as blocks are.
const GAP_BYTES: u64 = 64 << 10;

/// First offset of the area.
pub(crate) const BASE: u64 = 1 << 62;

struct Area {
    /// The bytes of a run, and how many of them are not forgotten.
    runs: BTreeMap<u64, (Arc<Vec<u8>>, u64)>,
    /// Forgotten runs that a pin keeps readable (G12).
    pinned: BTreeMap<u64, Weak<Vec<u8>>>,
    next: u64,
}

/// The staging area of a volume.
pub(crate) struct Staging {
    device: DeviceRef,
    area: Mutex<Area>,
    plant: Plant,
}

impl Staging {
    /// An empty area for `device`.
    pub fn new(device: DeviceRef, plant: Plant) -> Self {
        let area = Area { runs: BTreeMap::new(), pinned: BTreeMap::new(), next: BASE };
        Self { device, area: Mutex::new(area), plant }
    }

    /// Whether an offset lies in the area.
    pub fn is_staged(offset: u64) -> bool {
        offset >= BASE
    }

    /// Reserves `len` bytes, which are zeros until they are written (G11).
    pub fn take(&self, len: u64) -> Range<u64> {
        let mut area = self.area.lock();
        let start = area.next;
        area.next += round_up(len, GAP_BYTES) + GAP_BYTES;
        area.runs.insert(start, (Arc::new(vec![0; len as usize]), len));
        start..start + len
    }

    /// Adds bytes that were read from the device; they are kept until they are forgotten.
    pub fn put(&self, bytes: &[u8]) -> Range<u64> {
        let (mut area, len) = (self.area.lock(), bytes.len() as u64);
        let start = area.next;
        area.next += round_up(len, GAP_BYTES) + GAP_BYTES;
        area.runs.insert(start, (Arc::new(bytes.to_vec()), len));
        start..start + len
    }

    /// Bytes in the area.
    pub fn held_bytes(&self) -> u64 {
        self.area.lock().runs.values().map(|(bytes, _)| bytes.len() as u64).sum()
    }

    /// A pin that keeps the run at a staged offset readable.
    pub fn pin(&self, offset: u64) -> Option<Arc<Vec<u8>>> {
        let area = self.area.lock();
        area.runs.range(..=offset).next_back().map(|(_, (bytes, _))| bytes.clone())
    }

    /// A pin for a range; `None`: the range was forgotten.
    pub fn pin_at(&self, offset: u64, len: u64) -> Option<Arc<Vec<u8>>> {
        let area = self.area.lock();
        let (start, (bytes, _)) = area.runs.range(..=offset).next_back()?;
        (offset + len <= start + bytes.len() as u64).then(|| bytes.clone())
    }

    /// A copy of staged bytes, which later writes do not change.
    pub fn share(&self, range: &Range<u64>) -> Result<Arc<Vec<u8>>> {
        let len = range.end - range.start;
        if let Some((run, _)) = self.area.lock().runs.get(&range.start)
            && run.len() as u64 == len
        {
            return Ok(run.clone());
        }
        let mut bytes = vec![0; len as usize];
        self.read_into(range.start, &mut bytes)?;
        Ok(Arc::new(bytes))
    }

    /// Forgets a range.
    pub fn forget(&self, range: &Range<u64>) {
        if self.plant.has(Planted::StagedKept) {
            return;
        }
        let mut area = self.area.lock();
        area.pinned.retain(|_, bytes| bytes.strong_count() > 0);
        let Some((start, (_, left))) = area.runs.range_mut(..=range.start).next_back() else {
            return;
        };
        let start = *start;
        *left = left.saturating_sub(range.end - range.start);
        if *left == 0
            && let Some((bytes, _)) = area.runs.remove(&start)
        {
            area.pinned.insert(start, Arc::downgrade(&bytes));
        }
    }

    /// Passes staged bytes to `act`, without a copy.
    pub fn read_staged(&self, offset: u64, len: u64, act: impl FnOnce(&[u8])) -> Result<()> {
        let area = self.area.lock();
        let held = area.runs.range(..=offset).next_back().map(|(at, (run, _))| (*at, run.clone()));
        let within = |(at, run): &(u64, Arc<Vec<u8>>)| offset + len <= at + run.len() as u64;
        let pinned = || {
            let (at, run) = area.pinned.range(..=offset).next_back()?;
            run.upgrade().map(|run| (*at, run))
        };
        let found = held.filter(within).or_else(|| pinned().filter(within));
        drop(area);
        let (start, run) = found.ok_or_else(gone)?;
        let at = (offset - start) as usize;
        act(&run[at..at + len as usize]);
        Ok(())
    }

    fn write_staged(&self, offset: u64, len: u64, act: impl FnOnce(&mut [u8])) -> Result<()> {
        let mut area = self.area.lock();
        let (start, (run, _)) = area.runs.range_mut(..=offset).next_back().ok_or_else(gone)?;
        if offset + len > start + run.len() as u64 {
            return Err(gone());
        }
        let at = (offset - start) as usize;
        act(&mut Arc::make_mut(run)[at..at + len as usize]);
        Ok(())
    }

    /// The injected fault: copies of a write stay in memory.
    fn keep_copies(&self, bio: &mut Bio) {
        let mut copy = AlignedBuf::new(bio.len as usize);
        bio.data.copy_out(0, &mut copy);
        for _ in 0..32 {
            self.put(&copy);
        }
    }

    /// The injected fault: a write is reported as complete while it is in flight.
    fn complete_early(&self, mut bio: Bio) {
        let mut copy = AlignedBuf::new(bio.len as usize);
        bio.data.copy_out(0, &mut copy);
        let (offset, len, data) = (bio.offset, bio.len, DataRef::Buf(copy));
        self.device.submit(Bio::new(BioOp::Write, offset, len, data, Box::new(drop)));
        bio.complete(Ok(()));
    }

    fn swallows_errors(&self) -> bool {
        self.plant.has(Planted::NoSpaceSwallowed) || self.plant.has(Planted::SwallowedWriteError)
    }

    /// The injected fault: an error of a write, or of a full host, is not reported.
    fn completing_well(&self, mut bio: Bio) -> Bio {
        let mut copy = AlignedBuf::new(bio.len as usize);
        bio.data.copy_out(0, &mut copy);
        let (offset, len, flags, data) = (bio.offset, bio.len, bio.flags, DataRef::Buf(copy));
        let all = self.plant.has(Planted::SwallowedWriteError);
        let end = Box::new(move |done: Completion| {
            bio.complete(match done.result {
                Err(error) if !all && error.kind() != ErrorKind::NoSpace => Err(error),
                _ => Ok(()),
            });
        });
        Bio::new(BioOp::Write, offset, len, data, end).with_flags(flags)
    }

    fn carry_out(&self, bio: &mut Bio) -> Result<()> {
        let (offset, len) = (bio.offset, bio.len);
        match bio.op {
            BioOp::Write => self.write_staged(offset, len, |room| {
                bio.data.copy_out(0, room);
            }),
            BioOp::Read => self.read_staged(offset, len, |bytes| {
                bio.data.copy_in(0, bytes);
            }),
            _ => Err(Error::new(ErrorKind::Unsupported, "staged content", "reads and writes only")),
        }
    }
}

fn gone() -> Error {
    Error::new(ErrorKind::Io, "staged content", "it is not held any more")
}

impl BlockDevice for Staging {
    forebay_block::delegate_block_device!(
        [device] name limits size is_crowded wait_for_capacity extents attach_thread
    );

    fn submit(&self, mut bio: Bio) {
        if bio.op == BioOp::Flush || !Self::is_staged(bio.offset) {
            if bio.op == BioOp::Write && self.plant.has(Planted::WritesKept) {
                self.keep_copies(&mut bio);
            }
            if bio.op == BioOp::Write && self.plant.has(Planted::PublishedEarly) {
                return self.complete_early(bio);
            }
            if bio.op == BioOp::Write && self.swallows_errors() {
                return self.device.submit(self.completing_well(bio));
            }
            return self.device.submit(bio);
        }
        let result = self.carry_out(&mut bio);
        bio.complete(result);
    }

    fn submit_batch(&self, bios: &mut Vec<Bio>) {
        let mut device = Vec::with_capacity(bios.len());
        for bio in bios.drain(..) {
            let staged = bio.op != BioOp::Flush && Self::is_staged(bio.offset);
            let is_altered =
                self.plant.has(Planted::PublishedEarly) || self.plant.has(Planted::WritesKept);
            match staged || is_altered || self.swallows_errors() {
                true => self.submit(bio),
                false => device.push(bio),
            }
        }
        self.device.submit_batch(&mut device);
    }

    fn execute(&self, mut bio: Bio) {
        if bio.op == BioOp::Flush || !Self::is_staged(bio.offset) {
            if bio.op == BioOp::Write && self.swallows_errors() {
                return self.device.execute(self.completing_well(bio));
            }
            return self.device.execute(bio);
        }
        let result = self.carry_out(&mut bio);
        bio.complete(result);
    }

    fn read_into(&self, offset: u64, dst: &mut [u8]) -> Result<()> {
        if !Self::is_staged(offset) {
            return self.device.read_into(offset, dst);
        }
        let len = dst.len() as u64;
        self.read_staged(offset, len, |bytes| dst.copy_from_slice(bytes))
    }

    fn write_from(&self, offset: u64, src: &[u8], flags: BioFlags) -> Result<()> {
        if !Self::is_staged(offset) {
            return self.device.write_from(offset, src, flags);
        }
        self.write_staged(offset, src.len() as u64, |room| room.copy_from_slice(src))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_block::RamDevice;

    /// G11 and G12: runs are not adjacent (the story: a reader took two adjacent runs for one, and
    /// got the error that they were forgotten). They are readable until they are completely
    /// forgotten, and while they are pinned.
    #[test]
    fn g11_g12_runs_are_held_until_forgotten() {
        let staging = Staging::new(Arc::new(RamDevice::new(4096)), Plant::default());
        let (first, second) = (staging.take(1024), staging.take(512));
        assert!(first.end < second.start);
        assert!(second.end < staging.put(&[1; 512]).start);
        staging.write_from(first.start + 512, &[7; 512], BioFlags::empty()).unwrap();
        let mut bytes = [0; 512];
        staging.forget(&(first.start..first.start + 512));
        staging.read_into(first.start + 512, &mut bytes).unwrap();
        assert_eq!(bytes, [7; 512]);
        let shared = staging.share(&second).unwrap();
        staging.write_from(second.start, &[5; 512], BioFlags::empty()).unwrap();
        assert_eq!((shared[0], staging.share(&second).unwrap()[511]), (0, 5), "as it was then");
        assert_eq!(staging.share(&(first.start + 512..first.end)).unwrap()[..], [7; 512]);
        let pin = staging.pin(first.start);
        staging.forget(&(first.start + 512..first.end));
        staging.read_into(first.start + 512, &mut bytes).unwrap();
        drop(pin);
        assert!(staging.read_into(first.start, &mut bytes).is_err());
        staging.read_into(second.start, &mut bytes).unwrap();
        assert!(staging.read_into(second.start + 1, &mut bytes).is_err(), "beyond its end");
        staging.write_from(0, &[1; 512], BioFlags::empty()).unwrap();
        staging.read_into(0, &mut bytes).unwrap();
        assert_eq!(bytes, [1; 512], "the device itself");
    }
}
