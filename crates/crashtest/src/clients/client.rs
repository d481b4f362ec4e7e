//! One client: carries its steps out, and writes down what it did and what it saw.
//!
//! No locks across a wait: the log's is taken before and after an operation.

use super::drop::Dropping;
use super::file::Opened;
use super::history::{Change, Kind, NEVER, Span, ZEROS, fill};
use super::log::{Changed, Log, LostBlocks, Synced, lost_blocks, of_checkpoint};
use super::names::{Answer, How, NameAct};
use super::plan::{Act, Drop, Step};
use super::weather::Weather;
use crate::run::{count_flags, is_nearly_full};
use crate::workload::{At, Bounds};
use forebay_base::buf::AlignedBuf;
use forebay_base::sim_world::SimWorld;
use forebay_base::world::World;
use forebay_base::{Error, ErrorKind, IoFlags, Result};
use forebay_lfs::Volume;
use forebay_vfs::{FileKind, FileSystem, Ino, Name, NewInode, OpenFlags, RenameFlags};
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

/// For reading and writing.
pub const BOTH: OpenFlags = OpenFlags::READ.union(OpenFlags::WRITE);
const LETTERS: [&[u8]; 3] = [b"a", b"b", b"c"];
/// The second directory.
pub const DIRECTORY: &[u8] = b"d";

/// What a client works on.
#[derive(Clone)]
pub struct Site {
    /// The world.
    pub world: Arc<SimWorld>,
    /// What is known.
    pub log: Arc<Log>,
    /// The volume; none for a raw image.
    pub volume: Option<Volume>,
    /// Inodes of the directories.
    pub dirs: [Ino; 2],
    /// Unit in which content is old or new for readers, bytes.
    pub block: u64,
    /// Bounds of the memory of the volume.
    pub bounds: Bounds,
    /// Faults and decay of the disk during the run.
    pub weather: Weather,
}

impl Site {
    /// The blocks that the volume lists as lost.
    fn lost_blocks(&self) -> LostBlocks {
        lost_blocks(self.volume.as_ref(), self.block)
    }
}

/// One client.
pub struct Client {
    /// What it works on.
    pub site: Site,
    /// What it opened last.
    pub opened: Option<Opened>,
}

/// The step that an operation belongs to.
#[derive(Clone, Copy)]
struct Of {
    step: usize,
    dropped: Option<Drop>,
    /// The file that it reads.
    reads: Option<u64>,
    /// The operation may find the volume full.
    may_be_full: bool,
}

fn name(at: At) -> Name<'static> {
    Name::new(LETTERS[usize::from(at.1)]).expect("a letter")
}

/// The path of a name, as the tree of a volume has it.
pub fn path(at: At) -> Vec<u8> {
    let mut path = Vec::new();
    if at.0 == 1 {
        path.push(b'/');
        path.extend_from_slice(DIRECTORY);
    }
    path.push(b'/');
    path.extend_from_slice(LETTERS[usize::from(at.1)]);
    path
}

/// All names that clients use.
pub fn all_names() -> impl Iterator<Item = At> {
    (0..2).flat_map(|dir| (0..LETTERS.len() as u8).map(move |letter| (dir, letter)))
}

/// A refusal that is an answer, and no failure.
fn is_answer(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::Exists | ErrorKind::NotFound | ErrorKind::Stale)
}

impl Client {
    /// Carries out its steps, until a violation is found. Returns the inode of the file that it
    /// opened last.
    pub async fn work(mut self, steps: Vec<(usize, Step)>) -> Option<u64> {
        if let Some(opened) = &self.opened {
            self.site.log.look(|past| past.opens(opened.ino()));
        }
        for (number, step) in steps {
            if self.site.log.is_wrong() {
                break;
            }
            self.site.weather.before_step(number);
            let may_be_full = !matches!(step.act, Act::Read(..) | Act::Sync(_) | Act::SyncFs);
            let of = Of { step: number, dropped: step.dropped, reads: None, may_be_full };
            self.carry_out(of, step.act).await;
            self.check_memory(number);
            let (opened, log) = (self.opened.as_ref(), &self.site.log);
            self.site.weather.after_step(number, opened, log).await;
        }
        let last = self.opened.as_ref().map(Opened::ino);
        self.hold(None);
        last
    }

    /// Closes the file that it has open, and has this one open from now on.
    fn hold(&mut self, opened: Option<Opened>) {
        let new = opened.as_ref().map(Opened::ino);
        let old = std::mem::replace(&mut self.opened, opened);
        let lost = self.site.lost_blocks();
        self.site.log.look(|past| {
            new.into_iter().for_each(|ino| past.opens(ino));
            old.iter().for_each(|old| past.closes(old.ino()));
            past.note_lost(lost);
        });
    }

    fn check_memory(&self, step: usize) {
        let Some(volume) = &self.site.volume else { return };
        let checked = self.site.bounds.check_memory(volume);
        self.site.log.look(|past| match checked {
            Ok(bytes) => past.most_memory = past.most_memory.max(bytes),
            Err(what) => past.note_wrong(format!("step {step}: {what}")),
        });
    }

    async fn carry_out(&mut self, of: Of, act: Act) {
        let text = format!("{act:?}");
        match act {
            Act::Open(at) => self.open(of, text, at).await,
            Act::Create(at, exclusive) => self.create(of, text, (at, exclusive)).await,
            Act::Link(at) => self.link(of, text, at).await,
            Act::Unlink(at) => {
                let Some(volume) = self.site.volume.clone() else { return };
                let dir = self.dir(at);
                let unlink = async { volume.unlink(dir, name(at)).await.map(|()| 0) };
                self.names(of, text, NameAct::Unlink(at), unlink).await;
            }
            Act::Rename(from, to, how) => self.rename(of, text, (from, to, how)).await,
            Act::Write(at, len, flags) => self.write(of, text, (at, len, flags)).await,
            Act::Append(len, flags) => self.write(of, text, (NEVER, len, flags)).await,
            Act::Truncate(to) => self.truncate(of, text, to).await,
            Act::Zero(at, len, punch) => self.zero(of, text, (at, len, punch)).await,
            Act::Read(at, len, flags) => self.read(of, text, (at, len, flags)).await,
            Act::Sync(data_only) => self.sync(of, text, Some(data_only)).await,
            Act::SyncFs => self.sync(of, text, None).await,
            Act::Checkpoint => {
                let Some(volume) = self.site.volume.clone() else { return };
                let work = async { volume.checkpoint().await.map_err(of_checkpoint) };
                self.operation(of, text, |_| Changed::Nothing, work).await;
            }
            Act::Pause(nanos) => self.site.world.sleep(Duration::from_nanos(nanos)).await,
        }
    }

    fn dir(&self, at: At) -> Ino {
        self.site.dirs[usize::from(at.0)]
    }

    /// Carries out one operation. Returns its result (`None`: it was dropped), its change, and the
    /// time of its begin.
    async fn operation<T>(
        &self,
        of: Of,
        text: String,
        change: impl FnOnce(&mut super::log::Past) -> Changed,
        work: impl Future<Output = Result<T>> + Send,
    ) -> (Option<Result<T>>, Changed, u64) {
        let log = &self.site.log;
        let lost = self.site.lost_blocks();
        let (begin, changed) = log.begin(of.step, text.clone(), |past| {
            past.note_lost(lost);
            change(past)
        });
        let done = Dropping::new(work, of.dropped).await;
        let settled = matches!(done, Some(Ok(_)));
        log.end(of.step, changed, settled, |past| match &done {
            Some(Ok(_)) => past.happened(changed),
            Some(Err(error)) if error.kind() == ErrorKind::NoSpace && of.may_be_full => {}
            Some(Err(error)) => {
                let ino = match changed {
                    Changed::Content(ino, _) => Some(ino),
                    _ => of.reads,
                };
                let what = || format!("step {}, {text}: {error}", of.step);
                past.note_failed(error.kind(), ino, what);
            }
            None => past.dropped += 1,
        });
        if let Some(Err(error)) = &done
            && error.kind() == ErrorKind::NoSpace
            && of.may_be_full
        {
            self.judge_full(of, &format!("{text}: {error}")).await;
        }
        (done, changed, begin)
    }

    /// Carries out an operation on names. Returns the inode of the answer.
    async fn names(
        &self,
        of: Of,
        text: String,
        act: NameAct,
        work: impl Future<Output = Result<u64>> + Send,
    ) -> Option<u64> {
        let log = &self.site.log;
        let lost = self.site.lost_blocks();
        let (_, changed) = log.begin(of.step, text.clone(), |past| {
            past.note_lost(lost);
            past.name(act)
        });
        let done = Dropping::new(work, of.dropped).await;
        let answer: Option<Answer> =
            done.as_ref().map(|done| done.as_ref().map(|ino| *ino).map_err(Error::kind));
        log.end(
            of.step,
            changed,
            answer.is_some_and(|answer| answer.is_ok()),
            |past| match answer {
                // The operation may have taken effect or not.
                Some(Err(ErrorKind::NoSpace)) => {}
                Some(Err(kind)) if !is_answer(kind) => {
                    past.note_failed(kind, None, || format!("step {}, {text}: {kind:?}", of.step));
                }
                Some(answer) => {
                    // The inode lost its last name meanwhile.
                    let gone =
                        |kind| if kind == ErrorKind::Stale { ErrorKind::NotFound } else { kind };
                    past.answered(changed, answer.map_err(gone));
                }
                None => past.dropped += 1,
            },
        );
        if answer == Some(Err(ErrorKind::NoSpace)) {
            self.judge_full(of, &text).await;
        }
        answer.and_then(|answer| answer.ok())
    }

    /// Judges an operation that found no space, by the figures of the volume.
    async fn judge_full(&self, of: Of, text: &str) {
        let is_full = match &self.site.volume {
            Some(volume) => is_nearly_full(volume).await,
            None => false,
        };
        let what = || format!("step {}, {text}: no space, and a quarter is free", of.step);
        self.site.log.look(|past| past.note_full(is_full, what));
    }

    async fn open(&mut self, of: Of, text: String, at: At) {
        let Some(volume) = self.site.volume.clone() else { return };
        let dir = self.dir(at);
        let look_up = async { Ok(volume.lookup(dir, name(at)).await?.ino.0) };
        let Some(ino) = self.names(of, text, NameAct::Lookup(at), look_up).await else { return };
        match volume.open(Ino(ino), BOTH).await {
            Ok(file) => self.hold(Some(Opened::File(volume, file))),
            // The file may have lost its last name meanwhile.
            Err(error) if is_answer(error.kind()) => {}
            Err(error) => {
                let what = || format!("step {}, opening #{ino}: {error}", of.step);
                self.site.log.end(of.step, Changed::Nothing, true, |past| {
                    past.note_failed(error.kind(), None, what);
                });
            }
        }
    }

    async fn create(&mut self, of: Of, text: String, (at, exclusive): (At, bool)) {
        let Some(volume) = self.site.volume.clone() else { return };
        let (dir, mut file) = (self.dir(at), None);
        let flags = if exclusive { BOTH | OpenFlags::EXCLUSIVE } else { BOTH };
        let create = async {
            let new = NewInode::of(FileKind::File, 0o644);
            let (attr, made) = volume.create(dir, name(at), &new, flags).await?;
            file = Some(made);
            Ok(attr.ino.0)
        };
        self.names(of, text, NameAct::Create(at, exclusive), create).await;
        if let Some(file) = file {
            self.hold(Some(Opened::File(volume, file)));
        }
    }

    async fn link(&self, of: Of, text: String, at: At) {
        let (Some(volume), Some(opened)) = (&self.site.volume, &self.opened) else { return };
        let (dir, ino) = (self.dir(at), opened.ino());
        let link = async { volume.link(Ino(ino), dir, name(at)).await.map(|_| 0) };
        self.names(of, text, NameAct::Link(ino, at), link).await;
    }

    async fn rename(&self, of: Of, text: String, (from, to, how): (At, At, How)) {
        let Some(volume) = &self.site.volume else { return };
        let flags = match how {
            How::Replace => RenameFlags::empty(),
            How::New => RenameFlags::NOREPLACE,
            How::Exchange => RenameFlags::EXCHANGE,
        };
        let (dir, new_dir) = (self.dir(from), self.dir(to));
        let rename =
            async { volume.rename(dir, name(from), new_dir, name(to), flags).await.map(|()| 0) };
        self.names(of, text, NameAct::Rename(from, to, how), rename).await;
    }

    /// Writes; at `NEVER`: appends.
    async fn write(&self, of: Of, text: String, (at, len, flags): (u64, u64, IoFlags)) {
        let Some(opened) = &self.opened else { return };
        let (id, ino, append) = (of.step as u8 + 1, opened.ino(), at == NEVER);
        let mut buf = AlignedBuf::new(len as usize);
        let (kind, range, at, flags) = match append {
            true => {
                buf.fill(id);
                (Kind::Append, 0..NEVER, 0, flags | IoFlags::APPEND)
            }
            false => {
                fill(id, at, &mut buf);
                (Kind::Write, at..at + len, at, flags)
            }
        };
        let durable = flags.contains(IoFlags::DSYNC);
        let is_direct = flags.contains(IoFlags::DIRECT);
        let change = Change { len, is_direct, ..Change::begun(id, kind, range, 0) };
        let text = format!("{text} of #{ino}");
        let begin = |past: &mut super::log::Past| past.change(ino, change);
        let (done, changed, _) =
            self.operation(of, text, begin, opened.write(at, buf, flags)).await;
        let Some(Ok(range)) = done else { return };
        self.site.log.look(|past| {
            count_flags(&mut past.flagged, flags);
            let Some(change) = past.changed(changed) else { return };
            (change.range, change.durable) = (range, durable);
            let Changed::Content(ino, n) = changed else { return };
            let file = past.files.get(&ino);
            if let Some(Err(what)) = append.then(|| file.map_or(Ok(()), |f| f.check_append(n))) {
                past.note_wrong(format!("step {}: {what}", of.step));
            }
        });
    }

    async fn truncate(&self, of: Of, text: String, to: u64) {
        let Some(opened) = &self.opened else { return };
        let ino = opened.ino();
        let change = Change::begun(ZEROS, Kind::Truncate, to..NEVER, 0);
        let begin = |past: &mut super::log::Past| past.change(ino, change);
        self.operation(of, format!("{text} of #{ino}"), begin, opened.truncate(to)).await;
    }

    async fn zero(&self, of: Of, text: String, (at, len, punch): (u64, u64, bool)) {
        let Some(opened) = &self.opened else { return };
        let ino = opened.ino();
        let change = Change::begun(ZEROS, Kind::Zero, at..at + len, 0);
        let begin = |past: &mut super::log::Past| past.change(ino, change);
        let text = format!("{text} of #{ino}");
        self.operation(of, text, begin, opened.zero(at, len, punch)).await;
    }

    async fn read(&self, of: Of, text: String, (at, len, flags): (u64, u64, IoFlags)) {
        let Some(opened) = &self.opened else { return };
        let (ino, block) = (opened.ino(), self.site.block);
        let text = format!("{text} of #{ino}");
        let none = |_: &mut super::log::Past| Changed::Nothing;
        let read = opened.read(at, len, flags);
        let of = Of { reads: Some(ino), ..of };
        let (done, _, begin) = self.operation(of, text, none, read).await;
        let Some(Ok(bytes)) = done else { return };
        self.site.log.look(|past| {
            let (now, span) = (past.clock, Span { from: begin, to: past.clock, crashed: false });
            let file = past.files.entry(ino).or_default();
            let wrong = file.check_read((at, len), &bytes, block, span).err();
            file.note_read(at, &bytes, block, now);
            if let Some(what) = wrong {
                past.note_wrong(format!("step {}, a read of #{ino}: {what}", of.step));
            }
        });
    }

    /// Syncs the file, or everything.
    async fn sync(&self, of: Of, text: String, file: Option<bool>) {
        let none = |_: &mut super::log::Past| Changed::Nothing;
        let (done, synced, begin) = match (file, &self.opened, &self.site.volume) {
            (Some(data_only), Some(opened), _) => {
                let work = opened.sync(data_only);
                let (done, _, begin) =
                    self.operation(of, format!("{text} of #{}", opened.ino()), none, work).await;
                (done, Some(opened.ino()), begin)
            }
            (None, _, Some(volume)) => {
                let work = async { volume.syncfs().await };
                let (done, _, begin) = self.operation(of, text, none, work).await;
                (done, None, begin)
            }
            _ => return,
        };
        if matches!(done, Some(Ok(()))) {
            let lost = self.site.lost_blocks();
            self.site.log.look(|past| {
                let end = past.clock;
                past.syncs.push(Synced { of: synced, begin, end, lost });
            });
        }
    }
}
