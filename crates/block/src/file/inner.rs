//! The state of an open file that its device and the requests in flight share. The invariants are
//! in [`super`].
//!
//! Lock rule: `turn` before `switching` before `edge` before the gate's mutex.

use super::dio::{Decision, Dio, Possible};
use super::gate::Gate;
use super::kind::{Kind, size_of};
use super::length::Length;
use super::lock::unlock;
use super::need::Need;
use super::options::DirectIo;
use crate::bdev::{Limits, StableWrites};
use crate::sys::{self, MAX_SEGMENTS, MAX_TRANSFER};
use forebay_base::fork::Process;
use forebay_base::{Error, ErrorKind, Result};
use rustix::fs::Advice;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

/// The file, shared by the device and its requests in flight.
pub(crate) struct Inner {
    pub(crate) path: PathBuf,
    pub(crate) kind: Kind,
    pub(crate) read_only: bool,
    pub(crate) wanted_block: u32,
    pub(crate) natural_block: u32,
    pub(crate) physical_block: u32,
    pub(crate) need: Need,
    pub(crate) buffered: OwnedFd,
    pub(crate) dio: std::result::Result<Dio, String>,
    pub(crate) direct_on: AtomicBool,
    /// Direct I/O will be turned on: writers already meet its needs.
    pub(crate) announced: AtomicBool,
    pub(crate) decision: Mutex<Decision>,
    /// One switch of direct I/O at a time, from its announcement on.
    pub(crate) turn: Mutex<()>,
    pub(crate) switching: Mutex<()>,
    pub(crate) edge: Mutex<()>,
    pub(crate) gate: Gate,
    pub(crate) offset: u64,
    pub(crate) size: AtomicU64,
    pub(crate) length: Length,
    /// A regular file without a size limit, writable: it may grow.
    pub(crate) growable: bool,
    pub(crate) inode: (u64, u64),
    /// Number of the block device that holds the file, or that it is.
    pub(crate) disk: u64,
    pub(crate) punch_ok: AtomicBool,
    pub(crate) zero_ok: AtomicBool,
    /// Block devices: zeroing without writing.
    pub(crate) fast_zero_ok: AtomicBool,
    /// This device has set the file's size, which is not known to be durable yet.
    pub(crate) resized: AtomicBool,
    /// Syncs that failed (file.F5).
    pub(crate) sync_failures: AtomicU64,
    /// A synchronous write failed with an error that the next flush has to report as well.
    pub(crate) unreported_error: AtomicBool,
    /// The process that opened it.
    pub(crate) opener: Process,
    /// Dropped last: see [`super::FileDevice::until_closed`].
    pub(crate) until_closed: OnceLock<Arc<dyn Send + Sync>>,
}

/// A child of fork(2) has copies of the descriptors, by which the lock would outlive them here. So
/// the process that opened the file releases the lock. A child never does: the lock is its
/// parent's.
impl Drop for Inner {
    fn drop(&mut self) {
        if self.opener != Process::current() {
            return;
        }
        let direct = self.dio.as_ref().ok().and_then(|dio| dio.fd.get());
        for fd in direct.into_iter().chain([&self.buffered]) {
            unlock(&self.path, fd);
        }
    }
}

/// The right to change the file's last page and its size (file.F7).
pub(crate) type Edge<'a> = MutexGuard<'a, ()>;

impl Inner {
    /// Bytes that the device shows.
    pub(crate) fn size(&self) -> u64 {
        self.size.load(Ordering::Acquire)
    }

    pub(crate) fn grow(&self, size: u64) -> Result<()> {
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

    pub(crate) fn truncate(&self, size: u64) -> Result<()> {
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

    /// Sets the length of the whole file.
    fn set_length(&self, op: &'static str, bytes: u64) -> Result<()> {
        self.length.change(bytes, || {
            let done = sys::retry(|| rustix::fs::ftruncate(&self.buffered, bytes));
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
        let look = || size_of(self.buffered.as_fd(), self.kind);
        let found = self.length.compare(look).map_err(|e| e.with_path(&self.path))?;
        let Some((known, now)) = found else { return Ok(()) };
        let text = format!("it had {known} bytes and has {now}");
        Err(Error::new(ErrorKind::ChangedBelow, "check", text).with_path(&self.path))
    }

    /// Sets the mode. `possible`: whether direct I/O can be used, or why not. No request is in
    /// flight.
    pub(crate) fn set_direct(&self, mode: DirectIo, possible: Possible) -> Result<()> {
        let (on, reason) = mode.decide(possible)?;
        if on && !self.is_direct() {
            let fail = |e: rustix::io::Errno| Error::from_io("turn direct I/O on", e.into());
            if let Ok(dio) = &self.dio {
                dio.open(&self.path, self.buffered.as_fd(), self.read_only)
                    .map_err(|e| Error::from_io("turn direct I/O on", e))?;
            }
            sys::retry(|| rustix::fs::fsync(&self.buffered)).map_err(|e| {
                // The system reports a lost write once, so the next flush must report it again
                // (file.F5).
                self.note_sync_failure();
                fail(e)
            })?;
            let len = std::num::NonZeroU64::new(self.size());
            rustix::fs::fadvise(&self.buffered, self.offset, len, Advice::DontNeed)
                .map_err(fail)?;
        }
        self.direct_on.store(on, Ordering::Release);
        *self.decision() = Decision { mode, reason };
        Ok(())
    }

    /// Whether direct I/O is possible now. A file that was not eligible when it was opened is not
    /// later either.
    pub(crate) fn check_direct(&self) -> Possible {
        match &self.dio {
            Ok(dio) => dio.check(self.buffered.as_fd(), self.kind),
            Err(why) => Err(why.clone()),
        }
    }

    /// The last decision on direct I/O.
    pub(crate) fn decision(&self) -> MutexGuard<'_, Decision> {
        self.decision.lock().unwrap_or_else(|p| p.into_inner())
    }

    /// Whether a flush must also make the file's size durable. The caller then does so.
    pub(crate) fn take_resized(&self) -> bool {
        self.resized.swap(false, Ordering::AcqRel)
    }

    /// If `resized`, the next flush has to make the file's size durable.
    pub(crate) fn set_resized(&self, resized: bool) {
        self.resized.fetch_or(resized, Ordering::AcqRel);
    }

    /// Records the outcome of a flush (file.F5).
    pub(crate) fn note_flush(&self, seen: u64, resized: bool, done: io::Result<()>) -> Result<()> {
        if let Err(e) = done {
            self.set_resized(resized);
            self.sync_failures.fetch_add(1, Ordering::AcqRel);
            return Err(Error::from_io("flush", e).with_path(&self.path));
        }
        let unreported_error = self.unreported_error.swap(false, Ordering::AcqRel);
        if !unreported_error && self.sync_failures.load(Ordering::Acquire) == seen {
            return Ok(());
        }
        let text = "another sync failed meanwhile, and what this one covers may be lost";
        Err(Error::new(ErrorKind::Io, "flush", text).with_path(&self.path))
    }

    /// Records a failed synchronous write or sync, which the next flush has to report (file.F5).
    pub(crate) fn note_sync_failure(&self) {
        self.unreported_error.store(true, Ordering::Release);
        self.sync_failures.fetch_add(1, Ordering::AcqRel);
    }
}
