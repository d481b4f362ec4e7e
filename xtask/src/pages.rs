//! Checks pages on the code: `docs/internals/architecture.md` and `volume.md`, and those in the
//! folder `volume`. Links and paths lead to files, and names of functions are names in the code.
//! The tables on the volume name each invariant of `crates/lfs` once, with the function that
//! asserts or tests it.
//!
//! ```text
//!   | `log.L3` | what holds, in words | `a_test` |         or `segment.rs`: an assertion there
//!   | `log.L8` | what holds, in words | nothing yet |      exactly if invariants.txt lists it
//! ```
//! The invariants of the stored form and of the tree are in the headers of their folders only.

use crate::Findings;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

const OVERVIEW: &str = "docs/internals/volume.md";
const ARCHITECTURE: &str = "docs/internals/architecture.md";
const FOLDER: &str = "docs/internals/volume";
/// Folders, and the files of that name, whose invariants no page repeats.
const HEADERS_ONLY: &[&str] = &["btree", "format", "fuzz", "tests"];
/// Where functions that hold invariants are.
const HOLDERS: &[&str] = &["crates/lfs/", "crates/crashtest/"];
const NOTHING: &str = "nothing yet";

/// What the tables are compared with.
#[derive(Default)]
struct Facts {
    /// `log.L3`.
    defined: BTreeSet<String>,
    /// Those that nothing holds yet.
    unheld: BTreeSet<String>,
    /// Functions, and names of files.
    holders: BTreeSet<String>,
}

/// One row of a table.
#[derive(Debug, PartialEq, Eq)]
struct Row<'a> {
    id: &'a str,
    holder: &'a str,
}

/// Findings of all pages.
pub fn check(root: &Path, files: &[PathBuf]) -> Findings {
    let (mut facts, mut words) = (Facts::default(), BTreeSet::new());
    for path in files {
        let name = path.strip_prefix(root).unwrap_or(path).display().to_string();
        if !name.ends_with(".rs") {
            continue;
        }
        let text = std::fs::read_to_string(path).unwrap_or_default();
        words.extend(text.split(is_not_of_name).filter(|word| is_name(word)).map(str::to_string));
        if HOLDERS.iter().any(|folder| name.starts_with(folder)) {
            facts.add(&name, &text);
        }
    }
    let known = std::fs::read_to_string(root.join(crate::invariants::KNOWN)).unwrap_or_default();
    facts.unheld = known.lines().filter_map(unheld).collect();
    let mut pages = BTreeMap::new();
    let in_folder = std::fs::read_dir(root.join(FOLDER)).into_iter().flatten().flatten();
    let names = in_folder.map(|entry| format!("{FOLDER}/{}", entry.file_name().display()));
    for name in names.chain([OVERVIEW.to_string(), ARCHITECTURE.to_string()]) {
        let text = std::fs::read_to_string(root.join(&name)).unwrap_or_default();
        pages.insert(name, text);
    }
    let mut findings = judge(&pages, &facts);
    for (name, text) in &pages {
        let folder = root.join(name).parent().map(Path::to_path_buf).unwrap_or_default();
        let lost = links(text).into_iter().filter(|link| !folder.join(link).exists());
        findings.extend(lost.map(|link| format!("{name}: links to {link}, which is not there")));
        let lost = paths(text).into_iter().filter(|path| !root.join(path).exists());
        findings.extend(lost.map(|path| format!("{name}: names {path}, which is not there")));
        let lost = text.split('`').skip(1).step_by(2).filter(|code| is_name(code));
        let lost = lost.filter(|code| !words.contains(*code));
        findings.extend(lost.map(|code| format!("{name}: names {code}, which no code has")));
    }
    findings
}

fn is_not_of_name(c: char) -> bool {
    !c.is_ascii_alphanumeric() && c != '_'
}

/// Whether a word can only be a name in the code: lower case, with underscores in it.
fn is_name(word: &str) -> bool {
    word.contains('_')
        && word.starts_with(|c: char| c.is_ascii_lowercase())
        && word.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
}

/// `lfs/log L8` as `log.L8`.
fn unheld(line: &str) -> Option<String> {
    let (stem, id) = line.strip_prefix("lfs/")?.split_once(' ')?;
    Some(format!("{stem}.{id}"))
}

fn judge(pages: &BTreeMap<String, String>, facts: &Facts) -> Findings {
    let (mut findings, mut seen) = (Findings::new(), BTreeSet::new());
    for (name, text) in pages {
        for Row { id, holder } in text.lines().filter_map(row) {
            if !facts.defined.contains(id) {
                findings.push(format!("{name}: no header of crates/lfs defines {id}"));
            } else if !seen.insert(id) {
                findings.push(format!("{name}: {id} is in a table already"));
            }
            let is_held = !facts.unheld.contains(id);
            match holder.trim_matches('`') {
                NOTHING if is_held => {
                    findings.push(format!("{name}: {id} is held now, name the test"));
                }
                NOTHING => {}
                _ if !is_held => findings.push(format!("{name}: {id} is held by {NOTHING:?}")),
                name_of if !facts.holders.contains(name_of) => {
                    findings.push(format!("{name}: {id} is held by {name_of}, which is not there"));
                }
                _ => {}
            }
        }
    }
    let missing = facts.defined.iter().filter(|id| !seen.contains(id.as_str()));
    findings.extend(missing.map(|id| format!("{FOLDER}: no table has {id}")));
    findings
}

impl Facts {
    fn add(&mut self, name: &str, text: &str) {
        let path = Path::new(name);
        self.holders.extend(path.file_name().map(|file| file.to_string_lossy().into_owned()));
        let after_fn = text.split("fn ").skip(1);
        let names = after_fn.filter_map(|rest| rest.split(['(', '<']).next());
        self.holders.extend(names.map(str::to_string));
        let Some(own) = name.strip_prefix("crates/lfs/src/") else { return };
        let first = own.split(['/', '.']).next().unwrap_or_default();
        if HEADERS_ONLY.contains(&first) {
            return;
        }
        let stem = crate::invariants::stem(path);
        let ids = crate::invariants::defined_in(text);
        self.defined.extend(ids.into_iter().map(|id| format!("{stem}.{id}")));
    }
}

/// A row whose first cell is a qualified id.
fn row(line: &str) -> Option<Row<'_>> {
    let cells: Vec<&str> = line.strip_prefix('|')?.split('|').map(str::trim).collect();
    let id = cells.first()?.strip_prefix('`')?.strip_suffix('`')?;
    let is_id = id.split_once('.').is_some_and(|(_, id)| crate::invariants::is_id(id));
    let holder = cells.get(2)?;
    is_id.then_some(Row { id, holder })
}

/// Files that a text links to.
fn links(text: &str) -> Vec<&str> {
    let targets = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    let files = targets.filter(|target| !target.contains("://"));
    files.filter_map(|target| target.split('#').next()).filter(|file| !file.is_empty()).collect()
}

/// Paths of files that a text names as code, below the root. `lfs/src/log.rs` is in `crates`.
fn paths(text: &str) -> Vec<String> {
    let codes = text.split('`').skip(1).step_by(2).filter(|code| !code.contains([' ', '*', '{']));
    let whole = |code: &str| match code.split_once('/') {
        Some(("crates", _)) => Some(code.to_string()),
        Some((_, rest)) if rest.starts_with("src/") || rest.starts_with("tests/") => {
            Some(format!("crates/{code}"))
        }
        _ => None,
    };
    codes.filter_map(whole).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts() -> Facts {
        let mut facts = Facts::default();
        facts.add("crates/lfs/src/log.rs", "//! Invariants: L1 one. L2 two. L3 three.\n");
        facts.add("crates/lfs/src/lib.rs", "//! Invariant I1: all.\nfn run<T>() {}\n");
        facts.add("crates/lfs/src/btree/read.rs", "//! Invariant B1: not on a page.\n");
        facts.add("crates/crashtest/tests/a.rs", "#[test]\nfn l1_holds() {}\n");
        facts.unheld =
            ["lfs/log L2", "# note", "fuse/x L1"].into_iter().filter_map(unheld).collect();
        facts
    }

    fn judged(text: &str) -> Findings {
        judge(&BTreeMap::from([("page.md".to_string(), text.to_string())]), &facts())
    }

    #[test]
    fn tables_name_each_invariant_and_what_holds_it() {
        let good = "| id | what | by |\n|---|---|---|\n| `log.L1` | one | `l1_holds` |\n\
                    | `log.L2` | two | nothing yet |\n| `log.L3` | three | `log.rs` |\n\
                    | `lfs.I1` | all | `run` |\n| `other` | no id | x |\n";
        assert!(judged(good).is_empty(), "{:?}", judged(good));
        let bad = good.replace("log.L3", "log.L1").replace("`run`", "nothing yet");
        let bad = bad.replace("nothing yet |\n| `log.L1", "`l1_holds` |\n| `log.L1");
        let bad = bad.replace("`l1_holds` |\n| `log.L2", "`gone` |\n| `log.L2")
            + "| `x.A1` | | `run` |\n";
        let all = judged(&bad).join("\n");
        for wanted in [
            "log.L1 is held by gone",
            "log.L2 is held by \"nothing yet\"",
            "log.L1 is in a table already",
            "lfs.I1 is held now",
            "no header of crates/lfs defines x.A1",
            "no table has log.L3",
        ] {
            assert!(all.contains(wanted), "{wanted} in\n{all}");
        }
    }

    #[test]
    fn links_and_paths_are_those_to_files() {
        let text = "[a](../x.md#part) [b](https://e.org/y) [c](#here) `crates/lfs/src/log.rs` `crates` \
             `nbd/src/a.rs`";
        assert_eq!(links(text), ["../x.md"]);
        assert_eq!(paths(text), ["crates/lfs/src/log.rs", "crates/nbd/src/a.rs"]);
    }

    #[test]
    fn names_of_code_have_underscores() {
        assert!(
            is_name("class_work") && !is_name("commit") && !is_name("FBY_ABI") && !is_name("_")
        );
    }
}
