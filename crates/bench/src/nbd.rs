//! `nbd`: our export beside nbdkit and qemu-nbd, random 4 KiB reads by fio's nbd engine, client
//! on one core and server on the other.
//!
//! Invariants: D1 in the all-hits part both servers hold the same data in memory before the first
//! slice. D2 in the all-misses part each slice has a fresh server, starts with the machine's page
//! cache dropped (quick: the image's), and touches at most a tenth of the image. D3 usage is the
//! server's, not fio's.

use crate::fio::{self, FioJob};
use crate::harness::{Outcome, Plan, Turn, Variant, alternate};
use crate::image::{Image, drop_all_caches, drop_file_cache};
use crate::kernel::KernelFile;
use crate::load::{Load, Pattern, Slice, run as run_slice};
use crate::meter::{Watch, threads_of};
use crate::options::Options;
use crate::report::{Good, Report, median};
use crate::server::{Kind, Server, forebay_binary, program_exists};
use forebay_base::{Error, ErrorKind, Result};
use rustix::fs::OFlags;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const BLOCK: u64 = 4096;
const DEPTH: u32 = 16;
const LOOK: Duration = Duration::from_millis(100);
const CONNECTIONS: [u32; 2] = [1, 4];

/// Cores of client and server; none where there is one core or no taskset.
#[derive(Clone, Copy)]
struct Cores {
    client: Option<usize>,
    server: Option<usize>,
}

impl Cores {
    fn choose(report: &mut Report) -> Self {
        let cpus = std::thread::available_parallelism().map_or(1, |n| n.get());
        if cpus < 2 || !program_exists("taskset") {
            report.not_run("client and server pinned", "one core, or no taskset");
            return Self { client: None, server: None };
        }
        Self { client: Some(0), server: Some(1) }
    }
}

/// Runs both parts.
pub fn run(options: &Options) -> Result<Report> {
    let mut report = Report::default();
    if let Err(e) = fio::available() {
        report.not_run("nbd", e);
        return Ok(report);
    }
    let cores = Cores::choose(&mut report);
    if let Err(e) = forebay_binary() {
        report.not_run("rows of ours", e);
    }
    if options.wants("hits") {
        hits(options, cores, &mut report)?;
    }
    if options.wants("misses") {
        misses(options, cores, &mut report)?;
    }
    Ok(report)
}

fn job(turn: &Turn, connections: u32, bytes_max: u64) -> FioJob {
    FioJob {
        rw: "randread",
        block: BLOCK,
        depth: DEPTH,
        connections,
        millis: turn.time.as_millis() as u64,
        bytes_max,
        seed: turn.seed,
    }
}

/// One fio run against a server; the usage is the server's (D3).
fn slice(server: &Server, job: FioJob, cores: Cores) -> Result<Slice> {
    let mut watch = Watch::start(server.pid());
    let slices = std::thread::scope(|scope| {
        let client = scope.spawn(|| fio::run(&[job], &server.uri, cores.client));
        let mut next_look = Instant::now() + LOOK;
        while !client.is_finished() {
            std::thread::sleep(Duration::from_millis(5));
            if Instant::now() >= next_look {
                watch.look();
                next_look = Instant::now() + LOOK;
            }
        }
        client.join().expect("the client returns")
    });
    let mut slice = slices?.pop().expect("one job, one slice");
    slice.usage = watch.used();
    Ok(slice)
}

/// Copies with nbdcopy, so that the data is in the server's memory (D1).
pub(crate) fn nbdcopy(from: &str, to: &str) -> Result<()> {
    let mut command = Command::new("nbdcopy");
    command.args([from, to]).stdin(Stdio::null()).stdout(Stdio::null());
    let status = command.status().map_err(|e| Error::from_io("start nbdcopy", e))?;
    if status.success() {
        return Ok(());
    }
    Err(Error::new(ErrorKind::Io, "nbdcopy", format!("{from} to {to}: {status}")))
}

fn ours_kind(options: &Options, cache: u64, mode: &'static str) -> Kind {
    Kind::Ours { cache, mode, aio: options.aio.clone(), more: Vec::new() }
}

fn hits(options: &Options, cores: Cores, report: &mut Report) -> Result<()> {
    let size = options.size_or(32 << 20, 512 << 20);
    let image = Image::create(&options.dir, "nbd-hit", size, options.keep)?;
    let path = image.path();
    let text = path.display().to_string();
    let memory = Server::start(&Kind::NbdkitMemory(size), path, cores.server, None);
    let memory = memory.and_then(|server| nbdcopy(&text, &server.uri).map(|()| server));
    let kind = ours_kind(options, size * 2 + (64 << 20), "cached");
    let ours = Server::start(&kind, path, cores.server, None);
    let ours = ours.and_then(|server| nbdcopy(&server.uri, "null:").map(|()| server));
    let mut servers = Vec::new();
    for (name, server) in [("nbdkit-memory", memory), ("ours", ours)] {
        match server {
            Ok(server) => servers.push((name, server)),
            Err(e) => report.not_run(&format!("{name}, all in cache"), e),
        }
    }
    let plan = Plan {
        rounds: options.rounds_or(1, 7),
        cycles: 1,
        slice: options.millis(300, 2000),
        passes: 1,
        gate: None,
        repeats_max: 0,
        lines: options.lines,
    };
    for connections in CONNECTIONS {
        let mut variants: Vec<Variant<'_>> = Vec::new();
        for (name, server) in &servers {
            variants.push(Variant::new(name, move |turn| {
                slice(server, job(turn, connections, 0), cores)
            }));
        }
        let outcome = alternate(&mut variants, &plan)?;
        drop(variants);
        outcome.add_rows(report, &format!("nbd_hit_c{connections}"));
        let title = format!("4 KiB random reads, all in memory, connections: {connections}");
        report.plots.push(outcome.rates_plot("nbd", title));
        let ratio = outcome.ratio("ours", "nbdkit-memory");
        let name = format!("nbd_hit_vs_nbdkit_memory_c{connections}");
        report.ratio_with_bar(&name, ratio, Good::AtLeast, 1.2);
        add_switches(report, "hit", connections, &outcome);
    }
    if let Some((_, ours)) = servers.iter().find(|(name, _)| *name == "ours") {
        count_threads(ours, cores, report)?;
    }
    Ok(())
}

/// One row for the table of `hit`: the same image, all in our cache, over NBD.
pub fn hit_row(options: &Options, image: &Image, report: &mut Report) {
    let what = "ours over NBD, all in cache";
    let ran = fio::available().and_then(|()| {
        let cores = Cores::choose(report);
        let kind = ours_kind(options, image.size() * 2 + (64 << 20), "cached");
        let server = Server::start(&kind, image.path(), cores.server, None)?;
        nbdcopy(&server.uri, "null:")?;
        let turn = Turn { seed: 1, cycle: 0, time: options.millis(300, 3000) };
        slice(&server, job(&turn, 1, 0), cores)
    });
    match ran {
        Ok(slice) => {
            let name = "ours-over-nbd-depth-16";
            report.row(name, "read_rate", "1/s", &[slice.rate()]);
            let p999 = slice.hist.percentile(99.9) as f64 / 1e3;
            report.row(name, "read_p99_9", "us", &[p999]);
            let cpu = slice.usage.cpu_seconds * 1e6 / slice.ops.max(1) as f64;
            report.row(name, "read_cpu_per_io", "us", &[cpu]);
        }
        Err(e) => report.not_run(what, e),
    }
}

fn add_switches(report: &mut Report, part: &str, connections: u32, outcome: &Outcome) {
    let per_io = |s: &Slice| s.usage.voluntary as f64 / s.ops.max(1) as f64;
    let values: Vec<f64> = outcome.per_round("ours").iter().map(per_io).collect();
    let name = format!("nbd_{part}_voluntary_switches_per_io_c{connections}");
    report.ratio_with_bar(&name, median(&values), Good::AtMost, 0.5);
}

/// Threads of our server while it is busy at depth 1 and at depth 64.
fn count_threads(server: &Server, cores: Cores, report: &mut Report) -> Result<()> {
    let mut counts = Vec::new();
    for depth in [1, 64] {
        let turn = Turn { seed: 1, cycle: 0, time: Duration::from_millis(200) };
        let job = FioJob { depth, ..job(&turn, 1, 0) };
        let most = std::thread::scope(|scope| {
            let client = scope.spawn(|| slice(server, job, cores));
            let mut most = 0;
            while !client.is_finished() {
                most = most.max(threads_of(server.pid()));
                std::thread::sleep(Duration::from_millis(10));
            }
            client.join().expect("the client returns").map(|_| most)
        })?;
        report.row("ours", &format!("nbd_threads_at_depth_{depth}"), "1", &[most as f64]);
        counts.push(most as f64);
    }
    report.ratio_with_bar("nbd_threads_added_by_depth", counts[1] - counts[0], Good::AtMost, 0.0);
    Ok(())
}

fn misses(options: &Options, cores: Cores, report: &mut Report) -> Result<()> {
    let size = options.size_or(64 << 20, 4 << 30);
    let image = Image::create(&options.dir, "nbd-miss", size, options.keep)?;
    if !options.quick && !drop_all_caches() {
        report.not_run("dropping of the page cache in the all-misses part", "not allowed here");
    }
    let kinds = [
        ("ours", ours_kind(options, 64 << 20, "direct")),
        ("nbdkit-file", Kind::NbdkitFile),
        ("nbdkit-file-cache-none", Kind::NbdkitFileNoCache),
        ("qemu-nbd", Kind::QemuNbd),
    ];
    let mut usable = Vec::new();
    for (name, kind) in kinds {
        match Server::start(&kind, image.path(), cores.server, None) {
            Ok(_) => usable.push((name, kind)),
            Err(e) => report.not_run(&format!("{name}, all misses"), e),
        }
    }
    for connections in CONNECTIONS {
        let outcome = misses_at(options, cores, &image, &usable, connections)?;
        outcome.add_rows(report, &format!("nbd_miss_c{connections}"));
        outcome.add_notes(report, &format!("nbd_miss_c{connections}"), "direct");
        let title = format!("4 KiB random reads, none in memory, connections: {connections}");
        report.plots.push(outcome.rates_plot("nbd", title));
        let rivals = [
            ("nbdkit_file", "nbdkit-file", 1.0),
            ("nbdkit_file_cache_none", "nbdkit-file-cache-none", 1.0),
            ("qemu_nbd", "qemu-nbd", 2.0),
        ];
        for (short, rival, bar) in rivals {
            let name = format!("nbd_miss_vs_{short}_c{connections}");
            report.ratio_with_bar(&name, outcome.ratio("ours", rival), Good::AtLeast, bar);
        }
        report
            .ratio(&format!("nbd_miss_vs_direct_c{connections}"), outcome.ratio("ours", "direct"));
        add_switches(report, "miss", connections, &outcome);
    }
    Ok(())
}

fn misses_at(
    options: &Options,
    cores: Cores,
    image: &Image,
    servers: &[(&'static str, Kind)],
    connections: u32,
) -> Result<Outcome> {
    let size = image.size();
    let direct = KernelFile::new(image.open(OFlags::DIRECT)?);
    let mut variants = vec![Variant::new("direct", |turn| {
        let load = Load {
            write: false,
            pattern: Pattern::Random,
            threads: DEPTH as usize,
            block: BLOCK as usize,
            start: 0,
            len: size,
            time: turn.time / 2,
            seed: turn.seed << 20,
            sample_every: 1,
        };
        run_slice(&direct, &load)
    })];
    let file = &direct.file;
    for (name, kind) in servers {
        variants.push(Variant::new(name, move |turn| {
            let server = Server::start(kind, image.path(), cores.server, None)?;
            if options.quick {
                drop_file_cache(file).map_err(|e| Error::from_io("drop pages", e))?;
            } else {
                drop_all_caches();
            }
            slice(&server, job(turn, connections, size / 10), cores)
        }));
    }
    let plan = Plan {
        rounds: options.rounds_or(1, 7),
        cycles: if options.quick { 1 } else { 3 },
        slice: options.millis(300, 1000),
        passes: 1,
        gate: Some("direct"),
        repeats_max: if options.quick { 0 } else { 7 },
        lines: options.lines,
    };
    alternate(&mut variants, &plan)
}
