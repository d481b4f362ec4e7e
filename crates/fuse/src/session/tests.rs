//! Tests of sessions, with a fake kernel at the other end of a socket.
//!
//! No locks.

use super::requests::RequestSlot;
use super::{Ending, Session, agreed};
use crate::device::PAYLOAD_MAX;
use crate::mount::{MountKind, Mounted};
use crate::options::Options;
use crate::proto::consts::{InitFlags, opcode};
use crate::proto::request::InitIn;
use crate::serve::Outcome;
use forebay_base::task::block_on;
use forebay_base::world::RealWorld;
use forebay_base::{ErrorKind, Result};
use forebay_testkit::mem_fs::MemFs;
use forebay_vfs::{FileKind, FileSystem, Ino, Name, NewInode};
use rustix::fd::OwnedFd;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker};
use std::thread::JoinHandle;
use std::time::Duration;

mod slow;

/// The fake kernel.
struct Kernel(OwnedFd);

/// Errno and body of a reply.
type Reply = (i32, Vec<u8>);

impl Kernel {
    fn send(&self, code: u32, unique: u64, node: u64, args: &[u8]) {
        let mut message = Vec::new();
        message.extend_from_slice(&(40 + args.len() as u32).to_le_bytes());
        message.extend_from_slice(&code.to_le_bytes());
        message.extend_from_slice(&unique.to_le_bytes());
        message.extend_from_slice(&node.to_le_bytes());
        message.extend_from_slice(&[0; 16]);
        message.extend_from_slice(args);
        rustix::io::write(&self.0, &message).unwrap();
    }

    fn reply(&self) -> (u64, Reply) {
        let mut bytes = vec![0; 1 << 16];
        let len = rustix::io::read(&self.0, &mut bytes).unwrap();
        assert_eq!(len, u32::from_le_bytes(bytes[..4].try_into().unwrap()) as usize);
        let errno = -i32::from_le_bytes(bytes[4..8].try_into().unwrap());
        let unique = u64::from_le_bytes(bytes[8..16].try_into().unwrap());
        (unique, (errno, bytes[16..len].to_vec()))
    }

    fn ask(&self, code: u32, node: u64, args: &[u8]) -> Reply {
        self.send(code, 99, node, args);
        let (unique, reply) = self.reply();
        assert_eq!(unique, 99);
        reply
    }

    fn init(&self, major: u32, minor: u32) -> Reply {
        let mut args = Vec::new();
        for word in [major, minor, 1 << 20, u32::MAX, u32::MAX] {
            args.extend_from_slice(&word.to_le_bytes());
        }
        args.resize(64, 0);
        self.ask(opcode::INIT, 0, &args)
    }
}

fn start(fs: Arc<dyn FileSystem>) -> (Kernel, JoinHandle<Result<Session>>) {
    start_with(fs, 1000)
}

fn start_with(fs: Arc<dyn FileSystem>, inodes_max: usize) -> (Kernel, JoinHandle<Result<Session>>) {
    start_as(fs, Options { threads: Some(2), inodes_max, ..Options::default() })
}

fn start_as(fs: Arc<dyn FileSystem>, options: Options) -> (Kernel, JoinHandle<Result<Session>>) {
    let kind = SocketType::SEQPACKET;
    let (device, kernel) =
        socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).unwrap();
    let dir = PathBuf::from("/nowhere");
    let mounted = Mounted::of(device, MountKind::Block, dir, (0, 0));
    let session = move || Session::start(mounted, fs, RealWorld::new(), &options);
    (Kernel(kernel), std::thread::spawn(session))
}

fn ready(fs: Arc<dyn FileSystem>) -> (Kernel, Session) {
    let (kernel, session) = start(fs);
    assert_eq!(kernel.init(7, 45).0, 0);
    (kernel, session.join().unwrap().unwrap())
}

fn end(ending: Ending) {
    let synced = ending.sync();
    ending.finish(&synced);
}

/// session.S1: too old a kernel gets an error; too new a one is first told the daemon's version.
#[test]
fn s1_versions_are_agreed_on_first() {
    let (kernel, session) = start(Arc::new(MemFs::default()));
    assert_eq!(kernel.init(7, 31).0, 71);
    drop(kernel);
    let failed = session.join().unwrap().err().unwrap();
    assert_eq!(failed.kind(), ErrorKind::Unsupported);
    assert!(failed.to_string().contains("7.31"), "{failed}");
    let (kernel, session) = start(Arc::new(MemFs::default()));
    let (errno, body) = kernel.init(8, 0);
    assert_eq!((errno, body[0], body[4], body.len()), (0, 7, 45, 64));
    let (errno, body) = kernel.init(7, 45);
    assert_eq!((errno, body[0], body[4]), (0, 7, 45));
    let session = session.join().unwrap().unwrap();
    drop(kernel);
    end(session.wait());
}

/// Only capabilities that the kernel offers and the daemon wants are selected.
#[test]
fn only_what_both_sides_have() {
    let flags = InitFlags::ASYNC_DIO | InitFlags::HAS_IOCTL_DIR;
    const ASYNC: InitFlags = InitFlags::ASYNC_DIO;
    let init = InitIn { major: 7, minor: 46, max_readahead: 1 << 30, flags };
    let out = agreed(&init, 8, 0);
    assert_eq!((out.flags, out.minor), (InitFlags::ASYNC_DIO, 45));
    let with_limit = InitIn { flags: flags | InitFlags::REQUEST_TIMEOUT, ..init };
    let asked = agreed(&with_limit, 8, 360);
    assert_eq!((asked.flags, asked.request_timeout), (ASYNC | InitFlags::REQUEST_TIMEOUT, 360));
    assert_eq!(agreed(&with_limit, 8, 0).flags, ASYNC);
    let kernel_timeout = |limit: Option<Duration>| {
        Options { request_timeout: limit, ..Options::default() }.kernel_timeout()
    };
    let after = |seconds| kernel_timeout(Some(Duration::from_secs(seconds)));
    assert_eq!((kernel_timeout(None), after(1), after(300)), (0, 750, 750));
    assert_eq!((after(26_000), after(u64::MAX)), (65_000, 0), "none that is shorter than ours");
    assert_eq!((out.max_readahead, out.max_write), (PAYLOAD_MAX as u32, PAYLOAD_MAX as u32));
}

/// serve.R2, fuse.U1: unknown and malformed requests are answered.
#[test]
fn r2_u1_every_request_is_answered() {
    let (kernel, session) = ready(Arc::new(MemFs::default()));
    // ACCESS, BMAP, POLL, a lock, SETUPMAPPING, and two unknown codes.
    for code in [34, 37, 40, 31, 48, 54, 4000] {
        assert_eq!(kernel.ask(code, 1, &[0; 56]).0, 38, "{code}");
    }
    assert_eq!(kernel.ask(opcode::LOOKUP, 1, b"no end").0, 117);
    assert_eq!(kernel.ask(opcode::WRITE, 1, &[0; 8]).0, 71);
    assert_eq!(kernel.ask(opcode::LOOKUP, 77, b"x\0").0, 116, "stale");
    assert_eq!(kernel.ask(opcode::READ, 1, &[9; 40]).0, 9, "no such handle");
    assert_eq!(kernel.ask(opcode::LOOKUP, 1, &[&[b'x'; 256][..], b"\0"].concat()).0, 36);
    for missing in [&b"none\0"[..], b".none\0", b"...\0"] {
        let (errno, body) = kernel.ask(opcode::LOOKUP, 1, missing);
        assert_eq!((errno, body.len(), &body[..8]), (0, 128, &[0; 8][..]), "no such name");
    }
    // `FORGET` and `INTERRUPT` get no answer: the next answer is that of the next request.
    kernel.send(opcode::FORGET, 1, 1, &[1, 0, 0, 0, 0, 0, 0, 0]);
    kernel.send(opcode::INTERRUPT, 1, 0, &[5, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(kernel.ask(opcode::STATFS, 1, &[]).1.len(), 80);
    drop(kernel);
    end(session.wait());
}

/// The story: `ls -l` sent one request for the label of each file, which were most of its requests.
/// After the answer "not supported" it asks once.
#[test]
fn labels_that_are_not_there_are_not_supported() {
    let (kernel, session) = ready(Arc::new(MemFs::default()));
    let get = |name: &[u8]| {
        let room = [&255_u32.to_le_bytes()[..], &[0; 4], name, b"\0"].concat();
        kernel.ask(opcode::GETXATTR, 1, &room).0
    };
    let set = |name: &[u8]| {
        let head = [&1_u32.to_le_bytes()[..], &[0; 4], name, b"\0x"].concat();
        kernel.ask(opcode::SETXATTR, 1, &head).0
    };
    assert_eq!((get(b"security.selinux"), get(b"security.other"), get(b"user.x")), (95, 61, 61));
    assert_eq!((set(b"security.selinux"), get(b"security.selinux")), (0, 0), "one that is set");
    drop(kernel);
    end(session.wait());
}

/// fuse.U2, serve.R1: an inode is counted before the kernel can forget it.
#[test]
fn u2_r1_reported_inode_is_counted_before_forget() {
    let fs = MemFs::default();
    let new = NewInode::of(FileKind::File, 0o600);
    let name = Name::new(b"f").unwrap();
    let ino = block_on(fs.mknod(Ino::ROOT, name, &new)).unwrap().ino;
    let (kernel, session) = ready(Arc::new(fs));
    let figures = session.figures();
    for _ in 0..3 {
        assert_eq!(kernel.ask(opcode::LOOKUP, 1, b"f\0").0, 0);
    }
    assert_eq!(figures(), (1, 0));
    let batch =
        [&[1, 0, 0, 0, 0, 0, 0, 0], &ino.0.to_le_bytes()[..], &3_u64.to_le_bytes()].concat();
    kernel.send(opcode::BATCH_FORGET, 0, 0, &batch);
    let (errno, body) = kernel.ask(opcode::OPEN, ino.0, &[0; 8]);
    assert_eq!((errno, body.len()), (0, 16));
    // The other thread may still be processing the `FORGET`.
    while figures() != (0, 1) {
        std::thread::yield_now();
    }
    drop(kernel);
    end(session.wait());
}

/// The story: the kernel kept set-id bits of a file that it had met by `READDIRPLUS`. For other
/// files it kept them until the notice reached the head of the queue, after the write was answered.
/// In that time a user could execute the written file with its owner's rights.
#[test]
fn write_dropping_set_id_bits_notifies_kernel_before_answer() {
    const WRITE_KILL: u32 = 4;
    let fs = MemFs::default();
    let new = NewInode::of(FileKind::File, 0o4755);
    block_on(fs.mknod(Ino::ROOT, Name::new(b"f").unwrap(), &new)).unwrap();
    let (kernel, session) = ready(Arc::new(fs));
    let dir = kernel.ask(opcode::OPENDIR, 1, &[0; 8]).1[..8].to_vec();
    let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().unwrap());
    for _ in 0..50 {
        let read = [&dir[..], &[0; 8], &4096_u32.to_le_bytes(), &[0; 20]].concat();
        let (errno, list) = kernel.ask(opcode::READDIRPLUS, 1, &read);
        assert_eq!(errno, 0);
        // The file's entry follows those of `.` and `..`, each of 128 + 24 + 8 bytes.
        let ino = word(&list[320..328]);
        let (errno, opened) = kernel.ask(opcode::OPEN, ino, &[1, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(errno, 0);
        let mut write = [&opened[..8], &[0; 8], &1_u32.to_le_bytes()].concat();
        write.extend_from_slice(&WRITE_KILL.to_le_bytes());
        write.resize(40, 0);
        kernel.send(opcode::WRITE, 7, ino, &[&write[..], b"x"].concat());
        let (unique, (code, notice)) = kernel.reply();
        assert_eq!((unique, -code), (0, 2), "INVAL_INODE comes first");
        assert_eq!((word(&notice[..8]), word(&notice[8..16]) as i64), (ino, -1));
        assert_eq!(kernel.reply(), (7, (0, vec![1, 0, 0, 0, 0, 0, 0, 0])));
        let mut chmod = vec![0; 88];
        chmod[0] = 1;
        chmod[68..72].copy_from_slice(&0o4755_u32.to_le_bytes());
        assert_eq!(kernel.ask(opcode::SETATTR, ino, &chmod).0, 0);
    }
    drop(kernel);
    end(session.wait());
}

/// session.S2, fuse.U5: `DESTROY` is answered after the file system is released.
#[test]
fn s2_u5_destroy_is_answered_last() {
    let fs: Arc<dyn FileSystem> = Arc::new(MemFs::default());
    let weak: Weak<dyn FileSystem> = Arc::downgrade(&fs);
    let (kernel, session) = ready(fs);
    assert_eq!(kernel.ask(opcode::OPENDIR, 1, &[0; 8]).0, 0);
    kernel.send(opcode::DESTROY, 5, 0, &[]);
    let ending = session.wait();
    let synced = ending.sync();
    assert!(weak.upgrade().is_some());
    ending.release();
    assert!(weak.upgrade().is_none(), "U5: given back, though a directory was open");
    assert_eq!(kernel.ask(opcode::STATFS, 1, &[]).0, 107, "no daemon is there any more");
    let thread = std::thread::spawn(move || ending.finish(&synced));
    assert_eq!(kernel.reply(), (5, (0, Vec::new())));
    drop(kernel);
    thread.join().unwrap();
}

/// The story: the start of a mount failed after `INIT`, and its process unmounted it. That
/// umount(2) waited for ever for the answer to `DESTROY`, which only an `Ending` sent (session.S4).
#[test]
fn s4_dropped_session_answers_destroy() {
    let fs: Arc<dyn FileSystem> = Arc::new(MemFs::default());
    let (kernel, session) = ready(fs.clone());
    drop(session);
    assert_eq!(kernel.ask(opcode::STATFS, 1, &[]).0, 0, "until then it serves");
    assert_eq!(kernel.ask(opcode::DESTROY, 0, &[]), (0, Vec::new()));
    // The same if `DESTROY` came before the session was dropped.
    let (kernel, session) = ready(fs);
    kernel.send(opcode::DESTROY, 99, 0, &[]);
    let shared = session.shared.clone();
    shared.wait(|state| state.destroy.is_some());
    drop(session);
    assert_eq!(kernel.reply(), (99, (0, Vec::new())));
}

/// session.S3: reader threads that cannot read end the session, which does not wait for `DESTROY`.
#[test]
fn s3_failed_device_ends_session() {
    let file = std::fs::File::options().write(true).open("/dev/null").unwrap();
    let mounted = Mounted::of(file.into(), MountKind::Plain, PathBuf::from("/nowhere"), (0, 0));
    let fs = Arc::new(MemFs::default());
    let failed =
        Session::start(mounted, fs as Arc<dyn FileSystem>, RealWorld::new(), &Options::default())
            .err()
            .unwrap();
    assert_eq!(failed.kind(), ErrorKind::Io);
}

/// A future that is ready at its second poll; the first poll sends its waker to the test.
struct Waits {
    wakers: Sender<Waker>,
    polled: bool,
    /// It wakes itself during the first poll.
    at_once: bool,
}

impl Future for Waits {
    type Output = Outcome;
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Outcome> {
        if std::mem::replace(&mut self.polled, true) {
            return Poll::Ready(Outcome::errno(3));
        }
        if self.at_once {
            cx.waker().wake_by_ref();
        }
        // The test may have dropped the receiver.
        let _ = self.wakers.send(cx.waker().clone());
        Poll::Pending
    }
}

/// waiting.A1, waiting.A2: a request that waits is answered after its wake, also if the wake came
/// during the first poll. A request whose last waker is dropped is polled again.
#[test]
fn a1_a2_requests_that_wait_are_answered() {
    let (kernel, session) = ready(Arc::new(MemFs::default()));
    let core = session.shared.core.read().clone().unwrap();
    let (sender, wakers) = std::sync::mpsc::channel();
    let mut slot = RequestSlot::default();
    let mut run = |unique, at_once| {
        slot.future.put(Waits { wakers: sender.clone(), polled: false, at_once });
        session.shared.run(&core, unique, 10, &mut slot, false);
    };
    run(1, true);
    assert_eq!(kernel.reply(), (1, (3, Vec::new())), "woken in the first poll");
    drop(wakers.recv().unwrap());
    // The request is answered shortly before it is no longer counted.
    while session.shared.lock().tasks != 0 {
        std::thread::yield_now();
    }
    run(2, false);
    assert_eq!(session.shared.lock().tasks, 1);
    let waker = wakers.recv().unwrap();
    assert_eq!(kernel.ask(opcode::STATFS, 1, &[]).0, 0, "it has not been answered yet");
    waker.wake_by_ref();
    waker.wake();
    assert_eq!(kernel.reply(), (2, (3, Vec::new())));
    run(3, false);
    drop(wakers.recv().unwrap());
    // The story: the request was dropped, and answered EIO, though it could have continued.
    assert_eq!(kernel.reply(), (3, (3, Vec::new())), "no waker is left, so it looks again");
    drop((core, kernel));
    end(session.wait());
}

/// waiting.A1: a waker that an answered request has left wakes no later one, which reuses memory of
/// the request before it.
#[test]
fn a1_waker_of_an_answered_request_wakes_no_later_one() {
    let (kernel, session) = ready(Arc::new(MemFs::default()));
    let core = session.shared.core.read().clone().unwrap();
    let (sender, wakers) = std::sync::mpsc::channel::<Waker>();
    let mut slot = RequestSlot::default();
    for (unique, keeps) in [(1, false), (2, true)] {
        let sender = sender.clone();
        slot.future.put(std::future::poll_fn(move |cx| {
            if keeps {
                sender.send(cx.waker().clone()).unwrap();
            }
            cx.waker().wake_by_ref();
            Poll::Ready(Outcome::errno(4))
        }));
        session.shared.run(&core, unique, 10, &mut slot, false);
        assert_eq!(kernel.reply(), (unique, (4, Vec::new())));
    }
    let earlier = wakers.recv().unwrap();
    slot.future.put(Waits { wakers: sender, polled: false, at_once: false });
    session.shared.run(&core, 3, 10, &mut slot, false);
    earlier.wake();
    let waker = wakers.recv().unwrap();
    assert_eq!(kernel.ask(opcode::STATFS, 1, &[]).0, 0, "A1: it waits for its own wake");
    waker.wake();
    assert_eq!(kernel.reply(), (3, (3, Vec::new())));
    drop((core, kernel));
    end(session.wait());
}

/// The story: a session that was dropped, without `wait`, kept its connection open as long as sync
/// threads waited for work.
#[test]
fn dropped_session_ends_its_threads() {
    let (kernel, session) = ready(Arc::new(MemFs::default()));
    let (_, body) = kernel.ask(opcode::OPENDIR, 1, &[0; 8]);
    assert_eq!(kernel.ask(opcode::FSYNCDIR, 1, &[&body[..8], &[0; 8]].concat()).0, 0);
    let shared = Arc::downgrade(&session.shared);
    drop(session);
    drop(kernel);
    while shared.upgrade().is_some() {
        std::thread::yield_now();
    }
}

/// sweep.Q1, sweep.Q2: a kernel without `PRUNE` gets notices that names are stale, of files that
/// are not open.
#[test]
fn q1_q2_older_kernels_are_told_of_names() {
    for (minor, code) in [(44, 3), (45, 9)] {
        let fs = MemFs::default();
        let names: Vec<String> = (0..300).map(|n| format!("f{n}")).collect();
        for name in &names {
            let name = Name::new(name.as_bytes()).unwrap();
            block_on(fs.mknod(Ino::ROOT, name, &NewInode::of(FileKind::File, 0o600))).unwrap();
        }
        let (kernel, session) = start_with(Arc::new(fs), 100);
        assert_eq!(kernel.init(7, minor).0, 0);
        let session = session.join().unwrap().unwrap();
        // The kernel knows the root, and one file is open.
        kernel.send(opcode::LOOKUP, 7, 1, b".\0");
        let mut told = Vec::new();
        let mut wait = |unique: u64| loop {
            let (found, (errno, body)) = kernel.reply();
            if found == unique {
                break (errno, body);
            }
            assert_eq!((found, -errno), (0, code), "a notice");
            told.push(body);
        };
        wait(7);
        for (n, name) in names.iter().enumerate() {
            let unique = 8 + 2 * n as u64;
            kernel.send(opcode::LOOKUP, unique, 1, &[name.as_bytes(), b"\0"].concat());
            let (_, body) = wait(unique);
            if n == 0 {
                let ino = u64::from_le_bytes(body[..8].try_into().unwrap());
                kernel.send(opcode::OPEN, unique + 1, ino, &[0; 8]);
                assert_eq!(wait(unique + 1).0, 0);
            }
        }
        // A background task sends these notices, so the test waits for the first (or never ends).
        while told.is_empty() {
            kernel.send(opcode::STATFS, 9999, 1, &[]);
            let (unique, (errno, body)) = kernel.reply();
            if unique == 0 {
                assert_eq!(-errno, code, "a notice");
                told.push(body);
            }
        }
        if code == 3 {
            assert!(told.iter().all(|body| body.ends_with(b"\0") && !body.ends_with(b"f0\0")));
        }
        drop(kernel);
        end(session.wait());
    }
}
