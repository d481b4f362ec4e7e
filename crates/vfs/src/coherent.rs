//! A wrapper around the file system that a mount serves, for other front ends in the process: the
//! library, exports, sessions on the control socket. It notifies the mount, whose kernel caches
//! replies, of their changes.
//!
//! ```text
//!   kernel ─▶ mount ──────────────▶ file system ◀── NotifyingFs ◀── library, exports, sessions
//!                ▲                                     │
//!                └──────────── Observer ◀──────────────┘   "this changed": before the call returns
//! ```
//!
//! Invariants: Z1 a change acknowledged here is visible to each later request of the mount, and the
//! other way round. Z2 while the mount is notified, no lock or range is held for which a request of
//! the mount could wait: the notification follows the change, outside of its locks. Z3 stores into
//! mappings that the mount's kernel holds back are written before they are read or overwritten
//! here; a read makes that kernel drop no other pages. Z4 an inode that loses its last name here
//! lives as long as the mount's kernel knows it. Z5 without a mount a call costs one additional
//! check. Z6 a report that raises the kernel's size of a file covers all bytes behind its earlier
//! end, also those of writes in progress.
//!
//! Limit: of a store into a mapping and a concurrent write here to the same page, one may be lost.
//!
//! Locks: the observer's slot, for the length of a check; the table of extending writes, a leaf.

mod file;
mod observer;
mod report;

use crate::fs::{FileSystem, OpenFileRef};
use crate::name::{Name, XattrName};
use crate::types::{Attr, FileKind, Ino, NewInode, OpenFlags, RenameFlags, SetAttr, SetXattr};
use file::NotifyingFile;
use forebay_base::task::BoxFuture;
use forebay_base::{ErrorKind, Result};
use report::{Outstanding, Shared, telling};
use std::future::Future;
use std::sync::{Arc, Weak};

pub use observer::{Change, Observer, Ticket};

/// Changes of these names, and of the directories that contain them.
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
    /// A wrapper of `fs`, which a mount may serve.
    pub fn new(fs: Arc<dyn FileSystem>) -> Self {
        Self(Arc::new(Shared::new(fs)))
    }

    /// The file system that the mount serves.
    pub fn inner(&self) -> &Arc<dyn FileSystem> {
        &self.0.fs
    }

    /// Registers the mount to notify. `Busy` if there is one: the kernel keeps file locks, so two
    /// mounts would not see each other's.
    pub fn observe(&self, observer: Weak<dyn Observer>) -> Result<()> {
        self.0.observe(observer)
    }

    /// Unregisters the mount, which has ended.
    pub fn forget(&self) {
        self.0.forget();
    }

    fn file(&self, file: OpenFileRef) -> OpenFileRef {
        Arc::new(NotifyingFile::new(file, self.0.clone()))
    }

    /// Runs `op`, which changes names, and reports the entries and the attributes of `also`.
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

    /// Looks up `name`, and opens its inode if the mount knows it (Z4): another front end may
    /// remove its other names before this one is removed.
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

    /// Whether an open inode that has lost a name has no other one.
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
        // Looked up after the wait for removals and renames by the mount, which may have put
        // another inode there.
        let (attr, held) = self.hold(&*observer, dir, name).await;
        changing.changes.extend(attr.map(|attr| Change::Attributes(attr.ino)));
        let done = op.await;
        if let (Ok(()), Some(file)) = (&done, held)
            && self.has_no_name(&file).await
        {
            // The kernel is told that the inode has no name.
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
        // Looked up after the wait for removals and renames by the mount, as in `removing`.
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

    /// Runs `op`, which opens `ino` and may truncate it.
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

    /// Creates a file, or opens and truncates an existing one. The mount must be notified by inode
    /// before a truncation, and a program may create or remove that file at any time. So this
    /// function creates only new files, and truncates only by inode.
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
                // The inode has no content to truncate, or `open` refuses it.
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
                // A larger size changes the range after the old end, whose zeros the kernel may
                // have cached.
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
