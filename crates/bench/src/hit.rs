//! `hit`: 4 KiB reads and writes of data that is already cached, one thread: the kernel's pread
//! and pwrite, a bare memcpy, and ours, over the whole image and over a hot set of 1 MiB.
//!
//! Invariants: T1 nothing in a slice reaches the disk: caches are warm before, dirt is written
//! out between rounds, outside the slices. T2 all variants of a cycle use the same offsets.

use crate::harness::{Outcome, Plan, Variant, alternate};
use crate::image::Image;
use crate::kernel::KernelFile;
use crate::load::{Load, Pattern, Slice, Target, run_here};
use crate::options::Options;
use crate::report::Report;
use crate::sys::{Region, page_cache_bytes};
use forebay_base::{Error, Result};
use rustix::fs::OFlags;
use std::cell::RefCell;
use std::time::Duration;

const BLOCK: usize = 4096;
const HOT: u64 = 1 << 20;

/// A memcpy in place of a file.
struct Memory(RefCell<Region>);

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

struct Bench {
    kernel: KernelFile,
    memory: Memory,
    size: u64,
    plan: Plan,
}

/// Runs it.
pub fn run(options: &Options) -> Result<Report> {
    let mut report = Report::default();
    let size = options.size_or(64 << 20, 1 << 30);
    let image = Image::create(&options.dir, "hit", size, options.keep)?;
    let kernel = KernelFile::new(image.open(OFlags::empty())?);
    let region = Region::huge(size as usize).map_err(|e| Error::from_io("map memory", e))?;
    let percent = region.huge_share() * 100.0;
    report.note(format!("memcpy: {percent:.0} % of the region on 2 MiB pages"));
    let plan = Plan {
        rounds: options.rounds_or(3, 9),
        cycles: if options.quick { 2 } else { 5 },
        slice: options.millis(25, 100),
        gate: Some("memcpy"),
        repeats_max: 6,
        lines: options.lines,
    };
    let bench = Bench { kernel, memory: Memory(RefCell::new(region)), size, plan };
    bench.warm()?;
    let cached = page_cache_bytes(&bench.kernel.file, 0, size)
        .map_err(|e| Error::from_io("cachestat", e))?;
    report.row("kernel", "page_cache_of_image", "MiB", &[cached as f64 / 1048576.0]);

    let read = bench.group(&mut report, "read", false, size)?;
    let hot = bench.group(&mut report, "hot_read", false, HOT.min(size))?;
    let write = bench.group(&mut report, "write", true, size)?;
    report.ratio("kernel_read_vs_memcpy", read.ratio("kernel", "memcpy"));
    report.ratio("kernel_write_vs_memcpy", write.ratio("kernel", "memcpy"));
    report.ratio("kernel_hot_read_vs_memcpy", hot.ratio("kernel", "memcpy"));
    Ok(report)
}

impl Bench {
    fn load(&self, write: bool, len: u64, time: Duration, seed: u64) -> Load {
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

    /// Reads the image through every cache once.
    fn warm(&self) -> Result<()> {
        let load = self.load(false, self.size, Duration::from_secs(3600), 0);
        let load = Load { pattern: Pattern::Sequential, block: 1 << 20, ..load };
        run_here(&self.kernel, &load)?;
        Ok(())
    }

    /// One kind of access, all variants.
    fn group(&self, report: &mut Report, name: &str, write: bool, len: u64) -> Result<Outcome> {
        let last = self.plan.cycles as u64 - 1;
        let slice = |target: &dyn Target, turn: &crate::harness::Turn| -> Result<Slice> {
            run_here(target, &self.load(write, len, turn.time, turn.seed))
        };
        let kernel = Variant::new("kernel", |turn| {
            let done = slice(&self.kernel, turn)?;
            if write && turn.cycle % self.plan.cycles as u64 == last {
                self.kernel.file.sync_data().map_err(|e| Error::from_io("fdatasync", e))?;
            }
            Ok(done)
        });
        let memcpy = Variant::new("memcpy", |turn| slice(&self.memory, turn));
        let outcome = alternate(&mut [kernel, memcpy], &self.plan)?;
        outcome.add_rows(report, name);
        outcome.add_notes(report, name, "memcpy");
        Ok(outcome)
    }
}
