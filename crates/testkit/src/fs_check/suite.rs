//! The rules of the contract, case by case, for any file system: those that random operations
//! rarely test. Each case gets an empty file system and panics, or fails, where a rule is broken.
//!
//! No locks.

mod attrs;
mod content;
mod listing;
mod names;
mod rename;
mod subject;

pub use subject::{Case, Subject};

/// All cases.
pub fn cases() -> Vec<Case> {
    let all = [names::CASES, rename::CASES, listing::CASES, content::CASES, attrs::CASES];
    all.into_iter().flatten().copied().collect()
}
