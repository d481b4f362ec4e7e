//! All in memory: ours and nbdkit's memory plugin.
//!
//! Invariant: D1 both servers hold the same data in memory before the first slice.

use super::client::{CONNECTIONS, Cores, add_switches, job, ours_kind, slice};
use crate::harness::alternate::{Plan, Turn, Variant, alternate};
use crate::harness::image::Image;
use crate::harness::meter::threads_of;
use crate::harness::options::Options;
use crate::report::model::{Good, Report};
use crate::rivals::fio::{self, FioJob};
use crate::rivals::server::{Kind, Server, nbdcopy};
use forebay_base::Result;
use std::time::Duration;

/// Runs the part.
pub fn run(options: &Options, cores: Cores, report: &mut Report) -> Result<()> {
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
