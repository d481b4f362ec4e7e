//! An export whose calls a test holds up, counts or answers late.
//!
//! No locks.

use forebay_base::buf::AlignedBuf;
use forebay_base::task::{BoxFuture, LocalQueue};
use forebay_base::{IoFlags, Result};
use forebay_vfs::{BufResult, Export, ExportInfo, Extent, ZeroMode};
use std::sync::Arc;

/// What a test does before the calls of an export reach it. By default nothing.
pub trait Before: Send + Sync + 'static {
    /// Whether `try_read` and `try_write` reach the export; otherwise they return `None`.
    fn at_once(&self) -> bool {
        true
    }
    /// The flags of a read or a write.
    fn flags(&self, _flags: IoFlags) {}
    /// Before a read.
    fn read(&self) -> BoxFuture<'static, ()> {
        Box::pin(std::future::ready(()))
    }
    /// Before a write.
    fn write(&self) -> BoxFuture<'static, ()> {
        Box::pin(std::future::ready(()))
    }
    /// Before a call for the extents, or a prefetch.
    fn work(&self) -> BoxFuture<'static, ()> {
        Box::pin(std::future::ready(()))
    }
    /// Around a trim.
    fn trim(&self, trim: BoxFuture<'static, Result<()>>) -> BoxFuture<'static, Result<()>> {
        trim
    }
    /// The object for one client; `None`: the client shares this one.
    fn for_client(&self) -> Option<Self>
    where
        Self: Sized,
    {
        None
    }
    /// The queue that answers late requests on this thread ([`Export::attach_thread`]).
    fn attach_thread(&self, below: &dyn Export) -> Option<Box<dyn LocalQueue>> {
        below.attach_thread()
    }
}

/// An export with [`Before`] in front of it.
pub struct Behind<B> {
    export: Arc<dyn Export>,
    before: B,
}

impl<B: Before> Behind<B> {
    /// In front of `export`.
    pub fn new(export: Arc<dyn Export>, before: B) -> Arc<Self> {
        Arc::new(Self { export, before })
    }
}

impl<B: Before> Export for Behind<B> {
    fn info(&self) -> ExportInfo {
        self.export.info()
    }
    fn try_read(&self, offset: u64, dst: &mut [u8], flags: IoFlags) -> Option<Result<()>> {
        self.before.flags(flags);
        self.before.at_once().then(|| self.export.try_read(offset, dst, flags))?
    }
    fn read(
        self: Arc<Self>,
        offset: u64,
        buf: AlignedBuf,
        flags: IoFlags,
    ) -> BoxFuture<'static, BufResult> {
        self.before.flags(flags);
        let before = self.before.read();
        Box::pin(async move {
            before.await;
            self.export.clone().read(offset, buf, flags).await
        })
    }
    fn try_write(&self, offset: u64, src: &[u8], flags: IoFlags) -> Option<Result<()>> {
        self.before.flags(flags);
        self.before.at_once().then(|| self.export.try_write(offset, src, flags))?
    }
    fn write(
        self: Arc<Self>,
        offset: u64,
        buf: AlignedBuf,
        flags: IoFlags,
    ) -> BoxFuture<'static, BufResult> {
        self.before.flags(flags);
        let before = self.before.write();
        Box::pin(async move {
            before.await;
            self.export.clone().write(offset, buf, flags).await
        })
    }
    fn flush(self: Arc<Self>) -> BoxFuture<'static, Result<()>> {
        self.export.clone().flush()
    }
    fn trim(self: Arc<Self>, offset: u64, len: u64, fua: bool) -> BoxFuture<'static, Result<()>> {
        self.before.trim(self.export.clone().trim(offset, len, fua))
    }
    fn zero(
        self: Arc<Self>,
        offset: u64,
        len: u64,
        mode: ZeroMode,
    ) -> BoxFuture<'static, Result<()>> {
        self.export.clone().zero(offset, len, mode)
    }
    fn prefetch(self: Arc<Self>, offset: u64, len: u64) -> BoxFuture<'static, Result<()>> {
        let before = self.before.work();
        Box::pin(async move {
            before.await;
            self.export.clone().prefetch(offset, len).await
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
            self.export.clone().extents(offset, len, max).await
        })
    }
    fn for_client(&self) -> Option<Arc<dyn Export>> {
        let before = self.before.for_client()?;
        let export = self.export.for_client().unwrap_or_else(|| self.export.clone());
        Some(Behind::new(export, before))
    }
    fn attach_thread(&self) -> Option<Box<dyn LocalQueue>> {
        self.before.attach_thread(&*self.export)
    }
}
