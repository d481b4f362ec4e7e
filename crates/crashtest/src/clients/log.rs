//! The record of the clients of a run: their histories, and one clock.
//!
//! Invariants: log.U1 a moment of the disk carries the time of the last begin or end before it.
//! log.U2 lost blocks may be a gap from the time on at which their file had no opener any more, and
//! no earlier.
//!
//! Lock: one, never across a wait.

use super::history::{Change, FileHistory, NEVER};
use super::names::{Answer, NameAct, NameOp};
use forebay_base::sim_world::SimWorld;
use forebay_base::sync::Mutex;
use forebay_base::{Error, ErrorKind};
use forebay_lfs::Volume;
use forebay_sim::{FaultCounts, SimDisk};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Steps of the world from the begin of an operation to its end, at most: some ten times the most
/// of 90,000 states.
pub const OP_STEPS_MAX: u64 = 4_000;

/// Blocks that the disk has lost, as the volume lists them: inodes and numbers.
pub type LostBlocks = BTreeSet<(u64, u64)>;

/// A sync that was acknowledged: of one inode or of all, and when.
#[derive(Debug, Clone)]
pub struct Synced {
    /// `None`: of everything.
    pub of: Option<u64>,
    /// Begin.
    pub begin: u64,
    /// End.
    pub end: u64,
    /// What it does not cover: content that was lost, and whose openers had closed the file.
    pub lost: LostBlocks,
}

/// The blocks that a volume lists as lost.
pub fn lost_blocks(volume: Option<&Volume>, block: u64) -> LostBlocks {
    let files = volume.map(|volume| volume.lost_content(usize::MAX).files).unwrap_or_default();
    let blocks = files.iter().flat_map(|file| {
        let runs = file.ranges.iter().flat_map(|(at, len)| at / block..(at + len) / block);
        runs.map(|number| (file.ino.0, number))
    });
    blocks.collect()
}

/// Blocks that may be a gap from a time on: the disk has lost them, and since then no client has
/// the file open. So records may have a size that covers them.
#[derive(Debug, Clone)]
struct Gaps {
    since: u64,
    blocks: LostBlocks,
}

/// What an operation changes.
#[derive(Debug, Clone, Copy)]
pub enum Changed {
    /// A file: its inode, and the number of the change.
    Content(u64, usize),
    /// Names: the number of the operation.
    Names(usize),
    /// Nothing.
    Nothing,
}

/// Everything that the clients of a run have done and seen.
#[derive(Default)]
pub struct Past {
    /// The time.
    pub clock: u64,
    /// By inode.
    pub files: BTreeMap<u64, FileHistory>,
    /// In the order of their begins.
    pub names: Vec<NameOp>,
    /// Acknowledged syncs.
    pub syncs: Vec<Synced>,
    /// Operations that were dropped while they waited.
    pub dropped: u64,
    /// Writes that worked, by their flags.
    pub flagged: [u64; 4],
    /// Blocks that have decayed: inode, number, and when. Until they are written anew each read of
    /// them fails.
    pub decayed: Vec<(u64, u64, u64)>,
    /// Operations that failed because the disk fails, or because a block had decayed.
    pub failed: u64,
    /// Operations that found no space.
    pub full: u64,
    /// The host has refused a request of this run for lack of space.
    pub has_full_host: bool,
    /// The disk has failed a request of this run: operations may be refused. A full host and decay
    /// do not count: they lose nothing that makes a volume read-only.
    pub has_failed: bool,
    /// The disk fails only reads: nothing can be lost, so no volume turns read-only.
    pub is_lossless: bool,
    /// When the volume was open: until then nothing was served.
    pub opened: Option<u64>,
    /// Most memory of the volume after an operation, without frames of its cache, bytes.
    pub most_memory: u64,
    /// By inode: how many clients have it open.
    openers: BTreeMap<u64, usize>,
    gaps: Vec<Gaps>,
    running: BTreeMap<usize, (String, u64)>,
    wrong: Option<String>,
}

/// The record that the clients of one run share.
pub struct Log {
    past: Mutex<Past>,
    disk: SimDisk,
    /// Faults of the disk before the run.
    before: FaultCounts,
}

/// The error of a checkpoint, with `Corrupt` turned into `ReadOnly`. A checkpoint that needs a node
/// which the disk has lost fails with `Corrupt` and turns the volume read-only
/// (`docs/reference/failure-protocol.md`). It is the first refusal of a volume that answers
/// `ReadOnly` from then on, so the same faults explain both.
pub fn of_checkpoint(error: Error) -> Error {
    match error.kind() {
        ErrorKind::Corrupt => Error::new(ErrorKind::ReadOnly, "checkpoint", error.to_string()),
        _ => error,
    }
}

impl Log {
    /// The record of a run on this disk that begins with these files and these decayed blocks.
    pub fn new(disk: &SimDisk, files: BTreeMap<u64, FileHistory>, decayed: &[(u64, u64)]) -> Self {
        let decayed = decayed.iter().map(|(ino, block)| (*ino, *block, 0)).collect();
        // The files come first.
        let past = Past { files, decayed, clock: 1, ..Past::default() };
        let (disk, before) = (disk.clone(), disk.fault_counts());
        let log = Self { past: Mutex::new(past), disk, before };
        log.tick(|_| ());
        log
    }

    /// The next instant, and what happens at it (U1).
    fn tick<T>(&self, happens: impl FnOnce(&mut Past) -> T) -> T {
        let mut past = self.past.lock();
        past.clock += 1;
        let now = past.clock;
        let done = happens(&mut past);
        drop(past);
        self.disk.tag_cuts(now);
        done
    }

    /// The world of the run.
    pub fn world(&self) -> Arc<SimWorld> {
        self.disk.world().clone()
    }

    /// The volume is open.
    pub fn note_opened(&self) {
        self.tick(|past| past.opened = Some(past.clock));
    }

    /// A block of a file has decayed.
    pub fn note_decayed(&self, ino: u64, block: u64) {
        self.tick(|past| past.decayed.push((ino, block, past.clock)));
    }

    /// Whether the disk has failed a request since the run began.
    fn has_failed(&self) -> bool {
        let FaultCounts { no_space, rotten, .. } = self.before;
        FaultCounts { no_space, rotten, ..self.disk.fault_counts() } != self.before
    }

    /// The operation of a step begins.
    pub fn begin(
        &self,
        step: usize,
        what: String,
        change: impl FnOnce(&mut Past) -> Changed,
    ) -> (u64, Changed) {
        let steps = self.disk.world().steps();
        self.tick(|past| {
            past.running.insert(step, (what, steps));
            (past.clock, change(past))
        })
    }

    /// The operation of a step ends; `end` records its result. If it is not settled, it may have
    /// taken effect, or may do so until the end of a change that begins later.
    pub fn end(&self, step: usize, changed: Changed, settled: bool, end: impl FnOnce(&mut Past)) {
        let steps = self.disk.world().steps();
        let has_failed = self.has_failed();
        let has_full_host = self.disk.fault_counts().no_space != self.before.no_space;
        self.tick(|past| {
            (past.has_failed, past.has_full_host) = (has_failed, has_full_host);
            if let Some((what, since)) = past.running.remove(&step)
                && steps - since > OP_STEPS_MAX
            {
                let took = steps - since;
                past.note_wrong(format!("{what} took {took} steps, at most {OP_STEPS_MAX}"));
            }
            if !settled {
                past.close(changed, past.clock);
            }
            end(past);
        });
    }

    /// Whether something is wrong.
    pub fn is_wrong(&self) -> bool {
        self.past.lock().wrong.is_some()
    }

    /// What was wrong first.
    pub fn take_wrong(&self) -> Option<String> {
        self.past.lock().wrong.take()
    }

    /// The operations that have not ended.
    pub fn running(&self) -> String {
        let past = self.past.lock();
        let lines = past.running.iter().map(|(step, (what, _))| format!("step {step}: {what}"));
        lines.collect::<Vec<_>>().join("; ")
    }

    /// Reads the record so far.
    pub fn look<T>(&self, look: impl FnOnce(&mut Past) -> T) -> T {
        look(&mut self.past.lock())
    }

    /// All of it, at the end.
    pub fn take(&self) -> Past {
        std::mem::take(&mut self.past.lock())
    }
}

impl Past {
    /// Keeps the first violation.
    pub fn note_wrong(&mut self, what: String) {
        self.wrong.get_or_insert(what);
    }

    /// Records a failed operation, of this file if it is one of content. That is a violation,
    /// unless the host is full, its file has decayed, or the disk has failed a request: operations
    /// that another client drops are no excuse.
    pub fn note_failed(&mut self, kind: ErrorKind, of: Option<u64>, what: impl FnOnce() -> String) {
        match kind {
            ErrorKind::NoSpace if self.has_full_host => self.full += 1,
            ErrorKind::Io if self.has_failed => self.failed += 1,
            // A write to a part of a block reads the block first.
            ErrorKind::Corrupt if of.is_some_and(|ino| self.has_decayed(ino)) => self.failed += 1,
            // A failed write or flush may have lost a direct write. A read of the block finds old
            // content, which does not match its checksum.
            ErrorKind::Corrupt | ErrorKind::ReadOnly | ErrorKind::Shutdown
                if self.has_failed && !self.is_lossless =>
            {
                self.failed += 1;
            }
            _ => self.note_wrong(what()),
        }
    }

    /// Records that a change, or a checkpoint, found no space. That is right while the volume is
    /// nearly full by its own figures.
    pub fn note_full(&mut self, is_nearly_full: bool, what: impl FnOnce() -> String) {
        match is_nearly_full || self.has_full_host {
            true => self.full += 1,
            false => self.note_wrong(what()),
        }
    }

    /// Whether a block of a file has decayed.
    pub fn has_decayed(&self, ino: u64) -> bool {
        self.decayed.iter().any(|(of, ..)| *of == ino)
    }

    /// Whether a block of a file had decayed at a time.
    pub fn had_decayed(&self, (ino, block): (u64, u64), time: u64) -> bool {
        self.decayed.iter().any(|(of, n, since)| (*of, *n) == (ino, block) && *since <= time)
    }

    /// Whether the disk may have lost a direct write of this file: the disk fails, and the write
    /// had not succeeded by `time`, or no later sync has. `synced`: begin of the last successful
    /// sync.
    pub fn has_lost_direct(&self, ino: u64, (synced, time): (u64, u64)) -> bool {
        let changes = self.files.get(&ino).into_iter().flat_map(|file| &file.changes);
        let mut direct = changes.filter(|change| change.is_direct && change.begin <= time);
        self.has_failed && direct.any(|change| change.end == NEVER || change.end > synced)
    }

    /// A client opens a file.
    pub fn opens(&mut self, ino: u64) {
        *self.openers.entry(ino).or_default() += 1;
    }

    /// A client closes a file.
    pub fn closes(&mut self, ino: u64) {
        let count = self.openers.get_mut(&ino).expect("it has opened the file");
        *count -= 1;
        if *count == 0 {
            self.openers.remove(&ino);
        }
    }

    /// Notes what the disk has lost: it may be a gap from now on where the file has no opener (U2).
    pub fn note_lost(&mut self, mut lost: LostBlocks) {
        lost.retain(|(ino, _)| !self.openers.contains_key(ino));
        if !lost.is_empty() {
            self.gaps.push(Gaps { since: self.clock, blocks: lost });
        }
    }

    /// The blocks of a file that may be a gap after a crash at `time` (U2). `synced`: begin of the
    /// last successful sync of all of the file, which left none.
    pub fn gaps_of(&self, ino: u64, (synced, time): (u64, u64)) -> BTreeSet<u64> {
        let gaps = self.gaps.iter().filter(|gaps| synced < gaps.since && gaps.since <= time);
        let blocks = gaps.flat_map(|gaps| gaps.blocks.range((ino, 0)..=(ino, u64::MAX)));
        blocks.map(|(_, number)| *number).collect()
    }

    /// A change of a file begins.
    pub fn change(&mut self, ino: u64, change: Change) -> Changed {
        let changes = &mut self.files.entry(ino).or_default().changes;
        changes.push(Change { begin: self.clock, ..change });
        Changed::Content(ino, changes.len() - 1)
    }

    /// An operation on names begins.
    pub fn name(&mut self, act: NameAct) -> Changed {
        self.names.push(NameOp { act, begin: self.clock, latest: NEVER, answer: None });
        Changed::Names(self.names.len() - 1)
    }

    /// A change has happened.
    pub fn happened(&mut self, changed: Changed) {
        let now = self.clock;
        if let Some(change) = self.changed(changed) {
            (change.end, change.latest) = (now, now);
        }
    }

    /// An operation on names has its answer.
    pub fn answered(&mut self, changed: Changed, answer: Answer) {
        let now = self.clock;
        if let Changed::Names(n) = changed {
            (self.names[n].answer, self.names[n].latest) = (Some(answer), now);
        }
    }

    /// The change, if it is one of content.
    pub fn changed(&mut self, changed: Changed) -> Option<&mut Change> {
        match changed {
            Changed::Content(ino, n) => self.files.get_mut(&ino)?.changes.get_mut(n),
            _ => None,
        }
    }

    /// Sets the time after which a dropped or failed operation takes no effect.
    pub fn close(&mut self, changed: Changed, now: u64) {
        match changed {
            Changed::Names(n) => self.names[n].latest = self.names[n].latest.min(now),
            _ => {
                if let Some(change) = self.changed(changed) {
                    change.latest = change.latest.min(now);
                }
            }
        }
    }
}
