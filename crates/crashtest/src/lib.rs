//! forebay-crashtest: volumes on the simulated disk under power cuts, for tests and for
//! `forebay crash-test`.
//!
//! A *script* is a workload that was carried out once on the file system in memory, with its state
//! after each step. A *run* carries it out on a volume and keeps every moment at which the power
//! may go. A *search* takes each of them, and each subset of the writes that were not flushed;
//! recovers what the disk may then hold; goes on living on some of it, and cuts again. A *verdict*
//! holds what is recovered against the script: which step it may be, which bytes each block may
//! have (`docs/reference/crash-contract.md`); what a recovery reads alike it makes the same of, so
//! that is *told* only once. A *campaign* is many of these on several threads; what fails is made
//! short.
//!
//! Several *clients* at once, and dropped operations, have histories instead of a script.
//!
//! Reading order: `setup`, `script`, `run`, `verdict`, `search`; then `short`, `replacing`,
//! `crowding` and `case`, which say what workloads there are; `clients`; `class`, the table of what
//! a campaign draws; `campaign`, `shrink`.
//!
//! No layer depends on this crate. Locks: `campaign` says.
#![forbid(unsafe_code)]

mod bounds;
mod campaign;
mod case;
mod class;
mod clients;
mod counts;
mod crowding;
mod replacing;
mod run;
mod script;
mod search;
mod setup;
mod short;
mod shrink;
mod told;
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
