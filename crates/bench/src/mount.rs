//! `mount`: a mounted volume, compared with an empty FUSE server with as many threads, XFS on a
//! direct loop device, and the host's own file system.
//!
//! Reading order: [`ground`] (the file systems that are compared), then the parts: `read`, `sync`,
//! `content` (`random` and `seq`), `names`; the behaviours through the mount: `uncached`, `dirty`,
//! `stable`, `alloc`; `attach` and `keep` (what the kernel's cache keeps); `programs` (tar, make,
//! git, a search, SQLite); `many` (the daemon's memory with two million files); `pgbench`, a
//! database during a backup.
//!
//! All variants of a part make the same calls with the same threads, on files of the same names and
//! sizes. "Cold" means that the file system was mounted anew, by a process with an empty cache.

mod alloc;
mod attach;
mod content;
mod dirty;
pub mod ground;
pub mod keep;
mod many;
mod names;
mod needs;
mod pgbench;
mod programs;
mod read;
mod stable;
mod sync;
mod uncached;

use crate::harness::options::{Options, Part, names_of, run_parts};
use crate::report::model::Report;
use crate::rivals::mounted::words_of_environment;
use forebay_base::Result;

pub use needs::prepare;

const PARTS: [Part; 14] = [
    ("read", read::run),
    ("sync", sync::run),
    ("random", content::random),
    ("seq", content::seq),
    ("names", names::run),
    ("uncached", uncached::run),
    ("dirty", dirty::run),
    ("stable", stable::run),
    ("alloc", alloc::run),
    ("attach", attach::run),
    ("kernel", keep::run),
    ("programs", programs::run),
    ("many", many::run),
    ("pgbench", pgbench::run),
];

/// The names of the parts.
pub const PART_NAMES: [&str; PARTS.len()] = names_of(&PARTS);

/// Runs all parts, or the selected one.
pub fn run(options: &Options) -> Result<Report> {
    let mut report = Report::default();
    if let Err(e) = prepare() {
        report.left_out("mount", e);
        return Ok(report);
    }
    if let Some(words) = words_of_environment() {
        report.note(format!("mount: with -o {words}"));
    }
    run_parts("mount", &PARTS, options, &mut report);
    Ok(report)
}
