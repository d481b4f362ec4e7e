//! Small changes of the source that tests should notice: what one is, and a seeded sample of them.
//! Finding them: [`crate::mutants_find`]. All of a sample in one tree: [`crate::mutants_build`]. Running
//! them: [`crate::mutants_run`].
//!
//! Invariants: Z1 a mutation changes one place outside of comments, literal text, macros, patterns, types,
//! constants and tests. Z2 the sample depends on the sources and the seed only.

use std::ops::Range;
use std::path::Path;

/// Files of these crates that are mutated: those whose name, or the name of a folder above them below
/// `src`, is in the list.
const WANTED: &[(&str, &[&str])] = &[
    ("crates/cache/src/", &["folio", "guard", "mapping", "reclaim", "line", "writeback", "ageing"]),
    ("crates/iomap/src/", &["fill", "write", "writeout", "sync", "direct", "zero"]),
];

/// What a mutation is a change of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// A statement that is put in front of a function's body; its `node` is empty.
    First,
    /// A statement that is left out.
    Without,
    /// Characters of an expression.
    Expression,
}

/// One change: in which file, of what, which bytes, what takes their place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mutation {
    /// Path below the root.
    pub file: String,
    /// Line of the change, from 1.
    pub line: usize,
    /// What it is a change of.
    pub kind: Kind,
    /// The bytes of the whole expression or statement.
    pub node: Range<usize>,
    /// The bytes that are replaced: a part of `node` that no smaller expression has a part of.
    pub at: Range<usize>,
    /// What stands there.
    pub old: String,
    /// What takes its place.
    pub new: String,
}

impl Mutation {
    /// For people: the place, and what became of what.
    pub fn describe(&self) -> String {
        let short =
            |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "\\|");
        let (old, new) = (short(&self.old), short(&self.new));
        let what = match self.kind {
            Kind::First => format!("`{new}` first"),
            Kind::Without => format!("without `{old}`"),
            Kind::Expression if new.is_empty() => format!("without `{old}`"),
            Kind::Expression => format!("`{old}` becomes `{new}`"),
        };
        format!("{}:{} | {what}", self.file, self.line)
    }
}

/// All mutations of the tree, by file and place.
///
/// # Errors
/// A file that cannot be read, or is not Rust.
pub fn all(root: &Path) -> Result<Vec<Mutation>, String> {
    let mut found = Vec::new();
    for path in crate::tidy::files(root) {
        let name = path.strip_prefix(root).unwrap_or(&path).display().to_string();
        if is_wanted(&name) {
            let text = std::fs::read_to_string(&path).map_err(|e| format!("{name}: {e}"))?;
            found.extend(crate::mutants_find::of(&name, &text)?);
        }
    }
    found.sort_by(|a, b| {
        (&a.file, a.at.start, a.kind, &a.new).cmp(&(&b.file, b.at.start, b.kind, &b.new))
    });
    Ok(found)
}

fn is_wanted(name: &str) -> bool {
    let fits = |(root, stems): &(&str, &[&str])| {
        let Some(rest) = name.strip_prefix(root).and_then(|n| n.strip_suffix(".rs")) else {
            return false;
        };
        !rest.ends_with("tests") && rest.split('/').any(|part| stems.contains(&part))
    };
    WANTED.iter().any(fits)
}

/// `count` of them, drawn by the seed.
pub fn sample(mut all: Vec<Mutation>, seed: u64, count: usize) -> Vec<Mutation> {
    let mut state = seed;
    for i in (1..all.len()).rev() {
        all.swap(i, (split_mix(&mut state) % (i as u64 + 1)) as usize);
    }
    all.truncate(count);
    all
}

fn split_mix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn z2_the_sample_follows_the_seed() {
        let text = "fn f(a: u32) -> bool { g(a, 3); a + 1 < 7 && a * 2 != 9 }";
        let all = crate::mutants_find::of("x.rs", text).unwrap();
        let draw = |seed| sample(all.clone(), seed, 4);
        assert_eq!(draw(1), draw(1));
        assert!((2..9).any(|seed| draw(seed) != draw(1)));
        assert_eq!(sample(all.clone(), 3, 100).len(), all.len());
    }

    #[test]
    fn files_are_found_also_in_folders() {
        assert!(is_wanted("crates/cache/src/folio.rs") && is_wanted("crates/cache/src/folio/a.rs"));
        assert!(is_wanted("crates/cache/src/ageing/reclaim.rs"));
        assert!(
            is_wanted("crates/iomap/src/writeout.rs") && !is_wanted("crates/iomap/src/read.rs")
        );
        assert!(!is_wanted("crates/cache/src/folio/tests.rs"));
        assert!(!is_wanted("crates/iomap/tests/write.rs"));
    }
}
