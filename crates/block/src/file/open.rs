//! Opening a file or block special file: lock, size, and what direct I/O needs.

use super::dio::direct;
use super::gate::Gate;
use super::inner::Inner;
use super::kind::{Below, Kind, size_of};
use super::length::Length;
use super::lock::{lock, unlock};
use super::need::Need;
use super::options::FileOptions;
use crate::check::SECTOR;
use forebay_base::fork::Process;
use forebay_base::{Error, ErrorKind, Result};
use rustix::fs::{FileType, Mode, OFlags, Stat};
use rustix::io::Errno;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Mutex, OnceLock};

impl Inner {
    pub(crate) fn open(path: &Path, options: &FileOptions) -> Result<Self> {
        let (fd, resized) = open_fd(path, options)?;
        let stat = rustix::fs::fstat(&fd).map_err(|e| Error::from_io("open", e.into()))?;
        let kind = kind_of(FileType::from_raw_mode(stat.st_mode))?;
        lock(path, &fd, options)?;
        let found = Found::look(fd.as_fd(), kind, &stat, options, resized);
        let Found { resized, file_size, after, below } =
            found.inspect_err(|_| unlock(path, &fd))?;
        let wanted = options.logical_block;
        let dio = direct(path, fd.as_fd(), &below, options);
        let natural = if kind == Kind::Block { below.logical } else { SECTOR };
        let file = Self {
            path: path.to_path_buf(),
            kind,
            read_only: options.read_only,
            wanted_block: wanted,
            natural_block: natural.max(SECTOR),
            physical_block: below.physical.max(4096),
            need: Need::of(fd.as_fd(), kind, &stat),
            buffered: fd,
            dio,
            direct_on: AtomicBool::new(false),
            announced: AtomicBool::new(false),
            decision: Mutex::default(),
            turn: Mutex::default(),
            switching: Mutex::default(),
            edge: Mutex::default(),
            gate: Gate::default(),
            offset: options.offset,
            size: AtomicU64::new(after.min(options.size_limit.unwrap_or(u64::MAX))),
            length: Length::new(file_size),
            growable: kind == Kind::Regular && options.size_limit.is_none() && !options.read_only,
            inode: (stat.st_dev, stat.st_ino),
            disk: if kind == Kind::Block { stat.st_rdev } else { stat.st_dev },
            punch_ok: AtomicBool::new(true),
            zero_ok: AtomicBool::new(true),
            fast_zero_ok: AtomicBool::new(true),
            resized: AtomicBool::new(resized),
            sync_failures: AtomicU64::new(0),
            unreported_error: AtomicBool::new(false),
            opener: Process::current(),
            until_closed: OnceLock::new(),
        };
        let possible = file.dio.as_ref().map(drop).map_err(String::clone);
        file.set_direct(options.direct_io, possible)?;
        Ok(file)
    }
}

/// What a file that is locked has below it.
struct Found {
    /// It was given its size.
    resized: bool,
    file_size: u64,
    /// Bytes from the offset of the options to its end.
    after: u64,
    below: Below,
}

impl Found {
    /// Gives a new file its size, and checks the options.
    fn look(
        fd: BorrowedFd<'_>,
        kind: Kind,
        stat: &Stat,
        options: &FileOptions,
        is_new: bool,
    ) -> Result<Self> {
        let resized = resize_new(fd, kind, options, is_new)?;
        let file_size = size_of(fd, kind)?;
        let Some(after) = file_size.checked_sub(options.offset) else {
            let text = format!("offset {} lies beyond its end at {file_size}", options.offset);
            return Err(Error::new(ErrorKind::InvalidInput, "open", text));
        };
        let wanted = options.logical_block;
        if wanted != 0 && !(wanted.is_power_of_two() && (SECTOR..=4096).contains(&wanted)) {
            let text = format!("logical block {wanted}: a power of two from 512 to 4096");
            return Err(Error::new(ErrorKind::InvalidInput, "open", text));
        }
        Ok(Self { resized, file_size, after, below: Below::of(fd, kind, stat) })
    }
}

fn kind_of(file_type: FileType) -> Result<Kind> {
    match file_type {
        FileType::RegularFile => Ok(Kind::Regular),
        FileType::BlockDevice => Ok(Kind::Block),
        other => {
            let text = format!("neither a regular file nor a block device: {other:?}");
            Err(Error::new(ErrorKind::InvalidInput, "open", text))
        }
    }
}

fn open_fd(path: &Path, options: &FileOptions) -> Result<(OwnedFd, bool)> {
    let found = if options.no_follow { rustix::fs::lstat(path) } else { rustix::fs::stat(path) };
    let found = found.ok().map(|stat| FileType::from_raw_mode(stat.st_mode));
    if let Some(waits @ (FileType::Fifo | FileType::CharacterDevice)) = found {
        // open(2) of a FIFO waits for its other end, that of a terminal for its line.
        kind_of(waits)?;
    }
    let is_block = found == Some(FileType::BlockDevice);
    let mut flags = OFlags::CLOEXEC;
    flags |= if options.read_only { OFlags::RDONLY } else { OFlags::RDWR };
    // O_EXCL on a block device that is mounted, or part of another one, fails.
    flags.set(OFlags::EXCL, is_block && !options.read_only);
    flags.set(OFlags::NOFOLLOW, options.no_follow);
    let fail = |e: Errno| Error::from_io("open", e.into());
    match open_at_once(path, flags, is_block) {
        Err(Errno::NOENT) if options.create_size.is_some() && !options.read_only => {
            let fd = open_at_once(path, flags | OFlags::CREATE, is_block).map_err(fail)?;
            Ok((fd, true))
        }
        Err(Errno::LOOP) if options.no_follow => Err(super::identity::link_refused()),
        other => other.map(|fd| (fd, false)).map_err(fail),
    }
}

/// Opens a path that was no FIFO a moment ago, and may lead to one by now: does not wait for the
/// other end, and leaves it to the caller to refuse it. A block device is opened as it is: with
/// O_NONBLOCK some open without a medium.
fn open_at_once(path: &Path, flags: OFlags, is_block: bool) -> rustix::io::Result<OwnedFd> {
    let open = |more| rustix::fs::open(path, flags | more, Mode::from_raw_mode(0o644));
    if is_block {
        return open(OFlags::empty());
    }
    match open(OFlags::NONBLOCK) {
        // Another process has a lease on the file: this waits until it is given back.
        Err(Errno::AGAIN) => open(OFlags::empty()),
        Ok(fd) => {
            // The ring would return EAGAIN to requests on the file.
            rustix::fs::fcntl_setfl(&fd, OFlags::empty())?;
            Ok(fd)
        }
        failed => failed,
    }
}

/// Gives a new or empty file its size; whether it did.
fn resize_new(fd: BorrowedFd<'_>, kind: Kind, options: &FileOptions, new: bool) -> Result<bool> {
    let Some(size) = options.create_size.filter(|_| kind == Kind::Regular && !options.read_only)
    else {
        return Ok(false);
    };
    if !new && size_of(fd, kind)? != 0 {
        return Ok(false);
    }
    rustix::fs::ftruncate(fd, size).map_err(|e| Error::from_io("create", e.into()))?;
    Ok(true)
}
