//! `dirty`: sub-page dirty tracking. Measures the cost of a small change that is made durable at
//! once: bytes written to the device per byte changed, and synced writes per second.
//!
//! Reading order: `subject` (the files that are written and synced), `drive` (one slice), then the
//! parts: the command lines of `dd` and fio that the kernel patches quote (`dd`, `fio`, `jobs`),
//! the delay device, fio through NBD, and unsynced writes on a volume.
//!
//! Invariants: Y1 bytes are counted where they are written to the device. For Forebay that is a
//! device wrapper around the image, for bare O_DIRECT the kernel's count of this process. For a
//! file system it is the kernel's count of its block device, with metadata and journal. Y2 in the
//! fio parts each variant with a cache has cached the complete file before the first slice. Y3 an
//! operation is a write and the sync that makes it durable; its latency covers both.

mod delay;
pub(crate) mod drive;
mod figures;
mod lines;
mod nbd;
mod subject;
mod volume;

pub(crate) use subject::{Subject, written_by};

use crate::harness::options::Options;
use crate::report::model::Report;
use figures::Found;
use forebay_base::Result;

/// Runs all parts, or the selected one.
pub fn run(options: &Options) -> Result<Report> {
    let mut report = Report::default();
    let mut found = Found::default();
    if options.wants("dd") {
        lines::dd(options, &mut report, &mut found)?;
    }
    if options.wants("fio") {
        lines::fio(options, &mut report, &mut found)?;
    }
    if options.wants("volume") {
        volume::unsynced(options, &mut report)?;
    }
    if options.wants("jobs") {
        lines::jobs(options, &mut report)?;
    }
    if options.wants("delay") {
        delay::run(options, &mut report)?;
    }
    if options.wants("nbd") {
        nbd::run(options, &mut report)?;
    }
    found.add_to(&mut report);
    Ok(report)
}
