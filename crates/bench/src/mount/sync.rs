//! `sync`: random 4 KiB writes, each followed by fsync, by one job and by sixteen, each with its
//! own file. Then the same number of syncs on a volume and on XFS, each on a loop device of its
//! own, to count the flushes of the devices.
//!
//! Invariants: S1 each file is completely cached before the first slice. S2 an operation is a write
//! and its fsync. S3 images are fully written before, so that no variant pays for allocation on the
//! host.
//!
//! The kernel counts flushes at both devices, which are alike and support no FUA.

use super::ground::{self, ALL, Ground, Plot, Who};
use super::read::{compare, read_all};
use crate::dirty::Subject;
use crate::dirty::drive::{self, Cost, Drive, JOBS};
use crate::harness::alternate::Outcome;
use crate::harness::backing::Backing;
use crate::harness::load::Target;
use crate::harness::options::Options;
use crate::report::model::{Good, Report, median};
use crate::rivals::kernel::KernelFile;
use forebay_base::units::{GIB, MIB, format_size};
use forebay_base::{Error, Result};

/// Files that are written and synced.
pub struct Files(pub Vec<KernelFile>);

impl Subject for Files {
    fn write_synced(&self, job: usize, buf: &[u8], offset: u64) -> Result<()> {
        let file = &self.0[job];
        file.write(buf, offset)?;
        file.file.sync_all().map_err(|e| Error::from_io("fsync", e))
    }

    fn device_bytes(&self) -> Result<u64> {
        // `dirty` counts the bytes; this part does not.
        Ok(0)
    }
}

/// Number of jobs, prefix, and the bar against XFS.
const CELLS: [(usize, &str, f64); 2] = [(1, "mount_sync", 1.0), (JOBS, "mount_sync16", 1.0)];

/// Runs the part.
pub fn run(options: &Options, report: &mut Report) -> Result<()> {
    let size = options.size_or(16 * MIB, 256 * MIB);
    let each = (size / JOBS as u64).max(MIB);
    let spare = if options.quick { 96 * MIB } else { 2 * GIB };
    let plot = Plot {
        options,
        part: "sync",
        image: (2 * size + spare, Backing::Written),
        cache: 4 * size + 96 * MIB,
    };
    let grounds = ground::all(&plot, &ALL, report);
    fill(&grounds, size, each)?;
    for (jobs, prefix, bar) in CELLS {
        let size = if jobs == 1 { size } else { each };
        let outcome = alternated(options, &grounds, jobs, size)?;
        outcome.add_rows(report, prefix);
        outcome.add_notes(report, prefix, "host");
        let ratio = outcome.ratio("mount", "xfs-on-loop");
        report.ratio_with_bar(&format!("{prefix}_vs_xfs"), ratio, Good::AtLeast, bar);
        let cell = format!("4 KiB random writes, each synced, {jobs} at a time");
        compare(&outcome, report, &cell);
        report.plots.push(outcome.rates_plot("mount", format!("a mount: {cell}")));
    }
    drop(grounds);
    flushes(&plot, (size, each), report)?;
    report.note(format!(
        "mount sync: a file of {}, 16 of {}, written images",
        format_size(size),
        format_size(each)
    ));
    Ok(())
}

/// Makes the file of the one job, of `size` bytes, and those of the sixteen.
fn fill(grounds: &[Ground], size: u64, each: u64) -> Result<()> {
    for ground in grounds {
        ground.fill(&drive::file_of(0, 1), size)?;
        (0..JOBS).try_for_each(|job| ground.fill(&drive::file_of(job, JOBS), each))?;
    }
    Ok(())
}

/// Counts flushes for each sync.
fn flushes(plot: &Plot<'_>, (size, each): (u64, u64), report: &mut Report) -> Result<()> {
    let plot = Plot { part: "flushes", ..*plot };
    let grounds = ground::all(&plot, &[Who::OursOnLoop, Who::Xfs], report);
    fill(&grounds, size, each)?;
    for (jobs, prefix, _) in CELLS {
        let size = if jobs == 1 { size } else { each };
        let mut found = Vec::new();
        for ground in &grounds {
            let values = (0..plot.options.rounds_or(1, 5))
                .map(|round| flushes_per_sync(plot.options, ground, (jobs, size), round as u64))
                .collect::<Result<Vec<_>>>()?;
            report.row(ground.name, &format!("{prefix}_device_flushes"), "1/sync", &values);
            found.push((ground.name, median(&values)));
        }
        let of = |who: Who| found.iter().find(|(name, _)| *name == who.name());
        let (ours, xfs) = (of(Who::OursOnLoop), of(Who::Xfs));
        let ratio = ours.zip(xfs).map_or(f64::NAN, |(ours, xfs)| ours.1 / xfs.1);
        report.ratio_with_bar(&format!("{prefix}_flushes_vs_xfs"), ratio, Good::AtMost, 1.0);
    }
    Ok(())
}

/// One slice of synced writes; returns the flushes of the device for each of its syncs.
fn flushes_per_sync(
    options: &Options,
    ground: &Ground,
    (jobs, size): (usize, u64),
    round: u64,
) -> Result<f64> {
    let device = ground.device().expect("both variants are on a loop device");
    let file = |job| ground.file(&drive::file_of(job, jobs));
    let files = Files((0..jobs).map(file).collect::<Result<Vec<_>>>()?);
    files.0.iter().try_for_each(|file| read_all(file, size))?;
    let time = options.millis(150, 2000);
    let before = device.flushes()?;
    let slice = drive::run(&files, &Drive { jobs, size, time, seed: round + 1 })?;
    Ok((device.flushes()? - before) as f64 / slice.ops.max(1) as f64)
}

fn alternated(options: &Options, grounds: &[Ground], jobs: usize, size: u64) -> Result<Outcome> {
    let mut subjects = Vec::new();
    for ground in grounds {
        let file = |job| ground.file(&drive::file_of(job, jobs));
        let files = (0..jobs).map(file).collect::<Result<Vec<_>>>()?;
        files.iter().try_for_each(|file| read_all(file, size))?;
        subjects.push((ground.name, Files(files)));
    }
    drive::in_turns(options, &subjects, (jobs, size), Cost::Machine)
}
