//! A file system that a mount serves, for everybody else in the process: the library, exports, sessions on
//! the control socket. What they change the mount's kernel is told of, which keeps copies of what it was
//! answered.
//!
//! ```text
//!   kernel ─▶ mount ──────────────▶ file system ◀── NotifyingFs ◀── library, exports, sessions
//!                ▲                                     │
//!                └──────────── Observer ◀──────────────┘   "this changed": before the change is acknowledged
//! ```
//! Invariants: Z1 a change that was acknowledged here is seen through the mount by whoever asks afterwards,
//! and the other way round. Z2 while the mount is told, nothing is held that a request of the mount could
//! wait for: it is told after the change is done, not within it. Z3 what the mount holds back, stores into
//! maps, is handed over before it is read or written here. Z4 an inode that loses its last name here lives as
//! long as the mount's kernel knows it. Z5 without a mount a call costs one look more.
//!
//! Not done: of a store into a map and a write here into the same page at a time, one is lost.
//!
//! Lock: the observer's slot, for the length of a look.

mod file;

use crate::fs::{FileSystem, OpenFileRef};
use crate::name::{Name, XattrName};
use crate::types::{Attr, FileKind, Ino, NewInode, OpenFlags, RenameFlags, SetAttr, SetXattr};
use file::{NotifyingFile, handed_over};
use forebay_base::buf::AlignedBuf;
use forebay_base::sync::RwLock;
use forebay_base::sync::atomic::{AtomicBool, Ordering};
use forebay_base::task::BoxFuture;
use forebay_base::{Error, ErrorKind, IoFlags, Result};
use std::future::Future;
use std::sync::{Arc, Weak};

/// What was changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// Bytes of a file, and its attributes.
    Content {
        /// Which file.
        ino: Ino,
        /// First byte.
        offset: u64,
        /// How many; `u64::MAX` is all that follow.
        len: u64,
        /// The file ends within or before them: its size, and its last byte.
        end: Option<(u64, u8)>,
    },
    /// Attributes, extended ones among them.
    Attributes(Ino),
    /// What a name denotes.
    Entry {
        /// In which directory.
        dir: Ino,
        /// Which.
        name: Box<[u8]>,
        /// It denoted this inode, which has no name any more.
        gone: Option<Ino>,
    },
}

/// A number that says when something was told; 0: nothing had to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Ticket(pub u64);

/// A mount, as others see it. None of these waits, but for the four that say so.
pub trait Observer: Send + Sync {
    /// Whether an inode is known: then its changes have to be told.
    fn knows(&self, ino: Ino) -> bool;

    /// Keeps an inode that has lost its last name for as long as it is known.
    fn keep(&self, file: OpenFileRef);

    /// Whether stores into maps of a file may be held back.
    fn holds_back(&self, ino: Ino) -> bool;

    /// Asks for what is held back of a range.
    fn hand_over(&self, ino: Ino, offset: u64, len: u64) -> Ticket;

    /// The content of a file is about to be changed, whatever comes of it: its end may be another from now
    /// on. Waits for appends of programs that go to the end as the kernel knows it.
    fn will_change(&self, ino: Ino) -> BoxFuture<'_, ()>;

    /// For each of these, once: it was made, or not, and [`Observer::changed`] has said so.
    fn change_over(&self, ino: Ino);

    /// A name of a directory is about to denote another inode, or none, whether or not the change
    /// succeeds. Waits until the removals and renames of it by programs have ended.
    fn will_change_name(&self, dir: Ino, name: &[u8]) -> BoxFuture<'_, ()>;

    /// For each of these, once, after [`Observer::changed`].
    fn name_change_over(&self, dir: Ino, name: &[u8]);

    /// Something was changed. Also for what is not known yet, which may be about to be.
    fn changed(&self, change: &Change) -> Ticket;

    /// Waits until there is room for more tickets.
    fn room(&self) -> BoxFuture<'_, ()>;

    /// Waits until that was told, or there is nobody to tell any more.
    fn told(&self, ticket: Ticket) -> BoxFuture<'_, ()>;
}

impl Change {
    /// Bytes of a file, of which more is not known yet.
    pub fn content(ino: Ino, offset: u64, len: u64) -> Self {
        Self::Content { ino, offset, len, end: None }
    }
}

/// The file system, and who is to be told.
pub(crate) struct Shared {
    fs: Arc<dyn FileSystem>,
    some: AtomicBool,
    observer: RwLock<Option<Weak<dyn Observer>>>,
}

impl Shared {
    /// The mount, if there is one.
    #[inline]
    pub fn observer(&self) -> Option<Arc<dyn Observer>> {
        match self.some.load(Ordering::Acquire) {
            false => None,
            true => self.observer.read().as_ref().and_then(Weak::upgrade),
        }
    }

    /// Size and last byte of a file, if it ends before `end`.
    async fn end_of(&self, ino: Ino, end: u64) -> Result<Option<(u64, u8)>> {
        let size = self.fs.getattr(ino).await?.size;
        let Some(last) = size.checked_sub(1).filter(|_| size <= end) else { return Ok(None) };
        let file = self.fs.open(ino, OpenFlags::READ).await?;
        let (buf, done) = file.read(last, AlignedBuf::new(1), IoFlags::empty()).await;
        Ok((done? == 1).then(|| (size, buf[0])))
    }
}

/// An announced change.
enum Begun {
    Content(Ino),
    Name(Ino, Box<[u8]>),
}

/// Changes that are told at the latest when this goes (Z1: a future may be dropped halfway).
pub(crate) struct Outstanding<'a> {
    shared: &'a Shared,
    observer: &'a dyn Observer,
    changes: Vec<Change>,
    /// What the observer expects to change.
    begun: Vec<Begun>,
}

impl<'a> Outstanding<'a> {
    /// Before a change: waits for what is held back where it will be.
    pub async fn begin(
        shared: &'a Shared,
        observer: &'a dyn Observer,
        changes: Vec<Change>,
    ) -> Self {
        observer.room().await;
        let mut changing = Self { shared, observer, changes: Vec::new(), begun: Vec::new() };
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

    fn tell(&mut self) -> Ticket {
        let tickets = self.changes.drain(..).map(|change| self.observer.changed(&change));
        let last = tickets.fold(Ticket::default(), |last, ticket| Ticket(last.0.max(ticket.0)));
        for begun in self.begun.drain(..) {
            match begun {
                Begun::Content(ino) => self.observer.change_over(ino),
                Begun::Name(dir, name) => self.observer.name_change_over(dir, &name),
            }
        }
        last
    }

    /// After it.
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

/// Carries a change out and tells of it; also if it failed, because a part may be done.
pub(crate) async fn telling<T>(
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

/// Changes of these names, and of the directories that hold them.
fn changes_of(names: &[(Ino, Name<'_>)]) -> Vec<Change> {
    let change = |(dir, name): &(Ino, Name<'_>)| {
        let name = name.as_bytes().into();
        [Change::Entry { dir: *dir, name, gone: None }, Change::Attributes(*dir)]
    };
    names.iter().flat_map(change).collect()
}

/// A file system that reports each change to the mount that serves it, if there is one.
pub struct NotifyingFs(Arc<Shared>);

impl NotifyingFs {
    /// Of `fs`, which a mount may serve.
    pub fn new(fs: Arc<dyn FileSystem>) -> Self {
        let (some, observer) = Default::default();
        Self(Arc::new(Shared { fs, some, observer }))
    }

    /// What the mount serves.
    pub fn inner(&self) -> &Arc<dyn FileSystem> {
        &self.0.fs
    }

    /// From now on this mount is told. `Busy` if there is one: locks are the kernel's, so that two mounts
    /// would not see each other's.
    pub fn observe(&self, observer: Weak<dyn Observer>) -> Result<()> {
        let mut slot = self.0.observer.write();
        if slot.as_ref().is_some_and(|old| old.strong_count() > 0) {
            return Err(Error::new(ErrorKind::Busy, "mount", "it is mounted already"));
        }
        *slot = Some(observer);
        self.0.some.store(true, Ordering::Release);
        Ok(())
    }

    /// The mount is over.
    pub fn forget(&self) {
        let mut slot = self.0.observer.write();
        self.0.some.store(false, Ordering::Release);
        *slot = None;
    }

    fn file(&self, file: OpenFileRef) -> OpenFileRef {
        Arc::new(NotifyingFile::new(file, self.0.clone()))
    }

    /// Carries out what changes names: the entries, and attributes of `also`.
    async fn names<T>(
        &self,
        entries: &[(Ino, Name<'_>)],
        also: &[Ino],
        op: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let Some(observer) = self.0.observer() else { return op.await };
        let mut changes = changes_of(entries);
        changes.extend(also.iter().map(|ino| Change::Attributes(*ino)));
        telling(&self.0, &*observer, changes, op).await
    }

    /// What `name` denotes; and that inode, held, if the mount knows it (Z4): another interface may remove
    /// its other names before this one goes.
    async fn hold(
        &self,
        observer: &dyn Observer,
        dir: Ino,
        name: Name<'_>,
    ) -> (Option<Attr>, Option<OpenFileRef>) {
        let Ok(attr) = self.0.fs.lookup(dir, name).await else { return (None, None) };
        let held = match observer.knows(attr.ino) {
            true => self.0.fs.open(attr.ino, OpenFlags::empty()).await.ok(),
            false => None,
        };
        (Some(attr), held)
    }

    /// Whether an inode that was held while a name of it went has no other name.
    async fn has_no_name(&self, file: &OpenFileRef) -> bool {
        self.0.fs.getattr(file.ino()).await.is_ok_and(|attr| attr.nlink == 0)
    }

    /// Removes a name by `op`.
    async fn removing(
        &self,
        dir: Ino,
        name: Name<'_>,
        op: impl Future<Output = Result<()>>,
    ) -> Result<()> {
        let Some(observer) = self.0.observer() else { return op.await };
        let mut changing =
            Outstanding::begin(&self.0, &*observer, changes_of(&[(dir, name)])).await;
        // After removals by the mount that were under way: they may have put another inode there.
        let (attr, held) = self.hold(&*observer, dir, name).await;
        changing.changes.extend(attr.map(|attr| Change::Attributes(attr.ino)));
        let done = op.await;
        if let (Ok(()), Some(file)) = (&done, held)
            && self.has_no_name(&file).await
        {
            // The kernel counts it as gone.
            let (name, gone) = (name.as_bytes().into(), Some(file.ino()));
            changing.changes[0] = Change::Entry { dir, name, gone };
            observer.keep(file);
        }
        changing.paid().await;
        done
    }

    async fn moving(
        &self,
        (dir, name): (Ino, Name<'_>),
        (new_dir, new_name): (Ino, Name<'_>),
        flags: RenameFlags,
    ) -> Result<()> {
        let op = self.0.fs.rename(dir, name, new_dir, new_name, flags);
        let Some(observer) = self.0.observer() else { return op.await };
        let changes = changes_of(&[(dir, name), (new_dir, new_name)]);
        let mut changing = Outstanding::begin(&self.0, &*observer, changes).await;
        // Not before, as in `removing`.
        let moved = self.0.fs.lookup(dir, name).await.ok();
        let (there, held) = self.hold(&*observer, new_dir, new_name).await;
        let both = moved.into_iter().chain(there);
        changing.changes.extend(both.map(|attr| Change::Attributes(attr.ino)));
        let done = op.await;
        if let (Ok(()), Some(file)) = (&done, held.filter(|_| flags.is_empty()))
            && self.has_no_name(&file).await
        {
            observer.keep(file);
        }
        changing.paid().await;
        done
    }

    /// Opens by `op`, which may cut the content of `ino`.
    async fn opening<T>(
        &self,
        ino: Ino,
        flags: OpenFlags,
        op: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        match self.0.observer() {
            Some(observer) if flags.contains(OpenFlags::TRUNCATE) => {
                let all = Change::content(ino, 0, u64::MAX);
                telling(&self.0, &*observer, vec![all], op).await
            }
            _ => op.await,
        }
    }

    /// Creates a file, or opens and truncates the one that is there. The mount has to be told of a
    /// truncation by the inode before it is made, and a program may make or remove that file at any time. So
    /// this creates only what is new, and truncates only by number.
    async fn making_empty(
        &self,
        dir: Ino,
        name: Name<'_>,
        new: &NewInode,
        flags: OpenFlags,
    ) -> Result<(Attr, OpenFileRef)> {
        loop {
            let op = self.0.fs.create(dir, name, new, flags | OpenFlags::EXCLUSIVE);
            match self.names(&[(dir, name)], &[], op).await {
                Err(e)
                    if e.kind() == ErrorKind::Exists && !flags.contains(OpenFlags::EXCLUSIVE) => {}
                made => return made,
            }
            let there = match self.0.fs.lookup(dir, name).await {
                Err(e) if e.kind() == ErrorKind::NotFound => continue,
                there => there?,
            };
            if there.kind != FileKind::File {
                // Nothing to truncate, or nothing that can be opened so.
                let keeping = flags - OpenFlags::TRUNCATE;
                match self.0.fs.open(there.ino, keeping).await {
                    Err(e) if matches!(e.kind(), ErrorKind::Stale | ErrorKind::NotFound) => {
                        continue;
                    }
                    Err(e) => return Err(e),
                    Ok(file) => return Ok((self.0.fs.getattr(there.ino).await?, file)),
                }
            }
            let op = self.0.fs.open(there.ino, flags);
            match self.opening(there.ino, flags, op).await {
                Err(e) if matches!(e.kind(), ErrorKind::Stale | ErrorKind::NotFound) => {}
                Err(e) => return Err(e),
                Ok(file) => return Ok((self.0.fs.getattr(there.ino).await?, file)),
            }
        }
    }

    async fn making(
        &self,
        dir: Ino,
        name: Name<'_>,
        new: &NewInode,
        flags: OpenFlags,
    ) -> Result<(Attr, OpenFileRef)> {
        let op = self.0.fs.create(dir, name, new, flags);
        let made = match self.0.observer() {
            None => op.await,
            Some(_) if flags.contains(OpenFlags::TRUNCATE) => {
                self.making_empty(dir, name, new, flags).await
            }
            Some(_) => self.names(&[(dir, name)], &[], op).await,
        };
        made.map(|(attr, file)| (attr, self.file(file)))
    }
}

impl FileSystem for NotifyingFs {
    crate::delegate_file_system!(
        [inner()]
        statfs lookup parent getattr getattr_listed readlink readdir getxattr listxattr
        syncfs
    );

    fn setattr<'a>(&'a self, ino: Ino, set: &'a SetAttr) -> BoxFuture<'a, Result<Attr>> {
        let op = self.0.fs.setattr(ino, set);
        let Some(observer) = self.0.observer() else { return op };
        Box::pin(async move {
            let mut change = Change::Attributes(ino);
            if let Some(size) = set.size {
                // A larger size changes what follows the old end, zeros of which may be kept.
                let old = self.0.fs.getattr(ino).await.map_or(size, |attr| attr.size.min(size));
                change = Change::content(ino, old, u64::MAX);
            }
            telling(&self.0, &*observer, vec![change], op).await
        })
    }

    fn mknod<'a>(
        &'a self,
        dir: Ino,
        name: Name<'a>,
        new: &'a NewInode,
    ) -> BoxFuture<'a, Result<Attr>> {
        Box::pin(
            async move { self.names(&[(dir, name)], &[], self.0.fs.mknod(dir, name, new)).await },
        )
    }

    fn mkdir<'a>(
        &'a self,
        dir: Ino,
        name: Name<'a>,
        new: &'a NewInode,
    ) -> BoxFuture<'a, Result<Attr>> {
        Box::pin(
            async move { self.names(&[(dir, name)], &[], self.0.fs.mkdir(dir, name, new)).await },
        )
    }

    fn symlink<'a>(
        &'a self,
        dir: Ino,
        name: Name<'a>,
        target: &'a [u8],
        new: &'a NewInode,
    ) -> BoxFuture<'a, Result<Attr>> {
        let op = self.0.fs.symlink(dir, name, target, new);
        Box::pin(async move { self.names(&[(dir, name)], &[], op).await })
    }

    fn create<'a>(
        &'a self,
        dir: Ino,
        name: Name<'a>,
        new: &'a NewInode,
        flags: OpenFlags,
    ) -> BoxFuture<'a, Result<(Attr, OpenFileRef)>> {
        Box::pin(self.making(dir, name, new, flags))
    }

    fn tmpfile<'a>(
        &'a self,
        dir: Ino,
        new: &'a NewInode,
        flags: OpenFlags,
    ) -> BoxFuture<'a, Result<(Attr, OpenFileRef)>> {
        Box::pin(async move {
            let (attr, file) = self.0.fs.tmpfile(dir, new, flags).await?;
            Ok((attr, self.file(file)))
        })
    }

    fn link<'a>(&'a self, ino: Ino, dir: Ino, name: Name<'a>) -> BoxFuture<'a, Result<Attr>> {
        Box::pin(
            async move { self.names(&[(dir, name)], &[ino], self.0.fs.link(ino, dir, name)).await },
        )
    }

    fn unlink<'a>(&'a self, dir: Ino, name: Name<'a>) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move { self.removing(dir, name, self.0.fs.unlink(dir, name)).await })
    }

    fn rmdir<'a>(&'a self, dir: Ino, name: Name<'a>) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move { self.removing(dir, name, self.0.fs.rmdir(dir, name)).await })
    }

    fn rename<'a>(
        &'a self,
        dir: Ino,
        name: Name<'a>,
        new_dir: Ino,
        new_name: Name<'a>,
        flags: RenameFlags,
    ) -> BoxFuture<'a, Result<()>> {
        Box::pin(self.moving((dir, name), (new_dir, new_name), flags))
    }

    fn setxattr<'a>(
        &'a self,
        ino: Ino,
        name: XattrName<'a>,
        value: &'a [u8],
        how: SetXattr,
    ) -> BoxFuture<'a, Result<()>> {
        let op = self.0.fs.setxattr(ino, name, value, how);
        Box::pin(async move { self.names(&[], &[ino], op).await })
    }

    fn removexattr<'a>(&'a self, ino: Ino, name: XattrName<'a>) -> BoxFuture<'a, Result<()>> {
        let op = self.0.fs.removexattr(ino, name);
        Box::pin(async move { self.names(&[], &[ino], op).await })
    }

    fn open(&self, ino: Ino, flags: OpenFlags) -> BoxFuture<'_, Result<OpenFileRef>> {
        Box::pin(async move {
            let file = self.opening(ino, flags, self.0.fs.open(ino, flags)).await?;
            Ok(self.file(file))
        })
    }
}
