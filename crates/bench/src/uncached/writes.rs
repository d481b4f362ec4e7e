//! Uncached writes: sequential, random, by four writers, 64 KiB over 32 files.
//!
//! Invariants: T1 a slice includes the final fdatasync (Forebay: `sync_data`), so all its bytes are
//! on the device. Latencies are of the write calls alone. T2 a slice begins with nothing of the
//! files in either cache. T3 the kernel's variants that fill its cache run in a memory cgroup of
//! Forebay's budget each.

use super::setting::FILES;
use crate::harness::alternate::{Outcome, Plan, Turn, Variant, alternate};
use crate::harness::load::{Load, Pattern, Slice};
use crate::harness::options::Options;
use crate::report::model::{Good, Report, Summary, median};
use crate::rivals::fileset::{FileSet, OurSet, Parts, timed};
use crate::rivals::kernel::{DONTCACHE, KernelFile};
use crate::rivals::worker::Worker;
use forebay_base::units::{MIB, format_size, round_down};
use forebay_base::{Error, IoFlags, Result};
use rustix::fs::OFlags;
use rustix::io::ReadWriteFlags;
use std::time::Duration;

/// One cell.
#[derive(Clone, Copy)]
struct Cell {
    name: &'static str,
    /// Name of the ratio of rates.
    ratio: &'static str,
    /// Name of the ratio of 99.9th percentiles.
    late: &'static str,
    block: usize,
    jobs: usize,
    files: usize,
    random: bool,
    /// Bar: rate over that of RWF_DONTCACHE.
    bar: f64,
    /// Bar: p99.9 over that of RWF_DONTCACHE.
    late_bar: f64,
    strategies: bool,
}

const CELLS: [Cell; 4] = [
    Cell {
        name: "seqwrite",
        ratio: "seqwrite_vs_dontcache",
        late: "seqwrite_p999_vs_dontcache",
        block: 128 << 10,
        jobs: 1,
        files: 4,
        random: false,
        bar: 0.95,
        late_bar: 0.5,
        strategies: true,
    },
    Cell {
        name: "multiwrite",
        ratio: "multiwrite_vs_dontcache",
        late: "multiwrite_p999_vs_dontcache",
        block: 128 << 10,
        jobs: 4,
        files: 4,
        random: false,
        bar: 0.95,
        late_bar: 0.5,
        strategies: false,
    },
    Cell {
        name: "randwrite",
        ratio: "randwrite_vs_dontcache",
        late: "randwrite_p999_vs_dontcache",
        block: 4 << 10,
        jobs: 1,
        files: 8,
        random: true,
        bar: 0.9,
        late_bar: 1.5,
        strategies: false,
    },
    Cell {
        name: "write64k",
        ratio: "write64k_vs_dontcache",
        late: "write64k_p999_vs_dontcache",
        block: 64 << 10,
        jobs: 4,
        files: FILES,
        random: true,
        bar: 0.95,
        late_bar: 0.5,
        strategies: false,
    },
];

struct Bench<'a> {
    options: &'a Options,
    set: &'a FileSet,
    budget: u64,
}

/// Runs the cells.
pub fn run(options: &Options, budget: u64, report: &mut Report) -> Result<()> {
    let each = round_down(options.size_or(64 << 20, 2048 << 20) / FILES as u64, MIB);
    let set = FileSet::create(options, "write", FILES, each.max(1 << 20))?;
    let (size, budget_text) = (format_size(set.each), format_size(budget));
    report
        .note(format!("writes: files of {size}, budget {budget_text}; slices end after fdatasync"));
    let bench = Bench { options, set: &set, budget };
    let mut growth = 0;
    for cell in CELLS {
        growth = growth.max(bench.cell(&cell, report)?);
    }
    report.ratio_with_bar("write_resident_growth_bytes", growth as f64, Good::AtMost, 0.0);
    Ok(())
}

impl Bench<'_> {
    fn plan(&self) -> Plan {
        let quick = self.options.quick;
        Plan {
            cycles: if quick { 1 } else { 2 },
            gate: Some("direct"),
            repeats_max: if quick { 0 } else { 2 },
            ..Plan::simple(self.options, self.options.rounds_or(1, 5), self.options.millis(60, 400))
        }
    }

    fn load(&self, cell: &Cell, turn: &Turn) -> Load {
        let len = self.set.each * cell.files as u64;
        let most = if self.options.quick { 4 << 20 } else { 256 << 20 };
        let (pattern, len) = match cell.random {
            true => (Pattern::Random, len),
            false => (Pattern::Sequential, len.min(most)),
        };
        Load {
            write: true,
            pattern,
            threads: cell.jobs,
            block: cell.block,
            start: 0,
            len,
            time: if cell.random { turn.time } else { Duration::from_secs(60) },
            seed: turn.seed << 20,
            sample_every: 1,
        }
    }

    /// Returns the growth of Forebay's resident memory, bytes.
    fn cell(&self, cell: &Cell, report: &mut Report) -> Result<u64> {
        let ours = OurSet::open(self.options, self.set, cell.files, self.budget, false)?;
        let start = |kind: &str| Worker::start(&format!("{}-{kind}", cell.name), self.budget);
        let mut workers = [start("dontcache"), start("buffered")];
        let supported = KernelFile::dontcache(self.set.open_first()?).map(drop);
        if let Err(e) = &supported {
            workers[0] = Err(Error::new(e.kind(), "RWF_DONTCACHE", e.to_string()));
        }
        let paths: Vec<_> = self.set.paths().into_iter().take(cell.files).collect();
        let each = self.set.each;
        let kernel = |open, flags| crate::rivals::fileset::kernel_parts(&paths, each, open, flags);
        let direct = kernel(OFlags::DIRECT, ReadWriteFlags::empty())?;
        let free = kernel(OFlags::empty(), DONTCACHE)?;
        let with = |strategy: &str, turn: &Turn| {
            let parts = ours.with(IoFlags::UNCACHED, strategy)?;
            let slice = timed(&parts, &self.load(cell, turn), || ours.sync())?;
            ours.cache.drop_clean();
            Ok(slice)
        };
        let on = |parts: &Parts<KernelFile>, turn: &Turn| {
            timed(parts, &self.load(cell, turn), || parts.sync())
        };
        let mut grown = 0;
        let mut variants = vec![Variant::new("direct", |turn| on(&direct, turn))];
        let measured = &ours;
        let grown_ref = &mut grown;
        variants.push(Variant::new("ours", |turn| {
            let before = measured.resident_bytes();
            let parts = measured.with(IoFlags::UNCACHED, "ours")?;
            let slice = timed(&parts, &self.load(cell, turn), || measured.sync())?;
            drop(parts);
            *grown_ref = measured.resident_bytes().saturating_sub(before).max(*grown_ref);
            Ok(slice)
        }));
        if cell.strategies {
            variants.push(Variant::new("ours-dropbehind", |turn| with("dropbehind", turn)));
            variants.push(Variant::new("ours-noaccess", |turn| with("noaccess", turn)));
        }
        match &supported {
            Ok(()) => variants.push(Variant::new(FREE, |turn| {
                let slice = on(&free, turn)?;
                self.set.drop_pages().map(|()| slice)
            })),
            Err(e) => report.left_out("dontcache writes without a memory cgroup", e),
        }
        for (name, worker) in ["dontcache", "kernel-buffered"].into_iter().zip(&mut workers) {
            let (bench, paths) = (self, &paths);
            match worker {
                Ok(worker) => variants.push(Variant::new(name, move |turn| {
                    let load = bench.load(cell, turn);
                    let slice = worker.set_slice(paths, each, &load, name == "dontcache")?;
                    bench.set.drop_pages().map(|()| slice)
                })),
                Err(e) => report.left_out(&format!("{name} writes in a memory cgroup"), e),
            }
        }
        let outcome = alternate(&mut variants, &self.plan())?;
        drop(variants);
        outcome.add_rows(report, cell.name);
        outcome.add_notes(report, cell.name, "direct");
        add_ratios(&outcome, cell, report);
        if cell.strategies {
            add_summary(&outcome, report);
        }
        let title = format!("{}: {} KiB, {} writers", cell.name, cell.block >> 10, cell.jobs);
        report.plots.push(outcome.rates_plot("uncached", title));
        Ok(grown)
    }
}

/// The variant RWF_DONTCACHE without a cgroup.
const FREE: &str = "dontcache-no-cgroup";

fn p999(slice: &Slice) -> f64 {
    slice.hist.percentile(99.9) as f64
}

fn add_ratios(outcome: &Outcome, cell: &Cell, report: &mut Report) {
    let name = cell.name;
    let both = ["dontcache", FREE];
    let ratio = outcome.ratio_to_best("ours", &both, false, Slice::rate);
    report.ratio_with_bar(cell.ratio, ratio, Good::AtLeast, cell.bar);
    let late = outcome.ratio_to_best("ours", &both, true, p999);
    report.ratio_with_bar(cell.late, late, Good::AtMost, cell.late_bar);
    for (suffix, rival) in [("dontcache_in_cgroup", "dontcache"), ("dontcache_no_cgroup", FREE)] {
        report.ratio(&format!("{name}_vs_{suffix}"), outcome.ratio("ours", rival));
        let late = outcome.ratio_of("ours", rival, p999);
        report.ratio(&format!("{name}_p999_vs_{suffix}"), late);
    }
    let order = if cell.random { "random" } else { "sequential" };
    let text = format!("{order} {} KiB writes, {} at a time", cell.block >> 10, cell.jobs);
    let rivals = [
        ("direct", "O_DIRECT"),
        ("dontcache", "RWF_DONTCACHE in a cgroup"),
        (FREE, "RWF_DONTCACHE without a cgroup"),
        ("kernel-buffered", "kernel buffered in a cgroup"),
    ];
    outcome.compare(report, &text, "ours", &rivals);
}

fn add_summary(outcome: &Outcome, report: &mut Report) {
    let text = |variant: &str| {
        let late = |s: &Slice| p999(s) / 1e6;
        let values: Vec<f64> = outcome.per_round(variant).iter().map(late).collect();
        format!("p99.9 {:.2} ms", median(&values))
    };
    report.summaries.push(Summary {
        behaviour: "uncached",
        promise: "what is cached is served and stays, the rest leaves nothing".into(),
        baseline: text("ours-noaccess"),
        patch: text("ours-dropbehind"),
        ours: text("ours"),
        kernel: text("dontcache"),
    });
}
