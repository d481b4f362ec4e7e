//! The staging area: content of records that are not durable yet, found at offsets behind the end of every
//! device. As a device it passes on what lies on the real one, so that whoever moves content need not know.
//!
//! ```text
//!   0 ............ device ............ | nothing | BASE ....... staged runs, each at an offset of its own
//! ```
//! Invariants: G1 an offset of the area is given out once. G2 what is staged is read back until it is forgotten,
//! and that is when its record is durable and content is found on the device.
//!
//! Lock: one, a leaf below the state lock.

use forebay_base::sync::Mutex;
use forebay_base::task::BoxFuture;
use forebay_base::{Error, ErrorKind, Result};
use forebay_block::{Bio, BioFlags, BioOp, BlockDevice, DeviceRef, Limits, MapRuns};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// First offset of the area.
pub(crate) const BASE: u64 = 1 << 62;

#[derive(Default)]
struct Area {
    runs: BTreeMap<u64, Arc<Vec<u8>>>,
    next: u64,
}

/// See the module.
pub(crate) struct Staging {
    device: DeviceRef,
    area: Mutex<Area>,
}

impl Staging {
    /// An empty area beside `device`.
    pub fn new(device: DeviceRef) -> Self {
        Self { device, area: Mutex::new(Area { runs: BTreeMap::new(), next: BASE }) }
    }

    /// Whether an offset lies in the area.
    pub fn is_staged(offset: u64) -> bool {
        offset >= BASE
    }

    /// Room for `len` bytes, zeros until they are written (G1).
    pub fn take(&self, len: u64) -> Range<u64> {
        let mut area = self.area.lock();
        let start = area.next;
        area.next += len;
        area.runs.insert(start, Arc::new(vec![0; len as usize]));
        start..start + len
    }

    /// The bytes of a run that was taken.
    pub fn bytes(&self, run: &Range<u64>) -> Option<Arc<Vec<u8>>> {
        self.area.lock().runs.get(&run.start).cloned()
    }

    /// Nobody looks for it here any more.
    pub fn forget(&self, run: &Range<u64>) {
        self.area.lock().runs.remove(&run.start);
    }

    /// Runs that are held.
    #[cfg(test)]
    pub fn runs(&self) -> usize {
        self.area.lock().runs.len()
    }

    fn with_run<T>(
        &self,
        offset: u64,
        len: u64,
        act: impl FnOnce(&mut Arc<Vec<u8>>, usize) -> T,
    ) -> Result<T> {
        let mut area = self.area.lock();
        let gone = || Error::new(ErrorKind::Io, "staged content", "it is not held any more");
        let (start, run) = area.runs.range_mut(..=offset).next_back().ok_or_else(gone)?;
        if offset + len > start + run.len() as u64 {
            return Err(gone());
        }
        Ok(act(run, (offset - start) as usize))
    }

    fn carry_out(&self, bio: &mut Bio) -> Result<()> {
        let (offset, len) = (bio.offset, bio.len);
        match bio.op {
            BioOp::Write => self.with_run(offset, len, |run, at| {
                let room = &mut Arc::make_mut(run)[at..at + len as usize];
                bio.data.copy_out(0, room);
            }),
            BioOp::Read => self.with_run(offset, len, |run, at| {
                bio.data.copy_in(0, &run[at..at + len as usize]);
            }),
            _ => Err(Error::new(ErrorKind::Unsupported, "staged content", "reads and writes only")),
        }
    }
}

impl BlockDevice for Staging {
    fn name(&self) -> String {
        self.device.name()
    }

    fn limits(&self) -> Limits {
        self.device.limits()
    }

    fn size(&self) -> u64 {
        self.device.size()
    }

    fn submit(&self, mut bio: Bio) {
        if bio.op == BioOp::Flush || !Self::is_staged(bio.offset) {
            return self.device.submit(bio);
        }
        let result = self.carry_out(&mut bio);
        bio.complete(result);
    }

    fn submit_batch(&self, bios: &mut Vec<Bio>) {
        let mut device = Vec::with_capacity(bios.len());
        for bio in bios.drain(..) {
            match bio.op != BioOp::Flush && Self::is_staged(bio.offset) {
                true => self.submit(bio),
                false => device.push(bio),
            }
        }
        self.device.submit_batch(&mut device);
    }

    fn is_crowded(&self) -> bool {
        self.device.is_crowded()
    }

    fn room(&self) -> BoxFuture<'_, ()> {
        self.device.room()
    }

    fn execute(&self, mut bio: Bio) {
        if bio.op == BioOp::Flush || !Self::is_staged(bio.offset) {
            return self.device.execute(bio);
        }
        let result = self.carry_out(&mut bio);
        bio.complete(result);
    }

    fn read_into(&self, offset: u64, dst: &mut [u8]) -> Result<()> {
        if !Self::is_staged(offset) {
            return self.device.read_into(offset, dst);
        }
        let len = dst.len();
        self.with_run(offset, len as u64, |run, at| dst.copy_from_slice(&run[at..at + len]))
    }

    fn write_from(&self, offset: u64, src: &[u8], flags: BioFlags) -> Result<()> {
        if !Self::is_staged(offset) {
            return self.device.write_from(offset, src, flags);
        }
        let len = src.len();
        self.with_run(offset, len as u64, |run, at| {
            Arc::make_mut(run)[at..at + len].copy_from_slice(src);
        })
    }

    fn extents(&self, offset: u64, len: u64, max: usize) -> BoxFuture<'static, Result<MapRuns>> {
        self.device.extents(offset, len, max)
    }

    fn attach_thread(&self) -> Option<Box<dyn forebay_base::task::LocalQueue>> {
        self.device.attach_thread()
    }
}
