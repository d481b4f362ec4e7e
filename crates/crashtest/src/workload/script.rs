//! The steps of a workload, and the state of the file system in memory after each of them.
//!
//! No locks.

use super::setup::Setup;
use forebay_base::buf::AlignedBuf;
use forebay_base::task::block_on;
use forebay_base::{Error, ErrorKind, IoFlags, Result};
use forebay_testkit::fs_check::op::SLOTS;
use forebay_testkit::fs_check::{
    Answer, Limits, Op, OpGen, Outcome, Path, Runner, Target, Times, Tree, find,
};
use forebay_testkit::mem_fs::MemFs;
use forebay_vfs::types::FileKind;
use forebay_vfs::{Cookie, FileSystem, Ino, OpenFlags, Privileges, SetAttr, SetXattr};

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::{Arc, OnceLock};

/// The state after a step.
pub struct Moment {
    pub fs: MemFs,
    /// Content of files that are open and have no name.
    unnamed: BTreeMap<u64, Arc<Vec<u8>>>,
    names: OnceLock<Tree>,
    files: OnceLock<Files>,
}

/// Regular files by path: inode and content.
pub type Paths = BTreeMap<Vec<u8>, (u64, Arc<Vec<u8>>)>;

/// Regular files by path and by inode.
pub struct Files {
    pub paths: Paths,
    pub inodes: BTreeMap<u64, Arc<Vec<u8>>>,
}

pub async fn read_file(fs: &dyn FileSystem, ino: Ino) -> Result<Vec<u8>> {
    let size = fs.getattr(ino).await?.size;
    let file = fs.open(ino, OpenFlags::READ).await?;
    let buf = AlignedBuf::new(size as usize);
    let (buf, read) = file.read(0, buf, IoFlags::empty()).await;
    Ok(buf[..read?].to_vec())
}

/// Blocks of files that cannot be read, by inode of the volume.
pub type Unreadable = BTreeMap<u64, BTreeSet<usize>>;

/// Reads a file block by block. Unreadable blocks become zeros, and are listed.
async fn read_blocks(
    fs: &dyn FileSystem,
    ino: Ino,
    block: usize,
) -> Result<(Vec<u8>, BTreeSet<usize>)> {
    let size = fs.getattr(ino).await?.size as usize;
    let file = fs.open(ino, OpenFlags::READ).await?;
    let (mut content, mut bad) = (Vec::with_capacity(size), BTreeSet::new());
    while content.len() < size {
        let (at, len) = (content.len(), block.min(size - content.len()));
        let (buf, read) = file.read(at as u64, AlignedBuf::new(len), IoFlags::empty()).await;
        match read {
            Ok(read) if read == len => content.extend_from_slice(&buf[..len]),
            Ok(read) => {
                let what = format!("{read} of {len} bytes at {at}");
                return Err(Error::new(ErrorKind::Io, "read", what));
            }
            Err(_) => {
                bad.insert(at / block);
                content.resize(at + len, 0);
            }
        }
    }
    Ok((content, bad))
}

/// Reads all regular files.
pub async fn read_files(fs: &dyn FileSystem) -> Result<Paths> {
    read_all(fs, None).await.map(|(paths, _)| paths)
}

/// Reads all regular files. With a block size it also reads the readable blocks of files that have
/// unreadable ones.
pub async fn read_all(fs: &dyn FileSystem, block: Option<usize>) -> Result<(Paths, Unreadable)> {
    let (mut paths, mut unreadable) = (Paths::new(), Unreadable::new());
    let mut known: BTreeMap<Ino, Arc<Vec<u8>>> = BTreeMap::new();
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
                        paths.insert(child, (entry.ino.0, Arc::clone(content)));
                        continue;
                    }
                    let content = match (read_file(fs, entry.ino).await, block) {
                        (Err(_), Some(block)) => {
                            let (content, bad) = read_blocks(fs, entry.ino, block).await?;
                            unreadable.insert(entry.ino.0, bad);
                            content
                        }
                        (content, _) => content?,
                    };
                    let content = Arc::new(content);
                    known.insert(entry.ino, content.clone());
                    paths.insert(child, (entry.ino.0, content));
                }
                _ => {}
            }
        }
    }
    Ok((paths, unreadable))
}

impl Moment {
    fn of(fs: &MemFs) -> Self {
        let (names, files) = (OnceLock::new(), OnceLock::new());
        Self { fs: fs.snapshot(), unnamed: BTreeMap::new(), names, files }
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
        let read = || block_on(Tree::read_names(&self.fs, Times::Ignore)).expect("the oracle");
        self.names.get_or_init(|| without_content(read()))
    }
}

impl Moment {
    /// Shares the content that is the same in an earlier moment.
    fn share(&mut self, earlier: &Self) {
        self.files();
        let Some(files) = self.files.get_mut() else { return };
        let known = &earlier.files().inodes;
        let all = files.paths.values_mut().map(|(ino, content)| (*ino, content));
        for (ino, content) in all.chain(files.inodes.iter_mut().map(|(ino, c)| (*ino, c))) {
            if let Some(known) = known.get(&ino).filter(|known| *known == content) {
                *content = known.clone();
            }
        }
    }

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

/// Returns the next step, given the outcome of the last one.
type Next<'a> = dyn FnMut(Option<(&Op, &Outcome)>) -> Option<Op> + 'a;

/// A workload and its states in the file system in memory.
#[derive(Default)]
pub struct Script {
    /// The steps.
    pub ops: Vec<Op>,
    /// Flags of the writes among them.
    pub flags: Vec<IoFlags>,
    /// The outcome of each step.
    pub outcomes: Vec<Outcome>,
    /// Inode and range of a step that writes with `DSYNC` or `SYNC`.
    pub stable: Vec<Option<(u64, Range<u64>)>>,
    /// The inode in the file system in memory that a step syncs.
    pub synced: Vec<Option<u64>>,
    /// The states before the first step, and after each step.
    pub moments: Vec<Moment>,
    /// Files that were closed after a truncation to 0 bytes: inode, and the number of steps up to
    /// the close.
    pub closed: Vec<(u64, usize)>,
    /// Files that replaced another one: inode, and the step that did it.
    pub replacing: Vec<(u64, usize)>,
    /// Files whose content is unknown since a failed step on them.
    pub unknown: BTreeSet<u64>,
}

/// Makes a step that the simulated world can execute: an even length would make the runner use
/// blocking calls.
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
            Some(without_blocking(setup.enlarged(generator.next_op())))
        };
        Self::carry_out(setup, start, len, &mut next)
    }

    /// Steps that are given, on what `start` holds.
    pub fn of(setup: &Setup, start: &MemFs, ops: Vec<Op>) -> Self {
        let (len, mut ops) = (ops.len(), ops.into_iter());
        Self::carry_out(setup, start, len, &mut |_| ops.next().map(without_blocking))
    }

    fn carry_out(setup: &Setup, start: &MemFs, len: usize, next: &mut Next<'_>) -> Self {
        let mut oracle = Oracle::new(setup, start);
        let mut past: Option<(Op, Outcome)> = None;
        while oracle.script.ops.len() < len {
            let Some(op) = next(past.as_ref().map(|(op, outcome)| (op, outcome))) else { break };
            past = None;
            if !setup.content && touches_content(&op) || looks_only(&op) {
                continue;
            }
            let (op, flags) = setup.flagged(op);
            let (outcome, before) = oracle.apply(&op);
            past = Some((op.clone(), outcome.clone()));
            // Most refused steps are of little interest here.
            if outcome.answer.is_err() && !oracle.script.ops.len().is_multiple_of(4) {
                continue;
            }
            oracle.record(op, flags, outcome, &before);
        }
        oracle.into_script()
    }
}

/// The file system in memory while steps run on it, and the script that results.
pub struct Oracle {
    fs: MemFs,
    runner: Runner,
    content: bool,
    /// Whether files are large; then moments with the same content share it.
    shares: bool,
    cut: BTreeSet<u64>,
    /// The script so far.
    pub script: Script,
}

/// The open inodes before a step, and the inode that it syncs.
pub struct Before(Vec<Option<Ino>>, Option<u64>);

impl Oracle {
    /// On what `start` holds.
    pub fn new(setup: &Setup, start: &MemFs) -> Self {
        let fs = start.snapshot();
        let mut script = Script::default();
        script.moments.push(Moment::of(&fs));
        let (runner, cut) = (Runner::new(Times::Ignore, None), BTreeSet::new());
        let (content, shares) = (setup.content, setup.large);
        Self { fs, runner, content, shares, cut, script }
    }

    fn open(&self) -> Vec<Option<Ino>> {
        (0..SLOTS).map(|slot| self.runner.open_ino(slot)).collect()
    }

    /// Carries a step out.
    pub fn apply(&mut self, op: &Op) -> (Outcome, Before) {
        let synced = self.synced(op);
        let before = Before(self.open(), synced);
        (block_on(self.runner.apply(&self.fs, op)), before)
    }

    /// The inode that a step syncs.
    pub fn synced(&self, op: &Op) -> Option<u64> {
        match op {
            Op::Sync { slot, .. } => self.runner.open_ino(*slot).map(|ino| ino.0),
            _ => None,
        }
    }

    /// Adds the last step to the script.
    pub fn record(&mut self, op: Op, flags: IoFlags, outcome: Outcome, before: &Before) {
        let durable = flags.intersects(IoFlags::DSYNC | IoFlags::SYNC);
        let stable = match (&op, &outcome.answer) {
            (Op::Write { slot, .. }, Ok(Answer::Wrote(at, len))) if durable && *len > 0 => {
                self.runner.open_ino(*slot).map(|ino| (ino.0, *at..*at + *len))
            }
            _ => None,
        };
        self.push_moment();
        if self.content {
            self.script.note(&op, &mut self.cut);
            for (old, new) in before.0.iter().zip(self.open()) {
                let closed = old.filter(|old| new != Some(*old)).map(|old| old.0);
                let closed = closed.filter(|old| self.cut.remove(old));
                let at = self.script.moments.len() - 1;
                self.script.closed.extend(closed.map(|old| (old, at)));
            }
        }
        self.script.ops.push(op);
        self.script.flags.push(flags);
        self.script.synced.push(before.1);
        self.script.stable.push(stable);
        self.script.outcomes.push(outcome);
    }

    fn push_moment(&mut self) {
        let mut moment = Moment::of(&self.fs);
        if self.content {
            moment.unnamed = unnamed(&self.fs, &self.runner);
        }
        if let Some(last) = self.script.moments.last().filter(|_| self.shares) {
            moment.share(last);
        }
        self.script.moments.push(moment);
    }

    /// Records a step that the volume refused. It may have taken effect in part, so its result is a
    /// moment; the next moment is the one without it.
    pub fn refuse(&mut self, op: &Op) {
        let with_it = self.fs.snapshot();
        let mut runner = Runner::new(Times::Ignore, None);
        for (slot, ino, flags) in self.runner.open_files() {
            // An inode without a name is not in a snapshot that is opened anew.
            let _ = block_on(runner.open_in(&with_it, slot, ino, flags - OpenFlags::TRUNCATE));
        }
        block_on(runner.apply(&with_it, op));
        self.script.moments.push(Moment::of(&with_it));
        self.push_moment();
    }

    /// Takes over the volume's content of a file after a refused step on it, if each byte is as
    /// before the step or as after it. `None`: the volume cannot read the file, and its content is
    /// unknown from now on.
    ///
    /// # Errors
    /// What is wrong.
    pub fn settle(&mut self, ino: Ino, found: Option<&[u8]>) -> std::result::Result<(), String> {
        let Some(found) = found else {
            self.script.unknown.insert(ino.0);
            return Ok(());
        };
        let [.., new, old] = &self.script.moments[..] else { return Ok(()) };
        let of = |moment: &Moment| moment.files().inodes.get(&ino.0).cloned();
        let (Some(old), new) = (of(old), of(new)) else { return Ok(()) };
        if found == &old[..] || self.script.unknown.contains(&ino.0) {
            return Ok(());
        }
        // The result of the step on a file without a name is not known.
        let is_unnamed = new.is_none();
        if is_unnamed {
            self.script.unknown.insert(ino.0);
        }
        let new = new.unwrap_or_else(|| old.clone());
        let wrong = (0..found.len())
            .find(|n| old.get(*n) != Some(&found[*n]) && new.get(*n) != Some(&found[*n]));
        let sizes = [old.len(), new.len()];
        if !is_unnamed && (wrong.is_some() || !sizes.contains(&found.len())) {
            return Err(format!(
                "a step was refused, and #{} has {} bytes then (before {}, with it {}); other at {wrong:?}",
                ino.0,
                found.len(),
                old.len(),
                new.len()
            ));
        }
        let set = SetAttr { privileges: Privileges::Keep, ..SetAttr::size(0) };
        let put = || {
            block_on(self.fs.setattr(ino, &set))?;
            let file = block_on(self.fs.open(ino, OpenFlags::WRITE))?;
            file.write_slice(0, found, IoFlags::empty(), Privileges::Keep)
        };
        if let Err(error) = put() {
            return Err(format!("the oracle: {error}"));
        }
        self.push_moment();
        Ok(())
    }

    /// Whether the content of a file is unknown.
    pub fn is_unknown(&self, ino: Ino) -> bool {
        self.script.unknown.contains(&ino.0)
    }

    /// Whether there is such a file.
    pub fn has_unknown(&self) -> bool {
        !self.script.unknown.is_empty()
    }

    /// The inode whose content a step changes.
    pub fn written(&self, op: &Op) -> Option<Ino> {
        written(&self.fs, &self.runner, op)
    }

    /// The script of the steps that were carried out.
    pub fn into_script(mut self) -> Script {
        self.runner.close_all();
        self.script
    }
}

/// The inode whose content a step changes, on a file system that answers at once.
fn written(fs: &MemFs, runner: &Runner, op: &Op) -> Option<Ino> {
    match op {
        Op::Write { slot, .. }
        | Op::Fallocate { slot, .. }
        | Op::Copy { to: slot, .. }
        | Op::Setattr { of: Target::Slot(slot), .. } => runner.open_ino(*slot),
        Op::Setattr { of: Target::Path(path), .. }
        | Op::Open { path, .. }
        | Op::Create { path, .. } => {
            let attr = block_on(find(fs, path)).ok();
            attr.filter(|attr| attr.kind == FileKind::File).map(|attr| attr.ino)
        }
        _ => None,
    }
}

/// Content of open files without a name, which may get one.
fn unnamed(fs: &MemFs, runner: &Runner) -> BTreeMap<u64, Arc<Vec<u8>>> {
    let open = (0..SLOTS).filter_map(|slot| runner.open_ino(slot));
    let mut all = BTreeMap::new();
    for ino in open {
        let attr = block_on(fs.getattr(ino)).expect("the oracle");
        if attr.nlink == 0 && attr.kind == FileKind::File {
            let content = block_on(read_file(fs, ino)).expect("the oracle");
            all.insert(ino.0, Arc::new(content));
        }
    }
    all
}

impl Script {
    /// Notes truncations and replacements by the last step, for which the crash contract has rules.
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
                bytes.extend_from_slice(forebay_testkit::fs_check::op::name(*part));
            }
            bytes
        };
        let (from, to) = (path(from), path(to));
        let source = old.files().paths.get(&from).map(|(ino, _)| *ino);
        let moved = new.files().paths.get(&to).map(|(ino, _)| *ino);
        let there = old.files().paths.contains_key(&to);
        if let Some(ino) = source.filter(|ino| there && moved == Some(*ino)) {
            // After an exchange the replaced file has the other name.
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
