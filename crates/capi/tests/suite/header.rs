//! `forebay.h`: the one that cbindgen makes, and clean in C99 and C++17.
//!
//! No locks.

use crate::build::{Dir, STRICT, ran, root};
use std::fs;
use std::path::PathBuf;
use std::process::Command;

/// cbindgen, which scripts/setup installs into the target folder.
fn cbindgen() -> PathBuf {
    let program = std::env::current_exe().unwrap();
    let tools = |folder: &std::path::Path| folder.join("tools/bin/cbindgen");
    let found = program.ancestors().map(tools).find(|path| path.is_file());
    found.unwrap_or_else(|| PathBuf::from("cbindgen"))
}

#[test]
fn header_is_the_one_of_the_sources() {
    let mut command = Command::new(cbindgen());
    let made = ran(command.args(["--config", "cbindgen.toml", "--quiet"]).current_dir(root()));
    let made = made.lines().map(|line| line.trim_end().to_string() + "\n").collect::<String>();
    let path = root().join("forebay.h");
    if std::env::var("FOREBAY_RECORD").is_ok() {
        fs::write(&path, &made).unwrap();
    }
    let committed = fs::read_to_string(&path).unwrap();
    assert!(made == committed, "FOREBAY_RECORD=1 writes forebay.h anew:\n{made}");
}

#[test]
fn header_is_clean_in_c99_and_cpp17() {
    let dir = Dir::new("header");
    let source = "#include \"forebay.h\"\n#include \"forebay.h\"\n\
        int main(void) { return fby_abi_version() != FBY_ABI_VERSION; }\n";
    for (compiler, standard, name) in [("cc", "c99", "h.c"), ("c++", "c++17", "h.cpp")] {
        let path = dir.path(name);
        fs::write(&path, source).unwrap();
        let mut compile = Command::new(compiler);
        compile.arg(format!("-std={standard}")).args(STRICT).args(["-Wconversion", "-c", "-I"]);
        ran(compile.arg(root()).arg(path).arg("-o").arg(dir.path("h.o")));
    }
}
