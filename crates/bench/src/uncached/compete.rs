//! A buffered writer next to an uncached one: the throughput of each.
//!
//! Invariants: C1 each file is several times the size of the cache (Forebay's, or the kernel's in
//! its cgroup). With smaller files the buffered writer would overwrite its own cached pages at
//! memory speed, and the writers would not compete. C2 the kernel's figure counts only if its
//! buffered writer has written more than the cgroup holds.

use crate::harness::image::open_with;
use crate::harness::load::Target;
use crate::harness::options::Options;
use crate::report::model::{Good, Report, median};
use crate::rivals::fileset::{FileSet, OurSet};
use crate::rivals::kernel::{DONTCACHE, KernelFile};
use crate::rivals::worker::Worker;
use forebay_base::buf::AlignedBuf;
use forebay_base::units::{MIB, format_size};
use forebay_base::{Error, IoFlags, Result};
use rustix::fs::OFlags;
use serde_json::{Value, json};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Size of each file over that of the cache (C1).
const TIMES: u64 = 4;

/// Runs the part.
pub fn run(options: &Options, budget: u64, report: &mut Report) -> Result<()> {
    let budget = if options.quick { 8 * MIB } else { budget };
    let set = FileSet::create(options, "compete", 2, TIMES * budget)?;
    let (time, rounds) = (options.millis(200, 2500), options.rounds_or(1, 4));
    let mut kernel = Worker::start("compete", budget);
    let (mut fair, mut sums, mut theirs, mut accepted) = (vec![], vec![], vec![], vec![]);
    for _ in 0..rounds {
        let ours = OurSet::open(options, &set, 2, budget, false)?;
        let uncached = ours.with(IoFlags::UNCACHED, "ours")?;
        let buffered = ours.with(IoFlags::empty(), "ours")?;
        let (a, b) = write_concurrently(&uncached.parts[0], &buffered.parts[1], set.each, time)?;
        ours.sync()?;
        fair.push(a / b.max(1.0));
        sums.push((a + b) / time.as_secs_f64() / MIB as f64);
        let Ok(worker) = &mut kernel else { continue };
        let paths = set.paths();
        let answer = worker.ask(&json!({ "job": "compete", "path": paths[0], "other": paths[1],
            "each": set.each, "millis": time.as_millis() as u64 }))?;
        let real = |key: &str| answer[key].as_f64().unwrap_or(f64::NAN);
        theirs.push(real("uncached") / real("buffered"));
        accepted.push(real("buffered") / MIB as f64);
        set.drop_pages()?;
    }
    report.row("ours", "competing_writers_fairness", "1", &fair);
    report.row("ours", "competing_writers_sum", "MiB/s", &sums);
    let (value, at_least) = (median(&fair), Good::AtLeast);
    report.ratio_with_bar("competing_writers_fairness", value, at_least, 0.8);
    report.ratio_with_bar("competing_writers_fairness_inverse", 1.0 / value, at_least, 0.8);
    report.note(format!(
        "competing writers: files of {}, cache or cgroup of {}",
        format_size(set.each),
        format_size(budget)
    ));
    report.row("kernel", "competing_writers_buffered", "MiB", &accepted);
    let what = "kernel's competing writers in a memory cgroup";
    match &kernel {
        Err(e) => report.left_out(what, e),
        Ok(_) if median(&accepted) * MIB as f64 <= budget as f64 => {
            report.not_run(what, "the buffered writer wrote less than the cgroup holds");
        }
        Ok(_) => report.row("kernel", "competing_writers_fairness", "1", &theirs),
    }
    Ok(())
}

/// Runs two writers of 128 KiB at a time, each cyclically over its file; returns the bytes of each.
pub fn write_concurrently(
    a: &(dyn Target + Sync),
    b: &(dyn Target + Sync),
    size: u64,
    time: Duration,
) -> Result<(f64, f64)> {
    const BLOCK: u64 = 128 << 10;
    let end = Instant::now() + time;
    let writer = |target: &(dyn Target + Sync)| -> Result<f64> {
        let buf = AlignedBuf::new(BLOCK as usize);
        let mut written = 0;
        while Instant::now() < end {
            target.write(&buf, written % (size / BLOCK * BLOCK))?;
            written += BLOCK;
        }
        Ok(written as f64)
    };
    std::thread::scope(|scope| {
        let other = scope.spawn(|| writer(b));
        let own = writer(a);
        Ok((own?, other.join().expect("a writer returns")?))
    })
}

/// The worker's side of the competing writers.
pub fn compete_job(job: &Value) -> Result<Value> {
    let path = |key: &str| PathBuf::from(job[key].as_str().unwrap_or_default());
    let open = |key: &str| open_with(&path(key), OFlags::empty());
    let uncached = KernelFile { file: open("path")?, flags: DONTCACHE };
    let buffered = KernelFile::new(open("other")?);
    let time = Duration::from_millis(job["millis"].as_u64().unwrap_or(100));
    let (a, b) =
        write_concurrently(&uncached, &buffered, job["each"].as_u64().unwrap_or(1 << 20), time)?;
    for file in [&uncached.file, &buffered.file] {
        file.sync_data().map_err(|e| Error::from_io("fdatasync", e))?;
    }
    Ok(json!({ "uncached": a, "buffered": b }))
}
