//! Tests of the file system interface: its rules, paths, and the file systems over others.
//!
//! No locks.

mod coherent;
mod disk;
mod keeping;
mod paths;
mod readonly;
mod rules;
