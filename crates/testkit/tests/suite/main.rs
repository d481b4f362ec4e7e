//! Tests of the apparatus: the file system in memory against the host's, and the checks that find
//! planted bugs.
//!
//! No locks.

mod harness;
mod host;
mod memory;
mod workload;
