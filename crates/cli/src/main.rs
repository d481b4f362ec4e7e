//! The forebay command.

#![forbid(unsafe_code)]
fn main() {}
