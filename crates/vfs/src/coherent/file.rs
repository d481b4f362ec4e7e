//! An open file that reports its changes to a mount. The invariants are in [`super`].
//!
//! No locks of its own.

use super::observer::{Change, Observer, Ticket};
use super::report::{Outstanding, Shared, handed_over, telling};
use crate::fs::{OpenFile, OpenFileRef, ReadResult, WriteResult, Wrote};
use crate::types::{Fallocate, Ino, Privileges, Seek};
use forebay_base::buf::AlignedBuf;
use forebay_base::task::{BoxFuture, block_on};
use forebay_base::{Error, ErrorKind, IoFlags, Result};
use std::ops::Range;
use std::sync::Arc;

/// Bytes that are compared at a time in a seek or another call that does not read for its caller.
const COMPARED_BYTES: usize = 256 << 10;

/// Most holes that are handed over with one wait. Notifications of other changes wait behind them.
const HOLES_MAX: usize = 256;

/// Waits until stores that the mount holds back are written, in the parts of a range that differ
/// from `bytes`, which were read at `offset` (coherent.Z3). Returns whether there were any.
async fn differing_handed_over(
    observer: &dyn Observer,
    ino: Ino,
    offset: u64,
    bytes: &[u8],
) -> bool {
    let differing = observer.differing(ino, offset, bytes).await;
    for range in &differing {
        handed_over(observer, ino, range.start, range.end - range.start).await;
    }
    !differing.is_empty()
}

/// Whether a read from `offset` on, which returned `bytes`, has to be repeated to see each store of
/// the mount that was made before it (coherent.Z3). The stores that it missed are written by then.
/// `written` was [`Observer::store_writes`] before the read.
///
/// The kernel drops a page when a store in it has been written, and does not report it as differing
/// any more. If that happened between the read and the comparison, the write was counted.
async fn is_outdated(
    observer: &dyn Observer,
    ino: Ino,
    written: u64,
    offset: u64,
    bytes: &[u8],
) -> bool {
    differing_handed_over(observer, ino, offset, bytes).await
        || observer.store_writes(ino) != written
}

/// The error if the mount may hold stores back and the caller must not wait.
fn would_block<T>(op: &'static str) -> Result<T> {
    Err(Error::new(ErrorKind::WouldBlock, op, "a mount may hold stores back"))
}

/// An open file that notifies the mount of its changes.
pub(super) struct NotifyingFile {
    file: OpenFileRef,
    shared: Arc<Shared>,
}

impl NotifyingFile {
    pub fn new(file: OpenFileRef, shared: Arc<Shared>) -> Self {
        Self { file, shared }
    }

    /// The mount, if it may hold back stores that a read has to see.
    fn held_back(&self) -> Option<Arc<dyn Observer>> {
        self.shared.observer().filter(|observer| observer.holds_back(self.file.ino()))
    }

    /// Reads by `read`, and again if the mount held back stores into the range that was read
    /// (coherent.Z3).
    fn read_compared(
        &self,
        offset: u64,
        dst: &mut [u8],
        flags: IoFlags,
        read: impl Fn(&mut [u8]) -> Result<usize>,
    ) -> Result<usize> {
        let Some(observer) = self.held_back() else { return read(dst) };
        if flags.contains(IoFlags::NOWAIT) {
            return would_block("read");
        }
        let ino = self.file.ino();
        let written = observer.store_writes(ino);
        let len = read(dst)?;
        match block_on(is_outdated(&*observer, ino, written, offset, &dst[..len])) {
            // The second read misses only stores that were made after the first one began.
            true => read(dst),
            false => Ok(len),
        }
    }

    /// Seeks in a file of which the mount may hold stores back. A store can turn a hole into data,
    /// but not data into a hole, so only holes are handed over. Reading them costs no device I/O.
    async fn seek_held_back(
        &self,
        observer: &dyn Observer,
        what: Seek,
        offset: u64,
    ) -> Result<u64> {
        let ino = self.file.ino();
        let size = self.shared.fs.getattr(ino).await?.size;
        loop {
            let found = self.file.seek(what, offset).await;
            let hole = match (what, &found) {
                (Seek::Data, Ok(data)) => offset..*data,
                (Seek::Data, Err(_)) => offset..size,
                (Seek::Hole, Ok(hole)) => {
                    *hole..self.file.seek(Seek::Data, *hole).await.unwrap_or(size)
                }
                (Seek::Hole, Err(_)) => return found,
            };
            if hole.start >= hole.end.min(size) {
                return found;
            }
            handed_over(observer, ino, hole.start, hole.end - hole.start).await;
            let again = self.file.seek(what, offset).await;
            let is_same = matches!((&found, &again), (Ok(a), Ok(b)) if a == b);
            if what == Seek::Data || is_same || again.is_err() {
                return again;
            }
        }
    }

    /// Announces a write.
    async fn begin_write<'a>(
        &'a self,
        observer: &'a dyn Observer,
        offset: u64,
        len: usize,
        flags: IoFlags,
    ) -> Outstanding<'a> {
        let change = self.written(offset, len, flags);
        let (ino, is_append) = (self.file.ino(), flags.contains(IoFlags::APPEND));
        let begun = match is_append && observer.holds_back(ino) {
            // An append overwrites no stores in front of the end, so the kernel keeps those pages.
            true => Change::content(ino, self.end(observer).await, u64::MAX),
            false => change.clone(),
        };
        let mut changing = Outstanding::begin(&self.shared, observer, vec![begun]).await;
        changing.changes = vec![change];
        // The file's end is determined after that wait, in which a program may have changed it. A
        // write that reaches behind the end counts from its own first byte: if the mount still
        // truncates the file, the write extends it from there (coherent.Z6).
        let end = self.end(observer).await;
        if is_append || offset.saturating_add(len as u64) > end {
            changing.extend_from(ino, if is_append { end } else { offset });
        }
        changing
    }

    /// Size of the file if the mount knows it, else 0.
    async fn end(&self, observer: &dyn Observer) -> u64 {
        let ino = self.file.ino();
        match observer.knows(ino) {
            true => self.shared.fs.getattr(ino).await.map_or(0, |attr| attr.size),
            false => 0,
        }
    }

    /// The change that a write makes; an append's offset is known only afterwards.
    fn written(&self, offset: u64, len: usize, flags: IoFlags) -> Change {
        let ino = self.file.ino();
        match flags.contains(IoFlags::APPEND) {
            true => Change::content(ino, 0, u64::MAX),
            false => Change::content(ino, offset, len as u64),
        }
    }
}

impl OpenFile for NotifyingFile {
    crate::delegate_open_file!(
        [file]
        ino flags sync sync_waiting
    );

    fn try_read(&self, offset: u64, dst: &mut [u8], flags: IoFlags) -> Option<Result<usize>> {
        match self.held_back() {
            None => self.file.try_read(offset, dst, flags),
            Some(_) => None,
        }
    }

    fn read(&self, offset: u64, buf: AlignedBuf, flags: IoFlags) -> BoxFuture<'_, ReadResult> {
        let Some(observer) = self.held_back() else { return self.file.read(offset, buf, flags) };
        if flags.contains(IoFlags::NOWAIT) {
            return Box::pin(async move { (buf, would_block("read")) });
        }
        Box::pin(async move {
            let ino = self.file.ino();
            let written = observer.store_writes(ino);
            let (buf, done) = self.file.read(offset, buf, flags).await;
            let Ok(len) = done else { return (buf, done) };
            match is_outdated(&*observer, ino, written, offset, &buf[..len]).await {
                // The second read misses only stores that were made after the first one began.
                true => self.file.read(offset, buf, flags).await,
                false => (buf, Ok(len)),
            }
        })
    }

    fn try_write(
        &self,
        offset: u64,
        src: &[u8],
        flags: IoFlags,
        privileges: Privileges,
    ) -> Option<Result<Wrote>> {
        let Some(observer) = self.shared.observer() else {
            return self.file.try_write(offset, src, flags, privileges);
        };
        let ino = self.file.ino();
        if observer.knows(ino) {
            return None;
        }
        // Announced before the second check: from now on a program that opens the file appends at
        // the end that the daemon reports. If the kernel does not know the file, no program has an
        // append in progress.
        drop(observer.will_change(ino));
        let done = match observer.knows(ino) {
            true => None,
            false => self.file.try_write(offset, src, flags, privileges),
        };
        if done.is_some() {
            observer.changed(&self.written(offset, src.len(), flags));
        }
        observer.change_over(ino);
        done
    }

    fn write(
        &self,
        offset: u64,
        buf: AlignedBuf,
        flags: IoFlags,
        privileges: Privileges,
    ) -> BoxFuture<'_, WriteResult> {
        let Some(observer) = self.shared.observer() else {
            return self.file.write(offset, buf, flags, privileges);
        };
        Box::pin(async move {
            let mut changing = self.begin_write(&*observer, offset, buf.len(), flags).await;
            let (buf, done) = self.file.write(offset, buf, flags, privileges).await;
            changing.place(&done);
            changing.paid().await;
            (buf, done)
        })
    }

    fn hand_over(&self, offset: u64, len: u64, flags: IoFlags) -> Result<()> {
        let Some(observer) = self.held_back() else { return Ok(()) };
        if flags.contains(IoFlags::NOWAIT) {
            return would_block("hand over");
        }
        let (mut at, end) = (offset, offset.saturating_add(len));
        let mut buf = AlignedBuf::new(len.min(COMPARED_BYTES as u64) as usize);
        while at < end {
            let most = (end - at).min(COMPARED_BYTES as u64) as usize;
            let read = self.file.read_slice(at, &mut buf[..most], IoFlags::empty())?;
            if read == 0 {
                break;
            }
            block_on(differing_handed_over(&*observer, self.file.ino(), at, &buf[..read]));
            at += read as u64;
        }
        Ok(())
    }

    fn hand_over_holes<'a>(&'a self, holes: &'a [Range<u64>]) -> BoxFuture<'a, bool> {
        let observer = self.held_back().filter(|_| !holes.is_empty());
        Box::pin(async move {
            let Some(observer) = observer else { return false };
            // The mount's kernel is notified in order, so a wait for the last one waits for all.
            for some in holes.chunks(HOLES_MAX) {
                observer.room().await;
                let mut last = Ticket::default();
                for hole in some {
                    last = observer.hand_over(self.file.ino(), hole.start, hole.end - hole.start);
                }
                observer.told(last).await;
            }
            true
        })
    }

    fn read_slice(&self, offset: u64, dst: &mut [u8], flags: IoFlags) -> Result<usize> {
        self.read_compared(offset, dst, flags, |dst| self.file.read_slice(offset, dst, flags))
    }

    fn wait_read(&self, offset: u64, dst: &mut [u8], flags: IoFlags) -> Result<usize> {
        self.read_compared(offset, dst, flags, |dst| self.file.wait_read(offset, dst, flags))
    }

    fn write_slice(
        &self,
        offset: u64,
        src: &[u8],
        flags: IoFlags,
        privileges: Privileges,
    ) -> Result<Wrote> {
        let Some(observer) = self.shared.observer() else {
            return self.file.write_slice(offset, src, flags, privileges);
        };
        let mut changing = block_on(self.begin_write(&*observer, offset, src.len(), flags));
        let done = self.file.write_slice(offset, src, flags, privileges);
        changing.place(&done);
        block_on(changing.paid());
        done
    }

    fn fallocate(
        &self,
        how: Fallocate,
        offset: u64,
        len: u64,
        privileges: Privileges,
    ) -> BoxFuture<'_, Result<()>> {
        let op = self.file.fallocate(how, offset, len, privileges);
        let Some(observer) = self.shared.observer() else { return op };
        let change = Change::content(self.file.ino(), offset, len);
        Box::pin(async move { telling(&self.shared, &*observer, vec![change], op).await })
    }

    fn seek(&self, what: Seek, offset: u64) -> BoxFuture<'_, Result<u64>> {
        let Some(observer) = self.held_back() else { return self.file.seek(what, offset) };
        Box::pin(async move { self.seek_held_back(&*observer, what, offset).await })
    }
}
