//! Tests of the mapping layer: single requests, seeded runs against a model, ends of files,
//! failures, power loss.
//!
//! No locks.

#[path = "common/committed.rs"]
mod committed;
mod common;
#[path = "common/engines.rs"]
mod engines;
mod eof;
mod fsx;
mod fsx_growing;
mod fsx_many;
mod nth;
mod paths;
mod power_cut;
mod resize;
#[path = "common/seeds.rs"]
mod seeds;
