//! forebay-base: what every layer stands on. Knows no layer above it and does no file I/O.
//!
//! Reading order: [`error`], [`units`], [`buf`], [`sync`], [`task`] (with `wait`), [`world`],
//! [`pool`], [`sim_world`]; then the tools [`codec`], [`checksum`], [`io_flusher`],
//! [`kernel_cache`], [`thread`], [`fork`].
//!
//! Unsafe: only in [`buf`] (owned aligned memory and the [`buf::IoMem`] contract), in [`thread`]
//! (masks of signals), in [`fork`] (a page that a child gets empty), and in [`kernel_cache`] and
//! [`peer`] (system calls).

pub mod buf;
pub mod checksum;
pub mod codec;
pub mod error;
pub mod flags;
pub mod fork;
pub mod io_flusher;
pub mod kernel_cache;
pub mod peer;
pub mod pool;
#[cfg(shuttle)]
pub mod schedules;
pub mod sim_world;
pub mod sync;
pub mod task;
pub mod thread;
pub mod units;
mod wait;
pub mod world;

pub use error::{Error, ErrorKind, Result};
pub use flags::IoFlags;
