//! `alloc`: contiguous blocks for large direct writes of several writers, during write-back and
//! small writes, on a volume with each way of giving out blocks.
//!
//! Reading order: `ways` (of giving out blocks), `bed` (a fresh volume on some device), `load` (who
//! writes what), `found` (what is looked at afterwards), then the parts: `delay` and `disk` in
//! `large`, `small`, `sim`, `kernel`.
//!
//! Invariants: A1 every slice begins on an empty volume with an empty cache, of the same size for
//! all variants. A2 a slice of direct writes ends when the last is complete, one of buffered writes
//! when they are synced. A3 extents of a file are counted in its map, runs that lie one behind the
//! other as one, extents of a request by the allocator as it gives them out; discontiguities where
//! requests reach the device.

mod bed;
mod found;
mod kernel;
mod large;
mod load;
mod sim;
mod small;
mod ways;

use crate::harness::options::Options;
use crate::report::model::{Report, Summary};
use forebay_base::Result;

/// Runs all parts, or the one that is asked for.
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
