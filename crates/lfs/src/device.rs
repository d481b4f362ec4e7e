//! The device below a volume: layout of segments, superblock slots, and writes that outlive the
//! task that submitted them.
//!
//! No locks.

pub(crate) mod hold;
pub(crate) mod layout;
pub(crate) mod slots;
pub(crate) mod write;
