//! The crash enumerator: seeded workloads on the simulated disk, the power cut at every request, all that
//! the disk may have kept, recovery, a second crash, against the contract (`docs/crash-contract.md`).
//!
//! A *script* is a workload that was carried out once on the file system in memory, with its state after each
//! step. A *run* carries it out on a volume until the power goes. A *verdict* holds what is recovered
//! against the script: which step it may be, which bytes each block may have.
//!
//! `FOREBAY_LFS_SEEDS` sets the number of seeds of each test, `FOREBAY_SEED` the first. No locks.

pub mod cuts;
mod planted;
pub mod run;
mod script;
mod verdict;
