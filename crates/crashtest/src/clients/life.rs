//! The second life after a crash: other clients continue on a crash state, and the power fails
//! again at every moment of that.
//!
//! No locks.

use super::judge::{Judge, Remains};
use super::plan::{Draw, Step, steps};
use super::run::{Ran, run};
use super::workload::{ALL_UPTO, Clients, count};
use crate::search::Seen;
use crate::verdict::{Checked, Recoveries};
use crate::workload::Setup;
use forebay_sim::SimDisk;
use std::collections::HashSet;

/// Steps of a second life.
const STEPS: usize = 10;
/// Number of the first step of a second life, so that no change has a pattern of the first life.
const FIRST_STEP: usize = 100;
/// Crash states of a moment, at most.
const STATES: usize = 6;

/// How a life of these clients is judged.
pub fn judge_of<'a>(clients: &Clients, ran: &'a Ran) -> Judge<'a> {
    let setup = &clients.setup;
    let block = if clients.is_volume { setup.block_bytes } else { setup.sector };
    Judge { ran, block: u64::from(block) }
}

/// A second life.
pub struct Life<'a> {
    /// The steps.
    pub clients: &'a Clients,
    /// What is known of the first life.
    pub before: Judge<'a>,
    /// When that one ended.
    pub time: u64,
    /// Decides the steps.
    pub seed: u64,
}

impl Life<'_> {
    /// Executes it on a crash state.
    ///
    /// # Errors
    /// What is wrong.
    pub fn live_on(
        &self,
        (disk, remains): (&SimDisk, &Remains),
        recoveries: &mut Recoveries,
        seen: &mut Seen,
    ) -> Checked<()> {
        let Clients { setup, is_volume, draw } = self.clients;
        // With many kills and a failing disk most lives would end in an opening that fails.
        let failing = if setup.late { Vec::new() } else { setup.failing.clone() };
        let setup = &Setup { grown_bytes: None, failing, ..setup.clone() };
        let ground = remains.ground()?;
        let plan = steps(&Draw { seed: self.seed, steps: STEPS, ..*draw }).into_iter();
        let plan: Vec<(usize, Step)> = (FIRST_STEP..).zip(plan).collect();
        let ran = run(setup, (disk, &ground), *is_volume, &plan);
        let mut ran = ran.map_err(|what| format!("a second life: {what}"))?;
        seen.counts.second_lives += 1;
        count(&ran, seen);
        let (cuts, mut judged) = (std::mem::take(&mut ran.cuts), HashSet::new());
        let own = judge_of(self.clients, &ran);
        for (n, cut) in cuts.iter().enumerate() {
            // Before the volume is open no client has seen anything that must last.
            let is_open = ran.past.opened.is_some_and(|opened| cut.tag() >= opened);
            let states = cut.states(ALL_UPTO).shuffled(self.seed ^ (n as u64) << 20);
            for state in states.take(STATES) {
                if !judged.insert((state.sum(), cut.tag())) {
                    continue;
                }
                seen.second(&state);
                let at = |what: String| format!("a second life, {n}:{}: {what}", state.label);
                let (remains, is_new) =
                    Remains::of(self.clients, &state, recoveries).map_err(at)?;
                seen.checked(remains.key(), is_new);
                let checked = match is_open {
                    true => own.of(&remains, cut.tag()),
                    false => self.before.of(&remains, self.time),
                };
                checked.map_err(at)?;
            }
        }
        Ok(())
    }
}
