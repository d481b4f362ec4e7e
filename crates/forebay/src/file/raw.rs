//! An opener of a raw image or of a device object.
//!
//! No locks.

use crate::cache::Cache;
use crate::map::extents;
use crate::registry::Closing;
use forebay_base::buf::AlignedBuf;
use forebay_base::task::block_on;
use forebay_base::{Error, ErrorKind, IoFlags, Result};
use forebay_block::{DirectIo, FileDevice, FileIdentity};
use forebay_iomap::file::ZeroFlags;
use forebay_iomap::{Handle, MappedFile, Source, Target};
use forebay_vfs::{Fallocate, Seek};
use std::sync::Arc;

/// What an opener may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Access {
    pub readable: bool,
    pub writable: bool,
    /// Flags of every request.
    pub io_flags: IoFlags,
}

pub(crate) struct RawOpener {
    pub file: Arc<MappedFile>,
    pub handle: Handle,
    pub access: Access,
    device: Option<Arc<FileDevice>>,
    /// All openers of the file share it. Dropped after the handle.
    closing: Arc<Closing>,
    /// Dropped last: the cache is there until the file is closed.
    pub cache: Cache,
}

impl Drop for RawOpener {
    fn drop(&mut self) {
        self.file.close_handle(&self.handle);
    }
}

#[cold]
fn not_opened_to(op: &'static str) -> Error {
    let how = if op == "read" { "not opened for reading" } else { "not opened for writing" };
    Error::new(ErrorKind::BadHandle, op, how)
}

impl RawOpener {
    pub fn new(cache: Cache, closing: Arc<Closing>, access: Access) -> Self {
        let file = closing.file().clone();
        let device = closing.raw().map(|(device, _)| device.clone());
        let handle = file.open_handle();
        let access = Access { writable: access.writable && !file.read_only(), ..access };
        Self { file, handle, access, device, closing, cache }
    }

    /// Another opener of the same file, with streams and a view of write errors of its own.
    pub fn reopen(&self) -> Self {
        Self::new(self.cache.clone(), self.closing.clone(), self.access)
    }

    pub fn check_writable(&self, op: &'static str) -> Result<()> {
        if self.access.writable { Ok(()) } else { Err(not_opened_to(op)) }
    }

    pub fn check_readable(&self) -> Result<()> {
        if self.access.readable { Ok(()) } else { Err(not_opened_to("read")) }
    }

    #[inline]
    pub fn try_read(&self, offset: u64, dst: &mut [u8], flags: IoFlags) -> Option<Result<usize>> {
        if !self.access.readable {
            return Some(Err(not_opened_to("read")));
        }
        self.file.try_read(&self.handle, offset, dst, flags)
    }

    #[inline]
    pub fn read_slice(&self, offset: u64, dst: &mut [u8], flags: IoFlags) -> Result<usize> {
        match self.try_read(offset, dst, flags) {
            Some(done) => done,
            None => self.read_waiting(offset, dst, flags),
        }
    }

    /// Reads a range that is not all cached. Not inlined, so that a hit in `read_slice` does not
    /// set up a stack frame for this.
    #[inline(never)]
    fn read_waiting(&self, offset: u64, dst: &mut [u8], flags: IoFlags) -> Result<usize> {
        block_on(self.file.read(&self.handle, offset, Target::Slice(dst), flags))
    }

    pub async fn read(&self, offset: u64, buf: &mut AlignedBuf, flags: IoFlags) -> Result<usize> {
        self.check_readable()?;
        self.file.read(&self.handle, offset, Target::Owned(buf), flags).await
    }

    pub fn try_write(&self, offset: u64, src: &[u8], flags: IoFlags) -> Option<Result<usize>> {
        if !self.access.writable {
            return Some(Err(not_opened_to("write")));
        }
        self.file.try_write(offset, src, flags)
    }

    pub fn write_slice(&self, offset: u64, src: &[u8], flags: IoFlags) -> Result<usize> {
        match self.try_write(offset, src, flags) {
            Some(done) => done,
            None => block_on(self.file.write(&self.handle, offset, Source::Slice(src), flags)),
        }
    }

    /// Returns the offset of the bytes written, and their number.
    pub async fn write(
        &self,
        offset: u64,
        buf: &mut AlignedBuf,
        flags: IoFlags,
    ) -> Result<(u64, usize)> {
        self.write_placed(offset, Source::Owned(buf), flags).await
    }

    /// Appends, for a caller that blocks. Returns as `write` does.
    pub fn append_slice(&self, src: &[u8], flags: IoFlags) -> Result<(u64, usize)> {
        block_on(self.write_placed(0, Source::Slice(src), flags))
    }

    async fn write_placed(
        &self,
        offset: u64,
        source: Source<'_>,
        flags: IoFlags,
    ) -> Result<(u64, usize)> {
        self.check_writable("write")?;
        let range = self.file.write_placed(&self.handle, offset, source, flags).await?;
        Ok((range.start, (range.end - range.start) as usize))
    }

    pub async fn sync(&self) -> Result<()> {
        self.file.sync(&self.handle).await
    }

    pub fn sync_here(&self) -> Result<()> {
        block_on(self.file.sync_here(&self.handle))
    }

    pub fn set_len(&self, size: u64) -> Result<()> {
        self.check_writable("set size")?;
        block_on(self.file.set_len(size))
    }

    pub async fn zero(&self, offset: u64, len: u64, flags: ZeroFlags) -> Result<()> {
        self.check_writable("zero")?;
        self.file.zero(offset, len, flags).await
    }

    /// A raw file has a size and holes, and no reservations: `Allocate` only grows the size.
    pub async fn fallocate(&self, how: Fallocate, offset: u64, len: u64) -> Result<()> {
        self.check_writable("fallocate")?;
        let end = offset.checked_add(len).filter(|&end| end < 1 << 63);
        let Some(end) = end else {
            let error = Error::new(ErrorKind::FileTooLarge, "fallocate", "the range overflows");
            return Err(error.with_range(offset, len));
        };
        let (keep_size, keep_allocated) = match how {
            Fallocate::PunchHole => (true, false),
            Fallocate::Allocate { keep_size } | Fallocate::ZeroRange { keep_size } => {
                (keep_size, true)
            }
        };
        if !keep_size {
            self.file.grow_to(end).await?;
        }
        let end = end.min(self.file.size());
        if matches!(how, Fallocate::Allocate { .. }) || offset >= end {
            return Ok(());
        }
        let flags = ZeroFlags { keep_allocated, fast_only: false };
        self.file.zero(offset, end - offset, flags).await
    }

    pub async fn seek(&self, what: Seek, offset: u64) -> Result<u64> {
        let size = self.file.size();
        let none = || Error::new(ErrorKind::PastEnd, "seek", format!("{offset} of {size}"));
        let len = size.checked_sub(offset).filter(|&len| len > 0).ok_or_else(none)?;
        // The run at the offset, and whether a run of the other kind follows.
        let runs = extents(&self.file, offset, len, 2).await?;
        let first = runs.first().ok_or_else(none)?;
        match (first.hole == (what == Seek::Hole), what, runs.len()) {
            (true, ..) => Ok(offset),
            (false, Seek::Data, 1) => Err(none()),
            (false, ..) => Ok(offset + first.len),
        }
    }

    pub fn discard_failed(&self) -> Result<u64> {
        self.check_writable("discard")?;
        Ok(block_on(self.file.discard_failed()))
    }

    /// Writes out and flushes the file, before direct I/O is switched.
    fn write_out(&self) -> Result<()> {
        if self.file.read_only() { Ok(()) } else { self.sync_here() }
    }

    pub fn set_direct_io(&self, mode: DirectIo) -> Result<()> {
        let Some(device) = &self.device else {
            let text = "a device object has no page cache below";
            return Err(Error::new(ErrorKind::Unsupported, "set direct I/O", text));
        };
        device.switch_direct_io(mode, || self.write_out())
    }

    pub fn refresh_direct_io(&self) -> Result<bool> {
        match &self.device {
            Some(device) => device.refresh_direct_io(|| self.write_out()),
            None => Ok(false),
        }
    }

    pub fn direct_io_mode(&self) -> DirectIo {
        self.device.as_ref().map_or(DirectIo::Off, |device| device.direct_io_mode())
    }

    pub fn direct_io(&self) -> (bool, String) {
        match &self.device {
            Some(device) => device.direct_io(),
            None => (false, "a device object".into()),
        }
    }

    /// Which file of the host it is; `None` for a device object.
    pub fn identity(&self) -> Option<FileIdentity> {
        self.closing.identity()
    }

    #[cfg(test)]
    pub fn device(&self) -> &Arc<FileDevice> {
        self.device.as_ref().expect("a raw file")
    }
}
