//! A read-only wrapper: refuses each call that changes the file system with `ReadOnly`.
//!
//! Invariants: R1 no call that could change anything reaches the inner file system. A sync does not
//! either: nothing was written through the wrapper.
//!
//! No locks.

use crate::fs::{FileSystem, OpenFile, OpenFileRef, WriteResult};
use crate::name::Name;
use crate::types::{Attr, Fallocate, FileKind, Ino, NewInode, OpenFlags, Privileges};
use forebay_base::buf::AlignedBuf;
use forebay_base::task::BoxFuture;
use forebay_base::{Error, ErrorKind, IoFlags, Result};
use std::sync::Arc;

/// A file system that refuses all changes.
pub struct ReadOnly(Arc<dyn FileSystem>);

impl ReadOnly {
    /// A wrapper of `fs`, which other callers may still write.
    pub fn new(fs: Arc<dyn FileSystem>) -> Self {
        Self(fs)
    }
}

fn refusal(op: &'static str) -> Error {
    Error::new(ErrorKind::ReadOnly, op, "opened for reading only")
}

impl FileSystem for ReadOnly {
    crate::delegate_file_system!(
        [0]
        statfs lookup parent getattr getattr_listed readlink readdir getxattr listxattr
    );

    crate::delegate_file_system!(
        (refusal)
        setattr mknod mkdir symlink link unlink rmdir rename setxattr removexattr
    );

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

/// An open file of the wrapper, opened without `WRITE`. Writes, allocations and syncs do not reach
/// the inner file (R1).
struct Reader(OpenFileRef);

impl OpenFile for Reader {
    crate::delegate_open_file!(
        [0]
        ino flags try_read read read_slice wait_read seek
    );

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
        Box::pin(std::future::ready(Err(refusal("fallocate"))))
    }

    fn sync(&self, _: bool) -> BoxFuture<'_, Result<()>> {
        Box::pin(std::future::ready(Ok(())))
    }
}
