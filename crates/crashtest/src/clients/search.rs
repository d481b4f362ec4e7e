//! The search of one workload of several clients: every moment at which the power may fail, every
//! subset of writes that the disk may have kept, and whether the histories allow what is recovered.
//!
//! Invariants: search.X1 the inspected states depend on the workload alone. search.X2 a state is
//! counted once for each moment; states that read the same are recovered once in a workload.
//!
//! No locks.

use super::judge::Remains;
use super::life::{Life, judge_of};
use super::plan::Step;
use super::run::{Ran, run};
use super::workload::{ALL_UPTO, Clients, count};
use crate::search::{LATE_NANOS, Part, STATES_MIN, Seen, Share, Spot, Violation, newest_slots};
use crate::verdict::{Checked, Recoveries};
use crate::workload::{Base, Case, all_kept};
use forebay_base::sim_world::SimWorld;
use forebay_base::world::split_mix;
use forebay_sim::{CrashState, Fate, PowerCut};
use std::collections::{HashMap, HashSet};
use std::rc::Rc;

/// Crash states of a moment, at most. There are many moments, and most states of one read the same.
const STATES: usize = 12;
/// States for each recovery, about: [`Share`].
const STATES_PER_RECOVERY: u64 = 4;
/// Recoveries that the memo keeps, at most.
const MEMO_MAX: usize = 200;
/// One in this many disks gets a second life.
const LIVE_ON: u64 = 150;
/// At one in this many moments the processes are killed while the machine runs on.
const KILLS: u64 = 40;
/// If the setup asks for it, one in this many states is also recovered from an older checkpoint.
const OLDER: u64 = 8;

/// What was recovered of one workload (X2).
#[derive(Default)]
struct Memo {
    /// By the checksum of a disk: its content, and a number for that.
    found: HashMap<u64, (u64, Remains)>,
    /// By key and time: judged, without a violation.
    judged: HashSet<(u64, u64)>,
    recoveries: Recoveries,
}

struct Search<'a> {
    clients: &'a Clients,
    ran: Ran,
    memo: Memo,
}

fn chosen(clients: &Clients, keep: Option<&[usize]>) -> Vec<(usize, Step)> {
    let all = clients.steps().into_iter().enumerate();
    all.filter(|(n, _)| keep.is_none_or(|keep| keep.contains(n))).collect()
}

/// The steps of a workload as text.
pub fn list_steps(case: &Case, _: &Base, keep: Option<&[usize]>) -> Vec<String> {
    chosen(&Clients::of(case), keep).iter().map(|(n, step)| format!("{n}: {step:?}")).collect()
}

/// Executes the steps, and inspects all moments or one spot, until `stop` returns true.
///
/// # Errors
/// The violation.
pub fn carry_out(
    case: &Case,
    base: &Base,
    Part { keep, spot }: Part<'_>,
    seen: &mut Seen,
    stop: &dyn Fn(&Seen) -> bool,
) -> Result<(), Violation> {
    let clients = &Clients::of(case);
    let (steps, setup) = (chosen(clients, keep), &clients.setup);
    let share = Share::begin(STATES_PER_RECOVERY, seen);
    let first = base.disk.grown(setup.grown_bytes.unwrap_or(0));
    let disk = first.mount(SimWorld::new(setup.seed ^ 0xc11e));
    let ran = run(setup, (&disk, &base.ground), clients.is_volume, &steps);
    let mut ran = ran.map_err(|what| Violation { spot: Spot::Running, what })?;
    seen.counts.workloads += 1;
    count(&ran, seen);
    let cuts = std::mem::take(&mut ran.cuts);
    let mut search = Search { clients, ran, memo: Memo::default() };
    if let Some(spot) = spot {
        return search.spot(&cuts, spot, seen);
    }
    for (n, cut) in cuts.iter().enumerate() {
        seen.counts.cuts += 1;
        let mut draw = setup.seed ^ (n as u64) << 20;
        let states = cut.states(ALL_UPTO).shuffled(draw);
        for (count, state) in states.take(STATES).enumerate() {
            if count >= STATES_MIN && share.is_low(seen) {
                break;
            }
            search.state(n, cut, &state, None, seen)?;
        }
        let kills = if setup.late { KILLS / 8 } else { KILLS };
        if split_mix(&mut draw).is_multiple_of(kills) {
            search.killed(n, cut, seen)?;
        }
        if stop(seen) {
            break;
        }
    }
    Ok(())
}

impl Search<'_> {
    /// Inspects one spot. Does nothing if there is no such moment, or if other writes are pending
    /// there.
    fn spot(&mut self, cuts: &[PowerCut], spot: &Spot, seen: &mut Seen) -> Result<(), Violation> {
        let (Spot::Cut(n, ..) | Spot::Killed(n)) = spot else { return Ok(()) };
        let Some(cut) = cuts.get(*n) else { return Ok(()) };
        let Spot::Cut(_, letters, then) = spot else { return self.killed(*n, cut, seen) };
        let fates: Vec<Fate> = letters.chars().filter_map(Fate::from_letter).collect();
        match fates.len() == cut.pending() {
            true => self.state(*n, cut, &cut.state(&fates), Some(*then), seen),
            false => Ok(()),
        }
    }

    /// Inspects one state. `then` says whether it gets a second life; `None`: that is drawn.
    fn state(
        &mut self,
        n: usize,
        cut: &PowerCut,
        state: &CrashState,
        then: Option<bool>,
        seen: &mut Seen,
    ) -> Result<(), Violation> {
        seen.state(state);
        let at = |what, then| Violation { spot: Spot::Cut(n, state.label.clone(), then), what };
        let (sum, clients) = (state.sum(), self.clients);
        let is_fresh = !self.memo.found.contains_key(&sum);
        let (key, remains) =
            self.memo.remains(clients, state, seen).map_err(|what| at(what, false))?;
        let judge = judge_of(clients, &self.ran);
        if !self.memo.judged.contains(&(key, cut.tag())) {
            judge.of(&remains, cut.tag()).map_err(|what| at(what, false))?;
            self.memo.judged.insert((key, cut.tag()));
        }
        let mut draw = clients.setup.seed ^ sum;
        let older = split_mix(&mut draw).is_multiple_of(OLDER);
        if clients.setup.older && is_fresh && (older || then.is_some()) {
            self.older(cut, state, seen).map_err(|what| at(what, false))?;
        }
        let judge = judge_of(clients, &self.ran);
        let drawn = is_fresh && split_mix(&mut draw).is_multiple_of(LIVE_ON);
        if !then.unwrap_or(drawn) {
            return Ok(());
        }
        let disk = state.mount(SimWorld::new(3));
        let life = Life { clients, before: judge, time: cut.tag(), seed: draw };
        let done = life.live_on((&disk, &remains), &mut self.memo.recoveries, seen);
        done.map_err(|what| at(format!("then {what}"), true))
    }

    /// Damages a sector in each of the newest slots of the superblock, and recovers that: the
    /// previous checkpoint and the log after it must give what the histories allow.
    fn older(&mut self, cut: &PowerCut, state: &CrashState, seen: &mut Seen) -> Checked<()> {
        let newest = newest_slots(state, state.sum().is_multiple_of(3));
        let Some(first) = newest.first() else { return Ok(()) };
        let spoiled = newest[1..].iter().fold(state.spoiled(*first), |s, at| s.spoiled(*at));
        seen.state(&spoiled);
        seen.counts.older += 1;
        let (remains, is_new) = Remains::of(self.clients, &spoiled, &mut self.memo.recoveries)?;
        seen.checked(remains.key(), is_new);
        let damaged = |what| format!("with slots at {newest:?} damaged: {what}");
        judge_of(self.clients, &self.ran).of(&remains, cut.tag()).map_err(damaged)
    }

    /// Kills the processes at this moment while the machine runs on. Other clients continue with
    /// the content of the disk's volatile cache, and then the power fails.
    fn killed(&mut self, n: usize, cut: &PowerCut, seen: &mut Seen) -> Result<(), Violation> {
        let at = |what| Violation { spot: Spot::Killed(n), what };
        let clients = self.clients;
        let mut draw = clients.setup.seed ^ 0x0dead ^ (n as u64) << 32;
        seen.kill(cut);
        let (kill, late) = (split_mix(&mut draw), (LATE_NANOS, clients.setup.behind_slots()));
        // Both disks begin with the same reads, so late writes land at the same moment of them.
        let left = || match clients.setup.late {
            true => cut.killed_late(kill, late.clone(), SimWorld::new(5)),
            false => cut.killed(kill, SimWorld::new(5)),
        };
        let (mut disk, recoveries) = (left(), &mut self.memo.recoveries);
        seen.counts.late += disk.late_writes() as u64;
        let remains = match clients.is_volume {
            true => {
                let found = recoveries.recover(&clients.setup, &left(), None).map_err(at)?;
                Remains::Volume(Rc::new(found))
            }
            false => {
                // The next user of an image flushes it first: it relies on all of it.
                let state = all_kept(&disk);
                disk = state.mount(SimWorld::new(5));
                Remains::image(&state)
            }
        };
        seen.checked(remains.key(), clients.is_volume);
        let judge = judge_of(clients, &self.ran);
        judge.of(&remains, cut.tag()).map_err(at)?;
        let life = Life { clients, before: judge, time: cut.tag(), seed: draw };
        life.live_on((&disk, &remains), recoveries, seen).map_err(|what| at(format!("then {what}")))
    }
}

impl Memo {
    /// The content of a state, and its digest.
    fn remains(
        &mut self,
        clients: &Clients,
        state: &CrashState,
        seen: &mut Seen,
    ) -> Checked<(u64, Remains)> {
        let sum = state.sum();
        if let Some((key, remains)) = self.found.get(&sum) {
            return Ok((*key, remains.clone()));
        }
        if self.found.len() >= MEMO_MAX {
            self.found.clear();
        }
        let (remains, is_new) = Remains::of(clients, state, &mut self.recoveries)?;
        let key = remains.key();
        seen.checked(key, is_new);
        self.found.insert(sum, (key, remains.clone()));
        Ok((key, remains))
    }
}
