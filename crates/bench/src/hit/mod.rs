//! `hit`: 4 KiB reads and writes of cached data by one thread, over the complete image and over a
//! hot set of 1 MiB. The variants are the kernel's pread and pwrite, the same file mapped, a bare
//! memcpy, and Forebay's library. `pins` reads without a copy; `interfaces` reads also through a
//! mount and over NBD.
//!
//! Invariants: T1 no slice causes disk I/O: caches are warm before, and dirty data is written back
//! between rounds, outside the slices. T2 all variants of a cycle use the same offsets.

mod fixture;
mod interfaces;
mod pins;

use crate::harness::alternate::{Outcome, Turn, Variant, alternate};
use crate::harness::image::Image;
use crate::harness::load::{Slice, Target, run_in_caller};
use crate::harness::options::Options;
use crate::harness::sys::page_cache_bytes;
use crate::report::model::{Good, Report};
use fixture::Bench;
use forebay_base::units::format_size;
use forebay_base::{Error, Result};

const HOT: u64 = 1 << 20;

/// Runs the bench.
pub fn run(options: &Options) -> Result<Report> {
    let mut report = Report::default();
    let size = options.size_or(64 << 20, 1 << 30);
    let image = Image::create(&options.dir, "hit-kernel", size, options.keep)?;
    let ours_image = Image::create(&options.dir, "hit-ours", size, options.keep)?;
    let bench = Bench::new(options, &image, &ours_image, &mut report)?;
    bench.warm()?;
    bench.add_residency(&mut report)?;
    bench.groups(&mut report)?;
    pins::run(&bench, &mut report)?;
    interfaces::run(&bench, options, &mut report)?;
    Ok(report)
}

impl Bench {
    /// Adds rows for what the caches hold before the first slice.
    fn add_residency(&self, report: &mut Report) -> Result<()> {
        let cached = page_cache_bytes(&self.kernel.file, 0, self.size);
        let cached = cached.map_err(|e| Error::from_io("cachestat", e))?;
        report.row("kernel", "page_cache_of_image", "MiB", &[cached as f64 / 1048576.0]);
        let resident = self.cache.resident_4k(0, self.size) as f64 / 256.0;
        report.row("ours", "cached_of_image", "MiB", &[resident]);
        let stats = self.cache.cache.stats();
        report.row("ours", "arena_page_size", "bytes", &[stats.arena_page_bytes as f64]);
        report.row("ours", "arena", "MiB", &[stats.arena_bytes as f64 / 1048576.0]);
        Ok(())
    }

    fn groups(&self, report: &mut Report) -> Result<()> {
        let before = self.cache.cache.stats();
        let hot_len = HOT.min(self.size);
        let read = self.group(report, "read", false, self.size)?;
        let hot = self.group(report, "hot_read", false, hot_len)?;
        let write = self.group(report, "write", true, self.size)?;
        self.group(report, "hot_write", true, hot_len)?;
        let after = self.cache.cache.stats();
        let misses = after.misses - before.misses;
        let throttled = (after.throttled_nanos - before.throttled_nanos) / 1_000_000;
        report.note(format!("ours: {misses} misses in all slices, throttled for {throttled} ms"));
        let size = format_size(self.size);
        let plots = [
            (&read, format!("4 KiB random reads of {size}, all cached")),
            (&hot, format!("4 KiB random reads of {}, all cached", format_size(hot_len))),
            (&write, format!("4 KiB random writes to {size}, all cached")),
        ];
        report.plots.extend(plots.map(|(group, title)| group.rates_plot("hit", title)));
        let mut bar = |name: &str, group: &Outcome, other: &str, bar: f64| {
            report.ratio_with_bar(name, group.ratio("ours", other), Good::AtLeast, bar);
        };
        bar("read_vs_kernel", &read, "kernel", 1.7);
        bar("read_vs_memcpy", &read, "memcpy", 0.70);
        bar("write_vs_memcpy", &write, "memcpy", 0.60);
        bar("hot_read_vs_kernel", &hot, "kernel", 3.0);
        Ok(())
    }

    /// Measures one kind of access with all variants.
    fn group(&self, report: &mut Report, name: &str, write: bool, len: u64) -> Result<Outcome> {
        let cycles = self.plan.cycles as u64;
        let ends_round = |turn: &Turn| write && turn.cycle % cycles == cycles - 1;
        let slice = |target: &dyn Target, turn: &Turn| -> Result<Slice> {
            run_in_caller(target, &self.load(write, len, turn.time, turn.seed))
        };
        let kernel = Variant::new("kernel", |turn| {
            let done = slice(&self.kernel, turn)?;
            if ends_round(turn) {
                self.kernel.file.sync_data().map_err(|e| Error::from_io("fdatasync", e))?;
            }
            Ok(done)
        });
        let ours = Variant::new("ours", |turn| {
            let done = slice(&self.ours, turn)?;
            if ends_round(turn) {
                self.ours.file.sync_data()?;
            }
            Ok(done)
        });
        // Its dirty pages are those of the kernel's file, whose variant syncs them.
        let mapped = Variant::new("mmap", |turn| slice(&self.mapped, turn));
        let memcpy = Variant::new("memcpy", |turn| slice(&self.memory, turn));
        let outcome = alternate(&mut [kernel, mapped, memcpy, ours], &self.plan)?;
        outcome.add_rows(report, name);
        outcome.add_notes(report, name, "memcpy");
        let what = if write { "writes" } else { "reads" };
        let cell = format!("4 KiB random {what} of {}, cached", format_size(len));
        let rivals =
            [("kernel", "kernel pread, pwrite"), ("mmap", "kernel mmap"), ("memcpy", "memcpy")];
        outcome.compare(report, &cell, "ours", &rivals);
        Ok(outcome)
    }
}
