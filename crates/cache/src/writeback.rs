//! The way of dirt to the device: [`limits`] (how much may be dirty), [`domain`] (the files of one device,
//! their share of that, and who waits), [`dirt`] (the dirty folios of a file), [`flusher`] (the task that
//! writes), `window` (its flushes), `throttle` (writers above the limits), [`pieces`] (blocks in write-out),
//! [`stable`] (bytes in flight), [`unflushed`] (what a failed flush may lose), [`flushes`] (of a domain),
//! [`errseq`] (who is told of errors), [`control`] (all domains together). The write-out itself is the
//! mapping layer's ([`WriteOut`]).

pub mod control;
pub mod dirt;
pub mod domain;
pub mod errseq;
pub mod flusher;
pub mod flushes;
pub mod limits;
mod line;
pub mod pass;
pub mod pieces;
mod queue;
pub(crate) mod sets;
pub mod stable;
mod throttle;
pub mod unflushed;
mod window;

pub use domain::{Domain, DomainKey};
pub use pass::{Which, WriteOut, WriteOutPass};
pub use pieces::{WritePiece, end_fill, end_write, fail_unwritten, untake};
