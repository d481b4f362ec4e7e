//! Tests of the suite itself: each injected fault makes the search report a violation, and the same
//! workloads without it report none.
//!
//! `FOREBAY_SEED` sets the first seed of each search (1).
//!
//! No locks.

use crate::clients::{by_dropping, by_dropping_on_image, by_several, several};
use crate::cuts::{KILLED, QUICK, crowded, every_cut, replaced};
use crate::forged::forged;
use crate::from_env;
use crate::orders::ordered;
use crate::storms::storm;
use forebay_base::ErrorKind;
use forebay_block::BioOp;
use forebay_crashtest::{Depth, Options, Planted, Seen, Setup, Violation, campaign, class_by_name};
use forebay_sim::{Fault, FaultRule};
use std::time::Duration;

/// The search finds each fault within this many states.
const STATES_MAX: u64 = 100_000;
/// Most seeds of a search: some have no states. The rarest faults show with one seed in fifty.
const TRIES_MAX: usize = 1_000;

/// How to search for a fault.
struct Hunt {
    setup: fn(u64) -> Setup,
    change: fn(&mut Setup),
    search: fn(&Setup, Depth, &mut Seen) -> Result<(), Violation>,
    depth: Depth,
}

/// Workloads of names, with a power loss at every request.
const NAMES: Hunt =
    Hunt { setup: Setup::from_seed, change: |_| (), search: every_cut, depth: QUICK };
const CONTENT: Hunt = Hunt { setup: Setup::with_content, ..NAMES };
/// No content goes into records.
const RUNS: Hunt = Hunt { change: |setup| setup.inline_max = 0, ..CONTENT };
/// A nearly full volume with a busy cleaner.
const CROWDED: Hunt = Hunt { setup: Setup::crowded, search: crowded, ..NAMES };
/// Several writers write the same blocks through the map.
const ORDERS: Hunt = Hunt { search: ordered, ..CONTENT };
/// Segments of the log are filled while checkpoints are made.
const STORM: Hunt = Hunt {
    search: storm,
    change: |setup| (setup.checkpoint_bytes, setup.near_end) = (64 << 10, false),
    ..NAMES
};
const FAILING: Hunt = Hunt { setup: |seed| Setup::from_seed(seed).failing(), ..NAMES };
const KILLS: Hunt = Hunt { depth: Depth { kills: 4, second_states: 24, ..KILLED }, ..NAMES };
/// Two or three clients at once.
const CLIENTS: Hunt = Hunt { setup: several, search: by_several, ..NAMES };
/// Two or three clients at once, some of whose operations are dropped.
const DROPPED: Hunt = Hunt { search: by_dropping, ..CLIENTS };

/// Flushes that fail lose what was written past the cache.
fn lossy() -> Vec<FaultRule> {
    let fail = Fault::Fail(ErrorKind::Io);
    vec![FaultRule::on(BioOp::Flush, fail).nth(3).times(8).one_in(2)]
}

/// The classes of runs each of whose campaigns finds a fault within 100,000 states; none: [`hunt`]
/// searches for it.
fn classes_of(fault: Planted) -> &'static [&'static str] {
    match fault {
        Planted::DsyncWithoutCommit => &["flags"],
        Planted::RetriesForever => &["decay"],
        Planted::SkippedSum => &["decay", "clients-decay"],
        Planted::NoSpaceSwallowed => &["host-full", "clients-host-full"],
        Planted::TailReused => &["late-writes", "clients-late-writes"],
        Planted::StagedKept => &["content"],
        Planted::GrantKept => &["content", "several-clients"],
        Planted::WritesKept => &["large"],
        Planted::RecordBeforeData | Planted::EarlierFlush => &["no-sums"],
        Planted::InodesCountedAnew => &["third-lives"],
        Planted::BlockNumberShort => &["large"],
        Planted::GrownTakenForClosed => &["growing", "clients-growing"],
        Planted::RecoveryQuadratic => &["names", "clients-late-writes", "large"],
        Planted::CloseRepeats => &["content", "several-clients"],
        Planted::CheckpointRepeats => &["decay", "content", "several-clients"],
        Planted::DigestRepeats => &["names"],
        Planted::FsckRepeats => &["content", "large"],
        Planted::GrownBySegments => &["growing", "clients-growing"],
        Planted::NodesReusedEarly => &["older-checkpoint", "clients-older-checkpoint"],
        _ => &[],
    }
}

/// The words with which a bound reports a fault that uses too much: one of them.
fn bounds_of(fault: Planted, class: &str) -> &'static [&'static str] {
    match fault {
        Planted::WritesKept => &["bytes, more than"],
        Planted::GrantKept => &["bytes of log are granted"],
        Planted::RecoveryQuadratic => &["opening the volume: not ended"],
        Planted::CloseRepeats => &["closing the volume: not ended"],
        Planted::CheckpointRepeats if class == "decay" => &["a checkpoint: not ended"],
        Planted::CheckpointRepeats if class == "content" => &["concurrent tasks: not ended"],
        // A close makes a checkpoint, too: the seed decides which comes first.
        Planted::CheckpointRepeats => &["Checkpoint took", "closing the volume: not ended"],
        Planted::DigestRepeats => &["reading all of it: not ended"],
        Planted::FsckRepeats => &["fsck: not ended"],
        Planted::GrownBySegments => &["growing the volume: not ended"],
        _ => &[""],
    }
}

fn hunt(fault: Planted) -> Hunt {
    match fault {
        Planted::SwallowedFlushError | Planted::StaleTail => FAILING,
        Planted::SwallowedWriteError => {
            Hunt { setup: |seed| Setup::with_content(seed).failing(), ..RUNS }
        }
        Planted::UnflushedRecovery => Hunt { change: |setup| setup.fua = false, ..KILLS },
        Planted::TornRecord => Hunt { change: |setup| setup.inline_max = 64 << 10, ..CONTENT },
        Planted::UnverifiedData | Planted::PublishedEarly => RUNS,
        Planted::EarlyFua => {
            Hunt { change: |setup| (setup.inline_max, setup.fua) = (0, true), ..CONTENT }
        }
        Planted::SizeBeforeData => CONTENT,
        Planted::RenameBeforeData => Hunt { search: replaced, ..CONTENT },
        Planted::CleanerMovesLive | Planted::StoredBytesDrift => CROWDED,
        Planted::SegmentReusedEarly => STORM,
        Planted::SequenceAtReserve | Planted::PublishedOutOfOrder => ORDERS,
        Planted::DiscardAfterReuse => Hunt { change: |setup| setup.discard = true, ..CROWDED },
        Planted::ForgedRecord => Hunt { search: forged, ..CONTENT },
        Planted::LostDirtyBit => RUNS,
        Planted::HalfRename => NAMES,
        Planted::JoinedCommit | Planted::AppendRangeTwice | Planted::SizeOfOneWriter => CLIENTS,
        Planted::ForgottenGroup => DROPPED,
        Planted::NamedNodesFreed => Hunt { change: |setup| setup.failing = lossy(), ..NAMES },
        Planted::LostForgotten => Hunt { change: |setup| setup.failing = lossy(), ..CLIENTS },
        Planted::RangeReleasedEarly => Hunt { search: by_dropping_on_image, ..DROPPED },
        _ => NAMES,
    }
}

fn first_seed() -> u64 {
    from_env("FOREBAY_SEED").unwrap_or(1)
}

/// Finds the first seed that shows the fault; without the fault that seed shows no violation.
fn find(fault: Planted) -> Result<(), String> {
    let classes = classes_of(fault);
    if !classes.is_empty() {
        return classes.iter().try_for_each(|class| find_in_campaign(fault, class));
    }
    let Hunt { setup, change, search, depth } = hunt(fault);
    let mut seen = Seen::default();
    for seed in (first_seed()..).take(TRIES_MAX) {
        if seen.counts.states > STATES_MAX {
            break;
        }
        let mut plain = setup(seed);
        change(&mut plain);
        let planted = Setup { plant: Some(fault), ..plain.clone() };
        if let Err(violation) = search(&planted, depth, &mut seen) {
            let clean = search(&plain, depth, &mut Seen::default());
            let (what, states) = (violation.what, seen.counts.states);
            assert!(states <= STATES_MAX, "{fault:?} was found after {states} states");
            let what: String = what.chars().take(120).collect();
            println!("{}: seed {seed}, {states} states: {what}", fault.name());
            return clean.map_err(|e| format!("{fault:?}: also without it: {e:?}"));
        }
    }
    Err(format!("{fault:?} was not found: {}", seen.line()))
}

/// The campaign of a class reports the fault, and its report does not happen without the fault.
fn find_in_campaign(fault: Planted, class: &str) -> Result<(), String> {
    let options = Options {
        seed: first_seed(),
        states: Some(STATES_MAX),
        class: class_by_name(class),
        plant: Some(fault),
        patience: Duration::ZERO,
        ..Options::default()
    };
    let summary = campaign(&options, &mut |_| ());
    let (name, states) = (fault.name(), summary.counts.states);
    let Some(failure) = summary.failure else {
        return Err(format!("{name} was not found in {states} states of the class {class}"));
    };
    let whole = failure.violation.what;
    let what: String = whole.chars().take(160).collect();
    println!("{name}: class {class}, run {}, {states} states: {what}", failure.case);
    let bounds = bounds_of(fault, class);
    if !bounds.iter().any(|bound| whole.contains(bound)) {
        return Err(format!("{name}: class {class}: {whole:?} does not say {bounds:?}"));
    }
    let plain =
        Options { plant: None, states: None, class: None, case: Some(failure.case), ..options };
    match campaign(&plain, &mut |_| ()).failure {
        None => Ok(()),
        Some(failure) => Err(format!("{name}: also without it: {:?}", failure.violation)),
    }
}

/// commit.K11, open.O12 among them; a moment knows what was acknowledged before it: run.U1.
#[test]
fn search_finds_every_injected_fault() {
    let only = std::env::var("FOREBAY_CRASH_FAULT").ok();
    let wanted = |fault: &Planted| only.as_ref().is_none_or(|only| only == fault.name());
    let sought: Vec<Planted> = Planted::ALL.into_iter().filter(wanted).collect();
    assert!(!sought.is_empty(), "no injected fault has the name {only:?}");
    let missed: Vec<String> = sought.into_iter().filter_map(|fault| find(fault).err()).collect();
    assert!(missed.is_empty(), "{}", missed.join("\n"));
}

/// Content that failed flushes have lost concerns its file alone: clients go on, no volume turns
/// read-only, and after a crash the file has its content of the last sync.
#[test]
fn clients_go_on_after_flushes_that_lose_content() {
    let mut seen = Seen::default();
    for seed in 1..=40 {
        let setup = Setup { failing: lossy(), ..several(seed) };
        by_several(&setup, QUICK, &mut seen).unwrap_or_else(|e| panic!("seed {seed}: {e:?}"));
    }
    println!("{}", seen.line());
}

#[test]
fn injected_faults_have_names() {
    for fault in Planted::ALL {
        assert_eq!(Planted::from_name(fault.name()), Some(fault));
    }
    assert_eq!(Planted::from_name("none"), None);
}
