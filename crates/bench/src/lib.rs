//! forebay-bench: compares Forebay with the kernel, other servers and plain memcpy, in alternating
//! slices.
//!
//! Reading order: [`harness`] (measurement), [`rivals`] (programs and caches that are compared),
//! [`report`] (results), then one module per bench. `docs/internals/benchmarking.md` describes each
//! row.
//!
//! Unsafe: only in [`harness::sys`] and in the module `database::engine`.

#![deny(unsafe_code)]

pub mod alloc;
pub mod database;
pub mod dirty;
pub mod files;
pub mod harness;
pub mod hit;
pub mod hotset;
mod jobs;
pub mod live;
pub mod looped;
pub mod memcg;
pub mod mount;
pub mod nbd;
pub mod report;
pub mod resize;
pub mod rivals;
pub mod stable;
pub mod start;
pub mod uncached;
pub mod volume;

use clap::ArgMatches;
use forebay_base::Result;
use harness::meter::MachineTime;
use harness::options::{self, ALL, Described, Options};
use harness::{image, machine};
use report::model::{self, Report};
use report::options::{REPORT, ReportOptions};
use report::results::Outputs;
use report::{five, results};
use rivals::{empty, loopdev, mounted, worker};

type BenchFn = fn(&Options) -> Result<Report>;

/// Every bench: its name, a summary, its parts, and its function.
const BENCHES: &[(&str, &str, &[&str], BenchFn)] = &[
    ("hit", "4 KiB reads and writes of cached data against pread and memcpy", &[], hit::run),
    (
        "dirty",
        "small changes made durable at once: bytes written per byte, IOPS",
        &["dd", "fio", "volume", "jobs", "delay", "nbd"],
        dirty::run,
    ),
    (
        "stable",
        "writers that meet their blocks in flight: wait, snapshot, cow, auto",
        &["delay", "scarce", "disk", "kernel", "volume", "verify"],
        stable::run,
    ),
    (
        "uncached",
        "reads and writes that leave nothing behind, and a hot set during them",
        &["files", "writes", "random", "hotset", "sequential", "volume"],
        uncached::run,
    ),
    (
        "loop",
        "the image opened with and without O_DIRECT, and the kernel's loop",
        &["cells", "depth", "memory", "sparse", "attached"],
        looped::run,
    ),
    (
        "nbd",
        "random 4 KiB reads over NBD against nbdkit and qemu-nbd",
        &["hits", "misses", "status"],
        nbd::run,
    ),
    (
        "files",
        "thousands of files on one cache: threads, memory, time; a dead device",
        &["many", "dead"],
        files::run,
    ),
    ("start", "from exec until the first answer, by size of the cache", &[], start::run),
    ("resize", "the cache made small and large again under load", &[], resize::run),
    (
        "alloc",
        "parallel large writers: extents, on a disk with an arm and on this one",
        &["delay", "disk", "small", "sim", "kernel"],
        alloc::run,
    ),
    (
        "volume",
        "the volume, and XFS, ext4 and btrfs on a loop and on the host",
        &volume::PART_NAMES,
        volume::run,
    ),
    (
        "mount",
        "a volume's mount, an empty FUSE server and XFS on a loop; `many` takes 2,000,000 files, or \
         --size",
        &mount::PART_NAMES,
        mount::run,
    ),
    ("live", "what a client of the live view costs", &[], live::run),
    (
        "database",
        "SQLite in process during a backup, and on the kernel's cache of the same size",
        &["files", "itself", "brisk", "fast"],
        database::run,
    ),
    ("memcg", "the server under mixed load inside a memory cgroup", &[], memcg::run),
];

fn described() -> Vec<Described> {
    BENCHES.iter().map(|(name, about, parts, _)| (*name, *about, *parts)).collect()
}

/// The command line of `bench`.
pub fn command() -> clap::Command {
    let command = options::command(&described());
    let report = report::options::command(&command);
    command.subcommand(report)
}

/// Runs the work of a child process that a bench starts; returns its exit code. `None`: the
/// arguments do not ask for such work.
pub fn helper_process(args: &[String]) -> Option<u8> {
    match args.split_first() {
        Some((first, _)) if first == worker::WORKER => Some(jobs::serve()),
        Some((first, rest)) if first == empty::EMPTY => Some(empty::serve(rest)),
        _ => None,
    }
}

/// Runs `NAME [flags]` from the command line. Returns the exit code: 0 if the bench ran (also if it
/// missed bars), 1 if a part failed, 2 for invalid arguments.
pub fn run(args: Vec<String>) -> u8 {
    if let Some(code) = helper_process(&args) {
        return code;
    }
    match command().no_binary_name(true).try_get_matches_from(args) {
        Ok(matches) => run_matched(&matches),
        Err(e) => refused(&e),
    }
}

/// Prints help or the error of the command line; returns the exit code.
fn refused(e: &clap::Error) -> u8 {
    // If standard error is closed, there is no other place to report to.
    let _printed = e.print();
    u8::try_from(e.exit_code()).unwrap_or(2)
}

/// As [`run`], for a command line that [`command`] has matched.
pub fn run_matched(matches: &ArgMatches) -> u8 {
    let Some((name, matches)) = matches.subcommand() else { return 2 };
    if name == REPORT {
        return match ReportOptions::from_matches(matches) {
            Ok(options) => exit_code(results::report(&options)),
            Err(e) => refused(&e),
        };
    }
    match Options::from_matches(name, matches, &described()) {
        Ok(options) => run_benches(&options),
        Err(e) => refused(&e),
    }
}

fn run_benches(options: &Options) -> u8 {
    let chosen = BENCHES.iter().filter(|(name, ..)| match options.name.as_str() {
        ALL => !options.without.iter().any(|without| without == *name),
        wanted => wanted == *name,
    });
    let machine = machine::describe(&options.dir);
    println!("machine: {}", model::machine_line(&machine));
    loopdev::sweep(&options.dir);
    mounted::sweep(&options.dir);
    if !options.keep {
        image::sweep(&options.dir);
    }
    let mut all = Report::new(options.quick);
    let (mut found, mut failed) = (Vec::new(), 0);
    for (name, text, _, bench) in chosen {
        println!("\n== {name}: {text}");
        let report = one(name, *bench, options).unwrap_or_else(|e| {
            eprintln!("bench {name}: {e}");
            let mut report = Report::new(options.quick);
            report.fail(name, e);
            report
        });
        failed += report.failed();
        found.push(results::describe(name, text, &options.words, &report, machine.clone()));
        all.absorb(report);
    }
    if options.name == ALL {
        let quick =
            if options.quick { "quick run, small and short: not for quoting\n" } else { "" };
        print!("\n{quick}{}", five::table(&found));
    }
    let outputs = Outputs {
        name: &options.name,
        html: options.html.as_deref(),
        json: options.json.as_deref(),
    };
    let written = exit_code(results::write(&outputs, &all, found, machine));
    if options.quick {
        println!("\na quick run judges nothing: its figures are not for quoting");
    } else {
        println!("\nbars missed: {}, not judged: {}", all.missed(), all.unjudged());
    }
    if failed > 0 {
        eprintln!("bench: {failed} parts failed, named above");
        return 1;
    }
    written
}

/// Runs one bench and prints its table.
fn one(name: &str, bench: BenchFn, options: &Options) -> Result<Report> {
    let before = MachineTime::now();
    let mut report = bench(options)?;
    report.quick = options.quick;
    let (others, stolen) = MachineTime::now().others_percent(&before);
    report.note(format!(
        "{name}: others used {others:.0} % of the CPUs meanwhile, {stolen:.0} % were stolen by \
         the hypervisor"
    ));
    print!("{}", report.table());
    Ok(report)
}

fn exit_code(result: Result<()>) -> u8 {
    match result {
        Ok(()) => 0,
        Err(e) => {
            eprintln!("bench: {e}");
            1
        }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn arguments_without_sense_end_with_status_2() {
        for words in [&["nonsense"][..], &["hit", "--bad"], &["nbd", "--part", "none"], &[]] {
            let words = words.iter().map(|word| word.to_string()).collect();
            assert_eq!(super::run(words), 2);
        }
        assert_eq!(super::run(vec!["mount".into(), "--help".into()]), 0);
    }
}
