//! A file system with a mistake in it, of the kind that file systems make.
//!
//! No locks.

use forebay_base::buf::AlignedBuf;
use forebay_base::task::BoxFuture;
use forebay_base::{Error, ErrorKind, IoFlags, Result};
use forebay_testkit::mem_fs::MemFs;
use forebay_vfs::fs::{FileSystem, OpenFile, OpenFileRef, ReadResult, WriteResult};
use forebay_vfs::{
    Attr, Cookie, DirEntry, Fallocate, FileKind, Ino, Name, NewInode, OpenFlags, Privileges,
    RenameFlags, Seek, SetAttr, SetXattr, XattrName,
};
use std::sync::Arc;

/// A mistake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bug {
    /// An exchange replaces.
    ExchangeReplaces,
    /// NOREPLACE is not looked at.
    NoreplaceIgnored,
    /// A rename onto a directory that has entries loses them.
    ReplacesFull,
    /// A link does not count.
    LinkUncounted,
    /// The second entry of a batch is not listed.
    EntrySkipped,
    /// A hole is punched in whole blocks.
    PunchTooMuch,
    /// Appends go to where the file ended when it was opened.
    AppendStale,
    /// An attribute is set whatever the flag says.
    XattrFlagIgnored,
    /// Data after the first MiB is called a hole.
    DataCalledHole,
    /// A change of owner keeps set-id bits.
    SetIdKept,
    /// A write leaves `ctime` alone.
    WriteUntimed,
    /// A file is closed as soon as it has no name.
    UnlinkedGone,
}

pub const BUGS: [Bug; 12] = [
    Bug::ExchangeReplaces,
    Bug::NoreplaceIgnored,
    Bug::ReplacesFull,
    Bug::LinkUncounted,
    Bug::EntrySkipped,
    Bug::PunchTooMuch,
    Bug::AppendStale,
    Bug::XattrFlagIgnored,
    Bug::DataCalledHole,
    Bug::SetIdKept,
    Bug::WriteUntimed,
    Bug::UnlinkedGone,
];

/// The file system in memory with one planted bug.
pub struct Planted {
    pub inner: Arc<MemFs>,
    pub bug: Bug,
}

impl Planted {
    async fn wrap(&self, file: OpenFileRef) -> Result<OpenFileRef> {
        let end = self.inner.getattr(file.ino()).await?.size;
        Ok(Arc::new(PlantedFile { file, bug: self.bug, end, fs: self.inner.clone() }))
    }

    /// The attributes as they are told.
    fn told(&self, attr: Attr) -> Attr {
        let links = match (self.bug, attr.kind, attr.nlink) {
            (Bug::LinkUncounted, FileKind::File, 3..) => attr.nlink - 1,
            (_, _, links) => links,
        };
        Attr { nlink: links, ..attr }
    }
}

impl FileSystem for Planted {
    forebay_vfs::delegate_file_system!(
        [inner]
        statfs parent mknod mkdir symlink tmpfile rmdir readlink getxattr listxattr removexattr
        syncfs unlink
    );

    fn lookup<'a>(&'a self, dir: Ino, name: Name<'a>) -> BoxFuture<'a, Result<Attr>> {
        Box::pin(async move { Ok(self.told(self.inner.lookup(dir, name).await?)) })
    }

    fn getattr(&self, ino: Ino) -> BoxFuture<'_, Result<Attr>> {
        Box::pin(async move { Ok(self.told(self.inner.getattr(ino).await?)) })
    }

    fn link<'a>(&'a self, ino: Ino, dir: Ino, name: Name<'a>) -> BoxFuture<'a, Result<Attr>> {
        Box::pin(async move { Ok(self.told(self.inner.link(ino, dir, name).await?)) })
    }

    fn setattr<'a>(&'a self, ino: Ino, set: &'a SetAttr) -> BoxFuture<'a, Result<Attr>> {
        Box::pin(async move {
            let owner = set.uid.is_some() || set.gid.is_some();
            let perm = self.inner.getattr(ino).await?.perm;
            let done = self.inner.setattr(ino, set).await?;
            if self.bug == Bug::SetIdKept && owner && done.kind == FileKind::File {
                return self.inner.setattr(ino, &SetAttr::perm(set.perm.unwrap_or(perm))).await;
            }
            Ok(self.told(done))
        })
    }

    fn create<'a>(
        &'a self,
        dir: Ino,
        name: Name<'a>,
        new: &'a NewInode,
        flags: OpenFlags,
    ) -> BoxFuture<'a, Result<(Attr, OpenFileRef)>> {
        Box::pin(async move {
            let (attr, file) = self.inner.create(dir, name, new, flags).await?;
            Ok((self.told(attr), self.wrap(file).await?))
        })
    }

    fn rename<'a>(
        &'a self,
        dir: Ino,
        name: Name<'a>,
        new_dir: Ino,
        new_name: Name<'a>,
        mut flags: RenameFlags,
    ) -> BoxFuture<'a, Result<()>> {
        match self.bug {
            Bug::ExchangeReplaces if flags == RenameFlags::EXCHANGE => flags = RenameFlags::empty(),
            Bug::NoreplaceIgnored => flags -= RenameFlags::NOREPLACE,
            _ => {}
        }
        Box::pin(async move {
            let again = |flags| self.inner.rename(dir, name, new_dir, new_name, flags);
            match again(flags).await {
                Err(e) if self.bug == Bug::ReplacesFull && e.kind() == ErrorKind::NotEmpty => {
                    let target = self.inner.lookup(new_dir, new_name).await?;
                    let all = self.inner.readdir(target.ino, Cookie::START, 99).await?;
                    for entry in all.iter().filter(|e| e.kind == FileKind::File) {
                        self.inner.unlink(target.ino, Name::new(&entry.name)?).await?;
                    }
                    again(flags).await
                }
                done => done,
            }
        })
    }

    fn readdir(&self, dir: Ino, after: Cookie, max: usize) -> BoxFuture<'_, Result<Vec<DirEntry>>> {
        Box::pin(async move {
            let mut entries = self.inner.readdir(dir, after, max).await?;
            if self.bug == Bug::EntrySkipped && entries.len() > 2 {
                entries.remove(1);
            }
            Ok(entries)
        })
    }

    fn setxattr<'a>(
        &'a self,
        ino: Ino,
        name: XattrName<'a>,
        value: &'a [u8],
        how: SetXattr,
    ) -> BoxFuture<'a, Result<()>> {
        let how = if self.bug == Bug::XattrFlagIgnored { SetXattr::Any } else { how };
        self.inner.setxattr(ino, name, value, how)
    }

    fn open(&self, ino: Ino, flags: OpenFlags) -> BoxFuture<'_, Result<OpenFileRef>> {
        Box::pin(async move { self.wrap(self.inner.open(ino, flags).await?).await })
    }
}

struct PlantedFile {
    file: OpenFileRef,
    bug: Bug,
    end: u64,
    fs: Arc<MemFs>,
}

impl PlantedFile {
    async fn check(&self) -> Result<()> {
        let gone =
            self.bug == Bug::UnlinkedGone && self.fs.getattr(self.file.ino()).await?.nlink == 0;
        match gone {
            true => Err(Error::new(ErrorKind::Stale, "check", "planted")),
            false => Ok(()),
        }
    }
}

impl OpenFile for PlantedFile {
    forebay_vfs::delegate_open_file!(
        [file]
        ino flags sync
    );

    fn read(&self, offset: u64, buf: AlignedBuf, flags: IoFlags) -> BoxFuture<'_, ReadResult> {
        Box::pin(async move {
            match self.check().await {
                Ok(()) => self.file.read(offset, buf, flags).await,
                Err(e) => (buf, Err(e)),
            }
        })
    }

    fn write(
        &self,
        mut offset: u64,
        buf: AlignedBuf,
        mut flags: IoFlags,
        privileges: Privileges,
    ) -> BoxFuture<'_, WriteResult> {
        if self.bug == Bug::AppendStale && flags.contains(IoFlags::APPEND) {
            (offset, flags) = (self.end, flags - IoFlags::APPEND);
        }
        Box::pin(async move {
            let before = self.fs.getattr(self.file.ino()).await;
            let (buf, wrote) = self.file.write(offset, buf, flags, privileges).await;
            if let (Bug::WriteUntimed, Ok(before), Ok(_)) = (self.bug, before, &wrote) {
                let mtime = Some(forebay_vfs::SetTime::To(before.mtime));
                let back = SetAttr { mtime, ..SetAttr::default() };
                let _ = self.fs.setattr(self.file.ino(), &back).await;
            }
            (buf, wrote)
        })
    }

    fn fallocate(
        &self,
        how: Fallocate,
        offset: u64,
        len: u64,
        privileges: Privileges,
    ) -> BoxFuture<'_, Result<()>> {
        let (mut from, mut bytes) = (offset, len);
        if self.bug == Bug::PunchTooMuch && how == Fallocate::PunchHole && len > 0 {
            from = offset / 4096 * 4096;
            bytes = len + (offset - from);
        }
        self.file.fallocate(how, from, bytes, privileges)
    }

    fn seek(&self, what: Seek, offset: u64) -> BoxFuture<'_, Result<u64>> {
        Box::pin(async move {
            let found = self.file.seek(what, offset).await?;
            match self.bug == Bug::DataCalledHole && what == Seek::Data && found > 1 << 20 {
                true => Err(Error::new(ErrorKind::PastEnd, "seek", "planted")),
                false => Ok(found),
            }
        })
    }
}
