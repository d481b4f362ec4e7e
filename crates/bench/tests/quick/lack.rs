//! What a machine lacks is named as not run. A part of the bench itself that is missing is an
//! error.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The example `bench`, which is built with this test.
fn example() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    test.parent().and_then(Path::parent).unwrap().join("examples/bench")
}

fn text(output: &Output) -> String {
    let texts = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
    texts.concat()
}

/// The story: a bench whose helper process did not start said "not run: no program to start", and
/// exited with 0. The helper is the program itself, whose file is gone here.
#[test]
fn helper_program_that_is_gone_fails_the_bench() {
    let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("gone");
    std::fs::create_dir_all(&dir).unwrap();
    let program = dir.join("bench");
    std::fs::copy(example(), &program).unwrap();
    let script = "exec 3< \"$0\" && rm \"$0\" && exec /proc/self/fd/3 volume --quick --part open \
                  --dir \"$1\"";
    let output = Command::new("sh").args(["-c", script]).args([&program, &dir]).output().unwrap();
    let said = text(&output);
    assert!(!program.exists() && said.contains("no program to start"), "{said}");
    assert_eq!(output.status.code(), Some(1), "{said}");
    std::fs::remove_dir_all(&dir).unwrap();
}

/// A rival or a program that is not installed stays a named lack, and the bench exits with 0.
#[test]
fn missing_program_is_named_and_bench_continues() {
    let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("alone");
    std::fs::create_dir_all(&dir).unwrap();
    let program = dir.join("bench");
    std::fs::copy(example(), &program).unwrap();
    let mut command = Command::new(&program);
    let output = command.args(["start", "--quick", "--dir"]).arg(&dir).env("PATH", &dir);
    let output = output.env_remove("FOREBAY_BIN").output().unwrap();
    let said = text(&output);
    assert!(said.contains("not run  start: find forebay"), "{said}");
    assert_eq!(output.status.code(), Some(0), "{said}");
    // Named, but not there: that is a mistake of the caller.
    let mut command = Command::new(&program);
    let output = command.args(["start", "--quick", "--dir"]).arg(&dir);
    let output = output.env("FOREBAY_BIN", dir.join("none")).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", text(&output));
    std::fs::remove_dir_all(&dir).unwrap();
}
