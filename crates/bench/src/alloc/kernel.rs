//! The kernel's file systems on a loop device with direct I/O: XFS, ext4, and f2fs if this host has
//! it, for which the kernel patch with the strategy `serialized` was written. The same writers with
//! O_DIRECT; extents as `filefrag` counts them.

use super::load::Shape;
use crate::harness::alternate::{Plan, Turn, Variant, alternate};
use crate::harness::backing::Backing;
use crate::harness::load::Slice;
use crate::harness::meter::Usage;
use crate::harness::options::Options;
use crate::report::model::{Report, Summary, median};
use crate::rivals::loopdev::{FsKind, LoopFs, Making};
use forebay_base::buf::AlignedBuf;
use forebay_base::units::{GIB, MIB};
use forebay_base::{Error, ErrorKind, Result};
use rustix::fs::OFlags;
use std::cell::RefCell;
use std::fs::File;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Barrier;
use std::time::Instant;

/// Number of extents of a file, as `filefrag` counts them.
fn extents(path: &Path) -> Result<f64> {
    let output = Command::new("filefrag").arg(path).output();
    let output = output.map_err(|e| Error::from_io("filefrag", e))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let count = text.rsplit(": ").next().and_then(|rest| rest.split(' ').next());
    let number = count.and_then(|count| count.parse().ok());
    number.ok_or_else(|| Error::new(ErrorKind::Unsupported, "filefrag", text.trim().to_string()))
}

fn one(path: &Path, shape: &Shape, tag: u64, barrier: &Barrier) -> Result<(Instant, Instant)> {
    let fail = |e| Error::from_io("write", e).with_path(path);
    let mut options = File::options();
    options.write(true).create(true).truncate(true).custom_flags(OFlags::DIRECT.bits() as i32);
    let file = options.open(path);
    let mut buf = AlignedBuf::new(shape.request as usize);
    buf.fill(tag as u8 | 1);
    // A writer that failed must reach the barrier, too, or the others would wait for ever.
    barrier.wait();
    let (file, begin) = (file.map_err(fail)?, Instant::now());
    for n in 0..shape.count {
        file.write_all_at(&buf, n * shape.request).map_err(fail)?;
    }
    Ok((begin, Instant::now()))
}

/// Writes fresh files; returns the slice, and extents per file.
fn write(folder: &Path, shape: &Shape) -> Result<(Slice, f64)> {
    let paths: Vec<PathBuf> = (0..shape.direct).map(|n| folder.join(format!("job{n}"))).collect();
    paths.iter().for_each(|path| drop(std::fs::remove_file(path)));
    let (barrier, before) = (Barrier::new(paths.len()), Usage::own());
    let jobs: Vec<Result<(Instant, Instant)>> = std::thread::scope(|scope| {
        let barrier = &barrier;
        let handles: Vec<_> = (0..)
            .zip(&paths)
            .map(|(tag, path)| scope.spawn(move || one(path, shape, tag, barrier)))
            .collect();
        handles.into_iter().map(|job| job.join().expect("a writer returns")).collect()
    });
    let jobs = jobs.into_iter().collect::<Result<Vec<_>>>()?;
    let mut slice = Slice { usage: Usage::own().since(&before), ..Slice::default() };
    let (begin, end) = (jobs.iter().map(|j| j.0).min(), jobs.iter().map(|j| j.1).max());
    slice.seconds = begin.zip(end).map_or(0.0, |(begin, end)| (end - begin).as_secs_f64());
    (slice.ops, slice.bytes) = (paths.len() as u64 * shape.count, shape.bytes());
    let mut sum = 0.0;
    for path in &paths {
        sum += extents(path)?;
    }
    Ok((slice, sum / paths.len() as f64))
}

/// Adds the rows of one file system, if this host has it.
fn rows(options: &Options, kind: FsKind, report: &mut Report, summary: &mut Summary) -> Result<()> {
    let count = if options.quick { 2 } else { 32 };
    let size = if options.quick { 512 * MIB } else { 3 * GIB };
    let fs = LoopFs::with(&options.dir, "alloc", size, kind, &Making::best(Backing::Written))?;
    let folder = fs.path();
    for shape in [Shape::large("10x2m", 10, 0, count), Shape::large("16x2m", 16, 0, count)] {
        let found = RefCell::new(Vec::new());
        let mut variants = [Variant::new(kind.name(), |_: &Turn| {
            let (slice, extents) = write(&folder, &shape)?;
            found.borrow_mut().push(extents);
            Ok(slice)
        })];
        let plan = Plan::simple(options, options.rounds_or(1, 3), options.millis(1, 1));
        let outcome = alternate(&mut variants, &plan)?;
        drop(variants);
        let prefix = format!("disk_{}", shape.name);
        outcome.add_rows(report, &prefix);
        let extents = found.into_inner();
        report.row(kind.name(), &format!("{prefix}_extents_per_file"), "1", &extents);
        if summary.kernel == "-" {
            let rates: Vec<f64> = outcome.per_round(kind.name()).iter().map(rate).collect();
            let (each, rate) = (median(&extents), median(&rates));
            summary.kernel = format!("{}: {each:.1} extents/file, {rate:.0} MB/s", kind.name());
        }
    }
    Ok(())
}

fn rate(slice: &Slice) -> f64 {
    slice.bytes as f64 / slice.seconds.max(1e-9) / 1e6
}

/// Runs the part; file systems that this host lacks are reported as not run.
pub fn run(options: &Options, report: &mut Report, summary: &mut Summary) {
    for kind in [FsKind::F2fs, FsKind::Xfs, FsKind::Ext4] {
        if let Err(e) = rows(options, kind, report, summary) {
            report.left_out(&format!("alloc on {} on a loop device", kind.name()), e);
        }
    }
}
