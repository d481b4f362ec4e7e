//! House rules on source text: lengths with a ratchet, headers, characters, forbidden words.
//! (Files that no module names: [`crate::named`]; numbered invariants: [`crate::invariants`],
//! and the pages with tables of them: [`crate::pages`];
//! foreign crates without a reason: [`crate::reasons`].)
//!
//! The ratchet: `xtask/exceptions.txt` names the files and functions that are over the limit and
//! how long they were. They may shrink and not grow, and an entry that is no longer needed is a
//! finding itself.

use crate::Findings;
use crate::source::{blank_literals, functions};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Lines in a file.
const FILE_LINES: usize = 600;
/// Lines in a function, from `fn` to its closing brace.
const FUNCTION_LINES: usize = 70;
/// Columns in a Rust line. rustfmt holds code to 100; what it does not break (comments, strings)
/// has a little room above that.
const COLUMNS: usize = 110;

/// Word in code, and why it must not be there.
const FORBIDDEN: &[(&str, &str)] = &[
    ("dbg!(", "left over from a debugging session"),
    ("todo!(", "finish it or leave it out"),
    ("unimplemented!(", "finish it or leave it out"),
    ("#[allow(", "use #[expect(.., reason = ..)]"),
    ("#![allow(", "use #![expect(.., reason = ..)]"),
];
/// Calls that print. A library must not use them: it logs.
const PRINTS: &[&str] = &["println!(", "eprintln!(", "print!(", "eprint!("];
/// Crates that may print: programs.
const PROGRAMS: &[&str] = &["crates/cli/", "crates/lab/", "crates/bench/", "xtask/"];

/// Runs the check.
pub fn check(root: &Path) -> Findings {
    let mut findings = Findings::new();
    let mut ratchet = match Ratchet::load(&root.join("xtask/exceptions.txt")) {
        Ok(ratchet) => ratchet,
        Err(e) => return vec![e],
    };
    let steps = std::fs::read_to_string(root.join("scripts/test-all")).unwrap_or_default();
    let files = files(root);
    for path in &files {
        let name = path.strip_prefix(root).unwrap_or(path).display().to_string();
        let Ok(text) = std::fs::read_to_string(path) else { continue };
        check_text(&name, &text, &mut findings);
        if name.ends_with(".rs") {
            check_rust(&name, &text, &mut ratchet, &mut findings);
            check_ignored(&name, &text, &steps, &mut findings);
            crate::named::check(root, path, &name, &mut findings);
        }
    }
    ratchet.finish(&mut findings);
    findings.extend(crate::invariants::check(root, &files));
    findings.extend(crate::pages::check(root, &files));
    findings.extend(crate::reasons::check(root, &files));
    findings.extend(crate::language::check(root));
    findings.extend(crate::subjects::check(root));
    findings
}

/// Source, scripts and documents that git knows, or would.
pub fn files(root: &Path) -> Vec<PathBuf> {
    let output = std::process::Command::new("git")
        .args(["ls-files", "-co", "--exclude-standard"])
        .current_dir(root)
        .output();
    let listed = match output {
        Ok(o) if o.status.success() => {
            let text = String::from_utf8_lossy(&o.stdout).into_owned();
            text.lines().map(|l| root.join(l)).collect()
        }
        // Outside a git checkout (an unpacked release): walk.
        _ => walk(root),
    };
    let wanted = |p: &PathBuf| {
        let name = p.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let kind = p.extension().unwrap_or_default().to_string_lossy().into_owned();
        let in_scripts = p.parent().is_some_and(|f| f.ends_with("scripts"));
        matches!(kind.as_str(), "rs" | "md" | "toml" | "sh" | "py" | "c" | "h")
            || name == "Makefile"
            || in_scripts
    };
    listed.into_iter().filter(wanted).collect()
}

fn walk(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let (path, name) = (entry.path(), entry.file_name().to_string_lossy().into_owned());
        if name.starts_with('.') || name.starts_with("target") {
            continue;
        }
        if path.is_dir() { found.extend(walk(&path)) } else { found.push(path) }
    }
    found
}

fn check_text(name: &str, text: &str, findings: &mut Findings) {
    let makefile = name.ends_with("Makefile");
    if !text.is_empty() && !text.ends_with('\n') {
        findings.push(format!("{name}: no newline at its end"));
    }
    for (number, line) in text.lines().enumerate() {
        let place = format!("{name}:{}", number + 1);
        if line.contains('\t') && !makefile {
            findings.push(format!("{place}: a tab"));
        }
        if line.ends_with(' ') {
            findings.push(format!("{place}: spaces at the end of the line"));
        }
        if let Some(c) = line.chars().find(|c| !plain(*c)) {
            findings
                .push(format!("{place}: character U+{:04X}, write it in plain ASCII", c as u32));
        }
        if line.starts_with("<<<<<<< ") || line.starts_with(">>>>>>> ") {
            findings.push(format!("{place}: a merge conflict"));
        }
    }
}

/// ASCII, and what diagrams and figures need: arrows, mathematical signs, boxes, micro, times.
fn plain(c: char) -> bool {
    matches!(c, '\t' | ' '..='~' | '\u{2190}'..='\u{22ff}' | '\u{2500}'..='\u{25ff}')
        || matches!(c, '\u{b5}' | '\u{b7}' | '\u{d7}' | '\u{2026}')
}

fn check_rust(name: &str, text: &str, ratchet: &mut Ratchet, findings: &mut Findings) {
    if !text.starts_with("//!") {
        findings.push(format!("{name}: does not start with a `//!` header"));
    }
    let lines = text.lines().count();
    ratchet.check(&format!("file {name}"), lines, FILE_LINES, findings);
    for (number, line) in text.lines().enumerate() {
        let place = format!("{name}:{}", number + 1);
        if line.chars().count() > COLUMNS {
            findings.push(format!("{place}: longer than {COLUMNS} columns"));
        }
        if line.contains(concat!("env::var(\"", "CI\")")) {
            findings.push(format!("{place}: a test may be skipped only with FOREBAY_ALLOW_SKIP=1"));
        }
    }
    let code = blank_literals(text);
    for function in functions(&code) {
        let key = format!("fn {name} {}", function.name);
        ratchet.check(&key, function.length, FUNCTION_LINES, findings);
    }
    let test_code = name.contains("/tests/") || name.contains("/examples/");
    // A build script speaks to cargo by printing.
    let program = name.ends_with("/build.rs") || PROGRAMS.iter().any(|p| name.starts_with(p));
    let product = !program && !test_code;
    for (number, line) in code.lines().enumerate() {
        let place = format!("{name}:{}", number + 1);
        if product && line.trim_start().starts_with("#[cfg(") && line.contains("test") {
            // The test module comes last in a file; tests may print.
            break;
        }
        for (word, why) in FORBIDDEN.iter().filter(|(word, _)| line.contains(word)) {
            findings.push(format!("{place}: {word}..: {why}"));
        }
        if product && PRINTS.iter().any(|word| line.contains(word)) {
            findings.push(format!("{place}: a library does not print, it logs"));
        }
    }
}

/// An ignored test is run by a step of the tests, which names its file.
fn check_ignored(name: &str, text: &str, steps: &str, findings: &mut Findings) {
    let stem = Path::new(name).file_stem().unwrap_or_default().to_string_lossy();
    if blank_literals(text).contains("#[ignore") && !steps.contains(&format!("{stem} --ignored")) {
        findings.push(format!("{name}: no step of scripts/test-all runs its ignored test"));
    }
}

/// The recorded exceptions: what, and how many lines it may have.
struct Ratchet {
    allowed: BTreeMap<String, usize>,
    used: Vec<String>,
}

impl Ratchet {
    fn load(path: &Path) -> Result<Self, String> {
        let text = std::fs::read_to_string(path).unwrap_or_default();
        let mut allowed = BTreeMap::new();
        for line in text.lines().map(str::trim).filter(|l| !l.is_empty() && !l.starts_with('#')) {
            let (key, lines) = line.rsplit_once(' ').ok_or_else(|| format!("bad line: {line}"))?;
            let lines = lines.parse().map_err(|_| format!("bad line: {line}"))?;
            allowed.insert(key.to_string(), lines);
        }
        Ok(Self { allowed, used: Vec::new() })
    }

    fn check(&mut self, key: &str, lines: usize, limit: usize, findings: &mut Findings) {
        if lines <= limit {
            return;
        }
        match self.allowed.get(key) {
            Some(allowed) if lines <= *allowed => self.used.push(key.to_string()),
            Some(allowed) => {
                self.used.push(key.to_string());
                findings.push(format!("{key}: grew from {allowed} to {lines} lines"));
            }
            None => findings.push(format!("{key}: {lines} lines, the limit is {limit}")),
        }
    }

    fn finish(self, findings: &mut Findings) {
        for key in self.allowed.keys().filter(|k| !self.used.contains(k)) {
            findings.push(format!("{key}: within its limit now, take it off exceptions.txt"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ratchet(allowed: &[(&str, usize)]) -> Ratchet {
        let allowed = allowed.iter().map(|(k, v)| (k.to_string(), *v)).collect();
        Ratchet { allowed, used: Vec::new() }
    }

    #[test]
    fn ratchet_allows_shrinking_and_refuses_growth() {
        let mut findings = Findings::new();
        let mut r = ratchet(&[("fn a f", 80), ("fn b g", 90), ("fn c h", 75)]);
        r.check("fn a f", 79, 70, &mut findings);
        assert!(findings.is_empty());
        r.check("fn b g", 91, 70, &mut findings);
        r.check("fn d i", 71, 70, &mut findings);
        r.check("fn c h", 60, 70, &mut findings);
        r.finish(&mut findings);
        assert_eq!(findings.len(), 3, "{findings:?}");
    }

    #[test]
    fn ignored_test_needs_a_step_that_runs_it() {
        let text = "#[test]\n#[ignore = \"alone\"]\nfn f() {}\n";
        let mut findings = Findings::new();
        check_ignored("a/alone.rs", text, "tests cli/suite -- alone --ignored", &mut findings);
        assert!(findings.is_empty(), "{findings:?}");
        check_ignored("a/other.rs", text, "tests cli/suite -- alone --ignored", &mut findings);
        assert_eq!(findings.len(), 1);
    }

    #[test]
    fn words_in_comments_and_strings_are_no_findings() {
        let mut findings = Findings::new();
        let clean = "//! x\nfn f() {\n    // todo!() is forbidden\n    let a = \"dbg!(1)\";\n}\n";
        check_rust("crates/base/src/x.rs", clean, &mut ratchet(&[]), &mut findings);
        assert!(findings.is_empty(), "{findings:?}");
        let bad = "//! x\nfn f() {\n    println!(\"x\");\n    todo!()\n}\n";
        check_rust("crates/base/src/x.rs", bad, &mut ratchet(&[]), &mut findings);
        assert_eq!(findings.len(), 2, "{findings:?}");
        let skips = "//! x\nfn f() -> bool {\n    std::env::var(\"CI\").is_ok()\n}\n";
        check_rust("crates/nbd/tests/x.rs", skips, &mut ratchet(&[]), &mut findings);
        assert!(findings[2].contains("x.rs:3: a test may be skipped only"), "{findings:?}");
    }

    #[test]
    fn odd_characters_are_named() {
        let mut findings = Findings::new();
        check_text("a.md", "a\u{a0}b\n\u{2500}\u{25b6} fine\nend \n", &mut findings);
        assert_eq!(findings.len(), 2, "{findings:?}");
    }
}
