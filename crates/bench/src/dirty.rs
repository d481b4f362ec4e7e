//! `dirty`: sub-page dirty tracking. What a small change costs that is made durable at once: bytes
//! that reach the device for each byte changed, and synced writes per second.
//!
//! Reading order: `subject` (who writes and syncs),
//! `drive` (one slice), then the parts: the `dd` line, the `fio` line, the 8 jobs, the delay
//! device, fio through NBD, and what is not synced on a volume.
//!
//! Invariants: Y1 bytes are counted where they leave for the device: ours by a device around the
//! image, bare O_DIRECT by the kernel's count of our process, a file system's (metadata and journal
//! included) by the kernel's count of the block device below. Y2 in the fio parts all of a file is
//! cached before the first slice, for every variant that caches. Y3 an operation is a write and
//! the sync that makes it durable; its latency is that of both.

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

/// Runs all parts, or the one that is asked for.
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
