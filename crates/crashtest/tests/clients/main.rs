//! Several clients at once on one volume, and operations that are dropped while they wait: the power goes at
//! each write and flush.
//!
//! `FOREBAY_CLIENT_SEEDS` sets the number of seeds of each test, `FOREBAY_SEED` the first. No locks.

mod injected;

use forebay_crashtest::{Bases, CLASSES, Case, Planted, Seen, Violation, class_by_name};
use std::ops::Range;

fn from_env(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|text| text.parse().ok())
}

fn seeds(runs: u64) -> Range<u64> {
    let first = from_env("FOREBAY_SEED").unwrap_or(1);
    first..first + from_env("FOREBAY_CLIENT_SEEDS").unwrap_or(runs)
}

/// A run of a class, by its seed.
fn case_of(class: &str, seed: u64, plant: Option<Planted>) -> Case {
    let class = class_by_name(class).expect("a class");
    let (kind, mut setup) = (CLASSES[class].draw)(seed);
    setup.plant = plant;
    Case { number: 0, class, kind, setup }
}

fn search(case: &Case, bases: &mut Bases, seen: &mut Seen) -> Result<(), Violation> {
    let base = bases.of(case).expect("something to begin with");
    (case.class().carry_out)(case, &base, Default::default(), seen, &|_| false)
}

/// Looks at runs of a class; a fifth of the states at least has to be recovered in fact.
fn look_at(class: &str, runs: u64) {
    let (mut bases, mut seen, mut violations) = (Bases::default(), Seen::default(), 0);
    let started = std::time::Instant::now();
    for seed in seeds(runs) {
        if let Err(violation) = search(&case_of(class, seed, None), &mut bases, &mut seen) {
            violations += 1;
            println!("seed {seed}: {}: {}", violation.spot, violation.what);
        }
    }
    let rate = seen.counts.states as f64 / started.elapsed().as_secs_f64();
    println!("{class}: {rate:.0} states/s, {}", seen.line());
    assert_eq!(violations, 0, "violations");
}

#[test]
fn several_clients_crashed_anywhere_keep_what_was_synced() {
    look_at("several-clients", 30);
}

#[test]
fn dropped_operations_crashed_anywhere_harm_nothing_else() {
    look_at("dropped-futures", 30);
}
