//! redb on files of Forebay: the rules of a back end, and a writer that is killed.
//!
//! No locks.

mod backend;
mod kills;
