//! The path of dirty blocks ([`crate::dirty`]) to the device: [`flusher`] (the task that writes),
//! `window` (its flushes), `throttle` (writers above the limits), [`pieces`] (blocks in write-out),
//! [`stable`] (bytes in flight). The write-out itself is the mapping layer's ([`WriteOut`]).

pub mod flusher;
pub mod pieces;
mod sets;
pub mod stable;
mod throttle;
mod window;

pub use crate::dirty::domain::{Domain, DomainKey};
pub use crate::dirty::pass::{Which, WriteOut, WriteOutPass};
pub use pieces::{WritePiece, end_fill, end_write, fail_unwritten, untake};
