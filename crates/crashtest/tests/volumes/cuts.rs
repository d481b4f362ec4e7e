//! Seeded workloads, with a power loss at every request.
//!
//! No locks.

use crate::seeds;
use forebay_crashtest::{
    Base, Depth, Script, Seen, Setup, Subject, Violation, crowding, replacing, search,
};
use forebay_lfs::AllocMode;
use forebay_testkit::fs_check::{Op, Path};
use forebay_vfs::{OpenFlags, Privileges};

/// A part of the states.
pub const QUICK: Depth =
    Depth { all_upto: 8, states: 40, live_on: 200, second_states: 4, kills: 0, ..Depth::FULL };

/// A part of the states, and kills of the process.
pub const KILLED: Depth = Depth { states: 2, live_on: 0, kills: 12, ..QUICK };

/// Searches one workload, with a power loss at every request.
pub fn every_cut(setup: &Setup, depth: Depth, seen: &mut Seen) -> Result<(), Violation> {
    let base = Base::empty(setup).expect("space for a volume");
    let script = Script::make(setup, setup.seed, &base.fs, setup.steps);
    search(Subject { setup, base: &base, script: &script }, depth, seen, &|_| false)
}

/// Files that replace others.
pub fn replaced(setup: &Setup, depth: Depth, seen: &mut Seen) -> Result<(), Violation> {
    let base = Base::empty(setup).expect("space for a volume");
    let script = Script::of(setup, &base.fs, replacing(setup.seed));
    search(Subject { setup, base: &base, script: &script }, depth, seen, &|_| false)
}

/// A nearly full volume is overwritten and cleaned.
pub fn crowded(setup: &Setup, depth: Depth, seen: &mut Seen) -> Result<(), Violation> {
    // The initial content is made without the injected fault.
    let base = Base::crowded(&Setup { plant: None, ..setup.clone() }).expect("space for all of it");
    let script = Script::of(setup, &base.fs, crowding(setup.seed));
    search(Subject { setup, base: &base, script: &script }, depth, seen, &|_| false)
}

type Search = fn(&Setup, Depth, &mut Seen) -> Result<(), Violation>;

/// Searches with each seed, prints the counters, and expects no violation.
fn all(
    what: &str,
    seeds: impl Iterator<Item = u64>,
    setup: impl Fn(u64) -> Setup,
    search: Search,
    depth: Depth,
) -> Seen {
    let mut seen = Seen::default();
    for seed in seeds {
        let setup = setup(seed);
        search(&setup, depth, &mut seen).unwrap_or_else(|e| panic!("{setup:?}\n{e:?}"));
    }
    println!("{what}: {}", seen.line());
    seen
}

/// Recovery gives a prefix of the steps that contains everything acknowledged, also across ends of
/// segments (group_layout.J12), and gives it again: lfs.I11, lfs.I12, lfs.I17, log.L1, log.L2,
/// log.L3, rollforward.R11, rollforward.R14, state.S11.
#[test]
fn names_survive_power_loss_at_every_request() {
    let seen = all("names", seeds(5), Setup::from_seed, every_cut, QUICK).counts;
    assert!(seen.states > 20 * seen.workloads && seen.second_lives > 0);
}

/// What recovery read from a volatile cache and served is there after a power loss: open.O11,
/// rollforward.R13.
#[test]
fn names_survive_kill() {
    let seen = all("killed", seeds(8), Setup::from_seed, every_cut, KILLED).counts;
    assert!(seen.kills > seen.workloads && seen.second_states > 5 * seen.workloads);
}

/// Each block old or new, no size without its bytes, nothing overwritten: lfs.I13, lfs.I15,
/// lfs.I16, map_ops.M11, map_ops.M13. A check of each state finds only torn slots (fsck.E13).
#[test]
fn content_survives_power_loss_at_every_request() {
    // Seed 34: a file had grown by a hole. A sync, concurrent with a write into that hole,
    // published
    // the size only up to the write, and was acknowledged.
    let seeds = seeds(3).chain([34]);
    let seen = all("content", seeds, Setup::with_content, every_cut, QUICK).counts;
    assert!(seen.states > 20 * seen.workloads && seen.second_lives > 0);
}

#[test]
fn content_survives_kill() {
    let seen = all("content, killed", seeds(4), Setup::with_content, every_cut, KILLED).counts;
    assert!(seen.kills > seen.workloads);
}

#[test]
fn replaced_files_survive_power_loss_at_every_request() {
    // Seed 1005: one opener truncated and rewrote a file, and another one closed it. From then on
    // the
    // content was not due at the first one's close any more, and a sync of another file
    // committed the truncation without it.
    let seeds = seeds(2).chain([1005]);
    let seen = all("replacing", seeds, Setup::with_content, replaced, QUICK).counts;
    assert!(seen.states > 20 * seen.workloads);
}

/// The cleaner empties segments while clients overwrite their content, and the volume reuses them,
/// with power losses throughout: clean.C41, clean.C43, segment.W11 to W14.
#[test]
fn full_volume_survives_power_loss_at_every_request() {
    let seen = all("crowded", seeds(6), Setup::crowded, crowded, QUICK).counts;
    assert!(seen.states > 20 * seen.workloads && seen.cleaned > 10 * seen.workloads, "{seen:?}");
}

/// The cleaner on a failing disk: after a failure it does not rely on earlier copies (clean.C43).
#[test]
fn full_volume_survives_failing_disk() {
    let setup = |seed| Setup::crowded(seed).failing();
    let seen = all("crowded, failing", seeds(6), setup, crowded, QUICK).counts;
    assert!(seen.syncs_failed > 0 && seen.cleaned > seen.workloads, "{seen:?}");
}

/// log.L4, log.L5: flushes and writes fail now and then. A sync reports that, and everything
/// acknowledged before and after is there.
#[test]
fn names_survive_failing_disk() {
    let setup = |seed| Setup::from_seed(seed).failing();
    let seen = all("names, failing", seeds(6), setup, every_cut, QUICK).counts;
    assert!(seen.syncs_failed > seen.workloads && seen.syncs > seen.workloads);
    assert!(seen.flushes_failed > 0 && seen.writes_failed > 0);
}

/// Content on a failing disk: failed runs are written again: lfs.I18, log.L7, repair.Q1, logged.Q2.
#[test]
fn content_survives_failing_disk() {
    // Seed 1000: the second failed flush lost two blocks for good. Their record omitted them, but
    // not
    // the size that covers them. Seeds 2016 and 2086: the record omitted what a failed flush
    // had lost, but the next checkpoint did not. Seeds 2020 and 2046: a log segment that was
    // opened after a checkpoint's freeze was free in its usage table, with content of frozen
    // records in it. Seed 2037: a file replaced another one, and was written out for that. A
    // failed flush lost a block of it, which was punched by then, and the repair reset the
    // file's size: the rename was durable, and the file empty.
    let setup = |seed| Setup::with_content(seed).failing();
    let seeds = seeds(2).chain([1000, 2016, 2020, 2037, 2046, 2086]);
    let seen = all("content, failing", seeds, setup, every_cut, QUICK).counts;
    assert!(seen.syncs_failed > seen.workloads && seen.syncs > seen.workloads);
}

/// The story: a write that grew a file waited for a read of the block at its old end. Another
/// client's sync of everything found nothing dirty meanwhile, and published the new size. After a
/// crash the file was longer, with zeros that no client had written.
#[test]
fn waiting_write_publishes_size_with_bytes() {
    let both = OpenFlags::READ | OpenFlags::WRITE;
    let ops = vec![
        Op::Open { path: Path(vec![0]), slot: 0, flags: both },
        Op::Write {
            slot: 0,
            offset: 0,
            len: 5001,
            fill: 1,
            append: true,
            privileges: Privileges::Keep,
        },
    ];
    let mut seen = Seen::default();
    for seed in seeds(16) {
        let setup = Setup { block_bytes: 512, near_end: false, ..Setup::with_content(seed) };
        let base = Base::furnished(&setup).expect("space for a volume");
        let script = Script::of(&setup, &base.fs, ops.clone());
        let subject = Subject { setup: &setup, base: &base, script: &script };
        let result = search(subject, QUICK, &mut seen, &|_| false);
        result.unwrap_or_else(|e| panic!("{setup:?}\n{e:?}"));
    }
    println!("growing: {}", seen.line());
}

/// Allocation windows of many files are open at every power loss, with each of the other two
/// allocation modes.
#[test]
fn a5_cut_everywhere_in_each_way() {
    let mut second_lives = 0;
    for alloc in AllocMode::ALL {
        let setup = |seed| Setup {
            alloc,
            inline_max: 0,
            volume_bytes: 4 << 20,
            file_bytes: 96 << 10,
            ..Setup::with_content(seed)
        };
        let seen = all(&format!("content, {alloc}"), seeds(2), setup, every_cut, QUICK).counts;
        assert!(seen.states > 20 * seen.workloads);
        second_lives += seen.second_lives;
    }
    assert!(second_lives > 0);
}
