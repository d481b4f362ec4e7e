//! How many seeds, and all processors for them.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

fn env(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |v| v.parse().expect("a number"))
}

/// The seeds of a test: `FOREBAY_FSX_RUNS` of them, or 60, divided by `part`, from
/// `FOREBAY_FSX_SEED`, or 1, on.
pub fn seeds(part: u64) -> Range<u64> {
    let first = env("FOREBAY_FSX_SEED", 1);
    first..first + env("FOREBAY_FSX_RUNS", 60).div_ceil(part)
}

/// Runs each seed once, on as many threads as there are processors: each has a world of its own.
pub fn each(seeds: Range<u64>, run: impl Fn(u64) + Sync) {
    let next = AtomicU64::new(seeds.start);
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds.end {
                        return;
                    }
                    run(seed);
                }
            });
        }
    });
}
