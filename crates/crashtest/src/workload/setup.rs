//! The setup of a workload: its volume, its disk, and the faults.
//!
//! No locks.

use forebay_base::sim_world::SimWorld;
use forebay_base::world::{WorldRef, split_mix};
use forebay_base::{Error, ErrorKind, IoFlags};
use forebay_block::{BioOp, DeviceRef};
use forebay_cache::{Config, PageCache};
use forebay_lfs::fault::{Plant, Planted};
use forebay_lfs::format::superblock::{SLOT_BYTES, SLOTS};
use forebay_lfs::{AllocMode, CreateOptions, OpenOptions, Volume};
use forebay_sim::{Fault, FaultRule, SimConfig, SimDisk};
use forebay_testkit::fs_check::Op;
use forebay_vfs::{ManualClock, Timestamp};
use std::ops::Range;
use std::sync::Arc;

/// Bytes of a crowded volume: 26 segments.
const CROWDED_BYTES: u64 = 1696 << 10;

/// One way to set up a run; drawn from the seed.
#[derive(Debug, Clone)]
pub struct Setup {
    /// Decides the schedule, and what is generated.
    pub seed: u64,
    /// Of the volume, bytes.
    pub block_bytes: u32,
    /// Sector of the disk, which is never torn, bytes.
    pub sector: u32,
    /// The volume may write a log record with FUA, instead of a flush after the record.
    pub fua: bool,
    /// The fault to inject.
    pub plant: Option<Planted>,
    /// Longest content in a record, bytes.
    pub inline_max: u32,
    /// How blocks are allocated.
    pub alloc: AllocMode,
    /// Names in memory, bytes; with 0 every operation loads what it needs.
    pub inode_cache_bytes: usize,
    /// Files have content.
    pub content: bool,
    /// Largest end of a range, bytes.
    pub file_bytes: u64,
    /// Of the disk, bytes.
    pub volume_bytes: u64,
    /// The log starts near the end of its segment.
    pub near_end: bool,
    /// Longest log behind a checkpoint, bytes.
    pub checkpoint_bytes: u64,
    /// Steps.
    pub steps: usize,
    /// Rules by which requests to the disk fail; mostly flushes and writes.
    pub failing: Vec<FaultRule>,
    /// A concurrent task syncs everything now and then.
    pub syncs_concurrently: bool,
    /// The volume discards freed blocks.
    pub discard: bool,
    /// The volume begins nearly full, with little live in each segment, and is cleaned.
    pub crowded: bool,
    /// Blocks of files have checksums.
    pub sums: bool,
    /// Writes carry `DIRECT`, `UNCACHED`, `DSYNC` or several of these.
    pub flags: bool,
    /// Checkpointed content of files decays at random while the workload runs, one bit at a time.
    pub rot: bool,
    /// The host allocates this many more bytes to the image, and then refuses writes.
    pub host_bytes: Option<u64>,
    /// Before this step the disk becomes healthy again.
    pub healed_at: Option<usize>,
    /// Half way through the workload the volume is closed, grown to this size, and opened again.
    pub grown_bytes: Option<u64>,
    /// Lives of one workload, at most.
    pub lives: u32,
    /// Writes in flight at the kill of the process complete during the next life.
    pub late: bool,
    /// States are also recovered with the newest slots of the superblock damaged.
    pub older: bool,
    /// Volume and files are large: fewer states of each moment, and fewer moments.
    pub large: bool,
    /// Bound of the memory of changes until a checkpoint has merged them, bytes.
    pub overlay_bytes: u64,
}

impl Setup {
    /// Names only, 40 steps.
    pub fn from_seed(seed: u64) -> Self {
        let mut rng = seed ^ 0x5eed;
        let mut pick = |n: u64| split_mix(&mut rng) % n;
        Self {
            seed,
            block_bytes: 512 << pick(4),
            sector: 512,
            fua: pick(2) == 0,
            inline_max: [0, 4096, 64 << 10][pick(3) as usize],
            inode_cache_bytes: [0, 3000, 1 << 20][pick(3) as usize],
            plant: None,
            alloc: AllocMode::ALL[pick(3) as usize],
            content: false,
            file_bytes: 48 << 10,
            volume_bytes: 1 << 20,
            near_end: seed.is_multiple_of(2),
            checkpoint_bytes: [2 << 30, 4096, 16 << 10][pick(3) as usize],
            steps: 40,
            failing: Vec::new(),
            syncs_concurrently: true,
            discard: seed % 5 == 3,
            crowded: false,
            sums: true,
            flags: false,
            rot: false,
            host_bytes: None,
            healed_at: None,
            grown_bytes: None,
            lives: 2,
            late: false,
            older: false,
            large: false,
            overlay_bytes: 32 << 20,
        }
    }

    /// With content.
    pub fn with_content(seed: u64) -> Self {
        Self { content: true, volume_bytes: 2 << 20, steps: 50, ..Self::from_seed(seed) }
    }

    /// A setup with content, on a volume that is nearly full and has to be cleaned.
    pub fn crowded(seed: u64) -> Self {
        let plain = Self::with_content(seed);
        Self {
            block_bytes: plain.block_bytes.max(1024),
            volume_bytes: CROWDED_BYTES,
            near_end: false,
            discard: seed.is_multiple_of(2),
            crowded: true,
            ..plain
        }
    }

    /// Whether the disk fails during the open too, not only after it. Few setups do so, because a
    /// volume that does not open shows little.
    pub fn fails_early(&self) -> bool {
        self.seed.is_multiple_of(8)
    }

    /// This setup on a disk that sometimes fails: one flush and one write, two flushes, or two
    /// writes and a flush.
    pub fn failing(mut self) -> Self {
        let fail = Fault::Fail(ErrorKind::Io);
        let flush = FaultRule::on(BioOp::Flush, fail).nth(2 + self.seed % 3);
        let write = FaultRule::on(BioOp::Write, fail).nth(2 + self.seed % 5);
        self.failing = match self.seed % 3 {
            0 => vec![flush, write],
            1 => vec![flush.times(2)],
            _ => vec![write.times(2), FaultRule::on(BioOp::Flush, fail).nth(6)],
        };
        self
    }

    /// The range of content, log and tree on the disk: between the slots of the superblock.
    pub fn behind_slots(&self) -> Range<u64> {
        let slots = u64::from(SLOTS / 2) * SLOT_BYTES as u64;
        slots..self.volume_bytes - slots
    }

    /// Bytes of a segment of the volume.
    pub fn segment_bytes(&self) -> u64 {
        if self.large { 256 << 10 } else { 64 << 10 }
    }

    /// Whether the disk never fails, decays or refuses a request.
    pub fn is_healthy(&self) -> bool {
        self.failing.is_empty() && self.host_bytes.is_none() && !self.rot
    }

    /// Adds flags to a write. The same write always gets the same flags, and one that bypasses the
    /// cache is aligned.
    pub fn flagged(&self, op: Op) -> (Op, IoFlags) {
        let Op::Write { slot, offset, len, fill, append, privileges } = op else {
            return (op, IoFlags::empty());
        };
        let mut draw = fill ^ 0xf1a6;
        let way = if self.flags { split_mix(&mut draw) % 10 } else { 0 };
        let flags = match way {
            1 => IoFlags::DSYNC,
            2 => IoFlags::UNCACHED,
            3 => IoFlags::UNCACHED | IoFlags::DSYNC,
            4 | 5 if !append => IoFlags::DIRECT,
            6 | 7 if !append => IoFlags::DIRECT | IoFlags::DSYNC,
            4..=6 => IoFlags::DIRECT | IoFlags::FALLBACK,
            7 | 8 => IoFlags::DIRECT | IoFlags::FALLBACK | IoFlags::SYNC,
            _ => IoFlags::empty(),
        };
        let (mut offset, mut len) = (offset, len);
        if flags.contains(IoFlags::DIRECT) && !flags.contains(IoFlags::FALLBACK) {
            // Aligning an aligned write changes nothing.
            let block = u64::from(self.block_bytes.max(self.sector));
            offset -= offset % block;
            len = (u64::from(len) / block * block).max(block) as u32;
        }
        (Op::Write { slot, offset, len, fill, append, privileges }, flags)
    }

    /// A write of a large workload: up to 1 MiB, anywhere in a file.
    pub fn enlarged(&self, op: Op) -> Op {
        match op {
            Op::Write { slot, offset, len, fill, append, privileges } if self.large => {
                let mut draw = fill ^ 0x1a46e;
                let len = len * [1, 1, 8, 32][(split_mix(&mut draw) % 4) as usize];
                let most = self.file_bytes.saturating_sub(u64::from(len));
                let spread = [1, 16, 64][(split_mix(&mut draw) % 3) as usize];
                let offset = offset.saturating_mul(spread).min(most);
                Op::Write { slot, offset, len, fill, append, privileges }
            }
            other => other,
        }
    }

    /// How the volume is opened.
    ///
    /// # Errors
    /// No memory for a cache.
    pub fn options(&self, world: &WorldRef) -> Result<OpenOptions, Error> {
        let config =
            Config { huge_pages: false, folio_size: 16384, ..Config::with_budget(1 << 20) };
        let cache = match self.content {
            true => Some(PageCache::new(config, world.clone())?),
            false => None,
        };
        Ok(OpenOptions {
            clock: Arc::new(ManualClock::default()),
            cache,
            inline_max: self.inline_max,
            inode_cache_bytes: self.inode_cache_bytes,
            fua: self.fua,
            alloc: self.alloc,
            clean_percent: if self.crowded { 50 } else { 10 },
            checkpoint_bytes: self.checkpoint_bytes,
            discard: self.discard,
            serialized_dio_pages: 2,
            lock_points: self.alloc != AllocMode::Reserve,
            overlay_bytes: self.overlay_bytes,
            plant: Plant(self.plant),
            ..OpenOptions::default()
        })
    }

    /// A disk with an empty volume, everything durable.
    ///
    /// # Errors
    /// Those of creating the volume.
    pub fn blank(&self) -> Result<SimDisk, Error> {
        let world = SimWorld::new(self.seed);
        let config =
            SimConfig { size: self.volume_bytes, sector: self.sector, ..SimConfig::default() };
        let disk = SimDisk::new(world.clone(), config);
        let device: DeviceRef = Arc::new(disk.clone());
        let options = CreateOptions {
            block_bytes: self.block_bytes,
            segment_bytes: self.segment_bytes() as u32,
            sums: self.sums,
            ..CreateOptions::new([7; 16], [9; 16], Timestamp::new(1, 0))
        };
        let asked: WorldRef = world.clone();
        let made = world.run(Volume::create(&device, &asked, &options));
        world.stop();
        made.map(|()| disk)
    }
}
