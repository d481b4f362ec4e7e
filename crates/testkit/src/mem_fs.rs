//! A file system in memory: the simplest correct implementation of [`FileSystem`], and the oracle
//! for others.
//!
//! Every call completes at once. A completed change counts as durable.
//!
//! Locks: one, around every call, never held across a wait.

mod attr;
mod data;
mod dir;
mod file;
mod namei;
mod options;
mod state;

use file::MemFile;
use forebay_base::Result;
use forebay_base::sync::{Arc, Mutex};
use forebay_base::task::BoxFuture;
use forebay_vfs::fs::{FileSystem, OpenFileRef};
use forebay_vfs::name::{NAME_MAX, Name, XattrName};
use forebay_vfs::types::{
    Attr, Cookie, DirEntry, Ino, NewInode, OpenFlags, RenameFlags, SetAttr, SetXattr, StatFs,
};
use state::{Shared, State};

pub use options::MemOptions;

/// A file system in memory.
pub struct MemFs {
    shared: Arc<Shared>,
}

impl Default for MemFs {
    fn default() -> Self {
        Self::new(MemOptions::default())
    }
}

impl MemFs {
    /// An empty one: a root directory of root's.
    pub fn new(options: MemOptions) -> Self {
        let cookie_bits = options.cookie_bits.min(dir::HASH_BITS_MAX);
        Self::with(State::new(MemOptions { cookie_bits, ..options }))
    }

    fn with(state: State) -> Self {
        Self { shared: Arc::new(Shared { state: Mutex::new(state) }) }
    }

    /// An independent copy of the present state. The copy has no open files, so inodes without a
    /// name are gone. Costs a table of inodes; content is shared until one of the two writes it.
    pub fn snapshot(&self) -> Self {
        let mut state = self.shared.state.lock().clone();
        state.forget_opens();
        Self::with(state)
    }

    /// Panics if its invariants are broken (`State::check`). For tests.
    pub fn check(&self) {
        self.shared.state.lock().check();
    }

    /// Inodes it holds, those that are only open included.
    pub fn inodes(&self) -> usize {
        self.shared.state.lock().inodes.len()
    }

    fn call<'a, T: Send + 'a>(
        &'a self,
        op: impl FnOnce(&mut State) -> Result<T> + Send + 'a,
    ) -> BoxFuture<'a, Result<T>> {
        Box::pin(async move { op(&mut self.shared.state.lock()) })
    }

    fn opened(&self, ino: Ino, flags: OpenFlags) -> OpenFileRef {
        std::sync::Arc::new(MemFile::new(self.shared.clone(), ino, flags))
    }
}

impl FileSystem for MemFs {
    fn statfs(&self) -> BoxFuture<'_, Result<StatFs>> {
        self.call(|state| {
            let blocks = state.options.capacity_bytes / data::BLOCK;
            let blocks_free = blocks.saturating_sub(state.used_blocks);
            let files = state.options.inodes_max;
            Ok(StatFs {
                block_size: data::BLOCK as u32,
                blocks,
                blocks_free,
                blocks_available: blocks_free,
                files,
                files_free: files.saturating_sub(state.inodes.len() as u64),
                name_max: NAME_MAX as u32,
            })
        })
    }

    fn lookup<'a>(&'a self, dir: Ino, name: Name<'a>) -> BoxFuture<'a, Result<Attr>> {
        self.call(move |state| state.lookup((dir, name)))
    }

    fn parent(&self, dir: Ino) -> BoxFuture<'_, Result<Ino>> {
        self.call(move |state| state.parent(dir))
    }

    fn getattr(&self, ino: Ino) -> BoxFuture<'_, Result<Attr>> {
        self.call(move |state| state.attr("getattr", ino))
    }

    fn setattr<'a>(&'a self, ino: Ino, set: &'a SetAttr) -> BoxFuture<'a, Result<Attr>> {
        self.call(move |state| state.setattr(ino, set))
    }

    fn mknod<'a>(
        &'a self,
        dir: Ino,
        name: Name<'a>,
        new: &'a NewInode,
    ) -> BoxFuture<'a, Result<Attr>> {
        self.call(move |state| state.mknod((dir, name), new))
    }

    fn mkdir<'a>(
        &'a self,
        dir: Ino,
        name: Name<'a>,
        new: &'a NewInode,
    ) -> BoxFuture<'a, Result<Attr>> {
        self.call(move |state| state.mkdir((dir, name), new))
    }

    fn symlink<'a>(
        &'a self,
        dir: Ino,
        name: Name<'a>,
        target: &'a [u8],
        new: &'a NewInode,
    ) -> BoxFuture<'a, Result<Attr>> {
        self.call(move |state| state.symlink((dir, name), target, new))
    }

    fn create<'a>(
        &'a self,
        dir: Ino,
        name: Name<'a>,
        new: &'a NewInode,
        flags: OpenFlags,
    ) -> BoxFuture<'a, Result<(Attr, OpenFileRef)>> {
        Box::pin(async move {
            let attr = self.shared.state.lock().create((dir, name), new, flags)?;
            Ok((attr, self.opened(attr.ino, flags)))
        })
    }

    fn tmpfile<'a>(
        &'a self,
        dir: Ino,
        new: &'a NewInode,
        flags: OpenFlags,
    ) -> BoxFuture<'a, Result<(Attr, OpenFileRef)>> {
        Box::pin(async move {
            let attr = self.shared.state.lock().tmpfile(dir, new, flags)?;
            Ok((attr, self.opened(attr.ino, flags)))
        })
    }

    fn link<'a>(&'a self, ino: Ino, dir: Ino, name: Name<'a>) -> BoxFuture<'a, Result<Attr>> {
        self.call(move |state| state.link(ino, (dir, name)))
    }

    fn unlink<'a>(&'a self, dir: Ino, name: Name<'a>) -> BoxFuture<'a, Result<()>> {
        self.call(move |state| state.unlink((dir, name)))
    }

    fn rmdir<'a>(&'a self, dir: Ino, name: Name<'a>) -> BoxFuture<'a, Result<()>> {
        self.call(move |state| state.rmdir((dir, name)))
    }

    fn rename<'a>(
        &'a self,
        dir: Ino,
        name: Name<'a>,
        new_dir: Ino,
        new_name: Name<'a>,
        flags: RenameFlags,
    ) -> BoxFuture<'a, Result<()>> {
        self.call(move |state| state.rename((dir, name), (new_dir, new_name), flags))
    }

    fn readlink(&self, ino: Ino) -> BoxFuture<'_, Result<Vec<u8>>> {
        self.call(move |state| state.readlink(ino))
    }

    fn readdir(&self, dir: Ino, after: Cookie, max: usize) -> BoxFuture<'_, Result<Vec<DirEntry>>> {
        self.call(move |state| state.readdir(dir, after, max))
    }

    fn getxattr<'a>(&'a self, ino: Ino, name: XattrName<'a>) -> BoxFuture<'a, Result<Vec<u8>>> {
        self.call(move |state| state.getxattr(ino, name))
    }

    fn setxattr<'a>(
        &'a self,
        ino: Ino,
        name: XattrName<'a>,
        value: &'a [u8],
        how: SetXattr,
    ) -> BoxFuture<'a, Result<()>> {
        self.call(move |state| state.setxattr(ino, name, value, how))
    }

    fn listxattr(&self, ino: Ino) -> BoxFuture<'_, Result<Vec<Box<[u8]>>>> {
        self.call(move |state| state.listxattr(ino))
    }

    fn removexattr<'a>(&'a self, ino: Ino, name: XattrName<'a>) -> BoxFuture<'a, Result<()>> {
        self.call(move |state| state.removexattr(ino, name))
    }

    fn open(&self, ino: Ino, flags: OpenFlags) -> BoxFuture<'_, Result<OpenFileRef>> {
        Box::pin(async move {
            self.shared.state.lock().open(ino, flags)?;
            Ok(self.opened(ino, flags))
        })
    }

    fn syncfs(&self) -> BoxFuture<'_, Result<()>> {
        Box::pin(async { Ok(()) })
    }
}
