//! What a device lies on: a regular file or a block special file, its size, and the blocks of the
//! device below.

use crate::check::SECTOR;
use crate::sys;
use forebay_base::{Error, Result};
use rustix::fs::Stat;
use std::fs;
use std::os::fd::BorrowedFd;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Regular,
    Block,
}

/// The size of the file, bytes.
pub(crate) fn size_of(fd: BorrowedFd<'_>, kind: Kind) -> Result<u64> {
    match kind {
        Kind::Regular => rustix::fs::fstat(fd)
            .map(|s| s.st_size as u64)
            .map_err(|e| Error::from_io("size", e.into())),
        Kind::Block => sys::block_size(fd).map_err(|e| Error::from_io("size", e)),
    }
}

/// Properties of the block device under the file.
pub(crate) struct Below {
    pub logical: u32,
    pub physical: u32,
}

impl Below {
    pub fn of(fd: BorrowedFd<'_>, kind: Kind, stat: &Stat) -> Self {
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
