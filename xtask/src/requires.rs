//! The requirements of tests and benches on the machine: devices, and the programs that
//! `scripts/packages` lists (one `program package why` per line, also for `scripts/setup`).
//!
//! Invariant Z1: a missing requirement is a finding unless `FOREBAY_ALLOW_SKIP=1`, with which tests
//! also skip the parts that need it.

use crate::Findings;
use std::path::Path;

/// Device, what for.
const DEVICES: &[(&str, &str)] = &[
    ("/dev/fuse", "mounts, and a device that takes seconds for each write"),
    ("/dev/loop-control", "loop devices, which need root"),
];

/// Prints each program and device with where it was found; a missing one is a finding.
pub fn check(root: &Path) -> Findings {
    let path = root.join("scripts/packages");
    let text = match std::fs::read_to_string(&path) {
        Ok(text) => text,
        Err(e) => return vec![format!("{}: {e}", path.display())],
    };
    let allow_skip = std::env::var("FOREBAY_ALLOW_SKIP").is_ok_and(|v| v == "1");
    let device = |path: &str| Path::new(path).exists();
    judge(&text, find, device, allow_skip)
}

fn judge(
    packages: &str,
    find: impl Fn(&str) -> Option<String>,
    device: impl Fn(&str) -> bool,
    allow_skip: bool,
) -> Findings {
    let mut missing = Vec::new();
    for line in packages.lines().filter(|l| !l.starts_with('#') && !l.trim().is_empty()) {
        let mut words = line.split_whitespace();
        let (program, package) = (words.next().unwrap_or(""), words.next().unwrap_or("?"));
        let why = words.collect::<Vec<_>>().join(" ");
        match find(program) {
            Some(place) => println!("{program:<14} {place:<28} {why}"),
            None => missing.push(format!("{program} is missing: apt-get install {package}")),
        }
    }
    for (path, why) in DEVICES {
        match device(path) {
            true => println!("{:<14} {path:<28} {why}", "device"),
            false => missing.push(format!("{path} is missing: {why}")),
        }
    }
    if allow_skip {
        missing.drain(..).for_each(|what| println!("{what} (FOREBAY_ALLOW_SKIP=1)"));
    }
    missing
}

fn find(program: &str) -> Option<String> {
    let path = std::env::var("PATH").unwrap_or_default();
    let system = ["/usr/sbin", "/sbin"];
    let folders = path.split(':').chain(system);
    folders.map(|f| format!("{f}/{program}")).find(|p| Path::new(p).is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Z1. The story: tests skipped missing requirements everywhere but under `CI=true`, which no
    /// script set, and `cargo xtask all` did not check them.
    #[test]
    fn missing_requirement_fails_unless_skips_are_allowed() {
        let packages = "# c\n\nfio fio load\nno-such-program nowhere x\n";
        let found = |program: &str| (program == "fio").then(|| "/usr/bin/fio".to_string());
        let no_fuse = |path: &str| path != "/dev/fuse";
        let findings = judge(packages, found, no_fuse, false);
        assert_eq!(findings.len(), 2, "{findings:?}");
        assert_eq!(findings[0], "no-such-program is missing: apt-get install nowhere");
        assert!(findings[1].starts_with("/dev/fuse is missing"), "{findings:?}");
        assert_eq!(judge(packages, found, no_fuse, true), Findings::new());
        assert_eq!(judge("fio fio x\n", found, |_| true, false), Findings::new());
    }
}
