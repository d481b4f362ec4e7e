//! `forebay-lab crash-test` ends at its limits, prints what it has checked, and finds an injected
//! fault in few steps, with a command that repeats it.

use crate::{ok, said};
use forebay_crashtest::CLASSES;

#[test]
fn crash_test_without_violation_ends_with_summary() {
    let (out, err, status) = said(&["crash-test", "--states", "400", "--jobs", "2", "--seed", "7"]);
    assert_eq!(status, Some(0), "{out}{err}");
    let last = out.lines().last().expect("a summary");
    assert!(last.starts_with("no violation: ") && last.contains(" crash states, "), "{last}");
    let recovered = last.split(", ").find_map(|part| part.strip_suffix(" recovered"));
    assert!(recovered.is_some_and(|n| n.parse::<u64>().is_ok_and(|n| n > 80)), "{last}");
    let (_, classes) = last.split_once("; classes: ").expect("the classes of runs");
    assert_eq!(classes.matches(" states, ").count(), CLASSES.len(), "{last}");
    assert!(CLASSES.iter().all(|class| classes.contains(class.name)), "{last}");
    assert!(err.lines().all(|line| line.contains("states")), "progress: {err}");
}

#[test]
fn crash_test_json_has_every_count() {
    let out = ok(&["crash-test", "--states", "300", "--jobs", "1", "--json"]);
    let json: serde_json::Value = serde_json::from_str(out.trim()).expect("one object");
    for name in ["workloads", "cuts", "states", "recovered", "distinct_recovered", "lost", "torn"] {
        assert!(json[name].as_u64().is_some_and(|n| n > 0), "{name}: {json}");
    }
    assert!(json["states"].as_u64() >= Some(300) && json["violation"].is_null(), "{json}");
    let of = |class: &str, count: &str| json["classes"][class][count].as_u64();
    let counts = CLASSES.iter().map(|class| of(class.name, "states").expect("a count"));
    assert_eq!(Some(counts.sum::<u64>()), json["states"].as_u64(), "{json}");
}

/// Only `--seconds` ends it here. It prints progress meanwhile.
#[test]
fn crash_test_ends_at_its_time() {
    let (out, err, status) = said(&["crash-test", "--seconds", "3"]);
    assert_eq!(status, Some(0), "{out}");
    // Volumes log failures of their disks there, too.
    assert!(err.lines().any(|line| line.contains(" states ")), "{err}");
}

/// An injected fault ends it with status 1. The command that it prints shows the violation again,
/// and shows none without the fault.
#[test]
fn crash_test_finds_and_repeats_injected_fault() {
    let (out, err, status) =
        said(&["crash-test", "--plant", "ack-before-flush", "--states", "50000"]);
    assert_eq!(status, Some(1), "{out}{err}");
    assert!(out.lines().last().is_some_and(|line| line.starts_with("1 violation: ")), "{out}");
    let line = |out: &str, start: &str| {
        let found = out.lines().find_map(|line| line.strip_prefix(start).map(str::to_string));
        found.unwrap_or_else(|| panic!("no `{start}`: {out}"))
    };
    let command = line(&out, "again: forebay ").replace('\'', "");
    let words: Vec<&str> = command.split(' ').collect();
    let steps = words[words.iter().position(|word| *word == "--steps").expect("steps") + 1];
    assert!(steps.split(',').count() <= 6, "{command}");
    let (again, _, status) = said(&words);
    assert_eq!(status, Some(1), "{command}: {again}");
    assert_eq!(line(&again, "violation at "), line(&out, "violation at "), "{command}");
    let plain: Vec<&str> = words[..words.len() - 2].to_vec();
    let (clean, err, status) = said(&plain);
    // Without the fault the flush is awaited, so the moment may not exist.
    let is_elsewhere = status == Some(2) && err.contains("have no such moment");
    assert!(status == Some(0) || is_elsewhere, "{plain:?}: {clean}{err}");
}

#[test]
fn crash_test_arguments_without_sense_end_with_status_2() {
    for (words, why) in [
        (&["--at", "1:+"][..], "--steps"),
        (&["--plant", "x"], "--plant"),
        (&["--seconds", "0"], "--seconds"),
        (&["--case", "1", "--steps", "0,999"], "no step 999"),
        (&["--case", "1", "--steps", "0", "--at", "99999:+"], "no such moment"),
        (&["--case", "1", "--steps", "0", "--at", "0:++++++++++"], "no such moment"),
    ] {
        let words: Vec<&str> = ["crash-test"].iter().chain(words).copied().collect();
        let (out, err, status) = said(&words);
        assert!(status == Some(2) && err.contains(why), "{words:?}: {out}{err}");
    }
}
