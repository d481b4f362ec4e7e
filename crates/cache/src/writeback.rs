//! The path of dirty blocks to the device: [`limits`] (how much may be dirty), [`domain`] (the
//! files of one device, their share of the limits, and the writers that wait), [`dirty_folios`]
//! (the dirty folios of a file), [`flusher`] (the task that writes), `window` (its flushes),
//! `throttle` (writers above the limits), [`pieces`] (blocks in write-out), [`stable`] (bytes in
//! flight), [`unflushed`] (blocks that a failed flush may lose), [`flushes`] (of a domain),
//! [`errseq`] (reporting errors to openers), [`control`] (all domains together). The write-out
//! itself is the mapping layer's ([`WriteOut`]).

pub mod control;
pub mod dirty_folios;
pub mod domain;
pub mod errseq;
pub mod flusher;
pub mod flushes;
pub mod limits;
pub mod pass;
pub mod pieces;
mod queue;
pub(crate) mod sets;
pub mod stable;
mod throttle;
pub mod unflushed;
mod window;
mod writer_queue;

pub use domain::{Domain, DomainKey};
pub use pass::{Which, WriteOut, WriteOutPass};
pub use pieces::{WritePiece, end_fill, end_write, fail_unwritten, untake};
