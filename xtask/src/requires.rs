//! The programs that tests and benches call, from `scripts/packages`: one `program package why`
//! per line, so that `scripts/setup` and this list cannot differ.

use crate::Findings;
use std::path::Path;

/// Prints each program with where it was found; a missing one is a finding.
pub fn check(root: &Path) -> Findings {
    let path = root.join("scripts/packages");
    let text = match std::fs::read_to_string(&path) {
        Ok(text) => text,
        Err(e) => return vec![format!("{}: {e}", path.display())],
    };
    let mut findings = Findings::new();
    for line in text.lines().filter(|l| !l.starts_with('#') && !l.trim().is_empty()) {
        let mut words = line.split_whitespace();
        let (program, package) = (words.next().unwrap_or(""), words.next().unwrap_or("?"));
        let why = words.collect::<Vec<_>>().join(" ");
        match find(program) {
            Some(place) => println!("{program:<14} {place:<28} {why}"),
            None => findings.push(format!("{program} is missing: apt-get install {package}")),
        }
    }
    findings
}

fn find(program: &str) -> Option<String> {
    let path = std::env::var("PATH").unwrap_or_default();
    let system = ["/usr/sbin", "/sbin"];
    let folders = path.split(':').chain(system);
    folders.map(|f| format!("{f}/{program}")).find(|p| Path::new(p).is_file())
}
