//! `alloc`: whether large direct writes of several writers get contiguous blocks, also during
//! write-back and small writes. It compares the allocation strategies of the volume.
//!
//! Reading order: `strategies`, `fixture` (a fresh volume on a device), `load` (the writers),
//! `found` (the measurements afterwards), then the parts: `delay` and `disk` in `large`, `small`,
//! `sim`, `kernel`.
//!
//! Invariants: A1 every slice begins on an empty volume with an empty cache, of the same size for
//! all variants. A2 a slice of direct writes ends with the completion of the last one, a slice of
//! buffered writes with their sync. A3 extents of a file are counted in its map, where adjacent
//! runs count as one. Extents of a request are counted by the allocator as it assigns them,
//! discontiguities at the device.

mod fixture;
mod found;
mod kernel;
mod large;
mod load;
mod sim;
mod small;
mod strategies;

use crate::harness::options::Options;
use crate::report::model::{Report, Summary};
use forebay_base::Result;

/// Runs all parts, or the selected one.
pub fn run(options: &Options) -> Result<Report> {
    let mut report = Report::default();
    let mut summary = Summary {
        behaviour: "alloc",
        promise: "parallel writers get contiguous blocks".into(),
        kernel: "-".into(),
        ..Summary::default()
    };
    let mut worst = large::Worst::default();
    if options.wants("delay") {
        large::delay(options, &mut report, &mut worst)?;
    }
    if options.wants("disk") {
        large::disk(options, &mut report, &mut worst, &mut summary)?;
    }
    worst.judge(&mut report);
    if options.wants("small") {
        small::run(options, &mut report)?;
    }
    if options.wants("sim") {
        sim::run(options, &mut report)?;
    }
    if options.wants("kernel") {
        kernel::run(options, &mut report, &mut summary);
    }
    report.summaries.push(summary);
    Ok(report)
}
