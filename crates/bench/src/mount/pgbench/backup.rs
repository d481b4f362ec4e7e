//! The backup: `tar` of ten times the cache into a pipe, repeatedly. The reader of the pipe limits
//! the pace, so that all columns have backups of the same rate. The backup is killed on drop.
//!
//! Invariant: B1 a backup that fails, or that reads nothing, is an error: the database would be as
//! fast as without a backup.

use crate::harness::meter::cpu_seconds_with_ended;
use crate::rivals::server::forebay_binary;
use forebay_base::{Error, ErrorKind, Result};
use std::fs;
use std::io::{Read, Seek, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Size of each file that is backed up, bytes.
const FILE: u64 = 64 << 20;

/// Writes files of `bytes` bytes in all, without zeros, to the new directory `at`.
pub fn fill(at: &Path, bytes: u64) -> Result<()> {
    let fail = |e| Error::from_io("fill", e).with_path(at);
    fs::create_dir(at).map_err(fail)?;
    let mut chunk = vec![0_u8; 1 << 20];
    for (n, byte) in chunk.iter_mut().enumerate() {
        *byte = (n as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes()[0];
    }
    for n in 0..bytes.div_ceil(FILE) {
        let mut file = fs::File::create(at.join(format!("part-{n:04}"))).map_err(fail)?;
        for at in 0..FILE.min(bytes - n * FILE) >> 20 {
            chunk[..8].copy_from_slice(&(n << 32 | at).to_le_bytes());
            file.write_all(&chunk).map_err(fail)?;
        }
        file.sync_all().map_err(fail)?;
    }
    Ok(())
}

/// How the backup reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum How {
    /// `tar`.
    Tar,
    /// `dd iflag=direct` of each file.
    Direct,
    /// `forebay run --uncached -- tar`.
    Uncached,
}

impl How {
    fn command(self, what: &Path, procs: Option<&Path>, said: fs::File) -> Result<Command> {
        let mut command = Command::new("sh");
        let join = "[ -z \"$0\" ] || echo $$ >\"$0\"; ";
        let tar = "exec tar -C \"$1\" -cf - .";
        let direct =
            "for f in \"$1\"/*; do dd if=\"$f\" iflag=direct bs=1M status=none || exit; done";
        let line = match self {
            Self::Tar => format!("{join}{tar}"),
            Self::Direct => format!("{join}{direct}"),
            Self::Uncached => {
                format!("{join}exec \"$2\" run --uncached --on \"$1\" -- tar -C \"$1\" -cf - .")
            }
        };
        command.arg("-c").arg(line).arg(procs.unwrap_or(Path::new(""))).arg(what);
        if self == Self::Uncached {
            command.arg(forebay_binary()?);
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(said);
        // Its own process group, so that a signal reaches all of its processes.
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        Ok(command)
    }
}

/// A running backup.
pub struct Backup {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<Result<()>>>,
    start: Instant,
}

#[derive(Default)]
struct Shared {
    stop: AtomicBool,
    bytes: AtomicU64,
    /// CPU time of processes that have ended, us.
    cpu_micros: AtomicU64,
}

/// Result of a backup.
#[derive(Debug, Clone, Copy, Default)]
pub struct Done {
    /// Rate, MB/s.
    pub rate: f64,
    /// CPU seconds of the processes that read the files.
    pub cpu_seconds: f64,
    /// Duration of the backup.
    pub seconds: f64,
}

impl Backup {
    /// Starts a backup of the directory `what`, at most `pace` bytes per second.
    pub fn start(how: How, what: &Path, pace: u64, procs: Option<&Path>) -> Result<Self> {
        let shared = Arc::new(Shared::default());
        let (own, what, procs) = (shared.clone(), what.to_path_buf(), procs.map(Path::to_path_buf));
        let start = Instant::now();
        let work = move || -> Result<()> {
            while !own.stop.load(Ordering::Relaxed) {
                // Messages go to a memfd, because a pipe without a reader would fill up.
                let said = rustix::fs::memfd_create("said", rustix::fs::MemfdFlags::CLOEXEC);
                let said = fs::File::from(said.map_err(|e| Error::from_io("memfd", e.into()))?);
                let for_it = said.try_clone().map_err(|e| Error::from_io("memfd", e))?;
                let mut command = how.command(&what, procs.as_deref(), for_it)?;
                let mut child = command.spawn().map_err(|e| Error::from_io("start tar", e))?;
                let read = drain(&mut child, &own, pace, start);
                own.count_cpu(&child);
                if let Ok(Drained { bytes, at_end: true }) = read {
                    judge(&mut child, said, bytes)?;
                }
                end(&mut child);
                read?;
            }
            Ok(())
        };
        let thread = std::thread::Builder::new().name("backup".into()).spawn(work);
        let thread = thread.map_err(|e| Error::from_io("start a thread", e))?;
        Ok(Self { shared, thread: Some(thread), start })
    }

    /// Ends the backup; returns its result.
    pub fn stop(mut self) -> Result<Done> {
        let done = self.end();
        let seconds = self.start.elapsed().as_secs_f64();
        done?;
        let shared = &self.shared;
        let bytes = shared.bytes.load(Ordering::Relaxed);
        if bytes == 0 {
            let text = format!("it read nothing in {seconds:.1} s");
            return Err(Error::new(ErrorKind::Io, "backup", text));
        }
        Ok(Done {
            rate: bytes as f64 / seconds / 1e6,
            cpu_seconds: shared.cpu_micros.load(Ordering::Relaxed) as f64 / 1e6,
            seconds,
        })
    }

    fn end(&mut self) -> Result<()> {
        self.shared.stop.store(true, Ordering::Relaxed);
        let thread = self.thread.take();
        thread.map_or(Ok(()), |thread| thread.join().expect("the backup returns"))
    }
}

impl Drop for Backup {
    fn drop(&mut self) {
        // A caller that needs the result has called `stop` before.
        let _ended = self.end();
    }
}

impl Shared {
    /// Called before the process is waited for: afterwards /proc has no figures of it.
    fn count_cpu(&self, child: &Child) {
        let micros = group_cpu_seconds(child.id()) * 1e6;
        self.cpu_micros.fetch_add(micros as u64, Ordering::Relaxed);
    }
}

/// Output of one run of the command.
struct Drained {
    bytes: u64,
    /// Whether it was read to its end; otherwise the backup was stopped.
    at_end: bool,
}

/// Reads the output of the command, no faster than `pace`.
fn drain(child: &mut Child, shared: &Shared, pace: u64, start: Instant) -> Result<Drained> {
    let mut out = child.stdout.take().expect("its output is a pipe");
    let (mut part, mut own) = (vec![0_u8; 256 << 10], 0);
    while !shared.stop.load(Ordering::Relaxed) {
        let count = out.read(&mut part).map_err(|e| Error::from_io("read the backup", e))?;
        if count == 0 {
            return Ok(Drained { bytes: own, at_end: true });
        }
        own += count as u64;
        let bytes = shared.bytes.fetch_add(count as u64, Ordering::Relaxed) + count as u64;
        let due = Duration::from_secs_f64(bytes as f64 / pace as f64);
        let ahead = due.saturating_sub(start.elapsed());
        if ahead > Duration::from_millis(2) {
            std::thread::sleep(ahead);
        }
    }
    Ok(Drained { bytes: own, at_end: false })
}

/// Checks a run that was not stopped (B1).
fn judge(child: &mut Child, mut said: fs::File, bytes: u64) -> Result<()> {
    let status = child.wait().map_err(|e| Error::from_io("wait", e))?;
    if status.success() && bytes > 0 {
        return Ok(());
    }
    let mut text = Vec::new();
    let _read = said.rewind().and_then(|()| said.read_to_end(&mut text));
    let text = String::from_utf8_lossy(&text);
    let said = text.lines().take(3).collect::<Vec<_>>().join(" / ");
    Err(Error::new(ErrorKind::Io, "backup", format!("{status} after {bytes} bytes: {said}")))
}

/// CPU seconds of all processes of a group, with children that have ended.
fn group_cpu_seconds(group: u32) -> f64 {
    let all = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = all.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let of = |pid: &u32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        // The fields after the name in parentheses: state, parent, group.
        let rest = stat.rsplit(')').next().unwrap_or_default();
        rest.split_whitespace().nth(2).and_then(|g| g.parse().ok()) == Some(group)
    };
    pids.filter(of).filter_map(cpu_seconds_with_ended).sum()
}

fn end(child: &mut Child) {
    // The reader fails once its pipe is closed; SIGTERM also ends the processes that it
    // started.
    let group = i32::try_from(child.id()).ok().and_then(rustix::process::Pid::from_raw);
    if child.try_wait().is_ok_and(|ended| ended.is_none())
        && let Some(group) = group
    {
        let _gone = rustix::process::kill_process_group(group, rustix::process::Signal::TERM);
    }
    let _ended = child.wait();
}

#[cfg(test)]
mod tests {
    use super::*;

    const PACE: u64 = 1 << 30;

    fn until(what: impl Fn() -> bool) {
        let deadline = Instant::now() + Duration::from_secs(60);
        while !what() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(what(), "after a minute");
    }

    /// B1. The story: the messages of the backup were lost, and a failed backup was started again.
    /// The database was as fast as alone, and the bar was met.
    #[test]
    fn b1_one_that_fails_is_an_error() {
        for how in [How::Tar, How::Direct] {
            let backup = Backup::start(how, Path::new("/nowhere/at-all"), PACE, None).unwrap();
            until(|| backup.thread.as_ref().unwrap().is_finished());
            let text = backup.stop().unwrap_err().to_string();
            assert!(text.contains("after 0 bytes") && text.contains("No such file"), "{text}");
        }
    }

    #[test]
    fn backup_repeats_files_until_stopped() {
        let dir = std::env::temp_dir().join(format!("forebay-backup-{}", std::process::id()));
        std::fs::create_dir(&dir).unwrap();
        std::fs::write(dir.join("part"), vec![7; 100_000]).unwrap();
        let backup = Backup::start(How::Tar, &dir, PACE, None).unwrap();
        until(|| backup.shared.bytes.load(Ordering::Relaxed) > 300_000);
        let done = backup.stop();
        std::fs::remove_dir_all(&dir).unwrap();
        let done = done.unwrap();
        assert!(done.rate > 0.0 && done.seconds > 0.0, "{done:?}");
    }
}
