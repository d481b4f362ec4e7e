//! `forebay bench` and `forebay crash-test` execute `forebay-lab`: the one in the directory of the
//! program's file, else the one in `PATH`. Without any, an error says where to get it. The program
//! `forebay` itself holds no bench, no rival and no injected fault.

use crate::common::{Folder, output, stderr, tool};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const FOREBAY: &str = env!("CARGO_BIN_EXE_forebay");

/// A directory with a copy of the program, and without the `forebay-lab` of the build.
fn installed(folder: &Folder) -> PathBuf {
    let bin = folder.path("bin");
    std::fs::create_dir(&bin).unwrap();
    tool("cp", &[FOREBAY, bin.join("forebay").to_str().unwrap()]);
    bin
}

/// A `forebay-lab` in that directory: this shell script. Another process writes it: a test that
/// starts a program meanwhile would inherit the open file, and make the script busy.
fn put_lab(dir: &Path, script: &str) {
    std::fs::create_dir_all(dir).unwrap();
    let path = dir.join("forebay-lab");
    let write = "printf '#!/bin/sh\\n%s\\n' \"$1\" >\"$0\" && chmod 755 \"$0\"";
    tool("sh", &["-c", write, path.to_str().unwrap(), script]);
}

fn forebay(bin: &Path, path: &Path, words: &[&str]) -> Command {
    let mut command = Command::new(bin.join("forebay"));
    // The scripts need nothing of it but the shell's own commands.
    command.args(words).env("PATH", path).stdin(Stdio::null());
    command
}

#[test]
fn lab_program_gets_arguments_and_streams_returns_status() {
    let folder = Folder::new();
    let bin = installed(&folder);
    put_lab(&bin, "printf '[%s]' \"$@\"; read line; echo \" $line\"; echo said >&2; exit 7");
    put_lab(&folder.path("elsewhere"), "exit 1");
    for (words, arguments) in [
        (&["bench", "hit", "--quick", "--dir", "a b"][..], "[bench][hit][--quick][--dir][a b]"),
        (&["bench", "--help"], "[bench][--help]"),
        (&["crash-test", "--seed", "7"], "[crash-test][--seed][7]"),
        (&["crash-test", "--help"], "[crash-test][--help]"),
        (&["-vv", "crash-test"], "[-v][-v][crash-test]"),
    ] {
        let input = folder.path("input");
        std::fs::write(&input, "from standard input\n").unwrap();
        let mut command = forebay(&bin, &folder.path("elsewhere"), words);
        command.stdin(std::fs::File::open(&input).unwrap());
        let output = output(command);
        let out = String::from_utf8_lossy(&output.stdout);
        assert_eq!(out, format!("{arguments} from standard input\n"), "{words:?}");
        assert_eq!((stderr(&output).as_str(), output.status.code()), ("said\n", Some(7)));
    }
}

/// The process is the same one, so a signal to it is a signal to `forebay-lab`.
#[test]
fn lab_program_on_path_is_the_process_that_was_started() {
    let folder = Folder::new();
    let bin = installed(&folder);
    let elsewhere = folder.path("elsewhere");
    put_lab(&elsewhere, "echo $$; kill -TERM $$; exit 3");
    let mut child =
        forebay(&bin, &elsewhere, &["bench", "hit"]).stdout(Stdio::piped()).spawn().unwrap();
    let (pid, mut said) = (child.id(), String::new());
    let status = crate::common::wait(&mut child);
    std::io::Read::read_to_string(&mut child.stdout.take().unwrap(), &mut said).unwrap();
    assert_eq!(said.trim(), pid.to_string());
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(15));
}

#[test]
fn lab_program_missing_is_named_with_where_to_get_it() {
    let folder = Folder::new();
    let bin = installed(&folder);
    for command in ["bench", "crash-test"] {
        let output = output(forebay(&bin, &folder.path("run"), &[command, "--help"]));
        let text = stderr(&output);
        assert_eq!(output.status.code(), Some(3), "{text}");
        assert!(
            text.starts_with(&format!("forebay: {command}: the program forebay-lab ")),
            "{text}"
        );
        assert!(
            text.contains("the package forebay-lab") && text.contains("`make build`"),
            "{text}"
        );
    }
}

/// Words that benches, rivals and the crash test bring with them are not in `forebay`.
#[test]
fn program_holds_no_bench_no_rival_and_no_crash_test() {
    let program = std::fs::read(FOREBAY).unwrap();
    let holds = |word: &str| program.windows(word.len()).any(|bytes| bytes == word.as_bytes());
    assert!(holds("forebay-lab"), "words are found");
    for word in ["nbdkit", "qemu-nbd", "pgbench", "SQLite format 3", "ack-before-flush", "__worker"]
    {
        assert!(!holds(word), "{word}");
    }
}
