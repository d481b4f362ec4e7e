//! A process beside the one that serves a mount, which ends the connection when that one dies.
//!
//! A process that is killed while one of its threads waits in the kernel for a page that a request of the
//! mount has to fill never closes /dev/fuse: the thread waits for the request, the request for an answer, and
//! every call on the mount for ever. The watchdog sees the death and aborts the connection; then every call
//! fails with ENOTCONN.
//!
//! It watches one thread, which does nothing else: a thread in the kernel keeps the process as a whole from
//! ending.
//!
//! Invariants: G1 only the connection it was started for is aborted. Numbers are used again, so its file in
//! the kernel's list is opened while the process lives: that one denotes no other later. Where there is no
//! such list, only a mount with that number in that place, and only while the dying process holds one. G2 it
//! ends with the mount, and when it is told to. G3 it has nothing of the mount open while the process lives.
//! G4 it watches before the mount is said to be ready, and a process that died before that is dead all the
//! same.
//!
//! No locks.

use crate::mount::number_of;
use forebay_base::{Error, ErrorKind, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, UnmountFlags};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::ffi::OsString;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::JoinHandle;

/// `PIDFD_THREAD`, since Linux 6.9.
const THREAD: PidfdFlags = PidfdFlags::from_bits_retain(OFlags::EXCL.bits());

/// How long a process that dies has to close the connection before it is looked at; and how often then.
const PATIENCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 300_000_000 };

/// A process and the thread in it that lives as long as it is well.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Alive {
    pid: i32,
    tid: i32,
}

impl Alive {
    /// Starts the thread; it ends with `until`.
    pub(crate) fn start(until: impl FnOnce() + Send + 'static) -> Result<(Self, JoinHandle<()>)> {
        let (sender, receiver) = std::sync::mpsc::channel();
        let thread =
            std::thread::Builder::new().name("forebay-alive".to_string()).spawn(move || {
                let _ = sender.send(rustix::thread::gettid().as_raw_nonzero().get());
                until();
            });
        let thread = thread.map_err(|e| Error::from_io("start a thread", e))?;
        let pid = rustix::process::getpid().as_raw_nonzero().get();
        match receiver.recv() {
            Ok(tid) => Ok((Self { pid, tid }, thread)),
            Err(_) => Err(Error::new(ErrorKind::Io, "start a thread", "it ended at once")),
        }
    }
}

/// The running watchdog.
pub struct Watchdog(Child);

impl Watchdog {
    /// Runs `command` with the arguments that [`run`] takes added: it has to call that.
    pub fn start(
        mut command: Command,
        alive: Alive,
        dir: &Path,
        (major, minor): (u32, u32),
    ) -> Result<Self> {
        let numbers = [alive.pid.to_string(), alive.tid.to_string()];
        command.args(numbers).arg(format!("{major}:{minor}")).arg(dir);
        // It lives as long as the mount, and is not to keep anything else in use.
        command.current_dir("/");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let fail = |e| Error::from_io("start the watchdog", e);
        let mut child = command.spawn().map_err(fail)?;
        // A death before it watches is none that it sees (G4).
        let mut word = [0; 1];
        let said = child.stdout.take().map_or(Ok(()), |mut out| out.read_exact(&mut word));
        if let Err(e) = said {
            let _ = child.kill();
            let _ = child.wait();
            return Err(fail(e));
        }
        Ok(Self(child))
    }

    /// The mount is over: ends it.
    pub fn stop(mut self) {
        if let Some(mut stdin) = self.0.stdin.take() {
            let _ = stdin.write_all(b"q");
        }
        let _ = self.0.wait();
    }
}

/// The work of the watchdog: arguments as [`Watchdog::start`] gives them; standard input ends with the
/// process, or says `q`.
pub fn run(args: &[OsString]) -> Result<()> {
    let bad = || Error::new(ErrorKind::InvalidInput, "watchdog", "PID TID MAJOR:MINOR DIR");
    let [pid, tid, number, dir] = args else { return Err(bad()) };
    let int = |word: &OsString| word.to_str().and_then(|w| w.parse::<i32>().ok());
    let (pid, tid) = (int(pid).ok_or_else(bad)?, int(tid).ok_or_else(bad)?);
    let number = number.to_str().and_then(|w| w.split_once(':')).ok_or_else(bad)?;
    let number = (number.0.parse().map_err(|_| bad())?, number.1.parse().map_err(|_| bad())?);
    // A signal for the terminal's processes is none for us.
    let _ = rustix::process::setsid();
    let watched = Watched::open(pid, tid);
    let file = abort_file(number);
    // Who started it may be gone already.
    let _ = std::io::stdout().write_all(b"w").and_then(|()| std::io::stdout().flush());
    if !watched.told_to_end() && !watched.ends_by_itself(pid) {
        abort(file, &PathBuf::from(dir), number)?;
    }
    Ok(())
}

/// The process of the mount, and the thread in it that is to live as long as it; none: gone already.
struct Watched {
    process: Option<OwnedFd>,
    thread: Option<OwnedFd>,
}

impl Watched {
    fn open(pid: i32, tid: i32) -> Self {
        let open =
            |id, flags| Pid::from_raw(id).ok_or(Errno::SRCH).and_then(|id| pidfd_open(id, flags));
        let thread = match open(tid, THREAD) {
            // A kernel that knows no threads there.
            Err(Errno::INVAL) => open(pid, PidfdFlags::empty()),
            opened => opened,
        };
        Self { process: open(pid, PidfdFlags::empty()).ok(), thread: thread.ok() }
    }

    /// Waits until the thread dies (false) or the process says that all is over (true). A thread that is
    /// dead already is not waited for: what is in the pipe tells how it ended.
    fn told_to_end(&self) -> bool {
        let stdin = std::io::stdin();
        let patience = if self.thread.is_some() { None } else { Some(&Timespec::default()) };
        loop {
            let mut both = vec![PollFd::new(&stdin, PollFlags::IN)];
            both.extend(self.thread.iter().map(|fd| PollFd::new(fd, PollFlags::IN)));
            match poll(&mut both, patience) {
                Err(Errno::INTR) => continue,
                Err(_) => return false,
                Ok(_) => {}
            }
            if both[0].revents().is_empty() {
                return false;
            }
            let mut byte = [0; 1];
            return matches!(rustix::io::read(&stdin, &mut byte), Ok(1));
        }
    }

    /// Waits until the rest of the process has ended, or says that all is over: true; or is seen to be
    /// held up with the connection open: false. A process that merely takes its time closes it, and its
    /// number may be another mount's by then.
    fn ends_by_itself(&self, pid: i32) -> bool {
        let Some(process) = &self.process else { return true };
        let stdin = std::io::stdin();
        loop {
            // The pipe ends with the process's descriptors, the connection among them.
            let mut both =
                [PollFd::new(process, PollFlags::IN), PollFd::new(&stdin, PollFlags::IN)];
            match poll(&mut both, Some(&PATIENCE)) {
                Err(Errno::INTR) => {}
                Ok(0) if holds_device(pid) => return false,
                Ok(0) => {}
                _ => return true,
            }
        }
    }
}

/// Whether a thread of a process still has /dev/fuse open.
fn holds_device(pid: i32) -> bool {
    let entries = |path: &Path| std::fs::read_dir(path).into_iter().flatten().flatten();
    entries(Path::new(&format!("/proc/{pid}/task"))).any(|task| {
        entries(&task.path().join("fd"))
            .any(|fd| std::fs::read_link(fd.path()).is_ok_and(|to| to == Path::new("/dev/fuse")))
    })
}

/// What ends a connection when it is written to; nothing, once that is gone (G1).
fn abort_file(number: (u32, u32)) -> Option<OwnedFd> {
    let file = format!("{}/abort", number.0 << 20 | number.1);
    let known = Path::new("/sys/fs/fuse/connections").join(&file);
    let flags = OFlags::WRONLY | OFlags::CLOEXEC;
    let opened = rustix::fs::open(known, flags, Mode::empty());
    opened.or_else(|_| abort_file_unmounted(&file)).ok()
}

/// Ends the connection (G1). The process that serves it holds it: so it is there, though perhaps out of the
/// tree.
fn abort(file: Option<OwnedFd>, dir: &Path, number: (u32, u32)) -> Result<()> {
    if file.is_some_and(|file| rustix::io::write(file, b"1").is_ok()) {
        return Ok(());
    }
    if number_of(dir)? != number {
        return Ok(());
    }
    // While this is open the mount is in use: it is aborted and stays, so that nobody writes into the
    // directory below it. That needs no answer: the root is not asked for.
    let held = rustix::fs::open(dir, OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
    let held = held.map_err(|e| Error::from_io("open", e.into()).with_path(dir))?;
    let flags = UnmountFlags::FORCE | UnmountFlags::NOFOLLOW;
    let done = rustix::mount::unmount(dir, flags);
    drop(held);
    match done {
        Ok(()) | Err(Errno::BUSY) => Ok(()),
        Err(e) => Err(Error::from_io("abort", e.into()).with_path(dir)),
    }
}

/// By the kernel's list of connections, which need not be mounted anywhere. For root.
fn abort_file_unmounted(file: &str) -> std::result::Result<OwnedFd, Errno> {
    let list = rustix::mount::fsopen("fusectl", FsOpenFlags::FSOPEN_CLOEXEC)?;
    rustix::mount::fsconfig_create(list.as_fd())?;
    let flags = FsMountFlags::FSMOUNT_CLOEXEC;
    let list = rustix::mount::fsmount(list.as_fd(), flags, MountAttrFlags::empty())?;
    rustix::fs::openat(&list, file, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mount::{mount, unmount};
    use crate::options::{Options, Via};

    fn may_run() -> bool {
        let root = rustix::process::geteuid().is_root() && Path::new("/dev/fuse").exists();
        let allowed = std::env::var("FOREBAY_ALLOW_SKIP").is_ok_and(|v| v == "1");
        assert!(root || allowed, "mounts need root and /dev/fuse");
        root
    }

    /// G1. The process was seen to hold the connection, which ended a moment later; another mount had its
    /// number when that was aborted, and lost its daemon.
    #[test]
    fn g1_a_number_that_is_used_again_is_not_aborted() {
        if !may_run() {
            return;
        }
        let dir = std::env::temp_dir().join(format!("forebay-watchdog-{}", std::process::id()));
        std::fs::create_dir(&dir).unwrap();
        let options = Options { via: Via::Plain, ..Options::default() };
        let greeted = |device: OwnedFd| rustix::io::read(device, &mut [0; 1 << 18]);
        // Others mount, too: until one has the number of the one before.
        let again = (0..1000).find_map(|_| {
            let first = mount(&dir, &options).unwrap();
            let (number, file) = (first.number, abort_file(first.number).unwrap());
            unmount(&dir, false).unwrap();
            drop(first);
            let second = mount(&dir, &options).unwrap();
            let same = second.number == number;
            let aborted = abort(Some(file), &dir, (0, 0));
            let greeting = greeted(second.into_device());
            unmount(&dir, true).unwrap();
            aborted.unwrap();
            same.then_some(greeting)
        });
        // And the one that is meant is.
        let third = mount(&dir, &options).unwrap();
        abort(abort_file(third.number), &dir, third.number).unwrap();
        let ended = greeted(third.into_device());
        unmount(&dir, true).unwrap();
        std::fs::remove_dir(&dir).unwrap();
        let greeting = again.expect("a number that is used again");
        assert!(greeting.is_ok_and(|len| len > 40), "{greeting:?}");
        assert!(ended.is_err(), "{ended:?}");
    }

    /// A daemon that was killed took longer to end than its watchdog waited; its mount was gone by then, and
    /// a new one, which had got the same number, was aborted (G1).
    #[test]
    fn g1_who_does_not_hold_the_device_is_not_held_up() {
        let mut child = Command::new("sleep").arg("1000").stdin(Stdio::null()).spawn().unwrap();
        assert!(!holds_device(child.id() as i32), "it has no connection that one could end");
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!holds_device(child.id() as i32), "nobody");
        let ours = std::process::id() as i32;
        let Ok(device) = std::fs::File::open("/dev/fuse") else {
            let allowed = std::env::var("FOREBAY_ALLOW_SKIP").is_ok_and(|v| v == "1");
            assert!(allowed, "/dev/fuse cannot be opened");
            return;
        };
        assert!(holds_device(ours));
        drop(device);
    }
}
