//! House checks, run by `make test` and by hand as `cargo xtask NAME`.
//!
//! Each check prints its findings as `path: what` and ends with status 1 if there are any. A rule
//! that no check enforces does not count as one.

mod invariants;
mod language;
mod layers;
mod lineage;
mod lineage_figures;
mod lineage_text;
mod metadata;
mod named;
mod pages;
mod reasons;
mod requires;
mod source;
mod subjects;
mod tidy;

/// The words by which the benches' tables name ratios.
#[path = "../../crates/bench/src/report"]
#[cfg_attr(not(test), expect(dead_code, reason = "the benches also label metrics and variants"))]
mod report {
    pub mod figures;
    pub mod words;
}

use std::path::PathBuf;
use std::process::ExitCode;

const USAGE: &str = "usage: cargo xtask CHECK...

  layers     the direction of dependencies between the crates, and between the folders of each crate
             as its list in xtask/layers orders them; where unsafe is forbidden. With --record it
             writes the lists of imports that still point the other way, which may only shrink
  tidy       lengths of files and functions, headers, characters, forbidden words, lost files,
             numbered invariants that nothing asserts or tests, the tables of invariants on the pages
             of the volume, foreign crates without a reason, language, subjects of commits
  language   the rules of language alone: refused words and identifiers, long sentences and lines,
             doc comments that only refer elsewhere; with --record it writes the counts of old
             violations, which may only shrink
  requires   the programs and devices that tests and benches need, and which of them are missing;
             with FOREBAY_ALLOW_SKIP=1 missing ones are named and are no finding
  lineage    writes docs/lineage.md out of xtask/lineage.txt and docs/figures.md; tests and ratios that
             it names must exist, each figure has a value or a reason; with --check it writes nothing,
             and the document must be fresh
  all        layers, tidy, requires, and lineage, which it only checks";

/// What a check found; empty means it passed.
pub type Findings = Vec<String>;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let (flags, names): (Vec<String>, Vec<String>) =
        words.into_iter().partition(|word| word.starts_with("--"));
    let given = |wanted: &str| flags.iter().any(|flag| flag == wanted);
    let (only_check, records) = (given("--check"), given("--record"));
    if let Some(flag) = flags.iter().find(|flag| !["--check", "--record"].contains(&flag.as_str()))
    {
        eprintln!("xtask: no flag `{flag}`\n{USAGE}");
        return ExitCode::from(2);
    }
    if names.is_empty() {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    }
    let root = workspace_root();
    let mut failed = false;
    for name in &names {
        let checks: &[&str] =
            if name == "all" { &["layers", "tidy", "requires", "lineage"] } else { &[name] };
        for check in checks {
            let findings = match *check {
                "layers" if records => layers::folders::record(&root),
                "layers" => layers::check(&root),
                "tidy" => tidy::check(&root),
                "language" if records => language::record(&root),
                "language" => language::check(&root),
                "lineage" => lineage::check(&root, only_check || name == "all"),
                "requires" => requires::check(&root),
                other => {
                    eprintln!("xtask: no check named `{other}`\n{USAGE}");
                    return ExitCode::from(2);
                }
            };
            for finding in &findings {
                println!("{check}: {finding}");
            }
            match findings.len() {
                0 => println!("{check}: ok"),
                n => println!("{check}: {n} finding(s)"),
            }
            failed |= !findings.is_empty();
        }
    }
    ExitCode::from(u8::from(failed))
}

fn workspace_root() -> PathBuf {
    let here = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    here.parent().expect("xtask lies in the workspace").to_path_buf()
}
