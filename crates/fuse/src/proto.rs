//! The kernel's protocol on /dev/fuse, version 7.45 (Linux 6.18) and what it has of older ones: requests
//! are parsed, replies and notifications encoded. No I/O.
//!
//! Invariants: P1 no bytes make the parser panic, or allocate. P2 what it takes lies within the message:
//! lengths that disagree, a name without its NUL and bytes too many are refused. P3 a reply is as long as
//! its header says. P4 numbers are the host's, and that is little-endian.
//!
//! No locks.

pub mod consts;
pub mod notify;
pub mod reply;
pub mod request;

#[cfg(target_endian = "big")]
compile_error!("the protocol has the host's byte order; only little-endian hosts were thought of");

#[cfg(test)]
mod tests;
