//! `database`: SQLite in process, on Forebay and on the kernel's page cache with the same memory,
//! while a backup runs.
//!
//! A thread looks up rows, most of them in a hot set that is well below the size of the cache. It
//! runs alone at first. Then a backup reads more than the cache holds, and then the thread is alone
//! again. The results are the lookups during the backup, and the share of the hot set that is
//! cached afterwards.
//!
//! Reading order: `data` (the database and the files), `setting` (sizes and times), `engine`
//! (SQLite and the C library), `lookups` (the child process), `backup`, `column` (the variants, and
//! one measurement), `verdict` (results).
//!
//! All columns read the same bytes of the same files, on XFS on a direct loop device. The order of
//! columns is reversed with each round. If plain `tar` costs the kernel less than `verdict::GATE`
//! of its hot set, the run says that it is no comparison.

mod backup;
mod column;
mod data;
#[expect(unsafe_code, reason = "SQLite and the C library have no other form")]
mod engine;
pub mod lookups;
mod setting;
mod verdict;

use crate::harness::backing::Backing;
use crate::harness::options::Options;
use crate::report::model::Report;
use crate::rivals::loopdev::{FsKind, LoopFs, Making};
use column::{COLUMNS, Column, Found};
use forebay_base::units::MIB;
use forebay_base::{Error, Result};
use setting::{Form, ROUNDS_MIN, SECONDS_MIN, Setting};
use std::path::PathBuf;

/// The directory with the files, removed on drop.
enum Fixture {
    Xfs(LoopFs),
    Folder(PathBuf),
}

impl Fixture {
    fn path(&self) -> PathBuf {
        match self {
            Self::Xfs(fs) => fs.path(),
            Self::Folder(folder) => folder.clone(),
        }
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        if let Self::Folder(folder) = self {
            let _removed = std::fs::remove_dir_all(folder);
        }
    }
}

/// Runs the bench for each budget of the command line.
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

/// XFS on a loop device and all columns; without it, a plain folder and Forebay's columns alone.
fn make_fixture(
    options: &Options,
    size: u64,
    report: &mut Report,
) -> Result<(Fixture, Vec<Column>)> {
    let how = Making::best(Backing::Sparse);
    let xfs = LoopFs::with(&options.dir, "database", size.max(320 * MIB), FsKind::Xfs, &how);
    let group = || forebay_testkit::cgroup::Memcg::create("database-probe", 64 * MIB).map(drop);
    match xfs.and_then(|xfs| group().map(|()| xfs)) {
        Ok(xfs) => Ok((Fixture::Xfs(xfs), COLUMNS.to_vec())),
        Err(e) => {
            report.left_out("database on xfs in a memory cgroup", e);
            let folder = options.dir.join(format!("forebay-bench-database-{}", std::process::id()));
            let fail = |e| Error::from_io("make", e).with_path(&folder);
            std::fs::create_dir(&folder).map_err(fail)?;
            let ours = COLUMNS.iter().copied().filter(Column::is_ours).collect();
            Ok((Fixture::Folder(folder), ours))
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
    let (fixture, columns) = make_fixture(options, size, report)?;
    let setting = Setting { files_bytes, folder: fixture.path().join("database"), ..setting };
    setting.make()?;
    for form in forms {
        let found = rounds(&columns, &setting, form, report)?;
        verdict::add(report, &setting, form, swept, &found);
    }
    Ok(())
}

/// Runs all rounds. A column that fails because this machine lacks something is left out of later
/// rounds.
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
