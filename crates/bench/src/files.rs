//! `files`: thousands of small files on one cache. `many` measures threads, memory, and the cost of
//! one more file (open, write, close). `dead` measures a healthy file next to one whose device
//! fails all writes.

mod dead;
mod many;

use crate::harness::options::Options;
use crate::report::model::Report;
use forebay_base::Result;

/// Runs both parts, or the selected one.
pub fn run(options: &Options) -> Result<Report> {
    let mut report = Report::default();
    if options.wants("many") {
        many::run(options, &mut report)?;
    }
    if options.wants("dead") {
        dead::run(options, &mut report)?;
    }
    Ok(report)
}
