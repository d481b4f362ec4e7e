//! The way of dirt to the device: [`control`] (limits, and what counts against them), [`throttle`]
//! (writers above them), [`pieces`] (blocks in write-out), [`flusher`] (the task that writes), [`stable`]
//! (bytes in flight), [`unflushed`] (what a failed flush may
//! lose), [`errseq`] (who is told of errors). The write-out itself is the mapping
//! layer's ([`WriteOut`]).

pub mod control;
pub mod errseq;
pub mod flusher;
mod line;
pub mod pieces;
pub mod stable;
mod throttle;
pub mod unflushed;

pub use control::{Which, WriteOut, WriteOutPass};
pub use pieces::{WritePiece, end_fill, end_write, untake};
