//! A workload: what it does, and how its volume is set up.
//!
//! No locks.

use super::base::Base;
use super::crowding::crowding;
use super::replacing::replacing;
use super::script::Script;
use super::setup::Setup;
use super::short;
use forebay_testkit::fs_check::Op;

/// The kind of a workload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Sequence of one step.
    Single(u64),
    /// Sequence of two steps.
    Pair(u64),
    /// Names only, from the seed.
    Names,
    /// With content, from the seed.
    Content,
    /// Files that replace others.
    Replacing,
    /// A volume that is nearly full is cleaned.
    Crowded,
    /// Several clients of one volume.
    Clients,
    /// Several clients of one volume, some of whose operations are dropped.
    Dropped,
    /// Operations on a raw image, some of them dropped.
    DroppedOnImage,
}

/// A workload.
#[derive(Debug, Clone)]
pub struct Case {
    /// Its number.
    pub number: u64,
    /// Its class: an index of [`crate::CLASSES`].
    pub class: usize,
    /// What it does.
    pub kind: Kind,
    /// How.
    pub setup: Setup,
}

impl Case {
    /// Its steps, or those at the positions in `keep`.
    pub fn script(&self, base: &Base, keep: Option<&[usize]>) -> Script {
        let setup = &self.setup;
        let whole = match self.kind {
            Kind::Single(number) => Script::of(setup, &base.fs, short::single(number)),
            Kind::Pair(number) => Script::of(setup, &base.fs, short::pair(number)),
            Kind::Names | Kind::Content => Script::make(setup, setup.seed, &base.fs, setup.steps),
            Kind::Replacing => Script::of(setup, &base.fs, replacing(setup.seed)),
            Kind::Crowded => Script::of(setup, &base.fs, crowding(setup.seed)),
            // Workloads of several clients draw their steps themselves.
            Kind::Clients | Kind::Dropped | Kind::DroppedOnImage => {
                Script::of(setup, &base.fs, Vec::new())
            }
        };
        let Some(keep) = keep else { return whole };
        let ops: Vec<Op> = keep.iter().filter_map(|at| whole.ops.get(*at).cloned()).collect();
        Script::of(setup, &base.fs, ops)
    }
}
