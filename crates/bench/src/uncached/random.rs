//! Random 4 KiB reads by 16 threads of one file of at least ten times the budget.
//!
//! Invariant: N3 one cycle is one paired sample of all variants.

use super::setting::Setting;
use crate::harness::alternate::{Outcome, Plan, Turn, Variant, alternate};
use crate::harness::load::{Load, Pattern, Target, run as run_slice};
use crate::harness::meter::resident_bytes;
use crate::harness::options::Options;
use crate::report::model::{Good, Report};
use crate::rivals::kernel::{KernelFile, open_random};
use crate::rivals::ours::Ours;
use crate::rivals::worker::Worker;
use forebay_base::{Error, IoFlags, Result};
use rustix::fs::OFlags;

const THREADS: usize = 16;
const BLOCK: usize = 4096;

fn load(setting: &Setting, turn: &Turn) -> Load {
    Load {
        write: false,
        pattern: Pattern::Random,
        threads: THREADS,
        block: BLOCK,
        start: 0,
        len: setting.bypass.size(),
        time: turn.time,
        seed: turn.seed << 20,
        sample_every: 1,
    }
}

fn plan(options: &Options) -> Plan {
    let cycles = if options.quick { 3 } else { 5 };
    let slice = options.millis(60, 160);
    let asked = options.seconds.map(|s| (s / cycles as f64).ceil().max(1.0) as usize);
    let rounds = options.rounds.or(asked).unwrap_or(if options.quick { 2 } else { 6 });
    let repeats_max = if options.quick { 1 } else { rounds };
    let passes = if options.quick { 1 } else { 4 };
    let (gate, lines) = (Some("direct"), options.lines);
    Plan { rounds, cycles, slice, passes, gate, repeats_max, lines }
}

/// Runs the part.
pub fn run(options: &Options, setting: &Setting, report: &mut Report) -> Result<()> {
    let (bypass, cached) = (setting.bypass.path(), setting.cached.path());
    let budget = setting.budget;
    let direct = KernelFile::new(setting.bypass.open(OFlags::DIRECT)?);
    let dontcache = KernelFile::dontcache(open_random(bypass)?);
    let mut worker = Worker::start("randread", budget);
    let passing = Ours::open(options, bypass, budget)?;
    let filling = Ours::open(options, cached, budget)?;
    note_direct(report, &passing);
    let ours_uncached = passing.with(IoFlags::UNCACHED);
    let ours_direct = passing.with(IoFlags::DIRECT);
    let ours_cached = filling.with(IoFlags::empty());
    let slice = |target: &(dyn Target + Sync), turn: &Turn| run_slice(target, &load(setting, turn));

    let mut variants = vec![Variant::new("direct", |turn| slice(&direct, turn))];
    match &dontcache {
        Ok(target) => variants.push(Variant::new("dontcache", |turn| slice(target, turn))),
        Err(e) => report.left_out("dontcache", e),
    }
    match &mut worker {
        Ok(worker) => variants.push(Variant::new("kernel-buffered", move |turn| {
            worker.randread(cached, &load(setting, turn))
        })),
        Err(e) => report.left_out("kernel-buffered in a memory cgroup", e),
    }
    variants.push(Variant::new("ours-uncached", |turn| slice(&ours_uncached, turn)));
    variants.push(Variant::new("ours-cached", |turn| slice(&ours_cached, turn)));
    variants.push(Variant::new("ours-direct", |turn| slice(&ours_direct, turn)));
    // O_DIRECT a second time: the ratio of two equal variants shows the accuracy of the other
    // ratios.
    variants.push(Variant::new("direct-again", |turn| slice(&direct, turn)));
    let outcome = alternate(&mut variants, &plan(options))?;
    drop(variants);
    outcome.add_rows(report, "randread");
    outcome.add_notes(report, "randread", "direct");
    add_ratios(&outcome, report);
    add_memory(setting, &passing, &filling, report)
}

fn note_direct(report: &mut Report, ours: &Ours) {
    let (direct, reason) = ours.file.direct_io();
    let word = if direct { "on" } else { "off" };
    report.note(format!("ours: direct-io {word}: {reason}"));
}

fn add_ratios(outcome: &Outcome, report: &mut Report) {
    let mut bar = |name: &str, ours: &str, other: &str, bar: f64| {
        report.ratio_with_bar(name, outcome.ratio(ours, other), Good::AtLeast, bar);
    };
    bar("randread_vs_direct", "ours-uncached", "direct", 0.95);
    bar("randread_vs_dontcache", "ours-uncached", "dontcache", 1.0);
    bar("cached_randread_vs_direct", "ours-cached", "direct", 0.95);
    let rivals = [
        ("direct", "O_DIRECT"),
        ("dontcache", "RWF_DONTCACHE"),
        ("kernel-buffered", "kernel buffered in a cgroup"),
    ];
    outcome.compare(report, "random 4 KiB reads, 16 jobs, one file", "ours-uncached", &rivals);
    let flat = outcome.ratio_quantile("ours-uncached", "direct", 0.1);
    report.ratio_with_bar("flatness_p10", flat, Good::AtLeast, 0.9);
    report.ratio("noise_direct_vs_direct", outcome.ratio("direct-again", "direct"));
    let noise_flat = outcome.ratio_quantile("direct-again", "direct", 0.1);
    report.ratio("noise_flatness_p10", noise_flat);
}

/// Adds the resident memory afterwards: Forebay's own count, cachestat of the kernel.
fn add_memory(
    setting: &Setting,
    passing: &Ours,
    filling: &Ours,
    report: &mut Report,
) -> Result<()> {
    let mib = |bytes: u64| bytes as f64 / 1048576.0;
    let size = setting.bypass.size();
    let left = passing.resident_4k(0, size) * BLOCK as u64;
    report.row("ours-uncached", "randread_left_cached", "MiB", &[mib(left)]);
    report.row(
        "ours-cached",
        "randread_left_cached",
        "MiB",
        &[mib(filling.resident_4k(0, size) * BLOCK as u64)],
    );
    for (variant, image) in [("dontcache", &setting.bypass), ("kernel-buffered", &setting.cached)] {
        let file = image.open(OFlags::empty())?;
        let bytes = crate::harness::sys::page_cache_bytes(&file, 0, size);
        let bytes = bytes.map_err(|e| Error::from_io("cachestat", e))?;
        report.row(variant, "page_cache_of_image", "MiB", &[mib(bytes)]);
    }
    let resident = resident_bytes(std::process::id()).unwrap_or(0);
    report.row("all in process", "rss_anon_and_shmem", "MiB", &[mib(resident)]);
    Ok(())
}
