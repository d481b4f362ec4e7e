//! The file system of the database and the files that are backed up: XFS on a loop device, or a
//! mounted volume. Both hold the same bytes. Each measurement begins with nothing cached, because
//! an unmount has dropped the caches.

use crate::harness::backing::Backing;
use crate::rivals::loopdev::{FsKind, LoopFs, Making};
use crate::rivals::mounted::Mounted;
use forebay_base::{Error, Result};
use std::fs;
use std::path::{Path, PathBuf};

/// XFS on a loop device, or a mount.
pub enum Fixture {
    /// Configured at its best: direct, sectors of 4 KiB.
    Xfs(LoopFs),
    /// A volume of Forebay.
    Forebay(Mounted),
}

impl Fixture {
    /// XFS on a file of `size` bytes.
    pub fn xfs(dir: &Path, size: u64) -> Result<Self> {
        let how = Making::best(Backing::Sparse);
        Ok(Self::Xfs(LoopFs::with(dir, "pgbench", size.max(320 << 20), FsKind::Xfs, &how)?))
    }

    /// The mount point.
    pub fn path(&self) -> PathBuf {
        match self {
            Self::Xfs(fs) => fs.path(),
            Self::Forebay(mounted) => mounted.path(),
        }
    }

    /// Mounts it again, with nothing cached.
    pub fn remount(&self) -> Result<()> {
        match self {
            Self::Xfs(fs) => {
                fs.unmount()?;
                fs.remount()
            }
            Self::Forebay(mounted) => mounted.remount(),
        }
    }

    /// Bytes of a file that are cached, by the kernel or by the daemon.
    pub fn cached_bytes(&self, file: &Path) -> Result<u64> {
        let fail = |e| Error::from_io("page cache", e).with_path(file);
        let open = fs::File::open(file).map_err(fail)?;
        let len = open.metadata().map_err(fail)?.len();
        let kernel = crate::harness::sys::page_cache_bytes(&open, 0, len).map_err(fail)?;
        match self {
            Self::Forebay(mounted) => Ok((kernel + mounted.cached_bytes(file)?).min(len)),
            Self::Xfs(_) => Ok(kernel),
        }
    }
}
