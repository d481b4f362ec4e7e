//! Who has which part of the budget: `resize` (changing it), `fit` (files take memory from frames),
//! `migrate` (moving folios and frames to a smaller budget), [`private`] (buffers of requests in
//! flight), [`claim`] (other users of the budget).

pub mod claim;
mod fit;
mod migrate;
pub mod private;
mod resize;
