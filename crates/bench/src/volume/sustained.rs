//! `sustained`: random overwrites of five times the free space of a file system that is 80 % full,
//! with the rate over time.
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

struct Run {
    name: &'static str,
    free: u64,
    done: Overwritten,
    amplification: f64,
}

/// Runs the part.
pub fn run(options: &Options, report: &mut Report) -> Result<()> {
    let bytes = options.size_or(256 * MIB, 8 * GIB);
    let budget = if options.quick { 16 * MIB } else { 256 * MIB };
    let ground =
        Ground { options, part: "sustained", image_bytes: bytes, budget, dirt_bytes: None };
    let who: &[Who] = match options.quick {
        true => &[Who::Volume],
        false => &[Who::Volume, Who::Loop(FsKind::Xfs), Who::Loop(FsKind::Btrfs)],
    };
    let mut refused = 0.0;
    let mut runs: BTreeMap<&'static str, Vec<Run>> = BTreeMap::new();
    for _ in 0..options.rounds_or(1, 1) {
        // One place at a time, because each needs a full image of its own.
        for who in who {
            for mut place in places::all(&ground, &[*who], &[Backing::Written], report) {
                match one(options, &mut place, budget) {
                    Ok(run) => runs.entry(run.name).or_default().push(run),
                    // A refused write is a result of this measurement, neither a lack of the
                    // machine nor a failure.
                    Err(e) if e.kind() == ErrorKind::NoSpace && place.ours().is_some() => {
                        report.note(format!("sustained on {}: refused: {e}", place.name));
                        refused += 1.0;
                    }
                    Err(e) => report.left_out(&format!("sustained on {}", place.name), e),
                }
            }
        }
    }
    report.ratio_with_bar("sustained_refused", refused, Good::AtMost, 0.0);
    let mut series = Vec::new();
    for (name, runs) in &runs {
        add(report, name, runs);
        if let Some(run) = runs.first() {
            let rates = rates(run);
            let (low, high) = extremes(&rates);
            report.note(format!("{name}, MiB/s from {low:.0} to {high:.0}: {}", spark(&rates)));
            series.push((name.to_string(), rates));
        }
    }
    if let (Some(ours), Some(xfs)) = (runs.get("volume"), runs.get("xfs-on-loop")) {
        let rate = |runs: &Vec<Run>| median(&runs.iter().map(steady).collect::<Vec<_>>());
        report.ratio("sustained_steady_vs_xfs", rate(ours) / rate(xfs));
    }
    // Without a variant that finished there is no chart.
    if !series.is_empty() {
        report.plots.push(Plot {
            behaviour: "volume",
            title: "4 KiB random overwrites at 80 % full, each window synced".into(),
            unit: "MiB/s".into(),
            series,
            x: format!("free space written, in {WINDOWS} steps for each time"),
            ..Plot::default()
        });
    }
    report.note(format!("sustained: images of {}, written", format_size(bytes)));
    Ok(())
}

/// Writable bytes, and total bytes.
fn room(place: &Place) -> Result<(u64, u64)> {
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

fn one(options: &Options, place: &mut Place, budget: u64) -> Result<Run> {
    let (available, all) = room(place)?;
    let len = round_down(all / 5 * 4, MIB);
    if len > available {
        // A smaller file would give another load: the volume would be full, without a fifth of free
        // space.
        let text = format!("a file of {} in {}", format_size(len), format_size(available));
        return Err(Error::new(ErrorKind::InvalidInput, "image too small", text));
    }
    place.fill(FILE, len)?;
    let (free, _) = room(place)?;
    let times = if options.quick { TIMES_QUICK } else { TIMES };
    let window = round_down((free / WINDOWS).max(BLOCK), BLOCK);
    let spec = Overwrite { len, block: BLOCK, total: times * WINDOWS * window, window, seed: 1 };
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
    let written = place.closed_bytes()? - before;
    let amplification = written as f64 / done.bytes() as f64;
    Ok(Run { name: place.name, free, done, amplification })
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

fn add(report: &mut Report, name: &str, runs: &[Run]) {
    let of = |figure: &dyn Fn(&Run) -> f64| runs.iter().map(figure).collect::<Vec<f64>>();
    let fresh = of(&|r| mean_rate(&r.done.windows[..WINDOWS as usize / 2]));
    let steady = of(&steady);
    report.row(name, "sustained_fresh", "MiB/s", &fresh);
    report.row(name, "sustained_steady", "MiB/s", &steady);
    let p999 = of(&|r| r.done.hist.percentile(99.9) as f64 / 1e3);
    report.row(name, "sustained_p99_9", "us", &p999);
    report.row(name, "sustained_max", "us", &of(&|r| r.done.hist.max() as f64 / 1e3));
    report.row(name, "sustained_written_per_byte_dirtied", "x", &of(&|r| r.amplification));
    report.row(name, "sustained_free", "MiB", &of(&|r| (r.free / MIB) as f64));
    let ratios: Vec<f64> = steady.iter().zip(&fresh).map(|(s, f)| s / f).collect();
    let ratio = median(&ratios);
    match name {
        "volume" => report.ratio_with_bar("sustained_vs_fresh", ratio, Good::AtLeast, 0.5),
        _ => report.ratio(&format!("sustained_vs_fresh_{}", name.replace('-', "_")), ratio),
    }
    if name == "volume" {
        let times = of(&|r| r.amplification);
        report.ratio("sustained_bytes_per_byte", median(&times));
        let longest = of(&|r| r.done.hist.max() as f64 / 1e9).into_iter().fold(0.0, f64::max);
        report.ratio("sustained_longest_seconds", longest);
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
    fn a_line_of_marks_follows_the_values() {
        assert_eq!(spark(&[0.0, 4.0, 8.0]), "▁▅█");
        assert_eq!(spark(&vec![1.0; 250]).chars().count(), 84);
        assert_eq!(extremes(&[2.0, 1.0, 3.0]), (1.0, 3.0));
    }

    #[test]
    fn a_rate_is_bytes_over_seconds_of_all_windows() {
        assert_eq!(mean_rate(&[(MIB, 1.0), (3 * MIB, 1.0)]), 2.0);
    }
}
