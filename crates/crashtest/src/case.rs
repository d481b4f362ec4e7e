//! The workloads of a campaign, by number: short ones of one step in each setup of a volume, short
//! ones of two steps, and long ones from seeds.
//!
//! Invariant: K1 the seed and the number determine the workload.
//!
//! No locks.

use crate::class::{CLASSES, Class, ONE_STEP, TWO_STEPS, of_round};
use crate::clients::Ground;
use crate::crowding::crowding;
use crate::replacing::replacing;
use crate::script::Script;
use crate::setup::{Base, Setup};
use crate::short::{self, PAIRS, SINGLES};
use forebay_base::world::split_mix;
use forebay_base::{Error, ErrorKind};
use forebay_block::BioOp;
use forebay_lfs::AllocMode;
use forebay_lfs::fault::Planted;
use forebay_sim::{Fault, FaultRule};
use forebay_testkit::fs_check::Op;
use std::collections::HashMap;
use std::rc::Rc;

/// Workloads come in rounds: first sequences of one step, then of two, then a long one.
const ROUND: u64 = 6;
const SINGLES_OF_ROUND: u64 = 3;
const LONG: u64 = ROUND - 1;
/// Coprime to the numbers of sequences: their order.
const SINGLE_STRIDE: u64 = 37;
const PAIR_STRIDE: u64 = 4_001;

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
    /// Its class: an index of [`CLASSES`].
    pub class: usize,
    /// What it does.
    pub kind: Kind,
    /// How.
    pub setup: Setup,
}

impl Case {
    /// Workload `number` of the campaign with this seed (case.K1).
    pub fn new(seed: u64, number: u64, plant: Option<Planted>) -> Self {
        let mut draw = seed ^ number.rotate_left(20);
        let drawn = split_mix(&mut draw);
        let (round, within) = (number / ROUND, number % ROUND);
        let (class, (kind, setup)) = match within {
            0..SINGLES_OF_ROUND => {
                let single = round * SINGLES_OF_ROUND + within;
                let at = single.wrapping_mul(SINGLE_STRIDE).wrapping_add(seed) % SINGLES;
                let setup = short_setup(seed.wrapping_add(single / SINGLES), drawn);
                (ONE_STEP, (Kind::Single(at), setup))
            }
            SINGLES_OF_ROUND..LONG => {
                let pair = round * (LONG - SINGLES_OF_ROUND) + within - SINGLES_OF_ROUND;
                let at = pair.wrapping_mul(PAIR_STRIDE).wrapping_add(seed) % PAIRS;
                (TWO_STEPS, (Kind::Pair(at), short_setup(drawn, drawn)))
            }
            _ => {
                let (class, seed) = of_round(seed, round);
                (class, (CLASSES[class].draw)(seed))
            }
        };
        Self { number, class, kind, setup: Setup { plant, ..setup } }
    }

    /// Its class.
    pub fn class(&self) -> &'static Class {
        &CLASSES[self.class]
    }

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

/// Setups of short workloads.
const SHORT_SETUPS: u64 = 26;

/// One of the ways to set up a volume for a short workload.
fn short_setup(number: u64, seed: u64) -> Setup {
    let number = number % SHORT_SETUPS;
    let inline = [0, 4096, 64 << 10];
    let plain = Setup {
        fua: number.is_multiple_of(2),
        syncs_concurrently: number.is_multiple_of(3),
        near_end: false,
        ..Setup::with_content(seed)
    };
    match number {
        // All blocks, all lengths of what is inline, FUA and not.
        0..24 => Setup {
            block_bytes: 512 << (number / 6),
            inline_max: inline[(number / 2 % 3) as usize],
            ..plain
        },
        // Sectors of 4 KiB.
        _ => Setup { block_bytes: 4096, sector: 4096, inline_max: inline[1], ..plain },
    }
}

/// Runs of one and two steps are drawn by number.
pub(crate) fn draw_none(seed: u64) -> (Kind, Setup) {
    (Kind::Single(seed % SINGLES), short_setup(seed, seed))
}

pub(crate) fn draw_names(seed: u64) -> (Kind, Setup) {
    (Kind::Names, Setup::from_seed(seed))
}

pub(crate) fn draw_names_failing(seed: u64) -> (Kind, Setup) {
    (Kind::Names, Setup::from_seed(seed).failing())
}

pub(crate) fn draw_replacing(seed: u64) -> (Kind, Setup) {
    (Kind::Replacing, Setup::with_content(seed))
}

pub(crate) fn draw_content(seed: u64) -> (Kind, Setup) {
    let setup = Setup::with_content(seed);
    (Kind::Content, if seed % 3 == 1 { large_sectors(setup) } else { setup })
}

pub(crate) fn draw_content_failing(seed: u64) -> (Kind, Setup) {
    (Kind::Content, Setup::with_content(seed).failing())
}

pub(crate) fn draw_crowded(seed: u64) -> (Kind, Setup) {
    (Kind::Crowded, Setup::crowded(seed))
}

pub(crate) fn draw_no_sums(seed: u64) -> (Kind, Setup) {
    let (kind, setup) = match seed % 4 {
        0 => draw_replacing(seed),
        1 => draw_content_failing(seed),
        2 => draw_crowded(seed),
        _ => draw_content(seed),
    };
    (kind, Setup { sums: false, ..setup })
}

pub(crate) fn draw_flags(seed: u64) -> (Kind, Setup) {
    let (kind, setup) = match seed % 4 {
        0 => draw_replacing(seed),
        1 => draw_crowded(seed),
        _ => draw_content(seed),
    };
    (kind, some_without_sums(Setup { flags: true, ..setup }))
}

/// Reads, writes and flushes fail, some of them for as long as the fault lasts, and data decays.
pub(crate) fn draw_decay(seed: u64) -> (Kind, Setup) {
    let mut rng = seed ^ 0xdeca1;
    let mut pick = |n: u64| split_mix(&mut rng) % n;
    let fail = Fault::Fail(ErrorKind::Io);
    let mut failing = Vec::new();
    for op in [BioOp::Read, BioOp::Write, BioOp::Flush] {
        let rule = FaultRule::on(op, fail).nth(3 + pick(30));
        match pick(4) {
            0 => failing.push(rule),
            1 => failing.push(rule.times(2 + pick(12)).one_in(1 + pick(4))),
            2 => failing.push(rule.sticky()),
            _ => {}
        }
    }
    let setup = Setup::with_content(seed);
    let healed_at = (pick(4) > 0).then(|| 15 + pick(30) as usize);
    // No content in records: decay of the log follows other rules.
    (
        Kind::Content,
        Setup { failing, rot: true, healed_at, inline_max: 0, flags: pick(2) == 0, ..setup },
    )
}

pub(crate) fn draw_host_full(seed: u64) -> (Kind, Setup) {
    let mut rng = seed ^ 0xf011;
    let mut pick = |n: u64| split_mix(&mut rng) % n;
    let (kind, setup) = if pick(3) == 0 { draw_names(seed) } else { draw_content(seed) };
    let host_bytes = Some(pick(192) << 10);
    let healed_at = (pick(3) > 0).then(|| 15 + pick(30) as usize);
    (kind, some_without_sums(Setup { host_bytes, healed_at, ..setup }))
}

pub(crate) fn draw_late_writes(seed: u64) -> (Kind, Setup) {
    let (kind, setup) = if seed.is_multiple_of(3) { draw_names(seed) } else { draw_content(seed) };
    (kind, some_without_sums(Setup { late: true, fua: seed % 5 < 2, ..setup }))
}

pub(crate) fn draw_third_lives(seed: u64) -> (Kind, Setup) {
    let (kind, setup) = match seed % 3 {
        0 => draw_names(seed),
        1 => draw_replacing(seed),
        _ => draw_content(seed),
    };
    (kind, some_without_sums(Setup { lives: 4, ..setup }))
}

pub(crate) fn draw_growing(seed: u64) -> (Kind, Setup) {
    let (kind, setup) = if seed.is_multiple_of(3) { draw_names(seed) } else { draw_content(seed) };
    let grown_bytes = Some(setup.volume_bytes + (128 << 10) * (1 + seed / 3 % 16));
    (kind, some_without_sums(Setup { grown_bytes, ..setup }))
}

pub(crate) fn draw_older(seed: u64) -> (Kind, Setup) {
    let (kind, setup) = match seed % 4 {
        0 => draw_names(seed),
        1 => draw_content(seed),
        _ => draw_crowded(seed),
    };
    // Checkpoints are made all the time.
    let checkpoint_bytes = if seed % 8 < 6 { 8 << 10 } else { setup.checkpoint_bytes };
    (kind, some_without_sums(Setup { older: true, checkpoint_bytes, ..setup }))
}

pub(crate) fn draw_large(seed: u64) -> (Kind, Setup) {
    let mut rng = seed ^ 0x1a46e;
    let mut pick = |n: u64| split_mix(&mut rng) % n;
    let setup = Setup {
        large: true,
        volume_bytes: [16 << 20, 24 << 20, 64 << 20][pick(3) as usize],
        file_bytes: [1 << 20, 3 << 20, 8 << 20][pick(3) as usize],
        steps: 60 + pick(60) as usize,
        block_bytes: if pick(2) == 0 { 4096 } else { 2048 },
        checkpoint_bytes: [2 << 30, 1 << 20, 256 << 10][pick(3) as usize],
        overlay_bytes: 64 << 10 << pick(6),
        flags: pick(2) == 0,
        near_end: false,
        ..Setup::with_content(seed)
    };
    (Kind::Content, some_without_sums(setup))
}

/// One volume in four has no checksums.
pub(crate) fn some_without_sums(setup: Setup) -> Setup {
    let mut rng = setup.seed ^ 0x5a35;
    Setup { sums: !split_mix(&mut rng).is_multiple_of(4), ..setup }
}

fn large_sectors(setup: Setup) -> Setup {
    Setup { block_bytes: 4096, sector: 4096, ..setup }
}

/// The disks from which workloads start, each made once.
#[derive(Default)]
pub struct Bases(HashMap<(u32, u32, u64, bool, Begin), Rc<Base>>);

/// The initial content of a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Begin {
    Empty,
    Furnished,
    Crowded,
    Clients,
    Image,
}

impl Bases {
    /// The disk from which this workload starts.
    ///
    /// # Errors
    /// The volume's errors.
    pub fn of(&mut self, case: &Case) -> Result<Rc<Base>, Error> {
        // The initial content is made without the injected fault, and with the simplest setup.
        let plain = Setup {
            seed: 1,
            plant: None,
            fua: false,
            inline_max: 0,
            alloc: AllocMode::Reserve,
            failing: Vec::new(),
            flags: false,
            ..case.setup.clone()
        };
        let begin = match case.kind {
            Kind::Single(_) | Kind::Pair(_) => Begin::Furnished,
            Kind::Crowded => Begin::Crowded,
            Kind::Clients | Kind::Dropped => Begin::Clients,
            Kind::DroppedOnImage => Begin::Image,
            _ => Begin::Empty,
        };
        let key = (plain.block_bytes, plain.sector, plain.volume_bytes, plain.sums, begin);
        if let Some(base) = self.0.get(&key) {
            return Ok(base.clone());
        }
        let base = match begin {
            Begin::Empty => Base::empty(&plain)?,
            Begin::Furnished => Base::furnished(&plain)?,
            Begin::Crowded => Base::crowded(&plain)?,
            Begin::Clients => Ground::volume(&plain)?,
            Begin::Image => Ground::image(&plain),
        };
        let base = Rc::new(base);
        self.0.insert(key, base.clone());
        Ok(base)
    }
}
