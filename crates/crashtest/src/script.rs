//! What a workload does, and what the file system in memory holds after each step.
//!
//! No locks.

use crate::setup::Setup;
use forebay_base::buf::AlignedBuf;
use forebay_base::task::block_on;
use forebay_base::{IoFlags, Result};
use forebay_vfs::check::op::SLOTS;
use forebay_vfs::check::{Limits, Op, OpGen, Outcome, Path, Runner, Target, Times, Tree};
use forebay_vfs::mem::MemFs;
use forebay_vfs::types::FileKind;
use forebay_vfs::{Cookie, FileSystem, Ino, OpenFlags, Privileges, SetAttr, SetXattr};
use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

/// The state after a step.
pub struct Moment {
    pub fs: MemFs,
    /// Content of files that are open and have no name.
    unnamed: BTreeMap<u64, Rc<Vec<u8>>>,
    tree: OnceCell<Tree>,
    names: OnceCell<Tree>,
    files: OnceCell<Files>,
}

/// Regular files by path: inode and content.
pub type Paths = BTreeMap<Vec<u8>, (u64, Rc<Vec<u8>>)>;

/// The same, and by inode.
pub struct Files {
    pub paths: Paths,
    pub inodes: BTreeMap<u64, Rc<Vec<u8>>>,
}

async fn read_file(fs: &dyn FileSystem, ino: Ino) -> Result<Vec<u8>> {
    let size = fs.getattr(ino).await?.size;
    let file = fs.open(ino, OpenFlags::READ).await?;
    let buf = AlignedBuf::new(size as usize);
    let (buf, read) = file.read(0, buf, IoFlags::empty()).await;
    Ok(buf[..read?].to_vec())
}

/// Reads all regular files.
pub async fn read_files(fs: &dyn FileSystem) -> Result<Paths> {
    let (mut paths, mut known) = (Paths::new(), BTreeMap::new());
    let mut dirs = vec![(Vec::new(), Ino::ROOT)];
    while let Some((path, dir)) = dirs.pop() {
        for entry in fs.readdir(dir, Cookie::START, usize::MAX).await? {
            let mut child: Vec<u8> = path.clone();
            child.push(b'/');
            child.extend_from_slice(&entry.name);
            match entry.kind {
                FileKind::Directory => dirs.push((child, entry.ino)),
                FileKind::File => {
                    if let Some(content) = known.get(&entry.ino) {
                        paths.insert(child, (entry.ino.0, Rc::clone(content)));
                        continue;
                    }
                    let content = Rc::new(read_file(fs, entry.ino).await?);
                    known.insert(entry.ino, content.clone());
                    paths.insert(child, (entry.ino.0, content));
                }
                _ => {}
            }
        }
    }
    Ok(paths)
}

impl Moment {
    fn of(fs: &MemFs) -> Self {
        let (tree, names, files) = (OnceCell::new(), OnceCell::new(), OnceCell::new());
        Self { fs: fs.snapshot(), unnamed: BTreeMap::new(), tree, names, files }
    }

    /// All of it.
    pub fn tree(&self) -> &Tree {
        self.tree.get_or_init(|| block_on(Tree::read(&self.fs, Times::Ignore)).expect("the oracle"))
    }

    /// Content of its files.
    pub fn files(&self) -> &Files {
        self.files.get_or_init(|| {
            let paths = block_on(read_files(&self.fs)).expect("the oracle");
            let named = paths.values().map(|(ino, content)| (*ino, content.clone()));
            let inodes = named.chain(self.unnamed.clone()).collect();
            Files { paths, inodes }
        })
    }

    /// All but the content of files.
    pub fn names(&self) -> &Tree {
        self.names.get_or_init(|| without_content(self.tree().clone()))
    }
}

impl Moment {
    /// A file system like this one, with other content.
    pub fn with_files(&self, files: &Paths) -> MemFs {
        let fs = self.fs.snapshot();
        for (path, (ino, _)) in &self.files().paths {
            let Some((_, content)) = files.get(path) else { continue };
            let set = SetAttr { privileges: Privileges::Keep, ..SetAttr::size(0) };
            block_on(fs.setattr(Ino(*ino), &set)).expect("the oracle");
            let file = block_on(fs.open(Ino(*ino), OpenFlags::WRITE)).expect("the oracle");
            let none = IoFlags::empty();
            file.write_slice(0, content, none, Privileges::Keep).expect("the oracle");
        }
        fs
    }
}

/// A tree without sizes and content of files.
pub fn without_content(mut tree: Tree) -> Tree {
    for node in tree.nodes.values_mut().filter(|node| node.shape.kind == FileKind::File) {
        node.shape.size = 0;
        node.units.clear();
    }
    tree
}

/// Steps that bring the log near the end of its segment.
fn near_end(seed: u64) -> Vec<Op> {
    let of = Target::Path(Path::default());
    let len = 11_500 + (seed % 8 * 375) as u32;
    let how = SetXattr::Any;
    let set = |fill| Op::SetXattr { of: of.clone(), name: 0, len, fill, how };
    (1..=4).map(set).chain([Op::SyncFs]).collect()
}

/// Gives the next step, when it is told what came of the last one.
type Next<'a> = dyn FnMut(Option<(&Op, &Outcome)>) -> Option<Op> + 'a;

/// A workload and its past.
pub struct Script {
    /// The steps.
    pub ops: Vec<Op>,
    /// What came of each.
    pub outcomes: Vec<Outcome>,
    /// The inode in the file system in memory that a step syncs.
    pub synced: Vec<Option<u64>>,
    /// The first is before the first step.
    pub moments: Vec<Moment>,
    /// Files that were closed after they had been cut to nothing: inode, and after how many steps.
    pub closed: Vec<(u64, usize)>,
    /// Files that were put in another one's place: inode, and by which step.
    pub replacing: Vec<(u64, usize)>,
}

/// A step that the simulated world can carry out: a length that is even would make the harness block.
fn without_blocking(op: Op) -> Op {
    match op {
        Op::Read { slot, offset, len } => Op::Read { slot, offset, len: len | 1 },
        Op::Write { slot, offset, len, fill, append, privileges } => {
            Op::Write { slot, offset, len: len | 1, fill, append, privileges }
        }
        other => other,
    }
}

impl Script {
    /// Steps from a seed, on what `start` holds.
    pub fn make(setup: &Setup, seed: u64, start: &MemFs, len: usize) -> Self {
        let limits = Limits {
            size_max: setup.file_bytes,
            xattr_bytes_max: 600,
            devices: true,
            depth_max: 3,
            ..Limits::default()
        };
        let mut generator = OpGen::new(seed, limits);
        let first = if setup.near_end { near_end(seed) } else { Vec::new() };
        let mut first = first.into_iter();
        let mut next = |past: Option<(&Op, &Outcome)>| {
            if let Some(op) = first.next() {
                return Some(op);
            }
            if let Some((op, outcome)) = past {
                generator.learn(op, outcome);
            }
            Some(without_blocking(generator.next_op()))
        };
        Self::carry_out(setup, start, len, &mut next)
    }

    /// Steps that are given, on what `start` holds.
    pub fn of(setup: &Setup, start: &MemFs, ops: Vec<Op>) -> Self {
        let (len, mut ops) = (ops.len(), ops.into_iter());
        Self::carry_out(setup, start, len, &mut |_| ops.next().map(without_blocking))
    }

    fn carry_out(setup: &Setup, start: &MemFs, len: usize, next: &mut Next<'_>) -> Self {
        let fs = start.snapshot();
        let mut runner = Runner::new(Times::Ignore, None);
        let mut past: Option<(Op, Outcome)> = None;
        let mut script = Self {
            ops: Vec::new(),
            outcomes: Vec::new(),
            synced: Vec::new(),
            moments: Vec::new(),
            closed: Vec::new(),
            replacing: Vec::new(),
        };
        let mut cut = BTreeSet::new();
        script.moments.push(Moment::of(&fs));
        while script.ops.len() < len {
            let Some(op) = next(past.as_ref().map(|(op, outcome)| (op, outcome))) else { break };
            past = None;
            if !setup.content && touches_content(&op) || looks_only(&op) {
                continue;
            }
            let synced = match op {
                Op::Sync { slot, .. } => runner.open_ino(slot).map(|ino| ino.0),
                _ => None,
            };
            let open = |runner: &Runner| (0..SLOTS).map(|s| runner.open_ino(s)).collect::<Vec<_>>();
            let before = open(&runner);
            let outcome = block_on(runner.apply(&fs, &op));
            past = Some((op.clone(), outcome.clone()));
            // A step that is refused is seldom of interest here.
            if outcome.answer.is_err() && !script.ops.len().is_multiple_of(4) {
                continue;
            }
            let mut moment = Moment::of(&fs);
            if setup.content {
                moment.unnamed = unnamed(&fs, &runner);
            }
            script.moments.push(moment);
            if setup.content {
                script.note(&op, &mut cut);
                for (old, new) in before.into_iter().zip(open(&runner)) {
                    let closed = old.filter(|old| new != Some(*old)).map(|old| old.0);
                    let closed = closed.filter(|old| cut.remove(old));
                    script.closed.extend(closed.map(|old| (old, script.moments.len() - 1)));
                }
            }
            script.ops.push(op);
            script.synced.push(synced);
            script.outcomes.push(outcome);
        }
        runner.close_all();
        script
    }
}

/// What is open and has no name: it may get one.
fn unnamed(fs: &MemFs, runner: &Runner) -> BTreeMap<u64, Rc<Vec<u8>>> {
    let open = (0..SLOTS).filter_map(|slot| runner.open_ino(slot));
    let mut all = BTreeMap::new();
    for ino in open {
        let attr = block_on(fs.getattr(ino)).expect("the oracle");
        if attr.nlink == 0 && attr.kind == FileKind::File {
            let content = block_on(read_file(fs, ino)).expect("the oracle");
            all.insert(ino.0, Rc::new(content));
        }
    }
    all
}

impl Script {
    /// What the last step did that the contract speaks of.
    fn note(&mut self, op: &Op, cut: &mut BTreeSet<u64>) {
        let [.., old, new] = &self.moments[..] else { return };
        for (ino, content) in &new.files().inodes {
            let before = old.files().inodes.get(ino);
            if content.is_empty() && before.is_some_and(|content| !content.is_empty()) {
                cut.insert(*ino);
            }
        }
        let Op::Rename { from, to, .. } = op else { return };
        let path = |path: &Path| {
            let mut bytes = Vec::new();
            for part in &path.0 {
                bytes.push(b'/');
                bytes.extend_from_slice(forebay_vfs::check::op::name(*part));
            }
            bytes
        };
        let (from, to) = (path(from), path(to));
        let source = old.files().paths.get(&from).map(|(ino, _)| *ino);
        let moved = new.files().paths.get(&to).map(|(ino, _)| *ino);
        let there = old.files().paths.contains_key(&to);
        if let Some(ino) = source.filter(|ino| there && moved == Some(*ino)) {
            // What was there has the other name, if they were exchanged.
            let exchanged = new.files().paths.get(&from).map(|(ino, _)| *ino);
            let at = self.moments.len() - 2;
            if exchanged != Some(ino) {
                self.replacing.extend([ino].into_iter().chain(exchanged).map(|ino| (ino, at)));
            }
        }
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
