//! A hot set of half the budget, read by one thread while another streams ten times the budget. It
//! measures how much of the hot set the stream evicts. Forebay and the kernel alternate by round,
//! each with an uncached stream, an ordinary one, and `dd bs=4k`.

pub mod measure;
pub mod targets;

use crate::harness::image::{Image, drop_file_cache};
use crate::harness::options::Options;
use crate::report::model::{Good, Report, median};
use crate::rivals::ours::Ours;
use crate::rivals::worker::Worker;
use forebay_base::{Error, IoFlags, Result};
use measure::{BLOCK, HotResult, HotSpec, add_rows, measure};
use targets::OursHot;

/// A stream: name, whether it asks not to be cached, bytes of a read, and its name in the summary.
const KINDS: [(&str, bool, usize, &str); 3] = [
    ("uncached", true, 1 << 20, "an uncached stream (RWF_DONTCACHE)"),
    ("cached", false, 1 << 20, "an ordinary stream"),
    ("dd4k", false, BLOCK, "dd bs=4k"),
];

/// Runs the part.
pub fn run(options: &Options, image: &Image, budget: u64, report: &mut Report) -> Result<()> {
    let spec = HotSpec {
        hot: budget / 2,
        size: image.size(),
        stream: budget * 10,
        piece: 1 << 20,
        alone: options.millis(200, 2000),
    };
    for (kind, bypass, piece, what) in KINDS {
        let spec = HotSpec { piece, ..spec };
        let flags = if bypass { IoFlags::UNCACHED } else { IoFlags::empty() };
        let (mut own, mut theirs, mut refused, mut promoted) = (vec![], vec![], None, vec![]);
        for round in 0..options.rounds_or(1, 3) {
            for turn in 0..2 {
                if (round + turn) % 2 == 0 {
                    let (result, moved) = ours(options, image, budget, &spec, flags)?;
                    own.push(result);
                    promoted.push(moved as f64);
                } else if refused.is_none() {
                    match kernel(image, budget, &spec, bypass) {
                        Ok(result) => theirs.push(result),
                        Err(e) => refused = Some(e),
                    }
                }
            }
        }
        let name = format!("ours-during-{kind}-stream");
        add_rows(report, &name, &own);
        report.row(&name, "hot_set_promoted", "folios", &promoted);
        add_ratios(report, kind, &own, budget);
        let name = format!("kernel-during-{kind}-stream");
        if let Some(e) = refused {
            report.left_out(&format!("{name} in a memory cgroup of {budget} bytes"), e);
            continue;
        }
        add_rows(report, &name, &theirs);
        add_kernel_ratios(report, kind, what, &own, &theirs);
    }
    Ok(())
}

/// Name of a ratio; that of the uncached stream has no suffix.
fn named(what: &str, kind: &str) -> String {
    if kind == "uncached" { what.to_string() } else { format!("{what}_{kind}_stream") }
}

fn values(rounds: &[HotResult], of: impl Fn(&HotResult) -> f64) -> Vec<f64> {
    rounds.iter().map(of).collect()
}

/// For losses the result is the worst round.
fn most(rounds: &[HotResult], of: impl Fn(&HotResult) -> f64) -> f64 {
    values(rounds, of).into_iter().fold(f64::NAN, f64::max)
}

fn add_ratios(report: &mut Report, kind: &str, rounds: &[HotResult], budget: u64) {
    let delta = most(rounds, HotResult::hit_delta_points);
    let evicted = most(rounds, |r| r.evicted_blocks() as f64);
    let reclaim = median(&values(rounds, HotResult::reclaim_cpu_share));
    let small_queue = (budget / 10 / BLOCK as u64) as f64;
    let uncached = kind == "uncached";
    let name = named("hot_set_hit_delta_points", kind);
    report.ratio_with_bar(&name, delta, Good::Below, 1.0);
    let name = named("hot_set_evicted_blocks", kind);
    let bar = if uncached { 0.0 } else { small_queue };
    report.ratio_with_bar(&name, evicted, Good::AtMost, bar);
    let name = named("reclaim_cpu_share", kind);
    if uncached {
        report.ratio_with_bar(&name, reclaim, Good::Below, 0.01);
    } else {
        report.ratio(&name, reclaim);
    }
}

fn add_kernel_ratios(
    report: &mut Report,
    kind: &str,
    what: &str,
    own: &[HotResult],
    theirs: &[HotResult],
) {
    let evicted = median(&values(theirs, |r| r.evicted_blocks() as f64));
    report.ratio(&named("kernel_hot_set_evicted_blocks", kind), evicted);
    let lost = median(&values(theirs, HotResult::lost_percent));
    report.ratio(&named("kernel_hot_set_lost_percent", kind), lost);
    let rates = own.iter().zip(theirs).map(|(a, b)| a.rate_during() / b.rate_during().max(1e-9));
    let rate = median(&rates.collect::<Vec<_>>());
    report.ratio(&named("hot_set_rate_vs_kernel", kind), rate);
    report.cell("kernel's cache: a hot set during a stream", &format!("during {what}"), rate);
}

/// Measures Forebay; also returns the number of folios that moved to the main queue.
fn ours(
    options: &Options,
    image: &Image,
    budget: u64,
    spec: &HotSpec,
    flags: IoFlags,
) -> Result<(HotResult, u64)> {
    let target = OursHot::new(Ours::open(options, image.path(), budget)?, flags);
    let result = measure(&target, spec)?;
    Ok((result, target.ours.cache.stats().promoted))
}

fn kernel(image: &Image, budget: u64, spec: &HotSpec, dontcache: bool) -> Result<HotResult> {
    let file = image.open(rustix::fs::OFlags::empty())?;
    drop_file_cache(&file).map_err(|e| Error::from_io("drop cache", e))?;
    let mut worker = Worker::start("hotset", budget)?;
    let answer = worker.ask(&spec.to_json(image.path(), dontcache))?;
    Ok(HotResult::from_json(&answer))
}
