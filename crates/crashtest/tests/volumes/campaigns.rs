//! Campaigns: as many states as were asked for, all different kinds of them, the same from the same seed; and
//! a failure that is made short and repeats.
//!
//! No locks.

use crate::from_env;
use forebay_crashtest::{Options, Planted, Spot, Summary, campaign, class_by_name};

fn quietly(options: &Options) -> Summary {
    campaign(options, &mut |_| ())
}

/// Nothing is wrong in many states, and every class of fault happens. `FOREBAY_CRASH_STATES` sets the number.
#[test]
fn many_states_and_nothing_wrong() {
    let wanted = from_env("FOREBAY_CRASH_STATES").unwrap_or(3_000);
    let jobs = std::thread::available_parallelism().map_or(1, |n| n.get());
    let seed = from_env("FOREBAY_SEED").unwrap_or(1);
    let class = std::env::var("FOREBAY_CRASH_CLASS").ok();
    let class = class.map(|name| class_by_name(&name).expect("a class of that name"));
    let options = Options { states: Some(wanted), jobs, seed, class, ..Options::default() };
    let summary = quietly(&options);
    let (counts, distinct) = (summary.counts, summary.distinct);
    println!("{counts:?}, distinct {distinct}, {:.0} states/s", summary.rate());
    if let Some(failure) = summary.failure {
        panic!("forebay {}\n{failure:#?}", failure.command());
    }
    for (name, of) in counts.by_class() {
        println!(
            "class {name}: {} drawn, {} states, {} recovered",
            of.drawn, of.states, of.recovered
        );
        let all = class.is_none() && wanted >= 50_000;
        assert!(of.drawn > 0 || !all, "no run of the class {name}");
    }
    assert!(counts.states >= wanted && counts.recovered > wanted / 12);
    for (name, count) in counts.named() {
        let common = ["workloads", "cuts", "states", "recovered", "second_lives", "lost", "torn"];
        let wanted = common.contains(&name) || class.is_none() && wanted >= 50_000;
        assert!(count > 0 || !wanted, "no {name}");
    }
}

/// A recovery that punched a hole into a file without meeting its inode left in it what was stored before.
#[test]
fn a_hole_is_taken_off_what_is_stored() {
    let summary = quietly(&Options { case: Some(22), seed: 9, ..Options::default() });
    assert!(summary.failure.is_none(), "{:?}", summary.failure);
    assert!(summary.counts.states > 2);
}

/// The same seed sees the same, and each state once: K1, P1, X1, X2, X3.
#[test]
fn the_same_seed_sees_the_same() {
    let whole = |case| {
        let summary = quietly(&Options { case: Some(case), seed: 3, ..Options::default() });
        assert!(summary.failure.is_none(), "{:?}", summary.failure);
        (summary.counts, summary.distinct)
    };
    for case in [5, 700, 725] {
        let (first, again) = (whole(case), whole(case));
        assert_eq!(first, again);
        let counts = first.0;
        assert!(counts.recovered <= counts.states + counts.kills, "{counts:?}");
        assert!(first.0.states > 2, "{case}: {first:?}");
    }
}

/// A violation is made short, and its command repeats it, without the mistake nothing: H1.
#[test]
fn a_failure_is_made_short_and_repeats() {
    let plant = Some(Planted::UnverifiedData);
    let summary = quietly(&Options { plant, states: Some(200_000), jobs: 2, ..Options::default() });
    let failure = summary.failure.expect("the mistake shows");
    println!("forebay {}\n{:?}\n{}", failure.command(), failure.steps, failure.violation.what);
    assert!(failure.steps.len() <= 6, "{:?}", failure.steps);
    let again = Options {
        plant,
        case: Some(failure.case),
        steps: Some(failure.keep.clone()),
        spot: Some(failure.violation.spot.clone()),
        ..Options::default()
    };
    let repeated = quietly(&again).failure.expect("it repeats");
    assert_eq!(repeated.violation, failure.violation);
    assert_ne!(repeated.violation.spot, Spot::Running);
    assert!(quietly(&Options { plant: None, ..again }).failure.is_none());
}
