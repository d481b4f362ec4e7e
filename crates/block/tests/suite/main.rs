//! Tests of block devices: files, both engines, loops, growth.
//!
//! No locks.

mod common;
mod devices;
mod file;
mod growth;
mod io_flusher;
mod looped;
mod target;
