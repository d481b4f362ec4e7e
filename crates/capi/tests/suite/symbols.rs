//! The interface as a linker and abidiff see it: the symbols, and the types behind them.
//!
//! No locks.

use crate::build::{Dir, STRICT, library, ran, root};
use std::fs;
use std::path::Path;
use std::process::Command;

/// Names that the library defines for others.
fn exported(library: &Path) -> Vec<String> {
    let text = ran(Command::new("nm").args(["-D", "--defined-only"]).arg(library));
    let name = |line: &str| line.split_whitespace().nth(2).map(str::to_string);
    text.lines().filter_map(name).collect()
}

#[test]
fn symbols_are_those_of_the_committed_list() {
    let mut symbols = exported(&library());
    symbols.sort();
    let path = root().join("symbols.txt");
    if std::env::var("FOREBAY_RECORD").is_ok() {
        fs::write(&path, symbols.join("\n") + "\n").unwrap();
    }
    let listed = fs::read_to_string(&path).unwrap();
    assert_eq!(symbols, listed.lines().collect::<Vec<_>>(), "see docs/guide/c-library.md");
    assert!(symbols.iter().all(|name| name.starts_with("fby_")), "{symbols:?}");
}

#[test]
fn soname_and_nodelete_are_set() {
    let dynamic = ran(Command::new("readelf").arg("-dW").arg(library()));
    assert!(dynamic.contains("soname: [libforebay.so.0]"), "{dynamic}");
    assert!(dynamic.contains("NODELETE"), "{dynamic}");
}

/// A library of empty functions with the types of the header: abidw reads types from what gcc
/// writes, and the header is compared with the Rust source elsewhere.
fn stand_in(dir: &Dir) -> std::path::PathBuf {
    let header = fs::read_to_string(root().join("forebay.h")).unwrap();
    let mut source = String::from("#include \"forebay.h\"\n");
    for part in header.split(';') {
        let part = part.rsplit("*/").next().unwrap().trim();
        let is_function = part.contains(" *fby_last_error(") || part.contains(" fby_");
        if !is_function || !part.ends_with(')') || part.contains('{') {
            continue;
        }
        source.push_str(&format!("{part} {{ __builtin_trap(); }}\n"));
    }
    let (code, library) = (dir.path("stand_in.c"), dir.path("libforebay.so.0"));
    fs::write(&code, source).unwrap();
    let mut cc = Command::new("cc");
    cc.args(["-std=gnu11", "-g", "-shared", "-fPIC", "-Wl,-soname,libforebay.so.0"]);
    cc.args(STRICT).args(["-Wno-unused-parameter", "-I"]).arg(root());
    ran(cc.arg(code).arg("-o").arg(&library));
    library
}

#[test]
fn abi_is_compatible_with_the_committed_dump() {
    let dir = Dir::new("abi");
    let library_now = stand_in(&dir);
    let mut functions = exported(&library_now);
    let mut symbols = exported(&library());
    functions.sort();
    symbols.sort();
    assert_eq!(functions, symbols, "the stand-in has every function");
    let dump = root().join("libforebay.so.0.abi");
    if std::env::var("FOREBAY_RECORD").is_ok() {
        let mut abidw = Command::new("abidw");
        abidw.args(["--no-comp-dir-path", "--no-corpus-path", "--no-show-locs", "--out-file"]);
        ran(abidw.arg(&dump).arg(&library_now));
    }
    // Ends with 0 unless something changed that is not an added symbol.
    let mut abidiff = Command::new("abidiff");
    abidiff.args(["--no-show-locs", "--no-added-syms"]);
    ran(abidiff.arg(&dump).arg(&library_now));
}
