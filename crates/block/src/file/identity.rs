//! The identity of a file, whatever its path, and its size and times when last checked.

use super::FileDevice;
use super::kind::Kind;
use forebay_base::{Error, ErrorKind, Result};
use rustix::fs::{FileType, Stat};
use std::os::fd::AsFd;
use std::path::Path;
use std::time::{Duration, SystemTime};

/// Clocks of older file systems tick this slowly: a second change within a tick leaves no trace.
const TICK: Duration = Duration::from_millis(20);

/// Which file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FileIdentity {
    /// A regular file: device of its file system, inode.
    Inode(u64, u64),
    /// A block device, whatever node leads to it: its number.
    Block(u64),
}

impl FileIdentity {
    fn of(stat: &Stat) -> Self {
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::BlockDevice => Self::Block(stat.st_rdev),
            _ => Self::Inode(stat.st_dev, stat.st_ino),
        }
    }

    /// The identity of the file that a path leads to now. Errors: the system's.
    pub fn of_path(path: &Path) -> Result<Self> {
        let stat = rustix::fs::stat(path);
        let stat = stat.map_err(|e| Error::from_io("open", e.into()).with_path(path))?;
        Ok(Self::of(&stat))
    }

    /// The identity of the file at this path, without following a link. Errors: `SymlinkLoop` if
    /// the last name is a symbolic link; the system's.
    pub fn of_path_no_follow(path: &Path) -> Result<Self> {
        let stat = rustix::fs::lstat(path);
        let stat = stat.map_err(|e| Error::from_io("open", e.into()).with_path(path))?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Symlink => Err(link_refused().with_path(path)),
            _ => Ok(Self::of(&stat)),
        }
    }
}

pub(super) fn link_refused() -> Error {
    Error::new(ErrorKind::SymlinkLoop, "open", "the last name is a symbolic link")
}

/// A regular file's size and times: they change with its content.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FileStamp {
    size: u64,
    /// Seconds and nanoseconds.
    modified: (i64, u64),
    changed: (i64, u64),
}

impl FileStamp {
    /// Whether a change made now might not show in the stamp, because the last one is so recent.
    fn is_fresh(&self) -> bool {
        let Ok(now) = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH) else { return true };
        let last = self.modified.max(self.changed);
        let last = Duration::new(last.0.max(0) as u64, last.1 as u32);
        now.checked_sub(last).is_none_or(|age| age < TICK)
    }
}

impl FileDevice {
    /// Which file it is.
    pub fn identity(&self) -> Result<FileIdentity> {
        self.stat().map(|stat| FileIdentity::of(&stat))
    }

    fn stat(&self) -> Result<Stat> {
        let stat = rustix::fs::fstat(self.inner().buffered.as_fd());
        stat.map_err(|e| Error::from_io("stat", e.into()).with_path(&self.inner().path))
    }

    /// The file's current stamp. `None` for a block device, whose content changes without a trace.
    pub fn stamp(&self) -> Option<FileStamp> {
        if self.inner().kind == Kind::Block {
            return None;
        }
        let stat = self.stat().ok()?;
        Some(FileStamp {
            size: stat.st_size as u64,
            modified: (stat.st_mtime, stat.st_mtime_nsec),
            changed: (stat.st_ctime, stat.st_ctime_nsec),
        })
    }

    /// [`FileDevice::stamp`], if every change from now on shows in it.
    pub fn final_stamp(&self) -> Option<FileStamp> {
        self.stamp().filter(|stamp| !stamp.is_fresh())
    }
}
