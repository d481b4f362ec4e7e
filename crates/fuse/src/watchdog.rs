//! A second process that aborts the connection of a mount when the serving process dies.
//!
//! Suppose a thread of the serving process waits in the kernel for a page that a request of the
//! same mount has to fill. If the process is then killed, it never closes /dev/fuse. The thread
//! waits for the request, the request for an answer, and every call on the mount for ever. The
//! watchdog observes the death and aborts the connection; then every call fails with ENOTCONN.
//!
//! It observes one thread, which does nothing else: a thread that waits in the kernel keeps the
//! process as a whole from ending.
//!
//! Invariants: G1 only the connection it was started for is aborted. Device numbers are reused, so
//! the watchdog opens the connection's `abort` file while the process lives: an open file never
//! denotes a later connection. Without fusectl it aborts only a mount with that number at that
//! directory, and only while the dying process has /dev/fuse open. G2 it ends with the mount, or
//! when it is told to. G3 it has nothing of the mount open while the process lives. G4 it observes
//! before the mount is reported as ready, and detects a process that died before that.
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

/// How long a dying process gets to close the connection before the first check, and the interval
/// of the checks.
const PATIENCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 300_000_000 };

/// A process, and a thread in it that ends when the session does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Alive {
    pid: i32,
    tid: i32,
}

impl Alive {
    /// Starts the thread, which runs `until` and ends after it.
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
    /// Runs `command` with the arguments of [`run`] added; the command has to call that function.
    pub fn start(
        mut command: Command,
        alive: Alive,
        dir: &Path,
        (major, minor): (u32, u32),
    ) -> Result<Self> {
        let numbers = [alive.pid.to_string(), alive.tid.to_string()];
        command.args(numbers).arg(format!("{major}:{minor}")).arg(dir);
        // It lives as long as the mount, and must not keep another directory in use.
        command.current_dir("/");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let fail = |e| Error::from_io("start the watchdog", e);
        let mut child = command.spawn().map_err(fail)?;
        // Waits for the watchdog's first byte: the mount is ready only when it is observed (G4).
        let mut word = [0; 1];
        let said = child.stdout.take().map_or(Ok(()), |mut out| out.read_exact(&mut word));
        if let Err(e) = said {
            let _ = child.kill();
            let _ = child.wait();
            return Err(fail(e));
        }
        Ok(Self(child))
    }

    /// Ends the watchdog, because the mount has ended.
    pub fn stop(mut self) {
        if let Some(mut stdin) = self.0.stdin.take() {
            let _ = stdin.write_all(b"q");
        }
        let _ = self.0.wait();
    }
}

/// The work of the watchdog. Arguments are those that [`Watchdog::start`] adds. Standard input ends
/// with the process, or delivers `q`.
pub fn run(args: &[OsString]) -> Result<()> {
    let bad = || Error::new(ErrorKind::InvalidInput, "watchdog", "PID TID MAJOR:MINOR DIR");
    let [pid, tid, number, dir] = args else { return Err(bad()) };
    let int = |word: &OsString| word.to_str().and_then(|w| w.parse::<i32>().ok());
    let (pid, tid) = (int(pid).ok_or_else(bad)?, int(tid).ok_or_else(bad)?);
    let number = number.to_str().and_then(|w| w.split_once(':')).ok_or_else(bad)?;
    let number = (number.0.parse().map_err(|_| bad())?, number.1.parse().map_err(|_| bad())?);
    // Signals of the terminal's process group must not end the watchdog.
    let _ = rustix::process::setsid();
    let watched = Watched::open(pid, tid);
    let file = abort_file(number);
    // Writing fails if the process that started it has ended.
    let _ = std::io::stdout().write_all(b"w").and_then(|()| std::io::stdout().flush());
    if !watched.told_to_end() && !watched.ends_by_itself(pid) {
        abort(file, &PathBuf::from(dir), number)?;
    }
    Ok(())
}

/// The process of the mount and its observed thread; `None`: it had ended already.
struct Watched {
    process: Option<OwnedFd>,
    thread: Option<OwnedFd>,
}

impl Watched {
    fn open(pid: i32, tid: i32) -> Self {
        let open =
            |id, flags| Pid::from_raw(id).ok_or(Errno::SRCH).and_then(|id| pidfd_open(id, flags));
        let thread = match open(tid, THREAD) {
            // Before Linux 6.9 there are no pidfds of threads: then the process is observed.
            Err(Errno::INVAL) => open(pid, PidfdFlags::empty()),
            opened => opened,
        };
        Self { process: open(pid, PidfdFlags::empty()).ok(), thread: thread.ok() }
    }

    /// Waits until the thread ends (false) or the process reports the end of the mount (true). If
    /// the thread has ended already, the pipe tells which of the two it was.
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

    /// Waits until the rest of the process has ended or reports the end of the mount: true. If it
    /// is found dying with the connection open: false. Each check looks for the open connection: a
    /// slow process may have closed it already, and another mount may have its number.
    fn ends_by_itself(&self, pid: i32) -> bool {
        let Some(process) = &self.process else { return true };
        let stdin = std::io::stdin();
        loop {
            // The pipe closes together with the process's other descriptors, such as the
            // connection.
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

/// Opens the file that aborts the connection when it is written; writing has no effect after the
/// connection has ended (G1).
fn abort_file(number: (u32, u32)) -> Option<OwnedFd> {
    let file = format!("{}/abort", number.0 << 20 | number.1);
    let known = Path::new("/sys/fs/fuse/connections").join(&file);
    let flags = OFlags::WRONLY | OFlags::CLOEXEC;
    let opened = rustix::fs::open(known, flags, Mode::empty());
    opened.or_else(|_| abort_file_unmounted(&file)).ok()
}

/// Aborts the connection (G1). It still exists, because the serving process has it open, though it
/// may be unmounted.
fn abort(file: Option<OwnedFd>, dir: &Path, number: (u32, u32)) -> Result<()> {
    if file.is_some_and(|file| rustix::io::write(file, b"1").is_ok()) {
        return Ok(());
    }
    if number_of(dir)? != number {
        return Ok(());
    }
    // As long as this is open the mount is in use, so it is aborted but stays mounted. Otherwise
    // programs would write into the directory below. Opening it sends no request to the daemon.
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

/// The `abort` file through a private mount of fusectl, which need not be mounted. Needs root.
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

    /// Waits for what ends once the children that other tests have forked come to their exec: up to
    /// then they hold copies of all descriptors.
    fn until(what: &str, mut condition: impl FnMut() -> bool) {
        let start = std::time::Instant::now();
        while !condition() {
            assert!(start.elapsed().as_secs() < 300, "{what}");
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    }

    fn may_run() -> bool {
        let root = rustix::process::geteuid().is_root() && Path::new("/dev/fuse").exists();
        let allowed = std::env::var("FOREBAY_ALLOW_SKIP").is_ok_and(|v| v == "1");
        assert!(root || allowed, "mounts need root and /dev/fuse");
        root
    }

    /// G1. The story: the process was found with the connection open, which ended a moment later.
    /// Another mount had got its number when that number was aborted, and lost its daemon.
    #[test]
    fn g1_reused_connection_number_is_not_aborted() {
        if !may_run() {
            return;
        }
        let dir = std::env::temp_dir().join(format!("forebay-watchdog-{}", std::process::id()));
        std::fs::create_dir(&dir).unwrap();
        let options = Options { via: Via::Plain, ..Options::default() };
        let greeted = |device: OwnedFd| rustix::io::read(device, &mut [0; 1 << 18]);
        // Other processes mount, too, so this is repeated until a mount gets the number of the one
        // before.
        let again = (0..1000).find_map(|_| {
            let first = mount(&dir, &options).unwrap();
            let (number, file) = (first.number, abort_file(first.number).unwrap());
            until("nothing uses the mount", || match unmount(&dir, false) {
                Err(e) if e.kind() == ErrorKind::Busy => false,
                done => done.map(|()| true).unwrap(),
            });
            drop(first);
            let second = mount(&dir, &options).unwrap();
            let same = second.number == number;
            let aborted = abort(Some(file), &dir, (0, 0));
            let greeting = greeted(second.into_device());
            unmount(&dir, true).unwrap();
            aborted.unwrap();
            same.then_some(greeting)
        });
        // The mount with this number is aborted.
        let third = mount(&dir, &options).unwrap();
        abort(abort_file(third.number), &dir, third.number).unwrap();
        let ended = greeted(third.into_device());
        unmount(&dir, true).unwrap();
        std::fs::remove_dir(&dir).unwrap();
        let greeting = again.expect("a number that is used again");
        assert!(greeting.is_ok_and(|len| len > 40), "{greeting:?}");
        assert!(ended.is_err(), "{ended:?}");
    }

    /// The story: a killed daemon took longer to end than its watchdog waited. Its mount had ended
    /// by then, and a new mount with the same number was aborted (G1).
    #[test]
    fn g1_process_without_device_is_not_aborted() {
        let mut child = Command::new("sleep").arg("1000").stdin(Stdio::null()).spawn().unwrap();
        // A process is spawned once exec has taken its memory, before it closes descriptors.
        until("it has no connection that one could end", || !holds_device(child.id() as i32));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!holds_device(child.id() as i32), "the process has ended");
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
