//! What the programs do: one function for each load, and what it needs before.
//!
//! Directories of each file system: `tree` (the sources, with a git repository where content is
//! stored), `project`, `unpacked`, and the database `rows.db`.

use super::super::ground::{Ground, Who};
use super::run::{run, run_from, run_to};
use super::sources::{NEEDLE, Sources};
use crate::rivals::server::program_exists;
use forebay_base::{Error, ErrorKind, Result};
use std::fs::File;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// A step of a load.
type Step = fn(&Work<'_>, &Ground) -> Result<()>;

/// A load: what is timed, and the step before it.
pub struct Load {
    /// Its name in rows and ratios.
    pub name: &'static str,
    /// Runs before each timed slice.
    pub prepare: Step,
    /// The timed step.
    pub run: Step,
    /// How often a slice of a full run repeats it.
    pub repeats: u64,
    /// Whether the empty server can run it, which stores no content.
    pub on_empty: bool,
    /// The variant in its goal, the rival, and the largest time over that of the rival.
    pub goal: Option<(Who, Who, f64)>,
}

/// All loads, in the order in which they run. Those of names that are cached come last: for a
/// minute after a file has changed, a mount lets the kernel keep its attributes for a second.
pub const LOADS: [Load; 8] = [
    load("sqlite_write", prepare_database, write_rows),
    load("sqlite_read", nothing, read_rows),
    Load { goal: Some((Who::Ours, Who::Xfs, 1.1)), ..load("compile", clean, compile) },
    Load {
        goal: Some((Who::Ours, Who::Empty, 1.5)),
        on_empty: true,
        ..load("unpack", remove, unpack)
    },
    Load { on_empty: true, ..load("unpack_synced", remove, unpack_synced) },
    load("status_fresh", touch_all, status),
    // The empty server lets the kernel cache no content, so its rival is the mode without that.
    Load {
        goal: Some((Who::Own, Who::Empty, 1.2)),
        on_empty: true,
        repeats: 5,
        ..load("search", search, search)
    },
    Load { goal: Some((Who::Ours, Who::Xfs, 1.5)), repeats: 5, ..load("status", status, status) },
];

const fn load(name: &'static str, prepare: Step, run: Step) -> Load {
    Load { name, prepare, run, repeats: 1, on_empty: false, goal: None }
}

/// Parameters that all file systems share.
pub struct Work<'a> {
    /// The sources.
    pub sources: &'a Sources,
    /// Transactions of the database, and lookups.
    pub rows: (u64, u64),
}

/// The program that searches.
pub fn searcher() -> &'static str {
    if program_exists("rg") { "rg" } else { "grep" }
}

/// Whether a file system stores content.
fn stores(ground: &Ground) -> bool {
    ground.name != Who::Empty.name()
}

/// Unpacks what the loads need, and makes it durable.
pub fn set_up(work: &Work<'_>, ground: &Ground) -> Result<()> {
    let root = ground.path();
    extract(&work.sources.tar("tree"), &root)?;
    if stores(ground) {
        extract(&work.sources.tar("project"), &root)?;
        git(&root, &["init", "-q", "-b", "main"])?;
        git(&root, &["add", "-A"])?;
        git(&root, &["commit", "-q", "-m", "all"])?;
        write_scripts(work)?;
    }
    ground.sync()
}

fn nothing(_: &Work<'_>, _: &Ground) -> Result<()> {
    Ok(())
}

fn extract(tar: &Path, into: &Path) -> Result<()> {
    run(Command::new("tar").arg("-C").arg(into).arg("-xf").arg(tar)).map(drop)
}

fn unpack(work: &Work<'_>, ground: &Ground) -> Result<()> {
    extract(&work.sources.tar("tree"), &ground.path().join("unpacked"))
}

fn unpack_synced(work: &Work<'_>, ground: &Ground) -> Result<()> {
    unpack(work, ground)?;
    ground.sync()
}

/// Leaves an empty directory to unpack into, with nothing left to be written.
fn remove(_: &Work<'_>, ground: &Ground) -> Result<()> {
    let at = ground.path().join("unpacked");
    if at.exists() {
        std::fs::remove_dir_all(&at).map_err(|e| Error::from_io("remove", e).with_path(&at))?;
    }
    std::fs::create_dir(&at).map_err(|e| Error::from_io("mkdir", e).with_path(&at))?;
    ground.sync()
}

fn clean(_: &Work<'_>, ground: &Ground) -> Result<()> {
    let project = ground.path().join("project");
    let fail = |e| Error::from_io("clean", e).with_path(&project);
    for entry in std::fs::read_dir(&project).map_err(fail)? {
        let path = entry.map_err(fail)?.path();
        let made = path.extension().is_some_and(|end| end == "o") || path.ends_with("main");
        if made {
            std::fs::remove_file(&path).map_err(fail)?;
        }
    }
    ground.sync()
}

fn compile(_: &Work<'_>, ground: &Ground) -> Result<()> {
    let project = ground.path().join("project");
    run(Command::new("make").arg("-C").arg(&project).args(["-s", "-j2"]))?;
    // The program runs from the file system, too.
    run(&mut Command::new(project.join("main"))).map(drop)
}

fn git(root: &Path, words: &[&str]) -> Result<String> {
    let mut git = Command::new("git");
    git.arg("-C").arg(root.join("tree"));
    for setting in
        ["user.name=bench", "user.email=bench@localhost", "safe.directory=*", "gc.auto=0"]
    {
        git.args(["-c", setting]);
    }
    run(git.args(words))
}

fn status(_: &Work<'_>, ground: &Ground) -> Result<()> {
    let changed = git(&ground.path(), &["status", "--porcelain"])?;
    if changed.is_empty() {
        return Ok(());
    }
    let text = format!("unexpected changes: {}", changed.lines().next().unwrap_or_default());
    Err(Error::new(ErrorKind::Io, "git status", text))
}

/// Changes the times of all files; git reads their content once, and notes the new times.
fn touch_all(work: &Work<'_>, ground: &Ground) -> Result<()> {
    let tree = ground.path().join("tree");
    run(Command::new("find").arg(tree).args(["-name", "*.c", "-exec", "touch", "{}", "+"]))?;
    ground.sync()?;
    // git reads a file whose time is that of the index again each time.
    std::thread::sleep(Duration::from_millis(1100));
    status(work, ground)
}

fn search(work: &Work<'_>, ground: &Ground) -> Result<()> {
    let mut command = Command::new(searcher());
    match searcher() {
        "rg" => command.args(["--no-config", "--no-ignore", "--threads", "2", "-lF"]),
        _ => command.args(["-rlF", "--exclude-dir=.git"]),
    };
    command.arg(NEEDLE).arg(ground.path().join("tree"));
    // Status 1: no file has it, which is so on the empty server.
    let found = run_to(&mut command, &[0, 1])?.lines().count() as u64;
    let wanted = if stores(ground) { work.sources.found() } else { 0 };
    if found == wanted {
        return Ok(());
    }
    let text = format!("{found} files found, {wanted} are there");
    Err(Error::new(ErrorKind::Io, "search", text))
}

/// The scripts of SQLite, on the host: `make`, `write` and `read`.
fn write_scripts(work: &Work<'_>) -> Result<()> {
    let (writes, reads) = work.rows;
    let filled = 20_000;
    let insert = |n: u64| format!("insert into t values ({}, hex(randomblob(50)));\n", filled + n);
    let select = |n: u64| format!("select v from t where k = {};\n", n * 7919 % filled);
    let scripts = [
        (
            "make",
            format!(
                "create table t (k integer primary key, v text);\nwith recursive n(i) as (select 0 \
                 union all select i + 1 from n where i < {})\ninsert into t select i, \
                 hex(randomblob(50)) from n;\n",
                filled - 1
            ),
        ),
        ("write", (0..writes).map(insert).collect()),
        ("read", (0..reads).map(select).collect()),
    ];
    for (name, text) in scripts {
        let path = work.sources.scratch(name);
        std::fs::write(&path, text).map_err(|e| Error::from_io("write", e).with_path(&path))?;
    }
    Ok(())
}

fn sqlite(work: &Work<'_>, ground: &Ground, script: &str) -> Result<String> {
    let path = work.sources.scratch(script);
    let script = File::open(&path).map_err(|e| Error::from_io("open", e).with_path(&path))?;
    let database = ground.path().join("rows.db");
    run_from(Command::new("sqlite3").args(["-bail", "-init", "/dev/null"]).arg(database), script)
}

fn prepare_database(work: &Work<'_>, ground: &Ground) -> Result<()> {
    let database = ground.path().join("rows.db");
    if database.exists() {
        std::fs::remove_file(&database).map_err(|e| Error::from_io("remove", e))?;
    }
    sqlite(work, ground, "make")?;
    ground.sync()
}

fn write_rows(work: &Work<'_>, ground: &Ground) -> Result<()> {
    sqlite(work, ground, "write").map(drop)
}

fn read_rows(work: &Work<'_>, ground: &Ground) -> Result<()> {
    let rows = sqlite(work, ground, "read")?.lines().count() as u64;
    if rows == work.rows.1 {
        return Ok(());
    }
    let text = format!("{rows} rows of {}", work.rows.1);
    Err(Error::new(ErrorKind::Io, "sqlite3", text))
}
