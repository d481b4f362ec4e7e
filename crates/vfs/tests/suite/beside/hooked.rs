//! A file system in memory where a program acts right after a look-up was answered.
//!
//! Lock: the slot of the act, not held while it runs.

use super::*;

/// What acts once, after the next look-up.
type Act = Box<dyn FnOnce() + Send>;

/// A file system with such a program.
#[derive(Default)]
pub(super) struct Hooked {
    pub fs: Arc<MemFs>,
    pub after_lookup: Mutex<Option<Act>>,
    /// Attributes are never set.
    pub is_stuck: AtomicBool,
}

impl FileSystem for Hooked {
    fn statfs(&self) -> BoxFuture<'_, Result<StatFs>> {
        self.fs.statfs()
    }
    fn lookup<'a>(&'a self, dir: Ino, name: Name<'a>) -> BoxFuture<'a, Result<Attr>> {
        Box::pin(async move {
            let found = self.fs.lookup(dir, name).await;
            let act = self.after_lookup.lock().take();
            if let Some(act) = act {
                act();
            }
            found
        })
    }
    fn parent(&self, dir: Ino) -> BoxFuture<'_, Result<Ino>> {
        self.fs.parent(dir)
    }
    fn getattr(&self, ino: Ino) -> BoxFuture<'_, Result<Attr>> {
        self.fs.getattr(ino)
    }
    fn setattr<'a>(&'a self, ino: Ino, set: &'a SetAttr) -> BoxFuture<'a, Result<Attr>> {
        match self.is_stuck.load(Ordering::Relaxed) {
            true => Box::pin(std::future::pending()),
            false => self.fs.setattr(ino, set),
        }
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
        self.fs.create(dir, name, new, flags)
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
        self.fs.open(ino, flags)
    }
    fn syncfs(&self) -> BoxFuture<'_, Result<()>> {
        self.fs.syncfs()
    }
}
