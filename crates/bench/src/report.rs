//! What was found: rows and ratios ([`model`]), saved results ([`results`]), the five lines
//! ([`five`]) and the page ([`html`], [`svg`]).
//!
//! It knows nothing of how a figure came about.

pub mod five;
pub mod html;
pub mod model;
pub mod results;
pub mod svg;
