//! A file of a volume as an export: what event-driven front ends ask for.
//!
//! Invariant: Z1 what changes the file goes through [`forebay_vfs::OpenFile`], which keeps its times and
//! drops its privileges; the mapping in the cache is only looked at.
//!
//! No locks.

use crate::export::{LiveMode, MAX_REQUEST};
use crate::file::extents;
use crate::volume::VolumeFile;
use forebay_base::buf::AlignedBuf;
use forebay_base::task::{BoxFuture, LocalQueue};
use forebay_base::{Error, ErrorKind, IoFlags, Result};
use forebay_iomap::MappedFile;
use forebay_vfs::{
    BufResult, Export, ExportInfo, Extent, Fallocate, OpenFile, Privileges, ZeroMode,
};
use std::sync::Arc;

pub(crate) struct VolumeExport {
    file: VolumeFile,
    mapped: Arc<MappedFile>,
    mode: LiveMode,
}

fn whole(done: usize, wanted: usize, op: &'static str, kind: ErrorKind) -> Result<()> {
    match done == wanted {
        true => Ok(()),
        false => Err(Error::new(kind, op, format!("{done} of {wanted} bytes"))),
    }
}

impl VolumeExport {
    pub fn new(file: VolumeFile, mode: LiveMode) -> Result<Self> {
        let mapped = file.mapped()?;
        Ok(Self { file, mapped, mode })
    }

    fn open(&self) -> &dyn OpenFile {
        &**self.file.open_file()
    }

    fn flags(&self, flags: IoFlags) -> IoFlags {
        flags | self.mode.flags()
    }

    fn check_writable(&self) -> Result<()> {
        match self.file.writable() {
            true => Ok(()),
            false => Err(Error::new(ErrorKind::ReadOnly, "write", "opened for reading only")),
        }
    }
}

impl Export for VolumeExport {
    fn info(&self) -> ExportInfo {
        let physical = self.mapped.device().limits().physical_block;
        let (fast_zero, can_trim) = self.mapped.ops.can_zero();
        let path = self.file.volume().path().display();
        ExportInfo {
            size: self.mapped.size(),
            min_block: 1,
            preferred_block: (self.mapped.mapping.block_size() as u32).max(physical),
            max_request: MAX_REQUEST,
            read_only: !self.file.writable(),
            can_trim,
            fast_zero,
            description: format!("file {:?} of {path} ({})", self.open().ino(), self.mode.get()),
        }
    }

    fn size(&self) -> u64 {
        self.mapped.size()
    }

    fn try_read(&self, offset: u64, dst: &mut [u8], flags: IoFlags) -> Option<Result<()>> {
        let wanted = dst.len();
        let done = self.open().try_read(offset, dst, self.flags(flags))?;
        Some(done.and_then(|n| whole(n, wanted, "read", ErrorKind::OutOfRange)))
    }

    fn read(
        self: Arc<Self>,
        offset: u64,
        buf: AlignedBuf,
        flags: IoFlags,
    ) -> BoxFuture<'static, BufResult> {
        Box::pin(async move {
            let (wanted, flags) = (buf.len(), self.flags(flags));
            let (buf, done) = self.open().read(offset, buf, flags).await;
            (buf, done.and_then(|n| whole(n, wanted, "read", ErrorKind::OutOfRange)))
        })
    }

    fn try_write(&self, offset: u64, src: &[u8], flags: IoFlags) -> Option<Result<()>> {
        if let Err(error) = self.check_writable() {
            return Some(Err(error));
        }
        let done = self.open().try_write(offset, src, self.flags(flags), Privileges::Drop)?;
        Some(done.and_then(|wrote| whole(wrote.len, src.len(), "write", ErrorKind::NoSpace)))
    }

    fn write(
        self: Arc<Self>,
        offset: u64,
        buf: AlignedBuf,
        flags: IoFlags,
    ) -> BoxFuture<'static, BufResult> {
        Box::pin(async move {
            if let Err(error) = self.check_writable() {
                return (buf, Err(error));
            }
            let (wanted, flags) = (buf.len(), self.flags(flags));
            let (buf, done) = self.open().write(offset, buf, flags, Privileges::Drop).await;
            (buf, done.and_then(|w| whole(w.len, wanted, "write", ErrorKind::NoSpace)))
        })
    }

    fn flush(self: Arc<Self>) -> BoxFuture<'static, Result<()>> {
        Box::pin(async move { self.open().sync(true).await })
    }

    fn trim(self: Arc<Self>, offset: u64, len: u64, fua: bool) -> BoxFuture<'static, Result<()>> {
        self.zero(offset, len, ZeroMode { fua, ..ZeroMode::default() })
    }

    fn zero(
        self: Arc<Self>,
        offset: u64,
        len: u64,
        mode: ZeroMode,
    ) -> BoxFuture<'static, Result<()>> {
        Box::pin(async move {
            self.check_writable()?;
            if len > 0 {
                // Nothing is written in place on a volume: a hole has as much room as zeros have.
                let how = Fallocate::PunchHole;
                self.open().fallocate(how, offset, len, Privileges::Drop).await?;
            }
            if mode.fua { self.open().sync(true).await } else { Ok(()) }
        })
    }

    fn prefetch(self: Arc<Self>, offset: u64, len: u64) -> BoxFuture<'static, Result<()>> {
        Box::pin(async move {
            self.mapped.prefetch(offset, len).await;
            Ok(())
        })
    }

    fn extents(
        self: Arc<Self>,
        offset: u64,
        len: u64,
        max: usize,
    ) -> BoxFuture<'static, Result<Vec<Extent>>> {
        Box::pin(async move { extents(&self.mapped, offset, len, max).await })
    }

    fn for_client(&self) -> Option<Arc<dyn Export>> {
        let file = match self.file.reopen().and_then(|f| Self::new(f, self.mode.clone())) {
            Ok(own) => own,
            Err(error) => {
                log::warn!("a client shares the streams and errors of others: {error}");
                return None;
            }
        };
        Some(Arc::new(file))
    }

    fn attach_thread(&self) -> Option<Box<dyn LocalQueue>> {
        self.mapped.device().attach_thread()
    }
}
