//! Every foreign crate is named once, in the manifest of the workspace, with its reason above it.
//!
//! Licences, sources and second versions of crates: `deny.toml`, which cargo-deny checks.

use crate::Findings;
use std::path::Path;

/// Checks the manifests that are among `files`.
pub fn check(root: &Path, files: &[std::path::PathBuf]) -> Findings {
    let mut findings = Findings::new();
    for path in files.iter().filter(|p| p.ends_with("Cargo.toml")) {
        let name = path.strip_prefix(root).unwrap_or(path).display().to_string();
        let text = std::fs::read_to_string(path).unwrap_or_default();
        findings.extend(check_manifest(&name, &text));
    }
    findings
}

fn check_manifest(name: &str, manifest: &str) -> Findings {
    // The crate of fuzz targets is a workspace of its own.
    let top = matches!(name, "Cargo.toml" | "fuzz/Cargo.toml");
    let (mut listed, mut reasoned, mut findings) = (false, false, Findings::new());
    for line in manifest.lines().map(str::trim) {
        if line.starts_with('[') {
            listed = line.ends_with("dependencies]");
        } else if listed && !line.starts_with('#') && line.contains('=') {
            let crate_name = line.split(['=', '.']).next().unwrap_or_default().trim();
            if top && !reasoned && !line.contains("path =") {
                findings.push(format!("{name}: {crate_name}: no reason above it"));
            }
            if !top && !line.contains("workspace") {
                findings.push(format!("{name}: {crate_name} belongs into the workspace's list"));
            }
        }
        reasoned = line.starts_with('#');
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dependency_without_reason_is_found() {
        let text = "[workspace.dependencies]\na = { path = \"a\" }\n# why\n\
                    b = \"1\"\nc = \"2\"\n[x]\nd = \"3\"\n";
        assert_eq!(check_manifest("Cargo.toml", text), ["Cargo.toml: c: no reason above it"]);
    }

    #[test]
    fn version_outside_the_workspaces_list_is_found() {
        let text = "[dev-dependencies]\na.workspace = true\nb = \"1\"\n";
        let found = check_manifest("crates/x/Cargo.toml", text);
        assert_eq!(found, ["crates/x/Cargo.toml: b belongs into the workspace's list"]);
    }
}
