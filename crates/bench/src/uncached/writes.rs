//! Uncached writes: sequential, random, by four writers, 64 KiB over 32 files; and a buffered writer
//! beside an uncached one.
//!
//! Invariants: T1 a slice's time ends after fdatasync (ours: `sync_data`), so all its bytes are on the
//! device, whoever wrote them there; latencies are of the write calls alone. T2 a slice begins with
//! nothing of the files in either cache. T3 the kernel's caching writers run in a memory cgroup of our
//! budget each.

use super::setting::FILES;
use crate::harness::alternate::{Outcome, Plan, Turn, Variant, alternate};
use crate::harness::load::{Load, Pattern, Slice, Target};
use crate::harness::options::Options;
use crate::report::model::{Good, Report, Summary, median};
use crate::rivals::fileset::{FileSet, OurSet, Parts, timed};
use crate::rivals::kernel::{DONTCACHE, KernelFile};
use crate::rivals::worker::Worker;
use forebay_base::units::{MIB, format_size, round_down};
use forebay_base::{Error, IoFlags, Result};
use rustix::fs::OFlags;
use rustix::io::ReadWriteFlags;
use serde_json::json;
use std::time::{Duration, Instant};

/// One cell.
#[derive(Clone, Copy)]
struct Cell {
    name: &'static str,
    /// Name of the ratio of rates.
    ratio: &'static str,
    /// Name of the ratio of late calls.
    late: &'static str,
    block: usize,
    jobs: usize,
    files: usize,
    random: bool,
    /// Least rate against RWF_DONTCACHE.
    bar: f64,
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
        bar: 1.0,
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
        bar: 1.0,
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
        bar: 1.0,
        strategies: false,
    },
];

struct Bench<'a> {
    options: &'a Options,
    set: &'a FileSet,
    budget: u64,
}

/// Runs the cells, then the competing writers.
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
    bench.compete(report)
}

impl Bench<'_> {
    fn plan(&self) -> Plan {
        let quick = self.options.quick;
        Plan {
            rounds: self.options.rounds_or(1, 5),
            cycles: if quick { 1 } else { 2 },
            slice: self.options.millis(60, 400),
            passes: 1,
            gate: Some("direct"),
            repeats_max: if quick { 0 } else { 2 },
            lines: self.options.lines,
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

    /// Returns the bytes by which ours grew.
    fn cell(&self, cell: &Cell, report: &mut Report) -> Result<u64> {
        let ours = OurSet::open(self.options, self.set, cell.files, self.budget, false)?;
        let start = |kind: &str| Worker::start(&format!("{}-{kind}", cell.name), self.budget);
        let mut workers = [start("dontcache"), start("buffered")];
        let supported = KernelFile::dontcache(self.set.open_first()?);
        if let Err(e) = supported {
            workers[0] = Err(e);
        }
        let paths: Vec<_> = self.set.paths().into_iter().take(cell.files).collect();
        let each = self.set.each;
        let kernel = |open, flags| crate::rivals::fileset::kernel_parts(&paths, each, open, flags);
        let direct = kernel(OFlags::DIRECT, ReadWriteFlags::empty())?;
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
            variants.push(Variant::new("ours-private", |turn| with("private", turn)));
            variants.push(Variant::new("ours-dropbehind", |turn| with("dropbehind", turn)));
            variants.push(Variant::new("ours-noaccess", |turn| with("noaccess", turn)));
        }
        for (name, worker) in ["dontcache", "kernel-buffered"].into_iter().zip(&mut workers) {
            let (bench, paths) = (self, &paths);
            match worker {
                Ok(worker) => variants.push(Variant::new(name, move |turn| {
                    let load = bench.load(cell, turn);
                    let slice = worker.set_slice(paths, each, &load, name == "dontcache")?;
                    bench.set.drop_pages().map(|()| slice)
                })),
                Err(e) => report.not_run(&format!("{name} writes in a memory cgroup"), e),
            }
        }
        let outcome = alternate(&mut variants, &self.plan())?;
        drop(variants);
        outcome.add_rows(report, cell.name);
        outcome.add_notes(report, cell.name, "direct");
        add_ratios(&outcome, cell, report);
        let title = format!("{}: {} KiB, {} writers", cell.name, cell.block >> 10, cell.jobs);
        report.plots.push(outcome.rates_plot("uncached", title));
        Ok(grown)
    }

    /// Two files, a writer each, one uncached: bytes accepted in the same time.
    fn compete(&self, report: &mut Report) -> Result<()> {
        let time = self.options.millis(200, 2000);
        let (mut fair, mut sums) = (Vec::new(), Vec::new());
        let ours = OurSet::open(self.options, self.set, 2, self.budget, false)?;
        for _ in 0..self.options.rounds_or(1, 3) {
            let uncached = ours.with(IoFlags::UNCACHED, "ours")?;
            let buffered = ours.with(IoFlags::empty(), "ours")?;
            let (a, b) = beside(&uncached.parts[0], &buffered.parts[1], self.set.each, time)?;
            ours.sync()?;
            ours.cache.drop_clean();
            fair.push(a / b.max(1.0));
            sums.push((a + b) / time.as_secs_f64() / 1048576.0);
        }
        report.row("ours", "competing_writers_fairness", "1", &fair);
        report.row("ours", "competing_writers_sum", "MiB/s", &sums);
        let value = median(&fair);
        report.ratio_with_bar("competing_writers_fairness", value, Good::AtLeast, 0.8);
        report.ratio_with_bar(
            "competing_writers_fairness_inverse",
            1.0 / value,
            Good::AtLeast,
            0.8,
        );
        let worker = Worker::start("compete", self.budget);
        let kernel = worker.and_then(|mut worker| {
            let paths = self.set.paths();
            let job = json!({ "job": "compete", "path": paths[0], "other": paths[1],
                "each": self.set.each, "millis": time.as_millis() as u64 });
            worker.ask(&job)
        });
        match kernel {
            Ok(answer) => {
                let real = |key: &str| answer[key].as_f64().unwrap_or(f64::NAN);
                let fair = real("uncached") / real("buffered");
                report.row("kernel", "competing_writers_fairness", "1", &[fair]);
            }
            Err(e) => report.not_run("kernel's competing writers in a memory cgroup", e),
        }
        self.set.drop_pages()
    }
}

/// Two writers of 128 KiB at a time, each round and round its file: bytes each has got through.
pub fn beside(
    a: &(dyn Target + Sync),
    b: &(dyn Target + Sync),
    size: u64,
    time: Duration,
) -> Result<(f64, f64)> {
    const BLOCK: u64 = 128 << 10;
    let end = Instant::now() + time;
    let writer = |target: &(dyn Target + Sync)| -> Result<f64> {
        let buf = forebay_base::buf::AlignedBuf::new(BLOCK as usize);
        let mut written = 0;
        while Instant::now() < end {
            target.write(&buf, written % (size / BLOCK * BLOCK))?;
            written += BLOCK;
        }
        Ok(written as f64)
    };
    std::thread::scope(|scope| {
        let other = scope.spawn(|| writer(b));
        let own = writer(a);
        Ok((own?, other.join().expect("a writer returns")?))
    })
}

fn add_ratios(outcome: &Outcome, cell: &Cell, report: &mut Report) {
    let name = cell.name;
    let ratio = outcome.ratio("ours", "dontcache");
    report.ratio_with_bar(cell.ratio, ratio, Good::AtLeast, cell.bar);
    let late = |s: &Slice| s.hist.percentile(99.9) as f64;
    let late = outcome.ratio_of("ours", "dontcache", late);
    report.ratio_with_bar(cell.late, late, Good::AtMost, 0.5);
    report.ratio(&format!("{name}_vs_direct"), outcome.ratio("ours", "direct"));
    report.ratio(&format!("{name}_vs_kernel_buffered"), outcome.ratio("ours", "kernel-buffered"));
    if !cell.strategies {
        return;
    }
    for other in ["private", "dropbehind", "noaccess"] {
        let ratio = outcome.ratio(&format!("ours-{other}"), "dontcache");
        report.ratio(&format!("{other}_{name}_vs_dontcache"), ratio);
    }
    let text = |variant: &str| {
        let late = |s: &Slice| s.hist.percentile(99.9) as f64 / 1e6;
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

/// The worker's side of the competing writers.
pub fn compete_here(job: &serde_json::Value) -> Result<serde_json::Value> {
    let path = |key: &str| std::path::PathBuf::from(job[key].as_str().unwrap_or_default());
    let open = |key: &str| crate::harness::image::open_with(&path(key), OFlags::empty());
    let uncached = KernelFile { file: open("path")?, flags: DONTCACHE };
    let buffered = KernelFile::new(open("other")?);
    let time = Duration::from_millis(job["millis"].as_u64().unwrap_or(100));
    let (a, b) = beside(&uncached, &buffered, job["each"].as_u64().unwrap_or(1 << 20), time)?;
    for file in [&uncached.file, &buffered.file] {
        file.sync_data().map_err(|e| Error::from_io("fdatasync", e))?;
    }
    Ok(json!({ "uncached": a, "buffered": b }))
}
