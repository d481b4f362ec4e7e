//! Starts the threads of a mount.

use forebay_base::{Error, Result};
use std::thread::JoinHandle;

/// Starts a thread of this name.
pub(super) fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>> {
    let builder = std::thread::Builder::new().name(name.to_string());
    builder.spawn(work).map_err(|e| Error::from_io("start a thread", e))
}
