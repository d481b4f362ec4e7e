//! Random schedules for tests of concurrency; only in the build with `--cfg shuttle`.
//!
//! All such tests of the workspace run under this configuration. `FOREBAY_SHUTTLE_RUNS` sets the
//! number of schedules of each test.

use shuttle::scheduler::{PctScheduler, RandomScheduler, Scheduler};
use shuttle::{Config, MaxSteps, Runner};

/// Bytes of the stack of each simulated thread. The default of shuttle, 60 KiB, is too small with
/// assertions: one frame of a function that builds the page cache has 46 KiB.
const STACK: usize = 512 << 10;
/// A schedule with more steps is a livelock: two threads yield to each other for ever.
const STEPS: usize = 1_000_000;
/// Schedules of each test, unless the environment sets another number. Some races show in one
/// schedule of several thousand.
const RUNS: usize = 20_000;

/// How many schedules a test explores in all.
pub fn runs() -> usize {
    std::env::var("FOREBAY_SHUTTLE_RUNS").map_or(RUNS, |runs| runs.parse().expect("a number"))
}

/// Explores `count` schedules of `test`, each step drawn at random.
pub fn random(count: usize, test: impl Fn() + Send + Sync + 'static) {
    explore(RandomScheduler::new(count), test);
}

/// Explores [`runs`] schedules of `test`: one half drawn at random, the other half by priorities
/// that change twice, which finds races that need few switches, far apart.
pub fn check(test: impl Fn() + Send + Sync + 'static) {
    let test = std::sync::Arc::new(test);
    let again = test.clone();
    random(runs() / 2, move || test());
    explore(PctScheduler::new(3, runs() / 2), move || again());
}

fn explore(scheduler: impl Scheduler + 'static, test: impl Fn() + Send + Sync + 'static) {
    let mut config = Config::new();
    config.stack_size = STACK;
    config.max_steps = MaxSteps::FailAfter(STEPS);
    Runner::new(scheduler, config).run(test);
}
