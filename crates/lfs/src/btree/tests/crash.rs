//! crash
//!
//! No locks.
