//! The rule of language for ids of invariants: outside of the file whose header defines it, an id
//! is qualified with the stem of that file: `table.F1`.
//!
//! ```text
//!   //! Invariants: F1 reading excludes ..    cache/src/table.rs defines F1; F1 is bare there
//!   // .. excludes writers (F1).              a violation in cache/src/reclaim.rs
//!   // .. excludes writers (table.F1).        good, as is `table.F1 to F3`
//! ```
//! In the Rust files of a crate an id counts if a file of that crate defines it. If none does,
//! files of other crates count, except for ids that a line of a checklist may have (D1, L4). In
//! documents each defined id counts, except in [`CHECKLISTS`] and behind the word "checklist".
//! An id with a stem counts if no file with that stem defines it.

use super::prose::Prose;
use super::rules::Violation;
use crate::invariants::{header_starts, is_id, stem};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Documents on the checklists, whose lines have ids like invariants.
const CHECKLISTS: &[&str] =
    &["docs/lineage.md", "docs/reference/behaviours/", "docs/internals/testing.md"];
/// First letters of ids in the checklists.
const LETTERS: &str = "DLSUAX";

/// What qualifies the ids of a checklist's lines.
const LINEAGE: &str = "lineage";

/// Ids, with the files that define them and the stem that each has there.
#[derive(Debug, Default)]
pub struct Definers(BTreeMap<String, BTreeSet<(String, String)>>);

impl Definers {
    /// Adds those of the file `name`.
    pub fn add(&mut self, name: &str, text: &str) {
        if name.ends_with(".rs") && ["crates/", "fuzz/"].iter().any(|top| name.starts_with(top)) {
            let stem = stem(Path::new(name));
            for (id, own_stem) in own(text) {
                let stem = own_stem.unwrap_or_else(|| stem.clone());
                self.0.entry(id).or_default().insert((name.to_string(), stem));
            }
        }
    }

    /// The stems of the files that may define an id that the file `name` mentions.
    fn of(&self, name: &str, id: &str) -> BTreeSet<&str> {
        let mut found: Vec<_> = self.0.get(id).into_iter().flatten().collect();
        if name.ends_with(".rs") {
            let krate = |name: &str| name.split('/').nth(1).map(str::to_string);
            let of_crate = |(file, _): &&(String, String)| krate(file) == krate(name);
            let is_of_crate = found.iter().any(of_crate);
            if is_of_crate || id.starts_with(|c| LETTERS.contains(c)) {
                found.retain(of_crate);
            }
        }
        found.into_iter().map(|(_, stem)| stem.as_str()).collect()
    }

    /// Whether a file with this stem defines this id.
    fn has(&self, stem: &str, id: &str) -> bool {
        self.0.get(id).is_some_and(|files| files.iter().any(|(_, of_file)| of_file == stem))
    }
}

/// Ids that a file defines: in its header, with the stem that is in front there, or in the doc
/// comment of an item.
fn own(text: &str) -> BTreeMap<String, Option<String>> {
    let mut found = BTreeMap::new();
    for word in header_starts(text) {
        match word.rsplit_once('.') {
            Some((stem, id)) if is_id(id) => {
                found.insert(id.to_string(), Some(stem.to_string()));
            }
            None if is_id(&word) => _ = found.insert(word, None),
            _ => {}
        }
    }
    let docs = text.lines().filter_map(|line| line.trim_start().strip_prefix("/// Invariant"));
    let firsts = docs.filter_map(|doc| doc.split_whitespace().find(|word| is_id(word)));
    found.extend(firsts.map(|id| (id.to_string(), None)));
    found
}

/// Adds the violations in the comments, or in the paragraphs of a document.
pub fn check(
    name: &str,
    text: &str,
    pieces: &[Prose],
    definers: &Definers,
    found: &mut Vec<Violation>,
) {
    let is_rust = name.ends_with(".rs");
    let of_checklist = CHECKLISTS.iter().any(|document| name.starts_with(document));
    if of_checklist || is_rust && !name.starts_with("crates/") {
        return;
    }
    let own = if is_rust { own(text) } else { BTreeMap::new() };
    let mut before = "";
    for (line, text) in pieces.iter().flat_map(lines) {
        let mut add = |what| found.push(Violation { rule: "id", line, what });
        for id in bare_ids(text, before).into_iter().filter(|id| !own.contains_key(*id)) {
            let stems: Vec<_> = definers.of(name, id).into_iter().collect();
            if !stems.is_empty() {
                add(format!(
                    "the id {id} of another file's invariant is bare; write STEM.{id}, with the file's \
                     stem (is it {}?)",
                    stems.join(", ")
                ));
            }
        }
        let unknown = qualified_ids(text).filter(|(stem, id)| !definers.has(stem, id));
        for (stem, id) in unknown {
            add(format!("no file with the stem {stem} defines an invariant {id}"));
        }
        before = text;
    }
}

fn lines(piece: &Prose) -> impl Iterator<Item = (usize, &str)> {
    piece.text.lines().enumerate().map(|(offset, line)| (piece.line + offset, line))
}

/// Ids without a stem: not the end of a range (`log.L1 to L3`), and not of a checklist. `before`:
/// the line before, which may end with the word "checklist".
fn bare_ids<'a>(line: &'a str, before: &str) -> Vec<&'a str> {
    let mut found = Vec::new();
    let is_word = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
    let mut words_before = before.split_whitespace().rev();
    let mut last = words_before.next().unwrap_or_default();
    let mut last_but_one = words_before.next().unwrap_or_default();
    for word in line.split_whitespace() {
        for part in word.split(|c| !is_word(c)) {
            let part = part.trim_matches(['.', '-']);
            let first = part.split("..").next().unwrap_or_default();
            let ends_range = last == "to" && is_qualified(last_but_one);
            if is_id(first) && !ends_range && !last.to_lowercase().starts_with("checklist") {
                found.push(first);
            }
        }
        (last_but_one, last) = (last, word);
    }
    found
}

/// Ids with a stem of a file in front, as stem and id.
fn qualified_ids(line: &str) -> impl Iterator<Item = (&str, &str)> {
    let words = line.split(|c: char| !(c.is_ascii_alphanumeric() || "_-.".contains(c)));
    let ids = words.filter_map(|word| word.trim_matches(['.', '-']).split("..").next());
    let pairs = ids.filter_map(|word| word.rsplit_once('.'));
    let is_stem = |stem: &str| stem.chars().all(|c| c.is_ascii_lowercase() || c == '_');
    pairs.filter(move |(stem, id)| is_id(id) && is_stem(stem) && *stem != LINEAGE)
}

/// Whether a word is or begins with an id, bare or qualified: a range of bare ids counts once.
fn is_qualified(word: &str) -> bool {
    let word = word.trim_matches(|c: char| !c.is_ascii_alphanumeric());
    is_id(word.rsplit_once('.').map_or(word, |(_, id)| id))
}

#[cfg(test)]
mod tests {
    use super::super::prose;
    use super::*;

    fn definers() -> Definers {
        let mut definers = Definers::default();
        definers.add("crates/cache/src/table.rs", "//! Invariants: F1 one. F2 two. D1 three.\n");
        definers.add("crates/cache/src/pins.rs", "//! Invariant: pin.P1 a pin.\n");
        definers.add("crates/lfs/src/lib.rs", "//! Invariant I11: all.\n");
        definers
    }

    fn violations(name: &str, text: &str) -> Vec<(usize, String)> {
        let pieces = match name.ends_with(".rs") {
            true => prose::comments(text),
            false => prose::of_markdown(text),
        };
        let mut found = Vec::new();
        check(name, text, &pieces, &definers(), &mut found);
        found.into_iter().map(|v| (v.line, v.what)).collect()
    }

    fn lines_of(name: &str, text: &str) -> Vec<usize> {
        violations(name, text).into_iter().map(|(line, _)| line).collect()
    }

    #[test]
    fn bare_id_is_found_outside_of_its_file_only() {
        let text = "// One (F1).\nfn f1_holds() { g(\"F1\"); }\n/// `F2`: two, P1\n";
        assert_eq!(lines_of("crates/cache/src/a.rs", text), [1, 3, 3]);
        let own = "//! Invariants: F1 one. pin.P1 two.\n// F1 and P1\n/// Invariant: F2 x.\n";
        assert!(lines_of("crates/cache/src/table.rs", own).is_empty());
        let what = &violations("crates/fuse/src/a.rs", "// I11\n")[0].1;
        assert!(what.contains("write STEM.I11") && what.contains("is it lfs?"), "{what}");
    }

    #[test]
    fn qualified_id_and_checklist_line_are_good() {
        let text = "// table.F1, (table.F2); table.F1..F2, table.F1 to F2, F17, lineage.D1\n\
                    // Z9 C99 F1_x checklist D1, checklist\n// D1. (table.F1 to\n// F2).\n";
        assert_eq!(lines_of("crates/cache/src/a.rs", text), [0; 0]);
        // Of another crate, an id may be one of a checklist.
        assert!(lines_of("crates/iomap/tests/a.rs", "/// D1: x.\n").is_empty());
        assert_eq!(lines_of("crates/iomap/tests/a.rs", "/// F1..F2: x, F1 to F2.\n"), [1, 1]);
    }

    #[test]
    fn id_that_no_file_of_the_stem_defines_is_found() {
        let text =
            "// pin.P1, (table.P1)\n// pins.P1: x, lineage.D9, table.F1..F2\n// a.T1.b 1.F1\n";
        let found = violations("crates/fuse/src/a.rs", text);
        let lines: Vec<usize> = found.iter().map(|(line, _)| *line).collect();
        assert_eq!(lines, [1, 2], "{found:?}");
        assert!(found[0].1.contains("stem table defines an invariant P1"), "{found:?}");
    }

    #[test]
    fn document_names_files_of_its_ids() {
        let text = "# T\nOne (`table.rs`,\nF1), table.F2.\n\n| `D1` | pin.P1 |\n";
        assert_eq!(lines_of("docs/a.md", text), [3, 5]);
        assert!(lines_of("docs/lineage.md", text).is_empty());
    }
}
