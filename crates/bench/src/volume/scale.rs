//! `scale`: costs of volumes with more and more extents, in a larger and larger address space, on a
//! disk in memory ([`disk`]). Each figure is also a ratio to that of the smallest volume.
//!
//! A child of its own makes and measures each volume, in the simulated world: one thread, and a
//! disk that takes no time. So CPU time is all the time that there is. No checkpoint falls into the
//! measured writes and syncs. All volumes have the same budget and options, and the same number of
//! measured writes.

mod disk;
mod measure;

pub use measure::scale_job;

use crate::harness::options::Options;
use crate::report::model::{Good, Report, median};
use crate::rivals::worker::Worker;
use forebay_base::units::{GIB, MIB, format_size};
use forebay_base::{Error, ErrorKind, Result};
use serde_json::{Value, json};

/// The name, the extents and the bytes of each volume, the smallest first.
type Size = (&'static str, u64, u64);

const FULL: [Size; 3] = [
    ("volume-1e4", 10_000, GIB),
    ("volume-1e6", 1_000_000, 64 * GIB),
    ("volume-2e7", 20_000_000, 1024 * GIB),
];
const QUICK: [Size; 2] = [("volume-1e3", 1_000, GIB), ("volume-1e4", 10_000, GIB)];

/// A figure of a child's answer: its key, the metric, its unit, and the factor to that unit.
type Figure = (&'static str, &'static str, &'static str, f64);

const FIGURES: [Figure; 9] = [
    ("write", "scale_write_cpu", "us", 1e6),
    ("sync", "scale_sync_cpu", "us", 1e6),
    ("clean", "scale_clean_cpu_per_byte", "ns", 1e9),
    ("nodes_per_leaf", "scale_nodes_per_changed_leaf", "1", 1.0),
    ("open", "scale_open", "ms", 1e3),
    ("memory", "scale_memory", "MiB", 1.0 / MIB as f64),
    ("moved", "scale_clean_moved", "MiB", 1.0 / MIB as f64),
    ("tree", "scale_tree", "MiB", 1.0 / MIB as f64),
    ("build", "scale_build_cpu", "s", 1.0),
];

/// Ratios of the largest volume to the smallest: the key, the ratio, and its bar.
const RATIOS: [(&str, &str, f64); 3] = [
    ("write", "scale_write_cpu_vs_smallest", 1.5),
    ("sync", "scale_sync_cpu_vs_smallest", 1.5),
    ("clean", "scale_clean_cpu_vs_smallest", 2.0),
];
const PLAIN: [(&str, &str); 3] = [
    ("nodes_per_leaf", "scale_nodes_per_changed_leaf_vs_smallest"),
    ("memory", "scale_memory_vs_smallest"),
    ("open", "scale_open_vs_smallest"),
];

/// Runs the part. `--size` is the number of extents of the largest volume.
pub fn run(options: &Options, report: &mut Report) -> Result<()> {
    let all: &[Size] = if options.quick { &QUICK } else { &FULL };
    let most = options.size.unwrap_or(u64::MAX);
    let (mut answers, mut wanted) = (Vec::new(), 0);
    for size in all.iter().filter(|(_, extents, _)| *extents <= most) {
        wanted += 1;
        let answer = match measured(options, *size) {
            Ok(answer) => answer,
            Err(e) => {
                report.left_out(&format!("scale of {}", size.0), e);
                continue;
            }
        };
        for (key, metric, unit, one) in FIGURES {
            let values: Vec<f64> = values(&answer, key).iter().map(|value| value * one).collect();
            report.row(size.0, metric, unit, &values);
        }
        answers.push((size.0, answer));
    }
    let [(_, smallest), rest @ ..] = &answers[..] else { return Ok(()) };
    for (name, answer) in rest {
        add_ratios(report, name.trim_start_matches("volume-"), smallest, answer);
    }
    // The bars are for the largest size: they are judged only if all sizes were measured.
    if let Some((_, largest)) = rest.last() {
        let is_judged = !options.quick && answers.len() == wanted && wanted == FULL.len();
        add_bars(report, is_judged, smallest, largest);
    }
    let sizes = all.iter().map(|(name, _, bytes)| format!("{name} {}", format_size(*bytes)));
    let sizes: Vec<String> = sizes.collect();
    report.note(format!("scale: CPU time in the simulated world; {}", sizes.join(", ")));
    Ok(())
}

/// The answer of a child that has made and measured a volume.
fn measured(options: &Options, (name, extents, bytes): Size) -> Result<Value> {
    let (writes, syncs) = if options.quick { (100, 100) } else { (1000, 1000) };
    let mut worker = Worker::free()?;
    let answer = worker.ask(&json!({
        "job": "scale", "extents": extents, "bytes": bytes, "rounds": options.rounds_or(1, 3),
        "writes": writes, "syncs": syncs,
    }))?;
    if options.lines {
        println!("{name}: {answer}");
    }
    match values(&answer, "write").is_empty() {
        true => Err(Error::new(ErrorKind::Io, "scale", format!("{name}: {answer}"))),
        false => Ok(answer),
    }
}

/// The values of a figure, one for each round.
fn values(answer: &Value, key: &str) -> Vec<f64> {
    answer[key].as_array().into_iter().flatten().filter_map(Value::as_f64).collect()
}

fn quotient(key: &str, smallest: &Value, other: &Value) -> f64 {
    median(&values(other, key)) / median(&values(smallest, key))
}

/// Ratios of a volume of `size` extents to the smallest one.
fn add_ratios(report: &mut Report, size: &str, smallest: &Value, answer: &Value) {
    let names = RATIOS.iter().map(|(key, name, _)| (key, name));
    for (key, name) in names.chain(PLAIN.iter().map(|(key, name)| (key, name))) {
        report.ratio(&format!("{name}_{size}"), quotient(key, smallest, answer));
    }
}

fn add_bars(report: &mut Report, is_judged: bool, smallest: &Value, largest: &Value) {
    let ratios = RATIOS.map(|(key, name, bar)| (name, quotient(key, smallest, largest), bar));
    let open = ("scale_open_seconds", median(&values(largest, "open")), 1.0);
    for (name, value, bar) in ratios.into_iter().chain([open]) {
        match is_judged {
            true => report.ratio_with_bar(name, value, Good::AtMost, bar),
            false => report.ratio_unjudged(name, value, Good::AtMost, bar),
        }
    }
}
