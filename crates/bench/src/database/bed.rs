//! Where the database and what is backed up lie: XFS on a loop device, or a mount of a volume. Both hold
//! the same bytes. Each measurement begins with nothing of them cached: what was cached went with an
//! unmount. A mount ends on drop, also while a panic unwinds; [`sweep`] ends what a killed process has
//! left.

use crate::harness::backing::Backing;
use crate::rivals::loopdev::{FsKind, LoopFs, Making};
use crate::rivals::server::forebay_binary;
use forebay_base::{Error, ErrorKind, Result};
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const PREFIX: &str = "forebay-bench-mount-";

/// Runs a program to its end and gives what it printed; the error carries what it complained about.
pub fn call(program: impl AsRef<OsStr>, args: &[&OsStr]) -> Result<String> {
    let program = program.as_ref();
    let name = program.display().to_string();
    let mut command = Command::new(program);
    let output = command.args(args).stdin(Stdio::null()).output();
    let output = output.map_err(|e| Error::from_io("start", e).with_path(&name))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let text = format!("{}: {}", output.status, said.trim());
    Err(Error::new(ErrorKind::Unsupported, "run", text).with_path(name))
}

/// A volume, mounted by the `forebay` program; unmounted and removed on drop.
pub struct Mounted {
    folder: PathBuf,
    cache: u64,
    aio: String,
}

impl Mounted {
    /// Makes a volume of so many bytes below `dir` and mounts it with so much cache.
    pub fn new(dir: &Path, size: u64, cache: u64, aio: &str) -> Result<Self> {
        sweep(dir);
        let folder = dir.join(format!("{PREFIX}{}", std::process::id()));
        let this = Self { folder, cache, aio: aio.to_string() };
        let fail = |e| Error::from_io("make", e).with_path(this.folder.clone());
        fs::create_dir(&this.folder).map_err(fail)?;
        fs::create_dir(this.path()).map_err(fail)?;
        let (image, size) = (this.image(), size.to_string());
        let args = ["create".as_ref(), image.as_os_str(), "--size".as_ref(), size.as_ref()];
        call(forebay_binary()?, &args)?;
        this.mount()?;
        Ok(this)
    }

    fn image(&self) -> PathBuf {
        self.folder.join("data.fby")
    }

    /// Where it is mounted.
    pub fn path(&self) -> PathBuf {
        self.folder.join("mnt")
    }

    fn mount(&self) -> Result<()> {
        let words = format!("cache_size={},noatime,aio={}", self.cache, self.aio);
        let (image, at) = (self.image(), self.path());
        let args =
            ["mount".as_ref(), image.as_os_str(), at.as_os_str(), "-o".as_ref(), words.as_ref()];
        call(forebay_binary()?, &args).map(drop)
    }

    /// Ends the mount and begins it again.
    pub fn remount(&self) -> Result<()> {
        call(forebay_binary()?, &["umount".as_ref(), self.path().as_os_str()])?;
        self.mount()
    }

    /// The volume as it lies there when nobody has it open any more, checked.
    pub fn fsck(&self) -> Result<String> {
        call(forebay_binary()?, &["umount".as_ref(), self.path().as_os_str()])?;
        let said = call(forebay_binary()?, &["fsck".as_ref(), self.image().as_os_str()]);
        self.mount()?;
        said
    }

    /// What its process says of itself.
    pub fn stat(&self) -> Result<serde_json::Value> {
        let at = self.path();
        let text = call(forebay_binary()?, &["stat".as_ref(), "--json".as_ref(), at.as_os_str()])?;
        serde_json::from_str(&text)
            .map_err(|e| Error::new(ErrorKind::Io, "forebay stat", e.to_string()))
    }

    /// Bytes of a file that are in its cache.
    pub fn cached_bytes(&self, file: &Path) -> Result<u64> {
        let args = ["fincore".as_ref(), "--json".as_ref(), file.as_os_str()];
        let text = call(forebay_binary()?, &args)?;
        let value: serde_json::Value = serde_json::from_str(&text)
            .map_err(|e| Error::new(ErrorKind::Io, "forebay fincore", e.to_string()))?;
        let number = |key: &str| value[key].as_u64().unwrap_or(0);
        Ok(number("resident_blocks") * number("block_size"))
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        end(&self.folder);
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
    let _ = fs::remove_file(folder.join("data.fby"));
    let _ = fs::remove_dir(&at);
    let _ = fs::remove_dir(folder);
}

/// Ends the mounts below `dir` whose process is gone.
pub fn sweep(dir: &Path) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let pid = name.strip_prefix(PREFIX).and_then(|pid| pid.parse::<u32>().ok());
        if pid.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()) {
            end(&entry.path());
        }
    }
}

/// XFS on a loop device, or a mount.
pub enum Bed {
    /// At its best: direct, sectors of 4 KiB.
    Xfs(LoopFs),
    /// Ours.
    Forebay(Mounted),
}

impl Bed {
    /// XFS on a file of so many bytes.
    pub fn xfs(dir: &Path, size: u64) -> Result<Self> {
        let how = Making::best(Backing::Sparse);
        Ok(Self::Xfs(LoopFs::with(dir, "database", size.max(320 << 20), FsKind::Xfs, &how)?))
    }

    /// Where it is mounted.
    pub fn path(&self) -> PathBuf {
        match self {
            Self::Xfs(fs) => fs.path(),
            Self::Forebay(mounted) => mounted.path(),
        }
    }

    /// Begins anew with nothing cached.
    pub fn remount(&self) -> Result<()> {
        match self {
            Self::Xfs(fs) => {
                fs.unmount()?;
                fs.remount()
            }
            Self::Forebay(mounted) => mounted.remount(),
        }
    }

    /// Bytes of a file that are cached.
    pub fn cached_bytes(&self, file: &Path) -> Result<u64> {
        match self {
            Self::Forebay(mounted) => mounted.cached_bytes(file),
            Self::Xfs(_) => {
                let fail = |e| Error::from_io("page cache", e).with_path(file);
                let open = fs::File::open(file).map_err(fail)?;
                let len = open.metadata().map_err(fail)?.len();
                crate::harness::sys::page_cache_bytes(&open, 0, len).map_err(fail)
            }
        }
    }
}
