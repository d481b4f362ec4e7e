//! The suite finds what it is there for: each planted fault makes the enumerator report a violation, and the
//! same workloads without it none.
//!
//! No locks.

use crate::fault::Planted;
use crate::tests::crash::cuts::{
    QUICK, Seen, every_cut, every_cut_of, failing, killed, replacing, with_content,
};
use crate::tests::crash::run::Setup;
use crate::tests::crash::verdict::Checked;

/// Seeds tried until one shows the fault.
const TRIES: u64 = 40;

type Search = fn(&Setup, &mut Seen) -> Checked<()>;

fn cut(setup: &Setup, seen: &mut Seen) -> Checked<()> {
    every_cut(setup, QUICK, seen)
}

/// The first seed from `from` on that shows the fault, and what it shows; without the fault that seed shows
/// nothing.
fn found(fault: Planted, from: u64, search: Search, change: impl Fn(u64, &mut Setup)) -> String {
    let mut seen = Seen::default();
    for seed in from..from + TRIES {
        let mut setup = Setup::from_seed(seed);
        change(seed, &mut setup);
        let planted = Setup { plant: Some(fault), ..setup.clone() };
        if let Err(what) = search(&planted, &mut seen) {
            let clean = search(&setup, &mut seen);
            assert_eq!(clean, Ok(()), "{fault:?}: also without it");
            println!("{fault:?}: found at seed {seed} after {} states", seen.states);
            return what;
        }
    }
    panic!("{fault:?} was not found: {} states, {} syncs", seen.states, seen.syncs);
}

#[test]
fn ack_before_flush_is_found() {
    found(Planted::AckBeforeFlush, 1, cut, |_, _| ());
}

#[test]
fn swallowed_flush_error_is_found() {
    found(Planted::SwallowedFlushError, 1, cut, |seed, setup| setup.failing = failing(seed));
}

#[test]
fn unflushed_recovery_is_found() {
    found(Planted::UnflushedRecovery, 1, killed, |_, setup| setup.fua = false);
}

#[test]
fn a_stale_tail_is_found() {
    found(Planted::StaleTail, 6, cut, |seed, setup| setup.failing = failing(seed));
}

fn content(seed: u64, setup: &mut Setup) {
    *setup = with_content(seed);
}

#[test]
fn a_torn_record_is_found() {
    found(Planted::TornRecord, 11, cut, |seed, setup| {
        content(seed, setup);
        setup.inline_max = 64 << 10;
    });
}

#[test]
fn unverified_data_is_found() {
    found(Planted::UnverifiedData, 2, cut, |seed, setup| {
        content(seed, setup);
        setup.inline_max = 0;
    });
}

/// K11.
#[test]
fn early_fua_is_found() {
    found(Planted::EarlyFua, 1, cut, |seed, setup| {
        content(seed, setup);
        (setup.inline_max, setup.fua) = (0, true);
    });
}

#[test]
fn a_size_before_its_data_is_found() {
    found(Planted::SizeBeforeData, 11, cut, content);
}

#[test]
fn a_rename_before_its_data_is_found() {
    let search =
        |setup: &Setup, seen: &mut Seen| every_cut_of(setup, &replacing(setup), QUICK, seen);
    found(Planted::RenameBeforeData, 1, search, content);
}

#[test]
fn data_published_early_is_found() {
    found(Planted::PublishedEarly, 1, cut, |seed, setup| {
        content(seed, setup);
        setup.inline_max = 0;
    });
}
