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
//! The checklists of the five behaviours begin names of tests too (`d1_..`): there a name says
//! nothing of a file's invariant D1, and the doc comment or an assertion has to. An id that several
//! files of a crate use is held for each of them in its own file only.

use crate::Findings;
use crate::source::blank_literals;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

pub const KNOWN: &str = "xtask/invariants.txt";
/// What takes a message.
const ASSERTS: &[&str] = &[
    "assert!(",
    "assert_eq!(",
    "assert_ne!(",
    ".expect(",
    ".expect_err(",
    "panic!(",
    "unreachable!(",
];
/// Tests that lie in another crate than what they test: the crash test is the volume's, the daemon
/// that is killed is the mount's, and the shared apparatus is tested where it is used.
const TESTS_OF: &[(&str, &str)] = &[
    ("crates/crashtest/tests/", "lfs"),
    ("crates/memfs/tests/", "fuse"),
    ("crates/iomap/tests/", "testkit"),
    ("crates/vfs/tests/", "testkit"),
];
/// First letters of the checklists.
const CHECKLISTS: &str = "dlsuax";

/// Invariants by `CRATE/FILE ID`, and what each crate and each file holds.
#[derive(Default)]
struct Facts {
    /// Key of the exceptions, crate, id, place.
    defined: Vec<(String, String, String, String)>,
    held: BTreeMap<String, BTreeSet<String>>,
    held_here: BTreeMap<String, BTreeSet<String>>,
    /// Ids that an assertion names, by crate: more than a test whose comment or name has them.
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
    for (key, krate, id, place) in &facts.defined {
        let shared = facts.defined.iter().filter(|d| (&d.1, &d.2) == (krate, id)).count() > 1;
        let held = if shared { facts.held_here.get(place) } else { facts.held.get(krate) };
        if held.unwrap_or(&nothing).contains(id) {
            continue;
        }
        if known.contains(key.as_str()) {
            used.insert(key.as_str());
        } else {
            findings.push(format!("{place}: nothing asserts or tests {id} (`{key}`)"));
        }
    }
    for stale in known.difference(&used) {
        findings.push(format!("{stale}: held or gone now, take it off {KNOWN}"));
    }
    findings
}

impl Facts {
    /// How many of those defined an assertion of their crate names.
    fn asserted(&self) -> usize {
        let by =
            |krate: &String, id: &String| self.asserted.get(krate).is_some_and(|a| a.contains(id));
        self.defined.iter().filter(|(_, krate, id, _)| by(krate, id)).count()
    }

    fn add(&mut self, krate: &str, name: &str, text: &str) {
        if name.contains("/src/") {
            let path = Path::new(name);
            let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            // `mod.rs` and `tests.rs` say nothing: the folder does.
            let stem = match stem.as_str() {
                "mod" | "lib" | "main" => crate::named::folder_name(path),
                _ => stem,
            };
            for id in defined_in(text) {
                let key = format!("{krate}/{stem} {id}");
                self.defined.push((key, krate.to_string(), id, name.to_string()));
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
            let id = word.trim_end_matches(':');
            if starts && is_id(id) {
                found.push(id.to_string());
            }
            let names_one = matches!(word, "Invariant" | "Invariants");
            starts = word.ends_with(['.', ':', ';']) || names_one || word == "-";
        }
    }
    found.dedup();
    found
}

/// Ids named in a text; `F1..F3` names three.
fn named_in(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || "-.".contains(c)));
    for word in words.map(|word| word.trim_matches(['.', '-'])).filter(|word| !word.is_empty()) {
        match word.split_once("..") {
            Some((first, last)) if is_id(first) && is_id(last) => {
                let number = |id: &str| id[1..].parse::<u8>().ok();
                if let (Some(from), Some(to)) = (number(first), number(last)) {
                    found.extend((from..=to).map(|n| format!("{}{n}", &first[..1])));
                }
            }
            _ if is_id(word) => found.push(word.to_string()),
            _ => {}
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
            // What is blanked there is literals and comments.
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
    }

    /// A header may promise what nothing holds, and no check said so.
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
