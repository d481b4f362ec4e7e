//! How the runs of each class of one client are drawn.
//!
//! No locks.

use super::case::Kind;
use super::setup::Setup;
use super::short::SINGLES;
use forebay_base::ErrorKind;
use forebay_base::world::split_mix;
use forebay_block::BioOp;
use forebay_sim::{Fault, FaultRule};

/// Setups of short workloads.
const SHORT_SETUPS: u64 = 26;

/// One of the ways to set up a volume for a short workload.
pub fn short_setup(number: u64, seed: u64) -> Setup {
    let number = number % SHORT_SETUPS;
    let inline = [0, 4096, 64 << 10];
    let plain = Setup {
        fua: number.is_multiple_of(2),
        syncs_concurrently: number.is_multiple_of(3),
        near_end: false,
        ..Setup::with_content(seed)
    };
    match number {
        // All block sizes, all limits of inline content, with FUA and without.
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
pub fn none(seed: u64) -> (Kind, Setup) {
    (Kind::Single(seed % SINGLES), short_setup(seed, seed))
}

pub fn names(seed: u64) -> (Kind, Setup) {
    (Kind::Names, Setup::from_seed(seed))
}

pub fn names_failing(seed: u64) -> (Kind, Setup) {
    (Kind::Names, Setup::from_seed(seed).failing())
}

pub fn replacing(seed: u64) -> (Kind, Setup) {
    (Kind::Replacing, Setup::with_content(seed))
}

pub fn content(seed: u64) -> (Kind, Setup) {
    let setup = Setup::with_content(seed);
    (Kind::Content, if seed % 3 == 1 { large_sectors(setup) } else { setup })
}

pub fn content_failing(seed: u64) -> (Kind, Setup) {
    (Kind::Content, Setup::with_content(seed).failing())
}

pub fn crowded(seed: u64) -> (Kind, Setup) {
    (Kind::Crowded, Setup::crowded(seed))
}

pub fn no_sums(seed: u64) -> (Kind, Setup) {
    let (kind, setup) = match seed % 4 {
        0 => replacing(seed),
        1 => content_failing(seed),
        2 => crowded(seed),
        _ => content(seed),
    };
    (kind, Setup { sums: false, ..setup })
}

pub fn flags(seed: u64) -> (Kind, Setup) {
    let (kind, setup) = match seed % 4 {
        0 => replacing(seed),
        1 => crowded(seed),
        _ => content(seed),
    };
    (kind, some_without_sums(Setup { flags: true, ..setup }))
}

/// Reads, writes and flushes fail, some of them for as long as the fault lasts, and data decays.
pub fn decay(seed: u64) -> (Kind, Setup) {
    let mut rng = seed ^ 0xdeca1;
    let mut pick = |n: u64| split_mix(&mut rng) % n;
    let fail = Fault::Fail(ErrorKind::Io);
    let mut failing = Vec::new();
    for op in [BioOp::Read, BioOp::Write, BioOp::Flush] {
        let nth = 3 + pick(30);
        // A volume reads seldom.
        let nth = if op == BioOp::Read { 1 + nth % 6 } else { nth };
        let rule = FaultRule::on(op, fail).nth(nth);
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

pub fn host_full(seed: u64) -> (Kind, Setup) {
    let mut rng = seed ^ 0xf011;
    let mut pick = |n: u64| split_mix(&mut rng) % n;
    let (kind, setup) = if pick(3) == 0 { names(seed) } else { content(seed) };
    let host_bytes = Some(pick(192) << 10);
    let healed_at = (pick(3) > 0).then(|| 15 + pick(30) as usize);
    (kind, some_without_sums(Setup { host_bytes, healed_at, ..setup }))
}

pub fn late_writes(seed: u64) -> (Kind, Setup) {
    let (kind, setup) = if seed.is_multiple_of(3) { names(seed) } else { content(seed) };
    (kind, some_without_sums(Setup { late: true, fua: seed % 5 < 2, ..setup }))
}

pub fn third_lives(seed: u64) -> (Kind, Setup) {
    let (kind, setup) = match seed % 3 {
        0 => names(seed),
        1 => replacing(seed),
        _ => content(seed),
    };
    (kind, some_without_sums(Setup { lives: 4, ..setup }))
}

pub fn growing(seed: u64) -> (Kind, Setup) {
    let (kind, setup) = if seed.is_multiple_of(3) { names(seed) } else { content(seed) };
    let grown_bytes = Some(setup.volume_bytes + (128 << 10) * (1 + seed / 3 % 16));
    (kind, some_without_sums(Setup { grown_bytes, ..setup }))
}

pub fn older(seed: u64) -> (Kind, Setup) {
    let (kind, setup) = match seed % 4 {
        0 => names(seed),
        1 => content(seed),
        _ => crowded(seed),
    };
    // Checkpoints are made all the time.
    let checkpoint_bytes = if seed % 8 < 6 { 8 << 10 } else { setup.checkpoint_bytes };
    (kind, some_without_sums(Setup { older: true, checkpoint_bytes, ..setup }))
}

pub fn large(seed: u64) -> (Kind, Setup) {
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
pub fn some_without_sums(setup: Setup) -> Setup {
    let mut rng = setup.seed ^ 0x5a35;
    Setup { sums: !split_mix(&mut rng).is_multiple_of(4), ..setup }
}

fn large_sectors(setup: Setup) -> Setup {
    Setup { block_bytes: 4096, sector: 4096, ..setup }
}
