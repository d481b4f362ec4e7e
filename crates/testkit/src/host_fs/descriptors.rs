//! The host's inodes by number, each with an `O_PATH` descriptor, and the errors of its calls.
//!
//! Locks: one for the table of descriptors; not held across system calls that may wait.

use forebay_base::{Error, ErrorKind, Result};
use forebay_vfs::{Attr, FileKind, Ino, OpenFlags, Timestamp};
use rustix::fs::{AtFlags, OFlags, Statx, StatxFlags};
use std::collections::BTreeMap;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex};

/// Descriptors kept of inodes that are not open.
const KEPT: usize = 128;

struct Known {
    fd: Arc<OwnedFd>,
    opens: u32,
    serial: u64,
}

#[derive(Default)]
pub struct Table {
    inodes: BTreeMap<u64, Known>,
    serial: u64,
}

/// The descriptors of a directory of the host, for its file system and open files.
pub struct Shared {
    pub root: Arc<OwnedFd>,
    pub root_number: u64,
    pub table: Mutex<Table>,
}

pub fn fail(op: &'static str, e: rustix::io::Errno) -> Error {
    // In the contract these errnos have kinds of their own.
    let kinds = [
        (ErrorKind::NotFound, 2),
        (ErrorKind::PastEnd, 6),
        (ErrorKind::TooBig, 7),
        (ErrorKind::BadHandle, 9),
        (ErrorKind::NotPermitted, 1),
        (ErrorKind::Exists, 17),
        (ErrorKind::NotDirectory, 20),
        (ErrorKind::IsDirectory, 21),
        (ErrorKind::NotEmpty, 39),
        (ErrorKind::TooManyLinks, 31),
        (ErrorKind::NameTooLong, 36),
        (ErrorKind::FileTooLarge, 27),
        (ErrorKind::NoAttribute, 61),
        (ErrorKind::SymlinkLoop, 40),
        (ErrorKind::DoesNotFit, 34),
    ];
    let raw = e.raw_os_error();
    match kinds.iter().find(|(_, errno)| *errno == raw) {
        Some((kind, _)) => Error::new(*kind, op, e.to_string()),
        None => Error::from_io(op, e.into()),
    }
}

pub fn refuse<T>(kind: ErrorKind, op: &'static str) -> Result<T> {
    Err(Error::new(kind, op, "said by the adapter"))
}

pub fn proc_path(fd: &OwnedFd) -> String {
    format!("/proc/self/fd/{}", fd.as_raw_fd())
}

pub fn stat(fd: &OwnedFd) -> Result<Statx> {
    let what = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
    rustix::fs::statx(fd, "", AtFlags::EMPTY_PATH, what).map_err(|e| fail("stat", e))
}

pub fn time(t: rustix::fs::StatxTimestamp) -> Timestamp {
    Timestamp::new(t.tv_sec, t.tv_nsec)
}

pub fn kind_of(fd: &OwnedFd) -> Result<FileKind> {
    Ok(FileKind::of_mode(u32::from(stat(fd)?.stx_mode)).expect("the host knows seven kinds"))
}

pub fn open_bits(flags: OpenFlags) -> OFlags {
    let access = match (flags.contains(OpenFlags::READ), flags.contains(OpenFlags::WRITE)) {
        (true, true) => OFlags::RDWR,
        (false, true) => OFlags::WRONLY,
        _ => OFlags::RDONLY,
    };
    let truncate = flags.contains(OpenFlags::TRUNCATE);
    let bits = if truncate { OFlags::TRUNC } else { OFlags::empty() };
    access | bits | OFlags::CLOEXEC | OFlags::NONBLOCK
}

impl Shared {
    pub fn number(&self, host: u64) -> Ino {
        if host == self.root_number { Ino::ROOT } else { Ino(host + 16) }
    }

    pub fn fd(&self, ino: Ino) -> Result<Arc<OwnedFd>> {
        if ino == Ino::ROOT {
            return Ok(self.root.clone());
        }
        match self.table.lock().unwrap().inodes.get(&ino.0) {
            Some(known) => Ok(known.fd.clone()),
            None => refuse(ErrorKind::Stale, "find"),
        }
    }

    pub fn attr(&self, fd: &OwnedFd) -> Result<Attr> {
        let stat = stat(fd)?;
        Ok(Attr {
            ino: self.number(stat.stx_ino),
            generation: 0,
            kind: kind_of(fd)?,
            perm: stat.stx_mode & 0o7777,
            nlink: stat.stx_nlink,
            uid: stat.stx_uid,
            gid: stat.stx_gid,
            rdev: stat.stx_rdev_major << 8 | stat.stx_rdev_minor,
            size: stat.stx_size,
            allocated_bytes: stat.stx_blocks * 512,
            atime: time(stat.stx_atime),
            mtime: time(stat.stx_mtime),
            ctime: time(stat.stx_ctime),
            btime: time(stat.stx_btime),
        })
    }

    /// Keeps a descriptor for the inode; drops old ones of inodes that are not open.
    pub fn know(&self, fd: OwnedFd) -> Result<Attr> {
        let attr = self.attr(&fd)?;
        let mut table = self.table.lock().unwrap();
        table.serial += 1;
        let (serial, fd) = (table.serial, Arc::new(fd));
        let known = Known { fd, opens: 0, serial };
        table.inodes.entry(attr.ino.0).or_insert(known).serial = serial;
        if table.inodes.len() > 2 * KEPT {
            let oldest = serial - KEPT as u64;
            table.inodes.retain(|_, known| known.opens > 0 || known.serial > oldest);
        }
        Ok(attr)
    }

    pub fn count(&self, ino: Ino, up: bool) {
        if let Some(known) = self.table.lock().unwrap().inodes.get_mut(&ino.0) {
            known.opens = if up { known.opens + 1 } else { known.opens - 1 };
        }
    }

    pub fn is_open(&self, ino: Ino) -> bool {
        let table = self.table.lock().unwrap();
        ino == Ino::ROOT || table.inodes.get(&ino.0).is_some_and(|known| known.opens > 0)
    }
}
