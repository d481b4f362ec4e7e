//! Tests of the simulated disk.
//!
//! No locks.

mod crash;
mod disk;
