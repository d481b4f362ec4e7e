//! `files`: thousands of files on one cache, each with little in it: threads, memory, and what
//! opening one more costs (`many`); a healthy file next to one whose device fails all writes
//! (`dead`).

mod dead;
mod many;

use crate::harness::options::Options;
use crate::report::model::Report;
use forebay_base::Result;

/// Runs both parts, or the one that is asked for.
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
