//! The daemon as a process of its own. It ends with its test, also when that fails.
//!
//! No locks.

use forebay_base::ErrorKind;
use forebay_fuse::mount::unmount;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How long anything may take before a test gives up. Not a measurement.
pub const PATIENCE: Duration = Duration::from_secs(300);
/// The program.
pub const PROGRAM: &str = env!("CARGO_BIN_EXE_forebay-memfs");

pub fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < PATIENCE, "never happened: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Whether mounts can be made here.
pub fn may_run() -> bool {
    let root = rustix::process::geteuid().is_root() && Path::new("/dev/fuse").exists();
    let allowed = std::env::var("FOREBAY_ALLOW_SKIP").is_ok_and(|v| v == "1");
    assert!(root || allowed, "mounts need root and /dev/fuse");
    root
}

/// A daemon, its process and its mount. Both end with it.
pub struct Daemon {
    pub child: Child,
    pub dir: PathBuf,
}

impl Daemon {
    /// Starts one with these arguments and waits until it serves.
    pub fn start(words: &[&str]) -> Self {
        Self::run(Command::new(PROGRAM), words)
    }

    /// Starts one by `command`, which ends in the name of the program.
    pub fn run(mut command: Command, words: &[&str]) -> Self {
        static SERIAL: AtomicU64 = AtomicU64::new(0);
        let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
        let name = format!("forebay-killed-{}-{serial}", std::process::id());
        let dir = std::env::temp_dir().join(name);
        std::fs::create_dir(&dir).expect("a directory");
        command.arg(&dir).args(words).stdin(Stdio::null()).stdout(Stdio::piped());
        command.stderr(Stdio::null());
        let child = command.spawn().expect("it starts");
        let mut daemon = Self { child, dir };
        let mut line = String::new();
        let out = daemon.child.stdout.take().expect("it is piped");
        BufReader::new(out).read_line(&mut line).expect("a line");
        assert_eq!(line, "ready\n");
        daemon
    }

    /// SIGKILL.
    pub fn kill(&mut self) {
        self.child.kill().expect("it can be killed");
    }

    /// Unmounts it once nothing uses it. A child that another test has forked holds copies of this
    /// process's open files up to its exec, and programs that list the space of all mounts use
    /// this one for a moment, too.
    pub fn unmount(&self) {
        until("nothing uses the mount", || match unmount(&self.dir, false) {
            Err(e) if e.kind() == ErrorKind::Busy => false,
            done => done.map(|()| true).unwrap(),
        });
    }

    /// State of the thread of this name, a letter of proc(5).
    pub fn state_of(&self, thread: &str) -> Option<char> {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.child.id())).ok()?;
        let stats =
            tasks.flatten().filter_map(|t| std::fs::read_to_string(t.path().join("stat")).ok());
        let found = stats.filter(|stat| stat.contains(&format!("({thread})"))).last()?;
        found.split(") ").nth(1)?.chars().next()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        while unmount(&self.dir, true).is_ok() {}
        let _ = self.child.wait();
        let _ = std::fs::remove_dir(&self.dir);
    }
}
