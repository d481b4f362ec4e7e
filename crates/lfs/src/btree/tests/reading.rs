//! reading
//!
//! No locks.
