//! Forebay's library: a raw image behind a cache.

use crate::harness::load::Target;
use crate::harness::options::Options;
use forebay::{Aio, Cache, CacheConfig, File, IoFlags, OpenOptions};
use forebay_base::{Error, ErrorKind, Result};
use std::path::Path;

/// An image behind a cache.
pub struct Ours {
    /// The cache.
    pub cache: Cache,
    /// The image on it.
    pub file: File,
}

/// The image, read and written with these flags.
pub struct Flagged {
    /// The image.
    pub file: File,
    /// Flags of each call.
    pub flags: IoFlags,
}

impl Ours {
    /// A cache of `budget` bytes with the image on it.
    pub fn open(options: &Options, path: &Path, budget: u64) -> Result<Self> {
        Self::open_with(options, path, budget, |_| {})
    }

    /// A cache of `budget` bytes with the image on it; `change` may set any field of the
    /// configuration, also the budget.
    pub fn open_with(
        options: &Options,
        path: &Path,
        budget: u64,
        change: impl FnOnce(&mut CacheConfig),
    ) -> Result<Self> {
        let aio: Aio = options.aio.parse()?;
        let mut config = CacheConfig::default().budget(budget).aio(aio);
        change(&mut config);
        let cache = Cache::new(config)?;
        let file = OpenOptions::read_write().open(&cache, path)?;
        Ok(Self { cache, file })
    }

    /// The image as a separate opener, with these flags on each call.
    pub fn with(&self, flags: IoFlags) -> Flagged {
        let file = self.file.reopen().expect("a raw image that is open");
        Flagged { file, flags }
    }

    /// Number of 4 KiB blocks of the range that are cached.
    pub fn resident_4k(&self, offset: u64, len: u64) -> u64 {
        let found = self.file.residency(offset, len).expect("a raw image has content");
        found.resident_blocks * u64::from(found.block_size) / 4096
    }
}

impl Drop for Ours {
    fn drop(&mut self) {
        // The image is not needed any more, so errors of the last flush are ignored.
        let _ = self.cache.shutdown();
    }
}

impl Target for Flagged {
    #[inline]
    fn read(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        let len = buf.len();
        let got = if self.flags.is_empty() {
            self.file.read_at(buf, offset)?
        } else {
            self.file.read_at_with(buf, offset, self.flags)?
        };
        whole("read", got, len, offset)
    }

    #[inline]
    fn write(&self, buf: &[u8], offset: u64) -> Result<()> {
        let put = if self.flags.is_empty() {
            self.file.write_at(buf, offset)?
        } else {
            self.file.write_at_with(buf, offset, self.flags)?
        };
        whole("write", put, buf.len(), offset)
    }
}

fn whole(op: &'static str, done: usize, len: usize, at: u64) -> Result<()> {
    if done == len {
        return Ok(());
    }
    let text = format!("{done} of {len} bytes");
    Err(Error::new(ErrorKind::Io, op, text).with_range(at, len as u64))
}
