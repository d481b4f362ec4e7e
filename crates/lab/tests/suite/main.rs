//! Tests of the program `forebay-lab`: one topic per module.
//!
//! No locks.

mod bench;
mod crash_test;
mod generated;
mod help_matches_docs;

use std::process::{Command, Output, Stdio};

/// `forebay-lab` with these words, run to its end.
fn lab(words: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_forebay-lab"));
    command.args(words).env_remove("FOREBAY_LOG").stdin(Stdio::null());
    command.output().expect("it starts")
}

/// Standard output, standard error and exit status of `forebay-lab` with these words.
fn said(words: &[&str]) -> (String, String, Option<i32>) {
    let output = lab(words);
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("UTF-8");
    (text(output.stdout), text(output.stderr), output.status.code())
}

/// Standard output of a run that must succeed.
fn ok(words: &[&str]) -> String {
    let (out, err, status) = said(words);
    assert_eq!(status, Some(0), "{words:?}: {err}");
    out
}
