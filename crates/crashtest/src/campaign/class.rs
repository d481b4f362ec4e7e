//! The classes of a campaign: the name of each kind of run, how often a campaign draws it, and the
//! functions that draw and execute one run.
//!
//! A new class is one row of [`CLASSES`]. Its counts are in [`crate::Counts::classes`] at the same
//! index.
//!
//! Invariants: class.Q1 within [`cycle`] consecutive rounds a campaign draws each class of long
//! runs as often as its weight says. class.Q2 the seed of a run does not depend on the position of
//! its class in the table. class.Q3 campaigns of different seeds share no long runs.
//!
//! No locks.

use crate::clients;
use crate::search::{
    CLASS_COUNT, ClassCounts, Counts, Depth, Part, Seen, Subject, Violation, look_at, search,
};
use crate::workload::{Base, Case, Kind, Setup, draw};
use forebay_base::world::split_mix;

/// Executes a run until `stop` returns true.
pub type CarryOut =
    fn(&Case, &Base, Part<'_>, &mut Seen, &dyn Fn(&Seen) -> bool) -> Result<(), Violation>;

/// The steps of a run as text, all of them or those at the positions given.
pub type Steps = fn(&Case, &Base, Option<&[usize]>) -> Vec<String>;

/// One kind of run.
pub struct Class {
    /// Name in the summary.
    pub name: &'static str,
    /// In how many rounds of a cycle the long run is of this class; 0: runs are drawn by number.
    pub weight: u64,
    /// Draws a run from a seed.
    pub draw: fn(u64) -> (Kind, Setup),
    /// Executes it.
    pub carry_out: CarryOut,
    /// Lists its steps.
    pub steps: Steps,
}

/// A class of one client whose steps are those of [`Case::script`].
const fn of_one_client(name: &'static str, weight: u64, draw: fn(u64) -> (Kind, Setup)) -> Class {
    Class { name, weight, draw, carry_out: one_client, steps: one_client_steps }
}

/// A class of several clients.
const fn of_several(name: &'static str, weight: u64, draw: fn(u64) -> (Kind, Setup)) -> Class {
    Class { name, weight, draw, carry_out: clients::carry_out, steps: clients::list_steps }
}

/// Index of the class of runs of one step.
pub const ONE_STEP: usize = 0;
/// Index of the class of runs of two steps.
pub const TWO_STEPS: usize = 1;

/// All classes. The first two are drawn by number: three and two runs of each round.
pub static CLASSES: [Class; CLASS_COUNT] = [
    of_one_client("one-step", 0, draw::none),
    of_one_client("two-steps", 0, draw::none),
    of_one_client("names", 1, draw::names),
    of_one_client("names-failing", 1, draw::names_failing),
    of_one_client("replacing", 1, draw::replacing),
    of_one_client("content", 2, draw::content),
    of_one_client("content-failing", 1, draw::content_failing),
    of_one_client("crowded", 1, draw::crowded),
    of_several("several-clients", 2, clients::draw_several),
    of_several("dropped-futures", 2, clients::draw_dropped),
    of_several("clients-decay", 1, clients::draw_decay),
    of_several("clients-host-full", 1, clients::draw_host_full),
    of_several("clients-growing", 1, clients::draw_growing),
    of_several("clients-older-checkpoint", 1, clients::draw_older),
    of_several("clients-late-writes", 1, clients::draw_late),
    of_one_client("no-sums", 2, draw::no_sums),
    of_one_client("flags", 2, draw::flags),
    of_one_client("decay", 2, draw::decay),
    of_one_client("host-full", 1, draw::host_full),
    of_one_client("late-writes", 1, draw::late_writes),
    of_one_client("third-lives", 1, draw::third_lives),
    of_one_client("growing", 1, draw::growing),
    of_one_client("older-checkpoint", 1, draw::older),
    of_one_client("large", 1, draw::large),
];

impl Counts {
    /// The counts of each class, with its name.
    pub fn by_class(&self) -> impl Iterator<Item = (&'static str, ClassCounts)> {
        CLASSES.iter().map(|class| class.name).zip(self.classes)
    }
}

/// Rounds in which each class is drawn as often as its weight says.
pub fn cycle() -> u64 {
    CLASSES.iter().map(|class| class.weight).sum()
}

/// The class of the long run of a round, and the seed of that run (class.Q1, class.Q2).
pub fn of_round(seed: u64, round: u64) -> (usize, u64) {
    let mut hashed = seed ^ 0xc1a55;
    // Half of the range, so that counting rounds up does not wrap (class.Q1).
    let mut drawn = (split_mix(&mut hashed) >> 1).wrapping_add(round);
    let mut left = drawn % cycle();
    for (at, class) in CLASSES.iter().enumerate() {
        if left < class.weight {
            return (at, split_mix(&mut drawn));
        }
        left -= class.weight;
    }
    unreachable!("the remainder is below the sum of the weights")
}

/// The index of the class of this name.
pub fn by_name(name: &str) -> Option<usize> {
    CLASSES.iter().position(|class| class.name == name)
}

fn one_client(
    case: &Case,
    base: &Base,
    part: Part<'_>,
    seen: &mut Seen,
    stop: &dyn Fn(&Seen) -> bool,
) -> Result<(), Violation> {
    let script = case.script(base, part.keep);
    let subject = Subject { setup: &case.setup, base, script: &script };
    match part.spot {
        Some(spot) => look_at(subject, Depth::FULL, spot, seen),
        None => search(subject, Depth::FULL, seen, stop),
    }
}

fn one_client_steps(case: &Case, base: &Base, keep: Option<&[usize]>) -> Vec<String> {
    case.script(base, keep).ops.iter().map(|op| format!("{op:?}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    /// class.Q3. The story: the campaign of one seed was that of the next one, shifted by a round.
    #[test]
    fn campaigns_of_neighbouring_seeds_share_no_long_runs() {
        let mut drawn = HashSet::new();
        for seed in 1..=20 {
            for round in 0..500 {
                let of_seed = of_round(seed, round).1;
                assert!(drawn.insert(of_seed), "seed {seed}, round {round}: drawn before");
            }
        }
    }

    /// class.Q1, and names are distinct.
    #[test]
    fn cycle_draws_each_class_by_its_weight() {
        let mut drawn = [0; CLASS_COUNT];
        for round in 100..100 + 3 * cycle() {
            drawn[of_round(7, round).0] += 1;
        }
        for (class, drawn) in CLASSES.iter().zip(drawn) {
            assert_eq!(drawn, 3 * class.weight, "{}", class.name);
        }
        for (at, class) in CLASSES.iter().enumerate() {
            assert_eq!(by_name(class.name), Some(at));
        }
    }
}
