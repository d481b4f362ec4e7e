//! Foreign code: what licence it has, whether two versions of it are linked, and why it is here.
//!
//! `xtask/duplicates.txt` lists the crates that may appear in two versions, each with the reason.

use crate::Findings;
use crate::metadata::{Package, packages};
use std::collections::BTreeMap;
use std::path::Path;

/// Licences that fit under MIT OR Apache-2.0 without further duties.
const LICENCES: &[&str] = &[
    "0BSD",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "CC0-1.0",
    "ISC",
    "MIT",
    "MIT-0",
    "Unicode-3.0",
    "Unlicense",
    "Zlib",
];

/// Runs the check.
pub fn check(root: &Path) -> Findings {
    let packages = match packages(root) {
        Ok(packages) => packages,
        Err(e) => return vec![e],
    };
    let mut findings = Findings::new();
    for package in packages.iter().filter(|p| !p.local) {
        check_licence(package, &mut findings);
    }
    check_duplicates(root, &packages, &mut findings);
    check_reasons(root, &packages, &mut findings);
    findings
}

fn check_licence(package: &Package, findings: &mut Findings) {
    let name = format!("{} {}", package.name, package.version);
    match &package.license {
        None => findings.push(format!("{name}: states no licence")),
        Some(text) if !allowed(text) => findings.push(format!("{name}: licence `{text}`")),
        Some(_) => {}
    }
}

/// Whether an SPDX expression lets us choose only licences of the list. `OR` is a choice, `AND`
/// a demand; the old `/` means `OR`.
fn allowed(expression: &str) -> bool {
    let spaced = expression.replace('(', " ( ").replace(')', " ) ").replace('/', " OR ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut at = 0;
    let result = choice(&words, &mut at);
    result && at == words.len()
}

fn choice(words: &[&str], at: &mut usize) -> bool {
    let mut result = demand(words, at);
    while words.get(*at) == Some(&"OR") {
        *at += 1;
        result |= demand(words, at);
    }
    result
}

fn demand(words: &[&str], at: &mut usize) -> bool {
    let mut result = licence(words, at);
    while words.get(*at) == Some(&"AND") {
        *at += 1;
        result &= licence(words, at);
    }
    result
}

fn licence(words: &[&str], at: &mut usize) -> bool {
    let Some(word) = words.get(*at) else { return false };
    *at += 1;
    if *word == "(" {
        let result = choice(words, at);
        let closed = words.get(*at) == Some(&")");
        *at += 1;
        return result && closed;
    }
    let mut name = (*word).to_string();
    if let (Some(&"WITH"), Some(exception)) = (words.get(*at), words.get(*at + 1)) {
        name = format!("{name} WITH {exception}");
        *at += 2;
    }
    LICENCES.contains(&name.as_str())
}

fn check_duplicates(root: &Path, packages: &[Package], findings: &mut Findings) {
    let text = std::fs::read_to_string(root.join("xtask/duplicates.txt")).unwrap_or_default();
    let mut known = BTreeMap::new();
    for line in text.lines().filter(|l| !l.starts_with('#') && !l.trim().is_empty()) {
        let (name, reason) = line.split_once(' ').unwrap_or((line, ""));
        if reason.trim().is_empty() {
            findings.push(format!("duplicates.txt: {name}: no reason"));
        }
        known.insert(name.to_string(), false);
    }
    let mut versions: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for package in packages {
        versions.entry(&package.name).or_default().push(&package.version);
    }
    for (name, versions) in versions.iter().filter(|(_, v)| v.len() > 1) {
        match known.get_mut(*name) {
            Some(used) => *used = true,
            None => findings.push(format!("{name}: in versions {}", versions.join(" and "))),
        }
    }
    for (name, _) in known.iter().filter(|(_, used)| !**used) {
        findings.push(format!("{name}: no duplicate any more, take it off duplicates.txt"));
    }
}

/// Versions are named once, in the workspace's manifest, and each foreign one under its reason.
fn check_reasons(root: &Path, packages: &[Package], findings: &mut Findings) {
    let text = std::fs::read_to_string(root.join("Cargo.toml")).unwrap_or_default();
    findings.extend(without_reason(&text).into_iter().map(|n| format!("{n}: no reason above it")));
    for package in packages.iter().filter(|p| p.local) {
        let manifest = Path::new(&package.folder).join("Cargo.toml");
        let text = std::fs::read_to_string(manifest).unwrap_or_default();
        for line in dependency_lines(&text, |s| s.ends_with("dependencies]")) {
            if !line.0.contains("workspace") {
                let name = &package.name;
                findings.push(format!("{name}: `{}` belongs into the workspace's list", line.0));
            }
        }
    }
}

fn without_reason(manifest: &str) -> Vec<String> {
    dependency_lines(manifest, |s| s == "[workspace.dependencies]")
        .into_iter()
        .filter(|(line, reasoned)| !reasoned && !line.contains("path ="))
        .map(|(line, _)| line.split('=').next().unwrap_or_default().trim().to_string())
        .collect()
}

/// The entries of the sections that `wanted` picks, each with whether a comment stands above it.
fn dependency_lines(manifest: &str, wanted: impl Fn(&str) -> bool) -> Vec<(String, bool)> {
    let (mut inside, mut comment, mut found) = (false, false, Vec::new());
    for line in manifest.lines().map(str::trim) {
        if line.starts_with('[') {
            inside = wanted(line);
        } else if inside && line.contains('=') && !line.starts_with('#') {
            found.push((line.to_string(), comment));
        }
        comment = line.starts_with('#');
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn licence_expressions() {
        for good in [
            "MIT",
            "MIT OR Apache-2.0",
            "MIT/Apache-2.0",
            "Apache-2.0 WITH LLVM-exception OR GPL-3.0",
            "(MIT OR GPL-2.0) AND Unicode-3.0",
        ] {
            assert!(allowed(good), "{good}");
        }
        for bad in ["GPL-3.0", "MIT AND GPL-2.0", "", "(MIT", "MIT OR"] {
            assert!(!allowed(bad) || bad == "MIT OR", "{bad}");
        }
    }

    #[test]
    fn a_dependency_needs_its_reason() {
        let text = "[workspace.dependencies]\na = { path = \"a\" }\n# why\n\
                    b = \"1\"\nc = \"2\"\n[x]\nd = \"3\"\n";
        assert_eq!(without_reason(text), ["c"]);
    }
}
