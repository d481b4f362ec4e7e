//! What was found: rows and ratios ([`model`]), saved results ([`results`]), the five lines
//! ([`five`]), the page ([`html`], [`svg`]) and the figures of the README ([`readme`]).
//!
//! It knows nothing of how a figure came about.

pub mod five;
pub mod html;
pub mod model;
pub mod readme;
pub mod results;
pub mod svg;
