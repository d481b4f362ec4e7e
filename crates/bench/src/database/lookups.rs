//! The child process of `database`: one connection that looks up rows, and a backup that runs in
//! this child or in another one. It reads one job per line, see [`crate::rivals::worker`].
//!
//! Invariant: L1 each row that a lookup returns is compared with the stored row.

use super::backup::{Backup, Plan, ReadMode};
use super::data::{Hot, PAGE, is_row, load_hot_set};
use super::engine::{CachedFile, Connection, Statement, register, uri};
use crate::harness::hist::Hist;
use crate::harness::image::Rng;
use crate::harness::sys::mincore_pages;
use crate::rivals::kernel::open_random;
use forebay_base::{Error, ErrorKind, Result};
use serde_json::{Value, json};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Lookups of a hot row, per thousand.
const HOT_PER_MILLE: u64 = 995;
/// Threads that read the hot set before the measurement.
const WARM_THREADS: usize = 8;
/// Passes over the hot set before the measurement. The cache counts a page as hot when it is read
/// again.
const WARM_PASSES: usize = 2;

/// State that the child keeps from job to job.
#[derive(Default)]
pub struct State {
    open: Option<Open>,
    backup: Option<Backup>,
}

/// The cache that holds the pages of the database.
enum Pages {
    Forebay(CachedFile),
    Kernel(File),
}

impl Pages {
    fn read(&self, hot: &[Hot]) -> Result<()> {
        let mut page = [0; PAGE];
        for hot in hot {
            let at = u64::from(hot.page) * PAGE as u64;
            match self {
                Self::Forebay(file) => drop(file.read_at(&mut page, at, 0)?),
                Self::Kernel(file) => {
                    let read = file.read_exact_at(&mut page, at);
                    read.map_err(|e| Error::from_io("read a hot page", e))?;
                }
            }
        }
        Ok(())
    }
}

struct Open {
    select: Statement,
    pages: Pages,
    hot: Vec<Hot>,
    rows: u64,
    rng: Rng,
}

fn text<'a>(job: &'a Value, key: &str) -> &'a str {
    job[key].as_str().unwrap_or_default()
}

fn count(job: &Value, key: &str) -> u64 {
    job[key].as_u64().unwrap_or(0)
}

impl State {
    /// Carries out a job.
    pub fn work(&mut self, job: &Value) -> Result<Value> {
        match text(job, "work") {
            "open" => self.open = Some(Open::new(job)?),
            "warm" => self.open()?.warm()?,
            "lookups" => return self.open()?.lookups(Duration::from_micros(count(job, "micros"))),
            "resident" => return Ok(json!({ "pages": self.open()?.resident()? })),
            "backup" => {
                let mode = ReadMode::of_name(text(job, "mode"));
                let none = || Error::new(ErrorKind::InvalidInput, "backup", format!("mode {job}"));
                let (mode, what) = (mode.ok_or_else(none)?, PathBuf::from(text(job, "what")));
                let limit = Duration::from_micros(count(job, "micros"));
                let (bytes, pace) = (count(job, "bytes"), count(job, "pace"));
                let plan = Plan { mode, what, bytes, pace, limit };
                self.backup = Some(Backup::start(plan)?);
            }
            "progress" => {
                let none = || Error::new(ErrorKind::InvalidInput, "backup", "it is not started");
                let progress = self.backup.as_mut().ok_or_else(none)?.progress()?;
                return Ok(json!({ "ended": progress.ended, "rate": progress.rate }));
            }
            _ => return Err(Error::new(ErrorKind::Unsupported, "database", format!("job {job}"))),
        }
        Ok(json!({}))
    }

    fn open(&mut self) -> Result<&mut Open> {
        let none = || Error::new(ErrorKind::InvalidInput, "database", "it is not open");
        self.open.as_mut().ok_or_else(none)
    }
}

impl Open {
    fn new(job: &Value) -> Result<Self> {
        let path = PathBuf::from(text(job, "path"));
        register()?;
        let vfs = match count(job, "budget") {
            0 => "vfs=unix".to_string(),
            budget => format!("vfs=forebay&budget={budget}"),
        };
        let db = Connection::open(&uri(&path, &vfs))?;
        db.run(&format!(
            "PRAGMA locking_mode=EXCLUSIVE; PRAGMA cache_size=-{};",
            count(job, "cache_kib")
        ))?;
        if count(job, "budget") == 0 {
            db.run(&format!("PRAGMA mmap_size={}", count(job, "mmap")))?;
        }
        let select = Statement::new(&db, "SELECT data FROM t WHERE id = ?1")?;
        let mut open = Self {
            select,
            pages: match count(job, "budget") {
                0 => Pages::Kernel(open_random(&path)?),
                _ => Pages::Forebay(CachedFile::open(&path)?),
            },
            hot: load_hot_set(&PathBuf::from(text(job, "hot")))?,
            rows: count(job, "rows"),
            rng: Rng::new(count(job, "seed")),
        };
        open.lookup(1)?;
        Ok(open)
    }

    /// Looks up a row, and compares it with the stored one (L1).
    #[inline]
    fn lookup(&mut self, row: u64) -> Result<()> {
        let mut right = false;
        self.select.with(row as i64, &[], |data| right = is_row(data, row))?;
        if right {
            return Ok(());
        }
        let text = format!("row {row} is not what was stored");
        Err(Error::new(ErrorKind::Corrupt, "look up", text))
    }

    /// Reads the hot pages with several threads, because one thread is slow on a cold disk, and
    /// then looks up each hot row. It reads them in the order in which they were drawn: in file
    /// order, read-ahead would fill the cache with the pages between them.
    fn warm(&mut self) -> Result<()> {
        let share = self.hot.len().div_ceil(WARM_THREADS).max(1);
        let pages = &self.pages;
        std::thread::scope(|scope| {
            let parts = self.hot.chunks(share);
            let readers: Vec<_> = parts.map(|part| scope.spawn(move || pages.read(part))).collect();
            let results =
                readers.into_iter().map(|reader| reader.join().expect("a reader returns"));
            results.collect::<Result<()>>()
        })?;
        for _ in 0..WARM_PASSES {
            for at in 0..self.hot.len() {
                self.lookup(u64::from(self.hot[at].row))?;
            }
        }
        Ok(())
    }

    fn lookups(&mut self, time: Duration) -> Result<Value> {
        let (mut hist, start) = (Hist::default(), Instant::now());
        let (mut ops, mut last) = (0_u64, start);
        while last - start < time {
            let row = if self.rng.below(1000) < HOT_PER_MILLE {
                u64::from(self.hot[self.rng.below(self.hot.len() as u64) as usize].row)
            } else {
                1 + self.rng.below(self.rows)
            };
            self.lookup(row)?;
            let now = Instant::now();
            hist.record((now - last).as_nanos() as u64);
            (ops, last) = (ops + 1, now);
        }
        let seconds = (last - start).as_secs_f64();
        Ok(json!({ "ops": ops, "seconds": seconds, "hist": hist.occupied() }))
    }

    /// Number of hot pages that are cached.
    fn resident(&self) -> Result<u64> {
        let hot = self.hot.iter();
        match &self.pages {
            Pages::Kernel(file) => {
                let pages = mincore_pages(file).map_err(|e| Error::from_io("mincore", e))?;
                let cached = |hot: &&Hot| pages.get(hot.page as usize).is_some_and(|page| *page);
                Ok(hot.filter(cached).count() as u64)
            }
            Pages::Forebay(file) => {
                let mut found = 0;
                for hot in hot {
                    let at = u64::from(hot.page) * PAGE as u64;
                    found += u64::from(file.is_resident(at, PAGE as u64)?);
                }
                Ok(found)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::data::{draw_hot_set, make_database, save_hot_set};
    use super::*;

    /// L1: rows of another database are detected.
    #[test]
    fn wrong_row_is_an_error() {
        let dir = PathBuf::from(format!("/var/tmp/forebay-wrong-{}", std::process::id()));
        std::fs::create_dir(&dir).unwrap();
        let path = dir.join("t.db");
        make_database(&path, 10).unwrap();
        save_hot_set(&dir.join("hot"), &[Hot { row: 3, page: 4 }, Hot { row: 99, page: 5 }])
            .unwrap();
        let mut state = State::default();
        let mut work = |job: Value| state.work(&job);
        work(json!({ "work": "open", "path": path, "hot": dir.join("hot"), "rows": 10,
            "cache_kib": 256 }))
        .unwrap();
        let e = work(json!({ "work": "warm" })).unwrap_err().to_string();
        assert!(e.contains("row 99"), "{e}");
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn lookup_jobs_run_during_backup_on_both_vfs() {
        let dir = PathBuf::from(format!("/var/tmp/forebay-lookups-{}", std::process::id()));
        std::fs::create_dir(&dir).unwrap();
        let (path, hot) = (dir.join("t.db"), dir.join("hot"));
        make_database(&path, 2000).unwrap();
        save_hot_set(&hot, &draw_hot_set(&path, 300, 1).unwrap()).unwrap();
        for budget in [0, 32 << 20] {
            let mut state = State::default();
            let mut work = |job: Value| state.work(&job);
            assert!(work(json!({ "work": "warm" })).is_err(), "nothing is open");
            work(json!({ "work": "open", "path": path, "hot": hot, "budget": budget, "rows": 2000,
                "cache_kib": 256, "seed": 1 }))
            .unwrap();
            work(json!({ "work": "warm" })).unwrap();
            let done = work(json!({ "work": "lookups", "micros": 20_000 })).unwrap();
            assert!(done["ops"].as_u64().unwrap() > 0 && done["seconds"].as_f64().unwrap() > 0.019);
            assert_eq!(work(json!({ "work": "resident" })).unwrap()["pages"], 300, "{budget}");
            let mode = if budget == 0 { "plain" } else { "forebay-uncached" };
            work(json!({ "work": "backup", "mode": mode, "what": path, "bytes": 1 << 20,
                "pace": 1 << 30, "micros": 60_000_000 }))
            .unwrap();
            let progress = || json!({ "work": "progress" });
            while work(progress()).unwrap()["ended"] != true {}
            assert!(work(progress()).unwrap()["rate"].as_f64().unwrap() > 0.0);
            assert!(work(json!({ "work": "nonsense" })).is_err());
        }
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
