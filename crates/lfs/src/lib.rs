//! forebay-lfs: the volume, a log-structured and checksummed file system in one image.
//!
//! What there is so far is [`format`](mod@format), the stored form: codecs that do no I/O, which
//! `docs/format.md` draws; and [`btree`], the copy-on-write tree of it.

#![forbid(unsafe_code)]

pub mod btree;
pub mod format;
#[cfg(any(test, feature = "fuzz"))]
pub mod fuzz;
#[cfg(test)]
mod tests;
