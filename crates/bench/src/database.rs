//! `database`: SQLite in process, on Forebay and on the kernel's page cache with the same memory,
//! while a backup runs.
//!
//! A thread looks up rows, most of them in a hot set that fits in memory with space to spare. For a
//! time it is alone; then a backup reads more than memory holds; then it is alone again. What
//! counts is how many lookups it does during the backup, and how much of the hot set is cached
//! afterwards.
//!
//! Reading order: `data` (what is stored), `engine` (SQLite and the C library), `lookups` (the
//! child), `backup`, `column` (who takes part, and one measurement), `verdict` (what it says).
//!
//! All columns read the same bytes of the same files, on XFS on a direct loop device. The order of
//! columns is reversed with each round. Where plain `tar` costs the kernel less than
//! `verdict::GATE` of its hot set, the run says so and is no comparison.

mod backup;
mod column;
mod data;
#[expect(unsafe_code, reason = "SQLite and the C library have no other form")]
mod engine;
pub mod lookups;
mod verdict;

use crate::harness::backing::Backing;
use crate::harness::options::Options;
use crate::report::model::Report;
use crate::rivals::loopdev::{FsKind, LoopFs, Making};
use column::{COLUMNS, Column, Run};
use forebay_base::units::MIB;
use forebay_base::{Error, Result};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

/// What is backed up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Form {
    /// Other files, at 200 MB/s.
    Files,
    /// The database, at 200 MB/s.
    Itself,
    /// Other files, at 1 GB/s.
    Brisk,
    /// Other files, as fast as the disk gives them.
    Fast,
}

impl Form {
    const ALL: [Self; 4] = [Self::Files, Self::Itself, Self::Brisk, Self::Fast];

    /// Its name as a part.
    fn name(self) -> &'static str {
        match self {
            Self::Files => "files",
            Self::Itself => "itself",
            Self::Brisk => "brisk",
            Self::Fast => "fast",
        }
    }

    /// Bytes a second of the backup, if it has a pace.
    fn pace(self) -> Option<u64> {
        match self {
            Self::Files | Self::Itself => Some(PACE),
            Self::Brisk => Some(BRISK),
            Self::Fast => None,
        }
    }

    /// What is backed up, and how fast, in words.
    fn words(self) -> String {
        let what = if self == Self::Itself { "the database itself" } else { "other files" };
        match self.pace() {
            Some(pace) => format!("{what} at {} MB/s", pace / 1_000_000),
            None => format!("{what}, as fast as the disk gives them"),
        }
    }
}

/// Steps of a run, of which a quarter are alone.
const STEPS: u32 = 80;
/// Bytes a second of a backup that has a pace.
const PACE: u64 = 200_000_000;
/// The same of a brisk one: what one flash disk gives.
const BRISK: u64 = 1_000_000_000;
/// Bytes a second that a disk is expected to give at most; a faster backup ends earlier.
const DISK: u64 = 1_000_000_000;
/// A run is judged from so many seconds and rounds on.
const SECONDS_MIN: f64 = 20.0;
const ROUNDS_MIN: usize = 5;

/// Sizes, times and places of the runs with one budget.
#[derive(Debug, Clone)]
pub struct Setting {
    /// Bytes of our cache, and of the kernel's.
    budget: u64,
    /// Of one run, alone, during the backup and after it.
    seconds: f64,
    rounds: usize,
    /// Bytes of the other files.
    files_bytes: u64,
    folder: PathBuf,
}

impl Setting {
    /// Rows, each of which fills a page: four times the budget.
    fn rows(&self) -> u64 {
        self.budget * 4 / data::PAGE as u64
    }

    /// 65 % of the budget.
    fn hot_pages(&self) -> usize {
        (self.budget * 65 / 100 / data::PAGE as u64) as usize
    }

    fn database(&self) -> PathBuf {
        self.folder.join("data.db")
    }

    fn hot_file(&self) -> PathBuf {
        self.folder.join("hot")
    }

    fn files(&self) -> PathBuf {
        self.folder.join("files")
    }

    fn backed_up(&self, form: Form) -> PathBuf {
        match form {
            Form::Files | Form::Brisk | Form::Fast => self.files(),
            Form::Itself => self.database(),
        }
    }

    /// What a backup reads at its pace in two thirds of a run: 2.5 GiB in 20 s; 12.5 GiB of a disk
    /// that gives 1 GB/s. The database once.
    fn backup_bytes(&self, form: Form) -> u64 {
        let pace = form.pace().unwrap_or(DISK);
        let bytes = (pace as f64 * self.seconds * 0.67) as u64;
        match form {
            Form::Files | Form::Brisk | Form::Fast => bytes,
            Form::Itself => bytes.min(self.rows() * data::PAGE as u64),
        }
    }

    /// The time after which a backup stops where it is: a disk that gives a fifth of its rate must
    /// not make a run five times as long.
    fn backup_limit(&self) -> Duration {
        Duration::from_secs_f64(self.seconds * 1.5)
    }

    fn step(&self) -> Duration {
        Duration::from_secs_f64(self.seconds) / STEPS
    }

    /// Steps alone and steps after the backup.
    fn steps(&self) -> (usize, usize) {
        (STEPS as usize / 4, STEPS as usize / 12)
    }

    fn is_short(&self) -> bool {
        self.seconds < SECONDS_MIN || self.rounds < ROUNDS_MIN
    }

    fn drop_cached(&self) -> Result<()> {
        data::drop_cached(&self.database())?;
        let fail = |e| Error::from_io("list", e).with_path(self.files());
        for entry in std::fs::read_dir(self.files()).map_err(fail)? {
            data::drop_cached(&entry.map_err(fail)?.path())?;
        }
        Ok(())
    }

    fn make(&self) -> Result<()> {
        let fail = |e| Error::from_io("make", e).with_path(&self.folder);
        std::fs::create_dir(&self.folder).map_err(fail)?;
        data::make_database(&self.database(), self.rows())?;
        let hot = data::draw_hot_set(&self.database(), self.hot_pages(), 1)?;
        data::save_hot_set(&self.hot_file(), &hot)?;
        data::make_files(&self.files(), self.files_bytes)
    }
}

/// What all columns did in all rounds.
type Found = BTreeMap<&'static str, Vec<Run>>;

/// Where the files lie, removed on drop.
enum Bed {
    Xfs(LoopFs),
    Folder(PathBuf),
}

impl Bed {
    fn path(&self) -> PathBuf {
        match self {
            Self::Xfs(fs) => fs.path(),
            Self::Folder(folder) => folder.clone(),
        }
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        if let Self::Folder(folder) = self {
            let _removed = std::fs::remove_dir_all(folder);
        }
    }
}

/// Runs it, with each budget that is asked for.
pub fn run(options: &Options) -> Result<Report> {
    let mut report = Report::default();
    let swept = options.budgets.len() > 1;
    let mut budgets = options.budgets.clone();
    if budgets.is_empty() {
        budgets.push(options.size_or(32 * MIB, 256 * MIB));
    }
    for budget in budgets {
        one_budget(options, budget, swept, &mut report)?;
    }
    Ok(report)
}

/// XFS on a loop device and all columns, or a folder and ours alone.
fn bed(options: &Options, size: u64, report: &mut Report) -> Result<(Bed, Vec<Column>)> {
    let how = Making::best(Backing::Sparse);
    let xfs = LoopFs::with(&options.dir, "database", size.max(320 * MIB), FsKind::Xfs, &how);
    let group = || forebay_testkit::cgroup::Memcg::create("database-probe", 64 * MIB).map(drop);
    match xfs.and_then(|xfs| group().map(|()| xfs)) {
        Ok(xfs) => Ok((Bed::Xfs(xfs), COLUMNS.to_vec())),
        Err(e) => {
            report.left_out("database on xfs in a memory cgroup", e);
            let folder = options.dir.join(format!("forebay-bench-database-{}", std::process::id()));
            let fail = |e| Error::from_io("make", e).with_path(&folder);
            std::fs::create_dir(&folder).map_err(fail)?;
            let ours = COLUMNS.iter().copied().filter(Column::is_ours).collect();
            Ok((Bed::Folder(folder), ours))
        }
    }
}

fn one_budget(options: &Options, budget: u64, swept: bool, report: &mut Report) -> Result<()> {
    let setting = Setting {
        budget,
        seconds: options.seconds.unwrap_or(if options.quick { 2.0 } else { SECONDS_MIN }),
        rounds: options.rounds_or(1, ROUNDS_MIN),
        files_bytes: 0,
        folder: PathBuf::new(),
    };
    let forms: Vec<Form> = Form::ALL.into_iter().filter(|f| options.wants(f.name())).collect();
    let of_files = forms.iter().filter(|form| **form != Form::Itself);
    let files_bytes = of_files.map(|form| setting.backup_bytes(*form)).max().unwrap_or(MIB);
    let size = setting.rows() * data::PAGE as u64 * 11 / 10 + files_bytes + 512 * MIB;
    let (bed, columns) = bed(options, size, report)?;
    let setting = Setting { files_bytes, folder: bed.path().join("database"), ..setting };
    setting.make()?;
    for form in forms {
        let found = rounds(&columns, &setting, form, report)?;
        verdict::add(report, &setting, form, swept, &found);
    }
    Ok(())
}

/// All rounds. A column that this machine lacks is left out from then on.
fn rounds(columns: &[Column], setting: &Setting, form: Form, report: &mut Report) -> Result<Found> {
    let (mut columns, mut found) = (columns.to_vec(), Found::new());
    for round in 0..setting.rounds {
        let mut missing = Vec::new();
        for column in &columns {
            match column::measure(column, setting, form, round as u64 + 1) {
                Ok(run) => found.entry(column.name).or_default().push(run),
                Err(e) => {
                    report.left_out(&format!("database {} {}", form.name(), column.name), e);
                    missing.push(column.name);
                }
            }
        }
        columns.retain(|column| !missing.contains(&column.name));
        found.retain(|name, _| !missing.contains(name));
        columns.reverse();
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    pub fn setting(budget: u64, seconds: f64, rounds: usize) -> Setting {
        let folder = "/nowhere".into();
        Setting { budget, seconds, rounds, files_bytes: 0, folder }
    }

    #[test]
    fn full_form_has_the_sizes_that_are_promised() {
        let full = setting(256 * MIB, SECONDS_MIN, ROUNDS_MIN);
        assert_eq!(full.rows(), 262_144, "1 GiB of pages of 4 KiB");
        assert_eq!(full.hot_pages() as u64 * 4096 * 100 / full.budget, 64, "65 %, rounded down");
        assert_eq!(full.backup_bytes(Form::Files) / MIB, 2555);
        assert_eq!(full.backup_bytes(Form::Itself), 1024 * MIB);
        assert_eq!((full.step(), full.steps()), (Duration::from_millis(250), (20, 6)));
        assert!(!full.is_short());
        assert!(setting(256 * MIB, 19.0, 5).is_short() && setting(256 * MIB, 20.0, 4).is_short());
    }
}
