//! What a workload does, and what the file system in memory holds after each step.
//!
//! No locks.

use crate::tests::crash::run::Setup;
use forebay_base::task::block_on;
use forebay_vfs::check::{Limits, Op, OpGen, Outcome, Runner, Times, Tree};
use forebay_vfs::mem::MemFs;
use forebay_vfs::types::FileKind;
use forebay_vfs::{OpenFlags, SetAttr};
use std::cell::OnceCell;

/// The state after a step.
pub struct Moment {
    pub fs: MemFs,
    tree: OnceCell<Tree>,
    names: OnceCell<Tree>,
}

impl Moment {
    fn of(fs: &MemFs) -> Self {
        Self { fs: fs.snapshot(), tree: OnceCell::new(), names: OnceCell::new() }
    }

    /// All of it.
    pub fn tree(&self) -> &Tree {
        self.tree.get_or_init(|| block_on(Tree::read(&self.fs, Times::Ignore)).expect("the oracle"))
    }

    /// All but the content of files.
    pub fn names(&self) -> &Tree {
        self.names.get_or_init(|| without_content(self.tree()))
    }
}

/// A tree without sizes and content of files.
pub fn without_content(tree: &Tree) -> Tree {
    let mut tree = tree.clone();
    for node in tree.nodes.values_mut().filter(|node| node.shape.kind == FileKind::File) {
        node.shape.size = 0;
        node.units.clear();
    }
    tree
}

/// A workload and its past.
pub struct Script {
    pub ops: Vec<Op>,
    pub outcomes: Vec<Outcome>,
    /// The inode in the file system in memory that a step syncs.
    pub synced: Vec<Option<u64>>,
    /// The first is before the first step.
    pub moments: Vec<Moment>,
}

impl Script {
    /// Steps from a seed, on what `start` holds.
    pub fn make(setup: &Setup, seed: u64, start: &MemFs, len: usize) -> Self {
        let fs = start.snapshot();
        let limits = Limits {
            size_max: setup.file_bytes,
            xattr_bytes_max: 600,
            devices: true,
            depth_max: 3,
            ..Limits::default()
        };
        let mut generator = OpGen::new(seed, limits);
        let mut runner = Runner::new(Times::Ignore);
        let mut script =
            Self { ops: Vec::new(), outcomes: Vec::new(), synced: Vec::new(), moments: Vec::new() };
        script.moments.push(Moment::of(&fs));
        while script.ops.len() < len {
            let op = generator.next_op();
            if !setup.content && touches_content(&op) || looks_only(&op) {
                continue;
            }
            let synced = match op {
                Op::Sync { slot, .. } => runner.open_ino(slot).map(|ino| ino.0),
                _ => None,
            };
            let outcome = block_on(runner.apply(&fs, &op));
            generator.learn(&op, &outcome);
            // A step that is refused is seldom of interest here.
            if outcome.answer.is_err() && script.ops.len() % 4 != 0 {
                continue;
            }
            script.moments.push(Moment::of(&fs));
            script.ops.push(op);
            script.synced.push(synced);
            script.outcomes.push(outcome);
        }
        runner.close_all();
        script
    }
}

fn truncates(flags: OpenFlags) -> bool {
    flags.contains(OpenFlags::TRUNCATE)
}

/// Whether a step needs content.
fn touches_content(op: &Op) -> bool {
    match op {
        Op::Write { .. } | Op::Fallocate { .. } | Op::Copy { .. } => true,
        Op::Open { flags, .. } | Op::Create { flags, .. } => truncates(*flags),
        Op::Setattr { set: SetAttr { size: Some(_), .. }, .. } => true,
        _ => looks_only(op),
    }
}

/// Whether a step changes nothing that a crash could take.
fn looks_only(op: &Op) -> bool {
    matches!(
        op,
        Op::Read { .. }
            | Op::Seek { .. }
            | Op::Getattr { .. }
            | Op::Readdir { .. }
            | Op::Readlink { .. }
            | Op::GetXattr { .. }
            | Op::ListXattr { .. }
            | Op::Wait { .. }
    )
}
