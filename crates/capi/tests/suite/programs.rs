//! The programs of `tests/c`: under the sanitizers for addresses, leaks and undefined behaviour,
//! and under valgrind.
//!
//! No locks.

use crate::build::{Dir, compiled, ran};
use std::path::Path;
use std::process::Command;

/// Sanitizers that end the program at their first report.
pub const SANITIZED: [&str; 3] =
    ["-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer"];

fn sanitized(name: &str) {
    let dir = Dir::new(&format!("san-{name}")).with_library();
    let program = compiled(&dir, name, &SANITIZED);
    run_sanitized(&dir, &program);
}

/// Runs a program with a folder for its files.
pub fn run_sanitized(dir: &Dir, program: &Path) {
    run_sanitized_in(&dir.made("data"), program);
}

/// Runs a program in a folder that exists.
pub fn run_sanitized_in(folder: &Path, program: &Path) {
    let mut command = Command::new(program);
    command.env("ASAN_OPTIONS", "detect_leaks=1:abort_on_error=0:exitcode=99");
    command.env("UBSAN_OPTIONS", "print_stacktrace=1");
    ran(command.arg(folder));
}

fn under_valgrind(name: &str, options: &[&str]) {
    let dir = Dir::new(&format!("vg-{name}")).with_library();
    let program = compiled(&dir, name, &[]);
    run_under_valgrind(&dir, &program, options);
}

/// The children of fork(2) lose what only the parent's threads refer to: valgrind would call that
/// a leak.
pub const NO_LEAKS: &str = "--leak-check=no";

/// Runs a program with a folder for its files; more options come last.
pub fn run_under_valgrind(dir: &Dir, program: &Path, options: &[&str]) {
    let mut command = Command::new("valgrind");
    command.args(["--quiet", "--error-exitcode=99", "--leak-check=full", "--fair-sched=yes"]);
    command
        .args(["--show-leak-kinds=definite,indirect", "--errors-for-leak-kinds=definite,indirect"]);
    command.args(options);
    ran(command.env("FOREBAY_TEST_THREADS", "1").arg(program).arg(dir.made("data")));
}

#[test]
fn host_file_sanitizers_report_nothing() {
    sanitized("host_file");
}

#[test]
fn volume_sanitizers_report_nothing() {
    sanitized("volume");
}

#[test]
fn handles_sanitizers_report_nothing() {
    sanitized("handles");
}

#[test]
fn pins_sanitizers_report_nothing() {
    sanitized("pins");
}

#[test]
fn fork_sanitizers_report_nothing() {
    sanitized("fork");
}

#[test]
fn threads_sanitizers_report_nothing() {
    sanitized("threads");
}

#[test]
fn options_sanitizers_report_nothing() {
    sanitized("options");
}

#[test]
fn volume_options_sanitizers_report_nothing() {
    sanitized("volume_options");
}

#[test]
fn host_file_valgrind_reports_nothing() {
    under_valgrind("host_file", &[]);
}

/// In an optimised build `Option::filter` reads a field of `None` and lets the tag decide after
/// that. Valgrind takes this for a decision by what was never written, so it does not judge such
/// reads here.
#[test]
fn volume_valgrind_reports_nothing() {
    under_valgrind("volume", &["--undef-value-errors=no"]);
}

#[test]
fn pins_valgrind_reports_nothing() {
    under_valgrind("pins", &["--undef-value-errors=no"]);
}

#[test]
fn handles_valgrind_reports_nothing() {
    under_valgrind("handles", &[]);
}

#[test]
fn fork_valgrind_reports_nothing() {
    under_valgrind("fork", &[NO_LEAKS]);
}

#[test]
fn threads_valgrind_reports_nothing() {
    under_valgrind("threads", &[]);
}

#[test]
fn options_valgrind_reports_nothing() {
    under_valgrind("options", &[]);
}

#[test]
fn volume_options_valgrind_reports_nothing() {
    under_valgrind("volume_options", &["--undef-value-errors=no"]);
}
