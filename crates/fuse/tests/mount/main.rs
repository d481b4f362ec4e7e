//! Real mounts of the file system in memory, served by this process.
//!
//! No locks.

mod fsx;
mod harness;
mod listings;
mod manners;
mod mapped;
mod rules;
