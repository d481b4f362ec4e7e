//! forebay-testkit: what the tests of several crates share. Only tests of layers depend on it.
//!
//! - [`mem_fs`]: the simplest correct file system, in memory: the oracle of the others.
//!   [`host_fs`]: a directory of the host behind the same contract.
//! - [`fs_check`]: the rules of the contract case by case, and two file systems side by side.
//!   [`mounted`]: which of these cases cannot be tested through the kernel.
//! - [`mem_export`]: an export in memory. [`behind`]: an export whose calls a test holds up.
//! - [`remap`]: a map in memory that moves data on every write. [`dropped_ops`]: operations on any
//!   map that are dropped at each of their polls.
//! - [`target`]: block devices that delay, fail, record or checksum the requests to another device.
//! - [`cgroup`]: a memory cgroup for a child process.
//! - [`workload`]: seeded operations against anything that holds bytes, checked by a byte model.
#![forbid(unsafe_code)]

pub mod behind;
pub mod cgroup;
pub mod dropped_ops;
pub mod fs_check;
pub mod host_fs;
pub mod mem_export;
pub mod mem_fs;
pub mod mounted;
pub mod remap;
pub mod target;
pub mod workload;
