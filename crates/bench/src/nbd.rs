//! `nbd`: our export compared with nbdkit and qemu-nbd, random 4 KiB reads by fio's nbd engine,
//! client on one core and server on the other. All in memory (`hits`), nothing in memory
//! (`misses`). And what a reader feels of clients who ask for the map (`status`).

mod best;
mod client;
pub(crate) mod hits;
mod misses;
mod status;

use crate::harness::options::Options;
use crate::report::model::Report;
use crate::rivals::fio;
use crate::rivals::server::forebay_binary;
use client::Cores;
use forebay_base::Result;

/// Runs both parts.
pub fn run(options: &Options) -> Result<Report> {
    let mut report = Report::default();
    if let Err(e) = fio::available() {
        report.left_out("nbd", e);
        return Ok(report);
    }
    let cores = Cores::choose(&mut report);
    if let Err(e) = forebay_binary() {
        report.left_out("rows of ours", e);
    }
    if options.wants("hits") {
        hits::run(options, cores, &mut report)?;
    }
    if options.wants("misses") {
        misses::run(options, cores, &mut report)?;
    }
    if options.wants("status") {
        status::run(options, &mut report)?;
    }
    Ok(report)
}
