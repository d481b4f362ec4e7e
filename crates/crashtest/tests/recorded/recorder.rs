//! A disk of another make: `nbdfuse` shows an export of `nbdkit` as a file, and a plugin records
//! each write and each flush. The test builds crash states from that record.
//!
//! Invariant: W1 each process that this file starts also ends here, even if a test fails.
//!
//! No locks.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// How long anything may take. Not a measurement.
const PATIENCE: Duration = Duration::from_secs(300);

/// One request to the disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Entry {
    Write { offset: u64, bytes: Vec<u8> },
    Flush,
}

/// The recording disk. Dropping it unmounts it, ends its processes and removes its files (W1).
pub struct Recorder {
    folder: PathBuf,
    process: Child,
}

fn is_there(path: &Path) -> bool {
    std::fs::metadata(path).is_ok()
}

/// Whether the test can run here. A missing program is a failure, or with `FOREBAY_ALLOW_SKIP=1` a
/// skip with a message.
pub fn requires() -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let missing =
        |program: &&str| !std::env::split_paths(&path).any(|p| is_there(&p.join(program)));
    let missing: Vec<&str> = ["nbdkit", "nbdfuse", "umount"].into_iter().filter(missing).collect();
    let fuse = is_there(Path::new("/dev/fuse"));
    if missing.is_empty() && fuse {
        return true;
    }
    let allowed = std::env::var("FOREBAY_ALLOW_SKIP").is_ok_and(|v| v == "1");
    assert!(allowed, "this test requires {missing:?} and /dev/fuse");
    eprintln!("skipped: requires {missing:?} and /dev/fuse");
    false
}

impl Recorder {
    /// A disk that holds `image`.
    pub fn start(image: &[u8]) -> Result<Self, String> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("forebay-recorded-{}-{number}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir_all(folder.join("mount")).map_err(|e| e.to_string())?;
        for (name, bytes) in [("image", image), ("log", &[][..]), ("data", &[][..])] {
            std::fs::write(folder.join(name), bytes).map_err(|e| format!("{name}: {e}"))?;
        }
        let script = folder.join("recorder.sh");
        std::fs::write(&script, include_str!("recorder.sh")).map_err(|e| e.to_string())?;
        let runs = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(&script, runs).map_err(|e| e.to_string())?;
        let mut command = Command::new("nbdfuse");
        command.arg("-P").arg(folder.join("pid")).arg(folder.join("mount/volume"));
        command.args(["--command", "nbdkit", "-s", "--exit-with-parent", "sh"]).arg(script);
        command.env("RECORD", &folder).stdin(Stdio::null());
        let process = command.spawn().map_err(|e| format!("nbdfuse: {e}"))?;
        let mut this = Self { folder, process };
        let started = Instant::now();
        while !is_there(&this.folder.join("pid")) {
            if let Ok(Some(status)) = this.process.try_wait() {
                return Err(format!("nbdfuse ended: {status}"));
            }
            if started.elapsed() > PATIENCE {
                return Err("nbdfuse does not come up".into());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(this)
    }

    /// The file.
    pub fn path(&self) -> PathBuf {
        self.folder.join("mount/volume")
    }

    /// Writes and flushes so far.
    pub fn len(&self) -> usize {
        let log = std::fs::read(self.folder.join("log")).expect("the log");
        log.iter().filter(|byte| **byte == b'\n').count()
    }

    /// All of them.
    pub fn entries(&self) -> Vec<Entry> {
        let log = std::fs::read_to_string(self.folder.join("log")).expect("the log");
        let data = std::fs::read(self.folder.join("data")).expect("the data");
        let mut at = 0;
        let entry = |line: &str| {
            let words: Vec<&str> = line.split(' ').collect();
            let number = |at: usize| words[at].parse::<u64>().expect("a number");
            if words[0] == "flush" {
                return Entry::Flush;
            }
            let (offset, len) = (number(1), number(2) as usize);
            at += len;
            Entry::Write { offset, bytes: data[at - len..at].to_vec() }
        };
        let entries = log.lines().map(entry).collect();
        assert_eq!(at, data.len(), "the log covers all the data");
        entries
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        let mount = self.folder.join("mount");
        let unmounted = Command::new("umount").arg(&mount).stderr(Stdio::null()).status();
        if !unmounted.is_ok_and(|status| status.success()) {
            let _ = Command::new("umount").arg("-l").arg(&mount).status();
        }
        let started = Instant::now();
        while matches!(self.process.try_wait(), Ok(None)) {
            if started.elapsed() > PATIENCE {
                let _ = self.process.kill();
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}
