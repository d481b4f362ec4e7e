//! forebay-crashtest: volumes on the simulated disk under power losses, for tests and for
//! `forebay crash-test`.
//!
//! - A *script* is a workload that ran once on the file system in memory, with the state after each
//!   step.
//! - A *run* executes the script on a volume and records a *moment* at each request to the disk.
//!   The power may fail at each of them.
//! - A *search* takes each moment and each subset of the writes that were not flushed then. It
//!   recovers the disk that results, a *crash state*. On some states it runs further steps (a
//!   second life) and lets the power fail again.
//! - A *verdict* compares the recovered volume with the script: which step it may show, and which
//!   bytes each block may have (`docs/reference/crash-contract.md`). Recovery is a function of
//!   what it reads, so a *read tree* gives the result of states that read alike.
//! - A *campaign* runs many searches on several threads, and shrinks the first workload that fails.
//!
//! Workloads of several *clients*, and with dropped operations, have histories instead of a script.
//!
//! The folders are layers, each above the one before it, and this is the order to read them:
//! `workload`, `run`, `verdict`, `search`, `clients`, `campaign`.
//!
//! No layer depends on this crate. For locks see `campaign`.
#![forbid(unsafe_code)]

mod campaign;
mod clients;
mod run;
mod search;
mod verdict;
mod workload;

pub use campaign::{
    Bases, CLASSES, Class, Failure, Options, Progress, Summary, campaign, class_by_name,
    missing_step, shrink,
};
pub use forebay_lfs::fault::Planted;
pub use run::{Progress as Known, Synced};
pub use search::{
    ClassCounts, Counts, Depth, Part, Seen, Spot, Subject, Violation, look_at, search,
};
pub use verdict::{Found, Past, Recoveries, judge, look, sound};
pub use workload::{Base, Case, Kind, Script, Setup, Usage, crowding, replacing};
