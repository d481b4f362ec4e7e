//! Ours as programs have it: a volume, mounted by the `forebay` program.
//!
//! A mount ends on drop, also while a panic unwinds. All of it lies in a folder whose name
//! ends in our process id; [`sweep`] ends what a killed process has left, and touches nothing of a live one.
//! After [`Mounted::remount`] nothing of it is cached anywhere: the kernel's went with the mount, ours
//! with the process.

use crate::harness::backing::Backing;
use crate::report::lack::not_started;
use crate::rivals::server::forebay_binary;
use forebay_base::{Error, ErrorKind, Result};
use serde_json::Value;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};

const PREFIX: &str = "forebay-bench-mount-";
const IMAGE: &str = "data.fby";

/// An environment variable: words after `-o` for every mount of ours, such as `cache=kernel`.
pub const WORDS_VARIABLE: &str = "FOREBAY_BENCH_MOUNT";

/// The words that the environment adds.
pub fn words_of_environment() -> Option<String> {
    std::env::var(WORDS_VARIABLE).ok().filter(|words| !words.is_empty())
}

/// Runs a program to its end and gives what it printed; the error carries what it complained about.
pub fn call(program: impl AsRef<OsStr>, args: &[&OsStr]) -> Result<String> {
    let program = program.as_ref();
    let name = program.display().to_string();
    let mut command = Command::new(program);
    let output = command.args(args).stdin(Stdio::null()).output();
    let output = output.map_err(|e| not_started(&name, e))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let text = format!("{}: {}", output.status, said.trim());
    Err(Error::new(ErrorKind::Io, "run", text).with_path(name))
}

/// Runs the `forebay` program.
pub fn forebay(args: &[&OsStr]) -> Result<String> {
    call(forebay_binary()?, args)
}

/// The same for what it says as JSON.
pub fn forebay_json(args: &[&OsStr]) -> Result<Value> {
    let text = forebay(args)?;
    serde_json::from_str(&text).map_err(|e| Error::new(ErrorKind::Io, "forebay", e.to_string()))
}

/// A folder for a mount, with a directory `mnt` in it; both go on drop, with what is mounted there.
pub struct Folder(PathBuf);

impl Folder {
    /// Makes it below `dir`; `label` tells apart what several benches make.
    pub fn new(dir: &Path, label: &str) -> Result<Self> {
        static SERIAL: AtomicU64 = AtomicU64::new(0);
        sweep(dir);
        let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
        let name = format!("{PREFIX}{label}-{serial}-{}", std::process::id());
        let this = Self(dir.join(name));
        let fail = |e| Error::from_io("make", e).with_path(this.0.clone());
        fs::create_dir(&this.0).map_err(fail)?;
        fs::create_dir(this.mount()).map_err(fail)?;
        Ok(this)
    }

    /// The directory for the mount.
    pub fn mount(&self) -> PathBuf {
        self.0.join("mnt")
    }

    /// The image below it.
    pub fn image(&self) -> PathBuf {
        self.0.join(IMAGE)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        end(&self.0);
    }
}

/// How a volume is made and mounted.
#[derive(Clone, Debug)]
pub struct Mounting {
    /// Bytes of the image.
    pub size: u64,
    /// What the host has of it.
    pub backing: Backing,
    /// Bytes for everything that grows.
    pub cache: u64,
    /// I/O engine.
    pub aio: String,
    /// Further words after `-o`, each with a comma before it.
    pub words: String,
}

impl Mounting {
    /// A sparse image, and a mount without further words.
    pub fn new(size: u64, cache: u64, aio: &str) -> Self {
        Self { size, backing: Backing::Sparse, cache, aio: aio.into(), words: String::new() }
    }

    /// The same on an image of another kind.
    pub fn on(self, backing: Backing) -> Self {
        Self { backing, ..self }
    }

    /// The same with a further word after `-o`.
    pub fn with(mut self, word: &str) -> Self {
        self.words.push(',');
        self.words.push_str(word);
        self
    }
}

/// See the module.
pub struct Mounted {
    folder: Folder,
    how: Mounting,
}

impl Mounted {
    /// Makes a volume below `dir` and mounts it.
    pub fn new(dir: &Path, label: &str, how: Mounting) -> Result<Self> {
        let this = Self { folder: Folder::new(dir, label)?, how };
        let image = this.image();
        this.how.backing.make(&image, this.how.size)?;
        // B2 of `harness::backing`: as the rivals' file systems are made without discards.
        let words = ["create", "--force", "--keep-blocks"].map(OsStr::new);
        forebay(&[&words[..], &[image.as_os_str()]].concat())?;
        this.mount()?;
        Ok(this)
    }

    /// Its image.
    pub fn image(&self) -> PathBuf {
        self.folder.image()
    }

    /// Where it is mounted.
    pub fn path(&self) -> PathBuf {
        self.folder.mount()
    }

    fn mount(&self) -> Result<()> {
        let Mounting { cache, aio, words, .. } = &self.how;
        // First, so that the words of a bench count more.
        let more = words_of_environment().map(|words| format!(",{words}")).unwrap_or_default();
        let words = format!("cache_size={cache},noatime,aio={aio}{more}{words}");
        let (image, at) = (self.image(), self.path());
        let args =
            ["mount".as_ref(), image.as_os_str(), at.as_os_str(), "-o".as_ref(), words.as_ref()];
        forebay(&args).map(drop)
    }

    fn unmount(&self) -> Result<()> {
        forebay(&["umount".as_ref(), self.path().as_os_str()]).map(drop)
    }

    /// Ends the mount and begins it again, with nothing cached. Nothing on it may be open.
    pub fn remount(&self) -> Result<()> {
        self.unmount()?;
        self.mount()
    }

    /// The same with other words after `-o`.
    pub fn remount_with(&mut self, words: &str) -> Result<()> {
        self.unmount()?;
        self.how.words = words.to_string();
        self.mount()
    }

    /// Does something while it is not mounted.
    pub fn unmounted<R>(&self, work: impl FnOnce(&Path) -> Result<R>) -> Result<R> {
        self.unmount()?;
        let done = work(&self.image());
        self.mount()?;
        done
    }

    /// The volume as it lies there when nobody has it open any more, checked.
    pub fn fsck(&self) -> Result<String> {
        self.unmounted(|image| forebay(&["fsck".as_ref(), image.as_os_str()]))
    }

    /// What its process says of itself.
    pub fn stat(&self) -> Result<Value> {
        let at = self.path();
        forebay_json(&["stat".as_ref(), "--json".as_ref(), at.as_os_str()])
    }

    /// One counter of its cache.
    pub fn counter(&self, name: &str) -> Result<u64> {
        let missing = || Error::new(ErrorKind::NotFound, "forebay stat", name.to_string());
        self.stat()?["stats"][name].as_u64().ok_or_else(missing)
    }

    /// Its process.
    pub fn pid(&self) -> Result<u32> {
        let pid = self.stat()?["pid"].as_u64().and_then(|pid| u32::try_from(pid).ok());
        pid.ok_or_else(|| Error::new(ErrorKind::NotFound, "forebay stat", "no pid"))
    }

    /// Sets a tunable of its process.
    pub fn tune(&self, setting: &str) -> Result<()> {
        let at = self.path();
        forebay(&["tune".as_ref(), at.as_os_str(), setting.as_ref()]).map(drop)
    }

    /// Bytes of a file that are in its cache.
    pub fn cached_bytes(&self, file: &Path) -> Result<u64> {
        let value = forebay_json(&["fincore".as_ref(), "--json".as_ref(), file.as_os_str()])?;
        let number = |key: &'static str| {
            let missing = || Error::new(ErrorKind::NotFound, "forebay fincore", key);
            value[key].as_u64().ok_or_else(missing)
        };
        Ok(number("resident_blocks")? * number("block_size")?)
    }
}

fn end(folder: &Path) {
    let at = folder.join("mnt");
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let there = at.canonicalize().unwrap_or_else(|_| at.clone());
    if mounts.lines().any(|line| line.split(' ').nth(1).is_some_and(|m| Path::new(m) == there)) {
        let ended = call("umount", &[at.as_os_str()]);
        if ended.is_err() {
            // Something holds it: it goes when that does.
            let _lazily = call("umount", &["--lazy".as_ref(), at.as_os_str()]);
            return;
        }
    }
    // Never what is below a mount that stays: the folder would not be empty then.
    let _ = fs::remove_file(folder.join(IMAGE));
    let _ = fs::remove_dir(&at);
    let _ = fs::remove_dir(folder);
}

/// Ends the mounts below `dir` whose process is gone.
pub fn sweep(dir: &Path) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let rest = name.strip_prefix(PREFIX).and_then(|rest| rest.rsplit('-').next());
        let pid = rest.and_then(|pid| pid.parse::<u32>().ok());
        if pid.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()) {
            end(&entry.path());
        }
    }
}
