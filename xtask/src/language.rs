//! The language of the project, with a ratchet: new violations fail, old ones only become fewer.
//!
//! `xtask/language/counts.txt` says how many violations of a rule a file had. More are a finding,
//! fewer are none, so that branches that clean up in parallel do not conflict.
//! `cargo xtask language --record` writes the file anew. It refuses to grow: the sum for a rule in
//! a crate (or folder) may only shrink, so text is free to move between the files of a crate.

mod ids;
mod names;
mod prose;
mod rules;

use crate::Findings;
use rules::{List, Lists, Violation};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;

const COUNTS: &str = "xtask/language/counts.txt";
/// Findings that are printed for a file and rule.
const SHOWN: usize = 10;
const HEAD: &str = "\
# Violations of the rules of language that a file had when this was written: count, rule, file.
# They may only become fewer. `cargo xtask language --record` writes this file, and refuses to let it grow.
# After a merge conflict here take either side and run that command.
";

/// Violations by file and rule.
type Counts = BTreeMap<(String, String), usize>;

/// Runs the check.
pub fn check(root: &Path) -> Findings {
    match gather(root) {
        Ok((found, recorded)) => judge(&found, &recorded, |file| changed_lines(root, file)),
        Err(e) => vec![e],
    }
}

/// Writes the counts of the tree as it is.
pub fn record(root: &Path) -> Findings {
    let (found, recorded) = match gather(root) {
        Ok(both) => both,
        Err(e) => return vec![e],
    };
    let counts = counted(&found);
    let findings = match root.join(COUNTS).exists() {
        true => growth(&counts, &recorded),
        false => Findings::new(),
    };
    if findings.is_empty() {
        if let Err(e) = std::fs::write(root.join(COUNTS), written(&counts)) {
            return vec![format!("{COUNTS}: {e}")];
        }
        println!("language: {} old violations", counts.values().sum::<usize>());
    }
    findings
}

/// The violations of each file, and the recorded counts.
fn gather(root: &Path) -> Result<(BTreeMap<String, Vec<Violation>>, Counts), String> {
    let read =
        |name: &str| std::fs::read_to_string(root.join(name)).map_err(|e| format!("{name}: {e}"));
    let words = List::parse(&read("xtask/language/words.txt")?)?;
    let identifiers = List::parse(&read("xtask/language/identifiers.txt")?)?;
    let mut lists = Lists { words, identifiers, ..Lists::default() };
    let mut texts = BTreeMap::new();
    for path in crate::tidy::files(root) {
        let name = path.strip_prefix(root).unwrap_or(&path).display().to_string();
        let Ok(text) = std::fs::read_to_string(&path) else { continue };
        lists.definers.add(&name, &text);
        texts.insert(name, text);
    }
    let found = texts.iter().map(|(name, text)| (name.clone(), rules::check(name, text, &lists)));
    let found = found.collect();
    let recorded = parse(&std::fs::read_to_string(root.join(COUNTS)).unwrap_or_default())?;
    Ok((found, recorded))
}

fn parse(text: &str) -> Result<Counts, String> {
    let mut counts = Counts::new();
    for line in text.lines().filter(|l| !l.trim().is_empty() && !l.starts_with('#')) {
        let bad = || format!("{COUNTS}: bad line: {line}");
        let mut words = line.splitn(3, ' ');
        let (count, rule, file) = (words.next(), words.next(), words.next());
        let count = count.and_then(|count| count.parse().ok()).ok_or_else(bad)?;
        let (rule, file) = (rule.ok_or_else(bad)?, file.ok_or_else(bad)?);
        counts.insert((file.to_string(), rule.to_string()), count);
    }
    Ok(counts)
}

fn written(counts: &Counts) -> String {
    let mut text = HEAD.to_string();
    for ((file, rule), count) in counts {
        let _ = writeln!(text, "{count} {rule} {file}");
    }
    text
}

fn counted(found: &BTreeMap<String, Vec<Violation>>) -> Counts {
    let mut counts = Counts::new();
    for (file, violations) in found {
        for violation in violations {
            *counts.entry((file.clone(), violation.rule.to_string())).or_default() += 1;
        }
    }
    counts
}

/// Findings for each file and rule with more violations than recorded: those on changed lines, or
/// all if none is on a changed line.
fn judge(
    found: &BTreeMap<String, Vec<Violation>>,
    recorded: &Counts,
    changed: impl Fn(&str) -> BTreeSet<usize>,
) -> Findings {
    let mut findings = Findings::new();
    for ((file, rule), count) in counted(found) {
        let allowed = recorded.get(&(file.clone(), rule.clone())).copied().unwrap_or(0);
        if count <= allowed {
            continue;
        }
        let changed = changed(&file);
        let of_rule = || found[&file].iter().filter(|violation| violation.rule == rule);
        let mut shown: Vec<_> = of_rule().filter(|v| changed.contains(&v.line)).collect();
        if shown.is_empty() {
            shown = of_rule().collect();
        }
        for violation in shown.iter().take(SHOWN) {
            findings.push(format!("{file}:{}: {}", violation.line, violation.what));
        }
        findings.push(format!(
            "{file}: {count} violations of the rule `{rule}`, {allowed} are recorded. Mend {} of them. \
             If the text came from another file of the crate: cargo xtask language --record",
            count - allowed
        ));
    }
    findings
}

/// Sums by crate and rule that would grow.
fn growth(counts: &Counts, recorded: &Counts) -> Findings {
    let (now, before) = (by_area(counts), by_area(recorded));
    let mut findings = Findings::new();
    for ((area, rule), count) in now {
        let allowed = before.get(&(area.clone(), rule.clone())).copied().unwrap_or(0);
        if count > allowed {
            findings.push(format!(
                "{area}: {count} violations of the rule `{rule}`, {allowed} are recorded, and the record may \
                 not grow. `cargo xtask tidy` says where they are"
            ));
        }
    }
    findings
}

fn by_area(counts: &Counts) -> Counts {
    let mut sums = Counts::new();
    for ((file, rule), count) in counts {
        *sums.entry((area(file).to_string(), rule.clone())).or_default() += count;
    }
    sums
}

/// The crate of a file, its folder at the top of the tree, or `.`.
fn area(file: &str) -> &str {
    let below = file.strip_prefix("crates/").and_then(|rest| rest.find('/'));
    match (below, file.find('/')) {
        (Some(end), _) => &file[.."crates/".len() + end],
        (None, Some(end)) => &file[..end],
        (None, None) => ".",
    }
}

/// Lines of the file that changed since the counts were written: those are named first.
fn changed_lines(root: &Path, file: &str) -> BTreeSet<usize> {
    let git = |args: &[&str]| {
        let output = std::process::Command::new("git").args(args).current_dir(root).output();
        output.map(|o| String::from_utf8_lossy(&o.stdout).into_owned()).unwrap_or_default()
    };
    let since = git(&["log", "-1", "--format=%H", "--", COUNTS]);
    if since.trim().is_empty() {
        return BTreeSet::new();
    }
    added_lines(&git(&["diff", "-U0", since.trim(), "--", file]))
}

/// The lines that a diff without context adds.
fn added_lines(diff: &str) -> BTreeSet<usize> {
    let mut lines = BTreeSet::new();
    for hunk in diff.lines().filter(|line| line.starts_with("@@ ")) {
        let Some(added) = hunk.split(" +").nth(1).and_then(|rest| rest.split(' ').next()) else {
            continue;
        };
        let (start, count) = added.split_once(',').unwrap_or((added, "1"));
        if let (Ok(start), Ok(count)) = (start.parse::<usize>(), count.parse::<usize>()) {
            lines.extend(start..start + count);
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(file: &str, lines: &[usize]) -> BTreeMap<String, Vec<Violation>> {
        let violation =
            |line: &usize| Violation { rule: "word", line: *line, what: "x".to_string() };
        BTreeMap::from([(file.to_string(), lines.iter().map(violation).collect())])
    }

    fn counts(entries: &[(&str, usize)]) -> Counts {
        let entry =
            |(file, count): &(&str, usize)| ((file.to_string(), "word".to_string()), *count);
        entries.iter().map(entry).collect()
    }

    #[test]
    fn count_above_the_record_fails_and_below_passes() {
        let nothing = |_: &str| BTreeSet::new();
        let recorded = counts(&[("a.rs", 2)]);
        assert!(judge(&found("a.rs", &[1, 2]), &recorded, nothing).is_empty());
        assert!(judge(&found("a.rs", &[1]), &recorded, nothing).is_empty());
        assert!(judge(&found("b.rs", &[]), &recorded, nothing).is_empty());
        assert_eq!(judge(&found("b.rs", &[1]), &recorded, nothing).len(), 2);
        let findings = judge(&found("a.rs", &[1, 5, 9]), &recorded, |_| BTreeSet::from([5]));
        assert_eq!(findings[0], "a.rs:5: x");
        assert!(
            findings[1].contains("3 violations of the rule `word`, 2 are recorded"),
            "{findings:?}"
        );
    }

    #[test]
    fn record_refuses_growth_and_takes_text_moved_within_crate() {
        let recorded = counts(&[("crates/a/src/x.rs", 3), ("docs/a.md", 1)]);
        let moved = counts(&[("crates/a/src/x.rs", 1), ("crates/a/src/y.rs", 2)]);
        assert!(growth(&moved, &recorded).is_empty());
        let elsewhere = counts(&[("crates/b/src/y.rs", 1)]);
        assert_eq!(growth(&elsewhere, &recorded).len(), 1);
        let more = counts(&[("docs/a.md", 1), ("docs/b.md", 1)]);
        assert!(growth(&more, &recorded)[0].starts_with("docs: 2 violations"));
    }

    #[test]
    fn counts_read_back_as_written() {
        let all = counts(&[("crates/a/src/x.rs", 3), ("docs/a b.md", 1)]);
        assert_eq!(parse(&written(&all)).unwrap(), all);
        assert!(parse("three word a.rs\n").is_err());
    }

    #[test]
    fn lines_added_by_a_diff_are_known() {
        let diff = "+++ b/a\n@@ -1 +2 @@ x\n+a\n@@ -4,0 +6,2 @@\n+b\n+c\n@@ -9,2 +10,0 @@\n";
        assert_eq!(added_lines(diff), BTreeSet::from([2, 6, 7]));
    }
}
