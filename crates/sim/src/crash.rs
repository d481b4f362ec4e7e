//! What a disk may hold after the power went.
//!
//! Everything durable, and any subset of what was completed but not flushed or still in flight,
//! kept in order, each write whole or torn between sectors. [`SimDisk::crash_states`] lists all
//! subsets while that is feasible and a systematic choice beyond; [`SimDisk::power_cut`] draws one.
//!
//! Invariant: R1 what was flushed, or written with FUA, is in every crash state.
//!
//! No locks of its own.

use crate::config::SimConfig;
use crate::disk::SimDisk;
use crate::image::{Change, Image};
use crate::media::Pending;
use forebay_base::sim_world::SimWorld;
use forebay_base::world::split_mix;
use std::sync::Arc;

/// Up to this many pending writes all subsets are listed.
const ALL_SUBSETS: usize = 8;
/// Random subsets beyond that.
const SAMPLES: u64 = 64;
/// Random subsets, torn ones among them, at any number of pending writes.
const TORN_SAMPLES: u64 = 8;

/// How a write of several sectors is torn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Tear {
    FirstHalf,
    LastHalf,
    EvenSectors,
    Random(u64),
}

const TEARS: [Tear; 4] = [Tear::FirstHalf, Tear::LastHalf, Tear::EvenSectors, Tear::Random(1)];

/// One way the power cut may have gone; numbers are places in the order of completion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Plan {
    /// The writes whose bit is set.
    Subset(u64),
    /// The first `n`.
    Prefix(usize),
    /// All but one.
    Drop(usize),
    /// One alone.
    Keep(usize),
    /// Each by a coin, some torn if the flag says so.
    Sample(u64, bool),
    /// All before this one, and this one torn.
    Torn(usize, Tear),
    /// All, this one torn.
    TornAmongAll(usize, Tear),
}

/// One possible content of the disk.
pub struct CrashState {
    /// Which, for messages.
    pub label: String,
    image: Image,
    config: SimConfig,
}

impl CrashState {
    /// A disk that durably holds this state, power on, in `world`.
    pub fn mount(&self, world: Arc<SimWorld>) -> SimDisk {
        SimDisk::with_image(world, self.config.clone(), self.image.clone())
    }
}

/// Iterator over crash states. Made by [`SimDisk::crash_states`].
pub struct CrashStates {
    base: Image,
    parts: Vec<Pending>,
    plans: std::vec::IntoIter<Plan>,
    config: SimConfig,
}

impl Iterator for CrashStates {
    type Item = CrashState;
    fn next(&mut self) -> Option<CrashState> {
        let plan = self.plans.next()?;
        let image = build(&self.base, &self.parts, plan);
        let label = format!("{plan:?} of {} pending", self.parts.len());
        Some(CrashState { label, image, config: self.config.clone() })
    }
    fn size_hint(&self) -> (usize, Option<usize>) {
        self.plans.size_hint()
    }
}

impl ExactSizeIterator for CrashStates {}

impl SimDisk {
    /// What a power cut at this moment may leave, by the seed. The disk itself goes on as it was.
    pub fn power_cut(&self, seed: u64) -> SimDisk {
        let (base, parts) = self.crash_parts();
        let image = build(&base, &parts, Plan::Sample(seed, true));
        SimDisk::with_image(self.world().clone(), self.config().clone(), image)
    }

    /// What is left when the process dies and the disk goes on: all completed writes, still
    /// volatile, and any of those in flight, by the seed.
    pub fn process_crash(&self, seed: u64) -> SimDisk {
        let after = self.in_world(self.world().clone());
        let (_, parts) = self.crash_parts();
        let mut state = seed;
        for part in parts.into_iter().skip(after.pending_writes()) {
            if split_mix(&mut state) & 1 == 0 {
                after.store_volatile(part);
            }
        }
        after
    }

    /// The states that a power cut at this moment may leave: all subsets of at most 8 pending
    /// writes, else all prefixes, all but each one, each one alone, and samples; and each write
    /// of several sectors torn in several ways.
    pub fn crash_states(&self) -> CrashStates {
        let (base, parts) = self.crash_parts();
        let plans = plans_for(&parts).into_iter();
        CrashStates { base, parts, plans, config: self.config().clone() }
    }
}

fn plans_for(parts: &[Pending]) -> Vec<Plan> {
    let n = parts.len();
    let mut plans = Vec::new();
    if n <= ALL_SUBSETS {
        plans.extend((0..1u64 << n).map(Plan::Subset));
    } else {
        plans.extend((0..=n).map(Plan::Prefix));
        plans.extend((0..n - 1).map(Plan::Drop));
        plans.extend((1..n).map(Plan::Keep));
        plans.extend((0..SAMPLES).map(|s| Plan::Sample(s, false)));
    }
    for (i, part) in parts.iter().enumerate() {
        if part.changes.len() > 1 {
            plans.extend(TEARS.map(|tear| Plan::Torn(i, tear)));
            if i + 1 < n {
                plans.extend(TEARS.map(|tear| Plan::TornAmongAll(i, tear)));
            }
        }
    }
    if parts.iter().any(|p| p.changes.len() > 1) {
        plans.extend((0..TORN_SAMPLES).map(|s| Plan::Sample(s, true)));
    }
    plans
}

/// How one write fares.
enum Fate {
    Gone,
    Whole,
    Torn(Tear),
}

fn whole_if(kept: bool) -> Fate {
    if kept { Fate::Whole } else { Fate::Gone }
}

fn build(base: &Image, parts: &[Pending], plan: Plan) -> Image {
    let mut image = base.clone();
    let mut coins = if let Plan::Sample(seed, _) = plan { seed } else { 0 };
    // Sparse samples and nearly full ones are both likely.
    let odds = split_mix(&mut coins) % 5;
    for (i, part) in parts.iter().enumerate() {
        let fate = match plan {
            Plan::Subset(bits) => whole_if(bits >> i & 1 == 1),
            Plan::Prefix(n) => whole_if(i < n),
            Plan::Drop(gone) => whole_if(i != gone),
            Plan::Keep(kept) => whole_if(i == kept),
            Plan::Torn(at, tear) if i == at => Fate::Torn(tear),
            Plan::Torn(at, _) => whole_if(i < at),
            Plan::TornAmongAll(at, tear) if i == at => Fate::Torn(tear),
            Plan::TornAmongAll(..) => Fate::Whole,
            Plan::Sample(_, torn) => {
                let (kept, how) = (split_mix(&mut coins) % 4 < odds, split_mix(&mut coins));
                if kept && torn && how & 3 == 0 {
                    Fate::Torn(tear_of(how >> 2))
                } else {
                    whole_if(kept)
                }
            }
        };
        match fate {
            Fate::Gone => {}
            Fate::Whole => part.changes.iter().for_each(|c| image.set(c.clone())),
            Fate::Torn(tear) => apply_torn(&mut image, &part.changes, tear),
        }
    }
    image
}

fn tear_of(number: u64) -> Tear {
    match TEARS[(number % 4) as usize] {
        Tear::Random(_) => Tear::Random(number),
        other => other,
    }
}

fn apply_torn(image: &mut Image, changes: &[Change], tear: Tear) {
    let half = changes.len() / 2;
    let mut coins = if let Tear::Random(seed) = tear { seed } else { 0 };
    for (i, change) in changes.iter().enumerate() {
        let kept = match tear {
            Tear::FirstHalf => i < half,
            Tear::LastHalf => i >= half,
            Tear::EvenSectors => i % 2 == 0,
            Tear::Random(_) => split_mix(&mut coins) & 1 == 0,
        };
        if kept {
            image.set(change.clone());
        }
    }
}
