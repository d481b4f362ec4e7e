//! Tests of the file system interface: its rules, the one in memory, the host's, and the comparison
//! of two.
//!
//! No locks.

mod harness;
mod host;
mod memory;
mod paths;
mod rules;
