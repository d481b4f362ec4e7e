//! Results of benches: rows and ratios ([`model`]), saved results ([`results`]), the table of the
//! five behaviours ([`five`]), the HTML page ([`html`], [`chart`]) and its labels ([`words`]), the
//! tables of `docs/figures.md` ([`readme`]), the comparison of two runs ([`compare`]), the short
//! summary ([`screen`]), and errors that a machine's lack explains ([`lack`]).
//!
//! [`options`] are the arguments of its command. Nothing here depends on how a figure was measured.

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
pub mod words;
