//! `read`: random 4 KiB reads of a completely cached file, by one client and by as many as CPUs.
//!
//! The file stays open, and was read completely before the first slice. So it is in the kernel's
//! cache, of our mount, too, unless the environment sets `cache=own`: then it is in Forebay's, and
//! each read is a request to the daemon. Such a run is judged against the empty server, the other
//! one against XFS.

use super::ground::{self, ALL, Ground, Plot};
use crate::harness::alternate::{Outcome, Plan, Turn, Variant, alternate, whole_machine};
use crate::harness::backing::Backing;
use crate::harness::load::{Load, Pattern, Target, run as run_slice};
use crate::harness::options::Options;
use crate::report::model::{Good, Report};
use crate::rivals::kernel::KernelFile;
use crate::rivals::mounted::words_of_environment;
use forebay_base::Result;
use forebay_base::buf::AlignedBuf;
use forebay_base::units::{KIB, MIB, format_size};

const FILE: &str = "cached";

/// Runs the part.
pub fn run(options: &Options, report: &mut Report) -> Result<()> {
    let size = options.size_or(16 * MIB, 512 * MIB);
    let plot = Plot {
        options,
        part: "read",
        image: (2 * size + 64 * MIB, Backing::Sparse),
        cache: 2 * size + 64 * MIB,
    };
    let grounds = ground::all(&plot, &ALL, report);
    let mut files = Vec::new();
    for ground in &grounds {
        ground.fill(FILE, size)?;
        let file = ground.file(FILE)?;
        read_all(&file, size)?;
        files.push(file);
    }
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let own = words_of_environment().is_some_and(|words| words.contains("cache=own"));
    for (threads, name, bar_empty) in [(1, "j1", 0.85), (cpus, "jcpus", 0.8)] {
        let outcome = alternated(options, &grounds, &files, (threads, size))?;
        let prefix = format!("mount_read_{name}");
        outcome.add_rows(report, &prefix);
        let vs = |rival: &str| format!("{prefix}_vs_{rival}");
        let (empty, xfs) =
            (outcome.ratio("mount", "empty-fuse"), outcome.ratio("mount", "xfs-on-loop"));
        if own {
            report.ratio_with_bar(&vs("empty"), empty, Good::AtLeast, bar_empty);
            report.ratio(&vs("xfs"), xfs);
        } else {
            report.ratio(&vs("empty"), empty);
            report.ratio_with_bar(&vs("xfs"), xfs, Good::AtLeast, 0.9);
        }
        let cell = format!("4 KiB random reads, cached, {threads} at a time");
        compare(&outcome, report, &cell);
        let title = format!(
            "a mount: 4 KiB random reads of {}, cached, {threads} at a time",
            format_size(size)
        );
        report.plots.push(outcome.rates_plot("mount", title));
    }
    report.note(format!("mount read: a file of {}, {cpus} CPUs", format_size(size)));
    Ok(())
}

/// Rivals, and their names in the tables of the best and worst cells.
pub const RIVALS: [(&str, &str); 5] = [
    ("empty-fuse", "an empty FUSE server"),
    ("xfs-on-loop", "kernel xfs on loop"),
    ("host", "the host's file system"),
    ("kernel-loop-buffered", "kernel loop, cached by the kernel"),
    ("kernel-loop-direct", "kernel loop, direct I/O, which reads the disk"),
];

/// Adds the ratio of Forebay to each rival, for the best and worst cells.
pub fn compare(outcome: &Outcome, report: &mut Report, cell: &str) {
    outcome.compare(report, &format!("on a mount, {cell}"), "mount", &RIVALS);
}

/// Reads a complete file twice, so that the cache takes its pages for used more than once.
pub fn read_all(file: &KernelFile, size: u64) -> Result<()> {
    let mut buf = AlignedBuf::new(MIB as usize);
    for _ in 0..2 {
        (0..size).step_by(buf.len()).try_for_each(|at| file.read(&mut buf, at))?;
    }
    Ok(())
}

fn alternated(
    options: &Options,
    grounds: &[Ground],
    files: &[KernelFile],
    (threads, size): (usize, u64),
) -> Result<Outcome> {
    let variants = grounds.iter().zip(files).map(|(ground, file)| {
        Variant::new(ground.name, move |turn: &Turn| {
            let load = Load {
                write: false,
                pattern: Pattern::Random,
                threads,
                block: (4 * KIB) as usize,
                start: 0,
                len: size,
                time: turn.time,
                seed: turn.seed,
                sample_every: 8,
            };
            whole_machine(|| run_slice(file, &load))
        })
    });
    let mut variants: Vec<_> = variants.collect();
    let plan = Plan {
        cycles: if options.quick { 1 } else { 3 },
        passes: if options.quick { 1 } else { 2 },
        gate: Some("empty-fuse"),
        repeats_max: if options.quick { 0 } else { 3 },
        ..Plan::simple(options, options.rounds_or(1, 7), options.millis(40, 400))
    };
    alternate(&mut variants, &plan)
}
