//! Many files of 4 KiB on one cache: opened, written, synced, closed, opened again and compared.
//!
//! Invariants: M1 threads and memory are counted with all files of a wave open, minus what the
//! process had before the cache was made. M2 the cost of one more file is measured on files in
//! memory (/dev/shm), where a sync costs next to nothing: on a disk its time would hide all else.
//! M3 every file is read back and compared.

use crate::harness::meter::{resident_bytes, threads_of};
use crate::harness::options::Options;
use crate::report::model::{Good, Report, median};
use forebay::{Cache, CacheConfig, File, OpenOptions};
use forebay_base::units::{MIB, format_size};
use forebay_base::{Error, ErrorKind, Result};
use rustix::process::{Resource, getrlimit, setrlimit};
use std::path::{Path, PathBuf};
use std::time::Instant;

const BLOCK: usize = 4096;
/// Size of the cache in the quick form and in the full one, bytes.
const BUDGETS: [u64; 2] = [32 * MIB, 256 * MIB];
/// Threads of the bench that open, write, sync and close files.
const HANDS: usize = 4;
/// Files per directory.
const FOLDER: usize = 1000;
/// Number of open files at which the cost of one more is the baseline.
const FEW: usize = 10;
const THREADS: f64 = 12.0;
const OVER_MIB: f64 = 32.0;

/// A directory with the files, removed on drop.
struct Folder(PathBuf);

const PREFIX: &str = "forebay-bench-files-";

/// Removes directories in `parent` that killed benches have left.
fn sweep(parent: &Path) {
    for entry in std::fs::read_dir(parent).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let pid = name.strip_prefix(PREFIX).and_then(|pid| pid.parse::<u32>().ok());
        if pid.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()) {
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}

impl Folder {
    fn new(parent: &Path) -> Result<Self> {
        sweep(parent);
        let path = parent.join(format!("{PREFIX}{}", std::process::id()));
        std::fs::create_dir_all(&path).map_err(|e| Error::from_io("make", e).with_path(&path))?;
        Ok(Self(path))
    }

    fn file(&self, n: usize) -> PathBuf {
        self.0.join(format!("{}", n / FOLDER)).join(format!("{n}"))
    }

    fn make_directories(&self, count: usize) -> Result<()> {
        for n in 0..count.div_ceil(FOLDER) {
            let path = self.0.join(n.to_string());
            std::fs::create_dir_all(&path).map_err(|e| Error::from_io("make", e))?;
        }
        Ok(())
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Threads and memory of the process before the cache was made (M1).
#[derive(Clone, Copy)]
struct Before {
    threads: u64,
    resident: u64,
}

#[derive(Default)]
struct Most {
    threads: u64,
    resident: u64,
    open: usize,
}

impl Before {
    fn now() -> Self {
        let pid = std::process::id();
        Self { threads: threads_of(pid), resident: resident_bytes(pid).unwrap_or(0) }
    }

    fn look(self, most: &mut Most, open: usize) {
        let now = Self::now();
        most.threads = most.threads.max(now.threads.saturating_sub(self.threads));
        most.resident = most.resident.max(now.resident.saturating_sub(self.resident));
        most.open = most.open.max(open);
    }
}

fn options_of() -> OpenOptions {
    OpenOptions::read_write().create(true).create_size(BLOCK as u64).clone()
}

fn content(n: usize) -> [u8; BLOCK] {
    let mut block = [n as u8; BLOCK];
    block[..8].copy_from_slice(&(n as u64).to_le_bytes());
    block
}

/// Runs `work` on each item with a few threads. Returns the results in order up to the first
/// failure, and that failure.
fn by_hands<T: Send + Sync, R: Send>(
    items: &[T],
    work: impl Fn(&T) -> Result<R> + Sync,
) -> (Vec<R>, Option<Error>) {
    let work = &work;
    let parts: Vec<Vec<Result<R>>> = std::thread::scope(|scope| {
        let share = items.len().div_ceil(HANDS).max(1);
        let hand = |part: &'_ [T]| -> Vec<Result<R>> {
            let mut done = Vec::new();
            for item in part {
                done.push(work(item));
                if done.last().is_some_and(Result::is_err) {
                    break;
                }
            }
            done
        };
        let hands: Vec<_> =
            items.chunks(share).map(|part| scope.spawn(move || hand(part))).collect();
        hands.into_iter().map(|h| h.join().expect("a hand returns")).collect()
    });
    let (mut done, mut failed) = (Vec::new(), None);
    for result in parts.into_iter().flatten() {
        match result {
            Ok(value) => done.push(value),
            Err(e) => failed = failed.or(Some(e)),
        }
    }
    (done, failed)
}

/// Raises the soft limit of open files to the hard limit, which it returns.
fn raise_nofile() -> u64 {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    let _ = setrlimit(Resource::Nofile, limit);
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// Number of descriptors that one open file of Forebay holds.
fn descriptors_of_one(cache: &Cache, path: &Path) -> Result<u64> {
    let count = || std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count) as u64;
    let before = count();
    let file = options_of().open(cache, path)?;
    let held = count().saturating_sub(before);
    drop(file);
    Ok(held.max(1))
}

/// Descriptors that are reserved for everything else.
const SPARE: u64 = 256;

/// Runs the part.
pub fn run(options: &Options, report: &mut Report) -> Result<()> {
    let (total, wanted) = if options.quick { (2000, 200) } else { (100_000, 10_000) };
    let (nofile, budget) = (raise_nofile(), BUDGETS[usize::from(!options.quick)]);
    let folder = Folder::new(&options.dir)?;
    folder.make_directories(total)?;
    let before = Before::now();
    let cache = Cache::new(CacheConfig::with_budget(budget).aio(options.aio.parse()?))?;
    let each = descriptors_of_one(&cache, &folder.file(0))?;
    let at_once = wanted.min((nofile.saturating_sub(SPARE) / each) as usize).max(FEW + 1);
    report.note(format!(
        "files: {total} of 4 KiB, {at_once} open at once (wanted: {wanted}; each holds {each} of \
         {nofile} descriptors), cache of {}",
        format_size(budget)
    ));
    let mut most = Most::default();
    let start = Instant::now();
    let written = waves(&cache, &folder, total, at_once, before, &mut most, write_one);
    let seconds = start.elapsed().as_secs_f64();
    // All files were closed; now they are opened again, and uncached ones are read from the disk.
    let compared = written.and_then(|()| {
        let again = Instant::now();
        waves(&cache, &folder, total, at_once, before, &mut most, compare_one)?;
        report.row(
            "ours",
            "files_opened_again",
            "1/s",
            &[total as f64 / again.elapsed().as_secs_f64()],
        );
        Ok(())
    });
    report.row("ours", "files_opened_written_synced", "1/s", &[total as f64 / seconds]);
    let failures = f64::from(u8::from(compared.is_err()));
    if let Err(e) = compared {
        report.left_out(&format!("{total} files, {at_once} open at once: {} were", most.open), e);
    }
    let _ = cache.shutdown();
    drop((cache, folder));
    let mib = |bytes: u64| bytes as f64 / MIB as f64;
    report.row("ours", "files_open_at_once", "1", &[most.open as f64]);
    report.row("ours", "files_resident", "MiB", &[mib(most.resident)]);
    let at_most = Good::AtMost;
    report.ratio_with_bar("files_failures", failures, at_most, 0.0);
    report.ratio_with_bar("files_threads", most.threads as f64, at_most, THREADS);
    let over = mib(most.resident) - mib(budget);
    report.ratio_with_bar("files_memory_over_budget_mib", over, at_most, OVER_MIB);
    one_more(options, wanted, at_once, report)
}

fn write_one(cache: &Cache, path: &Path, n: usize) -> Result<File> {
    let file = options_of().open(cache, path)?;
    file.write_at(&content(n), 0)?;
    file.sync_data()?;
    Ok(file)
}

fn compare_one(cache: &Cache, path: &Path, n: usize) -> Result<File> {
    let file = OpenOptions::read_write().open(cache, path)?;
    let mut back = [0; BLOCK];
    file.read_at(&mut back, 0)?;
    if back == content(n) {
        return Ok(file);
    }
    let text = "another content than was written";
    Err(Error::new(ErrorKind::Corrupt, "compare", text).with_path(path))
}

/// Opens all files in waves of a given size; ends at the first failure.
fn waves(
    cache: &Cache,
    folder: &Folder,
    total: usize,
    at_once: usize,
    before: Before,
    most: &mut Most,
    one: impl Fn(&Cache, &Path, usize) -> Result<File> + Sync,
) -> Result<()> {
    for first in (0..total).step_by(at_once) {
        let names: Vec<usize> = (first..total.min(first + at_once)).collect();
        let (open, failed) = by_hands(&names, |n| one(cache, &folder.file(*n), *n));
        before.look(most, open.len());
        drop(open);
        before.look(most, 0);
        if let Some(e) = failed {
            return Err(e);
        }
    }
    Ok(())
}

/// Opens, writes and closes one more file: with few open files, with many, and with few again (M2).
fn one_more(options: &Options, wanted: usize, at_once: usize, report: &mut Report) -> Result<()> {
    let memory = Path::new("/dev/shm");
    let folder = Folder::new(if memory.is_dir() { memory } else { &options.dir })?;
    let config =
        CacheConfig::with_budget(BUDGETS[usize::from(!options.quick)]).aio(options.aio.parse()?);
    let cache = Cache::new(config)?;
    let tries = if options.quick { 50 } else { 1000 };
    folder.make_directories(at_once + tries)?;
    let spare: Vec<usize> = (at_once..at_once + tries).collect();
    let mut measure = |variant: Option<&str>| -> Result<f64> {
        let mut micros = Vec::new();
        for n in &spare {
            let path = folder.file(*n);
            let start = Instant::now();
            let file = options_of().open(&cache, &path)?;
            file.write_at(&content(*n), 0)?;
            drop(file);
            micros.push(start.elapsed().as_secs_f64() * 1e6);
        }
        if let Some(variant) = variant {
            report.row(variant, "open_write_close", "us", &micros);
        }
        Ok(median(&micros))
    };
    let names: Vec<usize> = (0..at_once).collect();
    let open = |names: &[usize]| by_hands(names, |n| write_one(&cache, &folder.file(*n), *n));
    let (few, failed) = open(&names[..FEW]);
    failed.map_or(Ok(()), Err)?;
    // The first pass creates the files.
    measure(None)?;
    let first = measure(Some("10 open, before"))?;
    let (many, failed) = open(&names[FEW..]);
    let name = format!("open_write_close_at_{wanted}_vs_{FEW}");
    let cost = match failed {
        None => measure(Some("most open"))?,
        Some(e) => {
            report.note(format!("{name}: {} open", many.len()));
            report.left_out(&name, e);
            report.ratio_with_bar(&name, f64::NAN, Good::AtMost, 1.5);
            return Ok(());
        }
    };
    drop(many);
    let second = measure(Some("10 open, after"))?;
    drop(few);
    let ratio = cost / median(&[first, second]);
    report.ratio_with_bar(&name, ratio, Good::AtMost, 1.5);
    // The files are not needed any more, so errors of the shutdown are ignored.
    let _ = cache.shutdown();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hands_keep_the_order_and_tell_the_first_failure() {
        let items: Vec<usize> = (0..100).collect();
        let (done, failed) = by_hands(&items, |n| Ok(n * 2));
        assert!(failed.is_none() && done == items.iter().map(|n| n * 2).collect::<Vec<_>>());
        let bad = |n: &usize| match n {
            60 => Err(Error::new(ErrorKind::Io, "open", "no descriptor")),
            n => Ok(*n),
        };
        let (done, failed) = by_hands(&items, bad);
        assert!(failed.is_some() && done.len() < 100 && !done.contains(&60));
    }

    #[test]
    fn sweep_removes_leftovers_of_killed_bench_only() {
        let parent = std::env::temp_dir().join(format!("forebay-many-{}", std::process::id()));
        // Process ids are below 2^22.
        let dead = parent.join(format!("{PREFIX}4194305"));
        let other = parent.join("else-4194305");
        std::fs::create_dir_all(dead.join("0")).unwrap();
        std::fs::create_dir_all(&other).unwrap();
        let folder = Folder::new(&parent).unwrap();
        assert!(!dead.exists() && other.exists() && folder.0.exists());
        drop(folder);
        assert_eq!(std::fs::read_dir(&parent).unwrap().count(), 1);
        std::fs::remove_dir_all(&parent).unwrap();
    }
}
