//! forebay-sim: simulated hardware for tests. No layer depends on it.
//!
//! - [`disk`]: the simulated disk, in a [`forebay_base::sim_world::SimWorld`]. [`image`] holds its
//!   sectors; [`fault`] injects faults; [`crash`] lists the states that a power loss may leave;
//!   [`reads`] records what a program reads of such a state.
//! - [`slow_page`]: memory that is absent until the test provides it.
//! - [`counted`]: an allocator for tests which assert that an operation allocates nothing.

pub mod config;
pub mod counted;
pub mod crash;
pub mod disk;
pub mod fault;
pub mod image;
mod media;
mod power_cut;
pub mod reads;
pub mod slow_page;

pub use config::SimConfig;
pub use crash::{CrashState, CrashStates, Fate, Tear};
pub use disk::{LogEntry, SimDisk};
pub use fault::{Fault, FaultCounts, FaultRule};
pub use power_cut::PowerCut;
pub use reads::{Read, Reads};
