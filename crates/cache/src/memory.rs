//! The memory of cached bytes: [`arena`] (the frames), [`frames`] (the owner of each frame),
//! `region` and `zeroed` (memory that is resident only once touched), `words` (write-outs and pins
//! that hold a frame).

pub mod arena;
pub mod frames;
mod region;
pub(crate) mod words;
pub(crate) mod zeroed;
