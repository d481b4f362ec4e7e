//! Opening a file or block special file: lock, size, and whether direct I/O is possible.

use super::{Dio, DirectIo, FileOptions, Inner, Kind, Possible};
use crate::check::SECTOR;
use crate::sys;
use forebay_base::buf::BUF_ALIGN;
use forebay_base::{Error, ErrorKind, Result};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat, StatxFlags};
use std::fs;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Mutex, OnceLock};

impl Inner {
    pub(crate) fn open(path: &Path, options: &FileOptions) -> Result<Self> {
        let (fd, resized) = open_fd(path, options)?;
        let stat = rustix::fs::fstat(&fd).map_err(|e| Error::from_io("open", e.into()))?;
        let kind = match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => Kind::Regular,
            FileType::BlockDevice => Kind::Block,
            other => {
                let text = format!("neither a regular file nor a block device: {other:?}");
                return Err(Error::new(ErrorKind::InvalidInput, "open", text));
            }
        };
        super::lock::lock(path, &fd, options)?;
        let resized = resize_new(&fd, kind, options, resized)?;
        let file_size = size_of(fd.as_fd(), kind)?;
        let Some(after) = file_size.checked_sub(options.offset) else {
            let text = format!("offset {} lies beyond its end at {file_size}", options.offset);
            return Err(Error::new(ErrorKind::InvalidInput, "open", text));
        };
        let below = Below::of(fd.as_fd(), kind, &stat);
        let wanted = options.logical_block;
        if wanted != 0 && !(wanted.is_power_of_two() && (SECTOR..=4096).contains(&wanted)) {
            let text = format!("logical block {wanted}: a power of two from 512 to 4096");
            return Err(Error::new(ErrorKind::InvalidInput, "open", text));
        }
        let dio = direct(path, fd.as_fd(), &below, options);
        let natural = if kind == Kind::Block { below.logical } else { SECTOR };
        let file = Self {
            path: path.to_path_buf(),
            kind,
            read_only: options.read_only,
            wanted_block: wanted,
            natural_block: natural.max(SECTOR),
            physical_block: below.physical.max(4096),
            need: super::need::Need::of(fd.as_fd(), kind, &stat),
            buffered: fd,
            dio,
            direct_on: AtomicBool::new(false),
            announced: AtomicBool::new(false),
            decision: Mutex::default(),
            switching: Mutex::default(),
            edge: Mutex::default(),
            gate: super::gate::Gate::default(),
            offset: options.offset,
            size: AtomicU64::new(after.min(options.size_limit.unwrap_or(u64::MAX))),
            length: super::length::Length::new(file_size),
            growable: kind == Kind::Regular && options.size_limit.is_none() && !options.read_only,
            inode: (stat.st_dev, stat.st_ino),
            disk: if kind == Kind::Block { stat.st_rdev } else { stat.st_dev },
            punch_ok: AtomicBool::new(true),
            zero_ok: AtomicBool::new(true),
            fast_zero_ok: AtomicBool::new(true),
            resized: AtomicBool::new(resized),
            sync_failures: AtomicU64::new(0),
            unreported_error: AtomicBool::new(false),
            spares: std::sync::Arc::default(),
            until_closed: OnceLock::new(),
        };
        let possible = file.dio.as_ref().map(drop).map_err(String::clone);
        file.set_direct(options.direct_io, possible)?;
        Ok(file)
    }

    /// Whether direct I/O is possible now, or why not (checklist L1). The layers above align by
    /// what it needed when the file was opened, so a file that was not eligible then is not later
    /// either.
    pub(crate) fn check_direct(&self) -> Possible {
        let known = self.dio.as_ref().map_err(String::clone)?;
        let fd = self.buffered.as_fd();
        let stat = rustix::fs::fstat(fd).map_err(|e| e.to_string())?;
        let logical = || Below::of(fd, self.kind, &stat).logical;
        let (offset_align, memory_align) = alignments(fd, logical)?;
        if offset_align > known.offset_align || memory_align > known.memory_align {
            return Err(format!(
                "it needs offsets aligned to {offset_align} and memory to {memory_align} by now, \
                 and was opened with {} and {}",
                known.offset_align, known.memory_align
            ));
        }
        Ok(())
    }
}

fn open_fd(path: &Path, options: &FileOptions) -> Result<(OwnedFd, bool)> {
    let is_block = fs::metadata(path).is_ok_and(|m| {
        use std::os::unix::fs::FileTypeExt;
        m.file_type().is_block_device()
    });
    let mut flags = OFlags::CLOEXEC;
    flags |= if options.read_only { OFlags::RDONLY } else { OFlags::RDWR };
    // O_EXCL on a block device that is mounted, or part of another one, fails.
    flags.set(OFlags::EXCL, is_block && !options.read_only);
    let mode = Mode::from_raw_mode(0o644);
    let fail = |e: rustix::io::Errno| Error::from_io("open", e.into());
    match rustix::fs::open(path, flags, mode) {
        Err(rustix::io::Errno::NOENT) if options.create_size.is_some() && !options.read_only => {
            let fd = rustix::fs::open(path, flags | OFlags::CREATE, mode).map_err(fail)?;
            Ok((fd, true))
        }
        other => other.map(|fd| (fd, false)).map_err(fail),
    }
}

/// Gives a new or empty file its size; whether it did.
fn resize_new(fd: &OwnedFd, kind: Kind, options: &FileOptions, new: bool) -> Result<bool> {
    let Some(size) = options.create_size.filter(|_| kind == Kind::Regular && !options.read_only)
    else {
        return Ok(false);
    };
    if !new && size_of(fd.as_fd(), kind)? != 0 {
        return Ok(false);
    }
    rustix::fs::ftruncate(fd, size).map_err(|e| Error::from_io("create", e.into()))?;
    Ok(true)
}

pub(crate) fn size_of(fd: BorrowedFd<'_>, kind: Kind) -> Result<u64> {
    match kind {
        Kind::Regular => rustix::fs::fstat(fd)
            .map(|s| s.st_size as u64)
            .map_err(|e| Error::from_io("size", e.into())),
        Kind::Block => sys::block_size(fd).map_err(|e| Error::from_io("size", e)),
    }
}

/// Properties of the block device under the file.
struct Below {
    logical: u32,
    physical: u32,
}

impl Below {
    fn of(fd: BorrowedFd<'_>, kind: Kind, stat: &Stat) -> Self {
        let id = if kind == Kind::Block { stat.st_rdev } else { stat.st_dev };
        let (major, minor) = (rustix::fs::major(id), rustix::fs::minor(id));
        let read = |key: &str| {
            // A partition has its queue one directory up.
            ["", "/.."].iter().find_map(|up| {
                let file = format!("/sys/dev/block/{major}:{minor}{up}/queue/{key}");
                fs::read_to_string(file).ok()?.trim().parse::<u32>().ok()
            })
        };
        let asked = |call: fn(BorrowedFd<'_>) -> rustix::io::Result<u32>, key| match kind {
            Kind::Block => call(fd).ok(),
            Kind::Regular => read(key),
        };
        Self {
            logical: asked(|fd| rustix::fs::ioctl_blksszget(fd), "logical_block_size")
                .unwrap_or(SECTOR),
            physical: asked(|fd| rustix::fs::ioctl_blkpbszget(fd), "physical_block_size")
                .unwrap_or(SECTOR),
        }
    }
}

/// Finds the alignments that direct I/O on this file needs, or why it is not possible (checklist
/// L1).
fn direct(
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
    /// Opens the file for direct I/O, once: a file without it takes one descriptor, not two. The
    /// caller has locked `fd`, and shares its lock with the new descriptor (file.F1). One call at a
    /// time.
    pub(super) fn open(
        &self,
        path: &Path,
        fd: BorrowedFd<'_>,
        read_only: bool,
    ) -> std::io::Result<()> {
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

/// Opens the same file again, with O_DIRECT. Not by its path, which may lead to another file by
/// now.
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
