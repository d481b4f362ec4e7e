//! The volume as a file system: [`forebay_vfs::FileSystem`].
//!
//! Lock: the state lock, for the length of a look or a change; never across a wait.

use crate::file::VolumeFile;
use crate::namei::{Call, call};
use crate::state::State;
use crate::volume::{Inner, Volume};
use forebay_base::Result;
use forebay_base::task::BoxFuture;
use forebay_vfs::name::NAME_MAX;
use forebay_vfs::{
    Attr, Cookie, DirEntry, FileKind, FileSystem, Ino, Name, NewInode, OpenFileRef, OpenFlags,
    Privileges, RenameFlags, SetAttr, SetXattr, StatFs, XattrName,
};

impl Inner {
    /// Now, as operations want it.
    pub(crate) fn call(&self) -> Call {
        call(self.options.clock.now(), self.nonce)
    }
}

impl Volume {
    /// An operation that needs no waiting.
    fn now<'a, T: Send + 'a>(
        &'a self,
        op: impl FnOnce(&mut State, Call) -> Result<T> + Send + 'a,
    ) -> BoxFuture<'a, Result<T>> {
        Box::pin(async move {
            let call = self.0.call();
            op(&mut self.0.state.lock(), call)
        })
    }

    fn opened(&self, ino: Ino, flags: OpenFlags) -> Result<OpenFileRef> {
        Ok(std::sync::Arc::new(VolumeFile::new(&self.0, ino, flags)?))
    }

    async fn truncate_on_open(&self, ino: Ino, flags: OpenFlags) -> Result<()> {
        let keep = flags.contains(OpenFlags::KEEP_PRIVILEGES);
        let privileges = if keep { Privileges::Keep } else { Privileges::Drop };
        let set = SetAttr { privileges, ..SetAttr::size(0) };
        self.0.setattr(ino, &set).await
    }
}

impl FileSystem for Volume {
    fn statfs(&self) -> BoxFuture<'_, Result<StatFs>> {
        self.now(|state, _| {
            let block = state.layout.block_bytes();
            let per_segment = state.layout.segment_bytes() / block;
            let available = state.space.data_room(crate::space::Need::New) / block;
            let files = state.nodes.len() as u64;
            Ok(StatFs {
                block_size: block as u32,
                blocks: u64::from(state.layout.segments) * per_segment,
                blocks_free: state.space.segments.free() * per_segment,
                blocks_available: available,
                files: files + available,
                files_free: available,
                name_max: NAME_MAX as u32,
            })
        })
    }

    fn lookup<'a>(&'a self, dir: Ino, name: Name<'a>) -> BoxFuture<'a, Result<Attr>> {
        self.now(move |state, _| state.lookup((dir, name)))
    }

    fn parent(&self, dir: Ino) -> BoxFuture<'_, Result<Ino>> {
        self.now(move |state, _| state.parent(dir))
    }

    fn getattr(&self, ino: Ino) -> BoxFuture<'_, Result<Attr>> {
        self.now(move |state, _| state.attr("getattr", ino))
    }

    fn setattr<'a>(&'a self, ino: Ino, set: &'a SetAttr) -> BoxFuture<'a, Result<Attr>> {
        Box::pin(async move {
            self.0.setattr(ino, set).await?;
            self.0.state.lock().attr("setattr", ino)
        })
    }

    fn mknod<'a>(
        &'a self,
        dir: Ino,
        name: Name<'a>,
        new: &'a NewInode,
    ) -> BoxFuture<'a, Result<Attr>> {
        self.now(move |state, call| state.mknod((dir, name), new, call))
    }

    fn mkdir<'a>(
        &'a self,
        dir: Ino,
        name: Name<'a>,
        new: &'a NewInode,
    ) -> BoxFuture<'a, Result<Attr>> {
        self.now(move |state, call| state.mkdir((dir, name), new, call))
    }

    fn symlink<'a>(
        &'a self,
        dir: Ino,
        name: Name<'a>,
        target: &'a [u8],
        new: &'a NewInode,
    ) -> BoxFuture<'a, Result<Attr>> {
        self.now(move |state, call| state.symlink((dir, name), target, new, call))
    }

    fn create<'a>(
        &'a self,
        dir: Ino,
        name: Name<'a>,
        new: &'a NewInode,
        flags: OpenFlags,
    ) -> BoxFuture<'a, Result<(Attr, OpenFileRef)>> {
        Box::pin(async move {
            let call = self.0.call();
            let (file, ino, old) = {
                let mut state = self.0.state.lock();
                let (ino, old) = state.create_file((dir, name), new, flags, call)?;
                (VolumeFile::count(&self.0, &mut state, ino, flags)?, ino, old)
            };
            let kind = self.0.state.lock().get("create", ino)?.kind();
            if old && kind == FileKind::File && flags.contains(OpenFlags::TRUNCATE) {
                self.truncate_on_open(ino, flags).await?;
            }
            let attr = self.0.state.lock().attr("create", ino)?;
            let file: OpenFileRef = std::sync::Arc::new(file);
            Ok((attr, file))
        })
    }

    fn tmpfile<'a>(
        &'a self,
        dir: Ino,
        new: &'a NewInode,
        flags: OpenFlags,
    ) -> BoxFuture<'a, Result<(Attr, OpenFileRef)>> {
        self.now(move |state, call| {
            let ino = state.tmpfile(dir, new, flags, call)?;
            let file: OpenFileRef =
                std::sync::Arc::new(VolumeFile::count(&self.0, state, ino, flags)?);
            Ok((state.attr("tmpfile", ino)?, file))
        })
    }

    fn link<'a>(&'a self, ino: Ino, dir: Ino, name: Name<'a>) -> BoxFuture<'a, Result<Attr>> {
        self.now(move |state, call| state.link(ino, (dir, name), call))
    }

    fn unlink<'a>(&'a self, dir: Ino, name: Name<'a>) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let call = self.0.call();
            let done = self.0.state.lock().unlink((dir, name), call);
            self.0.tidy();
            done
        })
    }

    fn rmdir<'a>(&'a self, dir: Ino, name: Name<'a>) -> BoxFuture<'a, Result<()>> {
        self.now(move |state, call| state.rmdir((dir, name), call))
    }

    fn rename<'a>(
        &'a self,
        dir: Ino,
        name: Name<'a>,
        new_dir: Ino,
        new_name: Name<'a>,
        flags: RenameFlags,
    ) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move { self.0.rename((dir, name), (new_dir, new_name), flags).await })
    }

    fn readlink(&self, ino: Ino) -> BoxFuture<'_, Result<Vec<u8>>> {
        let noatime = self.0.options.noatime;
        self.now(move |state, call| {
            let target = state.readlink(ino)?;
            state.touch_atime(ino, call, noatime);
            Ok(target)
        })
    }

    fn readdir(&self, dir: Ino, after: Cookie, max: usize) -> BoxFuture<'_, Result<Vec<DirEntry>>> {
        let noatime = self.0.options.noatime;
        self.now(move |state, call| {
            let entries = state.readdir(dir, after, max)?;
            state.touch_atime(dir, call, noatime);
            Ok(entries)
        })
    }

    fn getxattr<'a>(&'a self, ino: Ino, name: XattrName<'a>) -> BoxFuture<'a, Result<Vec<u8>>> {
        self.now(move |state, _| state.getxattr(ino, name))
    }

    fn setxattr<'a>(
        &'a self,
        ino: Ino,
        name: XattrName<'a>,
        value: &'a [u8],
        how: SetXattr,
    ) -> BoxFuture<'a, Result<()>> {
        self.now(move |state, call| state.setxattr(ino, name, value, how, call))
    }

    fn listxattr(&self, ino: Ino) -> BoxFuture<'_, Result<Vec<Box<[u8]>>>> {
        self.now(move |state, _| state.listxattr(ino))
    }

    fn removexattr<'a>(&'a self, ino: Ino, name: XattrName<'a>) -> BoxFuture<'a, Result<()>> {
        self.now(move |state, call| state.removexattr(ino, name, call))
    }

    fn open(&self, ino: Ino, flags: OpenFlags) -> BoxFuture<'_, Result<OpenFileRef>> {
        Box::pin(async move {
            let kind = self.0.state.lock().check_open(ino, flags)?;
            let file = self.opened(ino, flags)?;
            if kind == FileKind::File && flags.contains(OpenFlags::TRUNCATE) {
                self.truncate_on_open(ino, flags).await?;
            }
            Ok(file)
        })
    }

    fn syncfs(&self) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move { self.0.sync_everything().await })
    }
}
