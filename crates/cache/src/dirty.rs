//! Dirty blocks, and what is known of them: [`limits`] (how much may be dirty), [`domain`] (the
//! files of one device, their share of the limits, and the writers that wait), [`dirty_folios`]
//! (the dirty folios of a file), [`unflushed`] (blocks that a failed flush may lose), [`flushes`]
//! (of a domain), [`errseq`] (reporting errors to openers), [`control`] (all domains together),
//! [`pass`] (what a write-out is to take). Writing them out is [`crate::writeback`].

pub mod control;
pub mod dirty_folios;
pub mod domain;
pub mod errseq;
pub mod flushes;
pub mod limits;
pub mod pass;
pub(crate) mod queue;
pub mod unflushed;
mod writer_queue;
