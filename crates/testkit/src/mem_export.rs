//! An export in memory: for tests, for measuring the server alone, and as the model of what an
//! [`Export`] has to do.
//!
//! Every `n`th read or write can be made *late*: `try_*` refuses it, and another thread answers it
//! after a pause. So tests run the code paths of cache misses without a device.
//!
//! Locks: `data` then nothing; `late.queue` is a leaf.

use forebay_base::buf::AlignedBuf;
use forebay_base::sync::atomic::{AtomicU64, Ordering};
use forebay_base::sync::{Mutex, RwLock};
use forebay_base::task::{BoxFuture, LocalQueue, OneSender, oneshot};
use forebay_base::{Error, ErrorKind, IoFlags, Result};
use forebay_vfs::{BufResult, Export, ExportInfo, Extent, ZeroMode};
use std::sync::Arc;
use std::time::Duration;

/// Granularity of the map, bytes.
const BLOCK: u64 = 4096;

struct Image {
    bytes: Vec<u8>,
    /// Which blocks are allocated.
    allocated: Vec<bool>,
}

/// What counts the calls, for tests.
#[derive(Debug, Default)]
pub struct MemCounters {
    /// Calls of `flush`.
    pub flushes: AtomicU64,
    /// Writes, zeroes and trims that asked for durability.
    pub fua: AtomicU64,
    /// Calls of `prefetch`.
    pub prefetches: AtomicU64,
    /// Calls of `trim`.
    pub trims: AtomicU64,
}

/// An export of bytes in memory.
pub struct MemExport {
    info: ExportInfo,
    data: RwLock<Image>,
    /// One in this many requests is late, by this pause.
    late: Option<(u64, Duration)>,
    calls: AtomicU64,
    sleeper: Mutex<Option<std::sync::mpsc::Sender<OneSender<()>>>>,
    /// The calls so far.
    pub counters: MemCounters,
}

impl MemExport {
    /// `size` bytes of zeros, all of it a hole.
    pub fn new(size: u64) -> Self {
        let info = ExportInfo {
            size,
            min_block: 1,
            preferred_block: 4096,
            max_request: 32 << 20,
            read_only: false,
            can_trim: true,
            fast_zero: true,
            description: "memory".into(),
        };
        let bytes = vec![0; usize::try_from(size).expect("the image fits the address space")];
        let allocated = vec![false; size.div_ceil(BLOCK) as usize];
        Self {
            info,
            data: RwLock::new(Image { bytes, allocated }),
            late: None,
            calls: AtomicU64::new(0),
            sleeper: Mutex::default(),
            counters: MemCounters::default(),
        }
    }

    /// The export with another description; the size stays.
    #[must_use]
    pub fn with_info(mut self, change: impl FnOnce(&mut ExportInfo)) -> Self {
        let size = self.info.size;
        change(&mut self.info);
        self.info.size = size;
        self
    }

    /// Makes every `every`th request late by `pause` at least.
    #[must_use]
    pub fn with_late(mut self, every: u64, pause: Duration) -> Self {
        self.late = Some((every.max(1), pause));
        self
    }

    fn is_late(&self) -> bool {
        let Some((every, _)) = self.late else { return false };
        self.calls.fetch_add(1, Ordering::Relaxed) % every == every - 1
    }

    /// A future that another thread completes after the pause.
    fn pause(&self) -> BoxFuture<'static, ()> {
        let Some((_, pause)) = self.late else { return Box::pin(std::future::ready(())) };
        let (tx, rx) = oneshot();
        let mut sleeper = self.sleeper.lock();
        let queue = sleeper.get_or_insert_with(|| {
            let (queue, jobs) = std::sync::mpsc::channel::<OneSender<()>>();
            std::thread::spawn(move || {
                while let Ok(first) = jobs.recv() {
                    std::thread::sleep(pause);
                    first.send(());
                    jobs.try_iter().for_each(|more| more.send(()));
                }
            });
            queue
        });
        // The thread ends only when the sender is dropped, with this export.
        let _ = queue.send(tx);
        Box::pin(async move {
            rx.await;
        })
    }

    fn range(&self, op: &'static str, offset: u64, len: u64) -> Result<std::ops::Range<usize>> {
        match offset.checked_add(len) {
            Some(end) if end <= self.info.size => Ok(offset as usize..end as usize),
            _ => Err(Error::new(ErrorKind::OutOfRange, op, "").with_range(offset, len)),
        }
    }

    fn get(&self, offset: u64, dst: &mut [u8]) -> Result<()> {
        let range = self.range("read", offset, dst.len() as u64)?;
        dst.copy_from_slice(&self.data.read().bytes[range]);
        Ok(())
    }

    fn set(&self, offset: u64, src: &[u8], fua: bool) -> Result<()> {
        let range = self.writable("write", offset, src.len() as u64, fua)?;
        let mut data = self.data.write();
        let blocks = range.start / BLOCK as usize..range.end.div_ceil(BLOCK as usize);
        data.bytes[range].copy_from_slice(src);
        data.allocated[blocks].fill(true);
        Ok(())
    }

    fn writable(
        &self,
        op: &'static str,
        offset: u64,
        len: u64,
        fua: bool,
    ) -> Result<std::ops::Range<usize>> {
        if self.info.read_only {
            return Err(Error::new(ErrorKind::ReadOnly, op, ""));
        }
        self.counters.fua.fetch_add(u64::from(fua), Ordering::Relaxed);
        self.range(op, offset, len)
    }

    fn clear(&self, offset: u64, len: u64, keep: bool, fua: bool) -> Result<()> {
        let range = self.writable("zero", offset, len, fua)?;
        let mut data = self.data.write();
        // Only whole blocks become holes; the last block may be short.
        let first = range.start.div_ceil(BLOCK as usize);
        let last = match range.end == data.bytes.len() {
            true => data.allocated.len(),
            false => range.end / BLOCK as usize,
        };
        data.bytes[range].fill(0);
        if first < last {
            data.allocated[first..last].fill(keep);
        }
        Ok(())
    }

    fn map(&self, offset: u64, len: u64, max: usize) -> Result<Vec<Extent>> {
        let range = self.range("map", offset, len)?;
        let data = self.data.read();
        let (mut at, end) = (range.start as u64, range.end as u64);
        let mut out: Vec<Extent> = Vec::new();
        while at < end {
            let next = ((at / BLOCK + 1) * BLOCK).min(end);
            let hole = !data.allocated[(at / BLOCK) as usize];
            let full = out.len() == max;
            match out.last_mut() {
                Some(e) if e.hole == hole => e.len += next - at,
                _ if full => break,
                _ => out.push(Extent { len: next - at, hole, zero: hole }),
            }
            at = next;
        }
        Ok(out)
    }
}

fn ready<T: Send + 'static>(value: T) -> BoxFuture<'static, T> {
    Box::pin(std::future::ready(value))
}

impl Export for MemExport {
    fn info(&self) -> ExportInfo {
        self.info.clone()
    }

    fn try_read(&self, offset: u64, dst: &mut [u8], _flags: IoFlags) -> Option<Result<()>> {
        (!self.is_late()).then(|| self.get(offset, dst))
    }

    fn read(
        self: Arc<Self>,
        offset: u64,
        mut buf: AlignedBuf,
        _flags: IoFlags,
    ) -> BoxFuture<'static, BufResult> {
        Box::pin(async move {
            self.pause().await;
            let result = self.get(offset, &mut buf);
            (buf, result)
        })
    }

    fn try_write(&self, offset: u64, src: &[u8], flags: IoFlags) -> Option<Result<()>> {
        (!self.is_late()).then(|| self.set(offset, src, flags.contains(IoFlags::DSYNC)))
    }

    fn write(
        self: Arc<Self>,
        offset: u64,
        buf: AlignedBuf,
        flags: IoFlags,
    ) -> BoxFuture<'static, BufResult> {
        Box::pin(async move {
            self.pause().await;
            let result = self.set(offset, &buf, flags.contains(IoFlags::DSYNC));
            (buf, result)
        })
    }

    fn flush(self: Arc<Self>) -> BoxFuture<'static, Result<()>> {
        Box::pin(async move {
            self.pause().await;
            self.counters.flushes.fetch_add(1, Ordering::Relaxed);
            Ok(())
        })
    }

    fn trim(self: Arc<Self>, offset: u64, len: u64, fua: bool) -> BoxFuture<'static, Result<()>> {
        self.counters.trims.fetch_add(1, Ordering::Relaxed);
        ready(self.clear(offset, len, false, fua))
    }

    fn zero(
        self: Arc<Self>,
        offset: u64,
        len: u64,
        mode: ZeroMode,
    ) -> BoxFuture<'static, Result<()>> {
        ready(self.clear(offset, len, mode.keep_allocated, mode.fua))
    }

    fn prefetch(self: Arc<Self>, offset: u64, len: u64) -> BoxFuture<'static, Result<()>> {
        self.counters.prefetches.fetch_add(1, Ordering::Relaxed);
        ready(self.range("prefetch", offset, len).map(|_| ()))
    }

    fn extents(
        self: Arc<Self>,
        offset: u64,
        len: u64,
        max: usize,
    ) -> BoxFuture<'static, Result<Vec<Extent>>> {
        ready(self.map(offset, len, max.max(1)))
    }

    fn attach_thread(&self) -> Option<Box<dyn LocalQueue>> {
        None
    }
}
