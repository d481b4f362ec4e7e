//! No data in memory: Forebay's export with uncached reads, nbdkit's file plugin, qemu-nbd.
//!
//! Invariant: D2 each slice has a fresh server, starts with the machine's page cache dropped
//! (quick: the image's), and reads at most a tenth of the image.

use super::best::{best, try_out};
use super::client::{BLOCK, CONNECTIONS, Cores, DEPTH, Worst, add_switches, job, ours_kind, slice};
use crate::harness::alternate::{Outcome, Plan, Turn, Variant, alternate};
use crate::harness::image::{Image, drop_all_caches, drop_file_cache};
use crate::harness::load::{Load, Pattern, Slice, run as run_slice};
use crate::harness::options::Options;
use crate::report::model::{Good, Report};
use crate::rivals::kernel::KernelFile;
use crate::rivals::server::{Kind, Server};
use forebay_base::{Error, Result};
use rustix::fs::OFlags;

/// Runs the part.
pub fn run(options: &Options, cores: Cores, report: &mut Report) -> Result<()> {
    let size = options.size_or(64 << 20, 4 << 30);
    let image = Image::create(&options.dir, "nbd-miss", size, options.keep)?;
    if !options.quick && !drop_all_caches() {
        report.not_run("dropping of the page cache in the all-misses part", "not allowed here");
    }
    let mut worst = Worst::default();
    for connections in CONNECTIONS {
        let usable = servers(options, cores, &image, connections, report);
        let outcome = misses_at(options, cores, &image, &usable, connections)?;
        outcome.add_rows(report, &format!("nbd_miss_c{connections}"));
        outcome.add_notes(report, &format!("nbd_miss_c{connections}"), "direct");
        let title = format!("4 KiB random reads, none in memory, connections: {connections}");
        report.plots.push(outcome.rates_plot("nbd", title));
        let cell = format!("misses, connections: {connections}");
        for (short, rival, label, bar) in RIVALS {
            let name = format!("nbd_miss_vs_{short}_c{connections}");
            report.ratio_with_bar(&name, outcome.ratio("ours", rival), Good::AtLeast, bar);
            worst.add(&outcome, short, rival);
            outcome.compare(report, &cell, "ours", &[(rival, label)]);
        }
        add_switches(report, "miss", connections, &outcome);
    }
    worst.add_bar(report, "nbdkit_file", 0.55);
    worst.add_bar(report, "qemu_nbd", 0.75);
    Ok(())
}

/// Name in ratios, variant, name in the summary, and the bar: rate of Forebay over the rival's.
const RIVALS: [(&str, &str, &str, f64); 3] = [
    ("nbdkit_file", "nbdkit-file", "nbdkit file", 1.0),
    ("nbdkit_file_cache_none", "nbdkit-file-cache-none", "nbdkit file cache=none", 1.0),
    ("qemu_nbd", "qemu-nbd", "qemu-nbd", 2.0),
];

/// Forebay's server, and each rival in its fastest configuration with this number of connections.
fn servers(
    options: &Options,
    cores: Cores,
    image: &Image,
    connections: u32,
    report: &mut Report,
) -> Vec<(&'static str, Kind)> {
    let mut usable = Vec::new();
    let ours = ours_kind(options, 64 << 20, "direct");
    match Server::start(&ours, image.path(), cores.server, None) {
        Ok(_) => usable.push(("ours", ours)),
        Err(e) => report.left_out("ours, all misses", e),
    }
    let rivals = [Kind::nbdkit_file(), Kind::nbdkit_file_no_cache(), Kind::qemu()];
    for ((_, name, ..), mut configurations) in RIVALS.into_iter().zip(rivals) {
        if options.quick {
            configurations.truncate(if connections == 1 { 2 } else { 1 });
        }
        let what = format!("{name}, connections: {connections}");
        let found = best(configurations, &what, report, |kind| {
            try_out(options, |turn| cold_slice(options, cores, image, kind, turn, connections))
        });
        usable.extend(found.map(|kind| (name, kind)));
    }
    usable
}

/// One slice of a fresh server with nothing in memory (D2).
fn cold_slice(
    options: &Options,
    cores: Cores,
    image: &Image,
    kind: &Kind,
    turn: &Turn,
    connections: u32,
) -> Result<Slice> {
    let server = Server::start(kind, image.path(), cores.server, None)?;
    if options.quick {
        let file = image.open(OFlags::empty())?;
        drop_file_cache(&file).map_err(|e| Error::from_io("drop pages", e))?;
    } else {
        drop_all_caches();
    }
    slice(&server, job(turn, connections, image.size() / 10), cores)
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
    for (name, kind) in servers {
        variants.push(Variant::new(name, move |turn| {
            cold_slice(options, cores, image, kind, turn, connections)
        }));
    }
    let plan = Plan {
        cycles: if options.quick { 1 } else { 3 },
        gate: Some("direct"),
        repeats_max: if options.quick { 0 } else { 7 },
        ..Plan::simple(options, options.rounds_or(1, 7), options.millis(300, 1000))
    };
    alternate(&mut variants, &plan)
}
