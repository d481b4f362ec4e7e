//! Tests of the daemon as a process: it is killed, or short of descriptors.
//!
//! No locks.

mod daemon;
mod descriptors;
mod killed;
