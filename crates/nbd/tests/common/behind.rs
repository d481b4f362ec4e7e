//! An export of memory with something before its calls.

use forebay_base::buf::AlignedBuf;
use forebay_base::task::{BoxFuture, LocalQueue};
use forebay_base::{IoFlags, Result};
use forebay_nbd::MemExport;
use forebay_vfs::{BufResult, Export, ExportInfo, Extent, ZeroMode};
use std::sync::Arc;

/// What comes before the calls; nothing, unless it says otherwise.
pub trait Before: Send + Sync + 'static {
    /// Whether anything is served without waiting.
    fn at_once(&self) -> bool {
        true
    }
    /// Before a read.
    fn read(&self) -> BoxFuture<'static, ()> {
        Box::pin(std::future::ready(()))
    }
    /// Before a write.
    fn write(&self) -> BoxFuture<'static, ()> {
        Box::pin(std::future::ready(()))
    }
    /// Before the map, or a prefetch.
    fn work(&self) -> BoxFuture<'static, ()> {
        Box::pin(std::future::ready(()))
    }
    /// See [`Export::attach_thread`].
    fn attach_thread(&self) -> Option<Box<dyn LocalQueue>> {
        None
    }
}

/// See the module.
pub struct Behind<B> {
    memory: Arc<MemExport>,
    before: B,
}

impl<B: Before> Behind<B> {
    pub fn new(size: u64, before: B) -> Arc<Self> {
        Arc::new(Self { memory: Arc::new(MemExport::new(size)), before })
    }
}

impl<B: Before> Export for Behind<B> {
    fn info(&self) -> ExportInfo {
        self.memory.info()
    }
    fn try_read(&self, offset: u64, dst: &mut [u8], flags: IoFlags) -> Option<Result<()>> {
        self.before.at_once().then(|| self.memory.try_read(offset, dst, flags))?
    }
    fn read(
        self: Arc<Self>,
        offset: u64,
        buf: AlignedBuf,
        flags: IoFlags,
    ) -> BoxFuture<'static, BufResult> {
        let before = self.before.read();
        Box::pin(async move {
            before.await;
            self.memory.clone().read(offset, buf, flags).await
        })
    }
    fn try_write(&self, offset: u64, src: &[u8], flags: IoFlags) -> Option<Result<()>> {
        self.before.at_once().then(|| self.memory.try_write(offset, src, flags))?
    }
    fn write(
        self: Arc<Self>,
        offset: u64,
        buf: AlignedBuf,
        flags: IoFlags,
    ) -> BoxFuture<'static, BufResult> {
        let before = self.before.write();
        Box::pin(async move {
            before.await;
            self.memory.clone().write(offset, buf, flags).await
        })
    }
    fn flush(self: Arc<Self>) -> BoxFuture<'static, Result<()>> {
        self.memory.clone().flush()
    }
    fn trim(self: Arc<Self>, offset: u64, len: u64, fua: bool) -> BoxFuture<'static, Result<()>> {
        self.memory.clone().trim(offset, len, fua)
    }
    fn zero(
        self: Arc<Self>,
        offset: u64,
        len: u64,
        mode: ZeroMode,
    ) -> BoxFuture<'static, Result<()>> {
        self.memory.clone().zero(offset, len, mode)
    }
    fn prefetch(self: Arc<Self>, offset: u64, len: u64) -> BoxFuture<'static, Result<()>> {
        let before = self.before.work();
        Box::pin(async move {
            before.await;
            self.memory.clone().prefetch(offset, len).await
        })
    }
    fn extents(
        self: Arc<Self>,
        offset: u64,
        len: u64,
        max: usize,
    ) -> BoxFuture<'static, Result<Vec<Extent>>> {
        let before = self.before.work();
        Box::pin(async move {
            before.await;
            self.memory.clone().extents(offset, len, max).await
        })
    }
    fn attach_thread(&self) -> Option<Box<dyn LocalQueue>> {
        self.before.attach_thread()
    }
}
