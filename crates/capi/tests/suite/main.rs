//! Tests of the C library and of the VFS for SQLite: programs in C against `libforebay.so.0`, and
//! the files that are installed.
//!
//! No locks.

mod build;
mod header;
mod install;
mod programs;
#[path = "../../../crashtest/tests/recorded/recorder.rs"]
mod recorder;
mod sqlite;
mod sqlite_kills;
mod sqlite_losses;
mod symbols;
