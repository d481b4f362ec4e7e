//! `docs/reference/cli.md` and `forebay-lab crash-test --help` name the same options.

use crate::ok;
use std::collections::BTreeSet;

const DOCS: &str = include_str!("../../../../docs/reference/cli.md");

/// The first long option in a text.
fn option(text: &str) -> Option<String> {
    let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '-'));
    let mut long = words.filter(|word| word.starts_with("--") && word.len() > 2);
    long.next().map(str::to_string)
}

#[test]
fn crash_test_options_are_those_of_its_document() {
    let start = DOCS.find("\n## crash-test\n").expect("a section");
    let section = DOCS[start + 4..].split("\n## ").next().expect("a split has a first part");
    let cells = section.lines().filter_map(|line| line.strip_prefix("| `"));
    let cells = cells.filter_map(|line| line.split('|').next());
    let documented: BTreeSet<String> = cells.filter_map(option).collect();
    let help = ok(&["crash-test", "--help"]);
    let lines = help.lines().map(str::trim_start).filter(|line| line.starts_with('-'));
    let offered = lines.filter_map(|line| option(line.split("  ").next().unwrap_or(line)));
    let common = ["--help", "--verbose"];
    let offered: BTreeSet<String> =
        offered.filter(|name| !common.contains(&name.as_str())).collect();
    assert_eq!(offered, documented);
    assert!(offered.len() >= 8, "{offered:?}");
}
