//! Steps that a failing disk refuses: what the search knows afterwards and still judges.
//!
//! No locks.

use crate::cuts::QUICK;
use forebay_base::ErrorKind;
use forebay_block::BioOp;
use forebay_crashtest::{Base, Script, Seen, Setup, Subject, search};
use forebay_sim::{Fault, FaultRule};
use forebay_testkit::fs_check::op::Make;
use forebay_testkit::fs_check::{Op, Path, Target};
use forebay_vfs::{OpenFlags, Privileges};

const MAKE: Make = Make { perm: 0o644, owner: (0, 0) };

fn write(slot: u8, len: u32, fill: u64, append: bool) -> Op {
    Op::Write { slot, offset: 0, len, fill, append, privileges: Privileges::Keep }
}

/// Writes a file without a name past the cache, names it, appends to it, and syncs everything.
/// Three writes of the disk fail, from the `nth` on, and some of its reads. If reads fail, a file
/// need not be readable after a refused step.
fn append_past_failing_writes(fill: u64, nth: u64, reads: u64, seen: &mut Seen) {
    let fail = |op| FaultRule::on(op, Fault::Fail(ErrorKind::Io));
    let failing = vec![fail(BioOp::Write).nth(nth).times(3), fail(BioOp::Read).times(reads)];
    let plain =
        Setup { flags: true, syncs_concurrently: false, ..Setup::with_content(2 * fill + 1) };
    let setup = Setup { failing, rot: reads > 0, inline_max: 0, ..plain };
    let (path, flags) = (Path(vec![5]), OpenFlags::READ | OpenFlags::WRITE);
    let steps = vec![
        Op::Tmpfile { dir: Path::default(), make: MAKE, slot: 0 },
        write(0, 14_561, fill, false),
        Op::Link { from: Target::Slot(0), to: path.clone() },
        Op::Open { path, slot: 1, flags },
        write(1, 28_673, 77, true),
        Op::SyncFs,
    ];
    let base = Base::empty(&setup).expect("space for a volume");
    let script = Script::of(&setup, &base.fs, steps);
    let subject = Subject { setup: &setup, base: &base, script: &script };
    search(subject, QUICK, seen, &|_| false).unwrap_or_else(|e| panic!("{fill}, {nth}: {e:?}"));
}

/// A write to a file without a name was refused, so its size was unknown. The file got a name, and
/// an append to it answered another offset than that of the oracle. The run ended there, with a
/// step that had begun and had no moment: judging a state of it panicked.
#[test]
fn append_to_file_of_unknown_size_ends_run_recorded() {
    let mut seen = Seen::default();
    (0..40).for_each(|n| append_past_failing_writes(n, 1 + n % 4, 2 + n % 3, &mut seen));
    println!("{}", seen.line());
    let counts = seen.counts;
    assert!(counts.refused > 0 && counts.unknown > 0 && counts.ended_early > 0, "{counts:?}");
}

/// An append past the cache with `SYNC` failed, and readers saw its bytes. The commit of a sync of
/// everything then lost its run and left it out of the log, and that sync was acknowledged: it had
/// only asked files that had something to write. After a power loss the file was short again.
#[test]
fn full_sync_that_loses_run_of_clean_file_fails() {
    let mut seen = Seen::default();
    append_past_failing_writes(7, 4, 0, &mut seen);
    assert!(seen.counts.refused > 0 && seen.counts.syncs_failed > 0, "{:?}", seen.counts);
}

/// An append past the cache with `DSYNC` lost its run, and the repair took the size out of the log.
/// When the last client closed the file its size was published all the same, without the bytes.
#[test]
fn close_of_file_with_lost_run_publishes_no_size() {
    let mut seen = Seen::default();
    append_past_failing_writes(11, 4, 0, &mut seen);
    assert!(seen.counts.refused > 0 && seen.counts.syncs_failed > 0, "{:?}", seen.counts);
}
