//! A volume: a file system in one image, in this process.
//!
//! Reading order: this file creates, opens and closes volumes; `names` has the calls by path, in
//! the manner of [`std::fs`]; [`crate::open_volumes`] knows which volumes are open.
//!
//! Invariants: V1 an image is open once: its file is locked against other processes, and a caller
//! that opens it again on the same cache shares the volume. V2 all files of a volume use the cache
//! and the budget that the volume was opened on. V3 dropping the last handle of a volume makes
//! everything durable first; [`Volume::close`] reports whether that worked.
//!
//! Locks: those of [`crate::open_volumes`].

mod names;

pub use names::ReadDir;

use crate::cache::Cache;
use crate::map::{Residency, residency};
use crate::open_volumes::{Found, Open};
use forebay_base::buf::AlignedBuf;
use forebay_base::task::block_on;
use forebay_base::units::MIB;
use forebay_base::world::RealWorld;
use forebay_base::{Error, ErrorKind, Result};
use forebay_block::{
    Aio, BlockDevice, DeviceRef, DirectIo, Engine, FileDevice, FileIdentity, FileOptions,
};
use forebay_cache::strategy::StablePages;
pub use forebay_lfs::{
    AllocMode, AllocStats, CleanStats, FileExtent, HeldBack, LostContent, LostFile, SpaceStats,
    VolumeInfo,
};
pub use forebay_lfs::{Finding, FindingKind, FsckProgress, FsckReport};
use forebay_vfs::{FileSystem, Ino, NotifyingFs, OpenFlags, ReadOnly, StatFs, Timestamp};
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{SystemTime, UNIX_EPOCH};

/// Largest default segment, bytes.
const SEGMENT_BYTES_MAX: u64 = 64 * MIB;
/// Smallest segment, bytes.
const SEGMENT_BYTES_MIN: u64 = 64 << 10;
/// The default segment size gives a volume about this many segments.
const SEGMENTS_WANTED: u64 = 128;
/// Bytes at either end of a block device that must be zero before a volume is created on it.
const LOOK_BYTES: u64 = MIB;

/// How a volume is made.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct CreateVolume {
    /// Bytes of the image; `None`: the size of the file or of the block device. A new file needs
    /// a size.
    pub size: Option<u64>,
    /// Bytes of a block, a power of two: 512 to 4096.
    pub block_size: u32,
    /// Bytes of a segment, a power of two: 64 KiB to 1 GiB. `None`: 64 MiB, less for a small
    /// volume.
    pub segment_size: Option<u32>,
    /// Blocks of files have checksums.
    pub checksums: bool,
    /// Create it even if the image has content, which is lost.
    pub force: bool,
    /// Keep the blocks that the host has allocated to an existing image, so that no write has to
    /// allocate one. Otherwise the image is made sparse.
    pub keep_blocks: bool,
}

setters! { CreateVolume:
    size: u64 => Some,
    block_size: u32,
    segment_size: u32 => Some,
    checksums: bool,
    force: bool,
    keep_blocks: bool,
}

impl Default for CreateVolume {
    fn default() -> Self {
        let (size, segment_size, force, keep_blocks) = Default::default();
        Self { size, block_size: 4096, segment_size, checksums: true, force, keep_blocks }
    }
}

/// How a volume is opened.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct VolumeOptions {
    /// Opens for reading only: nothing is written to the image, and several processes may have it
    /// open that way.
    pub read_only: bool,
    /// Whether to bypass the system's page cache below the volume.
    pub direct_io: DirectIo,
    /// Reads do not change `atime`.
    pub noatime: bool,
    /// Owner and group of new files; `None`: those of this process.
    pub owner: Option<(u32, u32)>,
    /// With `read_only`: ignore this many of the newest checkpoints, if they are damaged.
    pub passed_over: u32,
    /// How blocks for data are allocated.
    pub alloc: AllocMode,
    /// With [`AllocMode::Serialized`]: direct writes of at least this many pages of 4 KiB allocate
    /// one at a time. 0 is always, the largest number never.
    pub serialized_dio_pages: u32,
    /// The cleaner starts in the background when less than this percentage of the segments is free.
    /// 0: only when there is no space. At most 50.
    pub clean_percent: u32,
    /// Discard freed blocks on the device or in the image's file system.
    pub discard: bool,
}

setters! { VolumeOptions:
    read_only: bool,
    direct_io: DirectIo,
    noatime: bool,
    owner: (u32, u32) => Some,
    passed_over: u32,
    alloc: AllocMode,
    serialized_dio_pages: u32,
    clean_percent: u32,
    discard: bool,
}

impl Default for VolumeOptions {
    fn default() -> Self {
        Self {
            read_only: false,
            direct_io: DirectIo::Auto,
            noatime: false,
            owner: None,
            passed_over: 0,
            alloc: AllocMode::default(),
            serialized_dio_pages: forebay_lfs::alloc::SERIALIZED_DIO_PAGES,
            clean_percent: forebay_lfs::CLEAN_PERCENT,
            discard: false,
        }
    }
}

/// An open volume. Clones share it.
#[derive(Clone)]
pub struct Volume {
    pub(crate) open: Arc<Open>,
    /// Dropped last: the cache is there until the volume is closed.
    cache: Cache,
}

impl std::fmt::Debug for Volume {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Volume")
            .field("path", &self.open.path)
            .field("read_only", &self.open.read_only)
            .finish_non_exhaustive()
    }
}

impl Volume {
    /// Creates an empty volume in a file, which is created sparse if it is missing, or on a block
    /// device. Errors: `Exists` if there is a volume or any other content and `options.force` is
    /// not set; `Busy` if it is open; `InvalidInput` for sizes that contradict each other.
    pub fn create(path: impl AsRef<Path>, options: &CreateVolume) -> Result<()> {
        let path = path.as_ref();
        create(path, options).map_err(|e| e.with_path(path))
    }

    /// Opens a volume on a cache, whose budget it uses, and recovers it first if needed. A volume
    /// that is already open on this cache is shared with its options. Errors: `Busy` if another
    /// process or cache has it open, or if it is open here for reading only and the caller wants to
    /// write; `Corrupt`; `Unsupported` features, by name.
    pub fn open(cache: &Cache, path: impl AsRef<Path>, options: &VolumeOptions) -> Result<Self> {
        let path = path.as_ref();
        open(cache, path, options).map_err(|e| e.with_path(path))
    }

    /// Checks a complete volume that is not open for writing, and writes nothing. Its tables take
    /// at most 64 MiB, whatever the size of the volume. Calls `progress` now and then. Errors: the
    /// volume is in use, is no volume, or has features that this release cannot read.
    pub fn fsck(
        path: impl AsRef<Path>,
        progress: &mut (dyn FnMut(FsckProgress) + Send),
    ) -> Result<FsckReport> {
        let path = path.as_ref();
        let options = FileOptions { read_only: true, ..FileOptions::default() };
        let checked = Engine::new(Aio::Threads).and_then(|engine| {
            let device: DeviceRef = FileDevice::open(path, &options, &engine)?;
            block_on(forebay_lfs::fsck(&device, &RealWorld::new(), progress))
        });
        checked.map_err(|e| e.with_path(path))
    }

    /// Makes a volume larger that is not open. Returns its superblock before and after. `size`:
    /// bytes of the image, and a file is extended to it; `None`: the size of the file or the block
    /// device. Errors: `Busy`; `InvalidInput` for a size that is not larger by at least a segment.
    pub fn grow(path: impl AsRef<Path>, size: Option<u64>) -> Result<(VolumeInfo, VolumeInfo)> {
        let path = path.as_ref();
        let grown = Engine::new(Aio::Threads).and_then(|engine| {
            let device: DeviceRef = FileDevice::open(path, &FileOptions::default(), &engine)?;
            block_on(forebay_lfs::grow(&device, size))
        });
        grown.map_err(|e| e.with_path(path))
    }

    /// Makes everything durable and closes the volume. No handle of the volume or of its files can
    /// change anything any more, and the next open finds the volume clean. The image is released
    /// with the last of these handles.
    pub fn close(self) -> Result<()> {
        self.open.close().map_err(|e| e.with_path(self.path()))
    }

    /// Makes all earlier changes durable.
    pub fn sync(&self) -> Result<()> {
        block_on(self.open.fs.syncfs())
    }

    /// Space and inodes of the volume, as statfs(2) has them.
    pub fn statfs(&self) -> Result<StatFs> {
        block_on(self.open.fs.statfs())
    }

    /// Path of the image, as it was given.
    pub fn path(&self) -> &Path {
        &self.open.path
    }

    /// The identity of the image: its device and inode number, or the number of a block device.
    pub fn identity(&self) -> FileIdentity {
        self.open.key
    }

    /// Opened for reading only.
    pub fn read_only(&self) -> bool {
        self.open.read_only
    }

    /// Whether direct I/O is on below the cache, and why.
    pub fn direct_io(&self) -> (bool, String) {
        self.open.device.direct_io()
    }

    /// The mode of direct I/O that was set last.
    pub fn direct_io_mode(&self) -> DirectIo {
        self.open.device.direct_io_mode()
    }

    /// Syncs the volume, before direct I/O is switched.
    fn write_out(&self) -> Result<()> {
        match self.read_only() {
            true => Ok(()),
            false => self.sync().map_err(|e| e.with_path(self.path())),
        }
    }

    /// Switches direct I/O below the volume while it is in use, as [`crate::File::set_direct_io`]
    /// does for an image.
    pub fn set_direct_io(&self, mode: DirectIo) -> Result<()> {
        self.open.device.switch_direct_io(mode, || self.write_out())
    }

    /// With the mode `Auto`, decides about direct I/O again, as [`crate::File::refresh_direct_io`]
    /// does.
    pub fn refresh_direct_io(&self) -> Result<bool> {
        self.open.device.refresh_direct_io(|| self.write_out())
    }

    /// Bytes of a block: the unit of content, of checksums and of state in the cache.
    pub fn block_size(&self) -> u32 {
        self.open.volume.map_info().unit
    }

    /// Whether the cache keeps bytes of files from changing while in flight, and why. Files with a
    /// setting of their own may differ.
    pub fn stable_pages_required(&self) -> (bool, &'static str) {
        let limits = self.open.volume.map_info();
        match self.cache.shared.pages.strategies.stable_pages() {
            StablePages::On => (true, "switched on"),
            StablePages::Off if !limits.sums => (false, "switched off"),
            _ => (limits.stable.required, limits.stable.reason),
        }
    }

    /// Whether the device below needs bytes that do not change while in flight, and why.
    pub fn device_stable_pages_required(&self) -> (bool, &'static str) {
        let need = self.open.device.limits().stable_writes;
        (need.required, need.reason)
    }

    /// The cache it is open on.
    pub fn cache(&self) -> &Cache {
        &self.cache
    }

    /// The volume as front ends use it: by inode number and name, asynchronous. A front end also
    /// keeps the [`Volume`] for as long as it uses this. If the volume is mounted, changes made
    /// here invalidate what the mount has cached.
    pub fn file_system(&self) -> Arc<dyn FileSystem> {
        self.open.fs.clone()
    }

    /// The volume for its mount, which is notified of changes made by all other front ends.
    pub fn to_mount(&self) -> Arc<NotifyingFs> {
        self.open.notifying.clone()
    }

    /// All extents of a file, in order; each is one run on the device.
    pub fn extents(&self, ino: Ino) -> Result<Vec<FileExtent>> {
        block_on(self.open.volume.extents(ino))
    }

    /// What of a file's content is in the cache.
    pub fn residency(&self, ino: Ino) -> Result<Residency> {
        // The open file keeps its mapping until the result is there.
        let file = block_on(self.open.fs.open(ino, OpenFlags::READ))?;
        let size = block_on(self.open.fs.getattr(ino))?.size;
        let mapped = self.open.volume.mapped_file(file.ino())?;
        Ok(residency(&mapped, 0, size))
    }

    /// How blocks for data are allocated.
    pub fn alloc_mode(&self) -> AllocMode {
        self.open.volume.alloc_mode()
    }

    /// Counters of the allocator since the volume was opened.
    pub fn alloc_stats(&self) -> AllocStats {
        self.open.volume.alloc_stats()
    }

    /// Counters of the cleaner since the volume was opened.
    pub fn clean_stats(&self) -> CleanStats {
        self.open.volume.clean_stats()
    }

    /// The use of its segments now: what is live, and what is held back from writers.
    pub fn space_stats(&self) -> SpaceStats {
        self.open.volume.space_stats()
    }

    /// The files with content that the device has lost since the volume was opened: at most `most`
    /// of them, with at most `most` ranges each, in bytes.
    pub fn lost_content(&self, most: usize) -> LostContent {
        self.open.volume.lost_content(most)
    }

    /// The damage of the volume, if any. Either recovery found its log damaged and read it up to
    /// that position; or content or a node of its tree was lost since, and the volume turned
    /// read-only.
    pub fn damage(&self) -> Option<Error> {
        self.open.volume.damage()
    }

    /// The content of its superblock.
    pub fn info(&self) -> Result<VolumeInfo> {
        let device: DeviceRef = self.open.device.clone();
        block_on(forebay_lfs::probe(&device)).map_err(|e| e.with_path(self.path()))
    }
}

impl Cache {
    /// Opens a volume on this cache: [`Volume::open`].
    pub fn open_volume(&self, path: impl AsRef<Path>, options: &VolumeOptions) -> Result<Volume> {
        Volume::open(self, path, options)
    }
}

fn invalid<T>(op: &'static str, text: impl Into<String>) -> Result<T> {
    Err(Error::new(ErrorKind::InvalidInput, op, text))
}

/// The default segment size of a volume of `size` bytes.
pub fn segment_for(size: u64) -> u32 {
    let largest = (size / SEGMENTS_WANTED).max(1);
    let power = 1 << largest.ilog2();
    power.clamp(SEGMENT_BYTES_MIN, SEGMENT_BYTES_MAX) as u32
}

/// Random bytes of the system.
fn random() -> Result<[u8; 16]> {
    let mut bytes = [0; 16];
    let read = File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut bytes));
    read.map(|()| bytes).map_err(|e| Error::from_io("read /dev/urandom", e))
}

fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp::new(i64::try_from(since.as_secs()).unwrap_or(i64::MAX), since.subsec_nanos())
}

/// Whether the device is all zeros where file systems and partition tables have their signatures.
fn is_blank(device: &dyn BlockDevice) -> Result<bool> {
    let look = LOOK_BYTES.min(device.size());
    // Aligned, because the device may be open with O_DIRECT.
    let mut bytes = AlignedBuf::new(look as usize);
    for offset in [0, device.size() - look] {
        device.read_into(offset, &mut bytes)?;
        if bytes.iter().any(|byte| *byte != 0) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Refuses to create a volume over existing content, unless `force` is set.
fn check_free(path: &Path, device: &DeviceRef, force: bool) -> Result<()> {
    if force || device.size() == 0 {
        return Ok(());
    }
    let is_block = std::fs::metadata(path).is_ok_and(|m| m.file_type().is_block_device());
    if block_on(forebay_lfs::probe(device)).is_ok() {
        return Err(Error::new(ErrorKind::Exists, "create", "there is a volume already"));
    }
    match is_block {
        true if is_blank(&**device)? => Ok(()),
        true => Err(Error::new(ErrorKind::Exists, "create", "the device is not blank")),
        false => Err(Error::new(ErrorKind::Exists, "create", "the file is not empty")),
    }
}

fn create(path: &Path, options: &CreateVolume) -> Result<()> {
    let there = std::fs::metadata(path).ok();
    let is_block = there.as_ref().is_some_and(|m| m.file_type().is_block_device());
    if options.size.is_none() && there.as_ref().is_none_or(|m| !is_block && m.len() == 0) {
        return invalid("create", "a new volume needs a size");
    }
    let engine = Engine::new(Aio::Threads)?;
    // Created empty, so that an invalid size leaves no content behind.
    let create_size = (!is_block && there.is_none()).then_some(0);
    let size_limit = options.size.filter(|_| is_block);
    let file_options = FileOptions { create_size, size_limit, ..FileOptions::default() };
    let device = FileDevice::open(path, &file_options, &engine)?;
    let made = make_on(path, &device, is_block, options);
    if made.is_err() && there.is_none() {
        // This call created it, and it is empty.
        let _gone = std::fs::remove_file(path);
    }
    made
}

fn make_on(
    path: &Path,
    device: &Arc<FileDevice>,
    is_block: bool,
    options: &CreateVolume,
) -> Result<()> {
    let any: DeviceRef = device.clone();
    check_free(path, &any, options.force)?;
    let size = options.size.unwrap_or(device.size());
    if is_block && size > device.size() {
        let text = format!("{size} bytes on a device of {}", device.size());
        return invalid("create", text);
    }
    let segment_bytes = options.segment_size.unwrap_or_else(|| segment_for(size));
    let mut uuid = random()?;
    // Version 4, variant 1.
    (uuid[6], uuid[8]) = (uuid[6] & 0x0f | 0x40, uuid[8] & 0x3f | 0x80);
    let making = forebay_lfs::CreateOptions {
        block_bytes: options.block_size,
        segment_bytes,
        sums: options.checksums,
        ..forebay_lfs::CreateOptions::new(uuid, random()?, now())
    };
    making.check(size)?;
    if !is_block {
        // Old content in kept blocks does no harm: docs/reference/format.md, on discarded blocks.
        device.truncate(if options.keep_blocks { size.min(device.size()) } else { 0 })?;
        device.grow(size)?;
    }
    block_on(forebay_lfs::Volume::create(&any, &RealWorld::new(), &making))?;
    sync_folder(path)
}

/// Makes the name of a new file durable, which needs a sync of its folder.
fn sync_folder(path: &Path) -> Result<()> {
    let parent = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let synced = File::open(parent).and_then(|folder| folder.sync_all());
    synced.map_err(|e| Error::from_io("sync the folder", e))
}

fn open(cache: &Cache, path: &Path, options: &VolumeOptions) -> Result<Volume> {
    let key = FileIdentity::of_path(path)?;
    let claim = match cache.shared.volumes.claim(key)? {
        Found::Open(open) if open.read_only && !options.read_only => {
            let text = "it is open already, for reading only";
            return Err(Error::new(ErrorKind::Busy, "open", text));
        }
        Found::Open(open) => return Ok(Volume { open, cache: cache.clone() }),
        Found::Free(claim) => claim,
    };
    let file_options = FileOptions {
        read_only: options.read_only,
        direct_io: options.direct_io,
        ..FileOptions::default()
    };
    let device = FileDevice::open(path, &file_options, &cache.shared.engine)?;
    if device.identity()? != key {
        return Err(Error::new(ErrorKind::Busy, "open", "the path leads elsewhere by now"));
    }
    let gone = claim.gone();
    device.until_closed(gone.clone());
    let opening = forebay_lfs::OpenOptions {
        cache: Some(cache.shared.pages.clone()),
        noatime: options.noatime || options.read_only,
        read_only: options.read_only,
        passed_over: options.passed_over,
        alloc: options.alloc,
        serialized_dio_pages: options.serialized_dio_pages,
        clean_percent: options.clean_percent,
        discard: options.discard,
        of_budget: true,
        ..forebay_lfs::OpenOptions::default()
    };
    let any: DeviceRef = device.clone();
    let world = cache.shared.pages.world.clone();
    let volume = block_on(forebay_lfs::Volume::open(&any, &world, &opening))?;
    let writable: Arc<dyn FileSystem> = Arc::new(volume.clone());
    let fs = if options.read_only { Arc::new(ReadOnly::new(writable)) } else { writable };
    let notifying = Arc::new(NotifyingFs::new(fs));
    let open = Arc::new(Open {
        fs: notifying.clone(),
        notifying,
        volume,
        device,
        path: path.to_path_buf(),
        key,
        read_only: options.read_only,
        closed: AtomicBool::new(false),
        owner: options.owner.unwrap_or_else(own),
    });
    claim.opened(&open, &gone);
    Ok(Volume { open, cache: cache.clone() })
}

/// User and group of this process.
fn own() -> (u32, u32) {
    std::fs::metadata("/proc/self").map_or((0, 0), |m| (m.uid(), m.gid()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_follow_the_size() {
        for (size, segment) in [
            (2 << 20, 64 << 10),
            (64 << 20, 512 << 10),
            (100 << 20, 512 << 10),
            (1 << 30, 8 << 20),
            (2 << 30, 16 << 20),
            (8 << 30, 64 << 20),
            (1 << 40, 64 << 20),
        ] {
            assert_eq!(segment_for(size), segment, "{size}");
        }
        assert_eq!(segment_for(0), 64 << 10);
    }
}
