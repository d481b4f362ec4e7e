//! The verifying device: records the CRC-32C of every block written through it.
//!
//! It checksums a write at submission and again at completion. If the bytes changed in between, it
//! counts and logs a mismatch, and the block's content becomes unknown. A read of a known block
//! must return the same bytes, else it fails with `Corrupt`. So this device requires stable writes.
//!
//! Invariants: K1 a block's checksum is known only if exactly one write to it was in flight,
//! succeeded, and did not change meanwhile. K2 a read is verified only for blocks that no write
//! touched between its submission and its completion. Lock rule: one shard at a time; none while a
//! bio is passed on or completed.

use forebay_base::buf::DataRef;
use forebay_base::checksum::crc32c;
use forebay_base::sync::Mutex;
use forebay_base::{Error, ErrorKind, Result};
use forebay_block::bdev::{BlockDevice, DeviceRef, Limits, StableWrites};
use forebay_block::bio::{Bio, BioFlags, BioOp, Completion};
use forebay_block::check::check_bio;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

const SHARDS: u64 = 64;

#[derive(Default, Clone, Copy)]
struct Entry {
    crc: Option<u32>,
    /// Writes submitted so far.
    version: u32,
    writers: u32,
    /// Writes have overlapped since the block last had none in flight.
    raced: bool,
}

/// Counters of the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ChecksumStats {
    /// Blocks of writes that were compared at completion.
    pub checked_writes: u64,
    /// Of these, those whose bytes had changed since submission.
    pub mismatches: u64,
    /// Blocks whose read was compared with the last write.
    pub checked_reads: u64,
    /// Of these, those that differed.
    pub corrupt_reads: u64,
}

#[derive(Default)]
struct Counters {
    checked_writes: AtomicU64,
    mismatches: AtomicU64,
    checked_reads: AtomicU64,
    corrupt_reads: AtomicU64,
}

struct Table {
    block: u64,
    shards: Vec<Mutex<HashMap<u64, Entry>>>,
    counters: Counters,
}

/// A decorator that verifies reads against the checksums of earlier writes.
pub struct ChecksumDevice {
    lower: DeviceRef,
    table: Arc<Table>,
    required: AtomicBool,
}

impl Table {
    fn with<T>(&self, block: u64, f: impl FnOnce(&mut Entry) -> T) -> T {
        // Neighbours share a shard, 64 at a time.
        let shard = &self.shards[((block / 64) % SHARDS) as usize];
        f(shard.lock().entry(block).or_default())
    }

    /// CRC of each block of the data.
    fn sums(&self, data: &mut DataRef, len: u64) -> Vec<u32> {
        let mut bytes = vec![0; self.block as usize];
        let sum = |at: u64| {
            let n = data.copy_out(at as usize, &mut bytes);
            crc32c(&bytes[..n])
        };
        (0..len).step_by(self.block as usize).map(sum).collect()
    }

    fn sums_of(&self, bytes: &[u8]) -> Vec<u32> {
        bytes.chunks(self.block as usize).map(crc32c).collect()
    }

    fn begin_write(&self, offset: u64, count: usize) {
        for block in self.blocks(offset, count) {
            self.with(block, |e| {
                e.raced |= e.writers > 0;
                e.writers += 1;
                e.version = e.version.wrapping_add(1);
                e.crc = None;
            });
        }
    }

    /// A write has ended: `sums` are the checksums on the device now, if known.
    fn end_write(&self, offset: u64, count: usize, sums: Option<&[Option<u32>]>) {
        for (i, block) in self.blocks(offset, count).enumerate() {
            self.with(block, |e| {
                e.writers -= 1;
                if !e.raced {
                    e.crc = sums.and_then(|s| s[i]);
                }
                debug_assert!(
                    e.crc.is_none() || e.writers == 0,
                    "K1: block {block} is known while {} write it",
                    e.writers
                );
                e.raced &= e.writers > 0;
            });
        }
    }

    /// Checksum and version of each block before a read.
    fn begin_read(&self, offset: u64, count: usize) -> Vec<(Option<u32>, u32)> {
        self.blocks(offset, count).map(|b| self.with(b, |e| (e.crc, e.version))).collect()
    }

    /// Compares the blocks read with the known checksums.
    fn end_read(&self, offset: u64, before: &[(Option<u32>, u32)], sums: &[u32]) -> Result<()> {
        let mut bad = None;
        for (i, block) in self.blocks(offset, before.len()).enumerate() {
            let (Some(want), version) = before[i] else { continue };
            if self.with(block, |e| e.version != version) {
                continue;
            }
            self.counters.checked_reads.fetch_add(1, Ordering::Relaxed);
            if sums[i] != want {
                self.counters.corrupt_reads.fetch_add(1, Ordering::Relaxed);
                bad.get_or_insert((block, want, sums[i]));
            }
        }
        let Some((block, want, got)) = bad else { return Ok(()) };
        let text = format!("block {block} has checksum {got:08x}, written was {want:08x}");
        Err(Error::new(ErrorKind::Corrupt, "read", text).with_range(block * self.block, self.block))
    }

    /// Compares a write's bytes at completion with those at submission.
    fn settle(&self, offset: u64, before: &[u32], after: &[u32]) -> Vec<Option<u32>> {
        let mut known = Vec::with_capacity(before.len());
        let mut bad = 0;
        for (old, new) in before.iter().zip(after) {
            bad += u64::from(old != new);
            known.push((old == new).then_some(*old));
        }
        self.counters.checked_writes.fetch_add(before.len() as u64, Ordering::Relaxed);
        if bad > 0 {
            self.counters.mismatches.fetch_add(bad, Ordering::Relaxed);
            log::warn!("{bad} blocks of the write at {offset} changed while it was in flight");
        }
        known
    }

    fn blocks(&self, offset: u64, count: usize) -> impl Iterator<Item = u64> + use<> {
        let first = offset / self.block;
        first..first + count as u64
    }
}

impl ChecksumDevice {
    /// A device on top of `lower`; its checksums cover blocks of the size that `lower` addresses
    /// now.
    pub fn new(lower: DeviceRef) -> Arc<Self> {
        let table = Table {
            block: u64::from(lower.limits().logical_block),
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            counters: Counters::default(),
        };
        Arc::new(Self { lower, table: Arc::new(table), required: AtomicBool::new(true) })
    }

    /// Whether to require stable writes, effective at once. Turning it off shows the mismatches
    /// that they prevent.
    pub fn set_required(&self, required: bool) {
        self.required.store(required, Ordering::Release);
    }

    /// The counters so far.
    pub fn stats(&self) -> ChecksumStats {
        let get = |c: &AtomicU64| c.load(Ordering::Relaxed);
        let c = &self.table.counters;
        ChecksumStats {
            checked_writes: get(&c.checked_writes),
            mismatches: get(&c.mismatches),
            checked_reads: get(&c.checked_reads),
            corrupt_reads: get(&c.corrupt_reads),
        }
    }

    /// Makes the bio verify itself. The caller has checked its range and data.
    fn wrap(&self, bio: &mut Bio) {
        let table = self.table.clone();
        let (offset, len, op) = (bio.offset, bio.len, bio.op);
        let count = len.div_ceil(table.block) as usize;
        if op == BioOp::Read {
            let before = table.begin_read(offset, count);
            bio.replace_end(|end| {
                Box::new(move |mut done: Completion| {
                    if done.result.is_ok() {
                        let sums = table.sums(&mut done.data, len);
                        done.result = table.end_read(offset, &before, &sums);
                    }
                    end(done);
                })
            });
            return;
        }
        let sums = match op {
            BioOp::Write => table.sums(&mut bio.data, len),
            BioOp::WriteZeroes => vec![crc32c(&vec![0; table.block as usize]); count],
            _ => Vec::new(),
        };
        table.begin_write(offset, count);
        bio.replace_end(|end| {
            Box::new(move |mut done: Completion| {
                let known = match op {
                    BioOp::Write => {
                        let after = table.sums(&mut done.data, len);
                        Some(table.settle(offset, &sums, &after))
                    }
                    BioOp::WriteZeroes => Some(sums.into_iter().map(Some).collect()),
                    _ => None,
                };
                let known = known.filter(|_| done.result.is_ok());
                table.end_write(offset, count, known.as_deref());
                end(done);
            })
        });
    }

    fn prepare(&self, mut bio: Bio) -> Option<Bio> {
        if let Err(e) = check_bio(&mut bio, &self.limits(), self.size()) {
            bio.complete(Err(e));
            return None;
        }
        if bio.op != BioOp::Flush {
            self.wrap(&mut bio);
        }
        Some(bio)
    }
}

impl BlockDevice for ChecksumDevice {
    forebay_block::delegate_block_device!([lower] size is_crowded wait_for_capacity extents attach_thread);

    fn name(&self) -> String {
        format!("checksum({})", self.lower.name())
    }

    fn limits(&self) -> Limits {
        let mut limits = self.lower.limits();
        limits.logical_block = limits.logical_block.max(self.table.block as u32);
        if self.required.load(Ordering::Acquire) {
            limits.stable_writes = StableWrites { required: true, reason: "checksum target" };
        }
        limits
    }

    fn submit(&self, bio: Bio) {
        if let Some(bio) = self.prepare(bio) {
            self.lower.submit(bio);
        }
    }

    fn submit_batch(&self, bios: &mut Vec<Bio>) {
        let mut ready = bios.drain(..).filter_map(|bio| self.prepare(bio)).collect();
        self.lower.submit_batch(&mut ready);
    }

    fn execute(&self, bio: Bio) {
        if let Some(bio) = self.prepare(bio) {
            self.lower.execute(bio);
        }
    }

    fn read_into(&self, offset: u64, dst: &mut [u8]) -> Result<()> {
        let count = dst.len().div_ceil(self.table.block as usize);
        let before = self.table.begin_read(offset, count);
        self.lower.read_into(offset, dst)?;
        self.table.end_read(offset, &before, &self.table.sums_of(dst))
    }

    fn write_from(&self, offset: u64, src: &[u8], flags: BioFlags) -> Result<()> {
        let sums = self.table.sums_of(src);
        self.table.begin_write(offset, sums.len());
        let result = self.lower.write_from(offset, src, flags);
        let known = self.table.settle(offset, &sums, &self.table.sums_of(src));
        let known = result.is_ok().then_some(&known[..]);
        self.table.end_write(offset, sums.len(), known);
        result
    }
}
