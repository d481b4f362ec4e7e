//! The public interface, kept as text: a change of it is a change of `tests/interface.txt`, to be
//! seen in review. It is read out of the formatted sources, which needs neither a nightly compiler
//! nor a crate that follows the unstable JSON of rustdoc; changes inside re-exported types are not
//! seen.
//!
//! `FOREBAY_RECORD=1 cargo test -p forebay --test library interface` writes the file anew.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// All source files below a folder.
fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => sources(&path, found),
            false => found.push(path),
        }
    }
}

/// The statements that begin with `start`, each on one line.
fn statements(text: &str, start: &str, ends: &[char]) -> Vec<String> {
    let mut found = Vec::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if !line.starts_with(start) || line.trim_start().starts_with("//") {
            continue;
        }
        let mut whole = line.trim().to_string();
        let is_call = whole.contains("fn ");
        let ends = if is_call { &['{', ';'][..] } else { ends };
        while !whole.ends_with(ends) {
            let Some(next) = lines.next() else { break };
            whole = format!("{whole} {}", next.trim());
        }
        found.push(whole.trim_end_matches([' ', '{', ';']).to_string());
    }
    found
}

/// The name behind `struct`, `enum` and the like, or the type that an `impl` is for.
fn name_of(header: &str) -> &str {
    let words: Vec<&str> = header.split([' ', '(', '{', ';', ':']).collect();
    let at = |word| words.iter().position(|w| *w == word);
    let behind = at("for").or(at("impl")).or(at("struct")).or(at("enum")).or(at("fn"));
    behind.or(at("const")).and_then(|at| words.get(at + 1)).map_or("", |name| name)
}

/// What a file adds to the interface of the exported names.
fn public(text: &str, exported: &BTreeSet<String>, found: &mut BTreeSet<String>) {
    let text = text.split("\n#[cfg(test)]").next().unwrap();
    let mut block: Option<String> = None;
    let mut body = String::new();
    for line in text.lines() {
        match &block {
            Some(name) if line == "}" => {
                let of_enum = name.starts_with("pub enum");
                let start = if of_enum { "    " } else { "    pub " };
                let ends = if of_enum { &[','][..] } else { &['{', ';', ','][..] };
                // The setters that a macro writes are fields here, without `pub`.
                let start = if name.contains('!') { "    " } else { start };
                let short = name.rsplit(' ').next().unwrap().to_string();
                for item in statements(&body, start, ends) {
                    let is_item = !item.starts_with(['/', '#', '}']);
                    if is_item && !item.starts_with("pub(") {
                        found.insert(format!("{short}: {}", item.trim_end_matches(',')));
                    }
                }
                let options =
                    body.split("    options! {\n").nth(1).and_then(|b| b.split("    }\n").next());
                for item in statements(options.unwrap_or(""), "        ", &[';']) {
                    if !item.starts_with('/') {
                        found.insert(format!("{short}: {item}"));
                    }
                }
                block = None;
            }
            Some(_) => {
                body.push_str(line);
                body.push('\n');
            }
            None => {
                let header = line.trim_end_matches([' ', '{']);
                let name = match header.strip_prefix("setters! { ") {
                    Some(of) => of.trim_end_matches(':'),
                    None => name_of(header),
                };
                let opens = ["pub ", "impl ", "setters!"].iter().any(|w| line.starts_with(w));
                if !opens || line.starts_with("pub(") || !exported.contains(name) {
                    continue;
                }
                found.insert(header.trim_end_matches(';').to_string());
                if line.ends_with(['{', ':']) && !line.contains(" fn ") {
                    block = Some(match line.starts_with("pub enum") {
                        true => format!("pub enum {name}"),
                        false if line.starts_with("setters!") => format!("setters! {name}"),
                        false => name.to_string(),
                    });
                    body.clear();
                }
            }
        }
    }
}

#[test]
fn public_interface_is_the_recorded_one() {
    let lib = fs::read_to_string(root().join("src/lib.rs")).unwrap();
    let uses = statements(&lib, "pub use ", &[';']);
    let names = uses.iter().flat_map(|line| line.split(|c: char| !c.is_alphanumeric() && c != '_'));
    let names = names.filter(|name| !name.is_empty());
    let exported: BTreeSet<String> = names.map(str::to_string).collect();
    let mut found: BTreeSet<String> = uses.into_iter().collect();
    let mut files = Vec::new();
    sources(&root().join("src"), &mut files);
    for file in files {
        public(&fs::read_to_string(file).unwrap(), &exported, &mut found);
    }
    let text: String = found.iter().map(|line| format!("{line}\n")).collect();
    for must in
        ["File: pub fn read_at(", "OpenOptions: pub fn open_in(", "OpenOptions: size_limit: u64"]
    {
        assert!(text.contains(must), "the sources are read wrongly: no `{must}` in\n{text}");
    }
    let inner = ["forebay_base", "forebay_block", "forebay_cache", "forebay_iomap", "forebay_lfs"];
    let leaks = found.iter().filter(|line| !line.starts_with("pub use "));
    let leaks: Vec<_> = leaks.filter(|line| inner.iter().any(|c| line.contains(c))).collect();
    assert!(leaks.is_empty(), "types of inner crates that are not re-exported: {leaks:?}");
    let path = root().join("tests/interface.txt");
    if std::env::var_os("FOREBAY_RECORD").is_some() {
        return fs::write(path, text).unwrap();
    }
    let recorded = fs::read_to_string(path).unwrap();
    let recorded: BTreeSet<String> = recorded.lines().map(str::to_string).collect();
    let new: Vec<_> = found.difference(&recorded).collect();
    let gone: Vec<_> = recorded.difference(&found).collect();
    assert!(new.is_empty() && gone.is_empty(), "new: {new:#?}\ngone: {gone:#?}");
}
