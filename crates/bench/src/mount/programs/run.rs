//! Runs programs to their end.

use crate::report::lack::not_started;
use forebay_base::{Error, ErrorKind, Result};
use std::ffi::OsStr;
use std::fs::File;
use std::process::{Command, Stdio};

/// Runs a program without input; returns its output. The error contains its messages.
pub fn run(command: &mut Command) -> Result<String> {
    run_to(command, &[0])
}

/// As [`run`], for a program that may end with one of several statuses.
pub fn run_to(command: &mut Command, statuses: &[i32]) -> Result<String> {
    complete(command.stdin(Stdio::null()), statuses)
}

/// As [`run`], with a file as its input.
pub fn run_from(command: &mut Command, input: File) -> Result<String> {
    complete(command.stdin(input), &[0])
}

fn is_of_git(name: &OsStr) -> bool {
    name.as_encoded_bytes().starts_with(b"GIT_")
}

fn complete(command: &mut Command, statuses: &[i32]) -> Result<String> {
    let name = command.get_program().to_string_lossy().into_owned();
    // A hook of git sets `GIT_DIR`: these programs must not work on that repository.
    for (name, _) in std::env::vars_os().filter(|(name, _)| is_of_git(name)) {
        command.env_remove(name);
    }
    // No messages in another language, and no settings of the user who runs the bench.
    command.env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_CONFIG_NOSYSTEM", "1");
    command.env("LC_ALL", "C").env("MAKEFLAGS", "").env_remove("TAR_OPTIONS");
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().map_err(|e| not_started(&name, e))?;
    let output = child.wait_with_output().map_err(|e| Error::from_io("wait", e))?;
    if output.status.code().is_some_and(|code| statuses.contains(&code)) {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let text = format!("{}: {}", output.status, said.trim());
    Err(Error::new(ErrorKind::Io, "run", text).with_path(name))
}
