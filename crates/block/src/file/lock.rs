//! The lock on a file, which excludes a second process, and waiting for it.
//!
//! The lock belongs to the open file description (OFD lock), so it lasts as long as the last
//! reference, or until the opener's process releases it after the last request. Each request in
//! flight holds such a reference. After a kill -9 the lock may therefore outlive the process: the
//! system still has to end its requests and to take its io_uring down. A restart at once must wait
//! for that, and not fail. So an opener that finds the file locked searches for a living process
//! that holds the lock. If there is one the opener fails; else it waits for a while.
//!
//! Direct I/O has an open file description of its own, which holds a part of the lock
//! (`sys::share_lock`).
//!
//! Invariants: K1 an opener fails before the end of its wait only if it saw a living process hold a
//! lock on the file twice. Where it cannot see that (another user's process, another container) it
//! fails after the wait. K9 each open file description by which the device writes holds a lock that
//! refuses other openers: no write of a killed process lands after the next opener has the file.

use super::options::FileOptions;
use crate::sys;
use forebay_base::{Error, ErrorKind, Result};
use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

/// The first pause between two tries. Each later one is twice as long, up to [`PAUSE_LAST`].
const PAUSE_FIRST: Duration = Duration::from_millis(10);
const PAUSE_LAST: Duration = Duration::from_millis(200);
/// The process is exiting (PF_EXITING, see proc_pid_stat(5), field `flags`).
const EXITING: u64 = 0x4;
/// SIGKILL in a mask of pending signals.
const KILLED: u64 = 1 << 8;

/// Locks the file for as long as it is open. Waits up to `options.lock_wait` for the lock of a
/// process that has ended.
pub(super) fn lock(path: &Path, fd: &OwnedFd, options: &FileOptions) -> Result<()> {
    let (start, mut pause, mut seen) = (Instant::now(), PAUSE_FIRST, None);
    loop {
        match sys::lock_file(fd.as_fd(), !options.read_only) {
            Ok(()) => {
                if pause > PAUSE_FIRST {
                    log::warn!("{}: the lock is free now", path.display());
                }
                return Ok(());
            }
            Err(e) if matches!(e.raw_os_error(), Some(libc::EAGAIN | libc::EACCES)) => {}
            Err(e) => return Err(Error::from_io("lock", e)),
        }
        let holder = holder(fd, !options.read_only);
        if let Some((pid, name)) = &holder
            && seen == Some(*pid)
        {
            let text = format!("process {pid} ({name}) holds this file");
            return Err(Error::new(ErrorKind::Busy, "lock", text));
        }
        let left = options.lock_wait.saturating_sub(start.elapsed());
        if left.is_zero() {
            let text = match (options.lock_wait, holder) {
                (_, Some((pid, name))) => format!("process {pid} ({name}) holds this file"),
                (Duration::ZERO, None) => "another process holds this file".to_string(),
                (wait, None) => format!("another process holds this file, also after {wait:?}"),
            };
            return Err(Error::new(ErrorKind::Busy, "lock", text));
        }
        if holder.is_none() && (seen.is_some() || pause == PAUSE_FIRST) {
            log::warn!(
                "{}: locked, but no living process is seen to hold it; waiting up to {:?} for \
                 the system to let it go",
                path.display(),
                options.lock_wait
            );
        }
        seen = holder.map(|(pid, _)| pid);
        std::thread::sleep(pause.min(left));
        pause = (pause * 2).min(PAUSE_LAST);
    }
}

/// Releases what this process has locked: the descriptors that children of fork(2) have keep the
/// lock otherwise (file.F1).
pub(super) fn unlock(path: &Path, fd: &OwnedFd) {
    if let Err(e) = sys::unlock_file(fd.as_fd()) {
        log::warn!("{}: its lock is not released: {e}", path.display());
    }
}

/// A living process that has the file open with a conflicting lock, and its name, as far as /proc
/// shows it.
fn holder(fd: &OwnedFd, exclusive: bool) -> Option<(u32, String)> {
    let ours = rustix::fs::fstat(fd).ok()?;
    let pids = fs::read_dir("/proc").ok()?.flatten();
    let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    for pid in pids {
        let Ok(infos) = fs::read_dir(format!("/proc/{pid}/fdinfo")) else { continue };
        let locks = infos.flatten().any(|info| {
            let text = fs::read_to_string(info.path()).unwrap_or_default();
            let number = info.file_name();
            let same = || {
                let link = Path::new("/proc").join(pid.to_string()).join("fd").join(&number);
                rustix::fs::stat(&link)
                    .is_ok_and(|s| (s.st_dev, s.st_ino) == (ours.st_dev, ours.st_ino))
            };
            keeps_out(&text, ours.st_ino, exclusive) && same()
        });
        if locks && is_living(pid) {
            let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
            return Some((pid, name.trim().to_string()));
        }
    }
    None
}

/// Whether an open file, by its fdinfo, has a lock on this inode that conflicts with ours.
fn keeps_out(fdinfo: &str, inode: u64, exclusive: bool) -> bool {
    let inode = format!(":{inode}");
    fdinfo.lines().filter_map(|line| line.strip_prefix("lock:")).any(|lock| {
        let words: Vec<&str> = lock.split_whitespace().collect();
        let kind = words.iter().any(|word| *word == "WRITE" || (exclusive && *word == "READ"));
        let ofd = words.iter().any(|word| matches!(*word, "OFDLCK" | "POSIX"));
        ofd && kind && words.iter().any(|word| word.ends_with(&inode))
    })
}

/// Neither dead nor dying.
fn is_living(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The process name, in brackets, may contain any characters.
    let mut words = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
    let state = words.next().unwrap_or("X");
    let flags = words.nth(5).and_then(|word| word.parse::<u64>().ok()).unwrap_or(EXITING);
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let killed = status.lines().any(|line| {
        let mask = line.strip_prefix("SigPnd:").or_else(|| line.strip_prefix("ShdPnd:"));
        mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
            .is_some_and(|mask| mask & KILLED != 0)
    });
    !matches!(state, "Z" | "X" | "x") && flags & EXITING == 0 && !killed
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_base::fork::Process;

    #[test]
    fn fdinfo_of_kernel_format_is_parsed() {
        let text = "pos:\t0\nflags:\t0100002\nmnt_id:\t30\nino:\t77\n\
                    lock:\t1: OFDLCK ADVISORY  WRITE -1 08:01:77 0 EOF\n";
        assert!(keeps_out(text, 77, true) && keeps_out(text, 77, false));
        assert!(!keeps_out(text, 7, true) && !keeps_out(text, 177, true));
        let shared = text.replace("WRITE", "READ ");
        assert!(keeps_out(&shared, 77, true) && !keeps_out(&shared, 77, false));
        assert!(!keeps_out("pos:\t0\nino:\t77\n", 77, true));
    }

    /// A copy of the descriptor is what a child of fork(2) has.
    #[test]
    fn f1_lock_ends_with_file_of_its_opener_only() {
        use crate::file::inner::Inner;
        let path = std::env::temp_dir().join(format!("forebay-unlock-{}", std::process::id()));
        let create_size = Some(4096);
        let options = FileOptions { create_size, lock_wait: Duration::ZERO, ..Default::default() };
        for is_child in [false, true] {
            let mut file = Inner::open(&path, &options).unwrap();
            let copy = file.buffered.try_clone().unwrap();
            if is_child {
                file.opener = Process::default();
            }
            drop(file);
            let again = Inner::open(&path, &options).map(drop);
            assert_eq!(again.is_ok(), !is_child, "{again:?}");
            drop(copy);
        }
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn is_living_true_for_self_only() {
        assert!(is_living(std::process::id()));
        assert!(!is_living(u32::MAX));
        let mut child = std::process::Command::new("sleep").arg("600").spawn().unwrap();
        assert!(is_living(child.id()));
        child.kill().unwrap();
        // Not reaped yet: dying or a zombie, and either way not living.
        assert!(!is_living(child.id()));
        child.wait().unwrap();
    }
}
