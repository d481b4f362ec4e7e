//! What the codecs are tried with: valid structures made from a seed ([`make`]).
//!
//! No locks.

pub mod make;
