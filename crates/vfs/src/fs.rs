//! The contract of a file system: a full POSIX tree, by inode number and name. No paths, no users.
//!
//! **Not here.** Rights (mode bits, sticky directories, who may chown, immutable inodes), umask,
//! file locks, `O_NOFOLLOW`, trailing slashes, `.` and `..` as names: the front end's business, on
//! a mount the kernel's (`default_permissions`). ACLs: `system.*` attributes are refused.
//!
//! Invariants: F1 a name is a [`Name`]; it denotes one entry, an entry one inode, and a directory
//! has one entry (the root none). The tree has no loops. F2 `nlink` counts the entries of an inode,
//! and for a directory is 2 plus the directories in it; a removed directory has 0. F3 an inode
//! without a name lives while an [`OpenFile`] of it does, with everything one can do to it by
//! number; then it and its content are gone, and its number is answered with `Stale`. Opening works
//! for every kind and with no flags: that only keeps it. F4 a listing goes on after the cookie it
//! is given. An entry that is there from the first call to the last is returned exactly once,
//! whatever else is made, renamed or removed meanwhile; a listing ends even if entries are made all
//! the time. F5 times: see below. F6 `rename` is one step, to a reader and after a crash. F7 a call
//! that fails has changed nothing. F8 what lies beyond what was ever written reads as zeros, also
//! after a shrink and a growth, and costs no storage.
//!
//! **Times.** "Now" is the file system's clock. `mtime` and `ctime` become now with a write of a
//! byte or more, a new size (also the same one), a fallocate; of a directory with each entry that
//! comes, goes or is replaced. `ctime` alone: any other attribute, extended attributes, a link more
//! or less, and of what a rename moves. A rename onto another link of the same inode, an empty
//! `SetAttr` and a write of no bytes change nothing. `atime`: a read, listing or readlink moves it
//! by [`crate::types::relatime`], or never where a volume is mounted `noatime`; it alone makes
//! nothing dirty that a sync would have to wait for.
//!
//! **Set-id bits** go ([`crate::types::without_set_id`]) with a change of owner or group, even to
//! the same, of anything but a directory; and with a write of a byte or more, a new size, a
//! fallocate, unless the caller says [`Privileges::Keep`]. `security.capability` goes with all of
//! these. Permission bits in the same `SetAttr` win.
//!
//! **Order of refusals.** `Stale` for an unknown inode, `NotDirectory` for a parent that is none,
//! `NotFound` for a directory that was removed; then as POSIX and Linux have it, see each call. Any
//! call may fail with `Io`, `Corrupt`, `NoMemory`, `Shutdown`; one that changes anything with
//! `ReadOnly` and `NoSpace`. Removing, truncating and syncing work on a full volume.
//!
//! **Waiting.** Futures may be dropped at any time; the call may still take effect then. `try_*`
//! finish without waiting and allocating or say `None`, having changed nothing.
//!
//! No locks: a contract.

use crate::name::{Name, XattrName};
use crate::types::{
    Attr, Cookie, DirEntry, Fallocate, Ino, NewInode, OpenFlags, Privileges, RenameFlags, Seek,
    SetAttr, SetXattr, StatFs,
};
use forebay_base::buf::AlignedBuf;
use forebay_base::task::{BoxFuture, block_on};
use forebay_base::{Error, ErrorKind, IoFlags, Result};
use std::ops::Range;
use std::sync::Arc;

/// A shared open file. The last clone that goes releases it (F3).
pub type OpenFileRef = Arc<dyn OpenFile>;
/// The buffer back, and how many bytes were read into it: fewer than its length only at the end.
pub type ReadResult = (AlignedBuf, Result<usize>);
/// The buffer back, and where its bytes went.
pub type WriteResult = (AlignedBuf, Result<Wrote>);

/// What a write did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wrote {
    /// Offset of the first byte; with `IoFlags::APPEND` the file system chose it.
    pub offset: u64,
    /// Bytes, from the start of the buffer on. Fewer than asked for only where room ran out, and
    /// at the end of the largest file.
    pub len: usize,
}

/// An opening, with what a front end needs of it at once.
pub struct Opened {
    /// The open file.
    pub file: OpenFileRef,
    /// Its attributes.
    pub attr: Attr,
    /// The value of the extended attribute that was asked for, if there is one.
    pub xattr: Result<Option<Vec<u8>>>,
}

/// A mounted file system.
pub trait FileSystem: Send + Sync {
    /// Its figures. True ones: what it says is available can be written.
    fn statfs(&self) -> BoxFuture<'_, Result<StatFs>>;

    /// The inode that `name` denotes in `dir`, or `NotFound`.
    fn lookup<'a>(&'a self, dir: Ino, name: Name<'a>) -> BoxFuture<'a, Result<Attr>>;

    /// The directory that `dir` is in; the root's is the root. `NotFound` if `dir` was removed.
    fn parent(&self, dir: Ino) -> BoxFuture<'_, Result<Ino>>;

    /// Attributes.
    fn getattr(&self, ino: Ino) -> BoxFuture<'_, Result<Attr>>;

    /// Those of each of some inodes, as they stand together in a listing: many of its others are
    /// asked for next.
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
    /// what is no regular file, `FileTooLarge` beyond [`crate::types::FILE_SIZE_MAX`]. A mode:
    /// `Unsupported` for a symbolic link.
    fn setattr<'a>(&'a self, ino: Ino, set: &'a SetAttr) -> BoxFuture<'a, Result<Attr>>;

    /// Makes a regular file, pipe, socket or device. `InvalidInput` for the other kinds, `Exists`
    /// if the name is taken.
    fn mknod<'a>(
        &'a self,
        dir: Ino,
        name: Name<'a>,
        new: &'a NewInode,
    ) -> BoxFuture<'a, Result<Attr>>;

    /// Makes a directory; `new.kind` is not looked at. `Exists`, then `TooManyLinks` for `dir`.
    fn mkdir<'a>(
        &'a self,
        dir: Ino,
        name: Name<'a>,
        new: &'a NewInode,
    ) -> BoxFuture<'a, Result<Attr>>;

    /// Makes a symbolic link to `target`: any bytes but NUL. `NotFound` for none,
    /// `NameTooLong` for more than [`crate::types::SYMLINK_MAX`]. Its permission bits are 0o777.
    fn symlink<'a>(
        &'a self,
        dir: Ino,
        name: Name<'a>,
        target: &'a [u8],
        new: &'a NewInode,
    ) -> BoxFuture<'a, Result<Attr>>;

    /// Makes a regular file and opens it, in one step. A name that is taken: `Exists` with
    /// `OpenFlags::EXCLUSIVE`, else `SymlinkLoop` for a symbolic link and `IsDirectory` for a
    /// directory; anything else is opened as by [`FileSystem::open`].
    fn create<'a>(
        &'a self,
        dir: Ino,
        name: Name<'a>,
        new: &'a NewInode,
        flags: OpenFlags,
    ) -> BoxFuture<'a, Result<(Attr, OpenFileRef)>>;

    /// Makes a regular file without a name, for which [`FileSystem::link`] may find one later
    /// unless `OpenFlags::EXCLUSIVE` is given (`O_TMPFILE`). An implementation may lack it:
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

    /// One more name for `ino`. `Exists`, `NotPermitted` for a directory, `NotFound` for an inode
    /// that has lost its last name, `TooManyLinks`.
    fn link<'a>(&'a self, ino: Ino, dir: Ino, name: Name<'a>) -> BoxFuture<'a, Result<Attr>>;

    /// Removes a name. `IsDirectory` for one of a directory.
    fn unlink<'a>(&'a self, dir: Ino, name: Name<'a>) -> BoxFuture<'a, Result<()>>;

    /// Removes an empty directory. `NotDirectory`, `NotEmpty`.
    fn rmdir<'a>(&'a self, dir: Ino, name: Name<'a>) -> BoxFuture<'a, Result<()>>;

    /// Moves an entry, in this order of refusals: the flags; `NotFound` without the old name; with
    /// `NOREPLACE` `Exists`; with `EXCHANGE` `NotFound` without the new name; `InvalidInput` for a
    /// directory into itself or below itself, with `EXCHANGE` from either side; `NotEmpty` onto a
    /// directory that the old one lies below; success without a change if both names denote the
    /// same inode; `NotDirectory` for a directory onto something else, `IsDirectory` the other way
    /// round, `NotEmpty`; `TooManyLinks` for the new parent. What was at the new name loses it as
    /// by unlink or rmdir.
    fn rename<'a>(
        &'a self,
        dir: Ino,
        name: Name<'a>,
        new_dir: Ino,
        new_name: Name<'a>,
        flags: RenameFlags,
    ) -> BoxFuture<'a, Result<()>>;

    /// Target of a symbolic link; `InvalidInput` for anything else.
    fn readlink(&self, ino: Ino) -> BoxFuture<'_, Result<Vec<u8>>>;

    /// Up to `max` (1 or more) entries of `dir` after `after`; an empty list: that was the last
    /// (F4). Without `.` and `..`. Cookies are in the order of the listing and valid as long as
    /// their entry exists, for each caller; any number may be given as `after`.
    fn readdir(&self, dir: Ino, after: Cookie, max: usize) -> BoxFuture<'_, Result<Vec<DirEntry>>>;

    /// Value of an extended attribute, or `NoAttribute`.
    fn getxattr<'a>(&'a self, ino: Ino, name: XattrName<'a>) -> BoxFuture<'a, Result<Vec<u8>>>;

    /// Sets one. `Exists` and `NoAttribute` by `how`; `TooBig` for more than 64 KiB; `NoSpace`
    /// where the list of all names would be longer than 64 KiB.
    fn setxattr<'a>(
        &'a self,
        ino: Ino,
        name: XattrName<'a>,
        value: &'a [u8],
        how: SetXattr,
    ) -> BoxFuture<'a, Result<()>>;

    /// The names of all, in any order.
    fn listxattr(&self, ino: Ino) -> BoxFuture<'_, Result<Vec<Box<[u8]>>>>;

    /// Removes one, or `NoAttribute`.
    fn removexattr<'a>(&'a self, ino: Ino, name: XattrName<'a>) -> BoxFuture<'a, Result<()>>;

    /// Opens an inode of any kind (F3). `IsDirectory` for a directory with `WRITE`; `InvalidInput`
    /// for `TRUNCATE` without `WRITE`. With `TRUNCATE` a regular file becomes empty, as by
    /// `setattr`.
    fn open(&self, ino: Ino, flags: OpenFlags) -> BoxFuture<'_, Result<OpenFileRef>>;

    /// [`FileSystem::open`], and the attributes and an extended attribute of the inode: one step,
    /// if an implementation can.
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

    /// [`FileSystem::create`], and an extended attribute of `dir`: one step, if an implementation
    /// can.
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

    /// Value of an extended attribute, if there is one.
    fn find_xattr<'a>(
        &'a self,
        ino: Ino,
        name: XattrName<'a>,
    ) -> BoxFuture<'a, Result<Option<Vec<u8>>>> {
        Box::pin(async move {
            // Nearly all inodes have none: an empty list costs less than an error with its words.
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

    /// Everything that was done before this call is durable after it.
    fn syncfs(&self) -> BoxFuture<'_, Result<()>>;
}

/// An open file: keeps its inode (F3), and is where content is read and written. Dropping the last
/// reference releases it and reports nothing: who wants to know of errors calls [`OpenFile::sync`].
///
/// Every call on content: `IsDirectory` for a directory, `InvalidInput` for another kind that is no
/// regular file, `BadHandle` if it was not opened for that.
pub trait OpenFile: Send + Sync {
    /// Which inode.
    fn ino(&self) -> Ino;

    /// How it was opened.
    fn flags(&self) -> OpenFlags;

    /// Reads if no waiting is needed.
    fn try_read(&self, offset: u64, dst: &mut [u8], flags: IoFlags) -> Option<Result<usize>> {
        let _ = (offset, dst, flags);
        None
    }

    /// Reads up to `buf.len()` bytes; fewer only at the end, none beyond it.
    fn read(&self, offset: u64, buf: AlignedBuf, flags: IoFlags) -> BoxFuture<'_, ReadResult>;

    /// Writes if no waiting is needed.
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

    /// Writes `buf`; with `IoFlags::APPEND` at the end, whatever `offset` says, atomically with
    /// other appends. Ends at [`crate::types::FILE_SIZE_MAX`] at the latest; `FileTooLarge` for one
    /// that begins there.
    fn write(
        &self,
        offset: u64,
        buf: AlignedBuf,
        flags: IoFlags,
        privileges: Privileges,
    ) -> BoxFuture<'_, WriteResult>;

    /// `read` for a caller that blocks: the device may borrow its memory.
    fn read_slice(&self, offset: u64, dst: &mut [u8], flags: IoFlags) -> Result<usize> {
        match self.try_read(offset, dst, flags) {
            Some(done) => done,
            None => self.wait_read(offset, dst, flags),
        }
    }

    /// `read_slice` without a `try_read`, for a caller whose own has just returned `None`. A second
    /// one would find a window of read-ahead moved on, and not top it up.
    fn wait_read(&self, offset: u64, dst: &mut [u8], flags: IoFlags) -> Result<usize> {
        let (buf, done) = block_on(self.read(offset, AlignedBuf::new(dst.len()), flags));
        let len = done?;
        dst[..len].copy_from_slice(&buf[..len]);
        Ok(len)
    }

    /// Before a caller that blocks looks at a range in another way than by a read: waits for stores
    /// that a mount holds back of it. Error: `WouldBlock` with `NOWAIT` if it has to wait.
    fn hand_over(&self, offset: u64, len: u64, flags: IoFlags) -> Result<()> {
        let _ = (offset, len, flags);
        Ok(())
    }

    /// After a caller found holes of the file in another way than by a seek: waits for stores that a
    /// mount holds back of these ranges. True: there may have been some, so that they are data now.
    fn hand_over_holes<'a>(&'a self, holes: &'a [Range<u64>]) -> BoxFuture<'a, bool> {
        let _ = holes;
        Box::pin(std::future::ready(false))
    }

    /// `write` for a caller that blocks: the device may borrow its memory.
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

    /// `write_slice` without a `try_write`, for a caller whose own has just returned `None`.
    fn wait_write(
        &self,
        offset: u64,
        src: &[u8],
        flags: IoFlags,
        privileges: Privileges,
    ) -> Result<Wrote> {
        block_on(self.write(offset, AlignedBuf::copy_of(src), flags, privileges)).1
    }

    /// Prepares or zeroes `[offset, offset + len)`. `InvalidInput` for no bytes, then `BadHandle`,
    /// then `FileTooLarge`. Drops privileges as a write does unless told to keep them.
    fn fallocate(
        &self,
        how: Fallocate,
        offset: u64,
        len: u64,
        privileges: Privileges,
    ) -> BoxFuture<'_, Result<()>>;

    /// The first offset from `offset` on that may be data, or that is in a hole. `PastEnd` from the
    /// end of the file on, and where no data follows. What is called data may be zeros, what is
    /// called a hole is. Sees data that is not written out yet.
    fn seek(&self, what: Seek, offset: u64) -> BoxFuture<'_, Result<u64>>;

    /// Makes everything durable that was done to this inode before: its content, and the metadata
    /// to find it, or with `data_only` false all its metadata. For a directory, its entries. Fails
    /// once for each opener if anything was lost.
    fn sync(&self, data_only: bool) -> BoxFuture<'_, Result<()>>;

    /// As `sync`, for who polls it on threads that may wait for a device: polls may carry out I/O.
    fn sync_waiting(&self, data_only: bool) -> BoxFuture<'_, Result<()>> {
        self.sync(data_only)
    }

    /// As `sync`, for a caller that blocks: I/O may be carried out on its thread.
    fn sync_here(&self, data_only: bool) -> Result<()> {
        block_on(self.sync_waiting(data_only))
    }
}
