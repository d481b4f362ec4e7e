//! Loop devices of the kernel and file systems on them, for the kernel's variants.
//!
//! Invariants: P1 a device is detached and a file system unmounted on drop, also while a panic
//! unwinds. P2 all files are in a directory whose name ends in this process's pid. [`sweep`] cleans
//! up after killed processes, and touches nothing of a live one. P3 a device that should use direct
//! I/O and does not is an error, never a silent fall-back.

use crate::harness::backing::Backing;
use crate::harness::image::leftovers;
use crate::harness::machine::sectors_written;
use crate::harness::sys::page_cache_bytes;
use crate::report::lack::not_started;
use forebay_base::{Error, ErrorKind, Result};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

const PREFIX: &str = "forebay-bench-loopfs-";

/// A loop device over a file, detached on drop. The file stays.
pub struct LoopDev {
    path: PathBuf,
    backing: PathBuf,
}

/// Which file system [`LoopFs`] makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FsKind {
    /// `mkfs.xfs`; at least 300 MiB.
    Xfs,
    /// `mkfs.ext4`.
    Ext4,
    /// `mkfs.btrfs`, the only one with checksums of data; at least 110 MiB.
    Btrfs,
    /// `mkfs.f2fs`, where the host has it; at least 100 MiB.
    F2fs,
}

/// How [`LoopFs`] is made.
#[derive(Clone, Copy, Debug)]
pub struct Making {
    /// Allocation of the image's blocks on the host.
    pub backing: Backing,
    /// Opened with O_DIRECT.
    pub direct: bool,
    /// Bytes of a sector of the loop device; `None`: 512, as losetup does.
    pub sector: Option<u32>,
    /// Options of the mount, `-o`.
    pub mount: &'static str,
}

impl Making {
    /// With the defaults: sparse, sectors of 512 bytes, no mount options.
    pub fn plain(direct: bool) -> Self {
        Self { backing: Backing::Sparse, direct, sector: None, mount: "defaults" }
    }

    /// The best configuration for this comparison: direct, and sectors of 4 KiB, so that no write
    /// is a part of a block of the host's file system. No access times. No discards, which would
    /// deallocate the blocks of a written image.
    pub fn best(backing: Backing) -> Self {
        Self { backing, direct: true, sector: Some(4096), mount: "noatime,nodiscard" }
    }
}

impl FsKind {
    /// The name of the file system for mount(8).
    pub fn name(self) -> &'static str {
        match self {
            Self::Xfs => "xfs",
            Self::Ext4 => "ext4",
            Self::Btrfs => "btrfs",
            Self::F2fs => "f2fs",
        }
    }

    /// Runs its mkfs, with discards disabled.
    pub fn make(self, device: &OsStr) -> Result<String> {
        match self {
            Self::Xfs => call("mkfs.xfs", &["-q".as_ref(), "-f".as_ref(), "-K".as_ref(), device]),
            Self::Ext4 => {
                // Tables are initialized at once: otherwise the kernel would write them in the
                // background of a bench.
                let now = "lazy_itable_init=0,lazy_journal_init=0,nodiscard";
                let args = ["-q".as_ref(), "-F".as_ref(), "-E".as_ref(), now.as_ref(), device];
                call("mkfs.ext4", &args)
            }
            Self::Btrfs => {
                call("mkfs.btrfs", &["-q".as_ref(), "-f".as_ref(), "-K".as_ref(), device])
            }
            Self::F2fs => {
                let args = ["-q".as_ref(), "-f".as_ref(), "-t".as_ref(), "0".as_ref(), device];
                call("mkfs.f2fs", &args)
            }
        }
    }
}

/// A directory with a place for an image, and with a directory to mount it on. Drop unmounts and
/// removes all of it.
pub struct Folder(PathBuf);

/// A file system on a loop device with its own image file; unmounted, detached and removed on drop.
pub struct LoopFs {
    folder: Folder,
    kind: FsKind,
    mount: &'static str,
    /// `None` only while dropping or after a failed start.
    device: Option<LoopDev>,
}

/// Runs a program and returns its output; the error contains its messages.
fn call<S: AsRef<OsStr>>(program: &'static str, args: &[S]) -> Result<String> {
    let mut command = Command::new(program);
    command.args(args).stdin(Stdio::null());
    let output = command.output().map_err(|e| not_started(program, e))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).trim().to_string());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let text = format!("{}: {}", output.status, said.trim());
    // A missing loop device or file system is a lack of the machine; a mkfs that refuses its
    // options is an error of the bench.
    let kind = match program {
        "losetup" | "mount" => ErrorKind::Unsupported,
        _ => ErrorKind::Io,
    };
    Err(Error::new(kind, program, text))
}

impl LoopDev {
    /// Attaches the next free loop device to `backing`, opened with O_DIRECT if `direct`.
    /// `Unsupported` if there is no loop device, or if the file does not support direct I/O.
    pub fn attach(backing: &Path, direct: bool) -> Result<Self> {
        Self::attach_with(backing, direct, None)
    }

    /// As [`LoopDev::attach`], with this sector size in bytes.
    pub fn attach_with(backing: &Path, direct: bool, sector: Option<u32>) -> Result<Self> {
        let how = if direct { "--direct-io=on" } else { "--direct-io=off" };
        let sector = format!("--sector-size={}", sector.unwrap_or(512));
        let args = [
            OsStr::new("--find"),
            "--show".as_ref(),
            how.as_ref(),
            sector.as_ref(),
            backing.as_os_str(),
        ];
        let path = call("losetup", &args).map_err(|e| e.with_path(backing))?;
        let device = Self { path: path.into(), backing: backing.to_path_buf() };
        if device.direct() != direct {
            let text = format!("{}: direct I/O is {}", device.name(), device.direct());
            return Err(Error::new(ErrorKind::Unsupported, "losetup", text).with_path(backing));
        }
        // A loop device keeps this setting from its last user.
        let _ = device.stable_writes(false);
        Ok(device)
    }

    /// `/dev/loopN`.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// `loopN`.
    pub fn name(&self) -> String {
        self.path.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    fn sys(&self, what: &str) -> PathBuf {
        Path::new("/sys/block").join(self.name()).join(what)
    }

    fn backing(&self) -> Option<PathBuf> {
        let text = fs::read_to_string(self.sys("loop/backing_file")).ok()?;
        Some(PathBuf::from(text.trim()))
    }

    /// Whether the kernel reads and writes the file with O_DIRECT.
    pub fn direct(&self) -> bool {
        fs::read_to_string(self.sys("loop/dio")).is_ok_and(|text| text.trim() == "1")
    }

    /// Sets whether the device claims to need stable pages. A file system reads that when it is
    /// mounted, see [`LoopFs::stable_writes`].
    pub fn stable_writes(&self, on: bool) -> Result<()> {
        let file = self.sys("queue/stable_writes");
        let text = if on { "1" } else { "0" };
        fs::write(&file, text).map_err(|e| Error::from_io("set", e).with_path(file))
    }

    /// Bytes written to the device so far.
    pub fn written_bytes(&self) -> Result<u64> {
        sectors_written(&self.sys("stat"))
    }

    /// Flushes that the device has completed so far, those of writes with FUA included, which a
    /// loop device carries out as a write and a flush.
    pub fn flushes(&self) -> Result<u64> {
        let stat = self.sys("stat");
        let text = fs::read_to_string(&stat);
        let text = text.map_err(|e| Error::from_io("read", e).with_path(&stat))?;
        let field = text.split_whitespace().nth(15).and_then(|field| field.parse().ok());
        field.ok_or_else(|| {
            Error::new(ErrorKind::Unsupported, "read", "no count of flushes").with_path(&stat)
        })
    }

    /// Bytes of the backing file that are in the kernel's page cache.
    pub fn backing_cache_bytes(&self) -> Result<u64> {
        let fail = |e| Error::from_io("page cache", e).with_path(&self.backing);
        let file = File::open(&self.backing).map_err(fail)?;
        let len = file.metadata().map_err(fail)?.len();
        page_cache_bytes(&file, 0, len).map_err(fail)
    }
}

impl Drop for LoopDev {
    fn drop(&mut self) {
        let _ = self.stable_writes(false);
        let _ = call("losetup", &[OsStr::new("--detach"), self.path.as_os_str()]);
        // The kernel detaches at the last close, which may happen shortly after.
        let ours = self.backing.canonicalize().unwrap_or_else(|_| self.backing.clone());
        let deadline = Instant::now() + Duration::from_secs(5);
        while self.backing().is_some_and(|is| is == ours) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Folder {
    /// Makes it below `dir`; `name` distinguishes the directories of several benches.
    pub fn new(dir: &Path, name: &str) -> Result<Self> {
        static SERIAL: AtomicU64 = AtomicU64::new(0);
        sweep(dir);
        let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
        let this = Self(dir.join(format!("{PREFIX}{name}-{serial}-{}", std::process::id())));
        let fail = |e| Error::from_io("make", e).with_path(this.0.clone());
        fs::create_dir(&this.0).map_err(fail)?;
        fs::create_dir(this.mount()).map_err(fail)?;
        Ok(this)
    }

    /// The path of the image.
    pub fn image(&self) -> PathBuf {
        image_in(&self.0)
    }

    /// The mount point.
    pub fn mount(&self) -> PathBuf {
        self.0.join("mnt")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        unmount(&self.mount());
        remove(&self.0);
    }
}

impl LoopFs {
    /// Makes a sparse file of `size` bytes below `dir`, a loop device on it, and a mounted file
    /// system on that. `name` distinguishes the file systems of several benches.
    pub fn new(dir: &Path, name: &str, size: u64, kind: FsKind, direct: bool) -> Result<Self> {
        Self::with(dir, name, size, kind, &Making::plain(direct))
    }

    /// Makes a file of `size` bytes below `dir`, a loop device on it and a mounted file system on
    /// that. `how` sets the file's allocation, the loop device and the mount options.
    pub fn with(dir: &Path, name: &str, size: u64, kind: FsKind, how: &Making) -> Result<Self> {
        let folder = Folder::new(dir, name)?;
        let mut this = Self { folder, kind, mount: how.mount, device: None };
        let image = this.folder.image();
        how.backing.make(&image, size)?;
        this.device = Some(LoopDev::attach_with(&image, how.direct, how.sector)?);
        kind.make(this.device().path().as_os_str())?;
        this.mount()?;
        Ok(this)
    }

    fn mount(&self) -> Result<()> {
        let (device, at) = (self.device().path().as_os_str(), self.path());
        let (kind, options) = (OsStr::new(self.kind.name()), OsStr::new(self.mount));
        call("mount", &["-t".as_ref(), kind, "-o".as_ref(), options, device, at.as_os_str()])?;
        Ok(())
    }

    /// Unmounts it cleanly. No file on it may be open.
    pub fn unmount(&self) -> Result<()> {
        call("umount", &[self.path()]).map(drop)
    }

    /// Mounts it again after [`LoopFs::unmount`], with nothing cached.
    pub fn remount(&self) -> Result<()> {
        self.mount()
    }

    /// The mount point.
    pub fn path(&self) -> PathBuf {
        self.folder.mount()
    }

    /// The loop device below.
    pub fn device(&self) -> &LoopDev {
        self.device.as_ref().expect("there from new to drop")
    }

    /// Sets whether the device claims to need stable pages, and mounts again, because the file
    /// system reads that only then. No file on it may be open.
    pub fn stable_writes(&self, on: bool) -> Result<()> {
        call("umount", &[self.path()])?;
        let set = self.device().stable_writes(on);
        self.mount()?;
        set
    }
}

impl Drop for LoopFs {
    fn drop(&mut self) {
        // The folder is removed after the device is detached.
        unmount(&self.path());
        drop(self.device.take());
    }
}

fn image_in(folder: &Path) -> PathBuf {
    folder.join("image")
}

/// Unmounts; lazily if it is in use, so that no mount outlives its bench.
pub fn unmount(at: &Path) {
    if mounted(at) && call("umount", &[at]).is_err() {
        let _ = call("umount", &[OsStr::new("--lazy"), at.as_os_str()]);
    }
}

fn mounted(at: &Path) -> bool {
    let at = at.canonicalize().unwrap_or_else(|_| at.to_path_buf());
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    mounts.lines().any(|line| line.split(' ').nth(1).is_some_and(|dir| Path::new(dir) == at))
}

/// Removes the directory, but never files below a mount that remains.
fn remove(folder: &Path) {
    let _ = fs::remove_file(image_in(folder));
    let _ = fs::remove_dir(folder.join("mnt"));
    let _ = fs::remove_dir(folder);
}

/// Detaches all loop devices over a file.
pub fn detach_all(image: &Path) {
    let words = ["-n", "-O", "NAME", "-j"].map(OsStr::new);
    let list = call("losetup", &[&words[..], &[image.as_os_str()]].concat());
    for device in list.unwrap_or_default().lines() {
        let _ = call("losetup", &["--detach", device.trim()]);
    }
}

/// Cleans up the loop file systems below `dir` whose process has ended (P2).
pub fn sweep(dir: &Path) {
    for folder in leftovers(dir, PREFIX, "") {
        unmount(&folder.join("mnt"));
        detach_all(&image_in(&folder));
        remove(&folder);
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;

    /// Whether a test may run; without `FOREBAY_ALLOW_SKIP=1` a missing requirement fails it.
    pub(crate) fn requires(what: &str, there: bool) -> bool {
        if !there {
            assert!(
                std::env::var("FOREBAY_ALLOW_SKIP").is_ok_and(|v| v == "1"),
                "this test requires {what}"
            );
            eprintln!("skipped: requires {what}");
        }
        there
    }

    fn root() -> bool {
        requires("root, to attach loop devices", rustix::process::geteuid().is_root())
    }

    #[test]
    fn loop_device_is_direct_as_asked_and_detached() {
        if !root() {
            return;
        }
        let image = std::env::temp_dir().join(format!("forebay-loopdev-{}", std::process::id()));
        fs::write(&image, vec![7u8; 4 << 20]).unwrap();
        for direct in [false, true] {
            let device = LoopDev::attach(&image, direct);
            if !requires(&format!("a loop device: {:?}", device.as_ref().err()), device.is_ok()) {
                continue;
            }
            let device = device.unwrap();
            assert_eq!(device.direct(), direct);
            let mut bytes = [0; 4096];
            File::open(device.path()).unwrap().read_exact_at(&mut bytes, 8192).unwrap();
            assert_eq!(bytes, [7; 4096]);
            for on in [true, false] {
                device.stable_writes(on).unwrap();
                let said = fs::read_to_string(device.sys("queue/stable_writes")).unwrap();
                assert_eq!(said.trim() == "1", on);
            }
            assert!(device.backing_cache_bytes().unwrap() <= 4 << 20);
            let backing = device.sys("loop/backing_file");
            drop(device);
            assert!(fs::read_to_string(backing).map_or(true, |b| !b.contains("forebay-loopdev")));
        }
        fs::remove_file(&image).unwrap();
    }

    /// P1: a file system works, and nothing of it remains, also after a panic.
    #[test]
    fn loop_file_system_is_removed_even_after_panic() {
        if !root() {
            return;
        }
        let dir = std::env::temp_dir().join(format!("forebay-loopfs-{}", std::process::id()));
        fs::create_dir(&dir).unwrap();
        for kind in [FsKind::Ext4, FsKind::Xfs] {
            let made = LoopFs::new(&dir, "self", 320 << 20, kind, true);
            if !requires(&format!("{kind:?} on loop: {:?}", made.as_ref().err()), made.is_ok()) {
                continue;
            }
            let made = made.unwrap();
            made.stable_writes(true).unwrap();
            fs::write(made.path().join("file"), "bytes").unwrap();
            let (at, name) = (made.path(), made.device().name());
            let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(move || {
                let _held = made;
                panic!("on purpose");
            }));
            assert!(panicked.is_err() && !mounted(&at));
            let backing = format!("/sys/block/{name}/loop/backing_file");
            assert!(fs::read_to_string(backing).map_or(true, |b| !b.contains("loopfs-self")));
        }
        fs::remove_dir(&dir).expect("nothing is left in it");
    }

    /// P2: a sweep cleans up after a killed process.
    #[test]
    fn sweep_unmounts_leftovers_of_killed_process() {
        if !root() {
            return;
        }
        let dir = std::env::temp_dir().join(format!("forebay-sweep-{}", std::process::id()));
        // Process ids are below 2^22.
        let folder = dir.join(format!("{PREFIX}x-0-4194305"));
        fs::create_dir_all(folder.join("mnt")).unwrap();
        fs::write(image_in(&folder), vec![0u8; 1 << 20]).unwrap();
        let device = LoopDev::attach(&image_in(&folder), false);
        if requires(&format!("a loop device: {:?}", device.as_ref().err()), device.is_ok()) {
            let device = std::mem::ManuallyDrop::new(device.unwrap());
            sweep(&dir);
            let backing = fs::read_to_string(device.sys("loop/backing_file"));
            // Another process may have the device open now: then the kernel detaches it at its
            // close.
            let goes = fs::read_to_string(device.sys("loop/autoclear"));
            let goes = goes.is_ok_and(|flag| flag.trim() == "1");
            assert!(goes || backing.map_or(true, |b| !b.contains("forebay-sweep")));
            assert!(!folder.exists());
        }
        fs::remove_dir_all(&dir).unwrap();
    }
}
