//! What was found: rows and ratios ([`model`]), saved results ([`results`]), the five lines
//! ([`five`]), the page ([`html`], [`chart`]), the tables of `docs/figures.md` ([`readme`]), a
//! comparison of two runs ([`compare`]), the few lines for a newcomer ([`screen`]), and what is a
//! lack of the machine ([`lack`]).
//!
//! [`options`] are those of its command line. It knows nothing of how a figure came about.

pub mod chart;
pub mod compare;
pub mod figures;
pub mod five;
pub mod html;
pub mod lack;
pub mod model;
pub mod options;
pub mod readme;
pub mod results;
pub mod screen;
