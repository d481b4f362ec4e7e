//! The search of one workload: every moment at which the power may fail, every subset of writes
//! that the disk may have kept, recovery, and second lives with further power losses.
//!
//! Invariants: X1 which states are inspected depends on the setup, the script and the depth, and on
//! what was recovered of the workload before. A [`Spot`] names a state by itself, so that a search
//! finds the state again. X2 a state is counted once for each moment. States that read the same are
//! recovered once in a workload, and judged against each moment that they belong to. X3 moments of
//! an opening that another workload of the same volume has inspected are skipped.
//!
//! No locks.

mod counts;
mod spot;

pub use self::counts::{CLASS_COUNT, ClassCounts, Counts, Seen};
pub use self::spot::{Part, Spot, Violation};
use crate::run::{Ran, run};
use crate::verdict::{Checked, Found, Past, Recoveries, judge};
use crate::workload::{Base, Script, Setup};
use forebay_base::sim_world::SimWorld;
use forebay_base::world::split_mix;
use forebay_lfs::format::superblock::{SLOT_BYTES, SLOTS, Superblock, slot_offsets};
use forebay_sim::{CrashState, Fate, PowerCut, SimDisk};
use std::collections::{HashMap, HashSet};
use std::rc::Rc;

/// How much of each workload the search inspects.
#[derive(Debug, Clone, Copy)]
pub struct Depth {
    /// All subsets of up to this many pending writes, at most 20. Of more writes, some subsets.
    pub all_upto: usize,
    /// Crash states of a moment, at most.
    pub states: usize,
    /// If a workload has more states than this for each recovery, each further moment gets few
    /// states until one of them needs a recovery.
    pub states_per_recovery: u64,
    /// One in this many recovered disks gets a second life; 0: none.
    pub live_on: u64,
    /// Crash states of a moment of a second life, at most.
    pub second_states: usize,
    /// At one in this many moments the process is killed while the machine runs on; 0: at none.
    pub kills: u64,
    /// The search inspects one in this many moments.
    pub moments: u64,
    /// If the setup asks for it, one in this many states is also recovered from an older
    /// checkpoint.
    pub older: u64,
}

impl Depth {
    /// All there is.
    pub const FULL: Self = Self {
        all_upto: 10,
        states: usize::MAX,
        states_per_recovery: 4,
        live_on: 400,
        second_states: 12,
        kills: 40,
        moments: 1,
        older: 8,
    };

    /// The depth for a setup: less for large volumes, more kills for late writes, more later lives
    /// if the setup has more than two lives.
    fn within(self, setup: &Setup) -> Self {
        let plain = match setup.large {
            true => Self { all_upto: 2, states: 6, second_states: 2, moments: 6, ..self },
            false => self,
        };
        let kills = if setup.late { plain.kills.div_ceil(8) } else { plain.kills };
        let live_on = if setup.lives > 2 { plain.live_on.div_ceil(4) } else { plain.live_on };
        Self { kills, live_on, ..plain }
    }
}

/// A workload and the disk from which it starts.
#[derive(Clone, Copy)]
pub struct Subject<'a> {
    /// Setup of the volume and the disk.
    pub setup: &'a Setup,
    /// The disk from which it starts.
    pub base: &'a Base,
    /// The steps.
    pub script: &'a Script,
}

/// Recovered disks of one workload (search.X2).
#[derive(Default)]
struct Memo {
    /// By the sum of the disk.
    disks: HashMap<u64, u64>,
    /// By their key.
    found: HashMap<u64, Rc<Found>>,
    /// The step that was found, by key and tag of the moment.
    judged: HashMap<(u64, u64), usize>,
    recoveries: Recoveries,
}

/// Recoveries that the memo keeps, at most.
const MEMO_MAX: usize = 300;
/// States that each moment gets, if it has this many.
pub const STATES_MIN: usize = 3;

/// How many of the states of a workload were recovered. Most subsets of the pending writes differ
/// only in sectors that recovery does not read: a moment where no state is recovered anew gets few.
#[derive(Clone, Copy)]
pub struct Share {
    states_per_recovery: u64,
    before: Counts,
}

impl Share {
    /// Starts to count for a workload that begins now.
    pub fn begin(states_per_recovery: u64, seen: &Seen) -> Self {
        Self { states_per_recovery, before: seen.counts }
    }

    /// Whether fewer states than wanted were recovered.
    pub fn is_low(&self, seen: &Seen) -> bool {
        let states = seen.counts.states - self.before.states;
        let recovered = seen.counts.recovered - self.before.recovered;
        states > recovered.saturating_mul(self.states_per_recovery)
    }
}

struct Search<'a> {
    subject: Subject<'a>,
    depth: Depth,
    ran: Ran,
    memo: Memo,
}

/// Inspects all moments and states, until `stop` returns true.
///
/// # Errors
/// The first violation.
pub fn search(
    subject: Subject<'_>,
    depth: Depth,
    seen: &mut Seen,
    stop: &dyn Fn(&Seen) -> bool,
) -> Result<(), Violation> {
    let mut search = Search::begin(subject, depth, seen)?;
    let share = Share::begin(depth.states_per_recovery, seen);
    for n in 0..search.ran.cuts.len() {
        if stop(seen) {
            return Ok(());
        }
        let cut = search.ran.cuts[n].clone();
        if !search.ran.progress(&cut).opened && !seen.openings.insert(cut.sum()) {
            continue;
        }
        let mut chance = subject.setup.seed ^ 0x3a3e ^ (n as u64) << 32;
        if !split_mix(&mut chance).is_multiple_of(search.depth.moments)
            && n + 1 < search.ran.cuts.len()
        {
            continue;
        }
        let depth = search.depth;
        seen.counts.cuts += 1;
        let (mut here, order) = (HashSet::new(), subject.setup.seed ^ (n as u64) << 20);
        for state in cut.states(depth.all_upto).shuffled(order).take(depth.states) {
            if here.len() >= STATES_MIN && share.is_low(seen) {
                break;
            }
            if here.insert(state.sum()) {
                search.state(n, &cut, &state, None, seen)?;
            }
        }
        let mut draw = subject.setup.seed ^ (n as u64) << 32;
        let kill = depth.kills > 0 && split_mix(&mut draw).is_multiple_of(depth.kills);
        if kill {
            search.killed(n, &cut, seen)?;
        }
    }
    Ok(())
}

/// Inspects one spot. Counts no power loss if there is no such moment, or if other writes are
/// pending there.
///
/// # Errors
/// The violation, if it is there.
pub fn look_at(
    subject: Subject<'_>,
    depth: Depth,
    spot: &Spot,
    seen: &mut Seen,
) -> Result<(), Violation> {
    let mut search = Search::begin(subject, depth, seen)?;
    let (Spot::Cut(n, ..) | Spot::Killed(n)) = spot else { return Ok(()) };
    let Some(cut) = search.ran.cuts.get(*n).cloned() else { return Ok(()) };
    let fates: Vec<Fate> = match spot {
        Spot::Cut(_, letters, _) => letters.chars().filter_map(Fate::from_letter).collect(),
        _ => vec![],
    };
    if matches!(spot, Spot::Cut(..)) && fates.len() != cut.pending() {
        return Ok(());
    }
    seen.counts.cuts += 1;
    match spot {
        Spot::Cut(n, _, then) => search.state(*n, &cut, &cut.state(&fates), Some(*then), seen),
        _ => search.killed(*n, &cut, seen),
    }
}

impl<'a> Search<'a> {
    fn begin(subject: Subject<'a>, depth: Depth, seen: &mut Seen) -> Result<Self, Violation> {
        let base = subject.base.disk.grown(subject.setup.grown_bytes.unwrap_or(0));
        let disk = base.mount(SimWorld::new(subject.setup.seed ^ 0xd15c));
        let depth = depth.within(subject.setup);
        let mut ran = run(subject.setup, subject.script, &disk);
        seen.ran(&ran);
        match ran.wrong.take() {
            Some(what) => Err(Violation { spot: Spot::Running, what }),
            None => Ok(Self { subject, depth, ran, memo: Memo::default() }),
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
        let sum = state.sum();
        let at = |what, then| Violation { spot: Spot::Cut(n, state.label.clone(), then), what };
        let fresh = !self.memo.disks.contains_key(&sum);
        let step = self.verdict(n, cut, state, seen).map_err(|what| at(what, false))?;
        let setup = self.subject.setup;
        let mut draw = setup.seed ^ sum;
        let older = split_mix(&mut draw).is_multiple_of(self.depth.older.max(1));
        if setup.older && fresh && (older || then.is_some()) {
            self.older(cut, state, seen).map_err(|what| at(what, false))?;
        }
        let one_in = self.depth.live_on;
        let drawn = fresh && one_in > 0 && split_mix(&mut draw).is_multiple_of(one_in);
        if !then.unwrap_or(drawn) {
            return Ok(());
        }
        let found = self.memo.found[&self.memo.disks[&sum]].clone();
        let past = Past::new(self.subject.script, &self.ran, self.ran.progress(cut));
        let disk = state.mount(SimWorld::new(3));
        let life = Life { setup, depth: self.depth, seed: draw, lives: setup.lives };
        life.live_on(past, (step, &found), &disk, &mut self.memo.recoveries, seen)
            .map_err(|what| at(format!("then {what}"), true))
    }

    /// Damages a sector in each of the newest slots of the superblock, and recovers that: the
    /// previous checkpoint and the log after it must give a state that the script allows.
    fn older(&mut self, cut: &PowerCut, state: &CrashState, seen: &mut Seen) -> Checked<()> {
        let setup = self.subject.setup;
        let newest = newest_slots(state, state.sum().is_multiple_of(3));
        let Some(first) = newest.first() else { return Ok(()) };
        let spoiled = newest[1..].iter().fold(state.spoiled(*first), |s, at| s.spoiled(*at));
        seen.state(&spoiled);
        seen.counts.older += 1;
        let (found, is_new) = self.memo.recoveries.of(setup, &spoiled)?;
        seen.checked(found.key(), is_new);
        let past = Past::new(self.subject.script, &self.ran, self.ran.progress(cut));
        let damaged = |what| format!("with slots at {newest:?} damaged: {what}");
        judge(setup, past, &found).map(drop).map_err(damaged)
    }

    /// The step whose state a crash state shows.
    fn verdict(
        &mut self,
        n: usize,
        cut: &PowerCut,
        state: &CrashState,
        seen: &mut Seen,
    ) -> Checked<usize> {
        let (setup, sum) = (self.subject.setup, state.sum());
        let key = match self.memo.disks.get(&sum) {
            Some(key) => *key,
            None => {
                if self.memo.found.len() >= MEMO_MAX {
                    self.memo = Memo::default();
                }
                let (found, is_new) = self.memo.recoveries.of(setup, state)?;
                let key = found.key();
                seen.checked(key, is_new);
                self.memo.disks.insert(sum, key);
                self.memo.found.insert(key, found);
                key
            }
        };
        let found = &self.memo.found[&key];
        let last = n + 1 == self.ran.cuts.len();
        if let Some(live) = self.ran.live.filter(|live| last && *live != found.digest) {
            let digest = found.digest;
            return Err(format!("all was synced as {live:#x}, recovered is {digest:#x}"));
        }
        if let Some(step) = self.memo.judged.get(&(key, cut.tag())) {
            return Ok(*step);
        }
        let past = Past::new(self.subject.script, &self.ran, self.ran.progress(cut));
        let step = judge(setup, past, found)?;
        self.memo.judged.insert((key, cut.tag()), step);
        Ok(step)
    }

    /// Kills the process at this moment while the machine runs on. Opens the volume on the content
    /// of the disk's volatile cache, uses it, and then the power fails.
    fn killed(&mut self, n: usize, cut: &PowerCut, seen: &mut Seen) -> Result<(), Violation> {
        let at = |what| Violation { spot: Spot::Killed(n), what };
        let setup = self.subject.setup;
        let mut draw = setup.seed ^ 0x0dead ^ (n as u64) << 32;
        seen.kill(cut);
        let kill = split_mix(&mut draw);
        let left = |world| match setup.late {
            true => cut.killed_late(kill, (LATE_NANOS, setup.behind_slots()), SimWorld::new(world)),
            false => cut.killed(kill, SimWorld::new(world)),
        };
        let (left, copy) = (left(5), left(6));
        seen.counts.late += left.late_writes() as u64;
        let past = Past::new(self.subject.script, &self.ran, self.ran.progress(cut));
        let recoveries = &mut self.memo.recoveries;
        let found = recoveries.recover(setup, &copy, None).map_err(at)?;
        seen.checked(found.key(), true);
        let step = judge(setup, past, &found).map_err(at)?;
        let second = Setup { fua: split_mix(&mut draw) & 1 == 0, ..setup.clone() };
        let life = Life { setup: &second, depth: self.depth, seed: draw, lives: setup.lives };
        life.live_on(past, (step, &found), &left, recoveries, seen)
            .map_err(|what| at(format!("then {what}")))
    }
}

/// Writes in flight at the kill of the process complete within this time.
pub const LATE_NANOS: u64 = 3_000_000;

/// Lives that may follow one life, at most. Each starts from a crash state of the one before.
const NEXT_LIVES: u32 = 3;

/// A valid slot of the superblock, with its position.
fn slot(state: &CrashState, at: u64, number: usize) -> Option<(u64, u64, Superblock)> {
    let found = Superblock::decode(&state.peek(at, SLOT_BYTES), number as u32).ok()?;
    Some((found.checkpoint, at, found))
}

/// Offsets of the slots of the superblock with the highest checkpoint number; `one`: of one of
/// them. All are returned only if the previous checkpoint has trees of its own. A slot that only
/// marks the volume as open again has no substitute in the slot before it.
pub fn newest_slots(state: &CrashState, one: bool) -> Vec<u64> {
    let slots_at = |end| slot_offsets(end).into_iter().enumerate();
    let front = slots_at(state.size()).take(SLOTS as usize / 2);
    let front = front.filter_map(|(number, at)| slot(state, at, number)).max_by_key(|s| s.0);
    let end = front.map_or(state.size(), |(_, _, newest)| newest.recorded_end_bytes);
    let all = slots_at(end).filter_map(|(number, at)| slot(state, at, number));
    let mut all: Vec<(u64, u64, Superblock)> = all.collect();
    all.sort_by_key(|(checkpoint, ..)| *checkpoint);
    let Some((newest, _, last)) = all.last() else { return Vec::new() };
    let older = all.iter().rev().find(|(checkpoint, ..)| checkpoint != newest);
    let falls_back = older.is_some_and(|(.., older)| older.trees != last.trees);
    let places = all.iter().filter(|(checkpoint, ..)| checkpoint == newest).map(|(_, at, _)| *at);
    let places: Vec<u64> = places.collect();
    match (one || !falls_back, places.len()) {
        // With two such slots, the other one remains.
        (true, 2..) => places[..1].to_vec(),
        (true, _) => Vec::new(),
        (false, _) => places,
    }
}

/// A second life, or a later one.
struct Life<'a> {
    setup: &'a Setup,
    depth: Depth,
    seed: u64,
    /// `Setup::lives` in a second life, one less in each later one; above 2 another may follow.
    lives: u32,
}

impl Life<'_> {
    /// Runs the steps on a recovered disk, with a power loss at every request.
    fn live_on(
        &self,
        before: Past<'_>,
        (step, found): (usize, &Found),
        disk: &SimDisk,
        recoveries: &mut Recoveries,
        seen: &mut Seen,
    ) -> Checked<()> {
        let (setup, depth) = (&Setup { grown_bytes: None, ..self.setup.clone() }, self.depth);
        let moment = &before.script.moments[step];
        let start =
            if setup.content { moment.with_files(&found.files) } else { moment.fs.snapshot() };
        let mut rng = self.seed;
        let script = Script::make(setup, split_mix(&mut rng), &start, 8);
        let mut ran = run(setup, &script, disk);
        seen.ran_on(&ran);
        match self.lives == setup.lives {
            true => seen.counts.second_lives += 1,
            false => seen.counts.third_lives += 1,
        }
        seen.counts.full += u64::from(ran.full);
        if let Some(what) = ran.wrong.take() {
            return Err(format!("a second life: {what}"));
        }
        let decayed_before = [before.decayed_before, before.decayed].concat();
        let mut judged: HashSet<(u64, u64)> = HashSet::new();
        let mut next = 0;
        for (n, cut) in ran.cuts.iter().enumerate() {
            let progress = ran.progress(cut);
            // Before the volume is open no client has seen anything that must last.
            let own = Past::new(&script, &ran, progress);
            let own = Past { decayed_before: &decayed_before, ..own };
            let past = if progress.opened { own } else { before };
            let states = cut.states(depth.all_upto).shuffled(self.seed ^ (n as u64) << 20);
            for state in states.take(depth.second_states) {
                if !judged.insert((state.sum(), cut.tag())) {
                    continue;
                }
                seen.second(&state);
                let at = |e: String| format!("a second life, {n}:{}: {e}", state.label);
                let (found, is_new) = recoveries.of(setup, &state).map_err(at)?;
                seen.checked(found.key(), is_new);
                let step = judge(setup, past, &found).map_err(at)?;
                // Interrupted recoveries are few and interesting, so more of them get another life.
                let one_in = if progress.opened { 48 } else { 4 };
                if self.lives > 2 && next < NEXT_LIVES && split_mix(&mut rng).is_multiple_of(one_in)
                {
                    next += 1;
                    let life = Life { seed: rng, lives: self.lives - 1, ..*self };
                    let disk = state.mount(SimWorld::new(7));
                    life.live_on(past, (step, &found), &disk, recoveries, seen)
                        .map_err(|what| at(format!("then {what}")))?;
                }
            }
        }
        Ok(())
    }
}
