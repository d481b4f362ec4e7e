//! Whether direct I/O is possible on a file, what it needs, and the descriptor for it.

use super::kind::{Below, Kind};
use super::options::{DirectIo, FileOptions};
use crate::sys;
use forebay_base::buf::BUF_ALIGN;
use forebay_base::{Error, ErrorKind, Result};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, StatxFlags};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::OnceLock;

/// Alignments that direct I/O on this file needs.
pub(crate) struct Dio {
    /// Opened when it is first needed.
    pub fd: OnceLock<OwnedFd>,
    pub offset_align: u32,
    pub memory_align: u32,
}

/// Whether direct I/O is possible, or why not.
pub(crate) type Possible = std::result::Result<(), String>;

/// The last decision on direct I/O.
#[derive(Default)]
pub(crate) struct Decision {
    /// What was asked for.
    pub mode: DirectIo,
    /// The reason for its outcome.
    pub reason: String,
}

/// Finds the alignments that direct I/O on this file needs, or why it is not possible (lineage.L1).
pub(crate) fn direct(
    path: &Path,
    fd: BorrowedFd<'_>,
    below: &Below,
    options: &FileOptions,
) -> std::result::Result<Dio, String> {
    let magic = rustix::fs::fstatfs(fd).map(|s| s.f_type as u64).unwrap_or(0);
    let is_block = below_is_block(fd);
    if magic == libc::TMPFS_MAGIC as u64 && !is_block {
        return Err("the file lives in memory (tmpfs)".into());
    }
    let (offset_align, memory_align) = alignments(fd, || below.logical)?;
    let block = if options.logical_block == 0 { 4096 } else { options.logical_block };
    if offset_align > block {
        return Err(format!(
            "direct I/O needs blocks of {offset_align} bytes, the logical block has {block}"
        ));
    }
    if !options.offset.is_multiple_of(u64::from(offset_align)) {
        let offset = options.offset;
        return Err(format!("the offset {offset} is no multiple of {offset_align}"));
    }
    if memory_align as usize > BUF_ALIGN {
        return Err(format!("memory would have to be aligned to {memory_align} bytes"));
    }
    let direct = Dio { fd: OnceLock::new(), offset_align, memory_align };
    if options.direct_io != DirectIo::Off {
        direct.open(path, fd, options.read_only).map_err(|e| format!("O_DIRECT: {e}"))?;
    }
    Ok(direct)
}

impl Dio {
    /// Whether direct I/O is possible now, or why not (lineage.L1): the storage below the file may
    /// have changed. The layers above keep the alignments that it needed when the file was opened.
    pub fn check(&self, fd: BorrowedFd<'_>, kind: Kind) -> Possible {
        let stat = rustix::fs::fstat(fd).map_err(|e| e.to_string())?;
        let logical = || Below::of(fd, kind, &stat).logical;
        let (offset_align, memory_align) = alignments(fd, logical)?;
        if offset_align > self.offset_align || memory_align > self.memory_align {
            return Err(format!(
                "it needs offsets aligned to {offset_align} and memory to {memory_align} by now, \
                 and was opened with {} and {}",
                self.offset_align, self.memory_align
            ));
        }
        Ok(())
    }

    /// Opens the file for direct I/O, once: a file without it takes one descriptor, not two. The
    /// caller has locked `fd`, and shares its lock with the new descriptor (file.F1). One call at a
    /// time.
    pub fn open(&self, path: &Path, fd: BorrowedFd<'_>, read_only: bool) -> std::io::Result<()> {
        if self.fd.get().is_none() {
            let opened = reopen(path, fd, read_only)?;
            sys::share_lock(fd, opened.as_fd(), !read_only)?;
            let first = self.fd.set(opened);
            debug_assert!(first.is_ok(), "under `switching`, or before the file is shared");
        }
        Ok(())
    }
}

fn below_is_block(fd: BorrowedFd<'_>) -> bool {
    rustix::fs::fstat(fd).is_ok_and(|s| FileType::from_raw_mode(s.st_mode) == FileType::BlockDevice)
}

/// Alignment of offsets and of memory, bytes. `logical`: the block size of the device below.
fn alignments(
    fd: BorrowedFd<'_>,
    logical: impl FnOnce() -> u32,
) -> std::result::Result<(u32, u32), String> {
    let asked = rustix::fs::statx(fd, c"", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN);
    match asked {
        Ok(x) if x.stx_mask & StatxFlags::DIOALIGN.bits() != 0 => {
            if x.stx_dio_offset_align == 0 {
                return Err("the file system does not support it on this file".into());
            }
            Ok((x.stx_dio_offset_align, x.stx_dio_mem_align.max(1)))
        }
        // An older kernel: the block size of the device is safe for both.
        _ => {
            let logical = logical();
            Ok((logical, logical))
        }
    }
}

/// Opens the same file again, with O_DIRECT: by its descriptor, because the path may name another
/// file by now. Without /proc it opens the path, and checks that this is the same file.
fn reopen(path: &Path, fd: BorrowedFd<'_>, read_only: bool) -> std::io::Result<OwnedFd> {
    let access = if read_only { OFlags::RDONLY } else { OFlags::RDWR };
    let flags = access | OFlags::CLOEXEC | OFlags::DIRECT;
    let by_fd = format!("/proc/self/fd/{}", fd.as_raw_fd());
    let opened = match rustix::fs::open(by_fd.as_str(), flags, Mode::empty()) {
        Err(rustix::io::Errno::NOENT) => rustix::fs::open(path, flags, Mode::empty())?,
        other => other?,
    };
    let (a, b) = (rustix::fs::fstat(fd)?, rustix::fs::fstat(&opened)?);
    if (a.st_dev, a.st_ino) != (b.st_dev, b.st_ino) {
        return Err(std::io::Error::other("the path names another file by now"));
    }
    Ok(opened)
}

impl DirectIo {
    /// Decides, for a mode, whether direct I/O is on, and why.
    pub(crate) fn decide(self, possible: Possible) -> Result<(bool, String)> {
        match (self, possible) {
            (Self::Off, _) => Ok((false, "switched off".into())),
            (Self::Auto, Ok(_)) => Ok((true, "auto: the file is eligible".into())),
            (Self::On, Ok(_)) => Ok((true, "switched on".into())),
            (Self::Auto, Err(why)) => Ok((false, format!("auto: {why}"))),
            (Self::On, Err(why)) => {
                Err(Error::new(ErrorKind::Unsupported, "turn direct I/O on", why))
            }
        }
    }
}
