//! One change: recorded, queued for the log and applied to names, map and space in one hold of the
//! state lock.
//!
//! No locks: the volume's state lock covers it.

pub(crate) mod append;
pub(crate) mod frozen;
pub(crate) mod state;
