//! The kernel's protocol on /dev/fuse, version 7.45 (Linux 6.18), with the requests of older
//! versions. Requests are parsed, replies and notifications encoded. No I/O.
//!
//! Invariants: P1 on any input the parser does not panic, and allocates nothing but the text of an
//! error. P2 a parsed request lies within the message: the parser refuses contradictory lengths,
//! names without NUL and trailing bytes. P3 a reply is as long as its header says. P4 numbers have
//! the host's byte order, which has to be little-endian.
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
