//! A lock that outlives its process. In a file of its own, because it captures the log.
//!
//! The story: after a kill -9 of an export, 8 of 75 immediate restarts failed with "another process
//! holds this file". The system had not yet taken the dead process's io_uring down, which still
//! held the file.

#[path = "suite/common/mod.rs"]
#[expect(dead_code, reason = "shared with the suite")]
mod common;

use common::path;
use forebay_base::ErrorKind;
use forebay_block::{Aio, BlockDevice, Engine, FileDevice, FileOptions};
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
    sendmsg, socketpair,
};
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

type Hook = Box<dyn FnMut(&str) + Send>;

/// What the tests do when a message is logged, on the thread that logs it.
static HOOKS: Mutex<Vec<Hook>> = Mutex::new(Vec::new());

/// One test at a time: a child that another one forks has copies of all descriptors up to its exec,
/// and is a living process that holds the lock.
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(|p| p.into_inner())
}

struct Listener;

impl log::Log for Listener {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }
    fn log(&self, record: &log::Record<'_>) {
        let text = record.args().to_string();
        HOOKS.lock().unwrap().iter_mut().for_each(|hook| hook(&text));
    }
    fn flush(&self) {}
}

/// Calls the hook with each message that begins with the path.
fn listen(path: &Path, mut hook: impl FnMut(&str) + Send + 'static) {
    let start = format!("{}: ", path.display());
    HOOKS.lock().unwrap().push(Box::new(move |text: &str| {
        if let Some(text) = text.strip_prefix(&start) {
            hook(text);
        }
    }));
    let _another_test_did = log::set_logger(&Listener);
    log::set_max_level(log::LevelFilter::Warn);
}

fn is_waiting(text: &str) -> bool {
    text.contains("no living process is seen to hold it")
}

/// A locked file that no process has open: its descriptor is in transit through a socket, for as
/// long as the sockets live.
fn lock_without_process(path: &Path) -> (OwnedFd, OwnedFd) {
    let file = std::fs::File::options().read(true).write(true).open(path).unwrap();
    // SAFETY: flock is plain old data; zero is a valid value for each field.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = libc::F_WRLCK as _;
    // SAFETY: F_OFD_SETLK reads one flock, which lives until the call returns.
    let locked = unsafe {
        libc::fcntl(std::os::fd::AsRawFd::as_raw_fd(&file), libc::F_OFD_SETLK, &raw const lock)
    };
    assert_eq!(locked, 0);
    let flags = SocketFlags::CLOEXEC;
    let pair = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fds = [file.as_fd()];
    assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
    sendmsg(&pair.0, &[IoSlice::new(b"x")], &mut control, SendFlags::empty()).unwrap();
    pair
}

#[test]
fn lock_of_dead_process_is_waited_for() {
    let _alone = alone();
    let path = path("lingers");
    let (tx, waiting) = channel();
    listen(&path, move |text| {
        if is_waiting(text) {
            tx.send(()).unwrap();
        }
    });
    std::fs::write(&path, vec![0; 1 << 20]).unwrap();
    let engine = Engine::new(Aio::Auto).unwrap();
    let stale = lock_without_process(&path);
    // Not at all: refused, and the file is named.
    let none = FileOptions { lock_wait: Duration::ZERO, ..FileOptions::default() };
    let refused = FileDevice::open(&path, &none, &engine).err().unwrap();
    assert_eq!((refused.kind(), refused.path()), (ErrorKind::Busy, Some(&*path)));
    assert!(refused.to_string().contains("lingers"), "{refused}");
    // With a wait, opening logs that it waits, and succeeds as soon as the lock is free.
    let options = FileOptions { lock_wait: Duration::from_secs(600), ..FileOptions::default() };
    let device = std::thread::scope(|s| {
        let opener = s.spawn(|| FileDevice::open(&path, &options, &engine).unwrap());
        waiting.recv_timeout(common::PATIENCE).unwrap();
        assert!(!opener.is_finished());
        drop(stale);
        opener.join().unwrap()
    });
    assert_eq!(device.size(), 1 << 20);
    // This living process holds it now: opening fails without the wait of ten minutes.
    let refused = FileDevice::open(&path, &options, &engine).err().unwrap();
    assert_eq!(refused.kind(), ErrorKind::Busy);
    let pid = format!("process {}", std::process::id());
    assert!(refused.to_string().contains(&pid), "{refused}");
}

/// A copy of each descriptor of the file that this process has.
fn copies_of(path: &Path) -> Vec<OwnedFd> {
    let entries = std::fs::read_dir("/proc/self/fd").unwrap().map(|entry| entry.unwrap().path());
    let same = entries.filter(|entry| std::fs::read_link(entry).is_ok_and(|to| to == path));
    let numbers = same.map(|entry| entry.file_name().unwrap().to_str().unwrap().parse().unwrap());
    // All names are compared before the first copy. Another thread closes a listed descriptor
    // meanwhile, and a copy can get its number.
    let numbers = numbers.collect::<Vec<i32>>().into_iter();
    // SAFETY: the thread that logs has the descriptor open, and waits for this call.
    numbers.map(|fd| unsafe { BorrowedFd::borrow_raw(fd) }.try_clone_to_owned().unwrap()).collect()
}

/// The story: a thread opened a file and was refused after it had locked it, by the options.
/// Meanwhile another thread had called fork(2). The child had a copy of the descriptor, so the
/// file stayed locked until the child ended.
#[test]
fn f1_open_that_fails_leaves_no_lock_to_a_child() {
    let _alone = alone();
    let path = path("refused");
    std::fs::write(&path, vec![0; 1 << 20]).unwrap();
    let engine = Engine::new(Aio::Auto).unwrap();
    let mut stale = Some(lock_without_process(&path));
    let (tx, copies) = channel();
    let name = path.clone();
    listen(&path, move |text| {
        if is_waiting(text) {
            drop(stale.take());
        } else if text.contains("the lock is free now") {
            tx.send(copies_of(&name)).unwrap();
        }
    });
    let beyond = FileOptions { offset: 2 << 20, ..FileOptions::default() };
    let refused = FileDevice::open(&path, &beyond, &engine).err().unwrap();
    assert_eq!(refused.kind(), ErrorKind::InvalidInput, "{refused}");
    // What a child of a fork(2) at that moment would have.
    let of_child = copies.try_recv().unwrap();
    assert_eq!(of_child.len(), 1);
    let none = FileOptions { lock_wait: Duration::ZERO, ..FileOptions::default() };
    FileDevice::open(&path, &none, &engine).unwrap();
    drop(of_child);
}

/// A child of fork(2), with the number of this process, closes its copy of the device: the only
/// reference there.
fn closed_by_a_child(device: Arc<FileDevice>) -> Arc<FileDevice> {
    // SAFETY: the child closes a file and ends by _exit(2). The memory allocator has handlers of
    // fork(2), so its locks are free.
    let child = unsafe { libc::fork() };
    assert!(child >= 0);
    if child == 0 {
        let is_same_number = std::process::id() == 1;
        drop(device);
        // SAFETY: no argument is a pointer; nothing of the parent is run.
        unsafe { libc::_exit(i32::from(!is_same_number)) };
    }
    let mut status = -1;
    // SAFETY: `status` is a place for a number.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0, "it is the first process of its PID namespace, too");
    device
}

/// Runs in the first process of a PID namespace.
fn child_with_the_same_number_closes_a_file() {
    let path = path("numbers");
    std::fs::write(&path, vec![0; 1 << 20]).unwrap();
    let engine = Engine::new(Aio::Threads).unwrap();
    let none = FileOptions { lock_wait: Duration::ZERO, ..FileOptions::default() };
    let device = FileDevice::open(&path, &none, &engine).unwrap();
    // SAFETY: no argument is a pointer; it concerns the children of this thread.
    assert_eq!(unsafe { libc::unshare(libc::CLONE_NEWPID) }, 0);
    let device = closed_by_a_child(device);
    let refused = FileDevice::open(&path, &none, &engine).err().expect("the lock is the parent's");
    assert_eq!(refused.kind(), ErrorKind::Busy, "{refused}");
    drop(device);
    FileDevice::open(&path, &none, &engine).unwrap();
}

/// The story: the first process of a container opens a file and makes a container of its own. The
/// first process of that closes its copy of the file, and has the same number.
#[test]
fn f1_child_with_the_number_of_its_parent_leaves_the_lock() {
    let _alone = alone();
    const INNER: &str = "FOREBAY_TEST_FIRST_PROCESS";
    if std::env::var_os(INNER).is_some() {
        return child_with_the_same_number_closes_a_file();
    }
    if !common::requires("root, for a PID namespace", common::is_root()) {
        return;
    }
    let mut inner = std::process::Command::new("unshare");
    inner.args(["--pid", "--fork"]).arg(std::env::current_exe().unwrap()).env(INNER, "1");
    inner.args(["--exact", "f1_child_with_the_number_of_its_parent_leaves_the_lock"]);
    let done = inner.output().unwrap();
    let text = String::from_utf8_lossy(&done.stdout);
    assert!(done.status.success() && text.contains("1 passed"), "{text}");
}
