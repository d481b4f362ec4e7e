//! `stable`: the cost to writers of stable pages: bytes in flight that must not change. Four
//! clients run a mix with rewrites of pages in flight, without the requirement and with it by each
//! strategy. The mix runs on a delay device, on the disk, and on a volume, whose checksums require
//! stable pages. It also runs on the kernel's XFS on a loop device, with its setting off and on. A
//! verifying device checks the bytes under concurrent writers.
//!
//! Invariant: T1 all variants of a device use one file behind one cache, so that only the
//! requirement and the strategy differ.

mod conditions;
pub mod dbench;
mod kernel;
mod mix;
mod verify;
mod volume;

use crate::harness::alternate::{Outcome, Plan, Variant, alternate};
use crate::harness::image::Image;
use crate::harness::load::Slice;
use crate::harness::options::Options;
use crate::report::model::{Good, Plot, Report, Summary, median};
use crate::rivals::ours::Flagged;
use conditions::{BANDWIDTH, BUDGET, FILES, PER_IO, REWRITES, max_ms, mix_of, paired, plan};
use forebay::{Cache, CacheConfig, File, IoFlags, OpenOptions, StablePages, StableStrategy, Stats};
use forebay_base::Result;
use forebay_base::world::RealWorld;
use forebay_block::RamDevice;
use forebay_testkit::target::{DelayDevice, DelayOptions};
use kernel::Kernel;
use mix::{Flushes, Store};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Size of a cache that holds half of the data, bytes.
const SCARCE: u64 = 40 << 20;
/// Blocks that the verifying device has to check.
const CHECKED: u64 = 10_000_000;
const OFF: &str = "not-needed";

/// Requirement and strategy of each variant of Forebay.
const VARIANTS: [(&str, StablePages, StableStrategy); 5] = [
    (OFF, StablePages::Off, StableStrategy::Auto),
    ("wait", StablePages::On, StableStrategy::Wait),
    ("snapshot", StablePages::On, StableStrategy::Snapshot),
    ("cow", StablePages::On, StableStrategy::Cow),
    ("auto", StablePages::On, StableStrategy::Auto),
];

impl Store for Flagged {
    fn flush(&self) -> Result<()> {
        self.file.sync_data()
    }
}

/// Runs the bench.
pub fn run(options: &Options) -> Result<Report> {
    let mut report = Report::default();
    let mut summary = Summary {
        behaviour: "stable",
        promise: "a writer does not wait for its own write-out".into(),
        kernel: "-".into(),
        ..Summary::default()
    };
    if options.wants("delay") {
        delay(options, &mut report, &mut summary)?;
    }
    if options.wants("scarce") && (!options.quick || options.part.is_some()) {
        scarce(options, &mut report)?;
    }
    if options.wants("disk") {
        disk(options, &mut report)?;
    }
    if options.wants("kernel") {
        match kernel_rows(options, &mut report) {
            Ok(text) => summary.kernel = text,
            Err(e) => report.left_out("xfs on a loop device", e),
        }
    }
    if options.wants("volume") {
        volume::run(options, &mut report)?;
    }
    if options.wants("verify") {
        verify(options, &mut report)?;
    }
    report.summaries.push(summary);
    Ok(report)
}

/// Counters of the cache for one slice, and durations of its flushes.
struct Cost {
    counted: Vec<(&'static str, u64)>,
    flushes: Flushes,
}

/// The costs of all slices, by variant.
#[derive(Default)]
struct Extra(BTreeMap<&'static str, Vec<Cost>>);

const COUNTED: [&str; 7] = [
    "stable_waits",
    "stable_wait_nanos",
    "stable_hits",
    "stable_copies",
    "stable_copied_bytes",
    "stable_snapshots",
    "stable_fallbacks",
];

impl Extra {
    fn add(&mut self, variant: &'static str, before: &Stats, after: &Stats, flushes: Flushes) {
        let (before, after) = (before.fields(), after.fields());
        let counted = after.iter().zip(&before).filter(|(a, _)| COUNTED.contains(&a.0));
        let counted = counted.map(|(a, b)| (a.0, a.1 - b.1)).collect();
        self.0.entry(variant).or_default().push(Cost { counted, flushes });
    }

    fn sum(&self, variant: &str, name: &str) -> f64 {
        let slices = self.0.get(variant).into_iter().flatten();
        let all = slices.flat_map(|cost| &cost.counted).filter(|c| c.0 == name);
        all.map(|c| c.1).sum::<u64>() as f64
    }

    fn rows(&self, report: &mut Report, prefix: &str) {
        for (variant, slices) in &self.0 {
            for name in COUNTED {
                let value = |cost: &Cost| {
                    cost.counted.iter().find(|c| c.0 == name).map_or(f64::NAN, |c| c.1 as f64)
                };
                let values: Vec<f64> = slices.iter().map(value).collect();
                report.row(variant, &format!("{prefix}_{name}"), "1/slice", &values);
            }
            flush_rows(report, variant, prefix, slices.iter().map(|s| &s.flushes));
        }
    }
}

fn flush_rows<'a>(
    report: &mut Report,
    variant: &str,
    prefix: &str,
    slices: impl Iterator<Item = &'a Flushes>,
) {
    let some: Vec<_> = slices.filter(|s| s.hist.count() > 0).collect();
    let mean: Vec<f64> = some.iter().map(|s| s.hist.mean() / 1e6).collect();
    let max: Vec<f64> = some.iter().map(|s| s.hist.max() as f64 / 1e6).collect();
    report.row(variant, &format!("{prefix}_flush_avg"), "ms", &mean);
    report.row(variant, &format!("{prefix}_flush_max"), "ms", &max);
}

/// Alternates all variants of Forebay on one file.
fn alternate_ours(
    plan: &Plan,
    files: Option<u64>,
    cache: &Cache,
    file: &File,
) -> Result<(Outcome, Extra)> {
    let extra = RefCell::new(Extra::default());
    let store = Flagged { file: file.reopen()?, flags: IoFlags::empty() };
    let mut variants: Vec<Variant<'_>> = Vec::new();
    for (name, stable, strategy) in VARIANTS {
        let (extra, store) = (&extra, &store);
        variants.push(Variant::new(name, move |turn| {
            cache.tune("stable", &strategy.to_string())?;
            store.file.set_stable_pages(stable)?;
            let before = cache.stats();
            let (slice, flushes) = mix::run(store, &mix_of(turn, files))?;
            extra.borrow_mut().add(name, &before, &cache.stats(), flushes);
            store.flush()?;
            Ok(slice)
        }));
    }
    let outcome = alternate(&mut variants, plan)?;
    drop(variants);
    Ok((outcome, extra.into_inner()))
}

fn cache(options: &Options, budget: u64) -> Result<Cache> {
    Cache::new(CacheConfig::with_budget(budget).aio(options.aio.parse()?))
}

/// Reads the file, so that the cache holds as much of it as fits.
fn fill(file: &File) -> Result<()> {
    let mut buf = vec![0; 1 << 20];
    for at in (0..mix::SIZE).step_by(buf.len()) {
        file.read_at(&mut buf, at)?;
    }
    Ok(())
}

fn max_of(outcome: &Outcome, variant: &str) -> f64 {
    median(&outcome.per_round(variant).iter().map(max_ms).collect::<Vec<_>>())
}

/// Adds cells of `cow` over Forebay's other variants: longest write and rate, more is better.
fn compare(outcome: &Outcome, place: &str, report: &mut Report) {
    let rival = "waiting (stable pages as they were)";
    report.cell(
        rival,
        &format!("{place}: longest write, theirs over ours"),
        paired(outcome, "wait", "cow", max_ms),
    );
    report.cell(rival, &format!("{place}: rate"), outcome.ratio("cow", "wait"));
    let off = "no need for stable pages (the patch)";
    report.cell(
        off,
        &format!("{place}: longest write, theirs over ours"),
        paired(outcome, OFF, "cow", max_ms),
    );
    report.cell(off, &format!("{place}: rate"), outcome.ratio("cow", OFF));
}

fn mean_rows(outcome: &Outcome, report: &mut Report, names: &[&str], prefix: &str) {
    for name in names {
        let means: Vec<f64> = outcome.per_round(name).iter().map(|s| s.hist.mean() / 1e3).collect();
        report.row(name, &format!("{prefix}_mean"), "us", &means);
    }
}

/// All variants of Forebay on a fresh delay device behind a cache of `budget` bytes.
fn on_delay_device(
    options: &Options,
    budget: u64,
    rounds: usize,
) -> Result<(Outcome, Extra, Cache)> {
    let delays =
        DelayOptions { per_io: PER_IO, bandwidth: Some(BANDWIDTH), ..DelayOptions::default() };
    let device = DelayDevice::new(Arc::new(RamDevice::new(mix::SIZE)), &RealWorld::new(), delays);
    let cache = cache(options, budget)?;
    // Filling the cache is not delayed, since it is not measured.
    device.set(DelayOptions::default());
    let file = OpenOptions::read_write().open_device(&cache, device.clone())?;
    fill(&file)?;
    device.set(delays);
    let files = if options.quick { 2 } else { FILES };
    let (outcome, extra) = alternate_ours(&plan(options, rounds), Some(files), &cache, &file)?;
    Ok((outcome, extra, cache))
}

/// The comparison with a cache of half the data, which has to reclaim for each new frame.
fn scarce(options: &Options, report: &mut Report) -> Result<()> {
    let (outcome, extra, _) = on_delay_device(options, SCARCE, 5)?;
    outcome.add_rows(report, "scarce");
    mean_rows(&outcome, report, &VARIANTS.map(|v| v.0), "scarce");
    extra.rows(report, "scarce");
    compare(&outcome, "2 ms device, scarce memory", report);
    Ok(())
}

fn delay(options: &Options, report: &mut Report, summary: &mut Summary) -> Result<()> {
    let (outcome, extra, cache) = on_delay_device(options, BUDGET, 20)?;
    outcome.add_rows(report, "delay");
    mean_rows(&outcome, report, &VARIANTS.map(|v| v.0), "delay");
    extra.rows(report, "delay");
    compare(&outcome, "2 ms device", report);
    let free = cache.stats().frames_free as f64;
    report.row("cow", "delay_free_frames", "1", &[free]);
    let p999 = |s: &Slice| s.hist.percentile(99.9) as f64;
    let at_most = |report: &mut Report, name: &str, value: f64, bar: f64| {
        report.ratio_with_bar(name, value, Good::AtMost, bar);
    };
    let max = |ours| paired(&outcome, ours, "wait", max_ms);
    at_most(report, "max_latency_vs_wait_when_not_needed", max(OFF), 0.1);
    at_most(report, "cow_p999_vs_not_needed", paired(&outcome, "cow", OFF, p999), 1.5);
    at_most(report, "cow_max_vs_wait", max("cow"), 0.1);
    let throughput = outcome.ratio("cow", OFF);
    report.ratio_with_bar("cow_throughput_vs_not_needed", throughput, Good::AtLeast, 0.97);
    let hits = extra.sum("cow", "stable_hits");
    let share = extra.sum("cow", "stable_copies") / hits.max(1.0);
    at_most(report, "copied_blocks_share", share, 1.1);
    report.note(format!(
        "delay device: {} ms per I/O, {} MB/s; 4 clients in regions of 16 MiB, 256 KiB files in \
         pieces of 64 KiB, one in 3 flushed; {REWRITES} rewrites of 100 bytes per second; \
         {hits:.0} blocks hit in flight by cow",
        PER_IO.as_millis(),
        BANDWIDTH / 1_000_000
    ));
    let text = |name: &str| format!("max {:.1} ms", max_of(&outcome, name));
    (summary.baseline, summary.patch) = (text("wait"), text(OFF));
    summary.ours = format!("{} with the need on", text("cow"));
    let series = VARIANTS.map(|v| (v.0.to_string(), vec![max_of(&outcome, v.0)]));
    report.plots.push(Plot {
        behaviour: "stable",
        title: "Longest write under write-out, delay device".into(),
        unit: "ms".into(),
        series: series.to_vec(),
        ..Plot::default()
    });
    Ok(())
}

fn disk(options: &Options, report: &mut Report) -> Result<()> {
    let image = Image::create(&options.dir, "stable", mix::SIZE, options.keep)?;
    let cache = cache(options, BUDGET)?;
    let file = OpenOptions::read_write().open(&cache, image.path())?;
    fill(&file)?;
    let (need, why) = file.device_stable_pages_required();
    report.note(format!("disk: stable_pages_required {} ({why}), forced here", u8::from(need)));
    let (outcome, extra) = alternate_ours(&plan(options, 10), None, &cache, &file)?;
    outcome.add_rows(report, "disk");
    mean_rows(&outcome, report, &VARIANTS.map(|v| v.0), "disk");
    extra.rows(report, "disk");
    compare(&outcome, "this disk", report);
    Ok(())
}

fn kernel_rows(options: &Options, report: &mut Report) -> Result<String> {
    let kernel = Kernel::new(options)?;
    let flushes: RefCell<BTreeMap<bool, Vec<Flushes>>> = RefCell::default();
    let mut variants: Vec<Variant<'_>> = Vec::new();
    for stable in [false, true] {
        let (kernel, flushes) = (&kernel, &flushes);
        variants.push(Variant::new(kernel::name(stable), move |turn| {
            let (slice, flushed) = kernel.slice(stable, &mix_of(turn, None))?;
            flushes.borrow_mut().entry(stable).or_default().push(flushed);
            Ok(slice)
        }));
    }
    let outcome = alternate(&mut variants, &plan(options, 10))?;
    drop(variants);
    outcome.add_rows(report, "disk");
    mean_rows(&outcome, report, &[false, true].map(kernel::name), "disk");
    for (stable, slices) in flushes.borrow().iter() {
        flush_rows(report, kernel::name(*stable), "disk", slices.iter());
    }
    let (off, on) = (kernel::name(false), kernel::name(true));
    for stable in [false, true] {
        if let Err(e) = kernel.dbench(report, stable, if options.quick { 1 } else { 8 }) {
            report.left_out("dbench 4", e);
            break;
        }
    }
    Ok(format!("xfs max {:.1} ms, {:.1} ms if needed", max_of(&outcome, off), max_of(&outcome, on)))
}

fn verify(options: &Options, report: &mut Report) -> Result<()> {
    let wanted = if options.quick { CHECKED / 200 } else { CHECKED };
    let limit = if options.quick { Duration::from_millis(400) } else { Duration::from_secs(120) };
    let each = wanted.div_ceil(2 * StableStrategy::ALL.len() as u64);
    let (mut checked, mut mismatches, mut corrupt, mut changed) = (0, 0, 0, 0);
    for block_size in [512, 4096] {
        let verified = verify::Verified::new(options, block_size)?;
        for &strategy in StableStrategy::ALL {
            let seen = verified.run(strategy, StablePages::Auto, each, limit / 8)?;
            checked += seen.checked_writes;
            mismatches += seen.mismatches;
            corrupt += seen.corrupt_reads;
        }
        // The quick form checks as many blocks, because changes in flight occur at random.
        let (blocks, time) = ((each / 8).max(40_000), (limit / 8).max(Duration::from_millis(500)));
        let off = verified.run(StableStrategy::Auto, StablePages::Off, blocks, time)?;
        changed += off.mismatches;
    }
    let bar = wanted as f64;
    report.ratio_with_bar("checked_blocks", checked as f64, Good::AtLeast, bar);
    report.ratio_with_bar("mismatches", (mismatches + corrupt) as f64, Good::AtMost, 0.0);
    report.ratio_with_bar("mismatches_when_forced_off", changed as f64, Good::AtLeast, 1.0);
    report.note("verifying device: blocks of 512 bytes; half behind blocks of 512, half of 4096");
    Ok(())
}
