//! The fifth behaviour, line by line of its checklist, in the simulated world: writers meet at every lock and
//! at every wait, in the order that the seed draws.
//!
//! Segments of 4 MiB here: first windows of 128 KiB, the largest of 512 KiB, all a sixteenth of what segments
//! of 64 MiB have. No locks.

mod contiguous;
mod crash;
mod fair;
pub(crate) mod lab;
mod returned;
