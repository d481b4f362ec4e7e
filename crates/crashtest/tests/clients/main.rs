//! Several clients at once on one volume, and operations that are dropped while they wait: the power goes at
//! each write and flush.
//!
//! `FOREBAY_CLIENT_SEEDS` sets the number of seeds of each test, `FOREBAY_SEED` the first. No locks.

use forebay_crashtest::{Clients, Grounds, Seen, Violation, attempt_clients};
use std::ops::Range;

fn from_env(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|text| text.parse().ok())
}

fn seeds(runs: u64) -> Range<u64> {
    let first = from_env("FOREBAY_SEED").unwrap_or(1);
    first..first + from_env("FOREBAY_CLIENT_SEEDS").unwrap_or(runs)
}

fn search(clients: &Clients, grounds: &mut Grounds, seen: &mut Seen) -> Result<(), Violation> {
    let ground = grounds.of(clients).expect("something to begin with");
    attempt_clients(clients, &ground, &clients.steps(), None, seen, &|_| false)
}

fn all(make: fn(u64) -> Clients, runs: u64) {
    let (mut grounds, mut seen) = (Grounds::default(), Seen::default());
    let started = std::time::Instant::now();
    let mut bad = 0;
    for seed in seeds(runs) {
        let clients = make(seed);
        if let Err(violation) = search(&clients, &mut grounds, &mut seen) {
            bad += 1;
            println!("seed {seed}: {:?}: {}", violation.spot, violation.what);
        }
    }
    let rate = seen.counts.states as f64 / started.elapsed().as_secs_f64();
    println!("{rate:.0} states/s, {}", seen.line());
    assert_eq!(bad, 0, "violations");
}

#[test]
fn several_clients_crashed_anywhere_keep_what_was_synced() {
    all(Clients::several, 20);
}

#[test]
fn dropped_operations_crashed_anywhere_harm_nothing_else() {
    all(Clients::dropped, 20);
}
