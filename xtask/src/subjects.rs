//! Subjects of commits: `area: what`, at most 72 characters, for the commits after the one that
//! `xtask/language/since.txt` names.

use crate::Findings;
use std::path::Path;
use std::process::Command;

const SINCE: &str = "xtask/language/since.txt";
const CHARACTERS: usize = 72;
/// Words that say nothing of a change when they stand alone.
const EMPTY: &[&str] =
    &["lines", "lints", "lint", "style", "fixes", "fix", "wip", "cleanup", "fmt"];

/// Checks the history behind `HEAD`. A tree without that history (an archive, a shallow clone) has
/// no commits to check, and the command says so.
pub fn check(root: &Path) -> Findings {
    let since = match std::fs::read_to_string(root.join(SINCE)) {
        Ok(text) => {
            text.lines().find(|l| !l.starts_with('#')).unwrap_or_default().trim().to_string()
        }
        Err(e) => return vec![format!("{SINCE}: {e}")],
    };
    let range = format!("{since}..HEAD");
    let log = Command::new("git")
        .args(["log", "--no-merges", "--format=%h %s", &range])
        .current_dir(root)
        .output();
    match log {
        Ok(output) if output.status.success() => judge(&String::from_utf8_lossy(&output.stdout)),
        _ => {
            println!("subjects: not checked, this tree has no history back to {since}");
            Findings::new()
        }
    }
}

/// Findings for the lines of a log: `id subject`.
fn judge(log: &str) -> Findings {
    let mut findings = Findings::new();
    for (id, subject) in log.lines().filter_map(|line| line.split_once(' ')) {
        let characters = subject.chars().count();
        if characters > CHARACTERS {
            findings.push(format!(
                "commit {id}: its subject has {characters} characters, {CHARACTERS} at most; say why in the \
                 body: \"{subject}\""
            ));
        }
        let what = match subject.split_once(": ") {
            Some((_, what)) => what.trim(),
            None => {
                findings.push(format!("commit {id}: write `area: what`, not \"{subject}\""));
                continue;
            }
        };
        if EMPTY.contains(&what.to_lowercase().trim_end_matches('.')) {
            findings.push(format!("commit {id}: say what changed, not only \"{what}\""));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subject_too_long_or_without_area_is_a_finding() {
        let long = "x".repeat(65);
        let log = format!(
            "1a cache: {long}\n2b cache: {long}x\n3c Mend the cache\n4d lfs: lints\n5e lfs: lint by hand\n"
        );
        let findings = judge(&log);
        let commits: Vec<&str> = findings.iter().map(|f| &f["commit ".len()..][..2]).collect();
        assert_eq!(commits, ["2b", "3c", "4d"], "{findings:?}");
    }
}
