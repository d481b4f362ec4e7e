//! The volume as a file system: implements [`forebay_vfs::FileSystem`].
//!
//! Lock: the state lock, for one lookup or one change. It is not held across a wait.

use crate::names::content::AT_ONCE;
use crate::names::lookup::Tried;
use crate::transaction::state::State;
use crate::volume::Volume;
use crate::volume::open_file::VolumeFile;
use forebay_base::Result;
use forebay_base::task::BoxFuture;
use forebay_vfs::name::NAME_MAX;
use forebay_vfs::rules::{self, At};
use forebay_vfs::{
    Attr, Cookie, DirEntry, FileKind, FileSystem, Ino, KeepInode, Name, NewInode, OpenFile,
    OpenFileRef, OpenFlags, Opened, Privileges, RenameFlags, SetAttr, SetXattr, StatFs, Timestamp,
    XattrName,
};

impl Volume {
    /// Runs an operation that waits only for parts that it must load.
    fn tried<'a, T: Send + 'a>(
        &'a self,
        op: impl FnMut(&mut State, Timestamp) -> Tried<T> + Send + 'a,
    ) -> BoxFuture<'a, Result<T>> {
        Box::pin(self.0.tried(op))
    }

    /// Looks up and opens an inode while the state lock is held once, and truncates the file if
    /// `flags` ask for it. `look` returns the inode, whether a truncation applies to it, and an
    /// extended attribute.
    async fn open_tried(
        &self,
        op: &'static str,
        flags: OpenFlags,
        mut look: impl FnMut(&mut State, Timestamp) -> Tried<(Ino, bool, Option<Vec<u8>>)>,
    ) -> Result<Opened> {
        let opened = self.0.tried(|state, now| {
            let (ino, cut, xattr) = look(state, now)?;
            let attr = state.attr(op, ino)?;
            Ok((VolumeFile::count(&self.0, state, ino, flags)?, attr, cut, xattr))
        });
        let (file, mut attr, cut, xattr) = opened.await?;
        if cut && flags.contains(OpenFlags::TRUNCATE) {
            attr = self.truncate_on_open(file.ino(), flags).await?;
        }
        Ok(Opened { file: std::sync::Arc::new(file), attr, xattr: Ok(xattr) })
    }

    async fn create_opened(
        &self,
        at: At<'_>,
        new: &NewInode,
        flags: OpenFlags,
        xattr: Option<XattrName<'_>>,
    ) -> Result<Opened> {
        let opened = self.open_tried("create", flags, |state, now| {
            let value = xattr.map_or(Ok(None), |name| find_xattr(state, at.0, name))?;
            let ((ino, kind), old) = state.create_file(at, new, flags, now)?;
            Ok((ino, old && kind == FileKind::File, value))
        });
        let opened = opened.await?;
        self.note(at.0, at.1, &opened.attr);
        Ok(opened)
    }

    async fn open_opened(
        &self,
        ino: Ino,
        flags: OpenFlags,
        xattr: Option<XattrName<'_>>,
    ) -> Result<Opened> {
        let opened = self.open_tried("open", flags, |state, _| {
            let kind = rules::names::open(state, ino, flags)?;
            let value = xattr.map_or(Ok(None), |name| find_xattr(state, ino, name))?;
            Ok((ino, kind == FileKind::File, value))
        });
        opened.await
    }

    async fn renamed(
        &self,
        (from, to): (At<'_>, At<'_>),
        flags: RenameFlags,
        keeps: KeepInode<'_>,
    ) -> Result<Option<VolumeFile>> {
        let kept = self.0.rename((from, to), flags, keeps).await?;
        let (old, new) = ((from.0.0, from.1.as_bytes()), (to.0.0, to.1.as_bytes()));
        self.0.names.renamed(old, new);
        Ok(kept)
    }

    async fn truncate_on_open(&self, ino: Ino, flags: OpenFlags) -> Result<Attr> {
        let privileges = Privileges::of_open(flags);
        let set = SetAttr { privileges, ..SetAttr::size(0) };
        self.0.setattr(ino, &set).await
    }
}

fn find_xattr(state: &State, ino: Ino, name: XattrName<'_>) -> Tried<Option<Vec<u8>>> {
    let value = state.get("getxattr", ino)?.xattrs.get(name.as_bytes());
    Ok(value.map(|value| value.to_vec()))
}

impl FileSystem for Volume {
    fn statfs(&self) -> BoxFuture<'_, Result<StatFs>> {
        let counted = self.tried(|state, _| {
            let block = state.layout().block_bytes();
            let (stored, left) =
                (state.content_bytes() + state.accepted_bytes(0), state.capacity_left());
            let available = state.new_room() / block;
            let files = state.names().inode_count();
            Ok(StatFs {
                block_size: block as u32,
                blocks: (stored + left) / block,
                blocks_free: left / block,
                blocks_available: available,
                files: files + available,
                files_free: available,
                name_max: NAME_MAX as u32,
            })
        });
        Box::pin(async move {
            self.0.wait_for_removed().await;
            counted.await
        })
    }

    fn lookup<'a>(&'a self, dir: Ino, name: Name<'a>) -> BoxFuture<'a, Result<Attr>> {
        Box::pin(async move {
            let found = self.0.tried(move |state, _| state.lookup((dir, name))).await?;
            self.note(dir, name, &found);
            Ok(found)
        })
    }

    fn parent(&self, dir: Ino) -> BoxFuture<'_, Result<Ino>> {
        self.tried(move |state, _| state.parent(dir))
    }

    fn getattr(&self, ino: Ino) -> BoxFuture<'_, Result<Attr>> {
        self.tried(move |state, _| state.attr("getattr", ino))
    }

    fn getattr_listed<'a>(&'a self, inos: &'a [Ino]) -> BoxFuture<'a, Vec<Result<Attr>>> {
        Box::pin(self.0.attrs_listed(inos))
    }

    fn setattr<'a>(&'a self, ino: Ino, set: &'a SetAttr) -> BoxFuture<'a, Result<Attr>> {
        Box::pin(self.0.setattr(ino, set))
    }

    fn mknod<'a>(
        &'a self,
        dir: Ino,
        name: Name<'a>,
        new: &'a NewInode,
    ) -> BoxFuture<'a, Result<Attr>> {
        self.tried(move |state, now| state.mknod((dir, name), new, now))
    }

    fn mkdir<'a>(
        &'a self,
        dir: Ino,
        name: Name<'a>,
        new: &'a NewInode,
    ) -> BoxFuture<'a, Result<Attr>> {
        Box::pin(async move {
            let made = self.0.tried(move |state, now| state.mkdir((dir, name), new, now)).await?;
            self.note(dir, name, &made);
            Ok(made)
        })
    }

    fn symlink<'a>(
        &'a self,
        dir: Ino,
        name: Name<'a>,
        target: &'a [u8],
        new: &'a NewInode,
    ) -> BoxFuture<'a, Result<Attr>> {
        self.tried(move |state, now| state.symlink((dir, name), target, new, now))
    }

    fn create<'a>(
        &'a self,
        dir: Ino,
        name: Name<'a>,
        new: &'a NewInode,
        flags: OpenFlags,
    ) -> BoxFuture<'a, Result<(Attr, OpenFileRef)>> {
        Box::pin(async move {
            let opened = self.create_opened((dir, name), new, flags, None).await?;
            Ok((opened.attr, opened.file))
        })
    }

    fn create_with_xattr<'a>(
        &'a self,
        dir: Ino,
        name: Name<'a>,
        new: &'a NewInode,
        flags: OpenFlags,
        xattr: XattrName<'a>,
    ) -> BoxFuture<'a, Result<Opened>> {
        Box::pin(self.create_opened((dir, name), new, flags, Some(xattr)))
    }

    fn tmpfile<'a>(
        &'a self,
        dir: Ino,
        new: &'a NewInode,
        flags: OpenFlags,
    ) -> BoxFuture<'a, Result<(Attr, OpenFileRef)>> {
        self.tried(move |state, now| {
            let ino = state.tmpfile(dir, new, flags, now)?;
            let attr = state.attr("tmpfile", ino)?;
            let file = VolumeFile::count(&self.0, state, ino, flags)?;
            Ok((attr, std::sync::Arc::new(file) as OpenFileRef))
        })
    }

    fn link<'a>(&'a self, ino: Ino, dir: Ino, name: Name<'a>) -> BoxFuture<'a, Result<Attr>> {
        self.tried(move |state, now| state.link(ino, (dir, name), now))
    }

    fn unlink<'a>(&'a self, dir: Ino, name: Name<'a>) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let done = self.0.tried(|state, now| {
                state.unlink((dir, name), now)?;
                Ok(state.needs_tidying())
            });
            // Often nothing of the file is cached, and no closed file waits: then the hold that
            // removed it suffices (closed.Y12).
            let done = done.await;
            if *done.as_ref().unwrap_or(&true) {
                self.0.files.tidy(None, AT_ONCE);
            }
            done.map(drop)
        })
    }

    fn rmdir<'a>(&'a self, dir: Ino, name: Name<'a>) -> BoxFuture<'a, Result<()>> {
        self.tried(move |state, now| state.rmdir((dir, name), now))
    }

    fn rename<'a>(
        &'a self,
        dir: Ino,
        name: Name<'a>,
        new_dir: Ino,
        new_name: Name<'a>,
        flags: RenameFlags,
    ) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let names = ((dir, name), (new_dir, new_name));
            self.renamed(names, flags, &|_| false).await.map(drop)
        })
    }

    fn remove_keeping<'a>(
        &'a self,
        dir: Ino,
        name: Name<'a>,
        is_directory: bool,
        keeps: KeepInode<'a>,
    ) -> BoxFuture<'a, Result<Option<OpenFileRef>>> {
        Box::pin(async move {
            let at = (dir, name);
            let kept = self.0.tried(|state, now| {
                let kept = state.keeping(at, keeps, |state| match is_directory {
                    true => state.rmdir(at, now),
                    false => state.unlink(at, now),
                })?;
                let tidies = !is_directory && kept.is_none() && state.needs_tidying();
                let kept = kept.map(|ino| VolumeFile::counted(&self.0, ino, OpenFlags::empty()));
                Ok((kept, tidies))
            });
            let done = kept.await;
            // A directory has no content, and the content of a kept file stays.
            if done.as_ref().map_or(!is_directory, |(_, tidies)| *tidies) {
                self.0.files.tidy(None, AT_ONCE);
            }
            let (kept, _) = done?;
            Ok(kept.map(|file| std::sync::Arc::new(file) as OpenFileRef))
        })
    }

    fn rename_keeping<'a>(
        &'a self,
        from: (Ino, Name<'a>),
        to: (Ino, Name<'a>),
        flags: RenameFlags,
        keeps: KeepInode<'a>,
    ) -> BoxFuture<'a, Result<Option<OpenFileRef>>> {
        Box::pin(async move {
            let kept = self.renamed((from, to), flags, keeps).await?;
            Ok(kept.map(|file| std::sync::Arc::new(file) as OpenFileRef))
        })
    }

    fn readlink(&self, ino: Ino) -> BoxFuture<'_, Result<Vec<u8>>> {
        let noatime = self.0.options.noatime;
        self.tried(move |state, now| {
            let target = state.readlink(ino)?;
            state.touch_atime(ino, now, noatime);
            Ok(target)
        })
    }

    fn readdir(&self, dir: Ino, after: Cookie, max: usize) -> BoxFuture<'_, Result<Vec<DirEntry>>> {
        Box::pin(self.0.list(dir, after, max.max(1)))
    }

    fn getxattr<'a>(&'a self, ino: Ino, name: XattrName<'a>) -> BoxFuture<'a, Result<Vec<u8>>> {
        self.tried(move |state, _| state.getxattr(ino, name))
    }

    fn setxattr<'a>(
        &'a self,
        ino: Ino,
        name: XattrName<'a>,
        value: &'a [u8],
        how: SetXattr,
    ) -> BoxFuture<'a, Result<()>> {
        self.tried(move |state, now| state.setxattr(ino, name, value, how, now))
    }

    fn listxattr(&self, ino: Ino) -> BoxFuture<'_, Result<Vec<Box<[u8]>>>> {
        self.tried(move |state, _| state.listxattr(ino))
    }

    fn removexattr<'a>(&'a self, ino: Ino, name: XattrName<'a>) -> BoxFuture<'a, Result<()>> {
        self.tried(move |state, now| state.removexattr(ino, name, now))
    }

    fn open(&self, ino: Ino, flags: OpenFlags) -> BoxFuture<'_, Result<OpenFileRef>> {
        Box::pin(async move { Ok(self.open_opened(ino, flags, None).await?.file) })
    }

    fn open_with_xattr<'a>(
        &'a self,
        ino: Ino,
        flags: OpenFlags,
        name: XattrName<'a>,
    ) -> BoxFuture<'a, Result<Opened>> {
        Box::pin(self.open_opened(ino, flags, Some(name)))
    }

    fn syncfs(&self) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move { self.0.files.sync_everything().await })
    }
}
