//! Loop devices of the kernel: over memory, for callers that need an empty block device, and over a
//! file.
//!
//! Invariants: X1 the device is removed with its last user. A [`MemoryLoop`] or [`FileLoop`] is one
//! while it lives, a mount is another. A process that dies leaves none.
//!
//! No locks.

use forebay_base::{Error, ErrorKind, Result};
use rustix::fs::MemfdFlags;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

const LOOP_CTL_GET_FREE: u32 = 0x4c82;
const LOOP_CONFIGURE: u32 = 0x4c0a;
const LO_FLAGS_READ_ONLY: u32 = 1;
const LO_FLAGS_AUTOCLEAR: u32 = 4;
const LO_FLAGS_PARTSCAN: u32 = 8;
const LO_FLAGS_DIRECT_IO: u32 = 16;
/// Attempts to get a free device; another process may take each one first.
const TRIES: u32 = 64;

/// `struct loop_config`: descriptor, block size, `struct loop_info64`, reserved.
#[repr(C)]
struct LoopConfig {
    fd: u32,
    block_size: u32,
    info: LoopInfo,
    reserved: [u64; 8],
}

/// `struct loop_info64`.
#[repr(C)]
struct LoopInfo {
    device_to_size_limit: [u64; 5],
    number: u32,
    encrypt_type: u32,
    encrypt_key_size: u32,
    flags: u32,
    file_name: [u8; 64],
    crypt_name: [u8; 64],
    encrypt_key: [u8; 32],
    init: [u64; 2],
}

/// A loop device over memory.
#[derive(Debug)]
pub struct MemoryLoop {
    path: PathBuf,
    _device: File,
}

fn ioctl(fd: BorrowedFd<'_>, request: u32, argument: *const LoopConfig) -> std::io::Result<i32> {
    // SAFETY: LOOP_CONFIGURE reads `argument`, a complete structure that outlives the call.
    // LOOP_CTL_GET_FREE has no argument.
    let done = unsafe { libc::ioctl(fd.as_raw_fd(), request as _, argument) };
    if done < 0 { Err(std::io::Error::last_os_error()) } else { Ok(done) }
}

impl MemoryLoop {
    /// Makes a device of `bytes` zero bytes. `name` appears in lists of loop devices.
    pub fn attach(name: &str, bytes: u64) -> Result<Self> {
        // memfd_create(2) accepts names of 249 bytes.
        let shown = String::from_utf8_lossy(&name.as_bytes()[..name.len().min(200)]);
        let memory = rustix::fs::memfd_create(&*shown, MemfdFlags::CLOEXEC)
            .and_then(|fd| rustix::fs::ftruncate(&fd, bytes).map(|()| fd))
            .map_err(|e| Error::from_io("make a loop device", e.into()))?;
        let (path, device) = attach(memory.as_fd(), name, 0, LO_FLAGS_AUTOCLEAR)?;
        Ok(Self { path, _device: device })
    }

    /// `/dev/loopN`.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// A loop device over an open file, bypassing the kernel's cache of that file (X1).
#[derive(Debug)]
pub struct FileLoop {
    path: PathBuf,
    device: File,
}

impl FileLoop {
    /// Makes a loop device over `file`, whose access mode must permit the requested one.
    /// `block_bytes` is the size of its logical blocks. With `partitions` the kernel scans for
    /// them. `Unsupported` if the file's own file system has no direct I/O.
    pub fn attach(
        file: &File,
        name: &str,
        block_bytes: u32,
        read_only: bool,
        partitions: bool,
    ) -> Result<Self> {
        let mut flags = LO_FLAGS_AUTOCLEAR | LO_FLAGS_DIRECT_IO;
        flags |= if read_only { LO_FLAGS_READ_ONLY } else { 0 };
        flags |= if partitions { LO_FLAGS_PARTSCAN } else { 0 };
        let (path, device) = attach(file.as_fd(), name, block_bytes, flags)?;
        let made = Self { path, device };
        match made.attribute("loop/dio")?.trim() {
            "1" => Ok(made),
            _ => {
                let text = "the kernel goes through its own cache";
                Err(Error::new(ErrorKind::Unsupported, "make a loop device", text))
            }
        }
    }

    /// `/dev/loopN`.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn attribute(&self, name: &str) -> Result<String> {
        let device = self.path.file_name().unwrap_or_default();
        let path = Path::new("/sys/block").join(device).join(name);
        std::fs::read_to_string(&path).map_err(|e| Error::from_io("read", e).with_path(path))
    }

    /// `Busy` if it is mounted, or another opener holds it exclusively.
    pub fn check_free(&self) -> Result<()> {
        let mut options = File::options();
        options.read(true).custom_flags(libc::O_EXCL);
        let opened = options.open(&self.path).map(drop);
        opened.map_err(|e| Error::from_io("look whether it is in use", e).with_path(&self.path))
    }

    /// Writes data cached by the kernel for the device to the file, durably.
    pub fn sync(&self) -> Result<()> {
        self.device.sync_all().map_err(|e| Error::from_io("sync", e).with_path(&self.path))
    }
}

/// Makes a loop device over an open file: its path, and the device, which is its first user.
fn attach(
    file: BorrowedFd<'_>,
    name: &str,
    block_bytes: u32,
    flags: u32,
) -> Result<(PathBuf, File)> {
    let control = open(Path::new("/dev/loop-control"))?;
    for _ in 0..TRIES {
        let free = ioctl(control.as_fd(), LOOP_CTL_GET_FREE, std::ptr::null());
        let number = free.map_err(|e| Error::from_io("find a free loop device", e))?;
        let path = PathBuf::from(format!("/dev/loop{number}"));
        let device = open(&path)?;
        match configure(&device, file, name, block_bytes, flags) {
            Ok(()) => return Ok((path, device)),
            Err(e) if e.raw_os_error() == Some(libc::EBUSY) => {}
            Err(e) => return Err(Error::from_io("make a loop device", e).with_path(path)),
        }
    }
    Err(Error::new(ErrorKind::Busy, "find a free loop device", "others took each"))
}

fn open(path: &Path) -> Result<File> {
    File::options()
        .read(true)
        .write(true)
        .open(path)
        .map_err(|e| Error::from_io("open", e).with_path(path))
}

fn configure(
    device: &File,
    file: BorrowedFd<'_>,
    name: &str,
    block_size: u32,
    flags: u32,
) -> std::io::Result<()> {
    let mut file_name = [0; 64];
    let shown = &name.as_bytes()[..name.len().min(63)];
    file_name[..shown.len()].copy_from_slice(shown);
    let info = LoopInfo {
        device_to_size_limit: [0; 5],
        number: 0,
        encrypt_type: 0,
        encrypt_key_size: 0,
        flags,
        file_name,
        crypt_name: [0; 64],
        encrypt_key: [0; 32],
        init: [0; 2],
    };
    let fd = file.as_raw_fd() as u32;
    let config = LoopConfig { fd, block_size, info, reserved: [0; 8] };
    ioctl(device.as_fd(), LOOP_CONFIGURE, &config).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loop_structures_have_kernel_sizes() {
        assert_eq!(size_of::<LoopInfo>(), 232);
        assert_eq!(size_of::<LoopConfig>(), 304);
    }

    /// X1, where the system permits loop devices.
    #[test]
    fn x1_loop_device_detaches_after_last_close() {
        // Another process may get the device's number as soon as it is free.
        let ours = format!("forebay-test-{}", std::process::id());
        let size = |path: &Path| {
            let device = Path::new("/sys/block").join(path.file_name().unwrap());
            let text = std::fs::read_to_string(device.join("size")).unwrap();
            let backing = std::fs::read_to_string(device.join("loop/backing_file"));
            (text.trim().parse::<u64>().unwrap(), backing.is_ok_and(|text| text.contains(&ours)))
        };
        let made = match MemoryLoop::attach(&ours, 64 << 10) {
            Ok(made) => made,
            Err(e) => {
                let allowed = std::env::var("FOREBAY_ALLOW_SKIP").is_ok_and(|v| v == "1");
                assert!(allowed, "loop devices need root: {e}");
                return;
            }
        };
        let path = made.path().to_path_buf();
        assert_eq!(size(&path), (128, true));
        drop(made);
        // The kernel clears it on the last close, perhaps a little later from its work queue.
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
        while size(&path).1 && std::time::Instant::now() < deadline {
            std::thread::yield_now();
        }
        assert!(!size(&path).1, "{} is still there", path.display());
    }
}
