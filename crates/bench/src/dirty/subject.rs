//! The subjects that are written and synced: a file of Forebay, a bare O_DIRECT file, a file in the
//! kernel's page cache. Each counts the bytes that its device is asked to write.

use crate::harness::image::Image;
use crate::harness::load::Target;
use crate::harness::machine::{device_stat, sectors_written};
use crate::harness::options::Options;
use crate::rivals::counted::Counted;
use crate::rivals::kernel::KernelFile;
use forebay::{Aio, Cache, CacheConfig, DirtyTracking, File, IoFlags, OpenOptions};
use forebay_base::units::MIB;
use forebay_base::{Error, Result};
use forebay_block::{Engine, FileDevice, FileOptions};
use rustix::fs::OFlags;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// One file per job, which is written and synced.
pub trait Subject: Sync {
    /// Writes all of `buf` to file `job` and makes it durable.
    fn write_synced(&self, job: usize, buf: &[u8], offset: u64) -> Result<()>;

    /// Bytes that any process has written to the device so far.
    fn device_bytes(&self) -> Result<u64>;

    /// Size and alignment of an operation, bytes.
    fn unit(&self) -> u64 {
        super::figures::WRITE
    }
}

/// Bytes that a process has written past the page cache, and that a file system has written on its
/// behalf.
pub fn written_by(pid: u32) -> Result<u64> {
    let text = read(format!("/proc/{pid}/io").as_ref())?;
    let value = text.lines().find_map(|line| line.strip_prefix("write_bytes: "));
    Ok(value.and_then(|v| v.trim().parse().ok()).unwrap_or(0))
}

fn read(path: &Path) -> Result<String> {
    std::fs::read_to_string(path).map_err(|e| Error::from_io("read", e).with_path(path))
}

/// Files behind a cache of Forebay.
pub struct Cached {
    cache: Cache,
    files: Vec<File>,
    devices: Vec<Arc<Counted>>,
}

impl Cached {
    /// Opens the images on a cache of twice their size.
    pub fn open(
        options: &Options,
        images: &[Image],
        folio: u64,
        tracking: DirtyTracking,
    ) -> Result<Self> {
        let bytes: u64 = images.iter().map(Image::size).sum();
        let cache = new_cache(options, bytes, folio, tracking)?;
        let engine = Engine::new(options.aio.parse()?)?;
        let (mut files, mut devices) = (Vec::new(), Vec::new());
        for image in images {
            let device = FileDevice::open(image.path(), &FileOptions::default(), &engine)?;
            let device = Counted::new(device);
            files.push(OpenOptions::read_write().open_device(&cache, device.clone())?);
            devices.push(device);
        }
        Ok(Self { files, devices, cache })
    }

    /// Reads all files, so that they are cached (dirty.Y2).
    pub fn fill(&self) -> Result<()> {
        self.files.iter().try_for_each(fill)
    }

    /// `count` writes with `IoFlags::SYNC`, in order from `offset` on, to uncached blocks.
    pub fn write_in_order(&self, buf: &[u8], offset: u64, count: u64) -> Result<()> {
        for i in 0..count {
            let at = offset + i * buf.len() as u64;
            self.files[0].write_at_with(buf, at, IoFlags::SYNC)?;
        }
        Ok(())
    }
}

/// Reads a complete file, so that it is cached.
pub fn fill(file: &File) -> Result<()> {
    let mut buf = vec![0; MIB as usize];
    for at in (0..file.size()?).step_by(buf.len()) {
        file.read_at(&mut buf, at)?;
    }
    let seen = file.residency(0, file.size()?)?;
    if seen.resident_blocks == seen.total_blocks {
        return Ok(());
    }
    let text = format!("{} of {} blocks", seen.resident_blocks, seen.total_blocks);
    Err(Error::new(forebay_base::ErrorKind::Io, "fill the cache", text))
}

/// A cache for files of `bytes` bytes, whose limits never make a writer wait.
pub fn new_cache(
    options: &Options,
    bytes: u64,
    folio: u64,
    tracking: DirtyTracking,
) -> Result<Cache> {
    let aio: Aio = options.aio.parse()?;
    let base = CacheConfig::with_budget(bytes * 2 + 96 * MIB);
    Cache::new(base.aio(aio).folio_size(folio as u32).dirty_tracking(tracking))
}

impl Subject for Cached {
    fn write_synced(&self, job: usize, buf: &[u8], offset: u64) -> Result<()> {
        self.files[job].write_at(buf, offset)?;
        self.files[job].sync_data()
    }

    fn device_bytes(&self) -> Result<u64> {
        let sum: u64 = self.devices.iter().map(|device| device.written()).sum();
        let own = self.cache.stats().written_bytes;
        if sum == own {
            return Ok(sum);
        }
        let text = format!("the devices saw {sum} bytes and the cache says {own}");
        Err(Error::new(forebay_base::ErrorKind::Corrupt, "count", text))
    }
}

/// O_DIRECT writes of one size, each followed by fdatasync.
pub struct Bare {
    files: Vec<KernelFile>,
    unit: u64,
}

impl Bare {
    /// Opens the images.
    pub fn open(images: &[Image], unit: u64) -> Result<Self> {
        let open = |image: &Image| Ok(KernelFile::new(image.open(OFlags::DIRECT)?));
        Ok(Self { files: images.iter().map(open).collect::<Result<Vec<_>>>()?, unit })
    }
}

impl Subject for Bare {
    fn write_synced(&self, job: usize, buf: &[u8], offset: u64) -> Result<()> {
        self.files[job].write(buf, offset)?;
        sync(&self.files[job].file)
    }

    fn device_bytes(&self) -> Result<u64> {
        written_by(std::process::id())
    }

    fn unit(&self) -> u64 {
        self.unit
    }
}

fn sync(file: &std::fs::File) -> Result<()> {
    file.sync_data().map_err(|e| Error::from_io("fdatasync", e))
}

/// Files in the kernel's page cache, on some file system.
pub struct Buffered {
    files: Vec<KernelFile>,
    stat: PathBuf,
}

impl Buffered {
    /// Opens existing files and reads them, so that they are cached (dirty.Y2).
    pub fn open(paths: &[PathBuf]) -> Result<Self> {
        let mut files = Vec::new();
        let mut buf = vec![0; MIB as usize];
        for path in paths {
            let file = KernelFile::new(crate::harness::image::open_with(path, OFlags::empty())?);
            let len = file.file.metadata().map_err(|e| Error::from_io("stat", e))?.len();
            for at in (0..len).step_by(buf.len()) {
                file.read(&mut buf, at)?;
            }
            files.push(file);
        }
        let stat = device_stat(paths[0].as_ref())?;
        Ok(Self { files, stat })
    }
}

impl Subject for Buffered {
    fn write_synced(&self, job: usize, buf: &[u8], offset: u64) -> Result<()> {
        self.files[job].write(buf, offset)?;
        sync(&self.files[job].file)
    }

    fn device_bytes(&self) -> Result<u64> {
        sectors_written(&self.stat)
    }
}
