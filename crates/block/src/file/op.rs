//! A request as io_uring sees it: the calls it makes, and the meaning of the answers.
//!
//! Invariants: O1 a request that io_uring cannot do at once, or answers unexpectedly, is carried
//! out again from the start by blocking calls on the pool; reads and writes may be repeated. O2 the
//! list of memory that the kernel got lives in the op, which lives until the kernel has answered.
//! O3 an op holds one bio at a time, and none between two.

use super::inner::Inner;
use super::pace::{self, Pace, READ_AHEAD_BYTES, WRITE_BACK_BYTES};
use super::xfer::{Next as Step, View, Xfer};
use crate::bio::{Bio, BioFlags, BioOp};
use crate::check::check_range;
use crate::engine::request::{Boxed, Call, Class, Next, Request};
use crate::engine::{Aio, Engine};
use crate::sys::IoVecs;
use forebay_base::{Error, Result};
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::AsRawFd;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, Weak};

/// Calls for one transfer after which blocking calls repeat it (O1).
const CALLS: u32 = 64;

enum Work {
    /// Not planned, or for blocking calls.
    Whole,
    Move(Xfer),
    Flush {
        resized: bool,
    },
    Fallocate {
        mode: i32,
        pos: u64,
        len: u64,
    },
}

/// A request inside the gate of its file, with its plan.
pub(crate) struct Op {
    // Declared before `inside`: the list must be dropped before the memory it names (O2).
    work: Work,
    calls: u32,
    result: Result<()>,
    /// Empty, with the memory of the list that `work` had last.
    spare: IoVecs,
    /// None in an op that waits to be used again.
    inside: Option<Inside>,
}

/// The bio of an op, and what the op holds while it runs.
struct Inside {
    bio: Bio,
    pass: Pass,
    /// Counts the op as a read in progress, if it is one.
    reading: Option<Reading>,
    /// The op's part of the write-back or read-ahead on its disk. Declared last: its drop submits
    /// other ops.
    share: Option<Share>,
}

/// Ops that are over, to be used again by all files of a disk.
#[derive(Default)]
pub(crate) struct Spares(Mutex<VecDeque<Box<Op>>>);

impl Spares {
    /// Ops kept for reuse.
    const KEEP: usize = 256;

    fn lock(&self) -> std::sync::MutexGuard<'_, VecDeque<Box<Op>>> {
        self.0.lock().unwrap_or_else(|p| p.into_inner())
    }

    fn put(&self, op: Box<Op>) {
        debug_assert!(op.inside.is_none(), "O3: a spare op is about nothing");
        let mut spares = self.lock();
        if spares.len() < Self::KEEP {
            spares.push_back(op);
        }
    }
}

/// A file, and the ops of its disk, which its requests use again.
pub(crate) struct QueuedFile {
    pub(crate) spares: Arc<Spares>,
    pub(crate) inner: Inner,
}

/// The right to be inside the gate of a file.
pub(crate) struct Pass(Arc<QueuedFile>, u64);

impl Pass {
    /// The caller has entered the gate.
    pub(crate) fn new(file: &Arc<QueuedFile>) -> Self {
        Self(file.clone(), file.inner.sync_failures.load(Ordering::Acquire))
    }

    /// How many syncs had failed when the request came.
    pub(crate) fn seen(&self) -> u64 {
        self.1
    }

    pub(crate) fn file(&self) -> &Inner {
        &self.0.inner
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        self.0.inner.gate.leave();
    }
}

impl Op {
    pub(crate) fn new(bio: Bio, pass: Pass) -> Box<Self> {
        let spare = pass.0.spares.lock().pop_back();
        let mut op = spare.unwrap_or_else(|| {
            let (work, spare) = (Work::Whole, IoVecs::default());
            Box::new(Self { work, calls: 0, result: Ok(()), spare, inside: None })
        });
        op.inside = Some(Inside { bio, pass, reading: None, share: None });
        op
    }

    fn inside(&self) -> &Inside {
        self.inside.as_ref().expect("O3: an op in use is about something")
    }

    pub(crate) fn bio(&self) -> &Bio {
        &self.inside().bio
    }

    fn inside_mut(&mut self) -> &mut Inside {
        self.inside.as_mut().expect("O3: an op in use is about something")
    }

    fn file(&self) -> &Inner {
        self.inside().pass.file()
    }

    /// Resets the work, and keeps the memory of its list. The kernel does not use that list any
    /// more.
    fn take_work(&mut self) -> Work {
        match std::mem::replace(&mut self.work, Work::Whole) {
            Work::Move(xfer) => {
                self.spare = xfer.iovs.emptied();
                Work::Whole
            }
            other => other,
        }
    }

    fn work(&mut self) -> Result<Option<Work>> {
        let Inside { bio, pass, .. } =
            self.inside.as_mut().expect("O3: an op in use is about something");
        let file = pass.file();
        let view = View::of(file);
        if bio.op != BioOp::Read && bio.op != BioOp::Write {
            check_range(bio.op, bio.offset, bio.len, &view.limits, view.size)?;
        }
        Ok(match bio.op {
            BioOp::Read | BioOp::Write => {
                let old = std::mem::take(&mut self.spare);
                // SAFETY: the op keeps the bio, which owns the memory, longer than the list (O2).
                let iovs = unsafe { IoVecs::of(&mut bio.data, old) };
                let range = (bio.offset, bio.len);
                let xfer = Xfer::plan(file, &view, bio.op, range, bio.flags, iovs)?;
                let simple = xfer.tail.is_none() && !xfer.edge && !xfer.is_over();
                simple.then_some(Work::Move(xfer))
            }
            BioOp::Flush => Some(Work::Flush { resized: file.take_resized() }),
            BioOp::Discard | BioOp::WriteZeroes if bio.flags.contains(BioFlags::FUA) => None,
            _ if view.at_edge(file, bio.offset, bio.len) => None,
            BioOp::Discard | BioOp::WriteZeroes => {
                let keep = bio.flags.contains(BioFlags::NO_UNMAP);
                file.fallocate_mode(bio.op == BioOp::Discard, keep).map(|mode| {
                    let (pos, len) = (file.offset + bio.offset, view.clip(bio.offset, bio.len));
                    Work::Fallocate { mode: mode.bits() as i32, pos, len }
                })
            }
        })
    }

    /// Starts over by blocking calls (O1). The kernel does not use the list any more.
    fn restart_blocking(&mut self) -> Next {
        if let Work::Flush { resized } = self.take_work() {
            self.file().set_resized(resized);
        }
        Next::Blocking
    }

    fn over(&mut self, result: Result<()>) -> Next {
        self.take_work();
        self.result = result;
        Next::Over
    }
}

/// State that the files of one disk share.
struct Disk {
    /// Paced by all reads.
    write_back: Pace<Box<Op>>,
    /// Paced by the reads that are no read-ahead themselves.
    read_ahead: Pace<Box<Op>>,
    spares: Arc<Spares>,
}

impl Disk {
    fn new() -> Self {
        let (write_back, read_ahead) = (Pace::new(WRITE_BACK_BYTES), Pace::new(READ_AHEAD_BYTES));
        Self { write_back, read_ahead, spares: Arc::default() }
    }

    fn pace(&self, class: Class) -> &Pace<Box<Op>> {
        if class == Class::Readahead { &self.read_ahead } else { &self.write_back }
    }
}

/// The disk of one file, and how to submit to it.
#[derive(Clone)]
pub(crate) struct DiskQueue {
    disk: Arc<Disk>,
    engine: Engine,
    aio: Aio,
}

impl DiskQueue {
    /// For a file on the disk with this number (`st_dev`, or `st_rdev` of a disk itself).
    pub(crate) fn new(disk: u64, engine: &Engine, aio: Aio) -> Self {
        static DISKS: Mutex<BTreeMap<u64, Weak<Disk>>> = Mutex::new(BTreeMap::new());
        let mut disks = DISKS.lock().unwrap_or_else(|p| p.into_inner());
        disks.retain(|_, known| known.strong_count() > 0);
        let known = disks.get(&disk).and_then(Weak::upgrade).unwrap_or_else(|| {
            let new = Arc::new(Disk::new());
            disks.insert(disk, Arc::downgrade(&new));
            new
        });
        Self { disk: known, engine: engine.clone(), aio }
    }

    /// Ops to be used again.
    pub(crate) fn spares(&self) -> Arc<Spares> {
        self.disk.spares.clone()
    }

    /// Counts a read that a caller waits for as in progress on the disk until the result is
    /// dropped.
    pub(crate) fn note(&self, op: BioOp) -> Option<Reading> {
        self.note_read(op, false)
    }

    fn note_read(&self, op: BioOp, is_ahead: bool) -> Option<Reading> {
        (op == BioOp::Read).then(|| {
            self.disk.write_back.begin_read();
            if !is_ahead {
                self.disk.read_ahead.begin_read();
            }
            Reading { disk: self.disk.clone(), is_ahead }
        })
    }

    /// Counts a request that this thread carries out itself.
    pub(crate) fn note_op(&self, op: &mut Op) {
        let is_ahead = class_of(op.bio()) == Class::Readahead;
        op.inside_mut().reading = self.note_read(op.bio().op, is_ahead);
    }

    /// The bytes of a bio that is paced: write-back, and reads that no caller waits for. `None` for
    /// any other bio.
    fn paced(bio: &Bio) -> Option<u64> {
        let is_paced = match bio.op {
            BioOp::Write => bio.flags.contains(BioFlags::BACKGROUND),
            BioOp::Read => class_of(bio) == Class::Readahead,
            BioOp::Flush | BioOp::Discard | BioOp::WriteZeroes => false,
        };
        (is_paced && bio.len > 0).then_some(bio.len)
    }

    /// Admits a request to the engine, or holds it back.
    pub(crate) fn admit(&self, mut op: Box<Op>) -> Option<Box<Op>> {
        self.note_op(&mut op);
        let Some(bytes) = Self::paced(op.bio()) else { return Some(op) };
        let (waited_for, class) = (op.bio().flags.contains(BioFlags::SYNC), class_of(op.bio()));
        op.inside_mut().share = Some(Share { disk_queue: self.clone(), class, bytes });
        // The bytes of a held request are not counted until `next` admits it.
        self.disk.pace(class).admit(bytes, waited_for, op, pace::now())
    }

    pub(crate) fn engine(&self) -> &Engine {
        &self.engine
    }

    pub(crate) fn aio(&self) -> Aio {
        self.aio
    }
}

/// A read in progress: it counts until it is dropped.
pub(crate) struct Reading {
    disk: Arc<Disk>,
    is_ahead: bool,
}

impl Drop for Reading {
    fn drop(&mut self) {
        let now = pace::now();
        self.disk.write_back.end_read(now);
        if !self.is_ahead {
            self.disk.read_ahead.end_read(now);
        }
    }
}

/// A request's part of the write-back or of the read-ahead in progress.
pub(crate) struct Share {
    disk_queue: DiskQueue,
    class: Class,
    bytes: u64,
}

impl Drop for Share {
    fn drop(&mut self) {
        let disk_queue = &self.disk_queue;
        let pace = disk_queue.disk.pace(self.class);
        if pace.over(self.bytes) {
            // A submitted request may end at once, and drop its share within this call. So one
            // draining thread submits all, without recursion.
            while let Some((_, op)) = pace.next(pace::now()) {
                // An op of another file on the same disk, perhaps with another engine.
                let DiskQueue { engine, aio, .. } = op
                    .inside()
                    .share
                    .as_ref()
                    .map_or(disk_queue, |share| &share.disk_queue)
                    .clone();
                engine.submit([op as Boxed], aio);
            }
        }
    }
}

/// How urgent a bio is. SYNC counts more than BACKGROUND.
fn class_of(bio: &Bio) -> Class {
    let waited_for = bio.flags.contains(BioFlags::SYNC);
    match bio.flags.contains(BioFlags::BACKGROUND) && !waited_for {
        false => Class::Sync,
        true if bio.op == BioOp::Read => Class::Readahead,
        true => Class::WriteBack,
    }
}

// SAFETY: the list of memory lives in `work`, the memory in `bio`, the descriptors in the file that
// `pass` holds. Only `plan`, or an answer of the kernel, replaces `work` (O2).
unsafe impl Request for Op {
    fn class(&self) -> Class {
        class_of(self.bio())
    }

    fn plan(&mut self) -> Next {
        match self.work() {
            Ok(Some(work)) => {
                self.work = work;
                Next::Call
            }
            Ok(None) => Next::Blocking,
            Err(e) => self.over(Err(e)),
        }
    }

    fn call(&self) -> Call {
        let file = self.file();
        let fd = |direct| file.fd(direct).as_raw_fd();
        match &self.work {
            Work::Move(xfer) => {
                let (window, _) = xfer.iovs.window();
                let (iovs, count) = (window.as_ptr(), window.len() as u32);
                let (fd, pos, rwf) = (fd(xfer.direct), xfer.pos, xfer.rwf);
                if xfer.write {
                    Call::Write { fd, iovs, count, pos, rwf }
                } else {
                    Call::Read { fd, iovs, count, pos }
                }
            }
            Work::Flush { resized } => Call::Sync { fd: fd(false), data_only: !resized },
            Work::Fallocate { mode, pos, len } => {
                Call::Fallocate { fd: fd(false), mode: *mode, pos: *pos, len: *len }
            }
            Work::Whole => unreachable!("O1: only what was planned is called"),
        }
    }

    fn answer(&mut self, outcome: io::Result<usize>) -> Next {
        self.calls += 1;
        let errno = outcome.as_ref().err().and_then(io::Error::raw_os_error);
        let again = matches!(errno, Some(libc::EAGAIN | libc::EINTR | libc::ECANCELED));
        let Some(Inside { pass, .. }) = &self.inside else {
            unreachable!("O3: an op in use is about something")
        };
        match &mut self.work {
            Work::Move(_) if again || self.calls >= CALLS => self.restart_blocking(),
            Work::Move(xfer) => match xfer.note(pass.file(), outcome) {
                Ok(Step::More) => Next::Call,
                Ok(Step::Done) => self.over(Ok(())),
                Err(e) => self.over(Err(e)),
            },
            Work::Flush { .. } if again => self.restart_blocking(),
            Work::Flush { resized } => {
                let (file, seen) = (pass.file(), pass.seen());
                let result = file.note_flush(seen, *resized, outcome.map(drop));
                self.over(result)
            }
            // The blocking path tries the other calls.
            Work::Fallocate { .. } if errno.is_some() => self.restart_blocking(),
            Work::Fallocate { .. } => self.over(Ok(())),
            Work::Whole => unreachable!("O1: only what was planned is answered"),
        }
    }

    fn run(&mut self) {
        self.restart_blocking();
        let Inside { bio, pass, .. } =
            self.inside.as_mut().expect("O3: an op in use is about something");
        self.result = pass.file().run(bio, pass.seen(), &mut self.spare);
    }

    fn fail(&mut self, error: Error) {
        self.restart_blocking();
        self.result = Err(error);
    }

    /// When `end_io` runs, the request has left the gate and released the file.
    fn end(mut self: Box<Self>) {
        self.take_work();
        self.calls = 0;
        let inside = self.inside.take().expect("O3: an op in use is about something");
        let Inside { bio, pass, reading, share } = inside;
        let result = std::mem::replace(&mut self.result, Ok(()));
        let result = result.map_err(|e| e.with_path(&pass.file().path));
        pass.0.spares.put(self);
        drop(pass);
        drop(reading);
        drop(share);
        bio.complete(result);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_base::buf::DataRef;

    #[test]
    fn disk_counts_as_read_until_read_ends() {
        let engine = Engine::new(Aio::Threads).unwrap();
        let disk_queue = DiskQueue::new(u64::MAX, &engine, Aio::Threads);
        let later = || pace::now() + (1 << 40);
        assert!(disk_queue.note(BioOp::Write).is_none());
        let Disk { write_back, read_ahead, .. } = &*disk_queue.disk;
        let ahead = disk_queue.note_read(BioOp::Read, true);
        assert!(write_back.is_read(later()) && !read_ahead.is_read(later()), "read-ahead");
        let reading = disk_queue.note(BioOp::Read);
        assert!(write_back.is_read(later()) && read_ahead.is_read(later()));
        drop((reading, ahead));
        for pace in [write_back, read_ahead] {
            assert!(pace.is_read(pace::now()) && !pace.is_read(later()));
        }
    }

    #[test]
    fn write_back_and_read_ahead_are_paced_waited_reads_not() {
        let paced = |op, flags, len| {
            let bio = Bio::new(op, 0, len, DataRef::None, Box::new(drop)).with_flags(flags);
            (DiskQueue::paced(&bio), class_of(&bio))
        };
        let (sync, back) = (BioFlags::SYNC, BioFlags::BACKGROUND);
        assert_eq!(paced(BioOp::Write, back, 4096), (Some(4096), Class::WriteBack));
        assert_eq!(paced(BioOp::Write, sync | back, 4096), (Some(4096), Class::Sync));
        assert_eq!(paced(BioOp::Read, back, 4096), (Some(4096), Class::Readahead));
        for (op, flags, len) in
            [(BioOp::Write, sync, 4096), (BioOp::Read, sync | back, 4096), (BioOp::Write, back, 0)]
        {
            assert_eq!(paced(op, flags, len).0, None, "{op:?} {flags:?}");
        }
    }

    /// The story: a stream's read-ahead of 2 MiB was at the disk at once, and each concurrent read
    /// of 4 KiB waited for it.
    #[test]
    fn read_ahead_during_waited_read_waits_for_earlier_one() {
        use crate::bio::Completion;
        use crate::{FileDevice, FileOptions};
        use forebay_base::buf::AlignedBuf;
        use std::sync::mpsc::channel;
        let path = std::env::temp_dir().join(format!("forebay-ahead-{}", std::process::id()));
        let (engine, len) = (Engine::new(Aio::Threads).unwrap(), READ_AHEAD_BYTES);
        let create_size = Some(8 * len);
        let options = FileOptions { create_size, ..FileOptions::default() };
        let device = FileDevice::open(&path, &options, &engine).unwrap();
        std::fs::remove_file(&path).unwrap();
        // A disk of its own: other tests read the real one.
        let disk_queue = DiskQueue::new(u64::MAX - 1, &engine, Aio::Threads);
        let (_waited, (tx, rx)) = (disk_queue.note(BioOp::Read), channel());
        let mut admitted = Vec::new();
        for n in 0..8 {
            let (tx, data) = (tx.clone(), DataRef::Buf(AlignedBuf::new(len as usize)));
            let end = move |done: Completion| tx.send(done.result.map(|()| n)).unwrap();
            let bio = Bio::new(BioOp::Read, n * len, len, data, Box::new(end));
            let op = device.enter(bio.with_flags(BioFlags::BACKGROUND)).expect("the gate is open");
            admitted.extend(disk_queue.admit(op));
        }
        drop(tx);
        assert_eq!(admitted.len(), 1, "the others are held");
        engine.submit(admitted.into_iter().map(|op| op as Boxed), Aio::Threads);
        let mut ended: Vec<u64> = rx.iter().map(Result::unwrap).collect();
        ended.sort_unstable();
        assert_eq!(ended, (0..8).collect::<Vec<_>>(), "H1: each end admits the next");
    }
}
