//! What every bench stands on: options, load, slices that alternate, meters and images.
//!
//! Reading order: [`options`], [`load`] (one slice), [`alternate`] (slices to rounds to ratios),
//! then what they use. Nothing here knows who is measured.

pub mod alternate;
pub mod backing;
pub mod hist;
pub mod image;
pub mod load;
pub mod machine;
pub mod meter;
pub mod options;
#[expect(unsafe_code, reason = "mappings, cachestat, mincore and getrusage have no safe form")]
pub mod sys;
