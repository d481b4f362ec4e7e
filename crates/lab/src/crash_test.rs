//! `forebay-lab crash-test`: volumes on a simulated disk in memory, with a power loss at every
//! write.

use crate::args::CrashTestArgs;
use crate::{FAILED, USAGE};
use forebay_crashtest::{
    Counts, Failure, Options, Progress, Spot, Summary, campaign, missing_step,
};
use serde_json::json;
use std::io::{ErrorKind, Write};
use std::time::Duration;

/// How long a search runs, seconds, when no option says when it ends.
const SECONDS: u64 = 10;

/// Runs the crash test and gives the exit status. Prints progress on standard error, and at the end
/// the result on standard output.
pub fn crash_test(args: &CrashTestArgs) -> u8 {
    let options = options(args);
    if let Some((step, steps)) = missing_step(&options) {
        return refuse(USAGE, &format!("--steps: no step {step}, the workload has {steps}"));
    }
    // The campaign reports a panic as a violation, so the hook need not print it.
    std::panic::set_hook(Box::new(|_| ()));
    let mut last = (0, Duration::ZERO);
    let summary = campaign(&options, &mut |progress| match progress {
        Progress::Running(counts, time) => {
            let (states, since) = (counts.states - last.0, time - last.1);
            let rate = states as f64 / since.as_secs_f64().max(1e-3);
            last = (counts.states, time);
            let seconds = time.as_secs();
            eprintln!("{seconds:>6} s  {:>9} states  {rate:>6.0}/s", counts.states);
        }
        Progress::Shrinking => eprintln!("a violation; looking for a shorter way to it"),
    });
    drop(std::panic::take_hook());
    match &summary.failure {
        Some(failure) if !args.json => report(failure),
        Some(_) => {}
        None => {
            if let Some((status, why)) = not_searched(args, &summary) {
                return refuse(status, &why);
            }
        }
    }
    line(&if args.json { in_json(args, &summary) } else { in_words(&summary) });
    if summary.failure.is_some() { FAILED } else { 0 }
}

/// Prints a line on standard output. A closed pipe is no error.
fn line(text: &str) {
    let mut out = std::io::stdout().lock();
    if let Err(e) = writeln!(out, "{text}").and_then(|()| out.flush()) {
        if e.kind() == ErrorKind::BrokenPipe {
            std::process::exit(0);
        }
        std::process::exit(refuse(FAILED, &format!("standard output: {e}")).into());
    }
}

fn refuse(status: u8, why: &str) -> u8 {
    eprintln!("forebay-lab: {why}");
    status
}

fn options(args: &CrashTestArgs) -> Options {
    let cpus = std::thread::available_parallelism().map_or(1, |cpus| cpus.get());
    let seconds = match (args.states, args.case) {
        (None, None) => Some(args.seconds.unwrap_or(SECONDS)),
        _ => args.seconds,
    };
    Options {
        seed: args.seed,
        time: seconds.map(Duration::from_secs),
        states: args.states,
        jobs: args.jobs.map_or(cpus, usize::from),
        plant: args.plant,
        class: args.class,
        case: args.case,
        steps: args.steps.as_ref().map(|steps| steps.0.clone()),
        spot: args.at.clone(),
        ..Options::default()
    }
}

/// Why a search without a violation proves nothing, and the exit status for that.
fn not_searched(args: &CrashTestArgs, summary: &Summary) -> Option<(u8, String)> {
    match &args.at {
        Some(spot) if *spot != Spot::Running && summary.counts.cuts == 0 => {
            let why = "these steps have no such moment, or other writes pending then";
            Some((USAGE, format!("--at {spot}: {why}")))
        }
        _ if summary.counts.workloads == 0 => {
            Some((FAILED, "no workload could be carried out".into()))
        }
        _ => None,
    }
}

/// Prints the violation, and the command that shows it again.
fn report(failure: &Failure) {
    let (steps, before) = (failure.steps.len(), failure.steps_before);
    line(&format!("{steps} of {before} steps of workload {}:", failure.case));
    for (n, step) in failure.steps.iter().enumerate() {
        line(&format!("  {} {step}", n + 1));
    }
    line(&format!("on {}", failure.setup));
    line(&format!("violation at {}: {}", failure.violation.spot, failure.violation.what));
    line(&format!("again: forebay {}", failure.command()));
}

fn in_words(summary: &Summary) -> String {
    let counts = summary.counts;
    let verdict = if summary.failure.is_some() { "1 violation" } else { "no violation" };
    format!(
        "{verdict}: {} workloads, {} cuts, {} crash states, {} recovered, {} distinct results, \
         {:.0} states/s; {} second lives, {} kills; lost {}, torn {}, reordered {}, cut again {}, \
         failed writes {}, failed flushes {}; {} syncs held, {} refused; {}; classes: {}",
        counts.workloads,
        counts.cuts,
        counts.states,
        counts.recovered,
        summary.distinct,
        summary.rate(),
        counts.second_lives,
        counts.kills,
        counts.lost,
        counts.torn,
        counts.reordered,
        counts.second_states,
        counts.writes_failed,
        counts.flushes_failed,
        counts.syncs,
        counts.syncs_failed,
        of_faults(&counts),
        in_classes(&counts),
    )
}

/// How often each kind of fault happened, and the largest step.
fn of_faults(counts: &Counts) -> String {
    format!(
        "kills after a fault {}, later lives {}, older checkpoints {}, late writes {}, \
         failed reads {}, without space {}, decayed {}, refused steps {}, \
         emptied {}, grown {}; \
         writes past the cache {}, uncached {}, durable {}, both {}; \
         operations dropped {}; given up: {} files after refused steps, \
         {} runs, {} reads at the end; largest step: {} polls, {} requests, {} bytes",
        counts.kills_failing,
        counts.third_lives,
        counts.older,
        counts.late,
        counts.reads_failed,
        counts.no_space,
        counts.rotten,
        counts.refused,
        counts.emptied,
        counts.grown,
        counts.direct,
        counts.uncached,
        counts.dsync,
        counts.fua,
        counts.dropped,
        counts.unknown,
        counts.ended_early,
        counts.unchecked,
        counts.most_polls,
        counts.most_requests,
        counts.most_memory,
    )
}

/// Of each class: runs, crash states, recoveries.
fn in_classes(counts: &Counts) -> String {
    let all = counts.by_class().map(|(name, of)| {
        format!("{name} {} ({} states, {} recovered)", of.drawn, of.states, of.recovered)
    });
    all.collect::<Vec<_>>().join(", ")
}

fn in_json(args: &CrashTestArgs, summary: &Summary) -> String {
    let mut all = json!({
        "seed": args.seed,
        "seconds": summary.time.as_secs_f64(),
        "states_per_second": summary.rate(),
        "distinct_recovered": summary.distinct,
        "violation": summary.failure.as_ref().map(|failure| json!({
            "case": failure.case,
            "steps": failure.steps,
            "setup": failure.setup,
            "spot": failure.violation.spot.to_string(),
            "what": failure.violation.what,
            "command": format!("forebay {}", failure.command()),
        })),
    });
    for (name, count) in summary.counts.named() {
        all[name] = json!(count);
    }
    for (name, of) in summary.counts.by_class() {
        all["classes"][name] = json!({
            "drawn": of.drawn, "states": of.states, "recovered": of.recovered,
        });
    }
    all.to_string()
}
