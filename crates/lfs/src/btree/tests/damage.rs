//! damage
//!
//! No locks.
