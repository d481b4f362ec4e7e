//! A file system whose reads of content never end, and that panics when it is asked for `panic`.
//!
//! No locks of its own.

use forebay_base::buf::AlignedBuf;
use forebay_base::task::{BoxFuture, oneshot};
use forebay_base::{IoFlags, Result};
use forebay_fuse::notify::{Notice, Notifier};
use forebay_testkit::mem_fs::MemFs;
use forebay_vfs::{
    Attr, Cookie, DirEntry, Fallocate, FileSystem, Ino, Name, NewInode, OpenFile, OpenFileRef,
    OpenFlags, Privileges, ReadResult, RenameFlags, Seek, SetAttr, SetXattr, StatFs, WriteResult,
    XattrName,
};
use std::sync::{Arc, OnceLock};

/// Known when the mount is there.
pub type Late = Arc<OnceLock<Notifier>>;

/// A file system in memory whose reads of content never end.
pub struct Stuck {
    fs: MemFs,
    notifier: Late,
}

struct StuckFile {
    file: OpenFileRef,
    notifier: Late,
}

impl Stuck {
    /// Over a file system.
    pub fn new(fs: MemFs, notifier: Late) -> Self {
        Self { fs, notifier }
    }

    fn stuck(&self, file: OpenFileRef) -> OpenFileRef {
        Arc::new(StuckFile { file, notifier: self.notifier.clone() })
    }
}

impl FileSystem for Stuck {
    fn statfs(&self) -> BoxFuture<'_, Result<StatFs>> {
        self.fs.statfs()
    }
    fn lookup<'a>(&'a self, dir: Ino, name: Name<'a>) -> BoxFuture<'a, Result<Attr>> {
        assert!(name.as_bytes() != b"panic", "asked for");
        self.fs.lookup(dir, name)
    }
    fn parent(&self, dir: Ino) -> BoxFuture<'_, Result<Ino>> {
        self.fs.parent(dir)
    }
    fn getattr(&self, ino: Ino) -> BoxFuture<'_, Result<Attr>> {
        self.fs.getattr(ino)
    }
    fn setattr<'a>(&'a self, ino: Ino, set: &'a SetAttr) -> BoxFuture<'a, Result<Attr>> {
        self.fs.setattr(ino, set)
    }
    fn mknod<'a>(
        &'a self,
        dir: Ino,
        name: Name<'a>,
        new: &'a NewInode,
    ) -> BoxFuture<'a, Result<Attr>> {
        self.fs.mknod(dir, name, new)
    }
    fn mkdir<'a>(
        &'a self,
        dir: Ino,
        name: Name<'a>,
        new: &'a NewInode,
    ) -> BoxFuture<'a, Result<Attr>> {
        self.fs.mkdir(dir, name, new)
    }
    fn symlink<'a>(
        &'a self,
        dir: Ino,
        name: Name<'a>,
        target: &'a [u8],
        new: &'a NewInode,
    ) -> BoxFuture<'a, Result<Attr>> {
        self.fs.symlink(dir, name, target, new)
    }
    fn create<'a>(
        &'a self,
        dir: Ino,
        name: Name<'a>,
        new: &'a NewInode,
        flags: OpenFlags,
    ) -> BoxFuture<'a, Result<(Attr, OpenFileRef)>> {
        Box::pin(async move {
            let (attr, file) = self.fs.create(dir, name, new, flags).await?;
            Ok((attr, self.stuck(file)))
        })
    }
    fn link<'a>(&'a self, ino: Ino, dir: Ino, name: Name<'a>) -> BoxFuture<'a, Result<Attr>> {
        self.fs.link(ino, dir, name)
    }
    fn unlink<'a>(&'a self, dir: Ino, name: Name<'a>) -> BoxFuture<'a, Result<()>> {
        self.fs.unlink(dir, name)
    }
    fn rmdir<'a>(&'a self, dir: Ino, name: Name<'a>) -> BoxFuture<'a, Result<()>> {
        self.fs.rmdir(dir, name)
    }
    fn rename<'a>(
        &'a self,
        dir: Ino,
        name: Name<'a>,
        new_dir: Ino,
        new_name: Name<'a>,
        flags: RenameFlags,
    ) -> BoxFuture<'a, Result<()>> {
        self.fs.rename(dir, name, new_dir, new_name, flags)
    }
    fn readlink(&self, ino: Ino) -> BoxFuture<'_, Result<Vec<u8>>> {
        self.fs.readlink(ino)
    }
    fn readdir(&self, dir: Ino, after: Cookie, max: usize) -> BoxFuture<'_, Result<Vec<DirEntry>>> {
        self.fs.readdir(dir, after, max)
    }
    fn getxattr<'a>(&'a self, ino: Ino, name: XattrName<'a>) -> BoxFuture<'a, Result<Vec<u8>>> {
        self.fs.getxattr(ino, name)
    }
    fn setxattr<'a>(
        &'a self,
        ino: Ino,
        name: XattrName<'a>,
        value: &'a [u8],
        how: SetXattr,
    ) -> BoxFuture<'a, Result<()>> {
        self.fs.setxattr(ino, name, value, how)
    }
    fn listxattr(&self, ino: Ino) -> BoxFuture<'_, Result<Vec<Box<[u8]>>>> {
        self.fs.listxattr(ino)
    }
    fn removexattr<'a>(&'a self, ino: Ino, name: XattrName<'a>) -> BoxFuture<'a, Result<()>> {
        self.fs.removexattr(ino, name)
    }
    fn open(&self, ino: Ino, flags: OpenFlags) -> BoxFuture<'_, Result<OpenFileRef>> {
        Box::pin(async move { Ok(self.stuck(self.fs.open(ino, flags).await?)) })
    }
    fn syncfs(&self) -> BoxFuture<'_, Result<()>> {
        self.fs.syncfs()
    }
}

impl OpenFile for StuckFile {
    fn ino(&self) -> Ino {
        self.file.ino()
    }
    fn flags(&self) -> OpenFlags {
        self.file.flags()
    }
    fn read(&self, _offset: u64, _buf: AlignedBuf, _flags: IoFlags) -> BoxFuture<'_, ReadResult> {
        if let Some(notifier) = self.notifier.get() {
            notifier.try_send(Notice::Inode { node: self.ino().0, offset: 0, len: 0 });
        }
        // A future without a waker would be dropped: this one holds the sender that could wake it.
        let (sender, receiver) = oneshot::<()>();
        Box::pin(async move {
            receiver.await;
            drop(sender);
            unreachable!("nothing was sent")
        })
    }
    fn write(
        &self,
        offset: u64,
        buf: AlignedBuf,
        flags: IoFlags,
        privileges: Privileges,
    ) -> BoxFuture<'_, WriteResult> {
        self.file.write(offset, buf, flags, privileges)
    }
    fn fallocate(
        &self,
        how: Fallocate,
        offset: u64,
        len: u64,
        privileges: Privileges,
    ) -> BoxFuture<'_, Result<()>> {
        self.file.fallocate(how, offset, len, privileges)
    }
    fn seek(&self, what: Seek, offset: u64) -> BoxFuture<'_, Result<u64>> {
        self.file.seek(what, offset)
    }
    fn sync(&self, data_only: bool) -> BoxFuture<'_, Result<()>> {
        self.file.sync(data_only)
    }
}
