//! Tests of sessions with files whose operations are delayed.
//!
//! Locks: those of a test's gate, leaves.

use super::{Kernel, Reply, end, start_as};
use crate::handles::{Caching, Handle};
use crate::ioctl::MODE_CACHED;
use crate::options::Options;
use crate::proto::consts::opcode;
use crate::session::Session;
use forebay_base::buf::AlignedBuf;
use forebay_base::task::{BoxFuture, WaitQueue, yield_now};
use forebay_base::{IoFlags, Result};
use forebay_testkit::mem_fs::MemFs;
use forebay_vfs::{
    Attr, Fallocate, FileSystem, Ino, Name, OpenFile, OpenFileRef, OpenFlags, Privileges,
    ReadResult, Seek, WriteResult, Wrote,
};
use std::collections::BTreeSet;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

/// How a sync of [`Slow`] behaves before it ends.
#[derive(Clone, Copy)]
enum Slowness {
    /// It blocks its thread until the gate is open.
    Blocks,
    /// The operation's future is pending until the gate is open.
    Pends,
    Panics,
}

/// Releases all waiting operations when it is opened, once.
#[derive(Default)]
struct Gate {
    open: Mutex<bool>,
    opened: Condvar,
    pending: WaitQueue,
}

impl Gate {
    fn open(&self) {
        *self.open.lock().unwrap() = true;
        self.opened.notify_all();
        self.pending.wake_all();
    }
}

/// A file whose operations are delayed, and which records the threads that called it.
struct Slow {
    how: Slowness,
    gate: Arc<Gate>,
    threads: Arc<Mutex<Vec<String>>>,
}

impl Slow {
    fn note_thread(&self) {
        let name = std::thread::current().name().unwrap_or_default().to_string();
        self.threads.lock().unwrap().push(name);
    }
}

impl OpenFile for Slow {
    fn ino(&self) -> Ino {
        Ino(7)
    }
    fn flags(&self) -> OpenFlags {
        OpenFlags::READ | OpenFlags::WRITE
    }
    fn read(&self, _: u64, mut buf: AlignedBuf, _: IoFlags) -> BoxFuture<'_, ReadResult> {
        Box::pin(async move {
            yield_now().await;
            self.note_thread();
            buf.fill(5);
            let len = buf.len();
            (buf, Ok(len))
        })
    }
    fn write(
        &self,
        offset: u64,
        buf: AlignedBuf,
        _: IoFlags,
        _: Privileges,
    ) -> BoxFuture<'_, WriteResult> {
        Box::pin(async move {
            yield_now().await;
            self.note_thread();
            let len = buf.len();
            (buf, Ok(Wrote { offset, len }))
        })
    }
    fn fallocate(&self, _: Fallocate, _: u64, _: u64, _: Privileges) -> BoxFuture<'_, Result<()>> {
        Box::pin(async {
            let open = || self.gate.open.lock().unwrap().then_some(());
            self.gate.pending.wait_until(open).await;
            Ok(())
        })
    }
    fn seek(&self, _: Seek, offset: u64) -> BoxFuture<'_, Result<u64>> {
        Box::pin(async move { Ok(offset) })
    }
    fn sync(&self, _: bool) -> BoxFuture<'_, Result<()>> {
        Box::pin(async { Ok(()) })
    }
    fn sync_waiting(&self, _: bool) -> BoxFuture<'_, Result<()>> {
        self.note_thread();
        Box::pin(async {
            match self.how {
                Slowness::Panics => panic!("a sync that panics"),
                Slowness::Blocks => {
                    let mut open = self.gate.open.lock().unwrap();
                    while !*open {
                        open = self.gate.opened.wait(open).unwrap();
                    }
                }
                Slowness::Pends => {
                    let open = || self.gate.open.lock().unwrap().then_some(());
                    self.gate.pending.wait_until(open).await;
                }
            }
            Ok(())
        })
    }
}

/// A session with such files.
struct SlowFiles {
    kernel: Kernel,
    session: Session,
    gate: Arc<Gate>,
    threads: Arc<Mutex<Vec<String>>>,
}

impl SlowFiles {
    fn new(readers: usize) -> Self {
        Self::with(Options { threads: Some(readers), ..Options::default() })
    }

    fn with(options: Options) -> Self {
        let (kernel, session) = start_as(Arc::new(MemFs::default()), options);
        assert_eq!(kernel.init(7, 45).0, 0);
        let session = session.join().unwrap().unwrap();
        let (gate, threads) = Default::default();
        Self { kernel, session, gate, threads }
    }

    fn open(&self, how: Slowness) -> u64 {
        let (gate, threads) = (self.gate.clone(), self.threads.clone());
        let file: OpenFileRef = Arc::new(Slow { how, gate, threads });
        let core = self.session.shared.core.read();
        let handle = Handle::new(file, IoFlags::empty(), MODE_CACHED, Caching::default());
        core.as_ref().unwrap().handles.add(handle)
    }

    fn sync(&self, unique: u64, fh: u64) {
        let args = [&fh.to_le_bytes()[..], &[0; 8]].concat();
        self.kernel.send(opcode::FSYNC, unique, 7, &args);
    }

    /// Sends a read of 16 bytes and returns its reply.
    fn read(&self, fh: u64) -> Reply {
        let args = [&fh.to_le_bytes()[..], &[0; 8], &16_u32.to_le_bytes(), &[0; 20]].concat();
        self.kernel.ask(opcode::READ, 7, &args)
    }

    fn write(&self, fh: u64, bytes: &[u8]) -> Reply {
        let len = bytes.len() as u32;
        let args = [&fh.to_le_bytes()[..], &[0; 8], &len.to_le_bytes(), &[0; 20], bytes].concat();
        self.kernel.ask(opcode::WRITE, 7, &args)
    }

    fn end(self) {
        drop(self.kernel);
        end(self.session.wait());
    }
}

/// syncs.Y1, syncs.Y2, syncs.Y3, readers.X1: any number of syncs whose threads block delay no other
/// request; a sync that panics is answered once.
#[test]
fn y1_y2_y3_blocked_syncs_delay_no_other_request() {
    for readers in [1, 2, 5] {
        let all = SlowFiles::new(readers);
        let (blocks, panics) = (all.open(Slowness::Blocks), all.open(Slowness::Panics));
        let mut waiting: BTreeSet<u64> = (1..=17).collect();
        waiting.iter().for_each(|unique| all.sync(*unique, blocks));
        assert_eq!(all.kernel.ask(opcode::STATFS, 1, &[]).0, 0, "Y1");
        all.gate.open();
        while !waiting.is_empty() {
            let (unique, (errno, _)) = all.kernel.reply();
            assert!(waiting.remove(&unique) && errno == 0);
        }
        for unique in [50, 51] {
            all.sync(unique, panics);
            assert_eq!(all.kernel.reply(), (unique, (5, Vec::new())), "Y3");
        }
        all.sync(52, blocks);
        assert_eq!(all.kernel.reply(), (52, (0, Vec::new())), "Y3");
        let names = all.threads.lock().unwrap().clone();
        let by_readers = names.iter().filter(|name| name.starts_with("forebay-fuse")).count();
        assert!(readers > 1 || by_readers == 0, "X1: {names:?}");
        all.end();
    }
}

/// The story: each sync kept a thread while it waited for a group commit, so sixteen clients woke
/// sixteen threads for each group. Such a sync now waits without a thread.
#[test]
fn syncs_that_wait_for_others_have_no_thread() {
    let all = SlowFiles::new(2);
    let (pends, panics) = (all.open(Slowness::Pends), all.open(Slowness::Panics));
    let mut waiting: BTreeSet<u64> = (1..=100).collect();
    waiting.iter().for_each(|unique| all.sync(*unique, pends));
    // A sync thread is free for the next sync.
    all.sync(200, panics);
    assert_eq!(all.kernel.reply(), (200, (5, Vec::new())));
    all.gate.open();
    while !waiting.is_empty() {
        let (unique, (errno, _)) = all.kernel.reply();
        assert!(waiting.remove(&unique) && errno == 0);
    }
    all.end();
}

/// The story: a sync, and a read or write that had to wait for a device, was handed to another
/// thread. A third thread sent the answer, even if no other request was waiting. Now the thread
/// that has read the request carries it out if another one listens (readers.X2).
#[test]
fn x2_blocking_request_runs_on_thread_that_read_it() {
    let all = SlowFiles::new(2);
    all.gate.open();
    let file = all.open(Slowness::Blocks);
    let by_readers = || {
        let names = std::mem::take(&mut *all.threads.lock().unwrap());
        names.iter().all(|name| name.starts_with("forebay-fuse"))
    };
    let (mut syncs, mut others) = (0, 0);
    for unique in 1000..2000 {
        all.sync(unique, file);
        assert_eq!(all.kernel.reply(), (unique, (0, Vec::new())));
        syncs += u32::from(by_readers());
        assert_eq!(all.read(file), (0, vec![5; 16]));
        assert_eq!(all.write(file, b"abc"), (0, vec![3, 0, 0, 0, 0, 0, 0, 0]));
        others += u32::from(by_readers());
    }
    // From time to time the other thread is still sending its answer, so a few requests are handed
    // over.
    assert!(syncs > 0, "no sync was done by a reader thread");
    assert!(others > 0, "no read and write was");
    all.end();
}

/// A file system whose lookups have to wait once, and which records the threads that end them.
#[derive(Default)]
struct SlowNames {
    fs: MemFs,
    threads: Mutex<Vec<String>>,
}

impl FileSystem for SlowNames {
    forebay_vfs::delegate_file_system!(
        [fs]
        statfs parent getattr getattr_listed setattr create mknod mkdir symlink link unlink rmdir
        rename remove_keeping rename_keeping readlink readdir getxattr setxattr listxattr
        removexattr open syncfs
    );
    fn lookup<'a>(&'a self, dir: Ino, name: Name<'a>) -> BoxFuture<'a, Result<Attr>> {
        Box::pin(async move {
            yield_now().await;
            let thread = std::thread::current().name().unwrap_or_default().to_string();
            self.threads.lock().unwrap().push(thread);
            self.fs.lookup(dir, name).await
        })
    }
}

/// readers.X2. The story: a lookup that had to wait for the device went to another thread, and a
/// third one sent its answer.
#[test]
fn lookup_that_waits_stays_on_thread_that_read_it() {
    let fs = Arc::new(SlowNames::default());
    let options = Options { threads: Some(2), ..Options::default() };
    let (kernel, session) = start_as(fs.clone(), options);
    assert_eq!(kernel.init(7, 45).0, 0);
    let session = session.join().unwrap().unwrap();
    for _ in 0..1000 {
        assert_eq!(kernel.ask(opcode::LOOKUP, 1, b"none\0").0, 0, "no such name, to be cached");
    }
    let names = std::mem::take(&mut *fs.threads.lock().unwrap());
    let here = names.iter().filter(|name| name.starts_with("forebay-fuse")).count();
    // While the other thread still sends its answer, a request is handed over. How often that
    // happens depends on the scheduler; without the rule no request stays.
    assert!(here > 0, "none of {}: {:?}", names.len(), names.last());
    drop(kernel);
    end(session.wait());
}

/// A session with a deadline of 400 ms, which a request that needs no device rarely exceeds.
fn with_deadline() -> SlowFiles {
    let request_timeout = Some(Duration::from_millis(400));
    let request_bytes = 1 << 20;
    SlowFiles::with(Options {
        threads: Some(2),
        request_timeout,
        request_bytes,
        ..Options::default()
    })
}

/// Repeats a request until it is answered in time. On a loaded machine a request without device I/O
/// may exceed the deadline and get EIO; one that waits for the device always does.
fn answers_without_device(all: &SlowFiles) -> bool {
    (0..100).any(|_| all.kernel.ask(opcode::STATFS, 1, &[]).0 == 0)
}

/// deadlines.T1. The story: each program waited for ever for a device that did not answer. With
/// `request_timeout` programs get EIO, also for requests that arrive when the memory for requests
/// is used up. The answers of late operations are dropped.
#[test]
fn stuck_device_with_request_timeout_ends_each_request_once() {
    let all = with_deadline();
    let stuck = [all.open(Slowness::Blocks), all.open(Slowness::Pends)];
    let mut waiting: BTreeSet<u64> = (1..=40).collect();
    waiting.iter().for_each(|unique| all.sync(*unique, stuck[*unique as usize % 2]));
    while !waiting.is_empty() {
        let (unique, reply) = all.kernel.reply();
        assert!(waiting.remove(&unique) && reply == (5, Vec::new()), "{unique}");
    }
    assert_eq!(all.session.shared.device.deadlines.late_count(), 40);
    all.kernel.send(opcode::INTERRUPT, 2 | 1, 0, &2_u64.to_le_bytes());
    all.kernel.send(opcode::FORGET, 0, 7, &1_u64.to_le_bytes());
    assert!(answers_without_device(&all), "a request that needs no device");
    let held = all.session.shared.payload.hold(u64::MAX / 2);
    while !all.session.shared.payload.is_stuck() {
        std::thread::yield_now();
    }
    for unique in 100..104 {
        all.kernel.send(opcode::GETXATTR, unique, 1, &[]);
        assert_eq!(all.kernel.reply(), (unique, (5, Vec::new())), "no memory for requests");
    }
    all.kernel.send(opcode::RELEASE, 104, 7, &[stuck[0].to_le_bytes(), [0; 8], [0; 8]].concat());
    assert_eq!(all.kernel.reply(), (104, (0, Vec::new())), "carried out in any case");
    drop(held);
    assert!(answers_without_device(&all), "there is memory again");
    assert!(all.session.shared.lock().tasks > 0, "late operations are counted until they end");
    all.gate.open();
    while all.session.shared.device.deadlines.late_count() > 0 {
        std::thread::yield_now();
    }
    // A late answer would arrive before one of these.
    for unique in 200..300 {
        all.kernel.send(opcode::STATFS, unique, 1, &[]);
        assert_eq!(all.kernel.reply().0, unique, "no second answer");
    }
    all.end();
}

/// deadlines.T2: the kernel took the operation for failed and kept its caches, so the inode is
/// reported stale when the operation ends.
#[test]
fn operation_that_ends_after_its_eio_is_reported_stale() {
    const NOTIFY_INVAL_INODE: i32 = -2;
    let all = with_deadline();
    let file = all.open(Slowness::Pends);
    let args = [&file.to_le_bytes()[..], &[0; 8], &4096_u64.to_le_bytes(), &[0; 8]].concat();
    all.kernel.send(opcode::FALLOCATE, 1, 7, &args);
    assert_eq!(all.kernel.reply(), (1, (5, Vec::new())));
    all.gate.open();
    let (unique, (code, body)) = all.kernel.reply();
    assert_eq!((unique, code), (0, NOTIFY_INVAL_INODE));
    assert_eq!(body[..8], 7_u64.to_le_bytes(), "the inode");
    assert_eq!(body[8..16], 0_u64.to_le_bytes(), "content from the first byte");
    assert!(answers_without_device(&all), "no second answer");
    all.end();
}

/// deadlines.T3: a session without the option has no thread for deadlines and records no request.
/// Dropping a session with the option ends that thread.
#[test]
fn deadline_thread_keeps_no_session() {
    let without = SlowFiles::new(2);
    assert!(!without.session.shared.device.deadlines.has_limit());
    let threads_without = without.session.threads.len();
    let unnoted = || unreachable!("a message kept without a limit");
    without.session.shared.device.deadlines.begin(1, unnoted);
    without.end();
    let all = with_deadline();
    assert_eq!(all.session.threads.len(), threads_without + 1);
    let shared = Arc::downgrade(&all.session.shared);
    drop(all.session);
    drop(all.kernel);
    while shared.strong_count() > 0 {
        std::thread::yield_now();
    }
}

/// syncs.Y4: a sync that is woken after the threads were told to end is answered all the same.
#[test]
fn y4_sync_woken_during_shutdown_is_answered() {
    let all = SlowFiles::new(1);
    let pends = all.open(Slowness::Pends);
    all.sync(1, pends);
    while all.gate.pending.waiters() == 0 {
        std::thread::yield_now();
    }
    all.session.shared.syncs.close();
    all.gate.open();
    assert_eq!(all.kernel.reply(), (1, (0, Vec::new())));
    all.sync(2, pends);
    assert_eq!(all.kernel.reply(), (2, (0, Vec::new())), "as any other request");
    all.end();
}
