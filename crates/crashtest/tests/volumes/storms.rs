//! Workloads of names that fill segments of the log all the time while checkpoints are made. The
//! segments that a checkpoint is about to free are all that the previous one has, and the log needs
//! space at once.
//!
//! No locks.

use crate::cuts::QUICK;
use crate::seeds;
use forebay_base::world::split_mix;
use forebay_crashtest::{Base, Depth, Script, Seen, Setup, Subject, Violation, search};
use forebay_testkit::fs_check::{Op, Path, Target};
use forebay_vfs::SetXattr;

/// Attributes, which are written over and over.
const NAMES: u64 = 2;

/// Large attributes of the root; a few of them make a group that fills a segment of the log.
fn storming(seed: u64) -> Vec<Op> {
    let mut rng = seed ^ 0x570;
    let mut pick = |n: u64| split_mix(&mut rng) % n;
    let mut ops = Vec::new();
    for _ in 0..24 {
        for _ in 0..3 + pick(3) {
            let (name, len) = (pick(NAMES) as u8, 9_000 + pick(4_000) as u32);
            let (of, how) = (Target::Path(Path::default()), SetXattr::Any);
            ops.push(Op::SetXattr { of, name, len, fill: pick(256) as u8, how });
        }
        ops.push(Op::SyncFs);
    }
    ops
}

/// Searches one workload, with a power loss at every request.
pub fn storm(setup: &Setup, depth: Depth, seen: &mut Seen) -> Result<(), Violation> {
    let base = Base::empty(setup).expect("space for a volume");
    let script = Script::of(setup, &base.fs, storming(setup.seed));
    search(Subject { setup, base: &base, script: &script }, depth, seen, &|_| false)
}

/// A log segment that a checkpoint is about to free is kept until the checkpoint is durable:
/// segment.W13.
#[test]
fn log_continues_during_checkpoints() {
    let mut seen = Seen::default();
    for seed in seeds(2) {
        let plain = Setup::from_seed(seed);
        let setup = Setup { checkpoint_bytes: 64 << 10, near_end: false, ..plain };
        storm(&setup, QUICK, &mut seen).unwrap_or_else(|e| panic!("{setup:?}\n{e:?}"));
    }
    println!("storms: {}", seen.line());
    assert!(seen.counts.states > 20 * seen.counts.workloads);
}
