//! All data in memory: Forebay's export and nbdkit's memory plugin.
//!
//! Invariant: D1 both servers hold the same data in memory before the first slice.

use super::best::{best, try_out};
use super::client::{Cores, DEPTH, Worst, add_switches, job, ours_kind, slice};
use crate::harness::alternate::{Plan, Turn, Variant, alternate};
use crate::harness::image::Image;
use crate::harness::meter::{looking, threads_of};
use crate::harness::options::Options;
use crate::report::model::{Good, Report};
use crate::rivals::fio::FioJob;
use crate::rivals::server::{Kind, Server, nbdcopy};
use forebay_base::Result;
use std::time::Duration;

/// Connections and depth of fio's requests.
#[derive(Clone, Copy)]
struct Shape {
    connections: u32,
    depth: u32,
    suffix: &'static str,
}

/// The measured shapes. At depth 1 the wake-ups of client and server dominate.
const SHAPES: [Shape; 3] = [
    Shape { connections: 1, depth: DEPTH, suffix: "c1" },
    Shape { connections: 4, depth: DEPTH, suffix: "c4" },
    Shape { connections: 1, depth: 1, suffix: "d1" },
];

impl Shape {
    fn job(&self, turn: &Turn) -> FioJob {
        FioJob { depth: self.depth, ..job(turn, self.connections, 0) }
    }

    fn text(&self) -> String {
        format!("connections: {}, depth {}", self.connections, self.depth)
    }
}

/// Runs the part.
pub fn run(options: &Options, cores: Cores, report: &mut Report) -> Result<()> {
    let size = options.size_or(32 << 20, 512 << 20);
    let image = Image::create(&options.dir, "nbd-hit", size, options.keep)?;
    let kind = ours_kind(options, size * 2 + (64 << 20), "cached");
    let ours = filled(&kind, &image, cores);
    if let Err(e) = &ours {
        report.left_out("ours, all in cache", e);
    }
    let ours = ours.ok();
    let mut worst = Worst::default();
    for shape in SHAPES {
        let Shape { connections, depth, suffix } = shape;
        let rival = best_memory(options, cores, &image, shape, report);
        let servers = [("nbdkit-memory", rival.as_ref()), ("ours", ours.as_ref())];
        let mut variants: Vec<Variant<'_>> = Vec::new();
        for (name, server) in servers {
            let Some(server) = server else { continue };
            variants.push(Variant::new(name, move |turn| slice(server, shape.job(turn), cores)));
        }
        let outcome = alternate(&mut variants, &plan(options))?;
        drop(variants);
        outcome.add_rows(report, &format!("nbd_hit_{suffix}"));
        let title = format!("4 KiB random reads, all in memory: {}", shape.text());
        report.plots.push(outcome.rates_plot("nbd", title));
        let ratio = outcome.ratio("ours", "nbdkit-memory");
        let name = format!("nbd_hit_vs_nbdkit_memory_{suffix}");
        let cell = format!("hits, {}", shape.text());
        outcome.compare(report, &cell, "ours", &[("nbdkit-memory", "nbdkit memory")]);
        if depth == DEPTH {
            report.ratio_with_bar(&name, ratio, Good::AtLeast, 1.2);
            worst.add(&outcome, "nbdkit_memory", "nbdkit-memory");
            add_switches(report, "hit", connections, &outcome);
        } else {
            report.ratio(&name, ratio);
        }
    }
    worst.add_bar(report, "nbdkit_memory", 0.8);
    match &ours {
        Some(ours) => count_threads(ours, cores, report),
        None => Ok(()),
    }
}

fn plan(options: &Options) -> Plan {
    Plan::simple(options, options.rounds_or(1, 7), options.millis(300, 2000))
}

/// Starts a server with the image in memory (D1).
fn filled(kind: &Kind, image: &Image, cores: Cores) -> Result<Server> {
    let server = Server::start(kind, image.path(), cores.server, None)?;
    match kind {
        Kind::Ours { .. } => nbdcopy(&server.uri, "null:")?,
        _ => nbdcopy(&image.path().display().to_string(), &server.uri)?,
    }
    Ok(server)
}

/// nbdkit's memory plugin in its fastest configuration with this number of connections.
fn best_memory(
    options: &Options,
    cores: Cores,
    image: &Image,
    shape: Shape,
    report: &mut Report,
) -> Option<Server> {
    let what = format!("nbdkit-memory, {}", shape.text());
    let mut configurations = Kind::nbdkit_memory(image.size());
    if options.quick {
        configurations.truncate(if shape.suffix == "c1" { 2 } else { 1 });
    }
    let found = best(configurations, &what, report, |kind| {
        let server = filled(kind, image, cores)?;
        try_out(options, |turn| slice(&server, shape.job(turn), cores))
    });
    let server = filled(&found?, image, cores);
    server.map_err(|e| report.left_out(&what, e)).ok()
}

/// Reports the threads of Forebay's server while it is busy at depth 1 and at depth 64.
fn count_threads(server: &Server, cores: Cores, report: &mut Report) -> Result<()> {
    let mut counts = Vec::new();
    for depth in [1, 64] {
        let turn = Turn { seed: 1, cycle: 0, time: Duration::from_millis(200) };
        let job = FioJob { depth, ..job(&turn, 1, 0) };
        let mut most = 0;
        let look = || most = most.max(threads_of(server.pid()));
        looking(Duration::from_millis(10), look, || slice(server, job, cores))?;
        report.row("ours", &format!("nbd_threads_at_depth_{depth}"), "1", &[most as f64]);
        counts.push(most as f64);
    }
    report.ratio_with_bar("nbd_threads_added_by_depth", counts[1] - counts[0], Good::AtMost, 0.0);
    Ok(())
}
