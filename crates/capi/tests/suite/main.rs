//! Tests of the C library and of the VFS for SQLite: programs in C against `libforebay.so.0`, and
//! the files that are installed.
//!
//! No locks.

mod build;
mod header;
mod install;
mod programs;
mod sqlite;
mod symbols;
