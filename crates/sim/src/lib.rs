//! forebay-sim: what tests stand on. No layer depends on it.
//!
//! - [`disk`]: the one simulated disk of the project, over a [`forebay_base::sim_world::SimWorld`];
//!   [`image`] holds its sectors, [`fault`] what can go wrong, [`crash`] what a power cut leaves,
//!   [`reads`] what somebody has read of that.
//! - [`counted`]: an allocator for tests that say that something allocates nothing.

pub mod config;
pub mod counted;
pub mod crash;
pub mod disk;
pub mod fault;
pub mod image;
mod media;
mod power_cut;
pub mod reads;

pub use config::SimConfig;
pub use crash::{CrashState, CrashStates, Fate, Tear};
pub use disk::{LogEntry, SimDisk};
pub use fault::{Fault, FaultCounts, FaultRule};
pub use power_cut::PowerCut;
pub use reads::{Read, Reads};
