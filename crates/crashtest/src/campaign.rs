//! Many workloads on several threads, for a time or a number of states.
//!
//! Invariants: P1 which workloads there are depends on the seed alone; how far they come on time and threads.
//!
//! Memory does not grow with time: what is kept of a workload ends with it.
//!
//! Locks: one, a leaf, around what all threads have seen.

use crate::case::{Bases, Case};
use crate::counts::{Counts, Seen};
use crate::search::{Spot, Violation};
use crate::shrink::{Failure, attempt, shrink};
use forebay_lfs::fault::Planted;
use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long a failure is made short.
const SHRINK_PATIENCE: Duration = Duration::from_secs(60);

/// What to do.
#[derive(Debug, Clone)]
pub struct Options {
    /// Which workloads.
    pub seed: u64,
    /// Ends after this time.
    pub time: Option<Duration>,
    /// Ends after so many crash states.
    pub states: Option<u64>,
    /// Threads, at least 1.
    pub jobs: usize,
    /// The mistake to make, for tests of the test.
    pub plant: Option<Planted>,
    /// Runs of this class alone: an index of [`crate::CLASSES`].
    pub class: Option<usize>,
    /// This workload alone.
    pub case: Option<u64>,
    /// Of that one these steps alone.
    pub steps: Option<Vec<usize>>,
    /// And this spot alone.
    pub spot: Option<Spot>,
    /// How long a violation is made short.
    pub patience: Duration,
    /// How often `progress` is told.
    pub every: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            seed: 1,
            time: None,
            states: None,
            jobs: 1,
            plant: None,
            class: None,
            case: None,
            steps: None,
            spot: None,
            patience: SHRINK_PATIENCE,
            every: Duration::from_secs(1),
        }
    }
}

/// What came of it.
#[derive(Debug)]
pub struct Summary {
    /// Everything that was looked at.
    pub counts: Counts,
    /// Distinct results of recovery, at least.
    pub distinct: u64,
    /// It took so long.
    pub time: Duration,
    /// The first violation, made short.
    pub failure: Option<Failure>,
}

impl Summary {
    /// Crash states in a second.
    pub fn rate(&self) -> f64 {
        self.counts.states as f64 / self.time.as_secs_f64().max(1e-3)
    }
}

/// How far it is.
#[derive(Debug, Clone, Copy)]
#[expect(clippy::large_enum_variant, reason = "one is made each second")]
pub enum Progress {
    /// So far, since then.
    Running(Counts, Duration),
    /// A violation is made short.
    Shrinking,
}

struct Shared<'a> {
    options: &'a Options,
    started: Instant,
    next: AtomicU64,
    over: AtomicBool,
    states: AtomicU64,
    total: Mutex<Total>,
    changed: Condvar,
}

#[derive(Default)]
struct Total {
    seen: Seen,
    found: Option<(Case, Violation)>,
    running: usize,
}

fn lock<'a>(total: &'a Mutex<Total>) -> std::sync::MutexGuard<'a, Total> {
    total.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared<'_> {
    /// Whether it is time to end.
    fn over(&self) -> bool {
        let options = self.options;
        self.over.load(Ordering::Relaxed)
            || options.time.is_some_and(|time| self.started.elapsed() >= time)
            || options.states.is_some_and(|states| self.states.load(Ordering::Relaxed) >= states)
    }

    /// The next workload.
    fn next(&self) -> Option<u64> {
        let n = self.next.fetch_add(1, Ordering::Relaxed);
        match self.options.case {
            Some(case) => (n == 0).then_some(case),
            None => (!self.over()).then_some(n),
        }
    }

    fn work(&self) {
        let (mut bases, options) = (Bases::default(), self.options);
        let mut openings = HashSet::new();
        while let Some(number) = self.next() {
            let case = Case::new(options.seed, number, options.plant);
            if options.class.is_some_and(|class| class != case.class) {
                continue;
            }
            let mut seen = Seen { openings: std::mem::take(&mut openings), ..Seen::default() };
            let result = match bases.of(&case) {
                Ok(base) => {
                    let told = std::cell::Cell::new(0);
                    let stop = |seen: &Seen| {
                        let states = seen.counts.states;
                        self.states.fetch_add(states - told.replace(states), Ordering::Relaxed);
                        self.over()
                    };
                    let (steps, spot) = (options.steps.as_deref(), options.spot.as_ref());
                    let result = attempt(&case, &base, steps, spot, &mut seen, &stop);
                    stop(&seen);
                    result
                }
                Err(error) => {
                    let what = format!("no volume to begin with: {error}");
                    Err(Violation { spot: Spot::Running, what })
                }
            };
            openings = std::mem::take(&mut seen.openings);
            seen.belongs_to(case.class);
            let mut total = lock(&self.total);
            total.seen.add(seen);
            if let Err(violation) = result {
                self.over.store(true, Ordering::Relaxed);
                total.found.get_or_insert((case, violation));
            }
        }
        lock(&self.total).running -= 1;
        self.changed.notify_all();
    }

    /// Tells how far it is until everybody is done.
    fn watch(&self, progress: &mut dyn FnMut(Progress)) {
        let mut total = lock(&self.total);
        while total.running > 0 {
            let waited = self.changed.wait_timeout(total, self.options.every);
            total = waited.unwrap_or_else(PoisonError::into_inner).0;
            let states = self.states.load(Ordering::Relaxed);
            let counts = Counts { states, ..total.seen.counts };
            drop(total);
            progress(Progress::Running(counts, self.started.elapsed()));
            total = lock(&self.total);
        }
    }
}

/// Runs until time or number are up, or something is wrong.
pub fn campaign(options: &Options, progress: &mut dyn FnMut(Progress)) -> Summary {
    let jobs = options.jobs.max(1);
    let shared = Shared {
        options,
        started: Instant::now(),
        next: AtomicU64::new(0),
        over: AtomicBool::new(false),
        states: AtomicU64::new(0),
        total: Mutex::new(Total { running: jobs, ..Total::default() }),
        changed: Condvar::new(),
    };
    std::thread::scope(|scope| {
        for n in 0..jobs {
            let work = std::thread::Builder::new().name(format!("crash-test {n}"));
            if work.spawn_scoped(scope, || shared.work()).is_err() {
                lock(&shared.total).running -= 1;
            }
        }
        shared.watch(progress);
    });
    let time = shared.started.elapsed();
    let total = std::mem::take(&mut *lock(&shared.total));
    let failure = total.found.map(|(case, violation)| {
        progress(Progress::Shrinking);
        match (&options.steps, &options.spot) {
            // It is a repetition.
            (Some(keep), _) => as_it_is(options, &case, keep, violation),
            _ => shrink(options.seed, &case, violation, options.patience),
        }
    });
    Summary { counts: total.seen.counts, distinct: total.seen.distinct(), time, failure }
}

/// The first of the steps asked for that the workload does not have, and how many it has.
pub fn missing_step(options: &Options) -> Option<(usize, usize)> {
    let (number, keep) = (options.case?, options.steps.as_ref()?);
    let case = Case::new(options.seed, number, options.plant);
    let steps = Bases::default().of(&case).ok()?;
    let steps = (case.class().steps)(&case, &steps, None).len();
    keep.iter().find(|step| **step >= steps).map(|step| (*step, steps))
}

fn as_it_is(options: &Options, case: &Case, keep: &[usize], violation: Violation) -> Failure {
    let base = Bases::default().of(case);
    let steps = base.map(|base| (case.class().steps)(case, &base, Some(keep)));
    Failure {
        seed: options.seed,
        case: case.number,
        keep: keep.to_vec(),
        steps: steps.unwrap_or_default(),
        steps_before: keep.len(),
        setup: format!("{:?}", case.setup),
        violation,
        plant: case.setup.plant.map(Planted::name),
    }
}
