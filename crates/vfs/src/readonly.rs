//! A read-only wrapper: refuses each call that changes the file system with `ReadOnly`, and passes
//! no such call on.
//!
//! Invariants: O1 a call that could change anything never reaches the file system below. Neither
//! does a sync: there is nothing that it could make durable.
//!
//! No locks.

use crate::fs::{FileSystem, OpenFile, OpenFileRef, ReadResult, WriteResult};
use crate::name::{Name, XattrName};
use crate::types::{
    Attr, Cookie, DirEntry, Fallocate, FileKind, Ino, NewInode, OpenFlags, Privileges, RenameFlags,
    Seek, SetAttr, SetXattr, StatFs,
};
use forebay_base::buf::AlignedBuf;
use forebay_base::task::BoxFuture;
use forebay_base::{Error, ErrorKind, IoFlags, Result};
use std::sync::Arc;

/// A file system that refuses all changes.
pub struct ReadOnly(Arc<dyn FileSystem>);

impl ReadOnly {
    /// Of `fs`, which others may still write.
    pub fn new(fs: Arc<dyn FileSystem>) -> Self {
        Self(fs)
    }
}

fn refusal(op: &'static str) -> Error {
    Error::new(ErrorKind::ReadOnly, op, "opened for reading only")
}

fn refuse<'a, T: Send + 'a>(op: &'static str) -> BoxFuture<'a, Result<T>> {
    Box::pin(async move { Err(refusal(op)) })
}

impl FileSystem for ReadOnly {
    fn statfs(&self) -> BoxFuture<'_, Result<StatFs>> {
        self.0.statfs()
    }

    fn lookup<'a>(&'a self, dir: Ino, name: Name<'a>) -> BoxFuture<'a, Result<Attr>> {
        self.0.lookup(dir, name)
    }

    fn parent(&self, dir: Ino) -> BoxFuture<'_, Result<Ino>> {
        self.0.parent(dir)
    }

    fn getattr(&self, ino: Ino) -> BoxFuture<'_, Result<Attr>> {
        self.0.getattr(ino)
    }

    fn getattr_listed<'a>(&'a self, inos: &'a [Ino]) -> BoxFuture<'a, Vec<Result<Attr>>> {
        self.0.getattr_listed(inos)
    }

    fn setattr<'a>(&'a self, _: Ino, _: &'a SetAttr) -> BoxFuture<'a, Result<Attr>> {
        refuse("setattr")
    }

    fn mknod<'a>(&'a self, _: Ino, _: Name<'a>, _: &'a NewInode) -> BoxFuture<'a, Result<Attr>> {
        refuse("mknod")
    }

    fn mkdir<'a>(&'a self, _: Ino, _: Name<'a>, _: &'a NewInode) -> BoxFuture<'a, Result<Attr>> {
        refuse("mkdir")
    }

    fn symlink<'a>(
        &'a self,
        _: Ino,
        _: Name<'a>,
        _: &'a [u8],
        _: &'a NewInode,
    ) -> BoxFuture<'a, Result<Attr>> {
        refuse("symlink")
    }

    fn create<'a>(
        &'a self,
        dir: Ino,
        name: Name<'a>,
        _: &'a NewInode,
        flags: OpenFlags,
    ) -> BoxFuture<'a, Result<(Attr, OpenFileRef)>> {
        Box::pin(async move {
            let attr = match self.0.lookup(dir, name).await {
                Err(error) if error.kind() == ErrorKind::NotFound => return Err(refusal("create")),
                found => found?,
            };
            let refused = match attr.kind {
                _ if flags.contains(OpenFlags::EXCLUSIVE) => ErrorKind::Exists,
                FileKind::Symlink => ErrorKind::SymlinkLoop,
                FileKind::Directory => ErrorKind::IsDirectory,
                _ => return Ok((attr, self.open(attr.ino, flags).await?)),
            };
            Err(Error::new(refused, "create", format!("`{name}`")))
        })
    }

    fn link<'a>(&'a self, _: Ino, _: Ino, _: Name<'a>) -> BoxFuture<'a, Result<Attr>> {
        refuse("link")
    }

    fn unlink<'a>(&'a self, _: Ino, _: Name<'a>) -> BoxFuture<'a, Result<()>> {
        refuse("unlink")
    }

    fn rmdir<'a>(&'a self, _: Ino, _: Name<'a>) -> BoxFuture<'a, Result<()>> {
        refuse("rmdir")
    }

    fn rename<'a>(
        &'a self,
        _: Ino,
        _: Name<'a>,
        _: Ino,
        _: Name<'a>,
        _: RenameFlags,
    ) -> BoxFuture<'a, Result<()>> {
        refuse("rename")
    }

    fn readlink(&self, ino: Ino) -> BoxFuture<'_, Result<Vec<u8>>> {
        self.0.readlink(ino)
    }

    fn readdir(&self, dir: Ino, after: Cookie, max: usize) -> BoxFuture<'_, Result<Vec<DirEntry>>> {
        self.0.readdir(dir, after, max)
    }

    fn getxattr<'a>(&'a self, ino: Ino, name: XattrName<'a>) -> BoxFuture<'a, Result<Vec<u8>>> {
        self.0.getxattr(ino, name)
    }

    fn setxattr<'a>(
        &'a self,
        _: Ino,
        _: XattrName<'a>,
        _: &'a [u8],
        _: SetXattr,
    ) -> BoxFuture<'a, Result<()>> {
        refuse("setxattr")
    }

    fn listxattr(&self, ino: Ino) -> BoxFuture<'_, Result<Vec<Box<[u8]>>>> {
        self.0.listxattr(ino)
    }

    fn removexattr<'a>(&'a self, _: Ino, _: XattrName<'a>) -> BoxFuture<'a, Result<()>> {
        refuse("removexattr")
    }

    fn open(&self, ino: Ino, flags: OpenFlags) -> BoxFuture<'_, Result<OpenFileRef>> {
        Box::pin(async move {
            if flags.intersects(OpenFlags::WRITE | OpenFlags::TRUNCATE) {
                return Err(refusal("open"));
            }
            let file: OpenFileRef = Arc::new(Reader(self.0.open(ino, flags).await?));
            Ok(file)
        })
    }

    fn syncfs(&self) -> BoxFuture<'_, Result<()>> {
        Box::pin(std::future::ready(Ok(())))
    }
}

/// An open file of it: not opened to write, so that the one below refuses writes by itself.
struct Reader(OpenFileRef);

impl OpenFile for Reader {
    fn ino(&self) -> Ino {
        self.0.ino()
    }

    fn flags(&self) -> OpenFlags {
        self.0.flags()
    }

    fn try_read(&self, offset: u64, dst: &mut [u8], flags: IoFlags) -> Option<Result<usize>> {
        self.0.try_read(offset, dst, flags)
    }

    fn read(&self, offset: u64, buf: AlignedBuf, flags: IoFlags) -> BoxFuture<'_, ReadResult> {
        self.0.read(offset, buf, flags)
    }

    fn read_slice(&self, offset: u64, dst: &mut [u8], flags: IoFlags) -> Result<usize> {
        self.0.read_slice(offset, dst, flags)
    }

    fn write(
        &self,
        _: u64,
        buf: AlignedBuf,
        _: IoFlags,
        _: Privileges,
    ) -> BoxFuture<'_, WriteResult> {
        Box::pin(async move { (buf, Err(refusal("write"))) })
    }

    fn fallocate(&self, _: Fallocate, _: u64, _: u64, _: Privileges) -> BoxFuture<'_, Result<()>> {
        refuse("fallocate")
    }

    fn seek(&self, what: Seek, offset: u64) -> BoxFuture<'_, Result<u64>> {
        self.0.seek(what, offset)
    }

    fn sync(&self, _: bool) -> BoxFuture<'_, Result<()>> {
        Box::pin(std::future::ready(Ok(())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mem::MemFs;
    use forebay_base::task::block_on;

    /// O1: reading works, everything else is refused by its kind, and what is below stays as it
    /// was.
    #[test]
    fn o1_changing_calls_are_refused() {
        let below: Arc<dyn FileSystem> = Arc::new(MemFs::default());
        let (root, new) = (Ino::ROOT, NewInode::of(FileKind::File, 0o644));
        let name = Name::new(b"a").unwrap();
        let both = OpenFlags::READ | OpenFlags::WRITE;
        let (attr, file) = block_on(below.create(root, name, &new, both)).unwrap();
        file.write_slice(0, b"content", IoFlags::empty(), Privileges::Drop).unwrap();
        let before = block_on(below.getattr(attr.ino)).unwrap();
        let fs = ReadOnly::new(below.clone());
        let other = Name::new(b"b").unwrap();
        let refused = |done: Result<()>| done.unwrap_err().kind() == ErrorKind::ReadOnly;
        assert!(refused(block_on(fs.unlink(root, name))));
        assert!(refused(block_on(fs.rename(root, name, root, other, RenameFlags::empty()))));
        assert!(refused(block_on(fs.mkdir(root, other, &new)).map(drop)));
        assert!(refused(block_on(fs.setattr(attr.ino, &SetAttr::size(0))).map(drop)));
        assert!(refused(block_on(fs.open(attr.ino, both)).map(drop)));
        assert!(refused(block_on(fs.create(root, other, &new, OpenFlags::READ)).map(drop)));
        let (_, file) = block_on(fs.create(root, name, &new, OpenFlags::READ)).unwrap();
        let mut back = [0; 7];
        assert_eq!(file.read_slice(0, &mut back, IoFlags::empty()).unwrap(), 7);
        assert_eq!(&back, b"content");
        let written = file.write_slice(0, b"x", IoFlags::empty(), Privileges::Drop);
        assert!(refused(written.map(drop)));
        block_on(fs.syncfs()).unwrap();
        let after = block_on(below.getattr(attr.ino)).unwrap();
        assert_eq!((after.size, after.mtime, after.ctime), (7, before.mtime, before.ctime));
    }
}
