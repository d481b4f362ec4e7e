//! Recovery: how a volume is found again after a crash, and what it does after a failed write or
//! flush.
//!
//! Locks: see the submodules.

pub(crate) mod open;
pub(crate) mod repair;
pub(crate) mod rollforward;
