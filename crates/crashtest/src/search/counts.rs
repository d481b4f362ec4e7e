//! The counters of searches.
//!
//! Memory is bounded: distinct results are counted up to a limit.
//!
//! No locks.

use crate::run::Ran;
use forebay_sim::{CrashState, FaultCounts, PowerCut};
use std::collections::HashSet;
use std::ops::AddAssign;

/// Number of classes of runs.
pub const CLASS_COUNT: usize = 24;

/// Distinct results that are kept, at most.
const DIGESTS_MAX: usize = 2_000_000;

/// The counters of one class of runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ClassCounts {
    /// Runs.
    pub drawn: u64,
    /// Crash states of them.
    pub states: u64,
    /// Recoveries that were carried out.
    pub recovered: u64,
}

/// Numbers that add up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Workloads that were carried out.
    pub workloads: u64,
    /// Moments at which the power failed.
    pub cuts: u64,
    /// Distinct crash states: (workload, moment, content of the disk), second lives included.
    pub states: u64,
    /// Disks that were recovered, read and checked: one of all that recovery reads alike in a
    /// workload.
    pub recovered: u64,
    /// Second lives: workloads that went on after a power loss or a kill. The power fails again at
    /// each of their moments.
    pub second_lives: u64,
    /// Of the states, those of a power loss in a second life.
    pub second_states: u64,
    /// Kills of the process while the machine keeps running.
    pub kills: u64,
    /// Of the kills, those after a fault of the disk: a failed request, decay, or a full host.
    pub kills_failing: u64,
    /// States with a write that was lost.
    pub lost: u64,
    /// States with a write that was torn.
    pub torn: u64,
    /// States with a write that was kept while an earlier one was not.
    pub reordered: u64,
    /// Writes that failed.
    pub writes_failed: u64,
    /// Flushes that failed.
    pub flushes_failed: u64,
    /// Workloads that ended early, because the volume was full.
    pub full: u64,
    /// Segments that were cleaned while workloads ran.
    pub cleaned: u64,
    /// Syncs that were acknowledged.
    pub syncs: u64,
    /// Syncs that reported a failure.
    pub syncs_failed: u64,
    /// Lives after a second one.
    pub third_lives: u64,
    /// States that were recovered from an older checkpoint, too.
    pub older: u64,
    /// Writes that landed, or could have, in the life after the one that submitted them.
    pub late: u64,
    /// Reads that failed.
    pub reads_failed: u64,
    /// Requests that the host refused for lack of space.
    pub no_space: u64,
    /// Sectors that decayed.
    pub rotten: u64,
    /// Refused steps after which the run went on.
    pub refused: u64,
    /// Runs on a disk that failed, at whose end all names were removed and the space compared.
    pub emptied: u64,
    /// Volumes that were made larger.
    pub grown: u64,
    /// Files whose content was unknown after a refused step. It was not judged from then on.
    pub unknown: u64,
    /// Runs that ended before their last step, because of refused steps.
    pub ended_early: u64,
    /// Reads of files that were given up while several clients were checked: the disk had failed.
    pub unchecked: u64,
    /// Writes past the cache.
    pub direct: u64,
    /// Writes that leave nothing in the cache.
    pub uncached: u64,
    /// Writes that are durable when they are acknowledged.
    pub dsync: u64,
    /// Writes past the cache that are durable when they are acknowledged: in place, with FUA.
    pub fua: u64,
    /// Operations that were dropped while they waited.
    pub dropped: u64,
    /// Largest end of a write, bytes.
    pub largest_end: u64,
    /// Most polls of one step.
    pub most_polls: u64,
    /// Most requests of one step.
    pub most_requests: u64,
    /// Most memory of a volume after a step, without frames of its cache, bytes.
    pub most_memory: u64,
    /// The counters of each class, in the order of [`crate::CLASSES`].
    pub classes: [ClassCounts; CLASS_COUNT],
}

impl Counts {
    /// All, by their names.
    pub fn named(&self) -> [(&'static str, u64); 38] {
        [
            ("workloads", self.workloads),
            ("cuts", self.cuts),
            ("states", self.states),
            ("recovered", self.recovered),
            ("second_lives", self.second_lives),
            ("second_states", self.second_states),
            ("kills", self.kills),
            ("kills_failing", self.kills_failing),
            ("lost", self.lost),
            ("torn", self.torn),
            ("reordered", self.reordered),
            ("writes_failed", self.writes_failed),
            ("flushes_failed", self.flushes_failed),
            ("full", self.full),
            ("cleaned", self.cleaned),
            ("syncs", self.syncs),
            ("syncs_failed", self.syncs_failed),
            ("third_lives", self.third_lives),
            ("older", self.older),
            ("late", self.late),
            ("reads_failed", self.reads_failed),
            ("no_space", self.no_space),
            ("rotten", self.rotten),
            ("refused", self.refused),
            ("emptied", self.emptied),
            ("grown", self.grown),
            ("unknown", self.unknown),
            ("ended_early", self.ended_early),
            ("unchecked", self.unchecked),
            ("direct", self.direct),
            ("uncached", self.uncached),
            ("dsync", self.dsync),
            ("fua", self.fua),
            ("dropped", self.dropped),
            ("largest_end", self.largest_end),
            ("most_polls", self.most_polls),
            ("most_requests", self.most_requests),
            ("most_memory", self.most_memory),
        ]
    }
}

impl Counts {
    /// Adds writes by their flags, in the order of [`Ran::flagged`].
    pub(crate) fn add_flagged(&mut self, [direct, uncached, dsync, fua]: [u64; 4]) {
        self.direct += direct;
        self.uncached += uncached;
        self.dsync += dsync;
        self.fua += fua;
    }
}

impl AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        self.workloads += other.workloads;
        self.cuts += other.cuts;
        self.states += other.states;
        self.recovered += other.recovered;
        self.second_lives += other.second_lives;
        self.second_states += other.second_states;
        self.kills += other.kills;
        self.kills_failing += other.kills_failing;
        self.lost += other.lost;
        self.torn += other.torn;
        self.reordered += other.reordered;
        self.writes_failed += other.writes_failed;
        self.flushes_failed += other.flushes_failed;
        self.full += other.full;
        self.cleaned += other.cleaned;
        self.syncs += other.syncs;
        self.syncs_failed += other.syncs_failed;
        self.third_lives += other.third_lives;
        self.older += other.older;
        self.late += other.late;
        self.reads_failed += other.reads_failed;
        self.no_space += other.no_space;
        self.rotten += other.rotten;
        self.refused += other.refused;
        self.emptied += other.emptied;
        self.grown += other.grown;
        self.unknown += other.unknown;
        self.ended_early += other.ended_early;
        self.unchecked += other.unchecked;
        self.direct += other.direct;
        self.uncached += other.uncached;
        self.dsync += other.dsync;
        self.fua += other.fua;
        self.dropped += other.dropped;
        self.largest_end = self.largest_end.max(other.largest_end);
        self.most_polls = self.most_polls.max(other.most_polls);
        self.most_requests = self.most_requests.max(other.most_requests);
        self.most_memory = self.most_memory.max(other.most_memory);
        for (all, other) in self.classes.iter_mut().zip(other.classes) {
            all.drawn += other.drawn;
            all.states += other.states;
            all.recovered += other.recovered;
        }
    }
}

/// The counters of a search, and the results that it has seen.
#[derive(Debug, Clone, Default)]
pub struct Seen {
    /// Numbers.
    pub counts: Counts,
    /// Moments while a volume was being opened: workloads that begin with the same one share them.
    pub(crate) openings: HashSet<u64>,
    /// Digests of recovered volumes, up to a limit.
    pub digests: HashSet<u64>,
}

impl Seen {
    /// Distinct results of recovery; a lower bound if there are very many.
    pub fn distinct(&self) -> u64 {
        self.digests.len() as u64
    }

    /// Adds the counters and results of another search.
    pub fn add(&mut self, other: Self) {
        self.counts += other.counts;
        other.digests.into_iter().for_each(|digest| self.digest(digest));
    }

    /// Assigns everything counted so far to one run of this class.
    pub fn belongs_to(&mut self, class: usize) {
        let Counts { states, recovered, .. } = self.counts;
        self.counts.classes[class] = ClassCounts { drawn: 1, states, recovered };
    }

    fn digest(&mut self, digest: u64) {
        if self.digests.len() < DIGESTS_MAX {
            self.digests.insert(digest);
        }
    }

    pub(crate) fn ran(&mut self, ran: &Ran) {
        self.counts.workloads += 1;
        self.counts.full += u64::from(ran.full);
        self.counts.cleaned += ran.cleaned;
        self.counts.syncs += ran.syncs.len() as u64;
        self.counts.syncs_failed += ran.syncs_failed;
        self.counts.writes_failed += ran.writes_failed;
        self.counts.flushes_failed += ran.flushes_failed;
        self.counts.emptied += u64::from(ran.left.is_some());
        self.counts.grown += u64::from(ran.grown);
        self.ran_on(ran);
    }

    /// Adds the counters of a run, for a life that follows another one.
    pub(crate) fn ran_on(&mut self, ran: &Ran) {
        let counts = &mut self.counts;
        counts.reads_failed += ran.reads_failed;
        counts.no_space += ran.no_space;
        counts.rotten += ran.rotten;
        counts.refused += ran.refused;
        counts.unknown += ran.unknown;
        counts.ended_early += u64::from(ran.ended_early);
        counts.add_flagged(ran.flagged);
        counts.largest_end = counts.largest_end.max(ran.largest_end);
        counts.most_polls = counts.most_polls.max(ran.usage.polls);
        counts.most_requests = counts.most_requests.max(ran.usage.requests);
        counts.most_memory = counts.most_memory.max(ran.usage.memory);
    }

    pub(crate) fn state(&mut self, state: &CrashState) {
        self.counts.states += 1;
        self.counts.lost += u64::from(state.lost());
        self.counts.torn += u64::from(state.torn());
        self.counts.reordered += u64::from(state.reordered());
    }

    pub(crate) fn second(&mut self, state: &CrashState) {
        self.state(state);
        self.counts.second_states += 1;
    }

    /// Counts a kill at a moment.
    pub(crate) fn kill(&mut self, cut: &PowerCut) {
        self.counts.kills += 1;
        self.counts.kills_failing += u64::from(cut.faults() != FaultCounts::default());
    }

    /// Counts a state with its verdict; `is_new`: it was recovered, not known before.
    pub(crate) fn checked(&mut self, digest: u64, is_new: bool) {
        self.counts.recovered += u64::from(is_new);
        self.digest(digest);
    }

    /// One line.
    pub fn line(&self) -> String {
        let distinct = self.distinct();
        let numbers = self.counts.named();
        let numbers: Vec<String> = numbers.iter().map(|(name, n)| format!("{name} {n}")).collect();
        format!("{}, distinct {distinct}", numbers.join(", "))
    }
}
