//! Forebay as programs use it: a volume that the `forebay` program has mounted.
//!
//! A mount ends on drop, also while a panic unwinds. All files are in a directory whose name ends
//! in this process's pid. [`sweep`] cleans up after killed processes, and touches nothing of a live
//! one. After [`Mounted::remount`] nothing is cached: the kernel's cache was dropped with the
//! mount, Forebay's with the daemon.

use crate::harness::backing::Backing;
use crate::harness::image::leftovers;
use crate::report::lack::not_started;
use crate::rivals::loopdev::{self, LoopDev};
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

/// An environment variable: options after `-o` for every mount of Forebay, such as `cache=kernel`.
pub const WORDS_VARIABLE: &str = "FOREBAY_BENCH_MOUNT";

/// The options in the environment.
pub fn words_of_environment() -> Option<String> {
    std::env::var(WORDS_VARIABLE).ok().filter(|words| !words.is_empty())
}

/// Runs a program to its end and returns its output; the error contains its messages.
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

/// Runs the `forebay` program and parses its output as JSON.
pub fn forebay_json(args: &[&OsStr]) -> Result<Value> {
    let text = forebay(args)?;
    serde_json::from_str(&text).map_err(|e| Error::new(ErrorKind::Io, "forebay", e.to_string()))
}

/// A directory for a mount, with a directory `mnt` in it. Drop unmounts and removes both.
pub struct Folder(PathBuf);

impl Folder {
    /// Makes it below `dir`; `label` distinguishes the directories of several benches.
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

    /// The mount point.
    pub fn mount(&self) -> PathBuf {
        self.0.join("mnt")
    }

    /// The path of the image.
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
    /// Allocation of the image's blocks on the host.
    pub backing: Backing,
    /// `cache_size` of the mount, bytes.
    pub cache: u64,
    /// I/O engine.
    pub aio: String,
    /// Further options after `-o`, each with a comma before it.
    pub words: String,
    /// Whether the volume is on a loop device over the image, with direct I/O and sectors of 4 KiB.
    pub on_loop: bool,
}

impl Mounting {
    /// A sparse image, and a mount without further options.
    pub fn new(size: u64, cache: u64, aio: &str) -> Self {
        let (aio, words) = (aio.into(), String::new());
        Self { size, backing: Backing::Sparse, cache, aio, words, on_loop: false }
    }

    /// With another allocation of the image.
    pub fn on(self, backing: Backing) -> Self {
        Self { backing, ..self }
    }

    /// With the volume on a loop device.
    pub fn on_loop(self) -> Self {
        Self { on_loop: true, ..self }
    }

    /// With a further option after `-o`.
    pub fn with(mut self, word: &str) -> Self {
        self.words.push(',');
        self.words.push_str(word);
        self
    }
}

/// A mounted volume.
pub struct Mounted {
    folder: Folder,
    how: Mounting,
    device: Option<LoopDev>,
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // The mount uses the device, and the image is removed after the device is detached.
        if let Some(device) = self.device.take() {
            loopdev::unmount(&self.path());
            drop(device);
        }
    }
}

impl Mounted {
    /// Makes a volume below `dir` and mounts it.
    pub fn new(dir: &Path, label: &str, how: Mounting) -> Result<Self> {
        let mut this = Self { folder: Folder::new(dir, label)?, how, device: None };
        let image = this.image();
        this.how.backing.make(&image, this.how.size)?;
        if this.how.on_loop {
            this.device = Some(LoopDev::attach_with(&image, true, Some(4096))?);
        }
        let store = this.store();
        // The blocks are kept (backing.B2), as the rivals' file systems are made without discards.
        let words = ["create", "--force", "--keep-blocks"].map(OsStr::new);
        forebay(&[&words[..], &[store.as_os_str()]].concat())?;
        this.mount()?;
        Ok(this)
    }

    /// Path of its image.
    pub fn image(&self) -> PathBuf {
        self.folder.image()
    }

    /// Path of what has the volume: its image, or the loop device over it.
    fn store(&self) -> PathBuf {
        self.device.as_ref().map_or_else(|| self.image(), |device| device.path().to_path_buf())
    }

    /// The loop device over its image, if it has one.
    pub fn device(&self) -> Option<&LoopDev> {
        self.device.as_ref()
    }

    /// The mount point.
    pub fn path(&self) -> PathBuf {
        self.folder.mount()
    }

    fn mount(&self) -> Result<()> {
        let Mounting { cache, aio, words, .. } = &self.how;
        // The environment's options come first, so that the options of a bench override them.
        let more = words_of_environment().map(|words| format!(",{words}")).unwrap_or_default();
        let words = format!("cache_size={cache},aio={aio}{more}{words}");
        let (store, at) = (self.store(), self.path());
        let args =
            ["mount".as_ref(), store.as_os_str(), at.as_os_str(), "-o".as_ref(), words.as_ref()];
        forebay(&args).map(drop)
    }

    fn unmount(&self) -> Result<()> {
        forebay(&["umount".as_ref(), self.path().as_os_str()]).map(drop)
    }

    /// Mounts it again, with nothing cached. No file on it may be open.
    pub fn remount(&self) -> Result<()> {
        self.unmount()?;
        self.mount()
    }

    /// As [`Mounted::remount`], with other options after `-o`.
    pub fn remount_with(&mut self, words: &str) -> Result<()> {
        self.unmount()?;
        self.how.words = words.to_string();
        self.mount()
    }

    /// Calls `work` with the image while the volume is not mounted.
    pub fn unmounted<R>(&self, work: impl FnOnce(&Path) -> Result<R>) -> Result<R> {
        self.unmount()?;
        let done = work(&self.store());
        self.mount()?;
        done
    }

    /// Unmounts the volume, checks it with fsck, and mounts it again.
    pub fn fsck(&self) -> Result<String> {
        self.unmounted(|image| forebay(&["fsck".as_ref(), image.as_os_str()]))
    }

    /// The output of `forebay stat` for its daemon.
    pub fn stat(&self) -> Result<Value> {
        let at = self.path();
        forebay_json(&["stat".as_ref(), "--json".as_ref(), at.as_os_str()])
    }

    /// One counter of the daemon's cache.
    pub fn counter(&self, name: &str) -> Result<u64> {
        let missing = || Error::new(ErrorKind::NotFound, "forebay stat", name.to_string());
        self.stat()?["stats"][name].as_u64().ok_or_else(missing)
    }

    /// The pid of its daemon.
    pub fn pid(&self) -> Result<u32> {
        let pid = self.stat()?["pid"].as_u64().and_then(|pid| u32::try_from(pid).ok());
        pid.ok_or_else(|| Error::new(ErrorKind::NotFound, "forebay stat", "no pid"))
    }

    /// Sets a tunable of its daemon.
    pub fn tune(&self, setting: &str) -> Result<()> {
        let at = self.path();
        forebay(&["tune".as_ref(), at.as_os_str(), setting.as_ref()]).map(drop)
    }

    /// Bytes of a file that are in the daemon's cache.
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
            // The mount is in use: a lazy unmount ends it after its last use.
            let _lazily = call("umount", &["--lazy".as_ref(), at.as_os_str()]);
            return;
        }
    }
    // No file below a mount that remains is removed: the directory is not empty then.
    let _ = fs::remove_file(folder.join(IMAGE));
    let _ = fs::remove_dir(&at);
    let _ = fs::remove_dir(folder);
}

/// Cleans up the mounts below `dir` whose process has ended.
pub fn sweep(dir: &Path) {
    for folder in leftovers(dir, PREFIX, "") {
        // A device in use is detached at its last close.
        loopdev::detach_all(&folder.join(IMAGE));
        end(&folder);
    }
}
