//! A device that fails requests on demand.
//!
//! Invariant: a request that fails by injection does not reach the device below. Lock rule: the
//! faults' lock is not held while a bio is passed on or completed.

use forebay_base::sync::Mutex;
use forebay_base::{Error, Result};
use forebay_block::bdev::{BlockDevice, DeviceRef};
use forebay_block::bio::{Bio, BioFlags, BioOp, verb};
use std::io;
use std::sync::Arc;

/// Which of the matching requests fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When {
    /// All.
    Always,
    /// The request with this number, counted from 1.
    Nth(u64),
    /// Each request whose number is a multiple of this.
    Every(u64),
}

/// An injected fault: which requests fail, and how.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// Operations; empty means all.
    pub ops: Vec<BioOp>,
    /// Only requests that touch these bytes, `(offset, length)`. A flush touches none.
    pub range: Option<(u64, u64)>,
    /// Which of them.
    pub when: When,
    /// Once a request has failed, each further match fails.
    pub sticky: bool,
    /// The system's error number.
    pub errno: i32,
}

impl Default for Fault {
    fn default() -> Self {
        Self {
            ops: Vec::new(),
            range: None,
            when: When::Always,
            sticky: false,
            errno: rustix::io::Errno::IO.raw_os_error(),
        }
    }
}

impl Fault {
    fn matches(&self, op: BioOp, offset: u64, len: u64) -> bool {
        let touches = |(start, length): (u64, u64)| {
            op != BioOp::Flush
                && offset < start.saturating_add(length)
                && start < offset.saturating_add(len)
        };
        (self.ops.is_empty() || self.ops.contains(&op)) && self.range.is_none_or(touches)
    }
}

struct Armed {
    id: u64,
    fault: Fault,
    seen: u64,
    failed: bool,
}

#[derive(Default)]
struct State {
    faults: Vec<Armed>,
    next: u64,
    injected: u64,
}

/// A decorator that injects faults.
pub struct ErrorDevice {
    lower: DeviceRef,
    state: Mutex<State>,
}

impl ErrorDevice {
    /// Stands on `lower`; nothing fails yet.
    pub fn new(lower: DeviceRef) -> Arc<Self> {
        Arc::new(Self { lower, state: Mutex::default() })
    }

    /// Arms a fault, at once. Returns its number.
    pub fn arm(&self, fault: Fault) -> u64 {
        let mut state = self.state.lock();
        state.next += 1;
        let id = state.next;
        state.faults.push(Armed { id, fault, seen: 0, failed: false });
        id
    }

    /// Takes a fault away.
    pub fn disarm(&self, id: u64) {
        self.state.lock().faults.retain(|armed| armed.id != id);
    }

    /// Takes all faults away.
    pub fn clear(&self) {
        self.state.lock().faults.clear();
    }

    /// Requests that failed by injection.
    pub fn injected(&self) -> u64 {
        self.state.lock().injected
    }

    fn check(&self, op: BioOp, offset: u64, len: u64) -> Result<()> {
        let mut state = self.state.lock();
        let mut errno = None;
        for armed in state.faults.iter_mut().filter(|a| a.fault.matches(op, offset, len)) {
            armed.seen += 1;
            let hit = match armed.fault.when {
                When::Always => true,
                When::Nth(n) => armed.seen == n,
                When::Every(n) => armed.seen.is_multiple_of(n.max(1)),
            };
            if hit || (armed.failed && armed.fault.sticky) {
                armed.failed = true;
                errno.get_or_insert(armed.fault.errno);
            }
        }
        let Some(errno) = errno else { return Ok(()) };
        state.injected += 1;
        Err(Error::from_io(verb(op), io::Error::from_raw_os_error(errno)).with_range(offset, len))
    }

    fn pass(&self, bio: Bio) -> Option<Bio> {
        match self.check(bio.op, bio.offset, bio.len) {
            Ok(()) => Some(bio),
            Err(e) => {
                bio.complete(Err(e));
                None
            }
        }
    }
}

impl BlockDevice for ErrorDevice {
    forebay_block::delegate_block_device!(
        [lower] limits size is_crowded wait_for_capacity extents attach_thread
    );

    fn name(&self) -> String {
        format!("error({})", self.lower.name())
    }

    fn submit(&self, bio: Bio) {
        if let Some(bio) = self.pass(bio) {
            self.lower.submit(bio);
        }
    }

    fn submit_batch(&self, bios: &mut Vec<Bio>) {
        let mut ready = bios.drain(..).filter_map(|bio| self.pass(bio)).collect();
        self.lower.submit_batch(&mut ready);
    }

    fn execute(&self, bio: Bio) {
        if let Some(bio) = self.pass(bio) {
            self.lower.execute(bio);
        }
    }

    fn read_into(&self, offset: u64, dst: &mut [u8]) -> Result<()> {
        self.check(BioOp::Read, offset, dst.len() as u64)?;
        self.lower.read_into(offset, dst)
    }

    fn write_from(&self, offset: u64, src: &[u8], flags: BioFlags) -> Result<()> {
        self.check(BioOp::Write, offset, src.len() as u64)?;
        self.lower.write_from(offset, src, flags)
    }
}
