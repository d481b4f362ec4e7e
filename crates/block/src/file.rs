//! A device over a regular file or a block special file.
//!
//! Reading order: `options`, `kind` (regular or block special), `dio` (whether direct I/O is
//! possible), `lock`, `need` (stable writes), `gate` (switching modes live), `length`, `inner` (the
//! shared state of an open file), `open`, `xfer` (short transfers and the file's end), `exec` (the
//! system calls), `pace` (urgent reads first), `op` (a request in progress in an engine).
//!
//! Invariants: F1 the file is locked (OFD locks) for as long as the device or any of its requests
//! lives, those of a killed process included: each open file description that requests use holds a
//! part of the lock. F2 while direct I/O is on, no block of the range is dirty in the system's page
//! cache (lineage.L2). F3 the file's size changes only by [`BlockDevice::grow`], never by a write.
//! F4 a request that direct I/O cannot take fails with `Unaligned`; the layer above aligns by
//! [`Limits`]. F5 the system reports a lost write only once per open file, to the first sync; so a
//! failed sync also fails the flushes in progress, and a failed synchronous write the next flush,
//! unless it was direct and found no space. F6 where direct I/O is possible, [`Limits`] has its
//! alignments, on or off, so that a request that waits at the gate during a switch fits afterwards
//! too. F7 in the last page of a file whose end is unaligned, three kinds of requests take turns
//! under `edge`: direct writes, writes through the page cache (the tail of a write, growing), and
//! zeroing. Where they meet, the kernel reports EIO to the next sync. So such requests run on
//! threads that may block. In other pages only zeroing uses the page cache while direct I/O is on,
//! and `fallocate` itself excludes direct writes.
//!
//! Lock rule: `turn` before `switching` before `edge` before the gate's mutex; none but `turn` is
//! held while a bio completes.

mod dio;
mod exec;
mod gate;
mod identity;
mod inner;
mod kind;
mod length;
mod lock;
mod need;
mod op;
mod open;
mod options;
mod pace;
mod xfer;

use crate::bdev::{BlockDevice, Limits, MapRuns};
use crate::bio::{Bio, BioFlags, BioOp};
use crate::engine::request::{self, Boxed};
use crate::engine::{Aio, Engine};
use crate::sys::IoVecs;
use forebay_base::buf::Segment;
use forebay_base::task::{BoxFuture, LocalQueue, oneshot};
use forebay_base::{Error, ErrorKind, Result};
use inner::Inner;
use op::{DiskQueue, Op, Pass, QueuedFile};
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, TryLockError};
use std::time::Duration;
use xfer::Xfer;

pub use identity::{FileIdentity, FileStamp};
pub use options::{DirectIo, FileOptions};

/// How long a switch of the I/O mode waits for the requests in flight.
const SWITCH_LIMIT: Duration = Duration::from_secs(30);

/// A block device over a file, with its engine.
pub struct FileDevice {
    file: Arc<QueuedFile>,
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
        let inner = Inner::open(path, options).map_err(|e| e.with_path(path))?;
        let disk_queue = DiskQueue::new(inner.disk, engine, options.aio);
        let file = Arc::new(QueuedFile { spares: disk_queue.spares(), inner });
        Ok(Arc::new(Self { file, disk_queue }))
    }

    fn inner(&self) -> &Inner {
        &self.file.inner
    }

    /// Whether direct I/O is on, and why or why not.
    pub fn direct_io(&self) -> (bool, String) {
        (self.inner().is_direct(), self.inner().decision().reason.clone())
    }

    /// The mode that was set last.
    pub fn direct_io_mode(&self) -> DirectIo {
        self.inner().decision().mode
    }

    /// Whether `Auto` would decide otherwise by now, because what is below the file has changed.
    pub fn is_direct_io_outdated(&self) -> bool {
        let is_auto = self.inner().decision().mode == DirectIo::Auto;
        is_auto && self.inner().check_direct().is_ok() != self.inner().is_direct()
    }

    /// Switches direct I/O while the device is in use. Holds new requests back and waits for those
    /// in flight (`Busy` after 30 s, nothing changed). When turning on, writes the page cache back
    /// and drops it. Blocks; not for a thread with an I/O queue attached.
    pub fn set_direct_io(&self, mode: DirectIo) -> Result<()> {
        self.switch_direct_io(mode, || Ok(()))
    }

    /// [`Self::set_direct_io`] for the layer that caches data, which writes it out by `write_out`
    /// first. Meanwhile the limits already show the need for stable writes, so no write that began
    /// under the old rule is in progress at the switch. If `write_out` fails nothing is switched.
    /// One switch at a time: `write_out` must not begin another one.
    pub fn switch_direct_io(
        &self,
        mode: DirectIo,
        write_out: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        let _turn = self.inner().turn.lock().unwrap_or_else(|p| p.into_inner());
        self.switch(mode, write_out)
    }

    /// Decides again, as by [`Self::switch_direct_io`], if the mode is `Auto` and it would decide
    /// otherwise; whether it did. A mode that is set at the same time stays, whichever comes first.
    /// Does nothing during another switch, which may be stuck in its `write_out`: the caller looks
    /// again some time later.
    pub fn refresh_direct_io(&self, write_out: impl FnOnce() -> Result<()>) -> Result<bool> {
        // Checks without the turn first: usually nothing has changed.
        if !self.is_direct_io_outdated() {
            return Ok(false);
        }
        let _turn = match self.inner().turn.try_lock() {
            Ok(turn) => turn,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return Ok(false),
        };
        let is_outdated = self.is_direct_io_outdated();
        if is_outdated {
            self.switch(DirectIo::Auto, write_out)?;
        }
        Ok(is_outdated)
    }

    /// The caller has the turn.
    fn switch(&self, mode: DirectIo, write_out: impl FnOnce() -> Result<()>) -> Result<()> {
        let file = self.inner();
        let on = mode.decide(file.check_direct()).is_ok_and(|(on, _)| on);
        file.announced.store(on, Ordering::Release);
        let done = write_out().and_then(|()| self.switch_written(mode));
        file.announced.store(false, Ordering::Release);
        done
    }

    fn switch_written(&self, mode: DirectIo) -> Result<()> {
        let file = self.inner();
        let guard = file.switching.lock().unwrap_or_else(|p| p.into_inner());
        let possible = file.check_direct();
        mode.decide(possible.clone()).map_err(|e| e.with_path(&file.path))?;
        let done = if file.gate.close(SWITCH_LIMIT) {
            file.set_direct(mode, possible).map_err(|e| e.with_path(&file.path))
        } else {
            let text = "requests in flight did not end in time";
            Err(Error::new(ErrorKind::Busy, "switch direct I/O", text).with_path(&file.path))
        };
        let mut parked = file.gate.open();
        drop(guard);
        self.submit_batch(&mut parked);
        done
    }

    /// Whether the file is still the one that was opened: same size, and the path leads to it.
    pub fn check_unchanged(&self) -> Result<()> {
        self.inner().check_unchanged()?;
        let fail = |why: String| {
            Error::new(ErrorKind::ChangedBelow, "check", why).with_path(&self.inner().path)
        };
        match rustix::fs::stat(&self.inner().path) {
            Ok(now) if (now.st_dev, now.st_ino) == self.inner().inode => Ok(()),
            Ok(_) => Err(fail("the path names another file by now".into())),
            Err(e) => Err(fail(format!("the path leads nowhere: {e}"))),
        }
    }

    /// Keeps `token` until the file is closed and its lock released, which is after the last of its
    /// requests (F1). Call it once.
    pub fn until_closed(&self, token: Arc<dyn Send + Sync>) {
        let fresh = self.inner().until_closed.set(token).is_ok();
        debug_assert!(fresh, "a device holds one token");
    }

    /// Path as it was opened.
    pub fn path(&self) -> &Path {
        &self.inner().path
    }

    /// Lets a bio in through the gate; none if it was parked.
    fn enter(&self, bio: Bio) -> Option<Box<Op>> {
        let bio = self.inner().gate.enter_or_park(bio)?;
        Some(Op::new(bio, Pass::new(&self.file)))
    }

    /// A transfer of the caller's memory on this thread. `segment` is valid during the call.
    fn transfer(&self, op: BioOp, offset: u64, segment: Segment, flags: BioFlags) -> Result<()> {
        let _reading = self.disk_queue.note(op);
        self.inner().gate.enter_wait();
        let pass = Pass::new(&self.file);
        // SAFETY: the segment is the caller's slice, borrowed until this call returns; for a
        // read it is borrowed exclusively, for a write it is only read.
        let iovs = unsafe { IoVecs::new(&[segment]) };
        let len = segment.len as u64;
        let (view, _edge) = pass.file().view_to(op, offset, len);
        Xfer::plan(pass.file(), &view, op, (offset, len), flags, iovs)
            .and_then(|mut xfer| pass.file().transfer(&mut xfer))
            .map_err(|e| e.with_path(&self.inner().path).with_range(offset, len))
    }
}

impl BlockDevice for FileDevice {
    fn name(&self) -> String {
        self.inner().path.display().to_string()
    }

    fn limits(&self) -> Limits {
        self.inner().limits()
    }

    fn size(&self) -> u64 {
        self.inner().size()
    }

    fn can_grow(&self) -> bool {
        self.inner().growable
    }

    fn grow(&self, size: u64) -> Result<()> {
        self.inner().grow(size)
    }

    fn truncate(&self, size: u64) -> Result<()> {
        self.inner().truncate(size)
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
        self.disk_queue
            .engine()
            .call(Box::new(move || tx.send(file.inner.extents(offset, len, max))));
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
