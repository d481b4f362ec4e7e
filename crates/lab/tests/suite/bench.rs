//! `forebay-lab bench`: its help, and processes that a bench starts.

use crate::{ok, said};
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

/// The names in a list of subcommands.
fn names(help: &str, heading: &str) -> Vec<String> {
    let list = help.split(heading).nth(1).and_then(|text| text.split("\n\n").next());
    let lines = list.expect("a list").lines().filter(|line| line.starts_with("  "));
    let indented = |line: &&str| line.chars().nth(2).is_some_and(|c| c != ' ');
    let first = |line: &str| line.split_whitespace().next().map(str::to_string);
    lines.filter(indented).filter_map(first).collect()
}

#[test]
fn bench_help_lists_benches_and_each_has_help() {
    let benches = names(&ok(&["bench", "--help"]), "Benches:");
    assert!(benches.len() >= 17, "{benches:?}");
    for name in &benches {
        let help = ok(&["bench", name, "--help"]);
        assert!(help.contains("--json") && help.contains("--html"), "{name}: {help}");
    }
    for (name, words) in [
        ("dirty", "Parts: dd, fio, volume, jobs, delay, nbd"),
        ("mount", "Parts: read, sync, random, seq, names"),
        ("database", "--budgets"),
        ("all", "--without"),
        ("report", "--compare"),
    ] {
        assert!(ok(&["bench", name, "-h"]).contains(words), "{name}");
    }
}

#[test]
fn bench_command_lines_without_sense_end_with_status_2() {
    for (words, why) in [
        (&["bench", "none"][..], "none"),
        (&["bench", "hit", "--none"], "--none"),
        (&["bench", "dirty", "--part", "none"], "`none`"),
        (&["bench"], "Usage"),
        (&[], "Usage"),
    ] {
        let (_, err, status) = said(words);
        assert!(status == Some(2) && err.contains(why), "{words:?}: {err}");
    }
}

/// A bench starts this program again for the work that has to be in a cgroup.
#[test]
fn worker_answers_each_job() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_forebay-lab"));
    let mut worker =
        command.arg("__worker").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut input = worker.stdin.take().unwrap();
    writeln!(input, "{{\"job\": \"none such\"}}").unwrap();
    let mut answer = String::new();
    BufReader::new(worker.stdout.take().unwrap()).read_line(&mut answer).unwrap();
    assert!(answer.contains("error"), "{answer}");
    drop(input);
    assert!(worker.wait().unwrap().success());
}
