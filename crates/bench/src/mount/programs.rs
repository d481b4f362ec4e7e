//! `programs`: programs as they are used every day. tar unpacks a tree of sources, make compiles a
//! project, git and a search go over the tree, SQLite commits small transactions and reads rows.
//!
//! The variants are a mount in the default mode, one with `cache=own`, the empty server for the
//! loads that need no stored content, and XFS on a loop. A ratio is the time over that of a rival.
//!
//! Each load does the same work on each variant, and checks its result. The tree of `search` and
//! `status` is as old as [`SETTLED`] when they begin. The last program before each of their slices
//! was the same one, so that all that can be cached is. The empty server caches names and
//! attributes, and no content: in the goal of `search` it is the rival of `cache=own`.

mod loads;
mod run;
mod sources;

use super::ground::{Ground, Plot, Who, all};
use super::read::RIVALS;
use crate::harness::alternate::{Outcome, Plan, Turn, Variant, alternate, whole_machine};
use crate::harness::backing::Backing;
use crate::harness::load::Slice;
use crate::harness::meter::resident_bytes;
use crate::harness::options::Options;
use crate::harness::sys::page_cache_bytes;
use crate::report::lack::not_installed;
use crate::report::model::{Good, Report};
use crate::rivals::mounted::words_of_environment;
use crate::rivals::server::program_exists;
use forebay_base::units::{GIB, MIB, format_size};
use forebay_base::{Error, Result};
use loads::{LOADS, Load, Work, searcher, set_up};
use sources::Sources;
use std::path::Path;
use std::time::{Duration, Instant};

const VARIANTS: [Who; 4] = [Who::Ours, Who::Own, Who::Empty, Who::Xfs];
/// Programs, and the packages of Debian that have them.
const PROGRAMS: [(&str, &str); 5] = [
    ("tar", "tar"),
    ("cc", "build-essential"),
    ("make", "build-essential"),
    ("git", "git"),
    ("sqlite3", "sqlite3"),
];
/// Age of a file from which on a mount lets the kernel keep its attributes for a day.
const SETTLED: Duration = Duration::from_secs(61);

/// Runs the part.
pub fn run(options: &Options, report: &mut Report) -> Result<()> {
    if let Some((program, package)) = PROGRAMS.iter().find(|(name, _)| !program_exists(name)) {
        return Err(not_installed("start", format!("{program}: Debian's package {package}")));
    }
    let sources = Sources::new(options)?;
    let rows = if options.quick { (10, 1000) } else { (300, 50_000) };
    let work = Work { sources: &sources, rows };
    let (image, cache) = if options.quick { (192 * MIB, 64 * MIB) } else { (3 * GIB, 256 * MIB) };
    let plot = Plot { options, part: "programs", image: (image, Backing::Sparse), cache };
    let mut grounds = all(&plot, &VARIANTS, report);
    grounds.iter().try_for_each(|ground| set_up(&work, ground))?;
    let mut changed = Instant::now();
    for load in &LOADS {
        if load.repeats > 1 && !options.quick {
            // By then the kernel may keep all attributes of the tree.
            std::thread::sleep(SETTLED.saturating_sub(changed.elapsed()));
        }
        let outcome = alternated(options, &work, load, &grounds)?;
        if load.repeats == 1 {
            changed = Instant::now();
        }
        add_rows(report, load, &grounds, &outcome);
        judge(report, load, &outcome);
        if load.name == "search" {
            memory(report, &mut grounds)?;
        }
    }
    notes(report, &work, cache);
    Ok(())
}

fn alternated(
    options: &Options,
    work: &Work<'_>,
    load: &Load,
    grounds: &[Ground],
) -> Result<Outcome> {
    let repeats = if options.quick { 1 } else { load.repeats };
    let runs = |ground: &&Ground| load.on_empty || ground.name != Who::Empty.name();
    let variants = grounds.iter().filter(runs).map(|ground| {
        Variant::new(ground.name, move |_: &Turn| {
            (load.prepare)(work, ground)?;
            whole_machine(|| {
                let start = Instant::now();
                (0..repeats).try_for_each(|_| (load.run)(work, ground))?;
                let seconds = start.elapsed().as_secs_f64();
                Ok(Slice { ops: repeats, seconds, ..Slice::default() })
            })
        })
    });
    let plan = Plan::simple(options, options.rounds_or(1, 5), options.millis(1, 1));
    alternate(&mut variants.collect::<Vec<_>>(), &plan)
}

fn add_rows(report: &mut Report, load: &Load, grounds: &[Ground], outcome: &Outcome) {
    for ground in grounds {
        let rounds = outcome.per_round(ground.name);
        let mut row = |metric: &str, of: &dyn Fn(&Slice) -> f64| {
            let values = rounds.iter().map(|slice| of(slice) / slice.ops.max(1) as f64);
            let metric = format!("mount_{}_{metric}", load.name);
            report.row(ground.name, &metric, "s", &values.collect::<Vec<_>>());
        };
        row("seconds", &|slice| slice.seconds);
        row("machine_cpu", &|slice| slice.machine.cpu_seconds);
    }
}

/// Adds the ratios, each time over time. The goals are of the modes that the bench chooses.
fn judge(report: &mut Report, load: &Load, outcome: &Outcome) {
    let chosen = words_of_environment().is_some_and(|words| words.contains("cache="));
    for (ours, prefix) in [(Who::Ours, "mount"), (Who::Own, "mount_own")] {
        for (rival, short) in [(Who::Xfs, "xfs"), (Who::Empty, "empty")] {
            if rival == Who::Empty && !load.on_empty {
                continue;
            }
            let value = outcome.ratio(rival.name(), ours.name());
            let name = format!("{prefix}_{}_time_vs_{short}", load.name);
            match load.goal {
                Some((of, to, goal)) if (of, to) == (ours, rival) && !chosen => {
                    report.ratio_with_bar(&name, value, Good::AtMost, goal);
                }
                _ => report.ratio(&name, value),
            }
        }
    }
    let cell = format!("on a mount, {}", load.name.replace('_', " "));
    // With content cached by the kernel, a server that caches none is no rival.
    let is_rival = |(name, _): &&(&str, &str)| load.name != "search" || *name != Who::Empty.name();
    let rivals: Vec<_> = RIVALS.iter().filter(is_rival).copied().collect();
    outcome.compare(report, &cell, Who::Ours.name(), &rivals);
}

/// Memory with the tree cached: of the daemon, and what the kernel caches of the tree.
fn memory(report: &mut Report, grounds: &mut [Ground]) -> Result<()> {
    let mib = |bytes: u64| bytes as f64 / MIB as f64;
    for ground in grounds {
        let kernel = mib(cached_below(&ground.path().join("tree"))?);
        report.row(ground.name, "mount_tree_kernel_cache", "MiB", &[kernel]);
        if let Some(mounted) = ground.ours() {
            let daemon = resident_bytes(mounted.pid()?).map_or(f64::NAN, mib);
            report.row(ground.name, "mount_tree_daemon_memory", "MiB", &[daemon]);
        }
    }
    Ok(())
}

/// Bytes of all files below a directory that are in the kernel's page cache.
fn cached_below(dir: &Path) -> Result<u64> {
    let fail = |e| Error::from_io("page cache", e).with_path(dir);
    let mut sum = 0;
    for entry in std::fs::read_dir(dir).map_err(fail)? {
        let entry = entry.map_err(fail)?;
        let kind = entry.file_type().map_err(fail)?;
        if kind.is_dir() {
            sum += cached_below(&entry.path())?;
        } else if kind.is_file() {
            let file = std::fs::File::open(entry.path()).map_err(fail)?;
            let len = file.metadata().map_err(fail)?.len();
            sum += if len == 0 { 0 } else { page_cache_bytes(&file, 0, len).map_err(fail)? };
        }
    }
    Ok(sum)
}

fn notes(report: &mut Report, work: &Work<'_>, cache: u64) {
    let (sources, (writes, reads)) = (work.sources, work.rows);
    report.note(format!(
        "mount programs: a tree of {} files, {} in all; a project of {} files; {writes} \
         transactions and {reads} lookups of SQLite; `search` is {}; cache {}",
        sources.files,
        format_size(sources.bytes),
        sources.units,
        searcher(),
        format_size(cache)
    ));
}
