//! The paths through a mapped file, one behaviour per test, in a simulated world: uncached I/O,
//! dirty tracking, sync and errors, stable writes, pins, `NOWAIT`. Names such as `u1` are the
//! promises that docs/reference/behaviours.md lists.

mod ageing;
mod appends;
mod crowd;
mod dirty;
mod dirty_exact;
mod dirty_more;
mod domain;
mod dropped;
mod dropped_polls;
mod ends;
mod fair;
mod gates;
mod harness;
mod held;
mod held_above;
mod lost;
mod nowait;
mod pins;
mod pins_real;
mod published;
mod reads;
mod room;
mod scans;
mod stable;
mod strategies;
mod sync;
mod uncached;
