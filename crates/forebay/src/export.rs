//! A file as an [`Export`], the interface of event-driven front ends. This is the only adapter
//! between [`File`] and [`Export`]; it serves raw images and files of a volume.

use crate::file::{File, Kind};
use forebay_base::buf::AlignedBuf;
use forebay_base::task::{BoxFuture, LocalQueue};
use forebay_base::{Error, ErrorKind, IoFlags, Result};
use forebay_iomap::MappedFile;
use forebay_iomap::file::ZeroFlags;
use forebay_vfs::{BufResult, Export, ExportInfo, Extent, Fallocate, ZeroMode};
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

/// How requests of an export use the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ExportMode {
    /// Through the cache.
    #[default]
    Cached,
    /// Cached blocks are served from the cache; requests leave no other blocks in it.
    Uncached,
    /// Past the cache. An unaligned request is served uncached instead.
    Direct,
}

impl ExportMode {
    fn flags(self) -> IoFlags {
        match self {
            Self::Cached => IoFlags::empty(),
            Self::Uncached => IoFlags::UNCACHED,
            Self::Direct => IoFlags::DIRECT | IoFlags::FALLBACK,
        }
    }
}

impl fmt::Display for ExportMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Cached => "cached",
            Self::Uncached => "uncached",
            Self::Direct => "direct",
        })
    }
}

impl FromStr for ExportMode {
    type Err = Error;
    fn from_str(text: &str) -> Result<Self> {
        match text {
            "cached" => Ok(Self::Cached),
            "uncached" => Ok(Self::Uncached),
            "direct" => Ok(Self::Direct),
            _ => {
                let text = format!("`{text}`: cached, uncached or direct");
                Err(Error::new(ErrorKind::InvalidInput, "parse mode", text))
            }
        }
    }
}

/// A mode that can be changed while an export is served; clones share it.
#[derive(Debug, Clone, Default)]
pub struct LiveMode(Arc<AtomicU8>);

impl LiveMode {
    /// Starts with `mode`.
    pub fn new(mode: ExportMode) -> Self {
        let live = Self::default();
        live.set(mode);
        live
    }

    /// The mode now.
    pub fn get(&self) -> ExportMode {
        match self.0.load(Ordering::Relaxed) {
            0 => ExportMode::Cached,
            1 => ExportMode::Uncached,
            _ => ExportMode::Direct,
        }
    }

    /// Sets the mode of requests that begin from now on. All modes see the same bytes, so the call
    /// does not wait for requests in flight.
    pub fn set(&self, mode: ExportMode) {
        let number = match mode {
            ExportMode::Cached => 0,
            ExportMode::Uncached => 1,
            ExportMode::Direct => 2,
        };
        self.0.store(number, Ordering::Relaxed);
    }

    fn flags(&self) -> IoFlags {
        self.get().flags()
    }
}

/// Longest request of a front end, bytes.
const MAX_REQUEST: u32 = 32 << 20;

impl File {
    /// This file as an export for front ends. Errors: `IsDirectory` and `InvalidInput` for inodes
    /// without content.
    pub fn export(&self, mode: ExportMode) -> Result<Arc<dyn Export>> {
        self.export_live(&LiveMode::new(mode))
    }

    /// This file as an export whose mode can be changed while it is served.
    pub fn export_live(&self, mode: &LiveMode) -> Result<Arc<dyn Export>> {
        Ok(Arc::new(FileExport::new(self.reopen()?, mode.clone())?))
    }
}

struct FileExport {
    file: File,
    mapped: Arc<MappedFile>,
    mode: LiveMode,
}

fn whole(done: usize, wanted: usize, op: &'static str, kind: ErrorKind) -> Result<()> {
    match done == wanted {
        true => Ok(()),
        false => Err(Error::new(kind, op, format!("{done} of {wanted} bytes"))),
    }
}

impl FileExport {
    /// Errors: `IsDirectory` and `InvalidInput` for inodes without content.
    pub fn new(file: File, mode: LiveMode) -> Result<Self> {
        let mapped = file.mapped()?;
        Ok(Self { file, mapped, mode })
    }

    fn flags(&self, flags: IoFlags) -> IoFlags {
        flags | self.mode.flags()
    }

    /// Clients of an image that is served for reading only get `ReadOnly`.
    fn check_writable(&self) -> Result<()> {
        match self.file.writable() {
            true => Ok(()),
            false => Err(Error::new(ErrorKind::ReadOnly, "write", "opened for reading only")),
        }
    }

    async fn make_zero(&self, offset: u64, len: u64, mode: ZeroMode) -> Result<()> {
        match self.file.kind() {
            Kind::Raw(raw) => {
                let ZeroMode { keep_allocated, fast_only, .. } = mode;
                raw.zero(offset, len, ZeroFlags { keep_allocated, fast_only }).await
            }
            Kind::Volume(_) if len == 0 => Ok(()),
            // A volume never overwrites in place, so allocated zeros would save a later write
            // nothing: it punches a hole, whatever `mode` says.
            Kind::Volume(inside) => inside.fallocate(Fallocate::PunchHole, offset, len).await,
        }
    }
}

impl Export for FileExport {
    fn info(&self) -> ExportInfo {
        let physical = self.mapped.device().limits().physical_block;
        let map = self.mapped.ops.info();
        ExportInfo {
            size: self.mapped.size(),
            min_block: 1,
            preferred_block: (self.mapped.mapping.block_size() as u32).max(physical),
            max_request: MAX_REQUEST,
            read_only: !self.file.writable(),
            can_trim: map.zeroing_frees,
            fast_zero: map.zeroes_fast,
            description: format!("{} ({})", self.file.name(), self.mode.get()),
        }
    }

    fn size(&self) -> u64 {
        self.mapped.size()
    }

    fn try_read(&self, offset: u64, dst: &mut [u8], flags: IoFlags) -> Option<Result<()>> {
        let wanted = dst.len();
        let done = self.file.try_read(offset, dst, self.flags(flags))?;
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
            let (buf, done) = self.file.read_at_async(buf, offset, flags).await;
            (buf, done.and_then(|n| whole(n, wanted, "read", ErrorKind::OutOfRange)))
        })
    }

    fn try_write(&self, offset: u64, src: &[u8], flags: IoFlags) -> Option<Result<()>> {
        if let Err(error) = self.check_writable() {
            return Some(Err(error));
        }
        let done = self.file.try_write(offset, src, self.flags(flags))?;
        Some(done.and_then(|n| whole(n, src.len(), "write", ErrorKind::NoSpace)))
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
            let (buf, done) = self.file.write_at_async(buf, offset, flags).await;
            (buf, done.and_then(|n| whole(n, wanted, "write", ErrorKind::NoSpace)))
        })
    }

    fn flush(self: Arc<Self>) -> BoxFuture<'static, Result<()>> {
        Box::pin(async move { self.file.sync_data_async().await })
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
            self.make_zero(offset, len, mode).await?;
            if mode.fua { self.file.sync_data_async().await } else { Ok(()) }
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
        Box::pin(async move { self.file.extents_of(&self.mapped, offset, len, max).await })
    }

    fn for_client(&self) -> Option<Arc<dyn Export>> {
        match self.file.reopen().and_then(|file| Self::new(file, self.mode.clone())) {
            Ok(own) => Some(Arc::new(own)),
            Err(error) => {
                log::warn!("a client shares the streams and errors of other clients: {error}");
                None
            }
        }
    }

    fn attach_thread(&self) -> Option<Box<dyn LocalQueue>> {
        self.mapped.device().attach_thread()
    }
}
