//! G1: man pages and completions have what `--help` has: each command, and each of its options.

use crate::common::Folder;
use std::collections::BTreeSet;

/// Commands that `forebay --help` lists.
fn commands(folder: &Folder) -> Vec<String> {
    let help = folder.ok(&["--help"]);
    let list = help.split("Commands:").nth(1).and_then(|t| t.split("\n\n").next()).expect("a list");
    let first = |line: &str| line.split_whitespace().next().map(str::to_string);
    list.lines().filter_map(first).filter(|name| name != "help").collect()
}

fn words(text: &str) -> BTreeSet<String> {
    text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '-'))
        .filter(|word| word.starts_with("--") && word.len() > 2)
        .map(str::to_string)
        .collect()
}

/// Long options at the beginning of a line of `--help`.
fn options(folder: &Folder, command: &str) -> BTreeSet<String> {
    // These are commands of forebay-lab, whose options it has.
    if matches!(command, "bench" | "crash-test") {
        return BTreeSet::new();
    }
    let help = folder.ok(&[command, "--help"]);
    let lines = help.lines().map(str::trim_start).filter(|line| line.starts_with('-'));
    lines.filter_map(|line| words(line.split("  ").next().unwrap_or(line)).pop_last()).collect()
}

/// The long options that a shell's file has for one command.
fn words_of(shell: &str, text: &str, command: &str) -> BTreeSet<String> {
    let block = |from: &str| -> Vec<&str> {
        let lines = text.lines().map(str::trim).skip_while(|line| *line != from);
        let own: Vec<&str> = lines.take_while(|line| *line != ";;").collect();
        assert!(!own.is_empty(), "{shell}: {command}: no line {from}");
        own
    };
    match shell {
        "bash" => {
            let own = block(&format!("forebay__subcmd__{})", command.replace('-', "__subcmd__")));
            words(own.iter().find(|line| line.contains("opts=")).unwrap_or(&""))
        }
        "zsh" => words(&block(&format!("({command})")).join("\n")),
        _ => {
            let own = format!("\"__fish_forebay_using_subcommand {command}\"");
            let lines = text.lines().filter(|line| line.contains(&own));
            let long = lines.filter_map(|line| line.split(" -l ").nth(1)?.split(' ').next());
            long.map(|name| format!("--{name}")).collect()
        }
    }
}

#[test]
fn g1_man_pages_and_completions_have_what_help_has() {
    let folder = Folder::new();
    folder.ok(&["generate", "out"]);
    let read = |path: &str| {
        std::fs::read_to_string(folder.path("out").join(path))
            .unwrap_or_else(|e| panic!("{path}: {e}"))
    };
    let shells = ["forebay.bash", "_forebay", "forebay.fish"]
        .map(|name| read(&format!("completions/{name}")).replace('\\', ""));
    let main = read("man/forebay.1");
    let all = commands(&folder);
    assert!(all.len() >= 20, "{all:?}");
    for command in &all {
        assert!(
            main.contains(&format!("forebay\\-{}(1)", command.replace('-', "\\-"))),
            "{command}"
        );
        let mut page = read(&format!("man/forebay-{command}.1"));
        for font in ["\\fB", "\\fI", "\\fR"] {
            page = page.replace(font, " ");
        }
        let page = page.replace('\\', "");
        let shown = words(&page);
        let wanted = options(&folder, command);
        let missing: Vec<_> = wanted.difference(&shown).collect();
        assert!(missing.is_empty(), "man page of {command}: {missing:?}");
        for (shell, at) in shells.iter().zip(["bash", "zsh", "fish"]) {
            // What the shell is told of this command: `--json` of another one is no help.
            let own = words_of(at, shell, command);
            let missing: Vec<_> = wanted.difference(&own).collect();
            assert!(missing.is_empty(), "{at}: {command}: {missing:?}");
        }
    }
    let pages = std::fs::read_dir(folder.path("out/man")).unwrap().count();
    assert_eq!(pages, all.len() + 1, "a page for each, and nothing that is hidden");
    // What the shell reads is well formed.
    let mut bash = std::process::Command::new("bash");
    bash.arg("-n").arg(folder.path("out/completions/forebay.bash"));
    assert!(bash.status().expect("bash").success());
}
