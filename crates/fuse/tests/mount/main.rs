//! Real mounts of the file system in memory, served by this process.
//!
//! No locks.

#[path = "../../../vfs/tests/suite/host/adapter.rs"]
mod adapter;
mod fsx;
mod killed;
mod known;
mod lab;
mod manners;
mod mapped;
mod rules;
