//! `forebay crash-test`: it ends when it was told to, says what it has seen, and finds a mistake, in few
//! steps and by a command that repeats it.

use crate::common::Folder;
use forebay_crashtest::CLASSES;
use std::process::Output;

fn text(output: &Output) -> (String, String, Option<i32>) {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("UTF-8");
    (text(&output.stdout), text(&output.stderr), output.status.code())
}

#[test]
fn nothing_is_wrong_and_the_last_line_says_what_was_seen() {
    let folder = Folder::new();
    let output = folder.forebay(&["crash-test", "--states", "400", "--jobs", "2", "--seed", "7"]);
    let (out, err, status) = text(&output);
    assert_eq!(status, Some(0), "{out}{err}");
    let last = out.lines().last().expect("a summary");
    assert!(last.starts_with("no violation: ") && last.contains(" crash states, "), "{last}");
    let (_, classes) = last.split_once("; classes: ").expect("the classes of runs");
    assert_eq!(classes.matches(" states, ").count(), CLASSES.len(), "{last}");
    assert!(CLASSES.iter().all(|class| classes.contains(class.name)), "{last}");
    assert!(err.lines().all(|line| line.contains("states")), "progress: {err}");
}

#[test]
fn json_has_every_count() {
    let folder = Folder::new();
    let out = folder.ok(&["crash-test", "--states", "300", "--jobs", "1", "--json"]);
    let json: serde_json::Value = serde_json::from_str(out.trim()).expect("one object");
    for name in ["workloads", "cuts", "states", "recovered", "distinct_recovered", "lost", "torn"] {
        assert!(json[name].as_u64().is_some_and(|n| n > 0), "{name}: {json}");
    }
    assert!(json["states"].as_u64() >= Some(300) && json["violation"].is_null(), "{json}");
    let of = |class: &str, count: &str| json["classes"][class][count].as_u64();
    let counts = CLASSES.iter().map(|class| of(class.name, "states").expect("a count"));
    assert_eq!(Some(counts.sum::<u64>()), json["states"].as_u64(), "{json}");
}

/// It ends by its time, which is all that ends it here, and says meanwhile how far it has come.
#[test]
fn a_time_is_kept() {
    let folder = Folder::new();
    let (out, err, status) = text(&folder.forebay(&["crash-test", "--seconds", "3"]));
    assert_eq!(status, Some(0), "{out}");
    // Beside it the volumes say what they make of disks that fail.
    assert!(err.lines().any(|line| line.contains(" states ")), "{err}");
}

/// A planted mistake ends it with status 1; what it prints as a command shows the same again, and without
/// the mistake nothing.
#[test]
fn a_mistake_is_found_in_few_steps_and_repeats() {
    let folder = Folder::new();
    let (out, err, status) =
        text(&folder.forebay(&["crash-test", "--plant", "ack-before-flush", "--states", "50000"]));
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
    let (again, _, status) = text(&folder.forebay(&words));
    assert_eq!(status, Some(1), "{command}: {again}");
    assert_eq!(line(&again, "violation at "), line(&out, "violation at "), "{command}");
    let plain: Vec<&str> = words[..words.len() - 2].to_vec();
    let (clean, err, status) = text(&folder.forebay(&plain));
    // Where a flush is waited for, the same moment may not come.
    let is_elsewhere = status == Some(2) && err.contains("have no such moment");
    assert!(status == Some(0) || is_elsewhere, "{plain:?}: {clean}{err}");
}

#[test]
fn nonsense_is_refused() {
    let folder = Folder::new();
    for (words, said) in [
        (&["--at", "1:+"][..], "--steps"),
        (&["--plant", "x"], "--plant"),
        (&["--seconds", "0"], "--seconds"),
        (&["--case", "1", "--steps", "0,999"], "no step 999"),
        (&["--case", "1", "--steps", "0", "--at", "99999:+"], "no such moment"),
        (&["--case", "1", "--steps", "0", "--at", "0:++++++++++"], "no such moment"),
    ] {
        let words: Vec<&str> = ["crash-test"].iter().chain(words).copied().collect();
        let (out, err, status) = text(&folder.forebay(&words));
        assert!(status == Some(2) && err.contains(said), "{words:?}: {out}{err}");
    }
}
