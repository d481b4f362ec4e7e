//! The interface of a file system: a full POSIX tree, by inode number and name. It has no paths and
//! no users.
//!
//! **Not included.** Permissions (mode bits, sticky directories, who may chown, immutable inodes),
//! umask, file locks, `O_NOFOLLOW`, trailing slashes, `.` and `..` as names. The front end handles
//! these; on a mount the kernel does (`default_permissions`). ACLs: `system.*` attributes are
//! refused.
//!
//! Invariants: F1 a name is a [`Name`]; it denotes one entry, an entry one inode, and a directory
//! has one entry (the root none). The tree has no loops. F2 `nlink` counts the entries of an inode,
//! and for a directory is 2 plus the number of its subdirectories; a removed directory has 0. F3 an
//! inode without a name lives as long as an [`OpenFile`] of it, and supports all operations by
//! number. After that it and its content are freed, and its number gives `Stale`. Any kind of inode
//! can be opened, also without flags, which only keeps it alive. F4 a listing continues after the
//! cookie that it is given. An entry that exists from the first call to the last is returned
//! exactly once, whatever else is created, renamed or removed; a listing ends even if entries are
//! created all the time. F5 times: see below. F6 `rename` is one step, to a reader and after a
//! crash. F7 a call that fails has changed nothing. F8 bytes that were never written read as zeros,
//! also after the file was shrunk and grown, and use no storage.
//!
//! **Times.** "Now" is the file system's clock. `mtime` and `ctime` become now with a write of at
//! least one byte, a new size (also an equal one) and a fallocate; those of a directory with each
//! entry that is added, removed or replaced. `ctime` alone becomes now with any other attribute,
//! extended attributes, a link more or less, and for an inode that a rename moves. A rename onto
//! another link of the same inode, an empty `SetAttr` and a write of no bytes change nothing.
//! `atime`: a read, listing or readlink updates it by [`crate::types::relatime`], or never if the
//! volume is mounted `noatime`. An update of `atime` alone makes nothing dirty that a sync has to
//! wait for.
//!
//! **Set-id bits** are dropped ([`crate::types::without_set_id`]) with a change of owner or group
//! (also to the same value) of anything but a directory. They are also dropped with a write of at
//! least one byte, a new size and a fallocate, unless the caller passes [`Privileges::Keep`].
//! `security.capability` is dropped with all of these. Permission bits in the same `SetAttr` take
//! precedence.
//!
//! **Order of errors.** `Stale` for an unknown inode, `NotDirectory` for a parent that is not a
//! directory, `NotFound` for a directory that was removed; then as in POSIX and Linux, see each
//! call. Any call may fail with `Io`, `Corrupt`, `NoMemory`, `Shutdown`; a call that changes
//! anything also with `ReadOnly` and `NoSpace`. Removing, truncating and syncing work on a full
//! volume.
//!
//! **Waiting.** Futures may be dropped at any time; the call may still take effect then. `try_*`
//! complete without waiting or allocating, or return `None` and have changed nothing.
//!
//! No locks: only traits and types.

use crate::name::{Name, XattrName};
use crate::types::{
    Attr, Cookie, DirEntry, Fallocate, FileKind, Ino, NewInode, OpenFlags, Privileges, RenameFlags,
    Seek, SetAttr, SetXattr, StatFs,
};
use forebay_base::buf::AlignedBuf;
use forebay_base::task::{BoxFuture, block_on};
use forebay_base::{Error, ErrorKind, IoFlags, Result};
use std::ops::Range;
use std::sync::Arc;

/// A shared open file. Dropping the last clone releases it (F3).
pub type OpenFileRef = Arc<dyn OpenFile>;
/// The buffer, and the number of bytes read into it: fewer than its length only at the end of file.
pub type ReadResult = (AlignedBuf, Result<usize>);
/// The buffer, and the range to which it was written.
pub type WriteResult = (AlignedBuf, Result<Wrote>);

/// Result of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wrote {
    /// Offset of the first byte; with `IoFlags::APPEND` the file system chose it.
    pub offset: u64,
    /// Number of bytes written, from the start of the buffer on. Fewer than requested only if space
    /// ran out, or at the largest file size.
    pub len: usize,
}

/// Decides whether an inode that loses its last name is kept. A file system may call this while it
/// holds its own locks. So it takes leaf locks only, and calls no file system.
pub type KeepInode<'a> = &'a (dyn Fn(Ino) -> bool + Send + Sync + 'a);

/// An opening, with data that a front end needs for its reply.
pub struct Opened {
    /// The open file.
    pub file: OpenFileRef,
    /// The attributes of the file.
    pub attr: Attr,
    /// The value of the requested extended attribute, if there is one.
    pub xattr: Result<Option<Vec<u8>>>,
}

/// A mounted file system.
pub trait FileSystem: Send + Sync {
    /// Statistics of the file system. Space that it reports as available can really be written.
    fn statfs(&self) -> BoxFuture<'_, Result<StatFs>>;

    /// The inode that `name` denotes in `dir`, or `NotFound`.
    fn lookup<'a>(&'a self, dir: Ino, name: Name<'a>) -> BoxFuture<'a, Result<Attr>>;

    /// The parent directory of `dir`; the root's is the root. `NotFound` if `dir` was removed.
    fn parent(&self, dir: Ino) -> BoxFuture<'_, Result<Ino>>;

    /// Attributes of an inode.
    fn getattr(&self, ino: Ino) -> BoxFuture<'_, Result<Attr>>;

    /// Attributes of each of several inodes that are adjacent in a listing: the caller will request
    /// those of the following entries next.
    fn getattr_listed<'a>(&'a self, inos: &'a [Ino]) -> BoxFuture<'a, Vec<Result<Attr>>> {
        Box::pin(async move {
            let mut all = Vec::with_capacity(inos.len());
            for ino in inos {
                all.push(self.getattr(*ino).await);
            }
            all
        })
    }

    /// Sets attributes, all or none, and returns them. A size: `IsDirectory` or `InvalidInput` for
    /// an inode that is not a regular file, `FileTooLarge` beyond [`crate::types::FILE_SIZE_MAX`].
    /// A mode: `Unsupported` for a symbolic link.
    fn setattr<'a>(&'a self, ino: Ino, set: &'a SetAttr) -> BoxFuture<'a, Result<Attr>>;

    /// Creates a regular file, pipe, socket or device. `InvalidInput` for other kinds, `Exists` if
    /// the name exists.
    fn mknod<'a>(
        &'a self,
        dir: Ino,
        name: Name<'a>,
        new: &'a NewInode,
    ) -> BoxFuture<'a, Result<Attr>>;

    /// Creates a directory; `new.kind` is ignored. `Exists`, then `TooManyLinks` for `dir`.
    fn mkdir<'a>(
        &'a self,
        dir: Ino,
        name: Name<'a>,
        new: &'a NewInode,
    ) -> BoxFuture<'a, Result<Attr>>;

    /// Creates a symbolic link to `target`: any bytes but NUL. `NotFound` if it is empty,
    /// `NameTooLong` if it exceeds [`crate::types::SYMLINK_MAX`]. Its permission bits are 0o777.
    fn symlink<'a>(
        &'a self,
        dir: Ino,
        name: Name<'a>,
        target: &'a [u8],
        new: &'a NewInode,
    ) -> BoxFuture<'a, Result<Attr>>;

    /// Creates a regular file and opens it, in one step. If the name exists: `Exists` with
    /// `OpenFlags::EXCLUSIVE`, else `SymlinkLoop` for a symbolic link and `IsDirectory` for a
    /// directory; any other inode is opened as by [`FileSystem::open`].
    fn create<'a>(
        &'a self,
        dir: Ino,
        name: Name<'a>,
        new: &'a NewInode,
        flags: OpenFlags,
    ) -> BoxFuture<'a, Result<(Attr, OpenFileRef)>>;

    /// Creates a regular file without a name (`O_TMPFILE`). [`FileSystem::link`] may give it one
    /// later, unless `OpenFlags::EXCLUSIVE` is set. An implementation may lack this call:
    /// `Unsupported`.
    fn tmpfile<'a>(
        &'a self,
        dir: Ino,
        new: &'a NewInode,
        flags: OpenFlags,
    ) -> BoxFuture<'a, Result<(Attr, OpenFileRef)>> {
        let _ = (dir, new, flags);
        Box::pin(async { Err(Error::new(ErrorKind::Unsupported, "tmpfile", "not kept here")) })
    }

    /// Adds a name for `ino`. `Exists`, `NotPermitted` for a directory, `NotFound` for an inode
    /// that has lost its last name, `TooManyLinks`.
    fn link<'a>(&'a self, ino: Ino, dir: Ino, name: Name<'a>) -> BoxFuture<'a, Result<Attr>>;

    /// Removes a name. `IsDirectory` if it denotes a directory.
    fn unlink<'a>(&'a self, dir: Ino, name: Name<'a>) -> BoxFuture<'a, Result<()>>;

    /// Removes an empty directory. `NotDirectory`, `NotEmpty`.
    fn rmdir<'a>(&'a self, dir: Ino, name: Name<'a>) -> BoxFuture<'a, Result<()>>;

    /// Moves an entry. Errors in this order: the flags; `NotFound` without the old name; with
    /// `NOREPLACE` `Exists`; with `EXCHANGE` `NotFound` without the new name; `InvalidInput` for a
    /// directory into itself or below itself, with `EXCHANGE` in either direction; `NotEmpty` onto
    /// a directory that contains the old one; success without a change if both names denote the
    /// same inode; `NotDirectory` for a directory onto another kind, `IsDirectory` the other way
    /// round, `NotEmpty`; `TooManyLinks` for the new parent. An inode at the new name loses that
    /// name as by unlink or rmdir.
    fn rename<'a>(
        &'a self,
        dir: Ino,
        name: Name<'a>,
        new_dir: Ino,
        new_name: Name<'a>,
        flags: RenameFlags,
    ) -> BoxFuture<'a, Result<()>>;

    /// [`FileSystem::unlink`], or with `is_directory` [`FileSystem::rmdir`]. An inode that loses
    /// its last name and that `keeps` names is returned open, so that it lives on (F3): in one
    /// step, if an implementation supports that.
    fn remove_keeping<'a>(
        &'a self,
        dir: Ino,
        name: Name<'a>,
        is_directory: bool,
        keeps: KeepInode<'a>,
    ) -> BoxFuture<'a, Result<Option<OpenFileRef>>> {
        Box::pin(async move {
            let held = hold(self, dir, name, keeps).await;
            match is_directory {
                true => self.rmdir(dir, name).await?,
                false => self.unlink(dir, name).await?,
            }
            kept(self, held).await
        })
    }

    /// [`FileSystem::rename`]. Returns a replaced inode open, as [`FileSystem::remove_keeping`]
    /// does.
    fn rename_keeping<'a>(
        &'a self,
        (dir, name): (Ino, Name<'a>),
        (new_dir, new_name): (Ino, Name<'a>),
        flags: RenameFlags,
        keeps: KeepInode<'a>,
    ) -> BoxFuture<'a, Result<Option<OpenFileRef>>> {
        Box::pin(async move {
            // With a flag no inode loses its name.
            let held = match flags.is_empty() {
                true => hold(self, new_dir, new_name, keeps).await,
                false => None,
            };
            self.rename(dir, name, new_dir, new_name, flags).await?;
            kept(self, held).await
        })
    }

    /// Target of a symbolic link; `InvalidInput` for other kinds.
    fn readlink(&self, ino: Ino) -> BoxFuture<'_, Result<Vec<u8>>>;

    /// Up to `max` (1 or more) entries of `dir` after `after`, without `.` and `..`; an empty list
    /// at the end (F4). Cookies are in the order of the listing. A cookie is valid as long as its
    /// entry exists, for all callers; any number may be passed as `after`.
    fn readdir(&self, dir: Ino, after: Cookie, max: usize) -> BoxFuture<'_, Result<Vec<DirEntry>>>;

    /// Value of an extended attribute, or `NoAttribute`.
    fn getxattr<'a>(&'a self, ino: Ino, name: XattrName<'a>) -> BoxFuture<'a, Result<Vec<u8>>>;

    /// Sets an extended attribute. `Exists` and `NoAttribute` by `how`; `TooBig` for more than 64
    /// KiB; `NoSpace` if the list of all names would exceed 64 KiB.
    fn setxattr<'a>(
        &'a self,
        ino: Ino,
        name: XattrName<'a>,
        value: &'a [u8],
        how: SetXattr,
    ) -> BoxFuture<'a, Result<()>>;

    /// The names of all extended attributes, in any order.
    fn listxattr(&self, ino: Ino) -> BoxFuture<'_, Result<Vec<Box<[u8]>>>>;

    /// Removes an extended attribute, or `NoAttribute`.
    fn removexattr<'a>(&'a self, ino: Ino, name: XattrName<'a>) -> BoxFuture<'a, Result<()>>;

    /// Opens an inode of any kind (F3). `IsDirectory` for a directory with `WRITE`; `InvalidInput`
    /// for `TRUNCATE` without `WRITE`. With `TRUNCATE` a regular file becomes empty, as by
    /// `setattr`.
    fn open(&self, ino: Ino, flags: OpenFlags) -> BoxFuture<'_, Result<OpenFileRef>>;

    /// [`FileSystem::open`], and the attributes and an extended attribute of the inode: in one
    /// step, if an implementation supports that.
    fn open_with_xattr<'a>(
        &'a self,
        ino: Ino,
        flags: OpenFlags,
        name: XattrName<'a>,
    ) -> BoxFuture<'a, Result<Opened>> {
        Box::pin(async move {
            let file = self.open(ino, flags).await?;
            let attr = self.getattr(ino).await?;
            Ok(Opened { file, attr, xattr: self.find_xattr(ino, name).await })
        })
    }

    /// [`FileSystem::create`], and an extended attribute of `dir`: in one step, if an
    /// implementation supports that.
    fn create_with_xattr<'a>(
        &'a self,
        dir: Ino,
        name: Name<'a>,
        new: &'a NewInode,
        flags: OpenFlags,
        xattr: XattrName<'a>,
    ) -> BoxFuture<'a, Result<Opened>> {
        Box::pin(async move {
            let (attr, file) = self.create(dir, name, new, flags).await?;
            Ok(Opened { file, attr, xattr: self.find_xattr(dir, xattr).await })
        })
    }

    /// Value of an extended attribute; `None` if there is none.
    fn find_xattr<'a>(
        &'a self,
        ino: Ino,
        name: XattrName<'a>,
    ) -> BoxFuture<'a, Result<Option<Vec<u8>>>> {
        Box::pin(async move {
            // Nearly all inodes have no attributes, and an empty list costs less than an error with
            // its text.
            let names = self.listxattr(ino).await?;
            if !names.iter().any(|known| **known == *name.as_bytes()) {
                return Ok(None);
            }
            match self.getxattr(ino, name).await {
                Err(e) if e.kind() == ErrorKind::NoAttribute => Ok(None),
                found => found.map(Some),
            }
        })
    }

    /// Makes everything durable that was done before this call.
    fn syncfs(&self) -> BoxFuture<'_, Result<()>>;
}

/// An open inode that is about to lose a name.
struct Held {
    file: OpenFileRef,
    /// The inode has no other name.
    is_last: bool,
}

/// Opens the inode of `name` if `keeps` says so. Also if the inode has other names, which another
/// request may remove first.
async fn hold<F: FileSystem + ?Sized>(
    fs: &F,
    dir: Ino,
    name: Name<'_>,
    keeps: KeepInode<'_>,
) -> Option<Held> {
    let attr = fs.lookup(dir, name).await.ok()?;
    if !keeps(attr.ino) {
        return None;
    }
    let file = fs.open(attr.ino, OpenFlags::empty()).await.ok()?;
    Some(Held { file, is_last: attr.nlink <= 1 || attr.kind == FileKind::Directory })
}

/// After the removal: the open inode, unless it has another name.
async fn kept<F: FileSystem + ?Sized>(fs: &F, held: Option<Held>) -> Result<Option<OpenFileRef>> {
    let Some(Held { file, is_last }) = held else { return Ok(None) };
    let is_kept = is_last || fs.getattr(file.ino()).await.is_ok_and(|attr| attr.nlink == 0);
    Ok(is_kept.then_some(file))
}

/// An open file: keeps its inode alive (F3), and reads and writes its content. Dropping the last
/// reference releases it and reports no errors: a caller that needs them calls [`OpenFile::sync`].
///
/// Errors of every call on content: `IsDirectory` for a directory, `InvalidInput` for another kind
/// that is not a regular file, `BadHandle` if the open flags do not permit the call.
pub trait OpenFile: Send + Sync {
    /// The inode.
    fn ino(&self) -> Ino;

    /// The flags of the opening.
    fn flags(&self) -> OpenFlags;

    /// Reads if that needs no waiting.
    fn try_read(&self, offset: u64, dst: &mut [u8], flags: IoFlags) -> Option<Result<usize>> {
        let _ = (offset, dst, flags);
        None
    }

    /// Reads up to `buf.len()` bytes; fewer only at the end of file, none beyond it.
    fn read(&self, offset: u64, buf: AlignedBuf, flags: IoFlags) -> BoxFuture<'_, ReadResult>;

    /// Writes if that needs no waiting.
    fn try_write(
        &self,
        offset: u64,
        src: &[u8],
        flags: IoFlags,
        privileges: Privileges,
    ) -> Option<Result<Wrote>> {
        let _ = (offset, src, flags, privileges);
        None
    }

    /// Writes `buf`; with `IoFlags::APPEND` at the end of file, whatever `offset` is, atomically
    /// with other appends. Stops at [`crate::types::FILE_SIZE_MAX`]; `FileTooLarge` if it begins
    /// there.
    fn write(
        &self,
        offset: u64,
        buf: AlignedBuf,
        flags: IoFlags,
        privileges: Privileges,
    ) -> BoxFuture<'_, WriteResult>;

    /// Synchronous `read`: the device may read directly into the caller's memory.
    fn read_slice(&self, offset: u64, dst: &mut [u8], flags: IoFlags) -> Result<usize> {
        match self.try_read(offset, dst, flags) {
            Some(done) => done,
            None => self.wait_read(offset, dst, flags),
        }
    }

    /// `read_slice` without a `try_read`, for a caller whose `try_read` has just returned `None`. A
    /// second `try_read` would advance the read-ahead window again, and not refill it.
    fn wait_read(&self, offset: u64, dst: &mut [u8], flags: IoFlags) -> Result<usize> {
        let (buf, done) = block_on(self.read(offset, AlignedBuf::new(dst.len()), flags));
        let len = done?;
        dst[..len].copy_from_slice(&buf[..len]);
        Ok(len)
    }

    /// Called before a synchronous caller inspects a range by another method than a read. Waits
    /// until stores into mappings of that range, which a mount holds back, are written.
    /// `WouldBlock` with `NOWAIT` if it has to wait.
    fn hand_over(&self, offset: u64, len: u64, flags: IoFlags) -> Result<()> {
        let _ = (offset, len, flags);
        Ok(())
    }

    /// Called after a caller has found holes in another way than by a seek. Waits until stores into
    /// mappings of these ranges, which a mount holds back, are written. True: there may have been
    /// some, so the ranges may be data now.
    fn hand_over_holes<'a>(&'a self, holes: &'a [Range<u64>]) -> BoxFuture<'a, bool> {
        let _ = holes;
        Box::pin(std::future::ready(false))
    }

    /// Synchronous `write`: the device may write directly from the caller's memory.
    fn write_slice(
        &self,
        offset: u64,
        src: &[u8],
        flags: IoFlags,
        privileges: Privileges,
    ) -> Result<Wrote> {
        match self.try_write(offset, src, flags, privileges) {
            Some(done) => done,
            None => self.wait_write(offset, src, flags, privileges),
        }
    }

    /// `write_slice` without a `try_write`, for a caller whose `try_write` has just returned
    /// `None`.
    fn wait_write(
        &self,
        offset: u64,
        src: &[u8],
        flags: IoFlags,
        privileges: Privileges,
    ) -> Result<Wrote> {
        block_on(self.write(offset, AlignedBuf::copy_of(src), flags, privileges)).1
    }

    /// Allocates or zeroes `[offset, offset + len)`. `InvalidInput` for no bytes, then `BadHandle`,
    /// then `FileTooLarge`. Drops privileges as a write does, unless told to keep them.
    fn fallocate(
        &self,
        how: Fallocate,
        offset: u64,
        len: u64,
        privileges: Privileges,
    ) -> BoxFuture<'_, Result<()>>;

    /// The first offset from `offset` on that may be data, or that is in a hole. `PastEnd` from the
    /// end of file on, and if no data follows. A range reported as data may be zeros; a range
    /// reported as a hole is. Data that is not written back yet is included.
    fn seek(&self, what: Seek, offset: u64) -> BoxFuture<'_, Result<u64>>;

    /// Makes everything durable that was done to this inode before: its content, and the metadata
    /// to find it, or with `data_only` false all its metadata. For a directory, its entries. If
    /// data was lost, it fails once for each opener.
    fn sync(&self, data_only: bool) -> BoxFuture<'_, Result<()>>;

    /// As `sync`, for a caller that polls it on threads that may wait for a device: polls may carry
    /// out I/O.
    fn sync_waiting(&self, data_only: bool) -> BoxFuture<'_, Result<()>> {
        self.sync(data_only)
    }

    /// Synchronous `sync`: I/O may be carried out on the calling thread.
    fn sync_here(&self, data_only: bool) -> Result<()> {
        block_on(self.sync_waiting(data_only))
    }
}
