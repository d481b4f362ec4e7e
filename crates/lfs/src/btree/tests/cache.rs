//! cache
//!
//! No locks.
