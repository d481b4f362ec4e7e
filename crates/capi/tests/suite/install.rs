//! `scripts/install-c`, and the examples against what it installed, shared and static.
//!
//! No locks.

use crate::build::{Dir, STRICT, library, ran, root};
use std::fs;
use std::path::Path;
use std::process::Command;

fn installed(dir: &Dir) {
    let script = root().join("../../scripts/install-c");
    let mut install = Command::new(script);
    install.env("PREFIX", "/opt/forebay").env("DESTDIR", dir.path("dest"));
    for name in ["LIBDIR", "INCLUDEDIR"] {
        install.env_remove(name);
    }
    ran(install.arg(library().parent().unwrap()));
}

/// The examples, built as their Makefile does.
fn made(dir: &Dir, name: &str, more: &[&str]) -> std::path::PathBuf {
    let examples = dir.path(name);
    ran(Command::new("cp").arg("-r").arg(root().join("../../examples/c")).arg(&examples));
    let mut make = Command::new("make");
    make.arg("-C").arg(&examples).args(["CC=cc", "CFLAGS=-std=gnu99 -Wall -Wextra -Werror"]);
    make.env("PKG_CONFIG_PATH", dir.path("dest/opt/forebay/lib/pkgconfig"));
    make.env("PKG_CONFIG_SYSROOT_DIR", dir.path("dest")).env_remove("MAKEFLAGS");
    ran(make.args(more));
    examples
}

/// The program of forebay(3), without the escapes of troff.
fn example_of_page() -> String {
    let page = fs::read_to_string(root().join("forebay.3")).unwrap();
    let examples = page.split(".SH EXAMPLES").nth(1).expect("the section");
    let program = examples.split(".nf\n").nth(1).and_then(|text| text.split(".fi\n").next());
    program.expect("a program").replace("\\e", "\\")
}

fn example_of_page_runs(dir: &Dir, dest: &Path) {
    let (source, program) = (dir.path("page.c"), dir.path("page"));
    fs::write(&source, example_of_page()).unwrap();
    let mut compile = Command::new("cc");
    compile.arg("-std=c99").args(STRICT).arg("-I").arg(dest.join("include")).arg(source);
    ran(compile.arg("-o").arg(&program).arg("-L").arg(dest.join("lib")).arg("-lforebay"));
    fs::write(dir.path("disk.img"), vec![3; 1 << 20]).unwrap();
    let mut run = Command::new(&program);
    run.current_dir(dir.path("")).env("LD_LIBRARY_PATH", dest.join("lib"));
    assert_eq!(ran(&mut run), "0 of 256 blocks are cached\n");
}

/// The program `sqlite3` finds the extension by its path, and the extension the library next to it.
fn extension_finds_the_library(dir: &Dir) {
    let load = ".load opt/forebay/lib/libforebay_sqlite.so";
    let mut sqlite = Command::new("sqlite3");
    sqlite.args(["-batch", ":memory:", load, ".open file:a.db?vfs=forebay", ".vfsname"]);
    sqlite.env_remove("LD_LIBRARY_PATH").current_dir(dir.path("dest"));
    assert_eq!(ran(&mut sqlite), "forebay\n");
}

fn ran_with(dir: &Dir, program: &Path, file: &Path) -> String {
    let libraries = dir.path("dest/opt/forebay/lib");
    ran(Command::new(program).arg(file).env("LD_LIBRARY_PATH", libraries))
}

#[test]
fn install_has_what_programs_need() {
    let dir = Dir::new("install");
    installed(&dir);
    let dest = dir.path("dest/opt/forebay");
    let version = env!("CARGO_PKG_VERSION");
    let shared = fs::canonicalize(dest.join("lib/libforebay.so")).unwrap();
    assert!(shared.ends_with(format!("libforebay.so.{version}")), "{}", shared.display());
    assert_eq!(
        fs::read_link(dest.join("lib/libforebay.so")).unwrap().as_os_str(),
        "libforebay.so.0"
    );
    let pc = fs::read_to_string(dest.join("lib/pkgconfig/forebay.pc")).unwrap();
    assert!(pc.contains("prefix=/opt/forebay\n") && pc.contains(&format!("Version: {version}\n")));
    assert!(!pc.contains('@'), "{pc}");
    for name in ["lib/libforebay_sqlite.so", "include/forebay_sqlite.h"] {
        assert!(dest.join(name).is_file(), "{name}");
    }
    extension_finds_the_library(&dir);
    let page = dest.join("share/man/man3/forebay.3");
    let man = ran(Command::new("man").env("LC_ALL", "C").arg(&page).env("MANWIDTH", "80"));
    for name in fs::read_to_string(root().join("symbols.txt")).unwrap().lines() {
        assert!(man.contains(name), "forebay(3) does not name {name}");
    }
    example_of_page_runs(&dir, &dest);
    for option in ["", "STATIC=1"] {
        let examples =
            made(&dir, &format!("examples{option}"), &[option][option.is_empty() as usize..]);
        let file = dir.path("file");
        fs::write(&file, vec![3; 1 << 20]).unwrap();
        let text = ran_with(&dir, &examples.join("uncached"), &file);
        assert_eq!(text, "read 1048576 bytes; 1 of 256 blocks are cached\n");
        fs::write(&file, "a line\n".repeat(20_000)).unwrap();
        assert_eq!(ran_with(&dir, &examples.join("pin"), &file), "20000 lines\n");
        let image = dir.path(&format!("image{option}"));
        assert_eq!(ran_with(&dir, &examples.join("volume"), &image), "log\n");
        let linked = ran(Command::new("ldd").arg(examples.join("uncached")));
        assert_eq!(linked.contains("libforebay"), option.is_empty(), "{linked}");
    }
}
