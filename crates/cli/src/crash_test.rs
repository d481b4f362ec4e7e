//! `forebay crash-test`: volumes on a simulated disk in memory, whose power goes everywhere.

use crate::args::CrashTestArgs;
use crate::failure::{Failure as Refusal, Outcome, status};
use crate::output;
use forebay_crashtest::{
    Counts, Failure, Options, Progress, Spot, Summary, campaign, missing_step,
};
use serde_json::json;
use std::time::Duration;

/// How long it runs when nothing else says when it ends.
const SECONDS: u64 = 10;

/// Runs it; says on standard error how far it is, and at the end on standard output what was seen.
pub fn crash_test(args: &CrashTestArgs) -> Outcome<u8> {
    let cpus = std::thread::available_parallelism().map_or(1, |cpus| cpus.get());
    let seconds = match (args.states, args.case) {
        (None, None) => Some(args.seconds.unwrap_or(SECONDS)),
        _ => args.seconds,
    };
    let options = Options {
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
    };
    if let Some((step, steps)) = missing_step(&options) {
        return Err(Refusal::usage(format!("--steps: no step {step}, the workload has {steps}")));
    }
    // A panic is a violation, and is told with it.
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
    if let Some(failure) = summary.failure.as_ref().filter(|_| !args.json) {
        tell(failure);
    }
    if summary.failure.is_none() {
        looked(args, &summary)?;
    }
    output::line(if args.json { in_json(args, &summary) } else { in_words(&summary) });
    Ok(if summary.failure.is_some() { status::FAILED } else { status::OK })
}

/// That nothing was found says something only if it was looked for.
fn looked(args: &CrashTestArgs, summary: &Summary) -> Outcome {
    match &args.at {
        Some(spot) if *spot != Spot::Running && summary.counts.cuts == 0 => Err(Refusal::usage(
            format!("--at {spot}: these steps have no such moment, or other writes pending then"),
        )),
        _ if summary.counts.workloads == 0 => Err(Refusal::new("no workload could be carried out")),
        _ => Ok(()),
    }
}

/// What was found, and how to see it again.
fn tell(failure: &Failure) {
    let before = failure.steps_before;
    output::line(format!(
        "{} of {before} steps of workload {}:",
        failure.steps.len(),
        failure.case
    ));
    for (n, step) in failure.steps.iter().enumerate() {
        output::line(format!("  {} {step}", n + 1));
    }
    output::line(format!("on {}", failure.setup));
    output::line(format!("violation at {}: {}", failure.violation.spot, failure.violation.what));
    output::line(format!("again: forebay {}", failure.command()));
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
        "later lives {}, older checkpoints {}, late writes {}, failed reads {}, without space {}, \
         decayed {}, refused steps {}, grown {}; writes past the cache {}, uncached {}, durable {}; \
         operations dropped {}; given up: {} files after refused steps, \
         {} runs, {} reads at the end; largest step: {} polls, {} requests, {} bytes",
        counts.third_lives,
        counts.older,
        counts.late,
        counts.reads_failed,
        counts.no_space,
        counts.rotten,
        counts.refused,
        counts.grown,
        counts.direct,
        counts.uncached,
        counts.dsync,
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
