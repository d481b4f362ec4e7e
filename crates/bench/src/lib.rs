//! forebay-bench: measures Forebay beside the kernel and bare copies, in alternating slices.
//!
//! Reading order: [`harness`] (how is measured), [`rivals`] (who is measured), [`report`] (what was
//! found), then one module per bench. `docs/internals/benchmarking.md` says what each row is.
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

use forebay_base::Result;
use harness::meter::MachineTime;
use harness::options::{Options, REPORT, USAGE};
use harness::{image, machine};
use report::model::{self, Report};
use report::{five, results};
use rivals::{empty, loopdev, mounted, worker};

type BenchFn = fn(&Options) -> Result<Report>;

/// Every bench, with what it measures in a few words.
const BENCHES: &[(&str, &str, BenchFn)] = &[
    ("hit", "4 KiB reads and writes of cached data against pread and memcpy", hit::run),
    ("dirty", "small changes made durable at once: bytes written per byte, IOPS", dirty::run),
    ("stable", "writers that meet their blocks in flight: wait, snapshot, cow, auto", stable::run),
    (
        "uncached",
        "reads and writes that leave nothing behind, and a hot set beside them",
        uncached::run,
    ),
    ("loop", "the image opened with and without O_DIRECT, beside the kernel's loop", looped::run),
    ("nbd", "random 4 KiB reads over NBD against nbdkit and qemu-nbd", nbd::run),
    ("files", "thousands of files on one cache: threads, memory, time; a dead device", files::run),
    ("start", "from exec until the first answer, by size of the cache", start::run),
    ("resize", "the cache made small and large again under load", resize::run),
    ("alloc", "parallel large writers: extents, on a disk with an arm and on this one", alloc::run),
    ("volume", "the volume beside XFS, ext4 and btrfs on a loop, and the host's", volume::run),
    ("mount", "a volume's mount beside an empty FUSE server and XFS on a loop", mount::run),
    ("live", "what it costs when somebody watches", live::run),
    (
        "database",
        "SQLite in process during a backup, and on the kernel's cache of the same size",
        database::run,
    ),
    ("memcg", "the server under mixed load inside a memory cgroup", memcg::run),
];

/// What `bench` takes, and what it can run.
fn usage() -> String {
    let names = BENCHES.iter().map(|(name, text, _)| format!("\n  {name:9} {text}"));
    let names: String = names.collect();
    format!(
        "{USAGE}\nNAME is one of:{names}\n  {:9} all of them, and what they say of each behaviour",
        "all"
    )
}

/// Runs `NAME [flags]` as the command line gives them and returns the exit code: 0 when the
/// bench ran (bars missed or not), 1 when a part of it failed, 2 for arguments that make no sense.
pub fn run(args: Vec<String>) -> i32 {
    if args.first().is_some_and(|arg| arg == worker::WORKER) {
        return jobs::serve();
    }
    if args.first().is_some_and(|arg| arg == empty::EMPTY) {
        return empty::serve(&args[1..]);
    }
    if args.iter().any(|arg| arg == "-h" || arg == "--help") {
        println!("{}", usage());
        return 0;
    }
    let options = match Options::parse(&args) {
        Ok(options) => options,
        Err(text) => {
            eprintln!("bench: {text}");
            return 2;
        }
    };
    if options.name == REPORT {
        return exit_code(results::report(&options));
    }
    let all = |name: &str| options.name == "all" && !options.without.iter().any(|w| w == name);
    let chosen: Vec<_> = BENCHES.iter().filter(|b| b.0 == options.name || all(b.0)).collect();
    if chosen.is_empty() {
        eprintln!("bench: no bench is called `{}`\n{}", options.name, usage());
        return 2;
    }
    let machine = machine::describe(&options.dir);
    println!("machine: {}", model::machine_line(&machine));
    loopdev::sweep(&options.dir);
    mounted::sweep(&options.dir);
    if !options.keep {
        image::sweep(&options.dir);
    }
    let mut all = Report::new(options.quick);
    let (mut found, mut failed) = (Vec::new(), 0);
    for (name, text, bench) in chosen {
        println!("\n== {name}: {text}");
        let report = one(name, *bench, &options).unwrap_or_else(|e| {
            eprintln!("bench {name}: {e}");
            let mut report = Report::new(options.quick);
            report.fail(name, e);
            report
        });
        failed += report.failed();
        found.push(results::describe(name, text, &args, &report, machine.clone()));
        all.absorb(report);
    }
    if options.name == "all" {
        let quick =
            if options.quick { "quick run, small and short: not for quoting\n" } else { "" };
        print!("\n{quick}{}", five::table(&found));
    }
    let written = exit_code(results::write(&options, &all, found, machine));
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

fn exit_code(result: Result<()>) -> i32 {
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
    fn an_unknown_name_is_a_usage_error() {
        assert_eq!(super::run(vec!["nonsense".into()]), 2);
        assert_eq!(super::run(vec!["hit".into(), "--bad".into()]), 2);
    }
}
