//! `pgbench`: PostgreSQL on a mount during a backup of ten times the cache, against XFS on a
//! loop device in a memory cgroup of the same size.
//!
//! All columns read and write the same bytes, with backups of the same pace. A column's database,
//! backup and daemon are in one memory cgroup. Its limit has PostgreSQL's own memory in addition,
//! which is measured while pgbench's clients are connected, shared memory included. Each column
//! begins with nothing cached and warms the files that it reads. The order of columns changes with
//! each round.
//!
//! Invariants: N5 the first second of pgbench, in which it connects and plans, is in no figure. N6
//! a run below `SECONDS_MIN` or `ROUNDS_MIN`, or a backup below `PACE_SHARE_MIN`, is shown, but not
//! judged, and the report says so.

mod backup;
mod figures;
mod fixture;
mod judge;
mod model;
mod postgres;

use crate::harness::meter::{MachineTime, process_cpu_seconds, resident_bytes};
use crate::harness::options::Options;
use crate::report::model::{Plot, Report};
use crate::rivals::mounted::{Mounted, Mounting, call};
use backup::Backup;
use figures::Run;
use fixture::Fixture;
use forebay_base::units::{MIB, format_size};
use forebay_base::{Error, ErrorKind, Result};
use forebay_testkit::cgroup::Memcg;
use model::{
    COLUMNS, Column, Figures, Found, ROUNDS_MIN, SECONDS_LEAST, SECONDS_MIN, SETTLING, SLACK,
    Setting, TAR_MEMORY,
};
use postgres::{Load, Server};
use std::io::Read;
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Runs the part.
pub fn run(options: &Options, report: &mut Report) -> Result<()> {
    let setting = prepare(options)?;
    let result = with_fixtures(options, &setting, report);
    let _removed = std::fs::remove_dir_all(&setting.folder);
    result
}

/// Checks the requirements; the error names the first one that is missing.
fn prepare(options: &Options) -> Result<Setting> {
    let missing = |text: &str| Err(Error::new(ErrorKind::Unsupported, "pgbench", text));
    let bin = postgres::binaries()?;
    super::needs::prepare()?;
    let dir = options.dir.as_os_str();
    let words = ["-u", "postgres", "--", "test", "-x"].map(std::ffi::OsStr::new);
    if call("runuser", &[&words[..], &[dir]].concat()).is_err() {
        let text = format!("a folder that the user postgres can reach; {} is none", dir.display());
        return missing(&text);
    }
    let cache = options.size_or(64 * MIB, 256 * MIB);
    // The database is about 65 % of the cache: 15 MB per unit of scale with its index, and 30 MB
    // for the rest.
    let scale = u32::try_from((cache * 65 / 100_000_000).saturating_sub(22) / 15).unwrap_or(1);
    let folder = options.dir.join(format!("forebay-bench-pgbench-{}", std::process::id()));
    let fail = |e| Error::from_io("make", e).with_path(folder.clone());
    std::fs::create_dir(&folder).map_err(fail)?;
    Ok(Setting {
        cache,
        scale: scale.max(1),
        backup: cache * 10,
        pace: if options.quick { 100_000_000 } else { 200_000_000 },
        seconds: lengths(options),
        rounds: options.rounds_or(1, ROUNDS_MIN),
        bin,
        folder,
    })
}

/// Seconds of pgbench alone, and during the backup.
fn lengths(options: &Options) -> (u64, u64) {
    if options.seconds.is_none() && options.quick {
        return (1, 2);
    }
    let during = options.seconds.map_or(SECONDS_MIN, |seconds| seconds as u64).max(SECONDS_LEAST);
    ((during / 2).max(3), during)
}

/// A note if the command line asks for fewer seconds than the bench uses.
fn lengthened(options: &Options) -> Option<String> {
    let few = options.seconds.filter(|seconds| *seconds < SECONDS_LEAST as f64)?;
    Some(format!("pgbench: --seconds {few}: {SECONDS_LEAST} were taken, the fewest"))
}

fn with_fixtures(options: &Options, setting: &Setting, report: &mut Report) -> Result<()> {
    lengthened(options).into_iter().for_each(|line| report.note(line));
    let size = setting.backup + 8 * setting.cache + 1024 * MIB;
    let how = Mounting::new(size, setting.daemon_cache(), &options.aio);
    let ours = Mounted::new(&options.dir, "pgbench", how);
    let ours = Fixture::Forebay(ours?);
    fill(&ours, setting, None)?;
    let xfs = Fixture::xfs(&options.dir, size).and_then(|xfs| {
        fill(&xfs, setting, Some(&ours))?;
        Ok(xfs)
    });
    let xfs = match xfs.and_then(|xfs| Memcg::create("pgbench-probe", setting.cache).map(|_| xfs)) {
        Ok(xfs) => Some(xfs),
        Err(e) => {
            report.left_out("pgbench on xfs", e);
            None
        }
    };
    let mut columns: Vec<Column> = COLUMNS.into();
    columns.retain(|column| column.is_ours() || xfs.is_some());
    let mut found = Found::new();
    for _ in 0..setting.rounds {
        for column in &columns {
            let fixture = if column.is_ours() { Some(&ours) } else { xfs.as_ref() };
            for (load, figures) in
                measure(*column, fixture.expect("only columns with fixtures"), setting)?
            {
                found.entry((*column, load.name())).or_default().push(figures);
            }
        }
        columns.reverse();
    }
    if let Fixture::Forebay(mounted) = &ours {
        let said = mounted.fsck()?;
        let last = said.lines().last().unwrap_or_default();
        report.note(format!("pgbench: fsck of the volume afterwards: {last}"));
    }
    tell(report, setting, &found);
    Ok(())
}

/// Makes the database and the files of the backup, as a copy of the other fixture if there is one.
fn fill(fixture: &Fixture, setting: &Setting, like: Option<&Fixture>) -> Result<()> {
    let (data, backup) = (fixture.path().join("data"), fixture.path().join("backup"));
    match like {
        None => postgres::make(
            &setting.bin,
            &data,
            &setting.folder.join("sockets"),
            (setting.scale, setting.buffers_mib()),
        )?,
        Some(like) => {
            let from = like.path().join("data");
            call("cp", &["-a".as_ref(), from.as_os_str(), data.as_os_str()])?;
        }
    }
    backup::fill(&backup, setting.backup)
}

/// Measures one column with each load.
fn measure(column: Column, fixture: &Fixture, setting: &Setting) -> Result<Vec<(Load, Figures)>> {
    fixture.remount()?;
    let data = fixture.path().join("data");
    let groups = Groups::new(column, fixture, setting)?;
    let procs = groups.database.as_ref().map(Memcg::procs);
    let sockets = setting.folder.join("sockets");
    let server = Server::start(&setting.bin, &data, &sockets, procs.as_deref())?;
    let files = server.files(&data)?;
    server.prewarm()?;
    // Two passes, so that the cache takes pages that are read again for hot.
    let (mut all, mut own, warm) = (Vec::new(), 0, setting.folder.join("warm"));
    let pgbench = server.address().load(Load::Select, SETTLING, &warm)?;
    settle(&server, setting, &groups, &mut own)?;
    finish(pgbench)?;
    figures::latencies(&warm, (0.0, 0.0));
    for load in [Load::Select, Load::Tpcb] {
        let figures = run_with_backup(
            column,
            fixture,
            setting,
            (&server, &groups, &mut own),
            (load, &files),
        )?;
        all.push((load, figures));
    }
    Ok(all)
}

/// The memory cgroups of a column.
struct Groups {
    database: Option<Memcg>,
    tar: Option<Memcg>,
    /// The daemon in it, and its bytes that were charged before it joined.
    daemon: Option<u32>,
    outside: u64,
}

impl Drop for Groups {
    fn drop(&mut self) {
        if let (Some(group), Some(pid)) = (&self.database, self.daemon) {
            // It may have ended.
            let _left = group.remove(pid);
        }
    }
}

impl Groups {
    /// Where no cgroup can be made, only columns of ours run, without one.
    fn new(column: Column, fixture: &Fixture, setting: &Setting) -> Result<Self> {
        let database = match Memcg::create("pgbench", setting.cache * 16) {
            Err(_) if column.is_ours() => None,
            made => Some(made?),
        };
        let apart = column == Column::XfsApart;
        let tar = apart.then(|| Memcg::create("pgbench-tar", TAR_MEMORY)).transpose()?;
        let mut groups = Self { database, tar, daemon: None, outside: 0 };
        if let (Fixture::Forebay(mounted), Some(group)) = (fixture, &groups.database) {
            let pid = mounted.pid()?;
            group.add(pid)?;
            groups.daemon = Some(pid);
            groups.outside = resident_bytes(pid).unwrap_or(0);
        }
        Ok(groups)
    }

    /// The cgroup of the backup: its own, or that of the database.
    fn of_backup(&self) -> Option<PathBuf> {
        self.tar.as_ref().or(self.database.as_ref()).map(Memcg::procs)
    }
}

/// Waits until pgbench ends; returns its messages.
fn finish(mut pgbench: std::process::Child) -> Result<String> {
    let mut said = String::new();
    if let Some(mut err) = pgbench.stderr.take() {
        err.read_to_string(&mut said).map_err(|e| Error::from_io("read pgbench", e))?;
    }
    let status = pgbench.wait().map_err(|e| Error::from_io("wait", e))?;
    if status.success() {
        return Ok(said);
    }
    let last = said.lines().last().unwrap_or_default();
    Err(Error::new(ErrorKind::Io, "pgbench", format!("{status}: {last}")))
}

/// Seconds since the epoch.
fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

/// While pgbench settles, measures the most memory that the database's processes have used, with
/// those of its clients. The cgroup gets that much in addition to the cache. `own`: the value so
/// far.
fn settle(server: &Server, setting: &Setting, groups: &Groups, own: &mut u64) -> Result<u64> {
    const LOOKS: u32 = 4;
    for _ in 0..LOOKS {
        std::thread::sleep(Duration::from_secs(SETTLING) / LOOKS);
        *own = server.own_bytes().max(*own);
    }
    let Some(group) = &groups.database else { return Ok(0) };
    let limit = setting.cache + *own + SLACK - groups.outside.min(SLACK + *own);
    group.set_limit(limit).map(|()| limit)
}

/// Runs the load alone and then during the backup.
fn run_with_backup(
    column: Column,
    fixture: &Fixture,
    setting: &Setting,
    (server, groups, own): (&Server, &Groups, &mut u64),
    (load, files): (Load, &[PathBuf]),
) -> Result<Figures> {
    let (alone, during) = setting.seconds;
    let logs = setting.folder.join("pgbench");
    let ours = match fixture {
        Fixture::Forebay(mounted) => Some(mounted.pid()?),
        Fixture::Xfs(_) => None,
    };
    let (start, clock) = (now(), Instant::now());
    let until = |seconds: u64| {
        (clock + Duration::from_secs(SETTLING + seconds)).saturating_duration_since(Instant::now())
    };
    let pgbench = server.address().load(load, SETTLING + alone + during, &logs)?;
    let limit = settle(server, setting, groups, own)?;
    std::thread::sleep(until(alone));
    let began = now();
    let client = pgbench.id();
    let of = |pid: Option<u32>| pid.and_then(process_cpu_seconds).unwrap_or(0.0);
    let cpu = || [server.cpu_seconds(), of(ours), of(Some(client))];
    let cached_before = cached_share(fixture, files)?;
    let (before, machine) = (cpu(), MachineTime::now());
    let what = fixture.path().join("backup");
    let tar = Backup::start(column.how(), &what, setting.pace, groups.of_backup().as_deref())?;
    let time = until(alone + during).saturating_sub(Duration::from_millis(100));
    let hits = looks(fixture, files, time)?;
    let (after, busy) = (cpu(), MachineTime::now().busy_seconds_since(&machine));
    let backup = tar.stop()?;
    let tps = figures::progress(&finish(pgbench)?).into_iter().skip(SETTLING as usize).collect();
    let latencies = figures::latencies(&logs, (start + SETTLING as f64, began));
    let run = Run { tps, alone: alone as usize, latencies };
    let cached = [cached_before, cached_share(fixture, files)?];
    let cpu = [after[0] - before[0], after[1] - before[1], busy, after[2] - before[2]];
    Ok(Figures { run, backup, cpu, hits, cached, limit })
}

/// Share of these files that is cached.
fn cached_share(fixture: &Fixture, files: &[PathBuf]) -> Result<f64> {
    let mut sizes = (0, 0);
    for file in files {
        sizes.0 += fixture.cached_bytes(file)?;
        let meta = std::fs::metadata(file);
        sizes.1 += meta.map_err(|e| Error::from_io("stat", e).with_path(file))?.len();
    }
    Ok(sizes.0 as f64 / sizes.1.max(1) as f64)
}

/// Waits for `time` while sampling the cached share; returns the mean.
fn looks(fixture: &Fixture, files: &[PathBuf], time: Duration) -> Result<f64> {
    const LOOKS: u32 = 8;
    let (end, mut sum) = (Instant::now() + time, 0.0);
    for left in (0..LOOKS).rev() {
        // Each sample is taken in the middle of its interval, so that it represents the interval.
        let due = end - time * (2 * left + 1) / (2 * LOOKS);
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        sum += cached_share(fixture, files)?;
    }
    std::thread::sleep(end.saturating_duration_since(Instant::now()));
    Ok(sum / f64::from(LOOKS))
}

fn tell(report: &mut Report, setting: &Setting, found: &Found) {
    let (alone, during) = setting.seconds;
    report.note(format!(
        "pgbench: cache {}, pgbench scale {} ({} %), backup of {} at {} MB/s, {alone} s alone and \
         {during} s during it after {SETTLING} s of neither, 4 clients, {} MiB of shared buffers; memory \
         cgroups hold that much page cache, PostgreSQL's own memory while its clients are connected, and {}; \
         tar apart has {}",
        format_size(setting.cache),
        setting.scale,
        (u64::from(setting.scale) * 15_000_000 + 30_000_000) * 100 / setting.cache,
        format_size(setting.backup),
        setting.pace / 1_000_000,
        setting.buffers_mib(),
        format_size(SLACK),
        format_size(TAR_MEMORY),
    ));
    if setting.is_short() {
        report.note(format!(
            "pgbench: {} round(s) of {during} s, columns in one order: not judged, not for quoting",
            setting.rounds
        ));
    }
    for load in [Load::Select, Load::Tpcb] {
        let name = load.name();
        let mut runs = Vec::new();
        for column in COLUMNS {
            let Some(all) = found.get(&(column, name)) else { continue };
            rows(report, column, name, all);
            runs.extend(all.last().map(|figures| (column.name().to_string(), figures.run.clone())));
        }
        let title = match load {
            Load::Select => "pgbench -S",
            Load::Tpcb => "pgbench, TPC-B",
        };
        figures::picture(title, &runs).into_iter().for_each(|line| report.note(line));
        report.plots.push(Plot {
            behaviour: "mount",
            title: format!("{title}, {alone} s alone, then during a backup"),
            unit: "transactions/s".into(),
            series: runs.into_iter().map(|(label, run)| (label, run.tps)).collect(),
            x: "seconds".into(),
            ..Plot::default()
        });
    }
    judge::judge(report, setting, found);
}

fn rows(report: &mut Report, column: Column, load: &str, all: &[Figures]) {
    let mut row = |metric: &str, unit: &'static str, of: &dyn Fn(&Figures) -> f64| {
        let values: Vec<f64> = all.iter().map(of).collect();
        report.row(column.name(), &format!("pgbench_{load}_{metric}"), unit, &values);
    };
    row("tps_alone", "1/s", &|f| f.run.median_tps(false));
    row("tps_beside", "1/s", &|f| f.run.median_tps(true));
    row("p99_alone", "us", &|f| f.run.p99(false));
    row("p99_beside", "us", &|f| f.run.p99(true));
    row("hit_ratio", "%", &|f| f.hits * 100.0);
    row("tables_cached_after", "%", &|f| f.cached[1] * 100.0);
    row("tables_lost", "%", &Figures::lost_percent);
    row("backup_rate", "MB/s", &|f| f.backup.rate);
    row("cpu_database", "%", &|f| f.cpu[0] / f.backup.seconds * 100.0);
    row("cpu_backup", "%", &|f| f.backup.cpu_seconds / f.backup.seconds * 100.0);
    if column.is_ours() {
        row("cpu_forebay", "%", &|f| f.cpu[1] / f.backup.seconds * 100.0);
    }
    row("memory_limit", "MiB", &|f| f.limit as f64 / MIB as f64);
    row("cpu_machine", "%", &|f| f.cpu[2] / f.backup.seconds * 100.0);
    row("cpu_per_byte", "ns", &Figures::cpu_per_byte);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// N6. The story: `--seconds 2` ran five seconds without a message.
    #[test]
    fn lengthened_run_is_reported() {
        let of = |quick: bool, seconds: Option<f64>| {
            let mut options = Options::default();
            (options.quick, options.seconds) = (quick, seconds);
            (lengths(&options), lengthened(&options))
        };
        assert_eq!(of(true, None), ((1, 2), None));
        assert_eq!(of(false, None), ((10, 20), None));
        assert_eq!(of(false, Some(5.0)), ((3, 5), None));
        let (taken, said) = of(false, Some(2.0));
        assert_eq!(taken, (3, 5));
        assert!(said.is_some_and(|line| line.contains("--seconds 2: 5 were taken")));
    }
}
