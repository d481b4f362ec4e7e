//! fuzz
//!
//! No locks.
