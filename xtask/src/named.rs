//! Source files that no module names compile nowhere, and their tests run nowhere. Test programs:
//! one for each crate.
//!
//! A file below `src/` or in a folder of `tests/` must be named by a `mod` line of its parent, or
//! by a `#[path]` of its test program.

use crate::Findings;
use std::path::Path;

/// Test programs in addition to the suite of a crate: an allocator, a compiler flag or the state of
/// a process is theirs alone.
const PROGRAMS: &[&str] = &[
    "crates/base/tests/io_flusher.rs",
    "crates/base/tests/pool.rs",
    "crates/block/tests/allocs.rs",
    "crates/block/tests/lock.rs",
    "crates/iomap/tests/allocs.rs",
    "crates/lfs/tests/fsck_memory.rs",
    "crates/live/tests/hostile.rs",
];

/// Checks the Rust file at `path`, which is `name` from the root of the tree.
pub fn check(root: &Path, path: &Path, name: &str, findings: &mut Findings) {
    let parts: Vec<&str> = name.split('/').collect();
    match parts.as_slice() {
        ["crates", _, "tests", file] => check_program(name, file, findings),
        ["crates", _, "tests", "main.rs", ..] => {}
        ["crates", _, "tests", ..] => check_named(root, path, name, findings),
        parts if parts.contains(&"src") && !name.contains("/src/bin/") => {
            check_named(root, path, name, findings);
        }
        _ => {}
    }
}

fn check_program(name: &str, file: &str, findings: &mut Findings) {
    if file == "shuttle.rs" || PROGRAMS.contains(&name) {
        return;
    }
    findings.push(format!(
        "{name}: a test program of its own links the whole crate again; move it to tests/suite/{file} and \
         write `mod {};` in the main.rs there (a crate's suite may have another name)",
        file.trim_end_matches(".rs")
    ));
}

fn check_named(root: &Path, path: &Path, name: &str, findings: &mut Findings) {
    let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    if matches!(stem.as_str(), "lib" | "main" | "build") {
        return;
    }
    let (module, folder) = match stem.as_str() {
        "mod" => (folder_name(path), path.parent().and_then(Path::parent)),
        _ => (stem, path.parent()),
    };
    let Some(folder) = folder else { return };
    let above = folder.parent().map(|p| p.join(format!("{}.rs", base(folder))));
    let parents = ["lib.rs", "main.rs", "mod.rs"].map(|f| folder.join(f));
    let declared = parents.into_iter().chain(above).filter(|p| p.starts_with(root)).any(|p| {
        let text = std::fs::read_to_string(p).unwrap_or_default();
        text.lines().any(|l| l.trim_end().ends_with(&format!("mod {module};")))
    });
    if !declared && !named_by_path(path) {
        findings.push(format!("{name}: no `mod {module};` names it, so it is compiled nowhere"));
    }
}

/// Whether the `main.rs` of a folder above names the file by its path.
fn named_by_path(path: &Path) -> bool {
    path.ancestors().skip(2).take(3).any(|folder| {
        let text = std::fs::read_to_string(folder.join("main.rs")).unwrap_or_default();
        let below = path.strip_prefix(folder).unwrap_or(path).display().to_string();
        text.contains(&format!("#[path = \"{below}\"]"))
    })
}

/// Name of the folder that a file lies in.
pub fn folder_name(path: &Path) -> String {
    path.parent().map(base).unwrap_or_default()
}

fn base(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_program_next_to_suite_is_a_finding() {
        let mut findings = Findings::new();
        for name in ["crates/cache/tests/shuttle.rs", "crates/block/tests/lock.rs"] {
            check(Path::new("/nowhere"), &Path::new("/nowhere").join(name), name, &mut findings);
        }
        assert!(findings.is_empty(), "{findings:?}");
        let name = "crates/cli/tests/more.rs";
        check(Path::new("/nowhere"), &Path::new("/nowhere").join(name), name, &mut findings);
        assert!(findings[0].contains("tests/suite/more.rs"), "{findings:?}");
    }

    #[test]
    fn test_module_that_no_file_names_is_a_finding() {
        let root = std::env::temp_dir().join(format!("forebay-xtask-{}", std::process::id()));
        let suite = root.join("crates/cli/tests/suite");
        std::fs::create_dir_all(suite.join("common")).unwrap();
        let main = "mod a;\n#[path = \"common/b.rs\"]\nmod b;\n";
        std::fs::write(suite.join("main.rs"), main).unwrap();
        let mut findings = Findings::new();
        for file in ["main.rs", "a.rs", "common/b.rs", "c.rs", "common/d.rs"] {
            let name = format!("crates/cli/tests/suite/{file}");
            check(&root, &suite.join(file), &name, &mut findings);
        }
        std::fs::remove_dir_all(&root).unwrap();
        assert_eq!(findings.len(), 2, "{findings:?}");
        assert!(findings[0].contains("suite/c.rs: no `mod c;`"), "{findings:?}");
    }
}
