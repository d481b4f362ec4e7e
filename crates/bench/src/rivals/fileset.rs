//! Several files of one size, read and written as one range: file 0, then file 1, and so on.
//!
//! Invariant: R1 the files are in different images for variants that fill the page cache and for
//! those that pass it by (see [`crate::uncached`]).

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

/// The files.
pub struct FileSet {
    images: Vec<Image>,
    /// Bytes of each.
    pub each: u64,
}

impl FileSet {
    /// `count` files of `each` bytes.
    pub fn create(options: &Options, name: &str, count: usize, each: u64) -> Result<Self> {
        let one = |n| Image::create(&options.dir, &format!("{name}{n}"), each, options.keep);
        Ok(Self { images: (0..count).map(one).collect::<Result<_>>()?, each })
    }

    /// Where they are.
    pub fn paths(&self) -> Vec<PathBuf> {
        self.images.iter().map(|image| image.path().to_path_buf()).collect()
    }

    /// The first, for reading and writing.
    pub fn open_first(&self) -> Result<std::fs::File> {
        self.images[0].open(OFlags::empty())
    }

    /// Bytes of all.
    pub fn size(&self) -> u64 {
        self.each * self.images.len() as u64
    }

    /// The kernel's view.
    pub fn kernel(&self, open: OFlags, flags: ReadWriteFlags) -> Result<Parts<KernelFile>> {
        kernel_parts(&self.paths(), self.each, open, flags)
    }

    /// Bytes of them in the page cache.
    pub fn in_page_cache(&self) -> Result<u64> {
        let fail = |e| Error::from_io("cachestat", e);
        let mut sum = 0;
        for image in &self.images {
            let file = image.open(OFlags::empty())?;
            sum += page_cache_bytes(&file, 0, self.each).map_err(fail)?;
        }
        Ok(sum)
    }

    /// Writes them out and drops them from the page cache.
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

/// The files opened in one way.
pub struct Parts<T> {
    /// In order.
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
    /// fdatasync of all.
    pub fn sync(&self) -> Result<()> {
        for part in &self.parts {
            part.file.sync_data().map_err(|e| Error::from_io("fdatasync", e))?;
        }
        Ok(())
    }
}

/// A sequential slice over this goes round the files, `block` bytes each time: with as many threads
/// as files each thread has a file of its own.
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

/// One slice and the sync after it.
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

/// All files behind one cache of ours.
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

    /// The files as fresh openers, with these flags on each call and this strategy from now on.
    pub fn with(&self, flags: IoFlags, strategy: &str) -> Result<Parts<Flagged>> {
        self.cache.tune("uncached_strategy", strategy)?;
        let one = |file: &File| Ok(Flagged { file: file.reopen()?, flags });
        let parts = self.files.iter().map(one).collect::<Result<_>>()?;
        Ok(Parts { parts, each: self.each })
    }

    /// Syncs all.
    pub fn sync(&self) -> Result<()> {
        self.files.iter().try_for_each(File::sync_data)
    }

    /// Bytes of frames in use. Windows of streams that have just ended may still be on their way:
    /// waits for those, two seconds at most.
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
        // The files are thrown away.
        let _ = self.cache.shutdown();
    }
}
