//! `memcg`: `forebay export` in a memory cgroup of budget + 64 MiB, under mixed load on ten times
//! its budget, with each I/O engine. Bars: no OOM kill, and RssAnon + RssShmem below budget + 32
//! MiB at every sample.
//!
//! Invariant: E1 the server joins the cgroup before its first instruction, so that all its memory
//! is charged there.

use crate::harness::image::Image;
use crate::harness::load::Slice;
use crate::harness::meter::{Usage, Watch, looking, resident_bytes};
use crate::harness::options::Options;
use crate::report::model::{Good, Plot, Report};
use crate::rivals::fio::{self, FioJob};
use crate::rivals::server::{Kind, Server, forebay_binary};
use crate::uncached::budget_for;
use forebay_base::Result;
use forebay_base::units::format_size;
use forebay_testkit::cgroup::Memcg;
use std::time::Duration;

const ENGINES: [&str; 2] = ["io_uring", "threads"];
const SAMPLE: Duration = Duration::from_millis(100);
const OVERHEAD: u64 = 64 << 20;
const BAR_MIB: f64 = 32.0;
/// Points of the plot.
const POINTS: usize = 120;

/// Result of one engine.
struct Outcome {
    /// One value per sample, bytes.
    resident: Vec<u64>,
    slices: Vec<Slice>,
    usage: Usage,
    oom_kills: u64,
    limit_hits: u64,
    survived: bool,
}

/// Runs both engines one after the other.
pub fn run(options: &Options) -> Result<Report> {
    let mut report = Report::default();
    if let Err(e) = fio::available().and_then(|()| forebay_binary()) {
        report.left_out("memcg", e);
        return Ok(report);
    }
    let size = options.size_or(320 << 20, 1280 << 20);
    let budget = budget_for(size);
    let seconds = options.seconds.unwrap_or(if options.quick { 2.0 } else { 600.0 });
    let image = Image::create(&options.dir, "memcg", size, options.keep)?;
    report.note(format!(
        "memcg: budget {}, image {}, limit {}, {seconds} s for each engine",
        format_size(budget),
        format_size(size),
        format_size(budget + OVERHEAD)
    ));
    let mut series = Vec::new();
    for engine in ENGINES {
        match one_engine(&image, budget, engine, seconds) {
            Ok(outcome) => {
                series.push((format!("ours-{engine}"), peaks(&outcome.resident)));
                add(&mut report, engine, budget, &outcome);
            }
            Err(e) => report.left_out(&format!("memcg with {engine}"), e),
        }
    }
    let points = series.iter().map(|(_, values)| values.len()).max().unwrap_or(0);
    series.push(("budget".into(), vec![mib(budget); points]));
    series.push(("limit".into(), vec![mib(budget + OVERHEAD); points]));
    report.plots.push(Plot {
        behaviour: "memcg",
        title: "RssAnon + RssShmem of the server under load".into(),
        unit: "MiB".into(),
        series,
        x: format!("time in steps of {:.1} s", seconds / points.max(1) as f64),
        ..Plot::default()
    });
    Ok(report)
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / 1048576.0
}

/// At most [`POINTS`] values in MiB, each the maximum of its interval.
fn peaks(samples: &[u64]) -> Vec<f64> {
    let chunk = samples.len().div_ceil(POINTS).max(1);
    samples.chunks(chunk).map(|part| mib(part.iter().copied().max().unwrap_or(0))).collect()
}

/// Random reads and writes, a sequential reader and a sequential writer, all at once.
fn jobs(seconds: f64) -> Vec<FioJob> {
    let millis = (seconds * 1e3) as u64;
    let job = |rw, block, depth, connections| FioJob {
        rw,
        block,
        depth,
        connections,
        millis,
        bytes_max: 0,
        seed: 1,
    };
    vec![
        job("randrw", 4096, 16, 2),
        job("randrw", 64 << 10, 8, 1),
        job("read", 1 << 20, 4, 1),
        job("write", 1 << 20, 4, 1),
    ]
}

fn one_engine(image: &Image, budget: u64, engine: &str, seconds: f64) -> Result<Outcome> {
    let group = Memcg::create(&format!("server-{engine}"), budget + OVERHEAD)?;
    let kind =
        Kind::Ours { cache: budget, mode: "cached", aio: engine.to_string(), more: Vec::new() };
    let mut server = Server::start(&kind, image.path(), None, Some(&group.procs()))?;
    let (pid, jobs) = (server.pid(), jobs(seconds));
    let uri = server.uri.clone();
    let (mut resident, mut watch) = (Vec::new(), Watch::start(pid));
    resident.extend(resident_bytes(pid));
    let look = || resident.extend(resident_bytes(pid));
    let slices = looking(SAMPLE, look, || fio::run(&jobs, &uri, None));
    let survived = server.alive();
    let usage = watch.used();
    let (oom_kills, limit_hits) = (group.oom_kills(), group.limit_hits());
    drop(server);
    // A server that was killed is a missed bar, not an error of the bench.
    let slices = if survived { slices? } else { Vec::new() };
    Ok(Outcome { resident, slices, usage, oom_kills, limit_hits, survived })
}

fn add(report: &mut Report, engine: &str, budget: u64, outcome: &Outcome) {
    let variant = format!("ours-{engine}");
    let resident: Vec<f64> = outcome.resident.iter().map(|bytes| mib(*bytes)).collect();
    report.row(&variant, "memcg_rss_anon_and_shmem", "MiB", &resident);
    let names = ["randrw4k", "randrw64k", "read1m", "write1m"];
    for (name, slice) in names.iter().zip(&outcome.slices) {
        report.row(&variant, &format!("memcg_{name}_rate"), "1/s", &[slice.rate()]);
        let p999 = slice.hist.percentile(99.9) as f64 / 1e3;
        report.row(&variant, &format!("memcg_{name}_p99_9"), "us", &[p999]);
    }
    report.row(&variant, "memcg_cpu", "s", &[outcome.usage.cpu_seconds]);
    report.row(&variant, "memcg_limit_hits", "1", &[outcome.limit_hits as f64]);
    let kills = outcome.oom_kills + u64::from(!outcome.survived);
    let name = format!("memcg_kills_{engine}");
    report.ratio_with_bar(&name, kills as f64, Good::AtMost, 0.0);
    let peak = outcome.resident.iter().copied().max().unwrap_or(0);
    let over = mib(peak) - mib(budget);
    let name = format!("memcg_peak_over_budget_mib_{engine}");
    report.ratio_with_bar(&name, over, Good::AtMost, BAR_MIB);
}
