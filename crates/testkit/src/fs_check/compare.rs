//! Runs two file systems side by side, and shortens a sequence of operations that they answer
//! differently.
//!
//! Invariants: K1 a run is a function of its seed, its configuration and the two sides. K2 what is
//! reported fails again when it is replayed on two fresh file systems.
//!
//! No locks.

use super::generate::{Limits, OpGen};
use super::op::Op;
use super::run::{Answer, Outcome, Runner, Times};
use super::tree::Tree;
use forebay_base::task::block_on;
use forebay_vfs::clock::ManualClock;
use forebay_vfs::fs::FileSystem;
use forebay_vfs::types::Seek;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// How two file systems are compared.
#[derive(Clone)]
pub struct Config {
    /// What may be asked for.
    pub limits: Limits,
    /// How far times are compared.
    pub times: Times,
    /// The clock of both sides (with `Exact`), or of the side that has no clock of its own.
    pub clock: Option<Arc<ManualClock>>,
    /// After how many operations the trees are compared; at the end they are anyway.
    pub tree_every: u64,
    /// Whether both sides must find data and holes at the same offsets. Otherwise each needs only
    /// an offset that is allowed.
    pub exact_holes: bool,
    /// Whether two outcomes of an operation count as equal: for known differences.
    pub equal: fn(&Op, &Outcome, &Outcome) -> bool,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            limits: Limits::default(),
            times: Times::Ignore,
            clock: None,
            tree_every: 200,
            exact_holes: false,
            equal: |_, a, b| a == b,
        }
    }
}

/// What a run has seen.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Report {
    /// Operations.
    pub ops: u64,
    /// Of these, how many were done; the rest was refused, or found nothing open.
    pub done: u64,
    /// How often each errno was answered.
    pub errnos: BTreeMap<i32, u64>,
    /// Trees compared.
    pub trees: u64,
    /// Digest of the last tree.
    pub digest: u64,
}

/// Where two file systems differ. Its `Display` shows all of it.
#[derive(Debug, Clone)]
pub struct Mismatch {
    /// Seed of the run, if it was generated.
    pub seed: Option<u64>,
    /// The operations, up to the one that showed the difference.
    pub ops: Vec<Op>,
    /// What differs.
    pub what: String,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(seed) = self.seed {
            write!(f, "seed {seed}: ")?;
        }
        writeln!(f, "after {} operations: {}", self.ops.len(), self.what)?;
        let shown = self.ops.len().saturating_sub(40);
        if shown > 0 {
            writeln!(f, "  ({shown} operations before these)")?;
        }
        self.ops[shown..].iter().try_for_each(|op| writeln!(f, "  {op:?},"))
    }
}

impl std::error::Error for Mismatch {}

/// A run of two.
struct Pair<'a> {
    fs: [&'a dyn FileSystem; 2],
    runners: [Runner; 2],
    config: &'a Config,
    report: Report,
    ops: Vec<Op>,
}

impl<'a> Pair<'a> {
    fn new(a: &'a dyn FileSystem, b: &'a dyn FileSystem, config: &'a Config) -> Self {
        let runner = || Runner::new(config.times, config.clock.clone());
        let runners = [runner(), runner()];
        Self { fs: [a, b], runners, config, report: Report::default(), ops: Vec::new() }
    }

    async fn step(&mut self, op: &Op) -> Result<Outcome, String> {
        if let Some(clock) = &self.config.clock {
            let seconds = if let Op::Wait { seconds } = op { u64::from(*seconds) } else { 1 };
            clock.advance(seconds * 1_000_000_000 + 1);
        }
        self.ops.push(op.clone());
        let [first, second] = &mut self.runners;
        let a = first.apply(self.fs[0], op).await;
        let b = second.apply(self.fs[1], op).await;
        self.report.ops += 1;
        match &a.answer {
            Ok(Answer::Skipped) => {}
            Ok(_) => self.report.done += 1,
            Err(errno) => *self.report.errnos.entry(*errno).or_default() += 1,
        }
        if !self.alike(op, &a, &b) {
            return Err(format!("{op:?} answers\n  {}\n  {}", show(&a), show(&b)));
        }
        Ok(a)
    }

    fn alike(&self, op: &Op, a: &Outcome, b: &Outcome) -> bool {
        if (self.config.equal)(op, a, b) {
            return true;
        }
        // An implementation chooses where data begins and ends. It may not report content as a
        // hole, which the comparison of the trees would show.
        let seek = matches!(op, Op::Seek { .. }) && !self.config.exact_holes && a.moved == b.moved;
        match (op, &a.answer, &b.answer) {
            (Op::Seek { offset, .. }, Ok(Answer::Offset(x)), Ok(Answer::Offset(y))) => {
                seek && x >= offset && y >= offset
            }
            (Op::Seek { what: Seek::Data, .. }, Ok(_), Err(6))
            | (Op::Seek { what: Seek::Data, .. }, Err(6), Ok(_)) => seek,
            _ => false,
        }
    }

    async fn compare_trees(&mut self) -> Result<(), String> {
        let a = Tree::read(self.fs[0], self.config.times).await;
        let b = Tree::read(self.fs[1], self.config.times).await;
        let a = a.map_err(|e| format!("the first contradicts itself: {e}"))?;
        let b = b.map_err(|e| format!("the second contradicts itself: {e}"))?;
        self.report.trees += 1;
        self.report.digest = a.digest();
        match a.difference(&b) {
            Some(text) => Err(text),
            None => Ok(()),
        }
    }

    async fn finish(mut self, seed: Option<u64>, end: Result<(), String>) -> Finished {
        let end = match end {
            Ok(()) => {
                self.runners.iter_mut().for_each(Runner::close_all);
                self.compare_trees().await
            }
            failed => failed,
        };
        match end {
            Ok(()) => Ok(self.report),
            Err(what) => Err(Box::new(Mismatch { seed, ops: self.ops, what })),
        }
    }
}

/// How a run ends.
pub type Finished = Result<Report, Box<Mismatch>>;

fn show(outcome: &Outcome) -> String {
    let text = match &outcome.answer {
        Ok(Answer::Bytes(bytes)) if bytes.len() > 32 => {
            format!("{} bytes, {:02x?}..", bytes.len(), &bytes[..32])
        }
        answer => format!("{answer:?}"),
    };
    format!("{text} moved {:?}", outcome.moved)
}

/// Generates `count` operations from `seed` and carries them out on both file systems, which begin
/// with equal trees.
pub fn compare(
    a: &dyn FileSystem,
    b: &dyn FileSystem,
    config: &Config,
    seed: u64,
    count: u64,
) -> Finished {
    block_on(async {
        let mut pair = Pair::new(a, b, config);
        let mut generator = OpGen::new(seed, config.limits.clone());
        let mut end = Ok(());
        for n in 1..=count {
            let op = generator.next_op();
            end = match pair.step(&op).await {
                Ok(outcome) => {
                    generator.learn(&op, &outcome);
                    if n % config.tree_every == 0 { pair.compare_trees().await } else { Ok(()) }
                }
                Err(what) => Err(what),
            };
            if end.is_err() {
                break;
            }
        }
        pair.finish(Some(seed), end).await
    })
}

/// Carries out given operations on both file systems.
pub fn replay(a: &dyn FileSystem, b: &dyn FileSystem, config: &Config, ops: &[Op]) -> Finished {
    block_on(async {
        let mut pair = Pair::new(a, b, config);
        let mut end = Ok(());
        for op in ops {
            end = pair.step(op).await.map(drop);
            if end.is_err() {
                break;
            }
        }
        pair.finish(None, end).await
    })
}

/// Two fresh file systems and how to compare them; for [`shrink`].
pub type Fresh<'a> = dyn FnMut() -> (Arc<dyn FileSystem>, Arc<dyn FileSystem>, Config) + 'a;

/// Removes operations from a mismatch as long as the rest shows a mismatch, too (K2).
pub fn shrink(mismatch: Mismatch, fresh: &mut Fresh<'_>) -> Mismatch {
    let mut fails = |ops: &[Op]| -> Option<Mismatch> {
        let (a, b, config) = fresh();
        replay(&*a, &*b, &config, ops).err().map(|found| *found)
    };
    let seed = mismatch.seed;
    let Some(mut best) = fails(&mismatch.ops) else {
        let what = format!("{} (not when replayed)", mismatch.what);
        return Mismatch { what, ..mismatch };
    };
    let mut piece = best.ops.len().div_ceil(2);
    while piece > 0 {
        let (mut at, mut smaller) = (0, false);
        while at < best.ops.len() {
            let mut fewer = best.ops.clone();
            fewer.drain(at..(at + piece).min(fewer.len()));
            match fails(&fewer) {
                Some(found) if found.ops.len() < best.ops.len() => (best, smaller) = (found, true),
                _ => at += piece,
            }
        }
        piece = match (smaller, piece) {
            (true, 1) => 1,
            (_, 1) => 0,
            (_, piece) => piece.div_ceil(2),
        };
    }
    Mismatch { seed, ..best }
}
