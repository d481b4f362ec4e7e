//! Reports changes to the observer: announces them before, and reports them after. The invariants
//! are in [`super`].
//!
//! Locks: the observer's slot, for the length of a check; the table of extending writes, a leaf.

use super::observer::{Change, Observer, Ticket};
use crate::fs::{FileSystem, Wrote};
use crate::types::{Ino, OpenFlags};
use forebay_base::buf::AlignedBuf;
use forebay_base::sync::atomic::{AtomicBool, Ordering};
use forebay_base::sync::{Mutex, RwLock};
use forebay_base::{Error, ErrorKind, IoFlags, Result};
use std::collections::HashMap;
use std::future::Future;
use std::sync::{Arc, Weak};

/// The file system, and the observer to notify.
pub(super) struct Shared {
    pub fs: Arc<dyn FileSystem>,
    some: AtomicBool,
    observer: RwLock<Option<Weak<dyn Observer>>>,
    /// Writes in progress that may make a file longer, by inode: from which offset on
    /// (coherent.Z6).
    extending: Mutex<HashMap<Ino, Vec<u64>>>,
}

impl Shared {
    /// The state without a mount.
    pub(super) fn new(fs: Arc<dyn FileSystem>) -> Self {
        let (some, observer, extending) = Default::default();
        Self { fs, some, observer, extending }
    }

    /// Registers the mount; `Busy` if there is one.
    pub(super) fn observe(&self, observer: Weak<dyn Observer>) -> Result<()> {
        let mut slot = self.observer.write();
        if slot.as_ref().is_some_and(|old| old.strong_count() > 0) {
            return Err(Error::new(ErrorKind::Busy, "mount", "it is mounted already"));
        }
        *slot = Some(observer);
        self.some.store(true, Ordering::Release);
        Ok(())
    }

    /// Unregisters the mount, which has ended.
    pub(super) fn forget(&self) {
        let mut slot = self.observer.write();
        self.some.store(false, Ordering::Release);
        *slot = None;
    }

    /// The mount, if there is one.
    #[inline]
    pub fn observer(&self) -> Option<Arc<dyn Observer>> {
        match self.some.load(Ordering::Acquire) {
            false => None,
            true => self.observer.read().as_ref().and_then(Weak::upgrade),
        }
    }

    /// A write that may extend a file from `offset` on begins.
    fn begin_extending(&self, ino: Ino, offset: u64) {
        self.extending.lock().entry(ino).or_default().push(offset);
    }

    /// Such a write was reported.
    fn end_extending(&self, ino: Ino, offset: u64) {
        let mut extending = self.extending.lock();
        let Some(offsets) = extending.get_mut(&ino) else { return };
        if let Some(at) = offsets.iter().position(|other| *other == offset) {
            offsets.swap_remove(at);
        }
        if offsets.is_empty() {
            extending.remove(&ino);
        }
    }

    /// The smallest offset from which a write in progress may extend the file; else `u64::MAX`.
    fn first_extended(&self, ino: Ino) -> u64 {
        let extending = self.extending.lock();
        extending.get(&ino).and_then(|offsets| offsets.iter().min().copied()).unwrap_or(u64::MAX)
    }

    /// Size and last byte of a file, if its size is at most `end`.
    async fn end_of(&self, ino: Ino, end: u64) -> Result<Option<(u64, u8)>> {
        let size = self.fs.getattr(ino).await?.size;
        let Some(last) = size.checked_sub(1).filter(|_| size <= end) else { return Ok(None) };
        let file = self.fs.open(ino, OpenFlags::READ).await?;
        let (buf, done) = file.read(last, AlignedBuf::new(1), IoFlags::empty()).await;
        Ok((done? == 1).then(|| (size, buf[0])))
    }
}

/// Waits until stores that the mount holds back in a range are written (coherent.Z3).
pub(super) async fn handed_over(observer: &dyn Observer, ino: Ino, offset: u64, len: u64) {
    if observer.holds_back(ino) {
        let ticket = observer.hand_over(ino, offset, len);
        observer.told(ticket).await;
    }
}

/// An announced change.
enum Begun {
    Content(Ino),
    Name(Ino, Box<[u8]>),
}

/// Changes that are reported when this is dropped at the latest (coherent.Z1: a future may be
/// dropped halfway).
pub(super) struct Outstanding<'a> {
    shared: &'a Shared,
    observer: &'a dyn Observer,
    pub changes: Vec<Change>,
    /// The announced changes.
    begun: Vec<Begun>,
    /// A write that may extend the file from that offset on (coherent.Z6).
    extends: Option<(Ino, u64)>,
}

impl<'a> Outstanding<'a> {
    /// Announces changes, and waits until stores that the mount holds back in their ranges are
    /// written.
    pub async fn begin(
        shared: &'a Shared,
        observer: &'a dyn Observer,
        changes: Vec<Change>,
    ) -> Self {
        observer.room().await;
        let (none, begun, extends) = Default::default();
        let mut changing = Self { shared, observer, changes: none, begun, extends };
        for change in &changes {
            match change {
                Change::Content { ino, offset, len, .. } => {
                    handed_over(observer, *ino, *offset, *len).await;
                    let ready = observer.will_change(*ino);
                    changing.begun.push(Begun::Content(*ino));
                    ready.await;
                }
                Change::Entry { dir, name, .. } => {
                    let ready = observer.will_change_name(*dir, name);
                    changing.begun.push(Begun::Name(*dir, name.clone()));
                    ready.await;
                }
                Change::Attributes(_) => {}
            }
        }
        changing.changes = changes;
        changing
    }

    /// Called after a write: an append has changed nothing in front of the offset that it got.
    pub fn place(&mut self, done: &Result<Wrote>) {
        if let (Ok(wrote), [Change::Content { offset, .. }]) = (done, &mut self.changes[..]) {
            *offset = wrote.offset;
        }
    }

    /// Called before a write that may extend a file from `offset` on (coherent.Z6).
    pub fn extend_from(&mut self, ino: Ino, offset: u64) {
        self.shared.begin_extending(ino, offset);
        self.extends = Some((ino, offset));
    }

    fn tell(&mut self) -> Ticket {
        for change in &mut self.changes {
            if let Change::Content { ino, offset, end: Some(_), .. } = change {
                *offset = (*offset).min(self.shared.first_extended(*ino));
            }
        }
        let tickets = self.changes.drain(..).map(|change| self.observer.changed(&change));
        let last = tickets.fold(Ticket::default(), |last, ticket| Ticket(last.0.max(ticket.0)));
        if let Some((ino, offset)) = self.extends.take() {
            self.shared.end_extending(ino, offset);
        }
        for begun in self.begun.drain(..) {
            match begun {
                Begun::Content(ino) => self.observer.change_over(ino),
                Begun::Name(dir, name) => self.observer.name_change_over(dir, &name),
            }
        }
        last
    }

    /// Reports the changes, and waits until the mount's kernel was notified.
    pub async fn paid(mut self) {
        for change in &mut self.changes {
            if let Change::Content { ino, offset, len, end } = change
                && self.observer.knows(*ino)
                && let Ok(found) = self.shared.end_of(*ino, offset.saturating_add(*len)).await
            {
                *end = found;
            }
        }
        let ticket = self.tell();
        self.observer.told(ticket).await;
    }
}

impl Drop for Outstanding<'_> {
    fn drop(&mut self) {
        self.tell();
    }
}

/// Runs `op`, which changes something, and reports the changes, also if it failed: a part may have
/// been done.
pub(super) async fn telling<T>(
    shared: &Shared,
    observer: &dyn Observer,
    changes: Vec<Change>,
    op: impl Future<Output = T>,
) -> T {
    let changing = Outstanding::begin(shared, observer, changes).await;
    let done = op.await;
    changing.paid().await;
    done
}
