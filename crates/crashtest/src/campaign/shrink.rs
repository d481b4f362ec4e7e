//! Shrinks a workload that shows a violation, and prints the command that repeats it.
//!
//! Invariant: H1 the search has seen the returned workload fail.
//!
//! No locks.

use super::bases::Bases;
use crate::search::{Part, Seen, Spot, Violation};
use crate::workload::{Base, Case};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

/// States that one attempt inspects, at most.
const STATES_MAX: u64 = 60_000;

/// The beginning of a violation that is a panic.
const PANIC: &str = "a panic";

/// A violation with the smallest workload that was found.
#[derive(Debug, Clone)]
pub struct Failure {
    /// Seed of the campaign.
    pub seed: u64,
    /// Number of the workload.
    pub case: u64,
    /// Positions of the steps that remain.
    pub keep: Vec<usize>,
    /// The steps.
    pub steps: Vec<String>,
    /// Steps of the complete workload.
    pub steps_before: usize,
    /// How the volume was set up.
    pub setup: String,
    /// The violation and its spot.
    pub violation: Violation,
    /// The name of the injected fault.
    pub plant: Option<&'static str>,
}

impl Failure {
    /// The arguments of `forebay` that repeat the violation.
    pub fn command(&self) -> String {
        let keep: Vec<String> = self.keep.iter().map(usize::to_string).collect();
        let plant = self.plant.map(|name| format!(" --plant {name}")).unwrap_or_default();
        // The search itself may have panicked, so the command tries all spots again.
        let at = match self.violation.what.starts_with(PANIC) {
            true => String::new(),
            false => format!(" --at '{}'", self.violation.spot),
        };
        format!(
            "crash-test --seed {} --case {} --steps {}{at}{plant}",
            self.seed,
            self.case,
            if keep.is_empty() { "none".into() } else { keep.join(",") },
        )
    }
}

/// Searches the workload with the steps in `keep` (`None`: all), at all spots or at one.
///
/// # Errors
/// The violation; a panic is one, too.
pub fn attempt(
    case: &Case,
    base: &Base,
    keep: Option<&[usize]>,
    spot: Option<&Spot>,
    seen: &mut Seen,
    stop: &dyn Fn(&Seen) -> bool,
) -> Result<(), Violation> {
    let carry_out = case.class().carry_out;
    let part = Part { keep, spot };
    let result = catch_unwind(AssertUnwindSafe(|| carry_out(case, base, part, seen, stop)));
    result.unwrap_or_else(|cause| {
        let text = cause.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| cause.downcast_ref::<&str>().copied());
        let what = format!("{PANIC}: {}", text.unwrap_or("without a message"));
        Err(Violation { spot: Spot::Running, what })
    })
}

/// Removes steps, then losses of writes, as long as the rest still fails and the time lasts.
pub fn shrink(seed: u64, case: &Case, violation: Violation, patience: Duration) -> Failure {
    let started = Instant::now();
    let late = || started.elapsed() >= patience;
    let mut bases = Bases::default();
    let name = |case: &Case, keep: Vec<usize>, steps: Vec<String>, before, violation| Failure {
        seed,
        case: case.number,
        keep,
        steps,
        steps_before: before,
        setup: format!("{:?}", case.setup),
        violation,
        plant: case.setup.plant.map(|plant| plant.name()),
    };
    let Ok(base) = bases.of(case) else {
        return name(case, Vec::new(), Vec::new(), 0, violation);
    };
    let whole = (case.class().steps)(case, &base, None).len();
    let (mut keep, mut worst): (Vec<usize>, _) = ((0..whole).collect(), violation);
    let mut chunk = (whole / 2).max(1);
    loop {
        let mut at = 0;
        while at < keep.len() && !late() {
            let mut fewer = keep.clone();
            fewer.drain(at..(at + chunk).min(keep.len()));
            let enough = |seen: &Seen| seen.counts.states > STATES_MAX || late();
            match attempt(case, &base, Some(&fewer), None, &mut Seen::default(), &enough) {
                Err(found) => (keep, worst) = (fewer, found),
                Ok(()) => at += chunk,
            }
        }
        if chunk == 1 || late() {
            break;
        }
        chunk /= 2;
    }
    fewer_losses(case, &base, &keep, &mut worst, &late);
    let steps = (case.class().steps)(case, &base, Some(&keep));
    name(case, keep, steps, whole, worst)
}

/// Keeps complete each write that need not be lost or torn for the failure.
fn fewer_losses(
    case: &Case,
    base: &Base,
    keep: &[usize],
    worst: &mut Violation,
    late: &dyn Fn() -> bool,
) {
    let Spot::Cut(cut, mut letters, then) = worst.spot.clone() else { return };
    for at in 0..letters.len() {
        // A torn write becomes a complete or a lost one, a lost write a complete one.
        let better: &[&str] = match &letters[at..=at] {
            "+" => &[],
            "." => &["+"],
            _ => &["+", "."],
        };
        for better in better.iter().filter(|_| !late()) {
            let mut other = letters.clone();
            other.replace_range(at..=at, better);
            let spot = Spot::Cut(cut, other.clone(), then);
            let never = |_: &Seen| false;
            let mut seen = Seen::default();
            if let Err(found) = attempt(case, base, Some(keep), Some(&spot), &mut seen, &never) {
                (letters, *worst) = (other, found);
                break;
            }
        }
    }
}
