//! A device that shows other limits than the one below, and enforces them.
//!
//! Invariant: units and alignments only become stricter than below, features only fewer. The need
//! for stable writes may be forced either way, to measure its cost.

use forebay_base::sync::Mutex;
use forebay_base::{Error, ErrorKind, Result};
use forebay_block::bdev::{BlockDevice, DeviceRef, Limits, StableWrites};
use forebay_block::bio::{Bio, BioFlags, BioOp, verb};
use forebay_block::check::{check_bio, check_range};
use std::sync::Arc;

/// Limits to show instead; `None` shows the limit below. Sizes in bytes, powers of two.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LimitsOverride {
    /// Larger logical block.
    pub logical_block: Option<u32>,
    /// Larger physical block.
    pub physical_block: Option<u32>,
    /// Stricter alignment of memory.
    pub memory_align: Option<u32>,
    /// Shorter transfers.
    pub max_transfer: Option<u32>,
    /// Fewer segments.
    pub max_segments: Option<u32>,
    /// Stable writes, forced on or off.
    pub stable_writes: Option<bool>,
    /// Hides discard: it does nothing.
    pub no_discard: bool,
    /// Hides fast zeroing: `FAST_ONLY` fails.
    pub no_write_zeroes: bool,
    /// Refuses writes.
    pub read_only: bool,
}

/// A decorator that overrides limits.
pub struct LimitsDevice {
    lower: DeviceRef,
    over: Mutex<LimitsOverride>,
}

impl LimitsDevice {
    /// Stands on `lower`.
    pub fn new(lower: DeviceRef, over: LimitsOverride) -> Arc<Self> {
        Arc::new(Self { lower, over: Mutex::new(over) })
    }

    /// Changes the shown limits, at once.
    pub fn set(&self, over: LimitsOverride) {
        *self.over.lock() = over;
    }

    fn refuse(&self, bio: &mut Bio) -> Result<()> {
        let limits = self.limits();
        check_bio(bio, &limits, self.size())?;
        let segments = bio.data.segments();
        let align = limits.memory_align as usize;
        if segments.iter().any(|s| !(s.ptr as usize).is_multiple_of(align)) {
            let text = format!("memory has to be aligned to {align} bytes");
            return Err(Error::new(ErrorKind::Unaligned, verb(bio.op), text));
        }
        if bio.len > u64::from(limits.max_transfer) && matches!(bio.op, BioOp::Read | BioOp::Write)
        {
            let text = format!("longer than {} bytes", limits.max_transfer);
            return Err(Error::new(ErrorKind::InvalidInput, verb(bio.op), text));
        }
        if segments.len() > limits.max_segments as usize {
            let text = format!("more than {} segments", limits.max_segments);
            return Err(Error::new(ErrorKind::InvalidInput, verb(bio.op), text));
        }
        let fast = bio.flags.contains(BioFlags::FAST_ONLY);
        if bio.op == BioOp::WriteZeroes && fast && !limits.write_zeroes {
            return Err(Error::new(ErrorKind::Unsupported, verb(bio.op), "not fast"));
        }
        Ok(())
    }

    fn pass(&self, mut bio: Bio) -> Option<Bio> {
        let refused = self.refuse(&mut bio);
        let hidden = bio.op == BioOp::Discard && !self.limits().discard;
        if refused.is_err() || hidden {
            bio.complete(refused);
            return None;
        }
        Some(bio)
    }

    fn check(&self, op: BioOp, offset: u64, bytes: &[u8]) -> Result<()> {
        let limits = self.limits();
        check_range(op, offset, bytes.len() as u64, &limits, self.size())?;
        let align = limits.memory_align as usize;
        if !(bytes.as_ptr() as usize).is_multiple_of(align) {
            let text = format!("memory has to be aligned to {align} bytes");
            return Err(Error::new(ErrorKind::Unaligned, verb(op), text));
        }
        Ok(())
    }
}

impl BlockDevice for LimitsDevice {
    forebay_block::delegate_block_device!([lower] size is_crowded wait_for_capacity extents attach_thread);

    fn name(&self) -> String {
        format!("limits({})", self.lower.name())
    }

    fn limits(&self) -> Limits {
        let (lower, over) = (self.lower.limits(), *self.over.lock());
        let larger = |below: u32, over: Option<u32>| below.max(over.unwrap_or(below));
        let smaller = |below: u32, over: Option<u32>| below.min(over.unwrap_or(below));
        let stable = |required| StableWrites { required, reason: "forced by the limits target" };
        Limits {
            logical_block: larger(lower.logical_block, over.logical_block),
            physical_block: larger(lower.physical_block, over.physical_block),
            memory_align: larger(lower.memory_align, over.memory_align),
            max_transfer: smaller(lower.max_transfer, over.max_transfer),
            max_segments: smaller(lower.max_segments, over.max_segments),
            stable_writes: over.stable_writes.map_or(lower.stable_writes, stable),
            discard: lower.discard && !over.no_discard,
            write_zeroes: lower.write_zeroes && !over.no_write_zeroes,
            read_only: lower.read_only || over.read_only,
        }
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
        self.check(BioOp::Read, offset, dst)?;
        self.lower.read_into(offset, dst)
    }

    fn write_from(&self, offset: u64, src: &[u8], flags: BioFlags) -> Result<()> {
        self.check(BioOp::Write, offset, src)?;
        self.lower.write_from(offset, src, flags)
    }
}
