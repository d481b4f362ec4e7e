//! `docs/reference/cli.md` and `--help` name the same options, command by command, both ways.

use crate::common::Folder;
use std::collections::BTreeSet;

const DOCS: &str = include_str!("../../../../docs/reference/cli.md");

/// Long options in the section of `docs/reference/cli.md` for `command`: first cells of its table.
fn documented(command: &str) -> BTreeSet<String> {
    let start = DOCS.find(&format!("\n## {command}\n")).expect("a section for each command");
    let section = DOCS[start + 4..].split("\n## ").next().expect("a split has a first part");
    section
        .lines()
        .filter_map(|line| line.strip_prefix("| `"))
        .filter_map(|line| line.split('|').next())
        .flat_map(options)
        .collect()
}

fn options(text: &str) -> Vec<String> {
    text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '-'))
        .filter(|word| word.starts_with("--") && word.len() > 2)
        .map(str::to_string)
        .collect()
}

/// Long options that `--help` lists: lines that begin with one.
fn offered(help: &str) -> BTreeSet<String> {
    help.lines()
        .map(str::trim_start)
        .filter(|line| line.starts_with('-'))
        .filter_map(|line| options(line.split("  ").next().unwrap_or(line)).pop())
        .filter(|name| !matches!(name.as_str(), "--help" | "--verbose" | "--version"))
        .collect()
}

#[test]
fn both_ways() {
    let folder = Folder::new();
    for command in [
        "create",
        "ls",
        "extents",
        "cp",
        "fsck",
        "recover",
        "grow",
        "export",
        "mount",
        "attach",
        "detach",
        "list",
        "umount",
        "stat",
        "top",
        "tune",
        "policy",
        "run",
        "fincore",
        "doctor",
        "crash-test",
        "generate",
    ] {
        let help = folder.ok(&[command, "--help"]);
        assert_eq!(offered(&help), documented(command), "forebay {command}");
    }
}

#[test]
fn every_command_has_a_section() {
    let folder = Folder::new();
    let help = folder.ok(&["--help"]);
    let list = help.split("Commands:").nth(1).and_then(|t| t.split("\n\n").next()).expect("a list");
    for line in list.lines().filter(|l| !l.trim().is_empty()) {
        let command = line.split_whitespace().next().expect("a line has a word");
        if command != "help" {
            assert!(
                DOCS.contains(&format!("\n## {command}\n")),
                "{command} is not in docs/reference/cli.md"
            );
        }
    }
}
