//! A device over a regular file or a block special file.
//!
//! Reading order: `open` (size, direct I/O), `lock`, `need` (stable writes), `gate` (switching
//! modes live), `xfer` (short transfers and the file's end), `exec` (the system calls), `op` (a
//! request in progress in an engine), `pace` (urgent reads first).
//!
//! Invariants: F1 the file is locked (OFD locks) for as long as the device or any of its requests
//! lives, those of a killed process included: each open file description that requests use holds a
//! part of the lock. F2 while direct I/O is on, no block of the range is dirty in the system's page
//! cache (checklist L2). F3 the file's size changes only by [`BlockDevice::grow`], never by a
//! write. F4 a request that direct I/O cannot take fails with `Unaligned`; the layer above aligns
//! by [`Limits`]. F5 the system reports a lost write only once per open file, to the first sync; so
//! a failed sync also fails the flushes in progress, and a failed synchronous write the next flush.
//! F6 where direct I/O is possible, [`Limits`] has its alignments, on or off, so that a request
//! that waits at the gate during a switch fits afterwards too. F7 in the last page of a file whose
//! end is unaligned, three kinds of requests take turns under `edge`: direct writes, writes through
//! the page cache (the tail of a write, growing), and zeroing. Where they meet, the kernel reports
//! EIO to the next sync. So such requests run on threads that may block. In other pages only
//! zeroing uses the page cache while direct I/O is on, and `fallocate` itself excludes direct
//! writes.
//!
//! Lock rule: `switching` before `edge` before the gate's mutex; none is held while a bio
//! completes.

pub(crate) mod exec;
pub(crate) mod gate;
mod identity;
mod length;
mod lock;
mod need;
pub(crate) mod op;
mod open;
mod pace;
pub(crate) mod xfer;

use crate::bdev::{BlockDevice, Limits, MapRuns, StableWrites};
use crate::bio::{Bio, BioFlags, BioOp};
use crate::engine::request::{self, Boxed};
use crate::engine::{Aio, Engine};
use crate::sys::{IoVecs, MAX_SEGMENTS, MAX_TRANSFER};
use forebay_base::buf::Segment;
use forebay_base::task::{BoxFuture, LocalQueue, oneshot};
use forebay_base::{Error, ErrorKind, Result};
use op::{DiskQueue, Op, Spares};
use rustix::fs::Advice;
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::Duration;
use xfer::Xfer;

pub use identity::{FileIdentity, FileStamp};

/// How long a switch of the I/O mode waits for the requests in flight.
const SWITCH_LIMIT: Duration = Duration::from_secs(30);

/// Whether to bypass the system's page cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum DirectIo {
    /// Wherever the file is eligible.
    #[default]
    Auto,
    /// Yes, or an error that says why not.
    On,
    /// No.
    Off,
}

impl fmt::Display for DirectIo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::On => "on",
            Self::Off => "off",
        })
    }
}

impl FromStr for DirectIo {
    type Err = Error;
    fn from_str(text: &str) -> Result<Self> {
        match text {
            "auto" => Ok(Self::Auto),
            "on" => Ok(Self::On),
            "off" => Ok(Self::Off),
            _ => {
                let text = format!("`{text}`: auto, on or off");
                Err(Error::new(ErrorKind::InvalidInput, "parse direct-io", text))
            }
        }
    }
}

/// How to open a file.
#[derive(Debug, Clone)]
pub struct FileOptions {
    /// For reading only; takes a shared lock instead of an exclusive one.
    pub read_only: bool,
    /// Bypass the system's page cache.
    pub direct_io: DirectIo,
    /// Which part of the engine serves this device: `Threads` keeps it off io_uring, `IoUring`
    /// fails if the engine has none, `Auto` takes what the engine has.
    pub aio: Aio,
    /// Where in the file the device starts, bytes.
    pub offset: u64,
    /// Longest device, bytes; the rest of the file is not touched.
    pub size_limit: Option<u64>,
    /// Size in bytes of a file that does not exist yet or is empty. Other files keep theirs.
    pub create_size: Option<u64>,
    /// Logical block to show, 512..=4096; 0 takes what the file needs.
    pub logical_block: u32,
    /// How long to wait for a lock that no visible living process holds, as after a kill -9; zero
    /// means no wait. If a living process holds it, opening fails at once.
    pub lock_wait: Duration,
}

impl Default for FileOptions {
    fn default() -> Self {
        Self {
            read_only: false,
            direct_io: DirectIo::Auto,
            aio: Aio::Auto,
            offset: 0,
            size_limit: None,
            create_size: None,
            logical_block: 0,
            lock_wait: Duration::from_secs(5),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Regular,
    Block,
}

/// Alignments that direct I/O on this file needs.
pub(crate) struct Dio {
    /// Opened when it is needed first.
    fd: OnceLock<OwnedFd>,
    offset_align: u32,
    memory_align: u32,
}

/// The file, shared by the device and its requests in flight.
pub(crate) struct Inner {
    pub(crate) path: PathBuf,
    pub(crate) kind: Kind,
    read_only: bool,
    wanted_block: u32,
    natural_block: u32,
    physical_block: u32,
    need: need::Need,
    buffered: OwnedFd,
    dio: std::result::Result<Dio, String>,
    direct_on: AtomicBool,
    /// Direct I/O will be turned on: writers already meet its needs.
    announced: AtomicBool,
    direct_reason: Mutex<String>,
    switching: Mutex<()>,
    edge: Mutex<()>,
    gate: gate::Gate,
    pub(crate) offset: u64,
    size: AtomicU64,
    length: length::Length,
    /// A regular file without a size limit, writable: it may grow.
    growable: bool,
    inode: (u64, u64),
    /// Number of the block device that holds it.
    disk: u64,
    punch_ok: AtomicBool,
    zero_ok: AtomicBool,
    /// Block devices: zeroing without writing.
    fast_zero_ok: AtomicBool,
    /// The size was set by us and is not known to be durable.
    resized: AtomicBool,
    /// Syncs that failed (F5).
    sync_failures: AtomicU64,
    /// A synchronous write failed with an error that the next flush has to report as well.
    unreported_error: AtomicBool,
    /// Of its disk.
    spares: Arc<Spares>,
    /// Dropped last: see [`FileDevice::until_closed`].
    until_closed: OnceLock<Arc<dyn Send + Sync>>,
}

/// The right to change the file's last page and its size (F7).
pub(crate) type Edge<'a> = MutexGuard<'a, ()>;

impl Inner {
    /// Bytes that the device shows.
    pub(crate) fn size(&self) -> u64 {
        self.size.load(Ordering::Acquire)
    }

    fn grow(&self, size: u64) -> Result<()> {
        let _guard = self.switching.lock().unwrap_or_else(|p| p.into_inner());
        if !self.growable || size < self.size() {
            let text = format!("it shows {} bytes and cannot grow to {size}", self.size());
            return Err(Error::new(ErrorKind::Unsupported, "grow", text).with_path(&self.path));
        }
        let whole = self.offset + size;
        let _edge = self.edge();
        self.set_length("grow", whole)?;
        self.size.store(size, Ordering::Release);
        Ok(())
    }

    fn truncate(&self, size: u64) -> Result<()> {
        let _guard = self.switching.lock().unwrap_or_else(|p| p.into_inner());
        if !self.growable || size > self.size() {
            let text = format!("it shows {} bytes and cannot be cut to {size}", self.size());
            let error = Error::new(ErrorKind::Unsupported, "truncate", text);
            return Err(error.with_path(&self.path));
        }
        let (whole, old) = (self.offset + size, self.size());
        let _edge = self.edge();
        // The shown size is stored first, then the real one: a reader never finds less than is
        // shown.
        self.size.store(size, Ordering::Release);
        let done = self.set_length("truncate", whole);
        if done.is_err() {
            self.size.store(old, Ordering::Release);
        }
        done
    }

    /// Makes the whole file so long.
    fn set_length(&self, op: &'static str, bytes: u64) -> Result<()> {
        self.length.change(bytes, || {
            let done = exec::retry(|| rustix::fs::ftruncate(&self.buffered, bytes));
            done.map_err(|e| Error::from_io(op, e.into()).with_path(&self.path))
        })?;
        self.resized.store(true, Ordering::Release);
        Ok(())
    }

    pub(crate) fn edge(&self) -> Edge<'_> {
        self.edge.lock().unwrap_or_else(|p| p.into_inner())
    }

    pub(crate) fn is_direct(&self) -> bool {
        self.direct_on.load(Ordering::Acquire)
    }

    pub(crate) fn fd(&self, direct: bool) -> BorrowedFd<'_> {
        let dio = self.dio.as_ref().ok().filter(|_| direct).and_then(|dio| dio.fd.get());
        dio.unwrap_or(&self.buffered).as_fd()
    }

    pub(crate) fn limits(&self) -> Limits {
        let direct = self.is_direct() || self.announced.load(Ordering::Acquire);
        self.limits_with(self.need.get(direct, self.buffered.as_fd()))
    }

    /// The limits with a given need for stable writes; finding that need may read files.
    pub(crate) fn limits_with(&self, stable_writes: StableWrites) -> Limits {
        let (offset_align, memory_align) = match &self.dio {
            Ok(dio) => (dio.offset_align, dio.memory_align),
            Err(_) => (1, 1),
        };
        let block = if self.wanted_block == 0 { self.natural_block } else { self.wanted_block };
        let can = |ok: &AtomicBool| !self.read_only && ok.load(Ordering::Relaxed);
        Limits {
            logical_block: block.max(offset_align),
            physical_block: self.physical_block,
            memory_align,
            max_transfer: MAX_TRANSFER as u32,
            max_segments: MAX_SEGMENTS as u32,
            stable_writes,
            discard: can(&self.punch_ok),
            write_zeroes: match self.kind {
                Kind::Regular => can(&self.punch_ok) || can(&self.zero_ok),
                Kind::Block => can(&self.fast_zero_ok),
            },
            read_only: self.read_only,
        }
    }

    /// Whether the file still has the size that this device gave it or found.
    pub(crate) fn check_unchanged(&self) -> Result<()> {
        let look = || open::size_of(self.buffered.as_fd(), self.kind);
        let found = self.length.compare(look).map_err(|e| e.with_path(&self.path))?;
        let Some((known, now)) = found else { return Ok(()) };
        let text = format!("it had {known} bytes and has {now}");
        Err(Error::new(ErrorKind::ChangedBelow, "check", text).with_path(&self.path))
    }

    /// Sets the mode. Nothing is in flight.
    fn set_direct(&self, mode: DirectIo) -> Result<()> {
        let (on, reason) = mode.decide(&self.dio)?;
        if on && !self.is_direct() {
            let fail = |e: rustix::io::Errno| Error::from_io("turn direct I/O on", e.into());
            if let Ok(dio) = &self.dio {
                dio.open(&self.path, self.buffered.as_fd(), self.read_only)
                    .map_err(|e| Error::from_io("turn direct I/O on", e))?;
            }
            exec::retry(|| rustix::fs::fsync(&self.buffered)).map_err(|e| {
                // The system reports a lost write once, so the next flush must report it again
                // (F5).
                self.note_sync_failure();
                fail(e)
            })?;
            let len = std::num::NonZeroU64::new(self.size());
            rustix::fs::fadvise(&self.buffered, self.offset, len, Advice::DontNeed)
                .map_err(fail)?;
        }
        self.direct_on.store(on, Ordering::Release);
        *self.reason() = reason;
        Ok(())
    }

    fn reason(&self) -> MutexGuard<'_, String> {
        self.direct_reason.lock().unwrap_or_else(|p| p.into_inner())
    }
}

/// The right to be inside the gate of a file.
pub(crate) struct Pass(Arc<Inner>, u64);

impl Pass {
    /// The caller has entered the gate.
    fn new(file: &Arc<Inner>) -> Self {
        Self(file.clone(), file.sync_failures.load(Ordering::Acquire))
    }

    /// How many syncs had failed when the request came.
    pub(crate) fn seen(&self) -> u64 {
        self.1
    }

    pub(crate) fn file(&self) -> &Inner {
        &self.0
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        self.0.gate.leave();
    }
}

/// A block device over a file, with its engine.
pub struct FileDevice {
    file: Arc<Inner>,
    disk_queue: DiskQueue,
}

impl FileDevice {
    /// Opens and locks `path`. `Busy` if another opener holds it; `Unsupported` if `direct_io` is
    /// `On` and the file is not eligible, with the reason.
    pub fn open(
        path: impl AsRef<Path>,
        options: &FileOptions,
        engine: &Engine,
    ) -> Result<Arc<Self>> {
        let path = path.as_ref();
        if options.aio == Aio::IoUring && engine.kind().0 != "io_uring" {
            let text = format!("the engine has no io_uring: {}", engine.kind().1);
            return Err(Error::new(ErrorKind::Unsupported, "open", text).with_path(path));
        }
        let mut file = Inner::open(path, options).map_err(|e| e.with_path(path))?;
        let disk_queue = DiskQueue::new(file.disk, engine, options.aio);
        file.spares = disk_queue.spares();
        Ok(Arc::new(Self { file: Arc::new(file), disk_queue }))
    }

    /// Whether direct I/O is on, and why or why not.
    pub fn direct_io(&self) -> (bool, String) {
        (self.file.is_direct(), self.file.reason().clone())
    }

    /// Announces that direct I/O will be turned on, so that the limits show its need for stable
    /// writes. The layer that caches data calls this, writes out, and then switches: by then no
    /// write that began under the old rule is in progress. [`Self::set_direct_io`] ends the
    /// announcement.
    pub fn announce_direct_io(&self, mode: DirectIo) {
        let on = mode.decide(&self.file.dio).is_ok_and(|(on, _)| on);
        self.file.announced.store(on, Ordering::Release);
    }

    /// Switches direct I/O while the device is in use. Holds new requests back and waits for those
    /// in flight (`Busy` after 30 s, nothing changed). When turning on, writes the page cache back
    /// and drops it. Blocks; not for a thread with an I/O queue attached.
    pub fn set_direct_io(&self, mode: DirectIo) -> Result<()> {
        let file = &self.file;
        let guard = file.switching.lock().unwrap_or_else(|p| p.into_inner());
        if let Err(e) = mode.decide(&file.dio) {
            file.announced.store(false, Ordering::Release);
            return Err(e.with_path(&file.path));
        }
        let done = if file.gate.close(SWITCH_LIMIT) {
            file.set_direct(mode).map_err(|e| e.with_path(&file.path))
        } else {
            let text = "requests in flight did not end in time";
            Err(Error::new(ErrorKind::Busy, "switch direct I/O", text).with_path(&file.path))
        };
        file.announced.store(false, Ordering::Release);
        let mut parked = file.gate.open();
        drop(guard);
        self.submit_batch(&mut parked);
        done
    }

    /// Whether the file is still the one that was opened: same size, and the path leads to it.
    pub fn check_unchanged(&self) -> Result<()> {
        self.file.check_unchanged()?;
        let fail = |why: String| {
            Error::new(ErrorKind::ChangedBelow, "check", why).with_path(&self.file.path)
        };
        match rustix::fs::stat(&self.file.path) {
            Ok(now) if (now.st_dev, now.st_ino) == self.file.inode => Ok(()),
            Ok(_) => Err(fail("the path names another file by now".into())),
            Err(e) => Err(fail(format!("the path leads nowhere: {e}"))),
        }
    }

    /// Keeps `token` until the file is closed and its lock released, which is after the last of its
    /// requests (F1). Call it once.
    pub fn until_closed(&self, token: Arc<dyn Send + Sync>) {
        let fresh = self.file.until_closed.set(token).is_ok();
        debug_assert!(fresh, "a device holds one token");
    }

    /// Path as it was opened.
    pub fn path(&self) -> &Path {
        &self.file.path
    }

    /// Lets a bio in through the gate; none if it was parked.
    fn enter(&self, bio: Bio) -> Option<Box<Op>> {
        let bio = self.file.gate.enter_or_park(bio)?;
        Some(Op::new(bio, Pass::new(&self.file)))
    }

    /// A transfer of the caller's memory on this thread. `segment` is valid during the call.
    fn transfer(&self, op: BioOp, offset: u64, segment: Segment, flags: BioFlags) -> Result<()> {
        let _reading = self.disk_queue.note(op);
        self.file.gate.enter_wait();
        let pass = Pass::new(&self.file);
        // SAFETY: the segment is the caller's slice, borrowed until this call returns; for a
        // read it is borrowed exclusively, for a write it is only read.
        let iovs = unsafe { IoVecs::new(&[segment]) };
        let len = segment.len as u64;
        let (view, _edge) = pass.file().view_to(op, offset, len);
        Xfer::plan(pass.file(), &view, op, (offset, len), flags, iovs)
            .and_then(|mut xfer| pass.file().transfer(&mut xfer))
            .map_err(|e| e.with_path(&self.file.path).with_range(offset, len))
    }
}

impl BlockDevice for FileDevice {
    fn name(&self) -> String {
        self.file.path.display().to_string()
    }

    fn limits(&self) -> Limits {
        self.file.limits()
    }

    fn size(&self) -> u64 {
        self.file.size()
    }

    fn can_grow(&self) -> bool {
        self.file.growable
    }

    fn grow(&self, size: u64) -> Result<()> {
        self.file.grow(size)
    }

    fn truncate(&self, size: u64) -> Result<()> {
        self.file.truncate(size)
    }

    fn submit(&self, bio: Bio) {
        if let Some(op) = self.enter(bio).and_then(|op| self.disk_queue.admit(op)) {
            self.disk_queue.engine().submit([op as Boxed], self.disk_queue.aio());
        }
    }

    fn submit_batch(&self, bios: &mut Vec<Bio>) {
        let admit = |bio| self.enter(bio).and_then(|op| self.disk_queue.admit(op));
        let ops = bios.drain(..).filter_map(admit).map(|op| op as Boxed);
        self.disk_queue.engine().submit(ops, self.disk_queue.aio());
    }

    fn execute(&self, bio: Bio) {
        if let Some(mut op) = self.enter(bio) {
            self.disk_queue.note_op(&mut op);
            let mut request: Boxed = op;
            request::guarded(&mut request, (), |request| request.run());
            request::end(request);
        }
    }

    fn is_crowded(&self) -> bool {
        self.disk_queue.engine().is_crowded()
    }

    fn wait_for_capacity(&self) -> BoxFuture<'_, ()> {
        Box::pin(self.disk_queue.engine().wait_for_capacity())
    }

    fn read_into(&self, offset: u64, dst: &mut [u8]) -> Result<()> {
        let segment = Segment { ptr: dst.as_mut_ptr(), len: dst.len() };
        self.transfer(BioOp::Read, offset, segment, BioFlags::SYNC)
    }

    fn write_from(&self, offset: u64, src: &[u8], flags: BioFlags) -> Result<()> {
        let segment = Segment { ptr: src.as_ptr().cast_mut(), len: src.len() };
        self.transfer(BioOp::Write, offset, segment, flags)
    }

    fn extents(&self, offset: u64, len: u64, max: usize) -> BoxFuture<'static, Result<MapRuns>> {
        let (file, (tx, rx)) = (self.file.clone(), oneshot());
        self.disk_queue.engine().call(Box::new(move || tx.send(file.extents(offset, len, max))));
        Box::pin(async move {
            let gone = || Err(Error::new(ErrorKind::Io, "map", "the I/O threads are gone"));
            rx.await.unwrap_or_else(gone)
        })
    }

    fn attach_thread(&self) -> Option<Box<dyn LocalQueue>> {
        match self.disk_queue.aio() {
            Aio::Threads => None,
            _ => self.disk_queue.engine().attach_thread(),
        }
    }
}
