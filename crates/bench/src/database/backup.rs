//! The backup: one thread that reads files from start to end, by one of several methods, no faster
//! than its pace.
//!
//! All methods read the same bytes, in pieces of the same size, at the same pace.
//!
//! Invariant: B1 a backup that fails, or finds nothing to read, reports an error.

use super::engine::{CachedFile, UNCACHED};
use crate::harness::image::open_with;
use crate::harness::load::Target;
use crate::harness::sys::mincore_pages;
use crate::rivals::kernel::KernelFile;
use forebay_base::buf::AlignedBuf;
use forebay_base::{Error, ErrorKind, Result};
use rustix::fs::{Advice, OFlags, fadvise};
use std::fs::File;
use std::num::NonZeroU64;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Bytes of one read.
pub const PIECE: usize = 256 << 10;

/// How the backup reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadMode {
    /// Through Forebay, ordinary reads.
    Forebay,
    /// Through Forebay, uncached reads.
    ForebayUncached,
    /// Through the kernel, ordinary reads, as `tar` does.
    Plain,
    /// As `nocache`: after each file it drops the pages that were not cached before.
    Nocache,
    /// Drops each piece after reading it (POSIX_FADV_DONTNEED).
    Behind,
    /// O_DIRECT.
    Direct,
    /// RWF_DONTCACHE.
    Dontcache,
}

/// All methods, with their names in a job.
const READ_MODES: [(ReadMode, &str); 7] = [
    (ReadMode::Forebay, "forebay"),
    (ReadMode::ForebayUncached, "forebay-uncached"),
    (ReadMode::Plain, "plain"),
    (ReadMode::Nocache, "nocache"),
    (ReadMode::Behind, "behind"),
    (ReadMode::Direct, "direct"),
    (ReadMode::Dontcache, "dontcache"),
];

impl ReadMode {
    /// The name of this mode in a job.
    pub fn name(self) -> &'static str {
        READ_MODES.iter().find(|(mode, _)| *mode == self).map_or("", |(_, name)| name)
    }

    /// The method of this name.
    pub fn of_name(name: &str) -> Option<Self> {
        READ_MODES.iter().find(|(_, own)| *own == name).map(|(mode, _)| *mode)
    }
}

/// One open file of the backup.
enum Open {
    Forebay(CachedFile, i32),
    Kernel(KernelFile, ReadMode, Vec<bool>),
}

impl Open {
    fn new(mode: ReadMode, path: &Path) -> Result<Self> {
        match mode {
            ReadMode::Forebay => return Ok(Self::Forebay(CachedFile::open(path)?, 0)),
            ReadMode::ForebayUncached => {
                return Ok(Self::Forebay(CachedFile::open(path)?, UNCACHED));
            }
            _ => {}
        }
        let flags = if mode == ReadMode::Direct { OFlags::DIRECT } else { OFlags::empty() };
        let file = open_with(path, flags)?;
        let before = if mode == ReadMode::Nocache { pages(&file)? } else { Vec::new() };
        let file = match mode {
            ReadMode::Dontcache => KernelFile::dontcache(file)?,
            _ => KernelFile::new(file),
        };
        Ok(Self::Kernel(file, mode, before))
    }

    fn read(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        match self {
            Self::Forebay(file, flags) => match file.read_at(buf, offset, *flags)? {
                got if got == buf.len() => Ok(()),
                got => {
                    let text = format!("{got} of {} bytes", buf.len());
                    Err(Error::new(ErrorKind::UnexpectedEof, "read", text))
                }
            },
            Self::Kernel(file, mode, _) => {
                file.read(buf, offset)?;
                if *mode == ReadMode::Behind {
                    give_up(&file.file, offset, buf.len() as u64)?;
                }
                Ok(())
            }
        }
    }

    fn close(self) -> Result<()> {
        let Self::Kernel(file, ReadMode::Nocache, before) = self else { return Ok(()) };
        runs_of_false(&before).try_for_each(|(start, count)| {
            give_up(&file.file, start as u64 * 4096, count as u64 * 4096)
        })
    }
}

fn pages(file: &File) -> Result<Vec<bool>> {
    mincore_pages(file).map_err(|e| Error::from_io("mincore", e))
}

fn give_up(file: &File, offset: u64, len: u64) -> Result<()> {
    let done = fadvise(file, offset, NonZeroU64::new(len), Advice::DontNeed);
    done.map_err(|e| Error::from_io("fadvise", e.into()))
}

/// Start and length of each run of `false`.
fn runs_of_false(flags: &[bool]) -> impl Iterator<Item = (usize, usize)> + '_ {
    let mut at = 0;
    flags.chunk_by(|a, b| a == b).filter_map(move |run| {
        let start = at;
        at += run.len();
        (!run[0]).then_some((start, run.len()))
    })
}

/// A running backup.
pub struct Backup {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<Result<()>>>,
}

#[derive(Default)]
struct Shared {
    stop: AtomicBool,
    ended: AtomicBool,
    bytes: AtomicU64,
    micros: AtomicU64,
}

/// The work of a backup.
#[derive(Debug, Clone)]
pub struct Plan {
    /// How it reads.
    pub mode: ReadMode,
    /// A file, or a directory of files.
    pub what: PathBuf,
    /// Total bytes; if the files have fewer, they are read again from the first one on.
    pub bytes: u64,
    /// Bytes per second; 0: unlimited.
    pub pace: u64,
    /// Time after which it stops in any case.
    pub limit: Duration,
}

impl Plan {
    fn files(&self) -> Result<Vec<(PathBuf, u64)>> {
        let fail = |e| Error::from_io("list", e).with_path(&self.what);
        let mut files = vec![self.what.clone()];
        if self.what.is_dir() {
            let entries = std::fs::read_dir(&self.what).map_err(fail)?;
            files = entries.map(|e| e.map(|e| e.path()).map_err(fail)).collect::<Result<_>>()?;
            files.sort();
        }
        let sized = files.into_iter().map(|file| {
            let size = file.metadata().map_err(fail)?.len();
            Ok((file, size / PIECE as u64 * PIECE as u64))
        });
        sized.collect()
    }

    fn run(&self, shared: &Shared) -> Result<()> {
        let files = self.files()?;
        if files.iter().map(|(_, size)| size).sum::<u64>() == 0 {
            return Err(Error::new(ErrorKind::InvalidInput, "backup", "there is nothing to read"));
        }
        let (start, mut done) = (Instant::now(), 0);
        let is_over = |done| {
            done >= self.bytes
                || start.elapsed() >= self.limit
                || shared.stop.load(Ordering::Relaxed)
        };
        let mut buf = AlignedBuf::new(PIECE);
        for (path, size) in files.iter().cycle() {
            let file = Open::new(self.mode, path)?;
            for offset in (0..*size).step_by(PIECE) {
                if is_over(done) {
                    break;
                }
                file.read(&mut buf, offset).map_err(|e| e.with_path(path))?;
                done += PIECE as u64;
                shared.bytes.store(done, Ordering::Relaxed);
                let due = match self.pace {
                    0 => Duration::ZERO,
                    pace => Duration::from_secs_f64(done as f64 / pace as f64),
                };
                let ahead = due.saturating_sub(start.elapsed());
                if ahead > Duration::from_millis(2) {
                    std::thread::sleep(ahead);
                }
                shared.micros.store(start.elapsed().as_micros() as u64, Ordering::Relaxed);
            }
            file.close()?;
            if is_over(done) {
                break;
            }
        }
        Ok(())
    }
}

/// State of a backup.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Progress {
    /// Whether it has ended.
    pub ended: bool,
    /// MB/s so far.
    pub rate: f64,
}

impl Backup {
    /// Starts the backup.
    pub fn start(plan: Plan) -> Result<Self> {
        let shared = Arc::new(Shared::default());
        let own = shared.clone();
        let work = move || {
            let done = plan.run(&own);
            own.ended.store(true, Ordering::Release);
            done
        };
        let thread = std::thread::Builder::new().name("backup".into()).spawn(work);
        let thread = thread.map_err(|e| Error::from_io("start a thread", e))?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// The state of the backup, or its error if it failed (B1).
    pub fn progress(&mut self) -> Result<Progress> {
        let ended = self.shared.ended.load(Ordering::Acquire);
        if ended && let Some(thread) = self.thread.take() {
            thread.join().expect("the backup returns")?;
        }
        let bytes = self.shared.bytes.load(Ordering::Relaxed) as f64;
        let micros = self.shared.micros.load(Ordering::Relaxed).max(1) as f64;
        Ok(Progress { ended, rate: bytes / micros })
    }
}

impl Drop for Backup {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        // The caller has abandoned the backup, so its error is ignored.
        let _ended = self.thread.take().map(JoinHandle::join);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::sys::page_cache_bytes;

    const LIMIT: Duration = Duration::from_secs(60);

    fn wait(mut backup: Backup) -> Result<Progress> {
        loop {
            let progress = backup.progress()?;
            if progress.ended {
                return Ok(progress);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn folder(name: &str) -> PathBuf {
        let dir = format!("/var/tmp/forebay-backup-{name}-{}", std::process::id());
        std::fs::create_dir(&dir).unwrap();
        dir.into()
    }

    #[test]
    fn nocache_keeps_pages_that_were_cached_before() {
        let dir = folder("modes");
        let path = dir.join("a");
        std::fs::write(&path, vec![1; 1 << 20]).unwrap();
        let file = File::open(&path).unwrap();
        let cached = |what: &Path, mode| {
            crate::database::data::drop_cached(&path).unwrap();
            KernelFile::new(open_with(&path, OFlags::empty()).unwrap());
            fadvise(&file, 0, None, Advice::Random).unwrap();
            let mut page = [0; 4096];
            std::os::unix::fs::FileExt::read_exact_at(&file, &mut page, 512 << 10).unwrap();
            let plan =
                Plan { mode, what: what.into(), bytes: 1 << 20, pace: 1 << 30, limit: LIMIT };
            wait(Backup::start(plan).unwrap()).unwrap();
            page_cache_bytes(&file, 0, 1 << 20).unwrap()
        };
        assert_eq!(cached(&dir, ReadMode::Nocache), 4096, "the page from before");
        assert_eq!(cached(&path, ReadMode::Behind), 0);
        assert_eq!(cached(&path, ReadMode::Plain), 1 << 20);
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn failed_or_empty_backup_is_an_error() {
        let dir = folder("none");
        for what in [dir.clone(), dir.join("nowhere")] {
            let plan =
                Plan { mode: ReadMode::Plain, what, bytes: 1 << 20, pace: 1 << 30, limit: LIMIT };
            assert!(wait(Backup::start(plan).unwrap()).is_err(), "B1");
        }
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn backup_keeps_its_pace_and_reads_files_again() {
        let dir = folder("pace");
        std::fs::write(dir.join("a"), vec![1; 1 << 20]).unwrap();
        let plan = Plan {
            mode: ReadMode::Plain,
            what: dir.clone(),
            bytes: 8 << 20,
            pace: 80 << 20,
            limit: LIMIT,
        };
        let progress = wait(Backup::start(plan).unwrap()).unwrap();
        std::fs::remove_dir_all(&dir).unwrap();
        assert!(progress.rate <= 80.0 * 1.048_576 * 1.03, "{progress:?}");
    }

    /// Without the limit, a backup of more bytes than the disk can deliver in time would hardly
    /// end.
    #[test]
    fn backup_without_pace_stops_at_its_limit() {
        let dir = folder("limit");
        std::fs::write(dir.join("a"), vec![1; 1 << 20]).unwrap();
        let limit = Duration::from_millis(50);
        let plan =
            Plan { mode: ReadMode::Plain, what: dir.clone(), bytes: u64::MAX, pace: 0, limit };
        let progress = wait(Backup::start(plan).unwrap()).unwrap();
        std::fs::remove_dir_all(&dir).unwrap();
        assert!(progress.ended && progress.rate > 0.0, "{progress:?}");
    }

    #[test]
    fn read_modes_and_runs_are_found_by_name() {
        assert!(READ_MODES.iter().all(|(mode, name)| ReadMode::of_name(name) == Some(*mode)));
        assert!(READ_MODES.iter().all(|(mode, name)| mode.name() == *name));
        let runs: Vec<_> = runs_of_false(&[false, false, true, false, true]).collect();
        assert_eq!(runs, [(0, 2), (3, 1)]);
        assert_eq!(runs_of_false(&[]).count(), 0);
    }
}
