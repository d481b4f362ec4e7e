//! forebay-crashtest: volumes on the simulated disk under power cuts, for tests and for
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
//! Reading order: `setup`, `script`, `run`, `verdict`, `search`; then `short`, `replacing`,
//! `crowding` and `case`, the kinds of workload; `clients`; `class`, the table from which a
//! campaign draws; `campaign`, `shrink`.
//!
//! No layer depends on this crate. For locks see `campaign`.
#![forbid(unsafe_code)]

mod bounds;
mod campaign;
mod case;
mod class;
mod clients;
mod counts;
mod crowding;
mod read_tree;
mod replacing;
mod run;
mod script;
mod search;
mod setup;
mod short;
mod shrink;
mod verdict;

pub use bounds::Usage;
pub use campaign::{Options, Progress, Summary, campaign, missing_step};
pub use case::{Bases, Case, Kind};
pub use class::{CLASSES, Class, Part, by_name as class_by_name};
pub use counts::{ClassCounts, Counts, Seen};
pub use crowding::crowding;
pub use forebay_lfs::fault::Planted;
pub use replacing::replacing;
pub use run::{Progress as Known, Synced};
pub use script::Script;
pub use search::{Depth, Spot, Subject, Violation, look_at, search};
pub use setup::{Base, Setup};
pub use shrink::{Failure, shrink};
pub use verdict::{Found, Past, Recoveries, judge, look, sound};
