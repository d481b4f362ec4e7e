//! The file systems that are compared: a mount of Forebay, an empty FUSE server, XFS on a loop
//! device, the host's own file system.
//!
//! To the clients each is a plain directory. Each rival is configured at its best: see
//! [`Making::best`], and [`crate::rivals::empty`]. Files on the host are removed at the end.

use crate::harness::backing::Backing;
use crate::harness::image::{drop_file_cache, open_with};
use crate::harness::options::Options;
use crate::report::model::Report;
use crate::rivals::empty::Empty;
use crate::rivals::kernel::KernelFile;
use crate::rivals::loopdev::{FsKind, LoopDev, LoopFs, Making};
use crate::rivals::mounted::{Mounted, Mounting};
use crate::volume::places::{Opened, write_all};
use forebay_base::units::MIB;
use forebay_base::{Error, Result};
use rustix::fs::OFlags;
use std::path::{Path, PathBuf};

/// Kind of a file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who {
    /// A volume of Forebay, with checksums.
    Ours,
    /// A volume of Forebay, mounted with `cache=own`.
    Own,
    /// A volume of Forebay on a loop device like that of XFS.
    OursOnLoop,
    /// The empty FUSE server.
    Empty,
    /// XFS on a loop device.
    Xfs,
    /// The host's file system.
    Host,
}

/// The kinds that most parts compare.
pub const ALL: [Who; 4] = [Who::Ours, Who::Empty, Who::Xfs, Who::Host];

impl Who {
    /// Name of the variant.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ours => "mount",
            Self::Own => "mount-own",
            Self::OursOnLoop => "mount-on-loop",
            Self::Empty => "empty-fuse",
            Self::Xfs => "xfs-on-loop",
            Self::Host => "host",
        }
    }
}

/// Parameters that all file systems of a part share.
#[derive(Clone, Copy, Debug)]
pub struct Plot<'a> {
    /// Options of the run.
    pub options: &'a Options,
    /// Name of the part.
    pub part: &'static str,
    /// Bytes of each image, and how its file is made.
    pub image: (u64, Backing),
    /// Size of Forebay's cache, bytes.
    pub cache: u64,
}

/// A directory on the host, removed on drop.
struct HostFolder(PathBuf);

impl Drop for HostFolder {
    fn drop(&mut self) {
        let _removed = std::fs::remove_dir_all(&self.0);
    }
}

enum Kind {
    Ours(Mounted),
    Empty(Empty),
    Xfs(LoopFs),
    Host(HostFolder),
}

/// One of the file systems that are compared.
pub struct Ground {
    /// Name of the variant.
    pub name: &'static str,
    kind: Kind,
}

impl Ground {
    /// Makes it, empty.
    pub fn new(plot: &Plot<'_>, who: Who) -> Result<Self> {
        let (dir, part, (size, backing)) = (&plot.options.dir, plot.part, plot.image);
        let kind = match who {
            Who::Ours | Who::Own | Who::OursOnLoop => {
                let how = Mounting::new(size, plot.cache, &plot.options.aio).on(backing);
                let how = match who {
                    Who::Own => how.with("cache=own"),
                    Who::OursOnLoop => how.on_loop(),
                    _ => how,
                };
                Kind::Ours(Mounted::new(dir, part, how)?)
            }
            Who::Empty => Kind::Empty(Empty::new(dir, part)?),
            Who::Xfs => {
                let how = Making::best(backing);
                Kind::Xfs(LoopFs::with(dir, part, size.max(320 * MIB), FsKind::Xfs, &how)?)
            }
            Who::Host => {
                let name = format!("forebay-bench-host-{part}-{}", std::process::id());
                let folder = HostFolder(dir.join(name));
                let fail = |e| Error::from_io("make", e).with_path(&folder.0);
                std::fs::create_dir(&folder.0).map_err(fail)?;
                Kind::Host(folder)
            }
        };
        Ok(Self { name: who.name(), kind })
    }

    /// The mount point.
    pub fn path(&self) -> PathBuf {
        match &self.kind {
            Kind::Ours(mounted) => mounted.path(),
            Kind::Empty(empty) => empty.path(),
            Kind::Xfs(fs) => fs.path(),
            Kind::Host(folder) => folder.0.clone(),
        }
    }

    /// The mount, if it is one of Forebay.
    pub fn ours(&mut self) -> Option<&mut Mounted> {
        match &mut self.kind {
            Kind::Ours(mounted) => Some(mounted),
            _ => None,
        }
    }

    /// The loop device below it, if it has one.
    pub fn device(&self) -> Option<&LoopDev> {
        match &self.kind {
            Kind::Ours(mounted) => mounted.device(),
            Kind::Xfs(fs) => Some(fs.device()),
            _ => None,
        }
    }

    /// Whether its cached names can be dropped: on the host that would drop the names of all other
    /// programs, too.
    pub fn forgets_names(&self) -> bool {
        !matches!(self.kind, Kind::Host(_))
    }

    /// Drops everything cached; on the host only the content. No file on it may be open.
    pub fn remount(&mut self) -> Result<()> {
        match &mut self.kind {
            Kind::Ours(mounted) => mounted.remount(),
            Kind::Empty(empty) => empty.remount(),
            Kind::Xfs(fs) => {
                fs.unmount()?;
                fs.remount()
            }
            Kind::Host(folder) => {
                let fail = |e| Error::from_io("drop cache", e);
                for entry in std::fs::read_dir(&folder.0).map_err(fail)?.flatten() {
                    if entry.file_type().is_ok_and(|kind| kind.is_file()) {
                        drop_file_cache(&open_with(&entry.path(), OFlags::empty())?)
                            .map_err(fail)?;
                    }
                }
                Ok(())
            }
        }
    }

    /// Opens a file for reading and writing; creates it if it does not exist.
    pub fn file(&self, name: &str) -> Result<KernelFile> {
        Ok(KernelFile::new(open_with(&self.path().join(name), OFlags::CREATE)?))
    }

    /// Makes a file of `size` bytes of non-repeating data, and syncs it.
    pub fn fill(&self, name: &str, size: u64) -> Result<()> {
        let file = self.file(name)?;
        write_all(&file, size, size ^ name.len() as u64)?;
        file.sync()
    }

    /// Makes everything on it durable.
    pub fn sync(&self) -> Result<()> {
        sync_at(&self.path())
    }
}

/// syncfs(2) of the file system that contains `path`.
pub fn sync_at(path: &Path) -> Result<()> {
    let fail = |e| Error::from_io("syncfs", e).with_path(path);
    let dir = std::fs::File::open(path).map_err(fail)?;
    rustix::fs::syncfs(&dir).map_err(|e| fail(e.into()))
}

/// Makes all file systems that this machine can have; reports the others as not run.
pub fn all(plot: &Plot<'_>, who: &[Who], report: &mut Report) -> Vec<Ground> {
    let mut grounds = Vec::new();
    for who in who {
        match Ground::new(plot, *who) {
            Ok(ground) => grounds.push(ground),
            Err(e) => report.left_out(&format!("mount {} on {}", plot.part, who.name()), e),
        }
    }
    grounds
}
