//! One object: a mapping in the cache, the map of its bytes, and the operations on both.
//!
//! The operations are `async` and wait by returning pending. A blocking caller drives them on its
//! own thread and passes [`Target::Slice`] or [`Source::Slice`]. Only then may a device borrow the
//! caller's memory, in a blocking system call. Event loops pass owned buffers.

use crate::ops::MapOps;
use crate::records::Records;
use forebay_base::buf::AlignedBuf;
use forebay_base::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use forebay_base::sync::{Arc, Mutex};
use forebay_base::task::WaitQueue;
use forebay_base::{Error, ErrorKind, IoFlags, Result};
use forebay_block::{DeviceRef, FlushTurns};
use forebay_cache::errseq::Cursor;
use forebay_cache::folio::Table;
use forebay_cache::readahead::Streams;
use forebay_cache::strategy::StablePages;
use forebay_cache::writeback::Domain;
use forebay_cache::{Mapping, PageCache, State, Unreported};
use std::ops::Range;
use std::sync::Weak;

/// Where a read goes.
pub enum Target<'a> {
    /// The memory of a caller that blocks.
    Slice(&'a mut [u8]),
    /// A buffer that a bio may borrow and gives back.
    Owned(&'a mut AlignedBuf),
}

impl Target<'_> {
    /// The bytes.
    pub fn bytes(&mut self) -> &mut [u8] {
        match self {
            Self::Slice(slice) => slice,
            Self::Owned(buf) => buf,
        }
    }

    /// Whether the caller blocks, so that I/O may be carried out on its thread.
    pub fn blocking(&self) -> bool {
        matches!(self, Self::Slice(_))
    }
}

/// Where a write comes from.
pub enum Source<'a> {
    /// The memory of a caller that blocks.
    Slice(&'a [u8]),
    /// A buffer that a bio may borrow and gives back.
    Owned(&'a mut AlignedBuf),
}

impl Source<'_> {
    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        match self {
            Self::Slice(slice) => slice,
            Self::Owned(buf) => buf,
        }
    }

    /// Whether the caller blocks.
    pub fn blocking(&self) -> bool {
        matches!(self, Self::Slice(_))
    }
}

/// How to zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ZeroFlags {
    /// Keep the space allocated.
    pub keep_allocated: bool,
    /// Fail with `Unsupported` if the device can only zero by writing zeros.
    pub fast_only: bool,
}

/// What one opener has: its streams, and which errors it has seen.
#[derive(Default)]
pub struct Handle {
    /// Readahead streams.
    pub streams: Streams,
    pub(crate) cursor: Mutex<Cursor>,
}

/// An object in the cache.
pub struct MappedFile {
    /// A reference to itself, for flushes that continue after their task is dropped.
    pub(crate) me: Weak<Self>,
    /// The cache it lives in.
    pub cache: Arc<PageCache>,
    /// Its state there.
    pub mapping: Arc<Mapping>,
    /// Where its bytes are.
    pub ops: std::sync::Arc<dyn MapOps>,
    /// Its flushes. A leaf lock.
    pub(crate) flush_turns: Mutex<FlushTurns>,
    /// The tasks that wait for the end of a flush.
    pub(crate) flush_ended: WaitQueue,
    /// Memory for write-outs, shared by all files of the cache.
    pub(crate) records: std::sync::Arc<Records>,
    read_only: bool,
    /// A [`forebay_cache::strategy::StablePages`].
    pub(crate) stable_pages: AtomicU8,
    /// Clean blocks stay cached after the close ([`MappedFile::retain_folios`]).
    retains_folios: AtomicBool,
    /// Receives unreported errors at the close ([`MappedFile::set_error_sink`]).
    error_sink: Mutex<Option<ErrorSink>>,
    /// The size at the open, until the content of storage behind it is known to be zero.
    pub(crate) opened_end: AtomicU64,
    /// True if a failed write left bytes behind the visible size, and their truncation failed, too.
    pub(crate) uncut: AtomicBool,
}

/// Receives errors of a closing file that no opener has seen.
pub type ErrorSink = Box<dyn FnOnce(Unreported) + Send>;

/// The sizes and the mode of an object at its open.
#[derive(Debug, Clone, Copy)]
pub struct Geometry {
    /// Unit of state in the cache, a power of two, 512 to 4096 bytes, a multiple of the map's unit.
    pub block_size: u32,
    /// Bytes.
    pub size: u64,
    /// For reading only.
    pub read_only: bool,
}

impl MappedFile {
    /// Opens an object of `size` bytes in a flush domain of its own. `block_size`: the unit of
    /// state in the cache, a power of two, 512 to 4096, a multiple of the map's unit.
    pub fn new(
        cache: &Arc<PageCache>,
        ops: std::sync::Arc<dyn MapOps>,
        block_size: u32,
        size: u64,
        read_only: bool,
    ) -> Result<std::sync::Arc<Self>> {
        Self::check_blocks(&*ops, block_size)?;
        let mapping = cache.new_mapping_in(cache.dirty.domain(None), block_size, size);
        Ok(Self::with_mapping(cache, ops, Arc::new(mapping), read_only))
    }

    /// Opens an object in `domain`. `resident`: the number of its mapping when it was last open;
    /// folios cached under that number must still have its content. The block size must be the same
    /// as then.
    pub fn open_in(
        cache: &Arc<PageCache>,
        domain: Arc<Domain>,
        ops: std::sync::Arc<dyn MapOps>,
        geometry: Geometry,
        resident: Option<u32>,
    ) -> Result<std::sync::Arc<Self>> {
        let Geometry { block_size, size, read_only } = geometry;
        Self::check_blocks(&*ops, block_size)?;
        let mapping = resident
            .and_then(|id| cache.revive_mapping(id, domain.clone(), block_size, size))
            .unwrap_or_else(|| cache.new_mapping_in(domain, block_size, size));
        Ok(Self::with_mapping(cache, ops, Arc::new(mapping), read_only))
    }

    fn check_blocks(ops: &dyn MapOps, block_size: u32) -> Result<()> {
        let info = ops.info();
        let unit = info.unit;
        if !block_size.is_power_of_two() || !(512..=4096).contains(&block_size) {
            let text = format!("block size {block_size}: a power of two from 512 to 4096");
            return Err(Error::new(ErrorKind::InvalidInput, "open", text));
        }
        if !info.fua_suffices && unit != block_size {
            let text = format!("block size {block_size}: the map moves blocks of {unit}");
            return Err(Error::new(ErrorKind::InvalidInput, "open", text));
        }
        if unit > block_size {
            let text = format!("block size {block_size} is smaller than the device's {unit}");
            return Err(Error::new(ErrorKind::InvalidInput, "open", text));
        }
        Ok(())
    }

    fn with_mapping(
        cache: &Arc<PageCache>,
        ops: std::sync::Arc<dyn MapOps>,
        mapping: Arc<Mapping>,
        read_only: bool,
    ) -> std::sync::Arc<Self> {
        let opened_end = AtomicU64::new(mapping.size());
        let file = std::sync::Arc::new_cyclic(|me| Self {
            me: me.clone(),
            mapping,
            cache: cache.clone(),
            ops,
            flush_turns: Mutex::default(),
            flush_ended: WaitQueue::new(),
            records: cache.attached(),
            read_only,
            stable_pages: AtomicU8::new(StablePages::Auto as u8),
            retains_folios: AtomicBool::new(false),
            error_sink: Mutex::new(None),
            opened_end,
            uncut: AtomicBool::new(false),
        });
        if !read_only {
            let out = std::sync::Arc::downgrade(&file);
            cache.join(&file.mapping, out);
        }
        cache.owners.set_label(file.mapping.id, file.ops.info().label);
        cache.fit_files();
        file
    }

    /// Retains clean blocks in the cache after the close: the next opener passes the number of this
    /// mapping to [`MappedFile::open_in`].
    pub fn retain_folios(&self) {
        self.retains_folios.store(true, Ordering::Release);
    }

    /// Whether there is no other reference to the file or its mapping: no request is in flight, and
    /// the mapping is dropped with the file.
    pub fn is_alone(self: &std::sync::Arc<Self>) -> bool {
        std::sync::Arc::strong_count(self) == 1 && Arc::strong_count(&self.mapping) == 1
    }

    /// Sets the receiver of errors that no opener has seen when the file closes; it runs before the
    /// device is released.
    pub fn set_error_sink(&self, error_sink: ErrorSink) {
        *self.error_sink.lock() = Some(error_sink);
    }

    /// Keeps a file without openers alive until all of it is durable.
    pub fn keep_until_settled(self: &std::sync::Arc<Self>) {
        let now = self.cache.world.now();
        self.mapping.domain.keep(self.mapping.id, self.clone(), now);
    }

    /// Waits until no block of the file is being read into the cache.
    pub async fn wait_fills(&self) {
        let all = 0..u64::MAX >> 1;
        for index in self.cache.folios_present(&self.mapping, &all) {
            let blocks = self.mapping.blocks_touched(index, &all);
            self.cache.wait_while(&self.mapping, index, blocks, State::Reading).await;
        }
    }

    /// A handle for a new opener.
    pub fn open_handle(&self) -> Handle {
        let handle = Handle::default();
        *handle.cursor.lock() = self.mapping.errseq.sample();
        handle
    }

    /// An opener closes: drops what its uncached streams have read ahead (lineage.U2).
    pub fn close_handle(&self, handle: &Handle) {
        for range in handle.streams.abandon() {
            self.drop_uncached(range);
        }
    }

    /// The device below.
    pub fn device(&self) -> &DeviceRef {
        self.ops.device()
    }

    /// Size in bytes, as readers see it: a write that makes the file longer raises it once its
    /// bytes are readable.
    #[inline]
    pub fn size(&self) -> u64 {
        self.mapping.bounds.visible()
    }

    /// Where the cache and storage end, bytes: beyond [`MappedFile::size`] while a write makes the
    /// file longer.
    #[inline]
    pub fn end(&self) -> u64 {
        self.mapping.size()
    }

    /// Opened for reading only.
    pub fn read_only(&self) -> bool {
        self.read_only
    }

    /// Checks a write's flags and range, and that the range lies inside the file or the file can
    /// grow.
    #[inline]
    pub(crate) fn check_write(
        &self,
        offset: u64,
        len: usize,
        flags: IoFlags,
    ) -> Result<Range<u64>> {
        flags.check(true)?;
        if self.read_only {
            return Err(Error::new(ErrorKind::ReadOnly, "write", "opened for reading only"));
        }
        let Some(end) = end_of(offset, len) else {
            return Err(overflows("write", offset, len));
        };
        let size = self.size();
        if end > size && !self.ops.info().can_grow {
            return Err(ends_at(size, offset, len));
        }
        Ok(offset..end)
    }

    /// Clips a read to the end of file.
    #[inline]
    pub(crate) fn check_read(&self, offset: u64, len: usize, flags: IoFlags) -> Result<Range<u64>> {
        flags.check(false)?;
        let Some(end) = end_of(offset, len) else { return Err(overflows("read", offset, len)) };
        let size = self.size();
        Ok(offset.min(size)..end.min(size))
    }

    /// Drops blocks that an uncached stream left, as far as they are clean and idle.
    pub(crate) fn drop_uncached(&self, range: Range<u64>) {
        for index in self.mapping.folios(&range) {
            if let Some(folio) = self.cache.lock_folio(&self.mapping, index) {
                folio.drop_uncached(self.mapping.blocks_touched(index, &range));
            }
        }
    }

    /// Splits a byte range at folio boundaries.
    #[inline]
    pub(crate) fn pieces(&self, range: Range<u64>) -> impl Iterator<Item = (u64, Range<u64>)> {
        self.split(range, self.mapping.folio_size())
    }

    /// Splits a byte range at multiples of `step`, a power of two, at most a folio: the folio of
    /// each part, and the part.
    #[inline]
    pub(crate) fn split(
        &self,
        range: Range<u64>,
        step: u64,
    ) -> impl Iterator<Item = (u64, Range<u64>)> {
        let (mapping, mut at) = (&*self.mapping, range.start);
        std::iter::from_fn(move || {
            let start = at;
            at = range.end.min((start | (step - 1)) + 1);
            (start < range.end).then(|| (mapping.folio_index(start), start..at))
        })
    }
}

#[inline]
fn end_of(offset: u64, len: usize) -> Option<u64> {
    offset.checked_add(len as u64).filter(|&end| end < 1 << 63)
}

#[cold]
fn overflows(op: &'static str, offset: u64, len: usize) -> Error {
    let error = Error::new(ErrorKind::OutOfRange, op, "the range overflows");
    error.with_range(offset, len as u64)
}

#[cold]
fn ends_at(size: u64, offset: u64, len: usize) -> Error {
    let text = format!("the object ends at {size}");
    Error::new(ErrorKind::NoSpace, "write", text).with_range(offset, len as u64)
}

impl Drop for MappedFile {
    fn drop(&mut self) {
        let (cache, mapping) = (&self.cache, &self.mapping);
        cache.fit_files();
        if !self.read_only {
            mapping.domain.leave(mapping.id);
        }
        // The file has no owner that would write dirty blocks, and they must not fill the cache. So
        // blocks in write-out are dropped when their write-out ends, even if it fails.
        mapping.die();
        let lost = mapping.dirty_bytes.load(Ordering::Relaxed);
        if lost > 0 {
            let name = self.device().name();
            log::error!("{name}: closed with {lost} bytes that could not be written");
        }
        if let Some(error_sink) = self.error_sink.lock().take()
            && let Some(unreported) = mapping.unreported()
        {
            error_sink(unreported);
        }
        let leaves = self.retains_folios.load(Ordering::Acquire)
            && mapping.is_settled()
            && !mapping.bounds.has_hidden_bytes();
        if leaves {
            return;
        }
        let all = 0..u64::MAX >> 1;
        for index in cache.folios_present(mapping, &all) {
            let Some(folio) = cache.lock_folio(mapping, index) else { continue };
            let blocks = mapping.blocks_touched(index, &all);
            let idle =
                |t: &Table, s, g| !(t.bits(s, State::Reading, g) | t.bits(s, State::Writing, g));
            folio.runs(blocks, idle).for_each(|run| folio.discard(run));
        }
    }
}
