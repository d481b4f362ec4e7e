//! `stable`: the real `dbench 4` on a mounted volume, whose checksums need bytes that do not change
//! during a write-out. With the strategy `wait`, writers wait for the write-out, as in the kernel.
//! With `cow`, a block that a writer hits is copied. The rival is XFS on a loop device.
//! Both strategies run on one mount, in turns, and each run begins on an empty directory. The
//! longest time of a strategy is the median, over its runs, of each run's longest time.

use super::ground::{self, Ground, Plot, Who};
use crate::harness::backing::Backing;
use crate::harness::options::Options;
use crate::report::lack::not_installed;
use crate::report::model::{Good, Report, median};
use crate::rivals::server::program_exists;
use crate::stable::dbench::{self, Table};
use forebay_base::units::{GIB, MIB, format_size};
use forebay_base::{Error, Result};

/// The cache's counters that are reported.
const COUNTED: [&str; 4] = ["stable_waits", "stable_hits", "stable_copies", "stable_fallbacks"];
const WAIT: &str = "mount-wait";
const COW: &str = "mount-cow";

/// One run: dbench's table, and the increase of the cache's counters.
struct Run {
    table: Table,
    counted: [f64; COUNTED.len()],
}

/// Runs the part.
pub fn run(options: &Options, report: &mut Report) -> Result<()> {
    if !program_exists("dbench") {
        return Err(not_installed("dbench", "Debian's package dbench has it"));
    }
    let seconds = options.seconds.map_or(if options.quick { 1 } else { 12 }, |s| s.max(1.0) as u64);
    let cache = if options.quick { 64 * MIB } else { 256 * MIB };
    let plot = Plot { options, part: "stable", image: (6 * GIB, Backing::Sparse), cache };
    let mut grounds = ground::all(&plot, &[Who::Ours, Who::Xfs], report);
    let mut found: [(&str, Vec<Run>); 3] = [WAIT, COW, Who::Xfs.name()].map(|n| (n, Vec::new()));
    for round in 0..options.rounds_or(1, 5) {
        for turn in 0..found.len() {
            let (name, runs) = &mut found[(turn + round) % 3];
            let kernels = *name == Who::Xfs.name();
            let ground = grounds.iter_mut().find(|g| (g.name == Who::Xfs.name()) == kernels);
            if let Some(ground) = ground {
                runs.push(one(ground, name, seconds)?);
            }
        }
    }
    for (name, runs) in &found {
        rows(report, name, runs);
    }
    let longest = |n: usize, op: &str| {
        median(&found[n].1.iter().map(|run| run.table.max(op)).collect::<Vec<_>>())
    };
    let ratio = longest(1, "WriteX") / longest(0, "WriteX");
    report.ratio("mount_dbench_cow_max_vs_wait", ratio);
    let waits = found[1].1.iter().map(|run| run.counted[0]).fold(0.0, f64::max);
    report.ratio_with_bar("mount_dbench_cow_waits", waits, Good::AtMost, 0.0);
    table(report, &found);
    report.note(format!(
        "mount stable: dbench 4, {seconds} s a run, cache {}, {} runs of each",
        format_size(cache),
        found[0].1.len()
    ));
    Ok(())
}

fn one(ground: &mut Ground, name: &str, seconds: u64) -> Result<Run> {
    let at = ground.path().join("dbench");
    let counters = |ground: &mut Ground| -> Result<[f64; COUNTED.len()]> {
        let mut all = [0.0; COUNTED.len()];
        if let Some(mounted) = ground.ours() {
            let stat = mounted.stat()?;
            for (value, name) in all.iter_mut().zip(COUNTED) {
                *value = stat["stats"][name].as_f64().unwrap_or(f64::NAN);
            }
        }
        Ok(all)
    };
    if let Some(mounted) = ground.ours() {
        mounted.tune(&format!("stable={}", name.trim_start_matches("mount-")))?;
    }
    let before = counters(ground)?;
    let table = dbench::run(&at, seconds)?;
    let mut counted = counters(ground)?;
    counted.iter_mut().zip(before).for_each(|(now, before)| *now -= before);
    // The next run begins on an empty directory.
    std::fs::remove_dir_all(&at).map_err(|e| Error::from_io("remove", e).with_path(&at))?;
    ground.sync()?;
    Ok(Run { table, counted })
}

fn rows(report: &mut Report, name: &str, runs: &[Run]) {
    let mut row = |metric: &str, unit, of: &dyn Fn(&Run) -> f64| {
        let values: Vec<f64> = runs.iter().map(of).collect();
        report.row(name, &format!("mount_dbench_{metric}"), unit, &values);
    };
    row("write_avg", "ms", &|run| run.table.avg("WriteX"));
    row("write_max", "ms", &|run| run.table.max("WriteX"));
    row("flush_avg", "ms", &|run| run.table.avg("Flush"));
    row("flush_max", "ms", &|run| run.table.max("Flush"));
    row("throughput", "MB/s", &|run| run.table.throughput);
    if name != Who::Xfs.name() {
        for (n, counter) in COUNTED.iter().enumerate() {
            row(counter, "1/run", &|run| run.counted[n]);
        }
    }
}

/// Adds notes with a table as that of the kernel patch: mean and maximum of each operation, by
/// variant.
fn table(report: &mut Report, found: &[(&str, Vec<Run>); 3]) {
    let Some(first) = found[0].1.first() else { return };
    report.note("dbench 4, medians of the runs, ms:".to_string());
    let mut head = format!("{:<16}", "operation");
    for (name, _) in found {
        head.push_str(&format!("{:>24}", format!("{name} avg, max")));
    }
    report.note(head);
    for line in &first.table.lines {
        let mut text = format!("{:<16}", line.op);
        for (_, runs) in found {
            let of = |figure: &dyn Fn(&Table) -> f64| {
                median(&runs.iter().map(|run| figure(&run.table)).collect::<Vec<_>>())
            };
            let (avg, max) = (of(&|t| t.avg(&line.op)), of(&|t| t.max(&line.op)));
            text.push_str(&format!("{avg:>12.3}{max:>12.3}"));
        }
        report.note(text);
    }
}
