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
use std::os::fd::{AsFd, OwnedFd};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

static WAITING: OnceLock<Mutex<Sender<()>>> = OnceLock::new();

struct Listener;

impl log::Log for Listener {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }
    fn log(&self, record: &log::Record<'_>) {
        if record.args().to_string().contains("no living process is seen to hold it") {
            WAITING.get().unwrap().lock().unwrap().send(()).unwrap();
        }
    }
    fn flush(&self) {}
}

fn listen() -> Receiver<()> {
    let (tx, rx) = channel();
    assert!(WAITING.set(Mutex::new(tx)).is_ok());
    log::set_logger(&Listener).unwrap();
    log::set_max_level(log::LevelFilter::Warn);
    rx
}

/// A locked file that no process has open: its descriptor is in transit through a socket, for as
/// long as the sockets live.
fn lock_without_process(path: &std::path::Path) -> (OwnedFd, OwnedFd) {
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
    let waiting = listen();
    let path = path("lingers");
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
        waiting.recv().unwrap();
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
