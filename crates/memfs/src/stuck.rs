//! A file system whose reads of content never end, and that panics when it is asked for `panic`.
//!
//! No locks of its own.

use forebay_base::buf::AlignedBuf;
use forebay_base::task::{BoxFuture, oneshot};
use forebay_base::{IoFlags, Result};
use forebay_fuse::notify::{Notice, Notifier};
use forebay_testkit::mem_fs::MemFs;
use forebay_vfs::{
    Attr, FileSystem, Ino, Name, NewInode, OpenFile, OpenFileRef, OpenFlags, ReadResult,
};
use std::sync::{Arc, OnceLock};

/// The notifier of the mount; set once the mount exists.
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
    forebay_vfs::delegate_file_system!(
        [fs]
        statfs parent getattr setattr mknod mkdir symlink link unlink rmdir rename
        readlink readdir getxattr setxattr listxattr removexattr syncfs
    );

    fn lookup<'a>(&'a self, dir: Ino, name: Name<'a>) -> BoxFuture<'a, Result<Attr>> {
        assert!(name.as_bytes() != b"panic", "asked for");
        self.fs.lookup(dir, name)
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
    fn open(&self, ino: Ino, flags: OpenFlags) -> BoxFuture<'_, Result<OpenFileRef>> {
        Box::pin(async move { Ok(self.stuck(self.fs.open(ino, flags).await?)) })
    }
}

impl OpenFile for StuckFile {
    forebay_vfs::delegate_open_file!(
        [file]
        ino flags write fallocate seek sync
    );

    fn read(&self, _offset: u64, _buf: AlignedBuf, _flags: IoFlags) -> BoxFuture<'_, ReadResult> {
        if let Some(notifier) = self.notifier.get() {
            notifier.try_send(Notice::Inode { node: self.ino().0, offset: 0, len: 0 });
        }
        // The future owns the sender, so the receiver waits for ever, and its waker keeps the task.
        let (sender, receiver) = oneshot::<()>();
        Box::pin(async move {
            receiver.await;
            drop(sender);
            unreachable!("nothing was sent")
        })
    }
}
