//! The file systems that hold the files of a part: a volume of Forebay, a file system of the kernel
//! on a loop device, the host's.
//!
//! Invariants: P1 all places of a part have images of one size, and files with the same content. P2
//! a file is completely written and synced before anything is timed on it. P3 file systems on a
//! loop device have their best configuration: see [`Making::best`]. The kernel's read-ahead has its
//! default.

use crate::dirty::Subject;
use crate::harness::backing::{BackedImage, Backing};
use crate::harness::image::{Rng, drop_file_cache, open_with};
use crate::harness::load::Target;
use crate::harness::machine::{device_stat, sectors_written};
use crate::harness::options::Options;
use crate::report::model::Report;
use crate::rivals::kernel::KernelFile;
use crate::rivals::loopdev::{FsKind, LoopFs, Making};
use crate::rivals::volume::{OurVolume, VolumeFile, VolumeSpec};
use forebay_base::buf::AlignedBuf;
use forebay_base::units::MIB;
use forebay_base::{Error, Result};
use rustix::fs::OFlags;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard};

/// A file that can be synced.
pub trait Opened: Target + Sync {
    /// Makes the file's content durable: fdatasync.
    fn sync(&self) -> Result<()>;

    /// Makes the file's content and attributes durable: fsync.
    fn sync_all(&self) -> Result<()>;
}

impl Opened for VolumeFile {
    fn sync(&self) -> Result<()> {
        self.sync_data()
    }

    fn sync_all(&self) -> Result<()> {
        Self::sync_all(self)
    }
}

impl Opened for KernelFile {
    fn sync(&self) -> Result<()> {
        self.file.sync_data().map_err(|e| Error::from_io("fdatasync", e))
    }

    fn sync_all(&self) -> Result<()> {
        self.file.sync_all().map_err(|e| Error::from_io("fsync", e))
    }
}

/// Kind of a file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who {
    /// A volume of Forebay, with checksums.
    Volume,
    /// A volume of Forebay, without checksums.
    VolumeNoSums,
    /// A file system of the kernel on a loop device.
    Loop(FsKind),
    /// The host's own file system, without a loop device.
    Host,
}

/// Forebay and all rivals.
pub const ALL: [Who; 5] = [
    Who::Volume,
    Who::Loop(FsKind::Xfs),
    Who::Loop(FsKind::Ext4),
    Who::Loop(FsKind::Btrfs),
    Who::Host,
];

impl Who {
    /// Name of the variant.
    pub fn name(self, backing: Backing) -> &'static str {
        let names = match self {
            Self::Volume => ["volume", "volume-sparse", "volume-prealloc"],
            Self::VolumeNoSums => {
                ["volume-nosums", "volume-nosums-sparse", "volume-nosums-prealloc"]
            }
            Self::Loop(FsKind::Xfs) => {
                ["xfs-on-loop", "xfs-on-loop-sparse", "xfs-on-loop-prealloc"]
            }
            Self::Loop(FsKind::Ext4) => {
                ["ext4-on-loop", "ext4-on-loop-sparse", "ext4-on-loop-prealloc"]
            }
            Self::Loop(FsKind::Btrfs) => {
                ["btrfs-on-loop", "btrfs-on-loop-sparse", "btrfs-on-loop-prealloc"]
            }
            Self::Loop(FsKind::F2fs) => {
                ["f2fs-on-loop", "f2fs-on-loop-sparse", "f2fs-on-loop-prealloc"]
            }
            Self::Host => ["host", "host", "host"],
        };
        let at = match backing {
            Backing::Written => 0,
            Backing::Sparse => 1,
            Backing::Preallocated => 2,
        };
        names[at]
    }
}

/// Parameters that all places of a part share.
#[derive(Clone, Copy, Debug)]
pub struct Ground<'a> {
    /// Options of the run.
    pub options: &'a Options,
    /// Name of the part.
    pub part: &'static str,
    /// Bytes of each image.
    pub image_bytes: u64,
    /// Size of Forebay's cache, bytes.
    pub budget: u64,
    /// Amount of dirty data at which Forebay starts write-back, bytes; `None`: the default.
    pub dirty_limit: Option<u64>,
}

enum Kind {
    /// `None` only while the volume is closed.
    Ours(Option<OurVolume>, BackedImage, Box<VolumeSpec>),
    Loop(LoopFs),
    Host(PathBuf),
}

/// A file system with the files of a part.
pub struct Place {
    /// Name of the variant.
    pub name: &'static str,
    kind: Kind,
    /// Files on the host's file system, removed at the end.
    made: Mutex<Vec<PathBuf>>,
}

impl Place {
    /// Makes it, empty.
    pub fn new(ground: &Ground<'_>, who: Who, backing: Backing) -> Result<Self> {
        let (options, bytes) = (ground.options, ground.image_bytes);
        let name = who.name(backing);
        let kind = match who {
            Who::Volume | Who::VolumeNoSums => {
                let label = format!("{}-{name}", ground.part);
                let image =
                    BackedImage::create(&options.dir, &label, bytes, backing, options.keep)?;
                let mut spec = VolumeSpec::new(&options.aio, bytes, ground.budget)?;
                spec.config.dirty_bytes = ground.dirty_limit;
                spec.config.dirty_background_bytes = ground.dirty_limit;
                let spec = if who == Who::Volume { spec } else { spec.without_sums() };
                Kind::Ours(Some(OurVolume::create(image.path(), &spec)?), image, Box::new(spec))
            }
            Who::Loop(fs) => {
                let how = Making::best(backing);
                let bytes = bytes.max(if fs == FsKind::Xfs { 320 * MIB } else { 128 * MIB });
                Kind::Loop(LoopFs::with(&options.dir, ground.part, bytes, fs, &how)?)
            }
            Who::Host => Kind::Host(options.dir.clone()),
        };
        Ok(Self { name, kind, made: Mutex::default() })
    }

    fn made(&self) -> MutexGuard<'_, Vec<PathBuf>> {
        self.made.lock().unwrap_or_else(|p| p.into_inner())
    }

    /// The volume of Forebay, while it is open.
    pub fn ours(&self) -> Option<&OurVolume> {
        match &self.kind {
            Kind::Ours(volume, ..) => volume.as_ref(),
            _ => None,
        }
    }

    /// Path of the image of Forebay's volume.
    pub fn image(&self) -> Option<&std::path::Path> {
        match &self.kind {
            Kind::Ours(_, image, _) => Some(image.path()),
            _ => None,
        }
    }

    /// Path of a file of this name; `None` on a volume of Forebay.
    pub fn path(&self, file: &str) -> Option<PathBuf> {
        match &self.kind {
            Kind::Ours(..) => None,
            Kind::Loop(fs) => Some(fs.path().join(file)),
            Kind::Host(dir) => {
                let path = dir.join(format!("forebay-bench-{file}-{}.img", std::process::id()));
                let mut made = self.made();
                if !made.contains(&path) {
                    made.push(path.clone());
                }
                Some(path)
            }
        }
    }

    /// Opens a file; creates it if it does not exist. `direct`: without the cache.
    pub fn file(&self, name: &str, direct: bool) -> Result<Box<dyn Opened + Send>> {
        if let Some(volume) = self.ours() {
            let flags = if direct { forebay::IoFlags::DIRECT } else { forebay::IoFlags::empty() };
            return Ok(Box::new(volume.file(name)?.with(flags)));
        }
        let path = self.path(name).expect("a place of the kernel's");
        let flags = if direct { OFlags::DIRECT } else { OFlags::empty() };
        Ok(Box::new(KernelFile::new(open_with(&path, flags | OFlags::CREATE)?)))
    }

    /// Removes a file.
    pub fn unlink(&self, name: &str) -> Result<()> {
        match (self.ours(), self.path(name)) {
            (Some(volume), _) => volume.unlink(name),
            (None, Some(path)) => {
                std::fs::remove_file(&path).map_err(|e| Error::from_io("unlink", e).with_path(path))
            }
            (None, None) => unreachable!("ours is open"),
        }
    }

    /// Makes a file of `size` bytes of non-repeating data, and syncs it (P2).
    pub fn fill(&self, name: &str, size: u64) -> Result<()> {
        let file = self.file(name, false)?;
        write_all(&*file, size, size ^ name.len() as u64)?;
        file.sync()
    }

    /// Bytes that any process has written to its device so far.
    pub fn device_bytes(&self) -> Result<u64> {
        match &self.kind {
            Kind::Ours(volume, ..) => Ok(volume.as_ref().map_or(0, OurVolume::device_bytes)),
            Kind::Loop(fs) => fs.device().written_bytes(),
            Kind::Host(dir) => sectors_written(&device_stat(dir)?),
        }
    }

    /// Closes the file system cleanly, so that nothing has to be recovered. The host's remains
    /// mounted. No file of it may be open.
    pub fn close(&mut self) -> Result<()> {
        match &mut self.kind {
            Kind::Ours(volume, ..) => volume.take().map_or(Ok(()), OurVolume::close),
            Kind::Loop(fs) => fs.unmount(),
            Kind::Host(_) => Ok(()),
        }
    }

    /// As [`Place::close`]; returns the bytes written until then, see [`Place::device_bytes`].
    pub fn closed_bytes(&mut self) -> Result<u64> {
        if let Kind::Ours(volume, ..) = &mut self.kind
            && let Some(volume) = volume.take()
        {
            return volume.close_counted().map(|(bytes, _)| bytes);
        }
        self.close()?;
        self.device_bytes()
    }

    /// Opens it again with nothing cached.
    pub fn open(&mut self) -> Result<()> {
        match &mut self.kind {
            Kind::Ours(volume, image, spec) => {
                *volume = Some(OurVolume::open(image.path(), spec)?);
            }
            Kind::Loop(fs) => fs.remount()?,
            Kind::Host(_) => {
                for path in self.made().iter().filter(|path| path.exists()) {
                    let file = open_with(path, OFlags::empty())?;
                    drop_file_cache(&file).map_err(|e| Error::from_io("drop cache", e))?;
                }
            }
        }
        Ok(())
    }

    /// Closes it cleanly and opens it again.
    pub fn reopen(&mut self) -> Result<()> {
        self.close()?;
        self.open()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        for path in self.made().iter() {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Writes `size` bytes from offset 0 on, 1 MiB at a time, determined by the seed. No two blocks of
/// 4 KiB are equal; making them different costs little compared with the write.
pub fn write_all(file: &dyn Opened, size: u64, seed: u64) -> Result<()> {
    let mut rng = Rng::new(seed);
    let mut chunk = AlignedBuf::new(MIB.min(size) as usize);
    for word in chunk.chunks_exact_mut(8) {
        word.copy_from_slice(&rng.draw().to_le_bytes());
    }
    let len = chunk.len() as u64;
    for at in (0..size).step_by(len as usize) {
        for block in chunk.chunks_exact_mut(4096) {
            block[..8].copy_from_slice(&rng.draw().to_le_bytes());
        }
        file.write(&chunk, at)?;
    }
    Ok(())
}

/// Makes all places that this machine can have; reports the others as not run.
pub fn all(
    ground: &Ground<'_>,
    who: &[Who],
    backings: &[Backing],
    report: &mut Report,
) -> Vec<Place> {
    let mut places: Vec<Place> = Vec::new();
    for who in who {
        for backing in backings {
            let name = who.name(*backing);
            // The host's file system has no image, so it is used once.
            if places.iter().any(|place| place.name == name) {
                continue;
            }
            match Place::new(ground, *who, *backing) {
                Ok(place) => places.push(place),
                Err(e) => report.left_out(&format!("{} on {name}", ground.part), e),
            }
        }
    }
    places
}

/// The files of a place as a subject that is written and synced.
pub struct Synced<'a> {
    /// The file system.
    pub place: &'a Place,
    /// One file for each job.
    pub files: Vec<Box<dyn Opened + Send>>,
    /// Syncs use fdatasync instead of fsync.
    pub data_only: bool,
}

impl Subject for Synced<'_> {
    fn write_synced(&self, job: usize, buf: &[u8], offset: u64) -> Result<()> {
        let file = &self.files[job];
        file.write(buf, offset)?;
        if self.data_only { file.sync() } else { file.sync_all() }
    }

    fn device_bytes(&self) -> Result<u64> {
        self.place.device_bytes()
    }
}
