//! Common to all benches: options, load, alternating slices, meters and images.
//!
//! Reading order: [`options`], [`load`] (one slice), [`alternate`] (slices to rounds to ratios),
//! then the modules that these use. Nothing here depends on the programs that are compared.

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
