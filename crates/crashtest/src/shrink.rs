//! A workload that shows a violation is made short, and named by a command that repeats it.
//!
//! Invariants: H1 what is handed out was seen to fail.
//!
//! No locks.

use crate::case::{Bases, Case};
use crate::class::Part;
use crate::counts::Seen;
use crate::search::{Spot, Violation};
use crate::setup::Base;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

/// States looked at in one attempt.
const STATES_MAX: u64 = 60_000;

/// What a violation that is a panic begins with.
const PANIC: &str = "a panic";

/// A violation, as small as it could be made.
#[derive(Debug, Clone)]
pub struct Failure {
    /// Seed of the campaign.
    pub seed: u64,
    /// Number of the workload.
    pub case: u64,
    /// Places of the steps that are left.
    pub keep: Vec<usize>,
    /// The steps.
    pub steps: Vec<String>,
    /// Steps of the whole workload.
    pub steps_before: usize,
    /// How the volume was set up.
    pub setup: String,
    /// Where and what.
    pub violation: Violation,
    /// The mistake that was planted.
    pub plant: Option<&'static str>,
}

impl Failure {
    /// The words behind `forebay` that repeat it.
    pub fn command(&self) -> String {
        let keep: Vec<String> = self.keep.iter().map(usize::to_string).collect();
        let plant = self.plant.map(|name| format!(" --plant {name}")).unwrap_or_default();
        // A panic may be that of the search, so all spots are tried again.
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

/// The workload with the steps in `keep` (all: `None`), looked at from one end to the other, or at one spot.
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

/// Leaves out steps, then losses of writes, while it still fails; for so long at most.
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

/// Keeps whole what need not be lost or torn.
fn fewer_losses(
    case: &Case,
    base: &Base,
    keep: &[usize],
    worst: &mut Violation,
    late: &dyn Fn() -> bool,
) {
    let Spot::Cut(cut, mut letters, then) = worst.spot.clone() else { return };
    for at in 0..letters.len() {
        // A tear becomes a whole write or a loss, a loss a whole write.
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
