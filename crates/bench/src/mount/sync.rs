//! `sync`: random 4 KiB writes, each followed by fsync, by one job and by sixteen, each with its
//! own file.
//!
//! Invariants: S1 each file is completely cached before the first slice. S2 an operation is a write
//! and its fsync. S3 images are fully written before, so that no variant pays for allocation on the
//! host.

use super::ground::{self, ALL, Ground, Plot};
use super::read::{compare, read_all};
use crate::dirty::Subject;
use crate::dirty::drive::{self, Cost, JOBS};
use crate::harness::alternate::Outcome;
use crate::harness::backing::Backing;
use crate::harness::load::Target;
use crate::harness::options::Options;
use crate::report::model::{Good, Report};
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
const CELLS: [(usize, &str, f64); 2] = [(1, "mount_sync", 1.2), (JOBS, "mount_sync16", 2.0)];

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
    for ground in &grounds {
        ground.fill(&drive::file_of(0, 1), size)?;
        (0..JOBS).try_for_each(|job| ground.fill(&drive::file_of(job, JOBS), each))?;
    }
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
    report.note(format!(
        "mount sync: a file of {}, 16 of {}, written images",
        format_size(size),
        format_size(each)
    ));
    Ok(())
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
