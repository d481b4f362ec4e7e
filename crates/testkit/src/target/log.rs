//! A device that records its requests.
//!
//! Invariants: records are in the order of submission; at capacity the oldest are dropped. Lock
//! rule: the records' lock is not held while a bio is passed on or completed.

use forebay_base::sync::Mutex;
use forebay_base::{ErrorKind, Result};
use forebay_block::bdev::{BlockDevice, DeviceRef};
use forebay_block::bio::{Bio, BioFlags, BioOp};
use std::collections::VecDeque;
use std::sync::Arc;

/// One request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Record {
    /// Operation.
    pub op: BioOp,
    /// How.
    pub flags: BioFlags,
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
    /// How it ended; none while it is in flight.
    pub outcome: Option<std::result::Result<(), ErrorKind>>,
}

#[derive(Default)]
struct Records {
    kept: VecDeque<Record>,
    /// Number of the first record that is kept.
    first: u64,
}

/// A decorator that records requests.
pub struct LogDevice {
    lower: DeviceRef,
    room: usize,
    records: Arc<Mutex<Records>>,
}

impl LogDevice {
    /// A device on top of `lower` that keeps the last `room` records.
    pub fn new(lower: DeviceRef, room: usize) -> Arc<Self> {
        Arc::new(Self { lower, room: room.max(1), records: Arc::default() })
    }

    /// A copy of the records.
    pub fn records(&self) -> Vec<Record> {
        self.records.lock().kept.iter().copied().collect()
    }

    /// Takes the records away; the results of requests still in flight are not recorded any more.
    pub fn take(&self) -> Vec<Record> {
        let mut records = self.records.lock();
        records.first += records.kept.len() as u64;
        records.kept.drain(..).collect()
    }

    fn begin(&self, op: BioOp, flags: BioFlags, offset: u64, len: u64) -> u64 {
        log::trace!("{}: {op:?} {offset}+{len} {flags:?}", self.lower.name());
        let mut records = self.records.lock();
        if records.kept.len() == self.room {
            records.kept.pop_front();
            records.first += 1;
        }
        records.kept.push_back(Record { op, flags, offset, len, outcome: None });
        records.first + records.kept.len() as u64 - 1
    }

    fn end(records: &Mutex<Records>, number: u64, result: &Result<()>) {
        let mut records = records.lock();
        let index = number.checked_sub(records.first);
        if let Some(record) = index.and_then(|i| records.kept.get_mut(i as usize)) {
            record.outcome = Some(result.as_ref().map(|_| ()).map_err(|e| e.kind()));
        }
    }

    fn wrap(&self, mut bio: Bio) -> Bio {
        let number = self.begin(bio.op, bio.flags, bio.offset, bio.len);
        let records = self.records.clone();
        bio.replace_end(|end| {
            Box::new(move |done| {
                Self::end(&records, number, &done.result);
                end(done);
            })
        });
        bio
    }
}

impl BlockDevice for LogDevice {
    forebay_block::delegate_block_device!(
        [lower] limits size is_crowded wait_for_capacity extents attach_thread
    );

    fn name(&self) -> String {
        format!("log({})", self.lower.name())
    }

    fn submit(&self, bio: Bio) {
        self.lower.submit(self.wrap(bio));
    }

    fn submit_batch(&self, bios: &mut Vec<Bio>) {
        let mut ready = bios.drain(..).map(|bio| self.wrap(bio)).collect();
        self.lower.submit_batch(&mut ready);
    }

    fn execute(&self, bio: Bio) {
        self.lower.execute(self.wrap(bio));
    }

    fn read_into(&self, offset: u64, dst: &mut [u8]) -> Result<()> {
        let number = self.begin(BioOp::Read, BioFlags::SYNC, offset, dst.len() as u64);
        let result = self.lower.read_into(offset, dst);
        Self::end(&self.records, number, &result);
        result
    }

    fn write_from(&self, offset: u64, src: &[u8], flags: BioFlags) -> Result<()> {
        let number = self.begin(BioOp::Write, flags, offset, src.len() as u64);
        let result = self.lower.write_from(offset, src, flags);
        Self::end(&self.records, number, &result);
        result
    }
}
