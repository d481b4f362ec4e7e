//! A file as an export: what event-driven front ends ask for.

use crate::file::{File, extents};
use forebay_base::buf::AlignedBuf;
use forebay_base::task::{BoxFuture, LocalQueue};
use forebay_base::{Error, ErrorKind, IoFlags, Result};
use forebay_iomap::file::ZeroFlags;
use forebay_iomap::{Source, Target};
use forebay_vfs::{BufResult, Export, ExportInfo, Extent, ZeroMode};
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
    /// Cached data is served, nothing is left behind.
    Uncached,
    /// Past the cache; a request that is not aligned falls back to uncached, by itself.
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

    /// Requests that begin from now on are served so. All modes see the same bytes, so nothing
    /// has to be waited for.
    pub fn set(&self, mode: ExportMode) {
        let number = match mode {
            ExportMode::Cached => 0,
            ExportMode::Uncached => 1,
            ExportMode::Direct => 2,
        };
        self.0.store(number, Ordering::Relaxed);
    }

    pub(crate) fn flags(&self) -> IoFlags {
        self.get().flags()
    }
}

/// Longest request, bytes.
pub(crate) const MAX_REQUEST: u32 = 32 << 20;

pub(crate) struct FileExport {
    file: File,
    mode: LiveMode,
}

impl FileExport {
    pub fn new(file: File, mode: LiveMode) -> Self {
        Self { file, mode }
    }

    fn short(done: usize, wanted: usize) -> Result<()> {
        if done == wanted {
            return Ok(());
        }
        let text = format!("{done} of {wanted} bytes: past the end");
        Err(Error::new(ErrorKind::OutOfRange, "read", text))
    }

    async fn sync(&self) -> Result<()> {
        let opener = &*self.file.opener;
        opener.file.sync(&opener.handle).await
    }
}

impl Export for FileExport {
    fn info(&self) -> ExportInfo {
        let file = &self.file.opener.file;
        let (limits, (fast_zero, can_trim)) = (file.device().limits(), file.ops.can_zero());
        ExportInfo {
            size: file.size(),
            min_block: 1,
            preferred_block: self.file.block_size().max(limits.physical_block),
            max_request: MAX_REQUEST,
            read_only: self.file.opener.read_only(),
            can_trim,
            fast_zero,
            description: format!("{} ({})", file.device().name(), self.mode.get()),
        }
    }

    fn size(&self) -> u64 {
        self.file.opener.file.size()
    }

    fn try_read(&self, offset: u64, dst: &mut [u8], flags: IoFlags) -> Option<Result<()>> {
        let opener = &*self.file.opener;
        let wanted = dst.len();
        let done = opener.file.try_read(&opener.handle, offset, dst, flags | self.mode.flags())?;
        Some(done.and_then(|n| Self::short(n, wanted)))
    }

    fn read(
        self: Arc<Self>,
        offset: u64,
        mut buf: AlignedBuf,
        flags: IoFlags,
    ) -> BoxFuture<'static, BufResult> {
        Box::pin(async move {
            let opener = &*self.file.opener;
            let (wanted, flags) = (buf.len(), flags | self.mode.flags());
            let target = Target::Owned(&mut buf);
            let done = opener.file.read(&opener.handle, offset, target, flags).await;
            (buf, done.and_then(|n| Self::short(n, wanted)))
        })
    }

    fn try_write(&self, offset: u64, src: &[u8], flags: IoFlags) -> Option<Result<()>> {
        if let Err(error) = self.file.opener.check_writable() {
            return Some(Err(error));
        }
        let done = self.file.opener.file.try_write(offset, src, flags | self.mode.flags())?;
        Some(done.map(drop))
    }

    fn write(
        self: Arc<Self>,
        offset: u64,
        mut buf: AlignedBuf,
        flags: IoFlags,
    ) -> BoxFuture<'static, BufResult> {
        Box::pin(async move {
            let opener = &*self.file.opener;
            if let Err(error) = opener.check_writable() {
                return (buf, Err(error));
            }
            let source = Source::Owned(&mut buf);
            let flags = flags | self.mode.flags();
            let done = opener.file.write(&opener.handle, offset, source, flags).await;
            (buf, done.map(drop))
        })
    }

    fn flush(self: Arc<Self>) -> BoxFuture<'static, Result<()>> {
        Box::pin(async move { self.sync().await })
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
            let opener = &*self.file.opener;
            opener.check_writable()?;
            let flags =
                ZeroFlags { keep_allocated: mode.keep_allocated, fast_only: mode.fast_only };
            opener.file.zero(offset, len, flags).await?;
            if mode.fua { self.sync().await } else { Ok(()) }
        })
    }

    fn prefetch(self: Arc<Self>, offset: u64, len: u64) -> BoxFuture<'static, Result<()>> {
        Box::pin(async move {
            self.file.opener.file.prefetch(offset, len).await;
            Ok(())
        })
    }

    fn extents(
        self: Arc<Self>,
        offset: u64,
        len: u64,
        max: usize,
    ) -> BoxFuture<'static, Result<Vec<Extent>>> {
        Box::pin(async move { extents(&self.file.opener.file, offset, len, max).await })
    }

    fn for_client(&self) -> Option<Arc<dyn Export>> {
        Some(Arc::new(Self::new(self.file.reopen(), self.mode.clone())))
    }

    fn attach_thread(&self) -> Option<Box<dyn LocalQueue>> {
        self.file.opener.file.device().attach_thread()
    }
}
