//! `uncached`: reads of 32 files (`files`) and writes (`writes`) by every strategy; a buffered
//! writer next to an uncached one ([`compete`]); random reads of a file of at least ten times the
//! budget (`random`); a hot set during a stream ([`crate::hotset`]); sequential reads
//! (`sequential`); and a volume (`volume`).
//!
//! Invariants: N1 variants that fill a cache and variants that bypass it use different files, so
//! that they do not influence each other. N2 both files are on the disk and out of the page cache
//! at the start.

pub mod compete;
mod files;
mod random;
mod sequential;
mod setting;
mod volume;
mod writes;

pub use setting::budget_for;

use crate::harness::image::Image;
use crate::harness::options::Options;
use crate::hotset;
use crate::report::model::Report;
use forebay_base::Result;
use forebay_base::units::format_size;
use setting::Setting;

/// Runs all parts, or the selected one.
pub fn run(options: &Options) -> Result<Report> {
    let mut report = Report::default();
    let size = options.size_or(320 << 20, 1536 << 20);
    let budget = budget_for(size);
    let create = |name| Image::create(&options.dir, name, size, options.keep);
    let setting = Setting { bypass: create("bypass")?, cached: create("cached")?, budget };
    let (size, budget_text) = (format_size(size), format_size(budget));
    report.note(format!("uncached: images of {size}, budget {budget_text}"));
    if options.wants("files") {
        files::run(options, &mut report)?;
    }
    if options.wants("writes") {
        writes::run(options, budget, &mut report)?;
        compete::run(options, budget, &mut report)?;
    }
    if options.wants("random") {
        random::run(options, &setting, &mut report)?;
    }
    if options.wants("hotset") {
        hotset::run(options, &setting.cached, budget, &mut report)?;
    }
    if options.wants("volume") {
        volume::run(options, budget, &mut report)?;
    }
    if options.wants("sequential") {
        sequential::run_parts(options, &setting, &mut report)?;
    }
    Ok(report)
}
