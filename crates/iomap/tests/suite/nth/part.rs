//! A part of a simulated disk as a device of its own, which counts what changes the medium, and has
//! one of these operations fail.

use forebay_base::{ErrorKind, Result};
use forebay_block::{Bio, BioFlags, BioOp, BlockDevice, Limits};
use forebay_sim::{Fault, FaultRule, SimDisk};
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// The operation that failed.
#[derive(Debug, Clone, Copy)]
pub struct Fired {
    pub op: BioOp,
    pub offset: u64,
    /// Whose part it was on.
    pub number: usize,
}

/// Which operation fails, counted from 1 over all parts.
pub struct NthFault {
    nth: u64,
    seen: AtomicU64,
    fired: Mutex<Option<Fired>>,
}

impl NthFault {
    pub fn new(nth: u64) -> Self {
        Self { nth, seen: AtomicU64::new(0), fired: Mutex::new(None) }
    }

    /// Operations counted.
    pub fn seen(&self) -> u64 {
        self.seen.load(Ordering::Relaxed)
    }

    pub fn fired(&self) -> Option<Fired> {
        *self.fired.lock().unwrap()
    }
}

pub struct Part {
    pub disk: SimDisk,
    pub base: u64,
    pub fault: Arc<NthFault>,
    pub number: usize,
}

impl Part {
    /// The operation is about to be submitted: the world runs one task at a time, so what is
    /// injected now meets this one.
    fn count(&self, op: BioOp, offset: u64) {
        if op == BioOp::Read {
            return;
        }
        if self.fault.seen.fetch_add(1, Ordering::Relaxed) + 1 == self.fault.nth {
            self.disk.inject(FaultRule::on(op, Fault::Fail(ErrorKind::Io)));
            *self.fault.fired.lock().unwrap() = Some(Fired { op, offset, number: self.number });
        }
    }
}

impl BlockDevice for Part {
    fn name(&self) -> String {
        format!("part {}", self.number)
    }
    fn limits(&self) -> Limits {
        self.disk.limits()
    }
    fn size(&self) -> u64 {
        super::PART
    }
    fn submit(&self, mut bio: Bio) {
        self.count(bio.op, bio.offset);
        if bio.op != BioOp::Flush {
            bio.offset += self.base;
        }
        self.disk.submit(bio);
    }
    fn read_into(&self, offset: u64, dst: &mut [u8]) -> Result<()> {
        self.disk.read_into(self.base + offset, dst)
    }
    fn write_from(&self, offset: u64, src: &[u8], flags: BioFlags) -> Result<()> {
        self.count(BioOp::Write, offset);
        self.disk.write_from(self.base + offset, src, flags)
    }
}
