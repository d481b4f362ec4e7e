//! `volume`: the log-structured volume compared with XFS, ext4 and btrfs on a direct loop device,
//! and with the host's own file system.
//!
//! Reading order: [`places`] (the file systems that are compared), `overwrite` (a load), then the
//! parts: `sync`, `random`, `seq` with `flush`, `sustained`, `hit`, `names`, `open`, `full`,
//! `scale`.
//!
//! Invariants: W1 all variants make the same calls on files of the same size in images of the same
//! size; in `hit` one of them is the image itself. W2 bytes written are counted at the device:
//! Forebay's by a device wrapper, the kernel's by the loop device.

mod flush;
mod full;
mod hit;
mod names;
mod open;
pub mod overwrite;
pub mod places;
mod random;
mod scale;
mod seq;
mod sustained;
mod sync;

pub use open::{log_job, recover_job, touch_job};
pub use overwrite::overwrite_job;
pub use scale::scale_job;

use crate::harness::options::{Options, Part, names_of, run_parts};
use crate::report::model::Report;
use forebay_base::Result;

const PARTS: [Part; 9] = [
    ("sync", sync::run),
    ("random", random::run),
    ("seq", seq::run),
    ("sustained", sustained::run),
    ("hit", hit::run),
    ("names", names::run),
    ("open", open::run),
    ("full", full::run),
    ("scale", scale::run),
];

/// The names of the parts.
pub const PART_NAMES: [&str; PARTS.len()] = names_of(&PARTS);

/// Runs all parts, or the selected one.
pub fn run(options: &Options) -> Result<Report> {
    let mut report = Report::default();
    run_parts("volume", &PARTS, options, &mut report);
    Ok(report)
}
