//! The memory that cached bytes live in, and what else the one number is spent on: [`arena`] (the
//! frames), [`frames`] (who owns which frame), [`batch`] (a few), `slots` (which folio descriptors
//! are free), `region` and `zeroed` (memory that costs nothing until it is touched), `sizes` (how
//! much there may be of each now), `words` (which write-outs and pins hold a frame), `resize`
//! (making that more or less), `fit` (frames make room for files), `migrate` (moving what is in
//! the way), [`private`] (buffers of requests in flight), [`claim`] (what others take of the
//! budget).

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
