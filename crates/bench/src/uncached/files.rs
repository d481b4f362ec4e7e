//! 32 files: random reads of 4 KiB by 1, 4 and 16 jobs, and of 64 KiB by 16, with every strategy of
//! Forebay, and with the kernel's methods.
//!
//! Invariants: the kernel's buffered reads use files of their own, and `noaccess` uses a cache of
//! its own, because both fill a cache. Forebay opens its files for reading only, so that both of
//! its caches can share them.

use super::setting::{FILES, budget_for};
use crate::harness::alternate::{Outcome, Plan, Turn, Variant, alternate};
use crate::harness::load::{Load, Pattern, Target, run as run_slice};
use crate::harness::meter::{MachineTime, kswapd_seconds};
use crate::harness::options::Options;
use crate::report::model::{Good, Plot, Report};
use crate::rivals::fileset::{FileSet, OurSet};
use crate::rivals::kernel::DONTCACHE;
use crate::rivals::worker::Worker;
use forebay_base::units::{MIB, format_size, round_down};
use forebay_base::{IoFlags, Result};
use rustix::fs::OFlags;
use rustix::io::ReadWriteFlags;

/// Parameters that the cells share.
struct Cells<'a> {
    options: &'a Options,
    passing: &'a FileSet,
    filling: &'a FileSet,
    budget: u64,
}

/// Jobs, bytes per read, name of the cell, whether all strategies are shown.
const CELLS: [(usize, usize, &str, bool); 4] = [
    (1, 4 << 10, "randread_j1", false),
    (4, 4 << 10, "randread_j4", false),
    (16, 4 << 10, "randread_j16", true),
    (16, 64 << 10, "read64k", false),
];

/// Runs the cells.
pub fn run(options: &Options, report: &mut Report) -> Result<()> {
    let each = round_down(options.size_or(64 << 20, 768 << 20) / FILES as u64, MIB);
    let each = each.max(1 << 20);
    let budget = budget_for(each * FILES as u64);
    let passing = FileSet::create(options, "set", FILES, each)?;
    let filling = FileSet::create(options, "fill", FILES, each)?;
    let (size, budget_text) = (format_size(passing.size()), format_size(budget));
    report.note(format!("files: {FILES} files, {size} in all, budget {budget_text}"));
    let cells = Cells { options, passing: &passing, filling: &filling, budget };
    for (jobs, block, name, strategies) in CELLS {
        cells.one(jobs, block, name, strategies, report)?;
    }
    Ok(())
}

impl Cells<'_> {
    fn load(&self, jobs: usize, block: usize, turn: &Turn) -> Load {
        Load {
            write: false,
            pattern: Pattern::Random,
            threads: jobs,
            block,
            start: 0,
            len: self.passing.size(),
            time: turn.time,
            seed: turn.seed << 20,
            sample_every: 1,
        }
    }

    fn plan(&self, strategies: bool) -> Plan {
        let quick = self.options.quick;
        Plan {
            rounds: self.options.rounds.unwrap_or(if quick { 1 } else { 4 }),
            cycles: if quick { 2 } else { 3 },
            slice: self.options.millis(20, 150),
            passes: if quick { 1 } else { 3 },
            gate: Some("direct"),
            repeats_max: if quick { 0 } else { 2 },
            // Print a line per cycle only if all strategies run: then a cycle takes about a second.
            lines: self.options.lines && strategies,
        }
    }

    fn one(
        &self,
        jobs: usize,
        block: usize,
        name: &str,
        strategies: bool,
        report: &mut Report,
    ) -> Result<()> {
        let direct = self.passing.kernel(OFlags::DIRECT, ReadWriteFlags::empty())?;
        let dontcache = self.passing.kernel(OFlags::empty(), DONTCACHE)?;
        for part in &dontcache.parts {
            let advised = rustix::fs::fadvise(&part.file, 0, None, rustix::fs::Advice::Random);
            advised.map_err(|e| forebay_base::Error::from_io("fadvise", e.into()))?;
        }
        let ours = OurSet::open(self.options, self.passing, FILES, self.budget, true)?;
        let noaccess = OurSet::open(self.options, self.passing, FILES, self.budget, true)?;
        let mut worker = Worker::start(name, self.budget);
        let slice = |target: &(dyn Target + Sync), turn: &Turn| {
            run_slice(target, &self.load(jobs, block, turn))
        };
        let with = |set: &OurSet, strategy: &str, turn: &Turn| {
            slice(&set.with(IoFlags::UNCACHED, strategy)?, turn)
        };
        let before = (ours.resident_bytes(), self.passing.in_page_cache()?);
        let mut variants = vec![Variant::new("direct", |turn| slice(&direct, turn))];
        match dontcache.read(&mut [0u8; 4096], 0) {
            Ok(()) => variants.push(Variant::new("dontcache", |turn| slice(&dontcache, turn))),
            Err(e) => report.left_out("dontcache", e),
        }
        variants.push(Variant::new("ours", |turn| with(&ours, "ours", turn)));
        if strategies {
            let own = &ours;
            variants
                .push(Variant::new("ours-dropbehind", move |turn| with(own, "dropbehind", turn)));
            variants.push(Variant::new("ours-noaccess", |turn| with(&noaccess, "noaccess", turn)));
        }
        match &mut worker {
            Ok(worker) => {
                let (paths, each) = (self.filling.paths(), self.filling.each);
                variants.push(Variant::new("kernel-buffered", move |turn| {
                    worker.set_slice(&paths, each, &self.load(jobs, block, turn), false)
                }));
            }
            Err(e) => report.left_out("kernel-buffered in a memory cgroup", e),
        }
        let (kswapd, start) = (kswapd_seconds(), MachineTime::now());
        let outcome = alternate(&mut variants, &self.plan(strategies))?;
        drop(variants);
        let seconds = start.elapsed().as_secs_f64();
        outcome.add_rows(report, name);
        outcome.add_notes(report, name, "direct");
        let kswapd = (kswapd_seconds() - kswapd) / seconds;
        self.memory(name, [&ours, &noaccess], before, report)?;
        for (variant, set) in [("ours", &ours), ("ours-noaccess", &noaccess)] {
            let share = set.cache.stats().reclaim_nanos as f64 / 1e9 / seconds;
            report.row(variant, &format!("{name}_reclaim_cpu"), "core", &[share]);
        }
        report.row("kernel", &format!("{name}_kswapd_cpu"), "core", &[kswapd]);
        let cell = format!("random {} KiB reads, {jobs} jobs", block >> 10);
        add_ratios(&outcome, name, &cell, report);
        if strategies {
            let growth = ours.resident_bytes().saturating_sub(before.0) as f64;
            report.ratio_with_bar("resident_growth_bytes", growth, Good::AtMost, 0.0);
            let title = format!("4 KiB reads of 32 files, {jobs} jobs");
            report.plots.push(over_time(&outcome, &title));
        }
        report.plots.push(outcome.rates_plot("uncached", format!("{name}: reads of 32 files")));
        Ok(())
    }

    /// Adds the resident memory before and after: frames of Forebay, cachestat of the kernel.
    fn memory(
        &self,
        name: &str,
        [ours, noaccess]: [&OurSet; 2],
        before: (u64, u64),
        report: &mut Report,
    ) -> Result<()> {
        let mib = |bytes: u64| bytes as f64 / 1048576.0;
        let mut row = |variant: &str, metric: &str, value: u64| {
            report.row(variant, &format!("{name}_{metric}"), "MiB", &[mib(value)]);
        };
        row("ours", "resident_before", before.0);
        row("ours", "resident_after", ours.resident_bytes());
        row("ours-noaccess", "resident_after", noaccess.resident_bytes());
        row("dontcache", "page_cache_before", before.1);
        row("dontcache", "page_cache_after", self.passing.in_page_cache()?);
        row("kernel-buffered", "page_cache_after", self.filling.in_page_cache()?);
        Ok(())
    }
}

fn add_ratios(outcome: &Outcome, name: &str, cell: &str, report: &mut Report) {
    let (stem, suffix) = match name.split_once('_') {
        Some((stem, jobs)) => (stem, format!("_{jobs}")),
        None => (name, String::new()),
    };
    let mut bar = |other: &str, bar: f64| {
        let ratio = outcome.ratio("ours", other);
        report.ratio_with_bar(&format!("{stem}_vs_{other}{suffix}"), ratio, Good::AtLeast, bar);
    };
    bar("direct", 0.98);
    bar("dontcache", 1.0);
    let rivals = [
        ("direct", "O_DIRECT"),
        ("dontcache", "RWF_DONTCACHE"),
        ("kernel-buffered", "kernel buffered in a cgroup"),
    ];
    outcome.compare(report, &format!("{cell}, 32 files"), "ours", &rivals);
    for other in ["dropbehind", "noaccess"] {
        let ratio = outcome.ratio(&format!("ours-{other}"), "direct");
        if ratio.is_finite() {
            report.ratio(&format!("{other}_{stem}_vs_direct{suffix}"), ratio);
        }
    }
}

fn over_time(outcome: &Outcome, title: &str) -> Plot {
    let names =
        ["direct", "dontcache", "kernel-buffered", "ours", "ours-dropbehind", "ours-noaccess"];
    let line = |name: &&str| (name.to_string(), outcome.per_cycle(name));
    Plot {
        behaviour: "uncached",
        title: title.to_string(),
        unit: "reads/s".into(),
        series: names.iter().map(line).filter(|(_, values)| !values.is_empty()).collect(),
        x: "cycle, about a second each".into(),
        ..Plot::default()
    }
}
