//! The memory of cached bytes, and the other parts of the budget: [`arena`] (the frames),
//! [`frames`] (the owner of each frame), [`batch`] (a few frames), `slots` (the free folio
//! descriptors), `region` and `zeroed` (memory that is resident only once touched), `sizes` (the
//! current number of each), `words` (write-outs and pins that hold a frame), `resize` (changing the
//! budget), `fit` (files take memory from frames), `migrate` (moving folios and frames to a smaller
//! budget), [`private`] (buffers of requests in flight), [`claim`] (other users of the budget).

pub mod arena;
pub mod batch;
pub mod claim;
mod fit;
pub mod frames;
mod migrate;
pub mod private;
mod region;
mod resize;
pub(crate) mod sizes;
pub(crate) mod slots;
pub(crate) mod words;
pub(crate) mod zeroed;
