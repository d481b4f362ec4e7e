//! The columns of `database`, and one measurement of a column: alone, during the backup, and after
//! it.
//!
//! A column of the kernel has a memory cgroup. Its limit is the budget, the memory of its processes
//! when the database is open, and [`slack`]. Processes of a cgroup end before the cgroup is
//! removed. The lookups continue without a gap while the backup is polled.

use super::backup::ReadMode;
use super::setting::{Form, Setting};
use crate::harness::hist::Hist;
use crate::harness::meter::{MachineTime, resident_bytes};
use crate::rivals::worker::Worker;
use forebay_base::Result;
use forebay_base::units::MIB;
use forebay_testkit::cgroup::Memcg;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// Memory that SQLite uses above the cache below it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Own {
    /// A small page cache of SQLite's.
    Small,
    /// A small page cache of SQLite's, and the file mapped.
    Mapped,
    /// The whole budget in SQLite's page cache.
    Budget,
}

/// A variant: a cache for the database, with a method of backup.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Column {
    /// The name of the column in reports.
    pub name: &'static str,
    /// How the backup reads.
    pub mode: ReadMode,
    /// Memory that SQLite uses.
    pub own: Own,
    /// Whether the backup has its own cgroup.
    pub apart: bool,
}

const fn column(name: &'static str, mode: ReadMode, own: Own, apart: bool) -> Column {
    Column { name, mode, own, apart }
}

/// Forebay, with ordinary reads of the backup.
pub const OURS: &str = "ours";
/// Forebay, with uncached reads of the backup.
pub const OURS_UNCACHED: &str = "ours-uncached";
/// The kernel, with a backup by plain `tar`.
pub const TAR: &str = "xfs-tar";
/// SQLite's own cache.
pub const SQLITE: &str = "sqlite-cache";
/// The kernel at its best: methods by which an administrator can protect the cache from a backup.
pub const BEST: [&str; 5] =
    ["xfs-nocache", "xfs-drop-behind", "xfs-direct", "xfs-dontcache", "xfs-tar-apart"];

/// All columns.
pub const COLUMNS: [Column; 10] = [
    column(OURS, ReadMode::Forebay, Own::Small, false),
    column(TAR, ReadMode::Plain, Own::Small, false),
    column(OURS_UNCACHED, ReadMode::ForebayUncached, Own::Small, false),
    column(BEST[0], ReadMode::Nocache, Own::Small, false),
    column(BEST[1], ReadMode::Behind, Own::Small, false),
    column(BEST[2], ReadMode::Direct, Own::Small, false),
    column(BEST[3], ReadMode::Dontcache, Own::Small, false),
    column(BEST[4], ReadMode::Plain, Own::Small, true),
    column("xfs-mmap-tar", ReadMode::Plain, Own::Mapped, false),
    column(SQLITE, ReadMode::Plain, Own::Budget, false),
];

impl Column {
    /// Whether its files go through Forebay.
    pub fn is_ours(&self) -> bool {
        matches!(self.mode, ReadMode::Forebay | ReadMode::ForebayUncached)
    }
}

/// Memory limit of a cgroup for the backup alone, bytes.
pub const APART: u64 = 64 * MIB;
/// KiB of SQLite's own cache.
pub const CACHE_KIB: u64 = 1024;

/// Memory that the kernel charges for its own structures when the page cache is full, bytes.
pub fn slack(budget: u64) -> u64 {
    budget / 64 + 4 * MIB
}

/// Size of SQLite's page cache in KiB; with the headers of its pages it fills the budget.
fn cache_kib(own: Own, budget: u64) -> u64 {
    if own == Own::Budget { budget / 1024 * 95 / 100 } else { CACHE_KIB }
}

/// Result of one column in one round.
#[derive(Debug, Clone, Default)]
pub struct Run {
    /// Lookups per second in each step.
    pub steps: Vec<f64>,
    /// Numbers of steps alone and during the backup; the remaining steps come after it.
    pub phases: (usize, usize),
    /// Lookups per second: alone, during the backup, after it.
    pub rates: [f64; 3],
    /// 99th percentile of a lookup's time, us: alone, during the backup, after it.
    pub p99: [f64; 3],
    /// Share of the hot set that was cached before the backup and after it. `None` for SQLite's own
    /// page cache, which cannot be inspected.
    pub hot: Option<[f64; 2]>,
    /// MB/s of the backup.
    pub backup: f64,
    /// Limit of the cgroup, or resident memory of the process, bytes.
    pub memory: u64,
    /// Percent of the CPU time that the hypervisor took during the run.
    pub stolen: f64,
}

impl Run {
    /// Share of the hot set that the backup evicted, percent.
    pub fn lost_percent(&self) -> Option<f64> {
        self.hot.map(|[before, after]| (before - after).max(0.0) / before.max(1e-9) * 100.0)
    }
}

/// Sums over the steps of a phase.
#[derive(Default)]
struct Phase {
    ops: f64,
    seconds: f64,
    hist: Hist,
}

impl Phase {
    fn add(&mut self, answer: &Value) -> f64 {
        let (ops, seconds) = (number(answer, "ops"), number(answer, "seconds"));
        self.ops += ops;
        self.seconds += seconds;
        for pair in answer["hist"].as_array().into_iter().flatten() {
            self.hist.record_n(pair[0].as_u64().unwrap_or(0), pair[1].as_u64().unwrap_or(0));
        }
        ops / seconds.max(1e-9)
    }
}

fn number(answer: &Value, key: &str) -> f64 {
    answer[key].as_f64().unwrap_or(0.0)
}

/// The processes of a column. The reader ends before its cgroup is removed.
struct Processes {
    reader: Option<Worker>,
    lookups: Worker,
    apart: Option<Memcg>,
}

impl Processes {
    fn start(column: &Column, budget: u64) -> Result<Self> {
        if column.is_ours() {
            return Ok(Self { reader: None, lookups: Worker::free()?, apart: None });
        }
        let lookups = Worker::start("database", budget * 16)?;
        let apart = column.apart.then(|| Memcg::create("database-apart", APART)).transpose()?;
        let reader = Worker::free()?;
        let group = apart.as_ref().or(lookups.group()).expect("started in one");
        group.add(reader.pid())?;
        Ok(Self { reader: Some(reader), lookups, apart })
    }

    /// Sets the cgroup's limit, bytes, from the memory that the processes hold now.
    fn limit(&self, budget: u64) -> Result<u64> {
        let Some(group) = self.lookups.group() else { return Ok(0) };
        let limit = budget + slack(budget) + group.heap_bytes().unwrap_or(0);
        group.set_limit(limit).map(|()| limit)
    }

    fn ask(&mut self, work: &str, mut job: Value) -> Result<Value> {
        (job["job"], job["work"]) = (json!("database"), json!(work));
        let of_backup = matches!(work, "backup" | "progress");
        match self.reader.as_mut().filter(|_| of_backup) {
            Some(reader) => reader.ask(&job),
            None => self.lookups.ask(&job),
        }
    }

    fn hot_share(&mut self, column: &Column, setting: &Setting) -> Result<Option<f64>> {
        if column.own == Own::Budget {
            return Ok(None);
        }
        let found = number(&self.ask("resident", json!({}))?, "pages");
        Ok(Some(found / setting.hot_pages() as f64))
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        drop(self.reader.take());
        drop(self.apart.take());
    }
}

/// Measures a column once.
pub fn measure(column: &Column, setting: &Setting, form: Form, seed: u64) -> Result<Run> {
    setting.drop_cached()?;
    let mut processes = Processes::start(column, setting.budget)?;
    let budget = if column.is_ours() { setting.budget } else { 0 };
    let mmap = if column.own == Own::Mapped { 2_147_418_112_u64 } else { 0 };
    let cache_kib = cache_kib(column.own, setting.budget);
    let job = json!({ "path": setting.database(), "hot": setting.hot_file(), "budget": budget,
        "rows": setting.rows(), "cache_kib": cache_kib, "mmap": mmap, "seed": seed });
    processes.ask("open", job)?;
    let limit = processes.limit(setting.budget)?;
    processes.ask("warm", json!({}))?;
    // Some steps before the measurement cache the cold pages that lookups touch.
    let step = setting.step();
    processes.ask("lookups", json!({ "micros": (step * 8).as_micros() as u64 }))?;
    let before = processes.hot_share(column, setting)?;
    let machine = MachineTime::now();
    let mut run = phases(&mut processes, column, setting, form)?;
    run.stolen = MachineTime::now().others_percent(&machine).1;
    run.hot = before.zip(run.hot.map(|[_, after]| after)).map(|(before, after)| [before, after]);
    run.memory = match limit {
        0 => resident_bytes(processes.lookups.pid()).unwrap_or(0),
        limit => limit,
    };
    Ok(run)
}

/// The timed part; returns the result, with the share of the hot set cached after the backup.
fn phases(
    processes: &mut Processes,
    column: &Column,
    setting: &Setting,
    form: Form,
) -> Result<Run> {
    let (mut run, mut sums) =
        (Run::default(), [Phase::default(), Phase::default(), Phase::default()]);
    let micros = setting.step().as_micros() as u64;
    let (alone, after) = setting.steps();
    let slice = |processes: &mut Processes| processes.ask("lookups", json!({ "micros": micros }));
    for _ in 0..alone {
        run.steps.push(sums[0].add(&slice(processes)?));
    }
    let job = json!({ "mode": column.mode.name(), "what": setting.backed_up(form),
        "bytes": setting.backup_bytes(form), "pace": form.pace().unwrap_or(0),
        "micros": setting.backup_limit().as_micros() as u64 });
    processes.ask("backup", job)?;
    loop {
        let answer = slice(processes)?;
        let progress = processes.ask("progress", json!({}))?;
        let ended = progress["ended"] == true;
        run.backup = number(&progress, "rate");
        // The step in which the backup ended counts to no phase, unless it is the only one.
        let phase = if ended && run.phases.1 > 0 { 2 } else { 1 };
        run.steps.push(sums[phase].add(&answer));
        run.phases.1 += 1;
        if ended {
            break;
        }
    }
    run.hot = processes.hot_share(column, setting)?.map(|after| [0.0, after]);
    for _ in 0..after {
        run.steps.push(sums[2].add(&slice(processes)?));
    }
    run.phases.0 = alone;
    for (at, sum) in sums.iter().enumerate() {
        run.rates[at] = sum.ops / sum.seconds.max(1e-9);
        run.p99[at] = sum.hist.percentile(99.0) as f64 / 1e3;
    }
    Ok(run)
}

/// Results of all columns, by round.
pub type Found = BTreeMap<&'static str, Vec<Run>>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn column_names_differ_and_include_best() {
        let mut names = COLUMNS.map(|column| column.name);
        assert!(BEST.iter().chain(&[OURS, TAR, SQLITE]).all(|name| names.contains(name)));
        names.sort_unstable();
        assert!(names.windows(2).all(|pair| pair[0] != pair[1]));
        assert_eq!(COLUMNS.iter().filter(|column| column.is_ours()).count(), 2);
    }

    #[test]
    fn lost_share_counts_blocks_cached_before() {
        let of =
            |before, after| Run { hot: Some([before, after]), ..Run::default() }.lost_percent();
        assert_eq!(of(0.8, 0.6).map(f64::round), Some(25.0));
        assert_eq!(of(0.8, 0.9), Some(0.0));
        assert_eq!(Run::default().lost_percent(), None);
    }

    #[test]
    fn phase_sums_its_steps() {
        let mut phase = Phase::default();
        let rate = phase.add(&json!({ "ops": 10, "seconds": 0.5, "hist": [[1000, 10]] }));
        phase.add(&json!({ "ops": 2, "seconds": 0.5, "hist": [[9000, 2]] }));
        assert_eq!((rate, phase.ops, phase.seconds), (20.0, 12.0, 1.0));
        assert!(phase.hist.percentile(50.0) < 2000 && phase.hist.percentile(99.0) >= 9000);
    }

    #[test]
    fn only_sqlite_cache_column_gets_budget() {
        assert_eq!(cache_kib(Own::Small, 256 * MIB), 1024);
        assert_eq!(cache_kib(Own::Mapped, 256 * MIB), 1024);
        assert_eq!(cache_kib(Own::Budget, 256 * MIB), 249_036);
    }
}
