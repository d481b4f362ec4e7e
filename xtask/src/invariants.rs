//! Checks that each numbered invariant of a file header is held in its crate: by an assertion that
//! names the id in its message, or by a test that names it in its name or its doc comment. Tests of
//! some crates also hold invariants of another one: [`TESTS_OF`].
//!
//! The ratchet: `xtask/invariants.txt` lists the invariants that nothing holds yet. It may shrink
//! and not grow, and an entry that is no longer needed is a finding itself.
//!
//! Where ids are looked for:
//! ```text
//!   //! Invariants: F1 reading excludes ...      defined: at the start of a sentence of a header
//!   assert!(ok, "no frame (F3)")                 asserted: also expect, panic, unreachable
//!   /// F1..F3 in every schedule. #[test] fn ..  tested: in the doc comment,
//!   #[test] fn f4_busy_folios_stay()             or as a word of the name
//! ```
//! A qualified id, `table.F1`, holds F1 of files with that stem, and no other F1 of the crate.
//!
//! The checklists of the five behaviours begin names of tests too (`d1_..`): there a name says
//! nothing of a file's invariant D1, and the doc comment or an assertion has to. An id that several
//! files of a crate use is held for each of them in its own file only.

use crate::Findings;
use crate::source::blank_literals;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

pub const KNOWN: &str = "xtask/invariants.txt";
/// Calls with a message, in which an assertion may name an id.
const ASSERTS: &[&str] = &[
    "assert!(",
    "assert_eq!(",
    "assert_ne!(",
    ".expect(",
    ".expect_err(",
    "panic!(",
    "unreachable!(",
];
/// Folders of tests that hold invariants of another crate: the crash test those of the volume,
/// memfs those of the mount, and the tests of three layers those of testkit.
const TESTS_OF: &[(&str, &str)] = &[
    ("crates/crashtest/tests/", "lfs"),
    ("crates/memfs/tests/", "fuse"),
    ("crates/block/tests/", "testkit"),
    ("crates/iomap/tests/", "testkit"),
    ("crates/vfs/tests/", "testkit"),
];
/// First letters of the checklists.
const CHECKLISTS: &str = "dlsuax";

/// An invariant of a file header.
struct Defined {
    krate: String,
    /// The file's, as in `table.F1`.
    stem: String,
    id: String,
    /// Path of the file.
    place: String,
}

impl Defined {
    /// Its line in the list of exceptions.
    fn key(&self) -> String {
        format!("{}/{} {}", self.krate, self.stem, self.id)
    }

    fn qualified(&self) -> String {
        format!("{}.{}", self.stem, self.id)
    }
}

/// Invariants, and what each crate and each file holds.
#[derive(Default)]
struct Facts {
    defined: Vec<Defined>,
    held: BTreeMap<String, BTreeSet<String>>,
    held_here: BTreeMap<String, BTreeSet<String>>,
    /// Ids that an assertion names, by crate. That is stronger than a test whose name or comment
    /// has the id.
    asserted: BTreeMap<String, BTreeSet<String>>,
}

/// Findings for invariants that nothing holds and the list lacks, and for stale entries of the
/// list.
pub fn check(root: &Path, files: &[std::path::PathBuf]) -> Findings {
    let mut facts = Facts::default();
    for path in files {
        let name = path.strip_prefix(root).unwrap_or(path).display().to_string();
        let Some((krate, _)) = name.strip_prefix("crates/").and_then(|n| n.split_once('/')) else {
            continue;
        };
        if name.ends_with(".rs") {
            facts.add(krate, &name, &std::fs::read_to_string(path).unwrap_or_default());
        }
    }
    let known = std::fs::read_to_string(root.join(KNOWN)).unwrap_or_default();
    let (asserted, all) = (facts.asserted(), facts.defined.len());
    let open = known.lines().filter(|line| !line.is_empty() && !line.starts_with('#')).count();
    let named = all.saturating_sub(asserted + open);
    println!(
        "invariants: {all}; {asserted} asserted by id, {named} named by a test only, {open} by nothing"
    );
    judge(&facts, &known)
}

fn judge(facts: &Facts, known: &str) -> Findings {
    let lines = known.lines().map(str::trim);
    let known: BTreeSet<&str> = lines.filter(|l| !l.is_empty() && !l.starts_with('#')).collect();
    let nothing = BTreeSet::new();
    let (mut findings, mut used) = (Findings::new(), BTreeSet::new());
    for defined in &facts.defined {
        let Defined { krate, id, place, .. } = defined;
        let shared = facts.defined.iter().filter(|d| (&d.krate, &d.id) == (krate, id)).count() > 1;
        let by_crate = facts.held.get(krate).unwrap_or(&nothing);
        let bare = if shared { facts.held_here.get(place).unwrap_or(&nothing) } else { by_crate };
        if bare.contains(id) || by_crate.contains(&defined.qualified()) {
            continue;
        }
        let key = defined.key();
        match known.get(key.as_str()) {
            Some(line) => _ = used.insert(*line),
            None => findings.push(format!("{place}: nothing asserts or tests {id} (`{key}`)")),
        }
    }
    for stale in known.difference(&used) {
        findings.push(format!("{stale}: held or gone now, take it off {KNOWN}"));
    }
    findings
}

impl Facts {
    /// How many of the defined ids an assertion of their crate names.
    fn asserted(&self) -> usize {
        let named = |d: &&Defined| {
            let of_crate = self.asserted.get(&d.krate);
            of_crate.is_some_and(|a| a.contains(&d.id) || a.contains(&d.qualified()))
        };
        self.defined.iter().filter(named).count()
    }

    fn add(&mut self, krate: &str, name: &str, text: &str) {
        if name.contains("/src/") {
            for id in defined_in(text) {
                let (krate, place) = (krate.to_string(), name.to_string());
                self.defined.push(Defined { krate, stem: stem(Path::new(name)), id, place });
            }
        }
        let asserted = asserted_in(text);
        let held: BTreeSet<String> = asserted.union(&tested_in(text)).cloned().collect();
        self.asserted.entry(krate.to_string()).or_default().extend(asserted);
        let mut holds = vec![krate];
        let tests = TESTS_OF.iter().filter(|(folder, _)| name.starts_with(folder));
        holds.extend(tests.map(|(_, other)| other));
        for krate in holds {
            self.held.entry(krate.to_string()).or_default().extend(held.iter().cloned());
        }
        self.held_here.insert(name.to_string(), held);
    }
}

/// What qualifies the ids of a file: its name. `lib.rs` and `main.rs` have that of the crate,
/// `mod.rs` that of its folder.
pub fn stem(path: &Path) -> String {
    let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    match stem.as_str() {
        "mod" => crate::named::folder_name(path),
        "lib" | "main" if path.parent().is_some_and(|folder| folder.ends_with("src")) => {
            path.parent().map(crate::named::folder_name).unwrap_or_default()
        }
        "lib" | "main" => crate::named::folder_name(path),
        _ => stem,
    }
}

/// `F1`, `S-a`: a capital letter, perhaps a dash, digits or one small letter.
pub fn is_id(word: &str) -> bool {
    let mut chars = word.chars();
    let letter = chars.next().is_some_and(|c| c.is_ascii_uppercase());
    let rest = chars.as_str();
    let number = |n: &str| (1..=2).contains(&n.len()) && n.bytes().all(|b| b.is_ascii_digit());
    let dashed = |r: &str| r.len() == 1 && r.bytes().all(|b| b.is_ascii_lowercase());
    letter && (number(rest) || rest.strip_prefix('-').is_some_and(dashed))
}

/// Ids that start a sentence of the header.
pub fn defined_in(text: &str) -> Vec<String> {
    let mut found = header_starts(text);
    found.retain(|word| is_id(word));
    found.dedup();
    found
}

/// Words that start a sentence of the header, outside of drawings, without a colon behind.
pub fn header_starts(text: &str) -> Vec<String> {
    let header = text.lines().map_while(|line| line.strip_prefix("//!"));
    let (mut found, mut starts, mut drawing) = (Vec::new(), true, false);
    for line in header.map(str::trim) {
        let fence = line.starts_with("```");
        drawing ^= fence;
        if drawing || fence || line.is_empty() {
            starts = true;
            continue;
        }
        for word in line.split_whitespace() {
            if starts {
                found.push(word.trim_end_matches(':').to_string());
            }
            let names_one = matches!(word, "Invariant" | "Invariants");
            starts = word.ends_with(['.', ':', ';']) || names_one || word == "-";
        }
    }
    found
}

/// Ids named in a text, bare or qualified; `F1..F3` names three.
fn named_in(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || "-._".contains(c)));
    for word in words.map(|word| word.trim_matches(['.', '-'])).filter(|word| !word.is_empty()) {
        let (first, last) = word.split_once("..").unwrap_or((word, ""));
        let at = first.rfind('.').map_or(0, |dot| dot + 1);
        let (stem, first) = first.split_at(at);
        if is_id(first) && is_id(last) {
            let number = |id: &str| id[1..].parse::<u8>().ok();
            if let (Some(from), Some(to)) = (number(first), number(last)) {
                found.extend((from..=to).map(|n| format!("{stem}{}{n}", &first[..1])));
            }
        } else if is_id(first) && last.is_empty() {
            found.push(format!("{stem}{first}"));
        }
    }
    found
}

/// Ids in the messages of assertions.
fn asserted_in(text: &str) -> BTreeSet<String> {
    let (chars, blank): (Vec<char>, Vec<char>) =
        (text.chars().collect(), blank_literals(text).chars().collect());
    let mut found = BTreeSet::new();
    for word in ASSERTS {
        let word: Vec<char> = word.chars().collect();
        for at in (0..blank.len()).filter(|&at| blank[at..].starts_with(&word)) {
            let end = closing(&blank, at + word.len());
            let inside = at + word.len()..end;
            // Blanked characters are those of literals and comments.
            let quoted: String =
                inside.map(|i| if blank[i] == chars[i] { ' ' } else { chars[i] }).collect();
            found.extend(named_in(&quoted));
        }
    }
    found
}

/// Where the parenthesis that is open at `at` closes.
fn closing(blank: &[char], at: usize) -> usize {
    let mut depth = 1;
    for (i, c) in blank.iter().enumerate().skip(at) {
        match c {
            '(' => depth += 1,
            ')' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return i;
        }
    }
    blank.len()
}

/// Ids in the doc comments and names of tests.
fn tested_in(text: &str) -> BTreeSet<String> {
    let (mut doc, mut marked, mut found) = (String::new(), false, BTreeSet::new());
    for line in text.lines().map(str::trim) {
        if let Some(comment) = line.strip_prefix("///") {
            doc.push_str(comment);
            doc.push(' ');
        } else if line.starts_with("#[") && !line.contains(" fn ") {
            marked |= line.contains("#[test]") || line.contains("#[shuttle");
        } else {
            let name = line.split("fn ").nth(1).and_then(|rest| rest.split(['(', '<']).next());
            if let (true, Some(name)) = (marked || line.contains("#[test]"), name) {
                found.extend(named_in(&doc));
                let words = name.split('_').map(str::to_uppercase);
                let listed = |id: &String| !CHECKLISTS.contains(&id[..1].to_lowercase());
                found.extend(words.filter(|w| is_id(w)).filter(listed));
            }
            doc.clear();
            marked = false;
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: &str = "//! What it is (D17). Invariant Q1: one queue. See F6.\n//!\n\
        //! Invariants: F1 reading excludes. F2 dirty implies (checklist L4). F3 a frame;\n\
        //! S-a never. \n//! ```text\n//!   Z9 drawn\n//! ```\n//! C1 Only root.\n\n\
        use x;\n// F7 no.\n";

    #[test]
    fn definitions_start_a_sentence_of_the_header() {
        assert_eq!(defined_in(SOURCE), ["Q1", "F1", "F2", "F3", "S-a", "C1"]);
        assert!(defined_in("// F1 x\nfn f() {}\n").is_empty());
    }

    #[test]
    fn assertions_and_tests_hold_what_they_name() {
        let text = "fn f() {\n // assert!(no, \"A1\")\n debug_assert!(x(1), \"gone (F1)\");\n\
                    y.expect(\n \"one queue (Q1..Q3)\");\n let s = \"B1\"; assert_eq!(C1, 2);\n}\n";
        assert_eq!(Vec::from_iter(asserted_in(text)), ["F1", "Q1", "Q2", "Q3"]);
        let text = "/// Holds F2 and S-a.\n#[test]\nfn x() {}\n/// F3\nfn helper() {}\n\
                    #[test]\nfn f4_d1_busy() {}\n";
        assert_eq!(Vec::from_iter(tested_in(text)), ["F2", "F4", "S-a"]);
        let text = "a_b.F1..F2, c.S-a and (d.D3). No x..y, F1.";
        assert_eq!(named_in(text), ["a_b.F1", "a_b.F2", "c.S-a", "d.D3", "F1"]);
    }

    /// The story: another file's E1, or a line of a checklist with that id, held an invariant of
    /// this file.
    #[test]
    fn qualified_id_holds_invariant_of_its_file_only() {
        let mut facts = Facts::default();
        for file in ["a", "b"] {
            let name = format!("crates/block/src/{file}.rs");
            facts.add("block", &name, "//! Invariants: E1 one. Q2 another.\n");
        }
        facts.add("block", "crates/block/src/lib.rs", "//! Invariant D1: all.\n");
        let tests = "/// a.E1, b.Q2, lineage.D1.\n#[test]\nfn x() {}\n";
        facts.add("block", "crates/block/tests/a.rs", tests);
        let all = judge(&facts, "").join("\n");
        for open in ["block/a Q2", "block/b E1", "block/block D1"] {
            assert!(all.contains(open), "{open} in {all}");
        }
        assert_eq!(all.lines().count(), 3, "{all}");
        facts.add("block", "crates/block/tests/b.rs", "fn f() { assert!(x, \"(block.D1)\"); }\n");
        assert_eq!((judge(&facts, "").len(), facts.asserted()), (2, 1));
    }

    /// The story: a header named an invariant that nothing held, and no check reported it.
    #[test]
    fn unheld_invariant_is_named_and_records_only_shrink() {
        let mut facts = Facts::default();
        facts.add("cache", "crates/cache/src/folio.rs", SOURCE);
        facts.add("cache", "crates/cache/tests/a.rs", "fn f() { assert!(x, \"F1..F3\"); }\n");
        facts.add("block", "crates/block/tests/a.rs", "fn f() { assert!(x, \"(C1)\"); }\n");
        let twice = "//! Invariant E1: x.\nfn f() { assert!(x, \"E1\"); }\n";
        facts.add("block", "crates/block/src/a.rs", twice);
        facts.add("block", "crates/block/src/b.rs", "//! Invariant E1: another.\n");
        // Of F1 to F3, Q1, S-a, C1 (of another crate) and E1 twice.
        assert_eq!(facts.asserted(), 5);
        let known = "# known\ncache/folio Q1\ncache/folio F1\n";
        let findings = judge(&facts, known);
        let all = findings.join("\n");
        assert_eq!(findings.len(), 4, "{all}");
        assert!(all.contains("nothing asserts or tests S-a (`cache/folio S-a`)"), "{all}");
        assert!(all.contains("tests C1") && all.contains("cache/folio F1: held or gone"), "{all}");
        assert!(all.contains("b.rs: nothing asserts or tests E1"), "{all}");
    }
}
