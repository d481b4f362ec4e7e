//! Forebay's library with a volume: an image behind a cache, in this process.
//!
//! Invariant: V1 bytes are counted at the device of the volume: log, data, tree and superblock
//! slots are included.

use crate::harness::load::Target;
use crate::rivals::counted::Counted;
use forebay::Aio;
use forebay_base::task::block_on;
use forebay_base::units::GIB;
use forebay_base::world::{RealWorld, WorldRef};
use forebay_base::{Error, ErrorKind, IoFlags, Result};
use forebay_block::{DeviceRef, Engine, FileDevice, FileOptions};
use forebay_cache::{Config, PageCache};
use forebay_lfs::{CreateOptions, OpenOptions, Volume};
use forebay_vfs::{
    FileKind, FileSystem, Ino, Name, NewInode, OpenFileRef, OpenFlags, Privileges, StatFs,
    Timestamp,
};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How a volume is made and opened.
#[derive(Clone, Debug)]
pub struct VolumeSpec {
    /// File blocks have checksums.
    pub sums: bool,
    /// Bytes of a segment.
    pub segment_bytes: u32,
    /// Bytes of the cache.
    pub budget: u64,
    /// I/O engine.
    pub aio: Aio,
    /// Configuration of the cache: dirty tracking, stable-page strategy and others.
    pub config: Config,
    /// Whether checkpoints are made by age, by the bytes written since the last one, and by the
    /// memory of the changes. Otherwise they are made only when the log's share of the volume or
    /// the free space requires one, whatever memory the changes take.
    pub checkpoints: bool,
}

impl VolumeSpec {
    /// A volume with checksums, the default segment size for an image of `bytes` bytes, and a cache
    /// of `budget` bytes.
    pub fn new(aio: &str, bytes: u64, budget: u64) -> Result<Self> {
        let segment_bytes = forebay::segment_for(bytes);
        let config = Config::with_budget(budget);
        let aio = aio.parse()?;
        Ok(Self { sums: true, segment_bytes, budget, aio, config, checkpoints: true })
    }

    /// Without checksums.
    pub fn without_sums(mut self) -> Self {
        self.sums = false;
        self
    }
}

/// An open volume.
pub struct OurVolume {
    /// The volume.
    pub volume: Volume,
    /// The cache that its files go through.
    pub cache: Arc<PageCache>,
    device: Arc<Counted>,
    path: PathBuf,
    spec: VolumeSpec,
}

fn file_device(path: &Path, aio: Aio) -> Result<DeviceRef> {
    let engine = Engine::new(aio)?;
    let deadline = Instant::now() + Duration::from_secs(5);
    loop {
        match FileDevice::open(path, &FileOptions::default(), &engine) {
            // Background work of the last opening keeps the image locked for a moment.
            Err(e) if e.kind() == ErrorKind::Busy && Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(1));
            }
            opened => return Ok(opened?),
        }
    }
}

impl OurVolume {
    /// Makes a volume on the complete image and opens it.
    pub fn create(path: &Path, spec: &VolumeSpec) -> Result<Self> {
        let world = RealWorld::new();
        let device = file_device(path, spec.aio)?;
        Self::format(&device, &world, spec)?;
        drop(device);
        Self::open(path, spec)
    }

    fn format(device: &DeviceRef, world: &WorldRef, spec: &VolumeSpec) -> Result<()> {
        let bytes =
            || (u128::from(world.random()) << 64 | u128::from(world.random())).to_le_bytes();
        let options = CreateOptions {
            segment_bytes: spec.segment_bytes,
            sums: spec.sums,
            ..CreateOptions::new(bytes(), bytes(), Timestamp::new(1_700_000_000, 0))
        };
        block_on(Volume::create(device, world, &options))
    }

    /// Opens an existing volume.
    pub fn open(path: &Path, spec: &VolumeSpec) -> Result<Self> {
        let device = file_device(path, spec.aio)?;
        Self::open_on(device, path, spec)
    }

    /// Makes a volume on a device and opens it.
    pub fn create_on(device: DeviceRef, spec: &VolumeSpec) -> Result<Self> {
        Self::format(&device, &RealWorld::new(), spec)?;
        Self::open_on(device, Path::new(""), spec)
    }

    /// Opens the volume on a device.
    pub fn open_device(device: DeviceRef, spec: &VolumeSpec) -> Result<Self> {
        Self::open_on(device, Path::new(""), spec)
    }

    fn open_on(device: DeviceRef, path: &Path, spec: &VolumeSpec) -> Result<Self> {
        let world = RealWorld::new();
        let device = Counted::new(device);
        let cache = PageCache::new(spec.config.clone(), world.clone())?;
        let mut options = OpenOptions::default();
        (options.cache, options.noatime) = (Some(cache.clone()), true);
        options.of_budget = true;
        if !spec.checkpoints {
            (options.checkpoint_age, options.checkpoint_bytes) = (Duration::ZERO, u64::MAX);
            options.set_shares(spec.budget);
            (options.of_budget, options.overlay_bytes) = (false, 16 * GIB);
        }
        let lower: DeviceRef = device.clone();
        let volume = block_on(Volume::open(&lower, &world, &options))?;
        Ok(Self { volume, cache, device, path: path.to_path_buf(), spec: spec.clone() })
    }

    /// Closes it cleanly and opens it again, with nothing cached. No file of it may be open.
    pub fn reopen(self) -> Result<Self> {
        let (path, spec) = (self.path.clone(), self.spec.clone());
        self.close()?;
        Self::open(&path, &spec)
    }

    /// Makes everything durable, and releases the volume.
    pub fn close(self) -> Result<()> {
        block_on(self.volume.close())
    }

    /// As [`OurVolume::close`]; returns the bytes and the writes until then.
    pub fn close_counted(self) -> Result<(u64, u64)> {
        let device = self.device.clone();
        self.close()?;
        Ok((device.written(), device.requests()))
    }

    /// Number of its newest checkpoint.
    pub fn checkpoint(&self) -> Result<u64> {
        let lower: DeviceRef = self.device.clone();
        block_on(forebay_lfs::probe(&lower)).map(|info| info.checkpoint)
    }

    /// Bytes of content that its cleaner has moved since it was opened.
    pub fn moved_bytes(&self) -> u64 {
        self.volume.clean_stats().moved_bytes
    }

    /// Bytes written to the device since it was opened.
    pub fn device_bytes(&self) -> u64 {
        self.device.written()
    }

    /// The device wrapper that counts its writes.
    pub(crate) fn counted(&self) -> &Counted {
        &self.device
    }

    /// The statistics of the volume.
    pub fn statfs(&self) -> Result<StatFs> {
        block_on(self.volume.statfs())
    }

    /// Opens a file in the root directory; creates it if it does not exist.
    pub fn file(&self, name: &str) -> Result<VolumeFile> {
        self.file_in(Ino::ROOT, name)
    }

    /// Opens a file in the directory `dir`; creates it if it does not exist.
    pub fn file_in(&self, dir: Ino, name: &str) -> Result<VolumeFile> {
        let name = Name::new(name.as_bytes())?;
        let new = NewInode::of(FileKind::File, 0o644);
        let flags = OpenFlags::READ | OpenFlags::WRITE;
        let (_, file) = block_on(self.volume.create(dir, name, &new, flags))?;
        Ok(VolumeFile { file, flags: IoFlags::empty() })
    }

    /// Removes a file from the root directory.
    pub fn unlink(&self, name: &str) -> Result<()> {
        block_on(self.volume.unlink(Ino::ROOT, Name::new(name.as_bytes())?))
    }

    /// Makes everything durable.
    pub fn sync(&self) -> Result<()> {
        block_on(self.volume.syncfs())
    }
}

/// An open file of a volume, read and written with these flags.
#[derive(Clone)]
pub struct VolumeFile {
    /// The file.
    pub file: OpenFileRef,
    /// Flags of each call.
    pub flags: IoFlags,
}

impl VolumeFile {
    /// This file with other flags on each call.
    pub fn with(&self, flags: IoFlags) -> Self {
        Self { file: self.file.clone(), flags }
    }

    /// Makes its content durable (fdatasync).
    pub fn sync_data(&self) -> Result<()> {
        self.file.sync_here(true)
    }

    /// Makes its content and its attributes durable (fsync).
    pub fn sync_all(&self) -> Result<()> {
        self.file.sync_here(false)
    }
}

impl Target for VolumeFile {
    fn read(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        let len = buf.len();
        whole("read", self.file.read_slice(offset, buf, self.flags)?, len, offset)
    }

    fn write(&self, buf: &[u8], offset: u64) -> Result<()> {
        let put = self.file.write_slice(offset, buf, self.flags, Privileges::Keep)?;
        whole("write", put.len, buf.len(), offset)
    }
}

fn whole(op: &'static str, done: usize, len: usize, at: u64) -> Result<()> {
    if done == len {
        return Ok(());
    }
    let text = format!("{done} of {len} bytes");
    Err(Error::new(ErrorKind::Io, op, text).with_range(at, len as u64))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::backing::{BackedImage, Backing};

    #[test]
    fn written_data_survives_clean_close() {
        let dir = std::env::temp_dir();
        let bytes = 64 << 20;
        let image = BackedImage::create(&dir, "ourvolume", bytes, Backing::Sparse, false).unwrap();
        for sums in [true, false] {
            let spec = VolumeSpec::new("auto", bytes, 16 << 20).unwrap();
            let spec = if sums { spec } else { spec.without_sums() };
            let volume = OurVolume::create(image.path(), &spec).unwrap();
            let file = volume.file("a").unwrap();
            file.write(&[7; 10_000], 5000).unwrap();
            drop(file);
            let volume = volume.reopen().unwrap();
            let file = volume.file("a").unwrap();
            let mut back = [0; 10_001];
            assert!(file.read(&mut back, 4999).is_ok());
            assert_eq!((back[0], back[1], back[10_000]), (0, 7, 7));
            let opened = volume.device_bytes();
            assert_eq!(opened, 2 * 4096, "V1: opening what was closed writes a slot, twice");
            file.write(&[8; 4096], 0).unwrap();
            file.sync_data().unwrap();
            assert!((4096..4 << 20).contains(&(volume.device_bytes() - opened)));
            drop(file);
            volume.close().unwrap();
        }
    }
}
