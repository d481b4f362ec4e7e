//! `nbd`: Forebay's export compared with nbdkit and qemu-nbd, by random 4 KiB reads of fio's nbd
//! engine. Client and server have a core each. All data is in memory in `hits`, none in `misses`.
//! `status` measures a reader while other clients query the block status.

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

/// Runs the bench.
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
