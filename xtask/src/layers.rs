//! The direction of dependencies: each crate may name only what lies below it.
//!
//! ```text
//!   base <- block <- cache <- iomap <- forebay (facade) <- bench, cli
//!   base <- vfs <- nbd <- cli          vfs <- forebay
//!   forebay <- live <- bench, cli
//!   iomap, vfs <- lfs <- forebay       block, vfs <- fuse <- bench, cli
//!   lfs, sim <- crashtest             forebay <- capi, redb
//!   bench, crashtest, live <- lab
//!   iomap, vfs <- testkit <- bench, crashtest, memfs      fuse <- memfs
//! ```
//! sim, testkit, bench, crashtest and lab are never a normal dependency of a layer, and the program
//! `forebay` contains none of them, directly or through another crate. Tests of a layer below
//! testkit use it only in programs of their own: a unit test would see two copies of the layer's
//! types. A crate missing from the table is a finding, so that a new crate has to be placed
//! deliberately.
//!
//! Inside a crate the folders of its source are layers, too: [`folders`].

pub mod folders;
mod imports;

use crate::Findings;
use crate::metadata::{Package, packages};
use std::path::Path;

struct Rule {
    name: &'static str,
    /// Crates of the workspace it may use in its product code.
    may_use: &'static [&'static str],
    /// More crates that its tests, examples and benches may use.
    tests_may_use: &'static [&'static str],
    /// The crate root must carry `#![forbid(unsafe_code)]`.
    forbids_unsafe: bool,
}

const fn rule(
    name: &'static str,
    may_use: &'static [&'static str],
    tests_may_use: &'static [&'static str],
    forbids_unsafe: bool,
) -> Rule {
    Rule { name, may_use, tests_may_use, forbids_unsafe }
}

/// The simulated disk, and what the tests of several crates share.
const APPARATUS: &[&str] = &["forebay-sim", "forebay-testkit"];
const TESTKIT: &[&str] = &["forebay-testkit"];
const SIM: &[&str] = &["forebay-sim"];
const BASE: &[&str] = &["forebay-base"];
const BELOW_CACHE: &[&str] = &["forebay-base", "forebay-block"];
const BELOW_IOMAP: &[&str] = &["forebay-base", "forebay-block", "forebay-cache"];
const BELOW_LFS: &[&str] =
    &["forebay-base", "forebay-block", "forebay-cache", "forebay-iomap", "forebay-vfs"];
const BELOW_TESTKIT: &[&str] =
    &["forebay-base", "forebay-block", "forebay-cache", "forebay-iomap", "forebay-vfs"];
const BELOW_FACADE: &[&str] = &[
    "forebay-base",
    "forebay-block",
    "forebay-cache",
    "forebay-iomap",
    "forebay-vfs",
    "forebay-lfs",
];
const BELOW_SIM: &[&str] = &[
    "forebay-base",
    "forebay-block",
    "forebay-cache",
    "forebay-iomap",
    "forebay-vfs",
    "forebay-lfs",
    "forebay",
];
const BELOW_BENCH: &[&str] = &[
    "forebay-base",
    "forebay-block",
    "forebay-cache",
    "forebay-iomap",
    "forebay-vfs",
    "forebay-lfs",
    "forebay",
    "forebay-nbd",
    "forebay-fuse",
    "forebay-live",
    "forebay-capi",
    "forebay-testkit",
];
/// Test apparatus on the volume and the simulated disk; only `forebay-lab` stands on it. It uses
/// iomap as well, because its clients also read and write a raw image that is mapped in place.
const BELOW_CRASHTEST: &[&str] = &[
    "forebay-base",
    "forebay-block",
    "forebay-cache",
    "forebay-iomap",
    "forebay-vfs",
    "forebay-lfs",
    "forebay-sim",
    "forebay-testkit",
];
const BELOW_MEMFS: &[&str] = &["forebay-base", "forebay-vfs", "forebay-fuse", "forebay-testkit"];
const BELOW_CLI: &[&str] = &[
    "forebay-base",
    "forebay-block",
    "forebay-cache",
    "forebay-iomap",
    "forebay-vfs",
    "forebay-lfs",
    "forebay",
    "forebay-nbd",
    "forebay-fuse",
    "forebay-live",
];
/// What the program `forebay` must not contain: its users run it as root. A bench is also known by
/// the database that it compiles in.
const NOT_IN_PRODUCT: &[&str] = &[
    "forebay-bench",
    "forebay-crashtest",
    "forebay-sim",
    "forebay-testkit",
    "forebay-lab",
    "forebay-capi",
    "libsqlite3-sys",
    "hdrhistogram",
    "plotters",
];

/// From the bottom up.
const RULES: &[Rule] = &[
    rule("forebay-base", &[], &[], false),
    rule("forebay-block", BASE, TESTKIT, false),
    rule("forebay-cache", BELOW_CACHE, SIM, false),
    rule("forebay-iomap", BELOW_IOMAP, APPARATUS, true),
    rule("forebay-vfs", BASE, TESTKIT, true),
    rule("forebay-testkit", BELOW_TESTKIT, SIM, true),
    rule("forebay-lfs", BELOW_LFS, APPARATUS, true),
    rule("forebay-nbd", &["forebay-base", "forebay-vfs"], TESTKIT, true),
    rule("forebay-fuse", &["forebay-base", "forebay-block", "forebay-vfs"], TESTKIT, true),
    rule("forebay", BELOW_FACADE, APPARATUS, true),
    rule("forebay-capi", &["forebay-base", "forebay"], &["forebay-block"], false),
    rule("forebay-redb", &["forebay"], &[], true),
    rule("forebay-live", &["forebay-base", "forebay"], SIM, true),
    rule("forebay-sim", BELOW_SIM, &[], false),
    rule("forebay-bench", BELOW_BENCH, SIM, false),
    rule("forebay-crashtest", BELOW_CRASHTEST, &[], true),
    rule("forebay-memfs", BELOW_MEMFS, &[], true),
    rule("forebay-cli", BELOW_CLI, APPARATUS, true),
    rule("forebay-lab", &["forebay-bench", "forebay-crashtest", "forebay-live"], &[], true),
    rule("xtask", &[], &[], false),
];

/// Runs the check.
pub fn check(root: &Path) -> Findings {
    let packages = match packages(root) {
        Ok(packages) => packages,
        Err(e) => return vec![e],
    };
    let local: Vec<&Package> = packages.iter().filter(|p| p.local).collect();
    let mut findings = Findings::new();
    for package in &local {
        match RULES.iter().find(|r| r.name == package.name) {
            Some(rule) => check_package(rule, package, &local, &mut findings),
            None => findings.push(format!("{}: not in the table of layers", package.name)),
        }
    }
    for name in contained("forebay-cli", &packages) {
        if NOT_IN_PRODUCT.contains(&name) {
            findings.push(format!("forebay-cli: the program contains {name}"));
        }
    }
    findings.extend(folders::check(root));
    findings
}

/// Every package that the build of a package compiles in, without what only its tests need.
fn contained<'a>(program: &'a str, packages: &'a [Package]) -> Vec<&'a str> {
    let mut found = vec![program];
    let mut next = 0;
    while let Some(name) = found.get(next).copied() {
        next += 1;
        for package in packages.iter().filter(|package| package.name == name) {
            let used = package.dependencies.iter().filter(|used| !used.dev);
            for used in used.map(|used| used.name.as_str()) {
                if !found.contains(&used) {
                    found.push(used);
                }
            }
        }
    }
    found
}

fn check_package(rule: &Rule, package: &Package, local: &[&Package], findings: &mut Findings) {
    for dependency in &package.dependencies {
        if !local.iter().any(|p| p.name == dependency.name) {
            continue;
        }
        let name = dependency.name.as_str();
        let allowed =
            rule.may_use.contains(&name) || (dependency.dev && rule.tests_may_use.contains(&name));
        if !allowed {
            let kind = if dependency.dev { "its tests use" } else { "uses" };
            findings.push(format!("{}: {kind} {name}, which does not lie below it", rule.name));
        }
    }
    if rule.forbids_unsafe && !forbids_unsafe(Path::new(&package.folder)) {
        findings.push(format!("{}: its root lacks #![forbid(unsafe_code)]", rule.name));
    }
}

fn forbids_unsafe(folder: &Path) -> bool {
    ["src/lib.rs", "src/main.rs"].iter().all(|root| {
        std::fs::read_to_string(folder.join(root))
            .map_or(true, |text| text.lines().any(|l| l.trim() == "#![forbid(unsafe_code)]"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metadata::Dependency;

    /// Dependencies of tests alone are not in the program; those of a dependency are.
    #[test]
    fn contained_follows_all_dependencies_but_those_of_tests() {
        let package = |name: &str, used: &[(&str, bool)]| Package {
            name: name.into(),
            local: true,
            folder: String::new(),
            dependencies: used
                .iter()
                .map(|(name, dev)| Dependency { name: (*name).into(), dev: *dev })
                .collect(),
        };
        let packages = [
            package("cli", &[("nbd", false), ("testkit", true)]),
            package("nbd", &[("base", false), ("cli", false)]),
            package("base", &[("sim", false)]),
            package("testkit", &[("bench", false)]),
        ];
        assert_eq!(contained("cli", &packages), ["cli", "nbd", "base", "sim"]);
    }

    #[test]
    fn program_forebay_contains_no_bench_and_no_crash_test() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let packages = packages(root).unwrap();
        let found = contained("forebay-cli", &packages);
        assert!(found.contains(&"forebay-lfs") && found.contains(&"clap"), "{found:?}");
        assert!(!found.iter().any(|name| NOT_IN_PRODUCT.contains(name)), "{found:?}");
        let lab = contained("forebay-lab", &packages);
        assert!(NOT_IN_PRODUCT.iter().all(|name| lab.contains(name)), "{lab:?}");
    }

    #[test]
    fn layer_table_points_down() {
        for (at, rule) in RULES.iter().enumerate() {
            for used in rule.may_use {
                let below = RULES.iter().position(|r| r.name == *used);
                assert!(below.is_some_and(|b| b < at), "{} uses {used}", rule.name);
            }
        }
    }
}
