//! Many workloads on several threads, for a time or a number of states.
//!
//! Invariant: P1 the sequence of workloads depends on the seed alone; how many of them run depends
//! on time and threads.
//!
//! Memory does not grow with time: a workload's data is dropped at its end.
//!
//! Locks: one, a leaf, around the totals of all threads.

mod bases;
mod cases;
mod class;
mod shrink;

pub use self::bases::Bases;
pub use self::class::{CLASSES, Class, by_name as class_by_name};
use self::shrink::attempt;
pub use self::shrink::{Failure, shrink};
use crate::search::{Counts, Seen, Spot, Violation};
use crate::workload::Case;
use forebay_lfs::fault::Planted;
use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long to shrink a failure, by default.
const SHRINK_PATIENCE: Duration = Duration::from_secs(60);

/// The options of a campaign.
#[derive(Debug, Clone)]
pub struct Options {
    /// Decides which workloads run (campaign.P1).
    pub seed: u64,
    /// Ends after this time.
    pub time: Option<Duration>,
    /// Ends after this many crash states.
    pub states: Option<u64>,
    /// Threads, at least 1.
    pub jobs: usize,
    /// The fault to inject, for tests of the suite itself.
    pub plant: Option<Planted>,
    /// Runs of this class alone: an index of [`crate::CLASSES`].
    pub class: Option<usize>,
    /// This workload alone.
    pub case: Option<u64>,
    /// Only these steps of that workload.
    pub steps: Option<Vec<usize>>,
    /// Only this spot: a moment, and the writes that the disk keeps then.
    pub spot: Option<Spot>,
    /// How long to shrink a violation.
    pub patience: Duration,
    /// Interval of the calls of `progress`.
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

/// The result of a campaign.
#[derive(Debug)]
pub struct Summary {
    /// The sums over all workloads.
    pub counts: Counts,
    /// Distinct results of recovery, at least.
    pub distinct: u64,
    /// Duration of the campaign.
    pub time: Duration,
    /// The first violation, shrunk.
    pub failure: Option<Failure>,
}

impl Summary {
    /// Crash states in a second.
    pub fn rate(&self) -> f64 {
        self.counts.states as f64 / self.time.as_secs_f64().max(1e-3)
    }
}

/// A report while a campaign runs.
#[derive(Debug, Clone, Copy)]
#[expect(clippy::large_enum_variant, reason = "one is made each second")]
pub enum Progress {
    /// The sums so far, and the time since the start.
    Running(Counts, Duration),
    /// The campaign has found a violation and shrinks it.
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
    /// Whether the campaign is to end.
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
                    let counted = std::cell::Cell::new(0);
                    let stop = |seen: &Seen| {
                        let states = seen.counts.states;
                        self.states.fetch_add(states - counted.replace(states), Ordering::Relaxed);
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

    /// Reports progress until all threads have ended.
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

/// Runs workloads until the time or the number of states is reached, or a violation is found.
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
            // The caller repeats a failure that is shrunk already.
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
