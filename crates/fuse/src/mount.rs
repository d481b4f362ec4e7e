//! Makes a mount and ends it.
//!
//! ```text
//!   root:        type fuseblk.forebay on a loop device of 64 KiB of memory
//!                else type fuse.forebay
//!   other users: fusermount3, which passes /dev/fuse over a socket
//! ```
//! Invariants: W1 a mount that failed leaves neither a mount nor a loop device. W2 the kernel
//! checks permissions by mode bits (`default_permissions`), also if other users have access.
//!
//! No locks.

use crate::options::{Options, Via};
use forebay_base::{Error, ErrorKind, Result};
use forebay_block::loopdev::MemoryLoop;
use rustix::fd::OwnedFd;
use rustix::fs::{AtFlags, CWD, Mode, OFlags, StatxFlags};
use rustix::io::Errno;
use rustix::mount::UnmountFlags;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketFlags,
};
use rustix::net::{SocketType, recvmsg, socketpair};
use std::ffi::CString;
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Size of the loop device, bytes; the type `fuseblk` needs a block device, which is not used.
const DUMMY_BYTES: u64 = 64 << 10;
/// The set-user-ID helper of FUSE for users other than root.
const HELPER: &str = "fusermount3";

/// Type of a mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MountKind {
    /// The kernel passes umount(2), sync(2) and syncfs(2) on to the daemon.
    Block,
    /// The kernel does not pass them on: data becomes durable by fsync, by `forebay umount`, or by
    /// later write-back.
    Plain,
}

/// A mount that no daemon serves yet: every call on it waits.
#[derive(Debug)]
pub struct Mounted {
    device: OwnedFd,
    /// The type of the mount.
    pub kind: MountKind,
    /// The directory of the mount, with all symbolic links resolved.
    pub dir: PathBuf,
    /// The device number of the mount, major and minor.
    pub number: (u32, u32),
}

impl Mounted {
    /// Returns the connection, for a [`crate::Session`].
    pub fn into_device(self) -> OwnedFd {
        self.device
    }

    /// For tests: a mount with a given connection.
    #[cfg(test)]
    pub(crate) fn of(device: OwnedFd, kind: MountKind, dir: PathBuf, number: (u32, u32)) -> Self {
        Self { device, kind, dir, number }
    }
}

fn fail(op: &'static str, path: &Path, e: Errno) -> Error {
    Error::from_io(op, e.into()).with_path(path)
}

/// Makes a mount on a directory.
pub fn mount(dir: &Path, options: &Options) -> Result<Mounted> {
    let dir = std::fs::canonicalize(dir).map_err(|e| Error::from_io("mount", e).with_path(dir))?;
    if !dir.is_dir() {
        return Err(Error::new(ErrorKind::NotDirectory, "mount", "").with_path(dir));
    }
    let root = rustix::process::geteuid().is_root();
    let (device, kind) = match options.via {
        Via::Block => (block(&dir, options)?, MountKind::Block),
        Via::Plain => (plain(&dir, options)?, MountKind::Plain),
        Via::Helper => (by_helper(&dir, options)?, MountKind::Plain),
        Via::Auto if !root => (by_helper(&dir, options)?, MountKind::Plain),
        Via::Auto => match block(&dir, options) {
            Ok(device) => (device, MountKind::Block),
            Err(e) => {
                log::warn!("umount(2) and sync(2) will not reach this mount: {e}");
                (plain(&dir, options)?, MountKind::Plain)
            }
        },
    };
    let number = number_of(&dir)?;
    Ok(Mounted { device, kind, dir, number })
}

/// Device number of the file system that is mounted on `dir`, without a request to its daemon.
pub(crate) fn number_of(dir: &Path) -> Result<(u32, u32)> {
    let flags = AtFlags::STATX_DONT_SYNC | AtFlags::NO_AUTOMOUNT | AtFlags::SYMLINK_NOFOLLOW;
    let stat = rustix::fs::statx(CWD, dir, flags, StatxFlags::empty());
    let stat = stat.map_err(|e| fail("look at", dir, e))?;
    Ok((stat.stx_dev_major, stat.stx_dev_minor))
}

fn open_device() -> Result<OwnedFd> {
    let path = Path::new("/dev/fuse");
    rustix::fs::open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
        .map_err(|e| fail("open", path, e))
}

fn options_text(device: &OwnedFd, more: &str) -> CString {
    let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
    let text = format!(
        "fd={},rootmode=40000,user_id={},group_id={},default_permissions,allow_other{more}",
        device.as_raw_fd(),
        uid.as_raw(),
        gid.as_raw()
    );
    CString::new(text).expect("numbers and words have no NUL")
}

fn block(dir: &Path, options: &Options) -> Result<OwnedFd> {
    let device = open_device()?;
    // Tools such as `losetup` show the name of the loop device's backing file.
    let dummy = MemoryLoop::attach(&options.source, DUMMY_BYTES)?;
    let text = options_text(&device, ",blksize=4096");
    rustix::mount::mount(dummy.path(), dir, "fuseblk.forebay", options.flags, &*text)
        .map_err(|e| fail("mount", dir, e))?;
    // From here on only the mount uses the loop device, which is detached with it.
    Ok(device)
}

fn plain(dir: &Path, options: &Options) -> Result<OwnedFd> {
    let device = open_device()?;
    let text = options_text(&device, "");
    rustix::mount::mount(&*options.source, dir, "fuse.forebay", options.flags, &*text)
        .map_err(|e| fail("mount", dir, e))?;
    Ok(device)
}

/// The mount options for the helper.
fn helper_words(options: &Options) -> String {
    use rustix::mount::MountFlags as F;
    let source = options.source.replace('\\', "\\\\").replace(',', "\\,");
    let mut words = format!("fsname={source},subtype=forebay,default_permissions");
    let flags =
        [(F::RDONLY, "ro"), (F::NOSUID, "nosuid"), (F::NODEV, "nodev"), (F::NOEXEC, "noexec")];
    let more =
        flags.iter().filter(|(flag, _)| options.flags.contains(*flag)).map(|(_, word)| *word);
    for word in more.chain(options.allow_other.then_some("allow_other")) {
        words.push(',');
        words.push_str(word);
    }
    words
}

fn by_helper(dir: &Path, options: &Options) -> Result<OwnedFd> {
    let (ours, theirs) =
        socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
            .map_err(|e| fail("mount", dir, e))?;
    let mut command = Command::new(HELPER);
    command.arg("-o").arg(helper_words(options)).arg("--").arg(dir);
    // The socket is the helper's standard input, so that no other child process inherits it.
    command.env("_FUSE_COMMFD", "0").stdin(Stdio::from(theirs)).stderr(Stdio::piped());
    let output = command.output().map_err(|e| {
        let text = "mounting without root needs fusermount3 (package fuse3)";
        Error::new(ErrorKind::Unsupported, "mount", format!("{text}: {e}"))
    })?;
    // `Command` keeps a copy of the helper's end of the socket, so it is closed here.
    drop(command);
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr).trim().to_string();
        return Err(Error::new(ErrorKind::Permission, "mount", said).with_path(dir));
    }
    received(&ours).ok_or_else(|| {
        Error::new(ErrorKind::Io, "mount", "fusermount3 passed no device").with_path(dir)
    })
}

fn received(socket: &OwnedFd) -> Option<OwnedFd> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0; 1];
    let mut parts = [IoSliceMut::new(&mut byte)];
    recvmsg(socket, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC).ok()?;
    control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
        _ => None,
    })
}

/// Ends a mount. With `lazy` the mount disappears at once and is released after its last use;
/// without it a mount in use is `Busy`.
pub fn unmount(dir: &Path, lazy: bool) -> Result<()> {
    let flags = if lazy { UnmountFlags::DETACH } else { UnmountFlags::empty() };
    match rustix::mount::unmount(dir, flags | UnmountFlags::NOFOLLOW) {
        Err(Errno::PERM) => {
            let mut command = Command::new(HELPER);
            command.arg(if lazy { "-uz" } else { "-u" }).arg("--").arg(dir).stdin(Stdio::null());
            let output =
                command.output().map_err(|e| Error::from_io("umount", e).with_path(dir))?;
            let said = String::from_utf8_lossy(&output.stderr).trim().to_string();
            let kind = if said.contains("busy") { ErrorKind::Busy } else { ErrorKind::Permission };
            match output.status.success() {
                true => Ok(()),
                false => Err(Error::new(kind, "umount", said).with_path(dir)),
            }
        }
        done => done.map_err(|e| fail("umount", dir, e)),
    }
}
