//! The VFS for SQLite: in programs under the sanitizers, and loaded by the program `sqlite3`.
//!
//! No locks.

use crate::build::{Dir, STRICT, compiled_with_sqlite, linked, ran, sqlite_sources};
use crate::programs::{NO_LEAKS, SANITIZED, run_sanitized, run_sanitized_in, run_under_valgrind};
use forebay::{Cache, CacheConfig, Volume, VolumeOptions};
use std::path::PathBuf;
use std::process::Command;

fn sanitized(name: &str) {
    let dir = Dir::new(&format!("san-{name}")).with_library();
    let program = compiled_with_sqlite(&dir, name, &SANITIZED);
    run_sanitized(&dir, &program);
}

fn under_valgrind(name: &str, options: &[&str]) {
    let dir = Dir::new(&format!("vg-{name}")).with_library();
    let program = compiled_with_sqlite(&dir, name, &[]);
    run_under_valgrind(&dir, &program, options);
}

/// Each program has a small cache. The address space of a cache without `budget_max` is as large as
/// all memory, and a thread of the library may give it back after the program has ended: then the
/// search for leaks reads all of it, for minutes.
#[test]
fn sqlite_valgrind_reports_nothing() {
    for name in ["sqlite", "sqlite_folder", "sqlite_owners", "sqlite_replaced", "sqlite_stalls"] {
        under_valgrind(name, &[]);
    }
}

#[test]
fn sqlite_with_children_valgrind_reports_nothing() {
    let children = ["sqlite_children", "sqlite_images", "sqlite_journals", "sqlite_links"];
    for name in children.into_iter().chain(["sqlite_others"]) {
        under_valgrind(name, &[NO_LEAKS]);
    }
}

#[test]
fn sqlite_sanitizers_report_nothing() {
    sanitized("sqlite");
}

#[test]
fn sqlite_with_other_processes_is_busy_and_never_stale() {
    sanitized("sqlite_others");
}

#[test]
fn sqlite_journals_are_found_opened_and_synced() {
    sanitized("sqlite_journals");
}

/// Runs as root: only then a link may lead to what the owner of the database could not write.
#[test]
fn sqlite_link_on_host_is_refused() {
    sanitized("sqlite_links");
}

/// Runs as root: only root gives files to other users.
#[test]
fn sqlite_journal_without_its_owner_is_refused_and_removed() {
    sanitized("sqlite_owners");
}

#[test]
fn sqlite_child_of_fork_leaves_the_journal_of_its_parent() {
    sanitized("sqlite_children");
}

#[test]
fn sqlite_replaced_database_has_the_locks_of_the_opened_file() {
    sanitized("sqlite_replaced");
}

#[test]
fn sqlite_files_below_another_vfs_have_names_of_its_own() {
    sanitized("sqlite_shim");
}

#[test]
fn sqlite_slow_open_or_close_delays_no_other_database() {
    sanitized("sqlite_stalls");
}

/// Runs as root: it takes the rights of another user for a while.
#[test]
fn sqlite_image_is_read_refused_or_left_alone() {
    sanitized("sqlite_images");
}

#[test]
fn sqlite_budget_that_cannot_be_set_refuses_the_open() {
    sanitized("sqlite_budget");
}

/// A small file system, unmounted when dropped.
struct Small(PathBuf);

impl Small {
    fn mount(folder: PathBuf) -> Self {
        let arguments = ["-t", "tmpfs", "-o", "size=2m", "forebay-test"];
        ran(Command::new("mount").args(arguments).arg(&folder));
        Self(folder)
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _gone = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

#[test]
fn sqlite_on_full_file_system_retains_no_deleted_journal() {
    let dir = Dir::new("sqlite-full").with_library();
    let program = compiled_with_sqlite(&dir, "sqlite_full", &SANITIZED);
    let small = Small::mount(dir.made("small"));
    run_sanitized_in(&small.0, &program);
}

/// Its journal would have another name than that of the database which the link leads to.
#[test]
fn sqlite_link_in_volume_is_refused() {
    let dir = Dir::new("sqlite-link").with_library();
    extension(&dir);
    let open = ".open file:/a.db?vfs=forebay&volume=v.img&volume_size=67108864";
    let make = "CREATE TABLE t(a); INSERT INTO t VALUES(5);";
    assert_eq!(shell(&dir, &[open, make]), "");
    let cache = Cache::new(CacheConfig::with_budget(16 << 20)).unwrap();
    let volume = Volume::open(&cache, dir.path("v.img"), &VolumeOptions::default()).unwrap();
    volume.symlink("/a.db", "/l").unwrap();
    volume.create_dir("/d").unwrap();
    volume.symlink("/d", "/e").unwrap();
    volume.close().unwrap();
    drop(cache);
    let opened = |name: &str| {
        let open = format!(".open file:{name}?vfs=forebay&volume=v.img");
        shell(&dir, &[&open, ".vfsname"])
    };
    assert_eq!(opened("/a.db"), "forebay\n");
    assert_eq!(opened("/e/b.db"), "forebay\n", "a link to a folder leads to one journal");
    let text = opened("/l");
    assert!(!text.contains("forebay"), "a link to a database was opened: {text}");
}

#[test]
fn sqlite_journal_name_is_durable_before_database_changes() {
    sanitized("sqlite_folder");
}

/// As `make install` builds it, in strict C99.
fn extension(dir: &Dir) {
    let mut cc = Command::new("cc");
    cc.args(["-std=c99", "-O2", "-shared", "-fPIC", "-fvisibility=hidden"]).args(STRICT);
    cc.args(sqlite_sources()).args(["-Wl,-z,nodelete", "-Wl,-z,defs", "-o"]);
    cc.arg(dir.path("libforebay_sqlite.so"));
    linked(dir, cc);
}

fn shell(dir: &Dir, commands: &[&str]) -> String {
    let mut sqlite = Command::new("sqlite3");
    let load = format!(".load {}", dir.path("libforebay_sqlite.so").display());
    ran(sqlite.args(["-batch", ":memory:", &load]).args(commands).current_dir(dir.path("")))
}

#[test]
fn sqlite_program_loads_the_extension() {
    let dir = Dir::new("sqlite-ext").with_library();
    extension(&dir);
    let dynamic = ran(Command::new("readelf").arg("-dW").arg(dir.path("libforebay_sqlite.so")));
    assert!(dynamic.contains("NODELETE"), "{dynamic}");
    let make = "PRAGMA journal_mode=wal; CREATE TABLE t(a); INSERT INTO t VALUES(1),(2);";
    let open = ".open file:x.db?vfs=forebay&budget=32M";
    let text = shell(&dir, &[open, make, "SELECT sum(a) FROM t; PRAGMA mmap_size", ".vfsname"]);
    assert_eq!(text, "wal\n3\n2147418112\nforebay\n");
    let theirs = ran(Command::new("sqlite3").arg(dir.path("x.db")).arg("SELECT sum(a) FROM t"));
    assert_eq!(theirs, "3\n");
    let open = ".open file:/d.db?vfs=forebay&volume=v.img&volume_size=67108864";
    assert_eq!(shell(&dir, &[open, make]), "wal\n");
    assert_eq!(shell(&dir, &[open, "SELECT sum(a) FROM t; PRAGMA integrity_check"]), "3\nok\n");
    let refused = ".open file:x.db?vfs=forebay&budget=many";
    let text = shell(&dir, &[refused, ".vfsname"]);
    assert!(!text.contains("forebay"), "{text}");
}
