//! forebay-lfs: the volume, a log-structured and checksummed file system in one image.
//!
//! What there is so far is [`format`](mod@format), the stored form: codecs that do no I/O. `docs/format.md` draws it.

#![forbid(unsafe_code)]

mod aops;
mod attr;
mod batch;
mod commit;
mod content;
mod dir;
mod fault;
mod file;
pub mod format;
mod inode;
mod layout;
mod log;
mod namei;
mod pending;
mod repair;
mod rollforward;
mod slots;
mod space;
mod staging;
mod state;
mod tx;
mod vfs;
mod volume;

pub use volume::{CreateOptions, OpenOptions, Volume};
#[cfg(any(test, feature = "fuzz"))]
pub mod fuzz;
#[cfg(test)]
mod tests;
