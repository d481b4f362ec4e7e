//! The files, mappings and caches that the variants of `hit` read and write. The invariants are in
//! [`super`].

use crate::harness::alternate::Plan;
use crate::harness::image::Image;
use crate::harness::load::{Load, Pattern, Target, run_in_caller};
use crate::harness::options::Options;
use crate::harness::sys::{FileMap, Region};
use crate::report::model::Report;
use crate::rivals::kernel::KernelFile;
use crate::rivals::ours::{Flagged, Ours};
use forebay_base::{Error, IoFlags, Result};
use rustix::fs::OFlags;
use std::cell::RefCell;
use std::time::Duration;

const BLOCK: usize = 4096;

/// Plain memory in place of a file: the variant `memcpy`.
pub struct Memory(RefCell<Region>);

impl Target for Memory {
    #[inline]
    fn read(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        let region = self.0.borrow();
        buf.copy_from_slice(&region[offset as usize..][..buf.len()]);
        Ok(())
    }

    #[inline]
    fn write(&self, buf: &[u8], offset: u64) -> Result<()> {
        let mut region = self.0.borrow_mut();
        region[offset as usize..][..buf.len()].copy_from_slice(buf);
        Ok(())
    }
}

/// The file of the kernel variant, mapped, so that the kernel's cache is used without system calls.
pub struct Mapped(FileMap);

impl Target for Mapped {
    #[inline]
    fn read(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        self.0.read(buf, offset);
        Ok(())
    }

    #[inline]
    fn write(&self, buf: &[u8], offset: u64) -> Result<()> {
        self.0.write(buf, offset);
        Ok(())
    }
}

/// All variants on images of one size, and their plan.
pub struct Bench {
    pub kernel: KernelFile,
    pub mapped: Mapped,
    pub memory: Memory,
    pub cache: Ours,
    pub ours: Flagged,
    pub size: u64,
    pub plan: Plan,
}

fn plan(options: &Options) -> Plan {
    Plan {
        cycles: if options.quick { 2 } else { 5 },
        gate: Some("memcpy"),
        repeats_max: if options.quick { 1 } else { 4 },
        ..Plan::simple(options, options.rounds_or(3, 9), options.millis(25, 100))
    }
}

/// A cache that holds the complete image, with limits that let a slice dirty all of it (hit.T1).
fn open_ours(options: &Options, image: &Image) -> Result<Ours> {
    let size = image.size();
    let budget = size + size / 2 + (64 << 20);
    Ours::open_with(options, image.path(), budget, |config| {
        config.dirty_bytes = Some(budget);
        config.dirty_background_bytes = Some(budget);
        config.dirty_expire_centisecs = 360_000;
    })
}

impl Bench {
    /// Opens each variant's image, with empty caches.
    pub fn new(
        options: &Options,
        kernel_image: &Image,
        ours_image: &Image,
        report: &mut Report,
    ) -> Result<Self> {
        let size = kernel_image.size();
        let kernel = KernelFile::new(kernel_image.open(OFlags::empty())?);
        let mapped =
            FileMap::new(&kernel.file, size as usize).map_err(|e| Error::from_io("mmap", e))?;
        let region = Region::huge(size as usize).map_err(|e| Error::from_io("map memory", e))?;
        let percent = region.huge_share() * 100.0;
        report.note(format!("memcpy: {percent:.0} % of the region on 2 MiB pages"));
        let cache = open_ours(options, ours_image)?;
        let ours = cache.with(IoFlags::empty());
        let (mapped, memory) = (Mapped(mapped), Memory(RefCell::new(region)));
        Ok(Self { kernel, mapped, memory, cache, ours, size, plan: plan(options) })
    }

    /// Random requests of one block each.
    pub fn load(&self, write: bool, len: u64, time: Duration, seed: u64) -> Load {
        Load {
            write,
            pattern: Pattern::Random,
            threads: 1,
            block: BLOCK,
            start: 0,
            len,
            time,
            seed,
            sample_every: 64,
        }
    }

    /// Reads the image through every cache, twice, so that all of it is cached.
    pub fn warm(&self) -> Result<()> {
        let load = self.load(false, self.size, Duration::from_secs(3600), 0);
        let load = Load { pattern: Pattern::Sequential, block: 1 << 20, ..load };
        for _ in 0..2 {
            run_in_caller(&self.kernel, &load)?;
            run_in_caller(&self.mapped, &load)?;
            run_in_caller(&self.ours, &load)?;
        }
        Ok(())
    }
}
