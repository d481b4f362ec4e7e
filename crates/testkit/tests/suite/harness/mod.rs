//! The harness itself: it finds what is planted, makes it short, and is a function of its seed.
//!
//! No locks.

mod planted;

use forebay_testkit::fs_check::suite::{Subject, cases};
use forebay_testkit::fs_check::{Config, Times, compare, replay, shrink};
use forebay_testkit::mem_fs::{MemFs, MemOptions};
use forebay_vfs::{FileSystem, ManualClock};
use planted::{BUGS, Bug, Planted};
use std::sync::Arc;

fn config() -> (Arc<ManualClock>, Config) {
    let clock = Arc::new(ManualClock::default());
    let config = Config {
        times: Times::Exact,
        clock: Some(clock.clone()),
        exact_holes: true,
        ..Config::default()
    };
    (clock, config)
}

fn memory(clock: &Arc<ManualClock>) -> Arc<MemFs> {
    Arc::new(MemFs::new(MemOptions { clock: clock.clone(), ..MemOptions::default() }))
}

fn pair(bug: Option<Bug>) -> (Arc<dyn FileSystem>, Arc<dyn FileSystem>, Config) {
    let (clock, config) = config();
    let (good, inner) = (memory(&clock), memory(&clock));
    match bug {
        Some(bug) => (good, Arc::new(Planted { inner, bug }), config),
        None => (good, inner, config),
    }
}

/// compare.K1: the same seed, the same run; another seed, another.
#[test]
fn k1_same_seed_gives_same_run() {
    let run = |seed| {
        let (a, b, config) = pair(None);
        compare(&*a, &*b, &config, seed, 2500).unwrap_or_else(|mismatch| panic!("{mismatch}"))
    };
    let first = run(7);
    assert_eq!(first, run(7));
    assert_ne!(first.digest, run(8).digest);
    assert!(first.done * 4 > first.ops, "most operations do nothing: {first:?}");
    // Every refusal of a tree is met: ENOENT EEXIST ENOTDIR EISDIR EINVAL ENOTEMPTY ENAMETOOLONG
    // EBADF ENXIO ENODATA ELOOP EPERM.
    let errnos = [2, 17, 20, 21, 22, 39, 36, 9, 6, 61, 40, 1];
    let missing: Vec<_> = errnos.iter().filter(|e| !first.errnos.contains_key(e)).collect();
    assert!(missing.is_empty(), "never refused with {missing:?}: {first:?}");
}

/// generate.G1 and compare.K2: what is planted is found within a few runs, in few operations that
/// fail again.
#[test]
fn k2_g1_injected_fault_is_found_and_shortened() {
    for bug in BUGS {
        let found = (1..160).find_map(|seed| {
            let (a, b, config) = pair(Some(bug));
            compare(&*a, &*b, &config, seed, 400).err()
        });
        let found = found.unwrap_or_else(|| panic!("{bug:?} is not found"));
        let short = shrink(*found, &mut || pair(Some(bug)));
        assert!(short.ops.len() <= 12, "{bug:?} in {} operations: {short}", short.ops.len());
        let (a, b, config) = pair(Some(bug));
        let again = replay(&*a, &*b, &config, &short.ops).expect_err("K2: fails again");
        assert_eq!(again.what, short.what);
        let (a, b, config) = pair(None);
        replay(&*a, &*b, &config, &short.ops).expect("the mistake is planted, not ours");
    }
}

/// The rules, case by case, find the same mistakes without luck.
#[test]
fn rules_detect_injected_faults() {
    for bug in BUGS {
        let broken = cases().into_iter().filter(|case| !case.is_large).find(|case| {
            let (clock, _) = config();
            let inner = memory(&clock);
            let fs: Arc<dyn FileSystem> = Arc::new(Planted { inner, bug });
            let subject = Subject { fs, clock: Some(clock) };
            let run = std::panic::AssertUnwindSafe(|| (case.run)(&subject));
            !matches!(std::panic::catch_unwind(run), Ok(Ok(())))
        });
        assert!(broken.is_some(), "{bug:?} breaks no rule");
    }
}
