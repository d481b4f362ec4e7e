//! `sustained`: random overwrites of five times the free space of a file system that is 80 % full,
//! with the rate over time. Two loads: all blocks alike, and 90 % of the writes to 10 % of the
//! blocks.
//!
//! Invariants: U1 a window of the rate ends with a sync. U2 the fresh rate is that of the same load
//! on the same place until half the free space has been written: up to then nothing has to be
//! cleaned. The steady rate is that of the last part, twice the free space. U3 the kernel's
//! variants run in a memory cgroup of Forebay's budget.

use super::overwrite::{Overwrite, Overwritten};
use super::places::{self, Ground, Place, Who};
use crate::harness::backing::Backing;
use crate::harness::options::Options;
use crate::report::model::{Good, Plot, Report, median};
use crate::rivals::loopdev::FsKind;
use crate::rivals::worker::Worker;
use forebay_base::units::{GIB, KIB, MIB, format_size, round_down};
use forebay_base::{Error, ErrorKind, Result};
use std::collections::BTreeMap;

const FILE: &str = "sustained";
const BLOCK: u64 = 4 * KIB;
/// Windows in each pass over the free space.
const WINDOWS: u64 = 20;
/// Number of passes.
const TIMES: u64 = 5;
const TIMES_QUICK: u64 = 3;

/// A load.
struct Load {
    /// The prefix of its metrics.
    prefix: &'static str,
    title: &'static str,
    skewed: bool,
    /// The bar of the steady rate over that of XFS.
    bar: f64,
}

const LOADS: [Load; 2] = [
    Load {
        prefix: "sustained",
        title: "4 KiB random overwrites at 80 % full, each window synced",
        skewed: false,
        bar: 0.6,
    },
    Load {
        prefix: "sustained_skewed",
        title: "The same, 90 % of the writes to 10 % of the blocks",
        skewed: true,
        bar: 0.7,
    },
];

/// Most of the bound of [`bytes_bound`] that the volume may write.
const BOUND_MOST: f64 = 1.2;

/// Most milliseconds of the 99.99th percentile of a write call, in the worst round.
const LATE_MOST_MS: f64 = 250.0;

struct Run {
    name: &'static str,
    free: u64,
    done: Overwritten,
    amplification: f64,
    /// Of a volume: the live share of all segments at the end, and that of the segments that the
    /// cleaner emptied last.
    live: Option<(f64, Option<f64>)>,
}

/// The runs of each file system.
type Runs = BTreeMap<&'static str, Vec<Run>>;

/// Runs the part.
pub fn run(options: &Options, report: &mut Report) -> Result<()> {
    let bytes = options.size_or(256 * MIB, 8 * GIB);
    let budget = if options.quick { 16 * MIB } else { 256 * MIB };
    let ground =
        Ground { options, part: "sustained", image_bytes: bytes, budget, dirty_limit: None };
    let mut refused = 0.0;
    for load in &LOADS {
        let who: &[Who] = match (options.quick, load.skewed) {
            (true, false) => &[Who::Volume],
            (_, true) => &[Who::Volume, Who::Loop(FsKind::Xfs)],
            (false, false) => &[Who::Volume, Who::Loop(FsKind::Xfs), Who::Loop(FsKind::Btrfs)],
        };
        let mut runs = Runs::new();
        for _ in 0..options.rounds_or(1, 1) {
            refused += run_each(&ground, load, who, &mut runs, report);
        }
        add_load(report, load, &runs);
    }
    report.ratio_with_bar("sustained_refused", refused, Good::AtMost, 0.0);
    report.note(format!("sustained: images of {}, written", format_size(bytes)));
    Ok(())
}

/// Runs a load on each file system, one at a time, because each needs a full image of its own.
/// Returns how many runs ended because a write of ours was refused.
fn run_each(
    ground: &Ground<'_>,
    load: &Load,
    who: &[Who],
    runs: &mut Runs,
    report: &mut Report,
) -> f64 {
    let mut refused = 0.0;
    for who in who {
        for mut place in places::all(ground, &[*who], &[Backing::Written], report) {
            match one(ground, load, &mut place) {
                Ok(run) => runs.entry(run.name).or_default().push(run),
                // A refused write is a result of this measurement, neither a lack of the machine
                // nor a failure.
                Err(e) if e.kind() == ErrorKind::NoSpace && place.ours().is_some() => {
                    report.note(format!("{} on {}: refused: {e}", load.prefix, place.name));
                    refused += 1.0;
                }
                Err(e) => report.left_out(&format!("{} on {}", load.prefix, place.name), e),
            }
        }
    }
    refused
}

/// Adds the figures of a load.
fn add_load(report: &mut Report, load: &Load, runs: &Runs) {
    let (prefix, mut series) = (load.prefix, Vec::new());
    for (name, runs) in runs {
        add(report, prefix, name, runs);
        if let Some(run) = runs.first() {
            let rates = rates(run);
            let (low, high) = extremes(&rates);
            let marks = spark(&rates);
            report.note(format!("{prefix} on {name}, MiB/s from {low:.0} to {high:.0}: {marks}"));
            series.push((name.to_string(), rates));
        }
    }
    if let Some(ours) = runs.get("volume") {
        add_ours(report, load, ours);
    }
    if let (Some(ours), Some(xfs)) = (runs.get("volume"), runs.get("xfs-on-loop")) {
        let rate = |runs: &Vec<Run>| median(&runs.iter().map(steady).collect::<Vec<_>>());
        let (name, value) = (format!("{prefix}_steady_vs_xfs"), rate(ours) / rate(xfs));
        report.ratio_with_bar(&name, value, Good::AtLeast, load.bar);
    }
    // Without a variant that finished there is no chart.
    if !series.is_empty() {
        report.plots.push(Plot {
            behaviour: "volume",
            title: load.title.into(),
            unit: "MiB/s".into(),
            series,
            x: format!("free space written, in {WINDOWS} steps for each time"),
            ..Plot::default()
        });
    }
}

/// Writable bytes, and total bytes.
fn space_of(place: &Place) -> Result<(u64, u64)> {
    if let Some(volume) = place.ours() {
        let stat = volume.statfs()?;
        let block = u64::from(stat.block_size);
        return Ok((stat.blocks_available * block, stat.blocks * block));
    }
    let path = place.path("").expect("the kernel's has a path");
    let fail = |e: rustix::io::Errno| Error::from_io("statfs", e.into()).with_path(path.clone());
    let stat = rustix::fs::statvfs(&path).map_err(fail)?;
    Ok((stat.f_bavail * stat.f_frsize, stat.f_blocks * stat.f_frsize))
}

fn one(ground: &Ground<'_>, load: &Load, place: &mut Place) -> Result<Run> {
    let (options, budget) = (ground.options, ground.budget);
    let (available, all) = space_of(place)?;
    let len = round_down(all / 5 * 4, MIB);
    if len > available {
        // A smaller file would give another load: the volume would be full, without a fifth of free
        // space.
        let text = format!("a file of {} in {}", format_size(len), format_size(available));
        return Err(Error::new(ErrorKind::InvalidInput, "image too small", text));
    }
    place.fill(FILE, len)?;
    let (free, _) = space_of(place)?;
    let times = if options.quick { TIMES_QUICK } else { TIMES };
    let window = round_down((free / WINDOWS).max(BLOCK), BLOCK);
    let (total, skewed) = (times * WINDOWS * window, load.skewed);
    let spec = Overwrite { len, block: BLOCK, total, window, seed: 1, skewed };
    place.reopen()?;
    let before = place.device_bytes()?;
    let done = match place.path(FILE) {
        None => spec.run(&*place.file(FILE, false)?)?,
        Some(path) => {
            let limit = if options.quick { 4 * budget } else { budget };
            let mut worker = Worker::start(&format!("sustained-{}", place.name), limit)?;
            Overwritten::from_json(&worker.ask(&spec.job(&path))?)
        }
    };
    let live = place.ours().map(|ours| {
        let victims = ours.volume.clean_stats().recent_live_share();
        (ours.volume.space_stats().live_share(), victims)
    });
    let written = place.closed_bytes()? - before;
    let amplification = written as f64 / done.bytes() as f64;
    Ok(Run { name: place.name, free, done, amplification, live })
}

/// MiB/s of each window.
fn rates(run: &Run) -> Vec<f64> {
    let rate = |w: &(u64, f64)| w.0 as f64 / MIB as f64 / w.1.max(1e-9);
    run.done.windows.iter().map(rate).collect()
}

fn mean_rate(windows: &[(u64, f64)]) -> f64 {
    let bytes: u64 = windows.iter().map(|w| w.0).sum();
    let seconds: f64 = windows.iter().map(|w| w.1).sum();
    bytes as f64 / MIB as f64 / seconds.max(1e-9)
}

/// MiB/s of the last windows.
fn steady(run: &Run) -> f64 {
    let windows = &run.done.windows;
    mean_rate(&windows[windows.len().saturating_sub(2 * WINDOWS as usize)..])
}

/// The least bytes that a log-structured volume writes for each byte that is changed, if all blocks
/// are overwritten alike and a share `live` of its segments is live. A segment is cleaned when a
/// share v of it is live, with `live = (v - 1) / ln v`. Each cleaned segment gives `1 - v` of its
/// space.
fn bytes_bound(live: f64) -> f64 {
    let (mut low, mut high) = (1e-9, 1.0 - 1e-9);
    for _ in 0..60 {
        let v: f64 = (low + high) / 2.0;
        match (v - 1.0) / v.ln() < live {
            true => low = v,
            false => high = v,
        }
    }
    1.0 / (1.0 - low)
}

/// Adds the rows of a file system.
fn add(report: &mut Report, prefix: &str, name: &str, runs: &[Run]) {
    let of = |figure: &dyn Fn(&Run) -> f64| runs.iter().map(figure).collect::<Vec<f64>>();
    let mut row = |metric: &str, unit, values: &[f64]| {
        report.row(name, &format!("{prefix}_{metric}"), unit, values);
    };
    let fresh = of(&|r| mean_rate(&r.done.windows[..WINDOWS as usize / 2]));
    let steady = of(&steady);
    row("fresh", "MiB/s", &fresh);
    row("steady", "MiB/s", &steady);
    row("p99_9", "us", &of(&|r| r.done.hist.percentile(99.9) as f64 / 1e3));
    row("p99_99", "us", &of(&|r| r.done.hist.percentile(99.99) as f64 / 1e3));
    row("max", "us", &of(&|r| r.done.hist.max() as f64 / 1e3));
    row("written_per_byte_dirtied", "x", &of(&|r| r.amplification));
    row("free", "MiB", &of(&|r| (r.free / MIB) as f64));
    let live: Vec<f64> = runs.iter().filter_map(|r| r.live).map(|(all, _)| all).collect();
    let victims: Vec<f64> = runs.iter().filter_map(|r| r.live?.1).collect();
    if !live.is_empty() {
        row("live_share", "1", &live);
    }
    if !victims.is_empty() {
        row("victim_live_share", "1", &victims);
    }
    let ratios: Vec<f64> = steady.iter().zip(&fresh).map(|(s, f)| s / f).collect();
    let ratio = median(&ratios);
    match (name, prefix) {
        ("volume", "sustained") => {
            report.ratio_with_bar("sustained_vs_fresh", ratio, Good::AtLeast, 0.5);
        }
        ("volume", _) => report.ratio(&format!("{prefix}_vs_fresh"), ratio),
        _ => report.ratio(&format!("{prefix}_vs_fresh_{}", name.replace('-', "_")), ratio),
    }
}

/// Adds the ratios of the volume alone.
fn add_ours(report: &mut Report, load: &Load, runs: &[Run]) {
    let prefix = load.prefix;
    let of = |figure: &dyn Fn(&Run) -> f64| runs.iter().map(figure).collect::<Vec<f64>>();
    report.ratio(&format!("{prefix}_bytes_per_byte"), median(&of(&|r| r.amplification)));
    let longest = of(&|r| r.done.hist.max() as f64 / 1e9).into_iter().fold(0.0, f64::max);
    report.ratio(&format!("{prefix}_longest_seconds"), longest);
    if !load.skewed {
        let late =
            of(&|r| r.done.hist.percentile(99.99) as f64 / 1e6).into_iter().fold(0.0, f64::max);
        report.ratio_with_bar("sustained_p9999_ms", late, Good::AtMost, LATE_MOST_MS);
        let of_bound = of(&|r| r.amplification / r.live.map_or(f64::NAN, |l| bytes_bound(l.0)));
        let (name, value) = (format!("{prefix}_bytes_vs_bound"), median(&of_bound));
        report.ratio_with_bar(&name, value, Good::AtMost, BOUND_MOST);
    }
}

fn extremes(values: &[f64]) -> (f64, f64) {
    let low = values.iter().copied().fold(f64::INFINITY, f64::min);
    (low, values.iter().copied().fold(0.0, f64::max))
}

/// A plot for the terminal: a character for each window, or for the mean of several, from 0 to the
/// maximum.
fn spark(values: &[f64]) -> String {
    const MARKS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let most = values.iter().copied().fold(f64::MIN_POSITIVE, f64::max);
    let each = values.len().div_ceil(100).max(1);
    let mark = |part: &[f64]| {
        let mean = part.iter().sum::<f64>() / part.len() as f64;
        MARKS[((mean / most * 8.0) as usize).min(7)]
    };
    values.chunks(each).map(mark).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spark_line_follows_values() {
        assert_eq!(spark(&[0.0, 4.0, 8.0]), "▁▅█");
        assert_eq!(spark(&vec![1.0; 250]).chars().count(), 84);
        assert_eq!(extremes(&[2.0, 1.0, 3.0]), (1.0, 3.0));
    }

    #[test]
    fn bound_follows_from_the_live_share() {
        for (live, bound) in [(0.72, 2.0), (0.80, 2.7), (0.01, 1.0)] {
            let found = bytes_bound(live);
            assert!((found - bound).abs() < 0.05, "{live}: {found}");
        }
    }

    #[test]
    fn mean_rate_weighs_windows_by_time() {
        assert_eq!(mean_rate(&[(MIB, 1.0), (3 * MIB, 1.0)]), 2.0);
    }
}
