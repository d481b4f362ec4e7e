//! The settings of a simulated disk: which requests it refuses, how long they take, and what they
//! do to the sectors.
//!
//! No locks: settings do not change.

use crate::fault::Fault;
use crate::image::{Change, split};
use forebay_base::world::{Nanos, split_mix};
use forebay_base::{Error, ErrorKind, Result};
use forebay_block::bdev::{Limits, StableWrites};
use forebay_block::bio::{Bio, BioFlags, BioOp};

/// Longest segment list.
const MAX_SEGMENTS: usize = 1024;

/// The settings of a simulated disk.
#[derive(Debug, Clone)]
pub struct SimConfig {
    /// Size in bytes; a multiple of `sector`.
    pub size: u64,
    /// Sector size in bytes, 512 or 4096: logical and physical block, and the unit that is never
    /// torn by a power loss.
    pub sector: u32,
    /// Completed writes stay volatile until a flush or FUA. Without it each one is durable.
    pub volatile_cache: bool,
    /// Shortest and longest time of a request, nanoseconds; one in 64 takes up to 10 times as long.
    pub latency: (Nanos, Nanos),
    /// Report that bytes must not change in flight, and count those that do.
    pub stable_writes: bool,
    /// Longest transfer, bytes.
    pub max_transfer: u32,
    /// Required alignment of memory, bytes.
    pub memory_align: u32,
    /// Discard is supported.
    pub discard: bool,
    /// Discarded sectors read as zeros; otherwise as zeros, old content or garbage, by the seed.
    pub discard_zeroes: bool,
    /// WriteZeroes is fast; otherwise `FAST_ONLY` is refused.
    pub write_zeroes: bool,
    /// Writes are refused.
    pub read_only: bool,
}

impl Default for SimConfig {
    fn default() -> Self {
        Self {
            size: 64 << 20,
            sector: 512,
            volatile_cache: true,
            latency: (20_000, 200_000),
            stable_writes: false,
            max_transfer: 1 << 20,
            memory_align: 512,
            discard: true,
            discard_zeroes: false,
            write_zeroes: true,
            read_only: false,
        }
    }
}

impl SimConfig {
    /// The limits that it reports to the layers above.
    pub(crate) fn limits(&self) -> Limits {
        let reason = if self.stable_writes { "simulated need" } else { "none simulated" };
        Limits {
            logical_block: self.sector,
            physical_block: self.sector,
            memory_align: self.memory_align,
            max_transfer: self.max_transfer,
            max_segments: MAX_SEGMENTS as u32,
            stable_writes: StableWrites { required: self.stable_writes, reason },
            discard: self.discard,
            write_zeroes: self.write_zeroes,
            read_only: self.read_only,
        }
    }

    /// Refuses requests that violate the rules of devices.
    pub(crate) fn check(&self, op: BioOp, flags: BioFlags, offset: u64, len: u64) -> Result<()> {
        if op == BioOp::Flush {
            return Ok(());
        }
        let sector = u64::from(self.sector);
        if !offset.is_multiple_of(sector) || !len.is_multiple_of(sector) {
            return refuse(ErrorKind::Unaligned, "offset or length is not in whole sectors");
        }
        if offset.checked_add(len).is_none_or(|end| end > self.size) {
            return refuse(ErrorKind::OutOfRange, "outside the disk");
        }
        let transfers = matches!(op, BioOp::Read | BioOp::Write);
        if transfers && len > u64::from(self.max_transfer) {
            return refuse(ErrorKind::InvalidInput, "longer than max_transfer");
        }
        if op != BioOp::Read && self.read_only {
            return refuse(ErrorKind::ReadOnly, "the disk is read-only");
        }
        let fast_only = flags.contains(BioFlags::FAST_ONLY) && !self.write_zeroes;
        if op == BioOp::Discard && !self.discard || op == BioOp::WriteZeroes && fast_only {
            return refuse(ErrorKind::Unsupported, "not offered");
        }
        Ok(())
    }

    pub(crate) fn check_memory(&self, bio: &mut Bio) -> Result<()> {
        if !matches!(bio.op, BioOp::Read | BioOp::Write) {
            return Ok(());
        }
        let align = self.memory_align as usize;
        let segments = bio.data.segments();
        if segments.iter().map(|s| s.len as u64).sum::<u64>() != bio.len {
            return refuse(ErrorKind::InvalidInput, "length and data differ (B3)");
        }
        if segments.iter().any(|s| s.ptr.addr() % align != 0) {
            return refuse(ErrorKind::Unaligned, "memory is not aligned");
        }
        if segments.len() > MAX_SEGMENTS {
            return refuse(ErrorKind::InvalidInput, "too many segments");
        }
        Ok(())
    }

    /// How long a request takes.
    pub(crate) fn latency(&self, rng: &mut u64, len: u64, fault: Option<Fault>) -> Nanos {
        let (min, max) = self.latency;
        let mut time = min + split_mix(rng) % (max.saturating_sub(min) + 1);
        if split_mix(rng).is_multiple_of(64) {
            time += time * (split_mix(rng) % 10);
        }
        let slow = if let Some(Fault::Slow(extra)) = fault { extra } else { 0 };
        // 2 GiB/s.
        time + len / 2 + slow
    }
}

/// What a write, zeroing or discard does to the sectors.
pub(crate) fn changes_of(
    config: &SimConfig,
    rng: &mut u64,
    op: BioOp,
    flags: BioFlags,
    offset: u64,
    len: u64,
    copy: impl FnOnce(&mut [u8]),
) -> Vec<Change> {
    let sector = config.sector as usize;
    let first = offset / sector as u64;
    let holes = || (first..first + len / sector as u64).map(|n| (n, None)).collect();
    let filled = |bytes| split(first, bytes, sector);
    match op {
        BioOp::Read | BioOp::Flush => Vec::new(),
        BioOp::Write => {
            let mut data = vec![0; len as usize];
            copy(&mut data);
            filled(data)
        }
        BioOp::WriteZeroes if flags.contains(BioFlags::NO_UNMAP) => filled(vec![0; len as usize]),
        BioOp::WriteZeroes => holes(),
        BioOp::Discard => match split_mix(rng) % 3 {
            0 if !config.discard_zeroes => Vec::new(),
            1 if !config.discard_zeroes => filled((0..len).map(|_| split_mix(rng) as u8).collect()),
            _ => holes(),
        },
    }
}

/// An error of the submission itself.
pub(crate) fn refuse(kind: ErrorKind, why: &str) -> Result<()> {
    Err(Error::new(kind, "submit", why))
}
