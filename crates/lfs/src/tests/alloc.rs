//! Contiguous allocation, by the lines A1 and following of its checklist (`docs/lineage.md`), in
//! the simulated world. The seed draws the order in which writers run at every lock and every wait.
//!
//! Segments have 4 MiB here, so the first windows have 128 KiB and the largest 512 KiB: a sixteenth
//! of those in segments of 64 MiB. No locks.

mod contiguous;
mod crash;
mod fair;
pub(crate) mod lab;
mod returned;
