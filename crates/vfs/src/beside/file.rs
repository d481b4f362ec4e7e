//! An open file whose changes are reported to a mount. The invariants are in [`super`].
//!
//! No locks of its own.

use super::observer::{Change, Observer};
use super::report::{Outstanding, Shared, handed_over, telling};
use crate::fs::{OpenFile, OpenFileRef, ReadResult, WriteResult, Wrote};
use crate::types::{Fallocate, Privileges, Seek};
use forebay_base::buf::AlignedBuf;
use forebay_base::task::{BoxFuture, block_on};
use forebay_base::{IoFlags, Result};
use std::sync::Arc;

/// An open file that notifies the mount of its changes.
pub(super) struct NotifyingFile {
    file: OpenFileRef,
    shared: Arc<Shared>,
}

impl NotifyingFile {
    pub fn new(file: OpenFileRef, shared: Arc<Shared>) -> Self {
        Self { file, shared }
    }

    /// The mount, if it may hold stores back that a read has to see.
    fn held_back(&self) -> Option<Arc<dyn Observer>> {
        self.shared.observer().filter(|observer| observer.holds_back(self.file.ino()))
    }

    /// The change that a write makes; the place of an append is known afterwards.
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
        Box::pin(async move {
            handed_over(&*observer, self.file.ino(), offset, buf.len() as u64).await;
            self.file.read(offset, buf, flags).await
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
        // Announced before the second check: a program that opens the file from now on appends at
        // the end that the daemon reports. A program that does not know the file has no append in
        // flight.
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
            let changes = vec![self.written(offset, buf.len(), flags)];
            telling(
                &self.shared,
                &*observer,
                changes,
                self.file.write(offset, buf, flags, privileges),
            )
            .await
        })
    }

    fn hand_over(&self, offset: u64, len: u64) {
        if let Some(observer) = self.held_back() {
            block_on(handed_over(&*observer, self.file.ino(), offset, len));
        }
    }

    fn read_slice(&self, offset: u64, dst: &mut [u8], flags: IoFlags) -> Result<usize> {
        self.hand_over(offset, dst.len() as u64);
        self.file.read_slice(offset, dst, flags)
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
        let changes = vec![self.written(offset, src.len(), flags)];
        let owed = block_on(Outstanding::begin(&self.shared, &*observer, changes));
        let done = self.file.write_slice(offset, src, flags, privileges);
        block_on(owed.paid());
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
        Box::pin(async move {
            handed_over(&*observer, self.file.ino(), 0, u64::MAX).await;
            self.file.seek(what, offset).await
        })
    }
}
