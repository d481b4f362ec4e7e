//! Small changes of the source that tests should notice: which there are, and a seeded sample of them.
//! Running them: [`crate::mutants_run`].
//!
//! Invariants: Z1 a mutation changes one place outside of comments, literals, assertions, attributes and
//! test modules. Z2 the sample depends on the sources and the seed only.

use crate::source::{blank_literals, functions};
use std::path::Path;

/// Files of these crates that are mutated: those whose name, or the name of a folder above them below
/// `src`, is in the list.
const WANTED: &[(&str, &[&str])] = &[
    ("crates/cache/src/", &["folio", "guard", "mapping", "reclaim", "line", "writeback", "ageing"]),
    ("crates/iomap/src/", &["fill", "write", "writeout", "sync", "direct", "zero"]),
];

/// What is found, what takes its place. rustfmt puts spaces around binary operators, and none around
/// those of types.
const SWAPS: &[(&str, &str)] = &[
    (" < ", " <= "),
    (" <= ", " < "),
    (" > ", " >= "),
    (" >= ", " > "),
    (" == ", " != "),
    (" != ", " == "),
    (" + ", " - "),
    (" - ", " + "),
    (" * ", " / "),
    (" / ", " * "),
    (" += ", " -= "),
    (" -= ", " += "),
    (" && ", " || "),
    (" || ", " && "),
    (" & ", " | "),
    (" | ", " & "),
    (".min(", ".max("),
    (".max(", ".min("),
    (".is_some()", ".is_none()"),
    (".is_none()", ".is_some()"),
    (".any(", ".all("),
    (".all(", ".any("),
    ("round_up(", "round_down("),
    ("round_down(", "round_up("),
    (".first()", ".last()"),
    (".saturating_sub(", ".saturating_add("),
];

/// What a function gives at once instead of running, by its type.
const EARLY: &[(&str, &[&str])] = &[
    ("", &["return;"]),
    ("bool", &["return true;", "return false;"]),
    ("u32", &["return 0;", "return 1;"]),
    ("u64", &["return 0;", "return 1;"]),
    ("usize", &["return 0;", "return 1;"]),
    ("Nanos", &["return 0;"]),
    ("Result<()>", &["return Ok(());"]),
    ("Option<", &["return None;"]),
];

/// One change: in which file, which characters, what takes their place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mutation {
    /// Path below the root.
    pub file: String,
    /// Line, from 1.
    pub line: usize,
    /// First character that is replaced, counted from the start of the file.
    pub at: usize,
    /// What stands there.
    pub old: String,
    /// What takes its place.
    pub new: String,
}

impl Mutation {
    /// The source with the change.
    pub fn apply(&self, text: &str) -> String {
        let (at, len) = (self.at, self.old.chars().count());
        let chars: Vec<char> = text.chars().collect();
        let (before, after) = (&chars[..at], &chars[at + len..]);
        before.iter().copied().chain(self.new.chars()).chain(after.iter().copied()).collect()
    }

    /// For people: the place, and what became of what.
    pub fn describe(&self) -> String {
        let short = |text: &str| text.trim().replace('\n', " ").replace('|', "\\|");
        let (old, new) = (short(&self.old), short(&self.new));
        let what = match (old.is_empty(), new.is_empty()) {
            (true, _) => format!("`{new}` first"),
            (_, true) => format!("without `{old}`"),
            _ => format!("`{old}` becomes `{new}`"),
        };
        format!("{}:{} | {what}", self.file, self.line)
    }
}

/// All mutations of the tree, by file and place.
pub fn all(root: &Path) -> Vec<Mutation> {
    let mut found = Vec::new();
    for path in crate::tidy::files(root) {
        let name = path.strip_prefix(root).unwrap_or(&path).display().to_string();
        if is_wanted(&name) {
            found.extend(of(&name, &std::fs::read_to_string(&path).unwrap_or_default()));
        }
    }
    found.sort_by(|a, b| (&a.file, a.at, &a.new).cmp(&(&b.file, b.at, &b.new)));
    found
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

/// The mutations of one file.
fn of(file: &str, text: &str) -> Vec<Mutation> {
    let blank = blank_literals(text);
    let mut found = Vec::new();
    let mut add = |line: usize, at: usize, old: &str, new: &str| {
        let (file, old, new) = (file.to_string(), old.to_string(), new.to_string());
        found.push(Mutation { file, line, at, old, new });
    };
    let bodies = functions(&blank);
    let (mut start, mut before, mut asserting) = (0, ';', false);
    for (number, line) in blank.lines().enumerate().map(|(n, line)| (n + 1, line)) {
        let here = start;
        start += line.chars().count() + 1;
        let code = line.trim();
        if code.starts_with("#[cfg(") && code.contains("test") {
            break;
        }
        asserting |= code.starts_with("assert") || code.starts_with("debug_assert");
        let skipped = asserting || code.is_empty() || code.starts_with("#[");
        asserting &= !code.ends_with(';');
        let inside = bodies.iter().any(|f| f.line < number && number < f.line + f.length - 1);
        if skipped || !inside {
            continue;
        }
        in_line(line, |at, old, new| add(number, here + at, old, new));
        if is_call(code) && matches!(before, ';' | '{' | '}') {
            let at = line.len() - line.trim_start().len();
            add(number, here + at, code, "");
        }
        before = code.chars().last().unwrap_or(before);
    }
    early(&blank, &bodies, add);
    // Lines were counted in the blanked text: what is replaced is shown as it stands.
    let chars: Vec<char> = text.chars().collect();
    for mutation in &mut found {
        let end = mutation.at + mutation.old.chars().count();
        mutation.old = chars[mutation.at..end].iter().collect();
    }
    found
}

/// Swaps, flips and constants of one line.
fn in_line(line: &str, mut add: impl FnMut(usize, &str, &str)) {
    let position = |byte: usize| line[..byte].chars().count();
    // A bound, not a sum; a closure, not an or; alternatives of a pattern, not bits.
    let bounds = line.contains("dyn ") || line.contains("impl ") || line.contains("where ");
    for (old, new) in SWAPS {
        for (byte, _) in line.match_indices(old) {
            let before = line[..byte].trim_end().chars().last().unwrap_or('(');
            let closure = *old == " || " && "=(,{".contains(before);
            let pattern = *old == " | " && (line.contains("=>") || line.contains("::"));
            if !(closure || pattern || bounds && *old == " + ") {
                add(position(byte), old, new);
            }
        }
    }
    for (byte, word) in words(line) {
        let before = line[..byte].chars().last().unwrap_or(' ');
        let new = match word {
            "true" => "false".to_string(),
            "false" => "true".to_string(),
            "0" if before != '.' => "1".to_string(),
            "1" if before != '.' => "2".to_string(),
            number if before != '.' => match number.parse::<u64>() {
                Ok(number) => (number + 1).to_string(),
                Err(_) => continue,
            },
            _ => continue,
        };
        add(position(byte), word, &new);
    }
    for (byte, _) in line.match_indices('!') {
        let after = line[byte + 1..].chars().next().unwrap_or(' ');
        let before = line[..byte].chars().last().unwrap_or(' ');
        if (after.is_alphabetic() || after == '(') && " (".contains(before) {
            add(position(byte), "!", "");
        }
    }
}

fn words(line: &str) -> Vec<(usize, &str)> {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let mut found = Vec::new();
    let mut at = 0;
    while let Some(start) = line[at..].find(is_word).map(|i| at + i) {
        let end = line[start..].find(|c| !is_word(c)).map_or(line.len(), |i| start + i);
        found.push((start, &line[start..end]));
        at = end;
    }
    found
}

/// Whether a line is a whole statement that calls something.
fn is_call(code: &str) -> bool {
    let words =
        ["let ", "return", "break", "continue", "use ", "log::", "if ", "for ", "while ", "}"];
    let count = |c| code.matches(c).count();
    code.ends_with(");")
        && count('(') == count(')')
        && count('{') == count('}')
        && !code.contains(" = ")
        && !code.starts_with(['.', '|', '&', ')'])
        && !words.iter().any(|word| code.starts_with(word))
}

/// Functions that return at once.
fn early(
    blank: &str,
    bodies: &[crate::source::Function],
    mut add: impl FnMut(usize, usize, &str, &str),
) {
    let lines: Vec<&str> = blank.lines().collect();
    let cut = lines.iter().position(|l| l.trim().starts_with("#[cfg(") && l.contains("test"));
    for body in bodies.iter().filter(|f| cut.is_none_or(|cut| f.line <= cut) && f.length > 2) {
        // The signature ends in the first line that opens a brace.
        let Some(opens) = (body.line - 1..).find(|&n| lines[n].trim_end().ends_with('{')) else {
            continue;
        };
        let signature = lines[body.line - 1..=opens].join(" ");
        let result = signature.rsplit_once("-> ").map_or("", |(_, result)| result);
        let result = result.trim_end_matches(['{', ' ']);
        let fits = |kind: &str| result == kind || kind.ends_with('<') && result.starts_with(kind);
        for (_, values) in EARLY.iter().filter(|(kind, _)| fits(kind)) {
            let at: usize = lines[..=opens].iter().map(|line| line.chars().count() + 1).sum();
            for value in *values {
                let inserted = format!("if std::hint::black_box(true) {{ {value} }}\n");
                add(opens + 2, at, "", &inserted);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: &str = "//! a < b\nconst X: u32 = 1;\nfn f(a: u32, b: &(dyn A + B)) -> bool {\n    \
        // x < y\n    let c = a < 7 && !g(a);\n    h.call(\"a + b\", a);\n    let d = || true;\n    \
        assert!(a == 3);\n    c\n}\n#[cfg(test)]\nmod tests {\n    fn t() {\n        x + 1;\n    }\n}\n";

    fn shown() -> Vec<(usize, String, String)> {
        let found = of("x.rs", SOURCE);
        found.into_iter().map(|m| (m.line, m.old.trim().into(), m.new.trim().into())).collect()
    }

    #[test]
    fn only_code_outside_of_assertions_and_tests_is_changed() {
        let shown = shown();
        let has = |line: usize, old: &str, new: &str| {
            shown.contains(&(line, old.to_string(), new.to_string()))
        };
        assert!(has(5, "<", "<=") && has(5, "&&", "||") && has(5, "!", "") && has(5, "7", "8"));
        assert!(has(6, "h.call(\"a + b\", a);", "") && has(7, "true", "false"));
        let early = "if std::hint::black_box(true) { return false; }";
        assert!(has(4, "", early), "{shown:?}");
        assert_eq!(shown.len(), 8, "{shown:?}");
    }

    #[test]
    fn a_change_is_where_it_says_and_nowhere_else() {
        for mutation in of("x.rs", SOURCE) {
            let changed = mutation.apply(SOURCE);
            assert_ne!(changed, SOURCE);
            let same = SOURCE.chars().zip(changed.chars()).take_while(|(a, b)| a == b).count();
            assert!(same >= mutation.at, "{}", mutation.describe());
            let tail = SOURCE.chars().count() - mutation.at - mutation.old.chars().count();
            assert!(changed.ends_with(&SOURCE[SOURCE.len() - tail..]));
        }
    }

    #[test]
    fn the_sample_follows_the_seed() {
        let all = of("x.rs", SOURCE);
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
