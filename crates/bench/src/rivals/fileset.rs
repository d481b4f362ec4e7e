//! Several files of one size that are read and written as one range: file 0, then file 1, and so
//! on.
//!
//! Invariant: R1 variants that fill the page cache and variants that bypass it use different images
//! (see [`crate::uncached`]).

use crate::harness::image::{Image, drop_file_cache};
use crate::harness::load::{Load, Pattern, Slice, Target, run as run_slice};
use crate::harness::options::Options;
use crate::harness::sys::page_cache_bytes;
use crate::rivals::kernel::KernelFile;
use crate::rivals::ours::Flagged;
use forebay::{Aio, Cache, CacheConfig, File, IoFlags, OpenOptions};
use forebay_base::{Error, Result};
use rustix::fs::OFlags;
use rustix::io::ReadWriteFlags;
use std::path::PathBuf;
use std::time::Instant;

/// A set of files.
pub struct FileSet {
    images: Vec<Image>,
    /// Size of each file, bytes.
    pub each: u64,
}

impl FileSet {
    /// `count` files of `each` bytes.
    pub fn create(options: &Options, name: &str, count: usize, each: u64) -> Result<Self> {
        let one = |n| Image::create(&options.dir, &format!("{name}{n}"), each, options.keep);
        Ok(Self { images: (0..count).map(one).collect::<Result<_>>()?, each })
    }

    /// Paths of the files.
    pub fn paths(&self) -> Vec<PathBuf> {
        self.images.iter().map(|image| image.path().to_path_buf()).collect()
    }

    /// Opens the first file for reading and writing.
    pub fn open_first(&self) -> Result<std::fs::File> {
        self.images[0].open(OFlags::empty())
    }

    /// Size of all files, bytes.
    pub fn size(&self) -> u64 {
        self.each * self.images.len() as u64
    }

    /// Opens the files for the kernel's variants.
    pub fn kernel(&self, open: OFlags, flags: ReadWriteFlags) -> Result<Parts<KernelFile>> {
        kernel_parts(&self.paths(), self.each, open, flags)
    }

    /// Bytes of the files in the page cache.
    pub fn in_page_cache(&self) -> Result<u64> {
        let fail = |e| Error::from_io("cachestat", e);
        let mut sum = 0;
        for image in &self.images {
            let file = image.open(OFlags::empty())?;
            sum += page_cache_bytes(&file, 0, self.each).map_err(fail)?;
        }
        Ok(sum)
    }

    /// Writes the files back and drops them from the page cache.
    pub fn drop_pages(&self) -> Result<()> {
        for image in &self.images {
            let file = image.open(OFlags::empty())?;
            drop_file_cache(&file).map_err(|e| Error::from_io("drop cache", e))?;
        }
        Ok(())
    }
}

/// Opens files for the kernel's variants.
pub fn kernel_parts(
    paths: &[PathBuf],
    each: u64,
    open: OFlags,
    flags: ReadWriteFlags,
) -> Result<Parts<KernelFile>> {
    let one = |path: &PathBuf| {
        let file = crate::harness::image::open_with(path, open)?;
        Ok(KernelFile { file, flags })
    };
    Ok(Parts { parts: paths.iter().map(one).collect::<Result<_>>()?, each })
}

/// The files, opened with the same flags.
pub struct Parts<T> {
    /// The files in order.
    pub parts: Vec<T>,
    each: u64,
}

impl<T> Parts<T> {
    fn at(&self, offset: u64) -> (&T, u64) {
        (&self.parts[(offset / self.each) as usize], offset % self.each)
    }
}

impl<T: Target> Target for Parts<T> {
    fn read(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        let (part, at) = self.at(offset);
        part.read(buf, at)
    }

    fn write(&self, buf: &[u8], offset: u64) -> Result<()> {
        let (part, at) = self.at(offset);
        part.write(buf, at)
    }
}

impl Parts<KernelFile> {
    /// fdatasync of all files.
    pub fn sync(&self) -> Result<()> {
        for part in &self.parts {
            part.file.sync_data().map_err(|e| Error::from_io("fdatasync", e))?;
        }
        Ok(())
    }
}

/// Distributes a sequential slice over the files, `block` bytes to each in turn: with as many
/// threads as files each thread has its own file.
pub struct Striped<'a, T> {
    /// The files.
    pub parts: &'a Parts<T>,
    /// Bytes per operation.
    pub block: u64,
}

impl<T> Striped<'_, T> {
    fn place(&self, offset: u64) -> u64 {
        let (block, count) = (offset / self.block, self.parts.parts.len() as u64);
        block % count * self.parts.each + block / count * self.block
    }
}

impl<T: Target> Target for Striped<'_, T> {
    fn read(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        self.parts.read(buf, self.place(offset))
    }

    fn write(&self, buf: &[u8], offset: u64) -> Result<()> {
        self.parts.write(buf, self.place(offset))
    }
}

/// Runs one slice and the sync after it.
pub fn timed<T: Target + Sync>(
    parts: &Parts<T>,
    load: &Load,
    sync: impl Fn() -> Result<()>,
) -> Result<Slice> {
    let start = Instant::now();
    let striped = Striped { parts, block: load.block as u64 };
    let mut slice = if load.pattern == Pattern::Random || load.threads == 1 {
        run_slice(parts, load)?
    } else {
        run_slice(&striped, load)?
    };
    sync()?;
    slice.seconds = start.elapsed().as_secs_f64();
    Ok(slice)
}

/// All files behind one cache of Forebay.
pub struct OurSet {
    /// The cache.
    pub cache: Cache,
    files: Vec<File>,
    each: u64,
}

impl OurSet {
    /// Opens them behind a cache of `budget` bytes.
    pub fn open(
        options: &Options,
        set: &FileSet,
        count: usize,
        budget: u64,
        read_only: bool,
    ) -> Result<Self> {
        let aio: Aio = options.aio.parse()?;
        let cache = Cache::new(CacheConfig::with_budget(budget).aio(aio))?;
        let raw = OpenOptions::read_write().write(!read_only).clone();
        let paths = set.paths();
        let files = paths.iter().take(count).map(|path| raw.open(&cache, path));
        Ok(Self { files: files.collect::<Result<_>>()?, cache, each: set.each })
    }

    /// Opens the files again with these flags on each call, and sets the strategy.
    pub fn with(&self, flags: IoFlags, strategy: &str) -> Result<Parts<Flagged>> {
        self.cache.tune("uncached_strategy", strategy)?;
        let one = |file: &File| Ok(Flagged { file: file.reopen()?, flags });
        let parts = self.files.iter().map(one).collect::<Result<_>>()?;
        Ok(Parts { parts, each: self.each })
    }

    /// Syncs all files.
    pub fn sync(&self) -> Result<()> {
        self.files.iter().try_for_each(File::sync_data)
    }

    /// Bytes of frames in use. Read-ahead of streams that have just ended may still be in progress:
    /// waits for its end, two seconds at most.
    pub fn resident_bytes(&self) -> u64 {
        let used = || {
            let stats = self.cache.stats();
            (stats.frames_total - stats.frames_free) * 4096
        };
        for _ in 0..2000 {
            if used() == 0 {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        used()
    }
}

impl Drop for OurSet {
    fn drop(&mut self) {
        // The files are not needed any more, so errors of the shutdown are ignored.
        let _ = self.cache.shutdown();
    }
}
