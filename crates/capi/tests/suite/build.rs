//! What the tests share: where the library is, folders of their own, and running programs.
//!
//! No locks.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The folder of the crate.
pub fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// The folder that cargo builds this program into; the library is there.
fn built() -> PathBuf {
    let program = std::env::current_exe().expect("its own path");
    program.parent().expect("a folder").to_path_buf()
}

/// The shared library, as cargo names it.
pub fn library() -> PathBuf {
    built().join("libforebay_c.so")
}

/// A folder that is removed with its content.
pub struct Dir(PathBuf);

impl Dir {
    pub fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("forebay-capi-{name}-{}", std::process::id()));
        let _old = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// A folder in it.
    pub fn made(&self, name: &str) -> PathBuf {
        let path = self.path(name);
        std::fs::create_dir(&path).unwrap();
        path
    }

    /// The folder with the library by the names that the linker and the loader want.
    pub fn with_library(self) -> Self {
        for name in ["libforebay.so", "libforebay.so.0"] {
            std::os::unix::fs::symlink(library(), self.path(name)).unwrap();
        }
        self
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _left = std::fs::remove_dir_all(&self.0);
    }
}

/// Runs a command to its end; what it printed. Panics with that unless it ends with status 0.
#[track_caller]
pub fn ran(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|e| {
        let program = command.get_program().to_string_lossy().into_owned();
        panic!("{program}: {e}; `cargo xtask requires` lists the programs that tests need")
    });
    let Output { status, stdout, stderr } = output;
    let (stdout, stderr) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    assert!(status.success(), "{command:?}: {status}\n{stdout}\n{stderr}");
    stdout.into_owned()
}

/// Flags of every compilation: no warning of the header or of a test is let through.
pub const STRICT: [&str; 4] = ["-Wall", "-Wextra", "-Wpedantic", "-Werror"];

/// Compiles a program of `tests/c` against the shared library, with more flags.
#[track_caller]
pub fn compiled(dir: &Dir, name: &str, flags: &[&str]) -> PathBuf {
    let mut cc = Command::new("cc");
    cc.args(["-std=gnu11", "-g", "-O1"]).args(STRICT).args(flags);
    let program = dir.path(name);
    cc.arg(root().join(format!("tests/c/{name}.c"))).arg("-o").arg(&program);
    linked(dir, cc);
    program
}

/// The sources of the VFS for SQLite.
pub fn sqlite_sources() -> Vec<PathBuf> {
    let entries = std::fs::read_dir(root().join("sqlite")).unwrap();
    let paths = entries.map(|entry| entry.unwrap().path());
    paths.filter(|path| path.extension().is_some_and(|end| end == "c")).collect()
}

/// As `compiled`, with the VFS in the program.
#[track_caller]
pub fn compiled_with_sqlite(dir: &Dir, name: &str, flags: &[&str]) -> PathBuf {
    let mut cc = Command::new("cc");
    cc.args(["-std=gnu11", "-g", "-O1", "-DSQLITE_CORE"]).args(STRICT).args(flags);
    let program = dir.path(name);
    cc.arg(root().join(format!("tests/c/{name}.c"))).args(sqlite_sources()).arg("-o").arg(&program);
    cc.args(["-lsqlite3", "-ldl"]);
    linked(dir, cc);
    program
}

/// Runs the compiler with the header and the shared library.
#[track_caller]
pub fn linked(dir: &Dir, mut cc: Command) {
    let library: &Path = &dir.path("");
    cc.arg("-I").arg(root()).arg("-L").arg(library).args(["-lforebay", "-lpthread"]);
    ran(cc.arg(format!("-Wl,-rpath,{}", library.display())));
}
