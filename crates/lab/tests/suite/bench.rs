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

/// What the last screen of `make run` begins with after this run of the bench `database`: by the
/// script's own function.
fn verdict(name: &str, rows: &[(&str, &str, f64)]) -> String {
    let file = std::env::temp_dir().join(format!("forebay-verdict-{name}-{}", std::process::id()));
    let row = |(variant, metric, median): &(&str, &str, f64)| {
        format!(r#"{{"variant": "{variant}", "metric": "fast_{metric}", "median": {median}}}"#)
    };
    let rows: Vec<String> = rows.iter().map(row).collect();
    let text = format!(r#"{{"bench": "database", "rows": [{}]}}"#, rows.join(", "));
    std::fs::write(&file, text).unwrap();
    let screen = ok(&["bench", "report", "--screen", file.to_str().unwrap()]);
    std::fs::remove_file(&file).unwrap();
    shown_last(&screen)
}

fn shown_last(screen: &str) -> String {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/main-job");
    let script = std::fs::read_to_string(script).unwrap();
    let from = script.find("\nverdict() {").expect("the function of the verdict");
    let len = script[from..].find("\n}\n").expect("its end") + 2;
    let command = format!("{}\nverdict \"$1\"", &script[from..from + len]);
    let output = Command::new("bash").args(["-c", &command, "bash", screen]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn verdict_of_make_run_is_better_worse_or_no_comparison() {
    let (during, lost) = ("lookups_during", "hot_set_lost");
    let ours = [("ours", "lookups_alone", 2e5), ("ours", during, 1.8e5)];
    let with = |name: &str, theirs: &[(&'static str, &'static str, f64)]| {
        let text = verdict(name, &[&ours[..], theirs].concat());
        assert!(text.lines().all(|line| line.starts_with("  ") && line.len() <= 110), "{text}");
        assert!(text.lines().count() <= 3 && !text.contains("lookups  "), "no table: {text}");
        text
    };
    let better = with("better", &[("xfs-tar", during, 6e4), ("xfs-tar", lost, 41.0)]);
    assert!(better.contains("Forebay is 3.00 times as fast as the kernel during tar"), "{better}");
    assert!(better.contains("41 % of its hot set lost"), "{better}");
    let best = ("xfs-direct", during, 3.6e5);
    let worse = with("worse", &[("xfs-tar", during, 2e5), ("xfs-tar", lost, 30.0), best]);
    assert!(worse.contains("did no better than the kernel during tar: 0.90 times"), "{worse}");
    assert!(worse.contains("xfs-direct: 0.36 M/s; Forebay 0.50 times that"), "{worse}");
    let kept = with("kept", &[("xfs-tar", during, 6e4), ("xfs-tar", lost, 19.0)]);
    assert!(kept.contains("the kernel kept its hot set: nothing to compare"), "{kept}");
    let unknown = with("unknown", &[("xfs-tar", during, 6e4)]);
    assert!(unknown.contains("the kernel's hot set is unknown: nothing to compare"), "{unknown}");
    let alone = with("alone", &[]);
    assert!(alone.contains("the kernel's columns were not run, nothing to compare"), "{alone}");
    assert_eq!(verdict("none", &[]), "  SQLite during a backup: not run\n");
    assert_eq!(shown_last(""), "  not measured (--no-bench)\n");
}
