//! Reads without a copy.
//!
//! No locks.

use super::{File, Kind};
use forebay_base::task::block_on;
use forebay_base::{Error, IoFlags, Result};
use forebay_cache::Pinned;
use forebay_iomap::{Handle, MappedFile, PinRequest};

impl File {
    /// The mapping and this opener's handle on it, to pin a range. Errors: `BadHandle` if not
    /// opened for reading, `WouldBlock` with `NOWAIT`.
    fn reader(&self, offset: u64, len: usize, flags: IoFlags) -> Result<(&MappedFile, &Handle)> {
        match &self.opener.kind {
            Kind::Raw(raw) => {
                raw.check_readable()?;
                Ok((&raw.file, &raw.handle))
            }
            Kind::Volume(inside) => {
                let (file, handle) = inside.reader_of(offset, len as u64, flags)?;
                Ok((file, handle))
            }
        }
    }

    /// An error with the path that a file of a volume was opened by.
    #[cold]
    fn named(&self, error: Error) -> Error {
        match &self.opener.kind {
            Kind::Raw(_) => error,
            Kind::Volume(inside) => inside.named_error(error),
        }
    }

    /// Pins `len` bytes at `offset`: reads them without a copy, where they are cached. Returns
    /// fewer bytes only at the end of the file, and none past it.
    ///
    /// The bytes do not change for as long as the [`Pinned`] lives, whatever is written, truncated
    /// or evicted meanwhile: then it shows an earlier version. A thread may write to the very bytes
    /// that it has pinned. Blocks of the range that are not cached are read into the cache first,
    /// with read-ahead.
    ///
    /// All pins of a cache together hold at most an eighth of its frames of 4 KiB, including pins
    /// of bytes that are in no file any more. With large folios they also hold at most an eighth of
    /// its folios; a folio counts once for each pin of it. A pin that would exceed that is a copy
    /// instead ([`Pinned::is_copy`]), in memory outside the budget; [`File::pin_no_copy`] refuses
    /// it. [`Cache::resize`] fails with `Busy` while pins hold more than an eighth of the new size,
    /// or memory that it would give back.
    ///
    /// `flags`: with `UNCACHED` cached bytes are pinned and keep their age, and the result is a
    /// copy if any byte is not cached. With `NOWAIT` the call never waits. On a volume a pin does
    /// not change `atime`.
    ///
    /// Errors: those of [`File::read_at_with`], `Unsupported` with `DIRECT`, and `NoMemory` for a
    /// copy that is larger than the budget of the cache.
    ///
    /// ```
    /// use forebay::{Cache, CacheConfig, IoFlags, OpenOptions};
    /// # fn main() -> forebay::Result<()> {
    /// # let path = std::env::temp_dir().join(format!("forebay-doc-pin-{}", std::process::id()));
    /// let cache = Cache::new(CacheConfig::with_budget(16 << 20))?;
    /// let file = OpenOptions::read_write().create(true).open(&cache, &path)?;
    /// file.write_all_at(b"old", 0)?;
    /// let pinned = file.pin(0, 3, IoFlags::empty())?;
    /// file.write_all_at(b"new", 0)?;
    /// assert_eq!(pinned.as_slice(), Some(&b"old"[..]));
    /// # file.close()?;
    /// # std::fs::remove_file(&path).unwrap();
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// [`Cache::resize`]: crate::Cache::resize
    #[inline]
    pub fn pin(&self, offset: u64, len: usize, flags: IoFlags) -> Result<Pinned> {
        let pinned = self.pin_with(offset, len, flags, true)?;
        Ok(pinned.expect("a copy is always to be had"))
    }

    /// [`File::pin`] that never copies: `None` where the bytes would be a copy.
    #[inline]
    pub fn pin_no_copy(&self, offset: u64, len: usize, flags: IoFlags) -> Result<Option<Pinned>> {
        self.pin_with(offset, len, flags, false)
    }

    #[inline]
    fn pin_with(
        &self,
        offset: u64,
        len: usize,
        flags: IoFlags,
        may_copy: bool,
    ) -> Result<Option<Pinned>> {
        let flags = flags | self.opener.read_flags;
        let named = |error| self.named(error);
        let (file, handle) = self.reader(offset, len, flags).map_err(named)?;
        let request = PinRequest { offset, len, flags, may_copy, blocking: true };
        match file.try_pin(handle, &request) {
            Some(done) => done.map(Some).map_err(named),
            None => block_on(file.pin(handle, request)).map_err(named),
        }
    }
}
