//! An export as a file system with one file, for a loop device on that file.
//!
//! Invariants: O1 the file always has the size of the export. O2 `DIRECT` of an opening concerns
//! the kernel's cache, not Forebay's: the mode of the export decides whether Forebay's is used.
//!
//! No locks.

use crate::export::{Export, ZeroMode};
use crate::fs::{FileSystem, OpenFile, OpenFileRef, ReadResult, WriteResult, Wrote};
use crate::name::{Name, XattrName};
use crate::types::{
    Attr, Cookie, DirEntry, Fallocate, FileKind, Ino, OpenFlags, Privileges, Seek, StatFs,
    Timestamp,
};
use forebay_base::buf::AlignedBuf;
use forebay_base::task::BoxFuture;
use forebay_base::{Error, ErrorKind, IoFlags, Result};
use std::sync::Arc;

/// Name of the file.
pub const NAME: &str = "disk";
const FILE: Ino = Ino(2);

/// A file system with one file, the export.
pub struct Disk {
    export: Arc<dyn Export>,
    made: Timestamp,
}

impl Disk {
    /// A file system for an export; all timestamps are `made`.
    pub fn new(export: Arc<dyn Export>, made: Timestamp) -> Self {
        Self { export, made }
    }

    fn attr(&self, ino: Ino) -> Result<Attr> {
        let info = self.export.info();
        let (kind, perm, nlink, size) = match ino {
            Ino::ROOT => (FileKind::Directory, 0o500, 2, 0),
            FILE if info.read_only => (FileKind::File, 0o400, 1, info.size),
            FILE => (FileKind::File, 0o600, 1, info.size),
            _ => return Err(Error::new(ErrorKind::Stale, "look at", format!("{ino:?}"))),
        };
        let t = self.made;
        Ok(Attr {
            ino,
            generation: 0,
            kind,
            perm,
            nlink,
            uid: 0,
            gid: 0,
            rdev: 0,
            size,
            allocated_bytes: size,
            atime: t,
            mtime: t,
            ctime: t,
            btime: t,
        })
    }
}

fn no(op: &'static str) -> Error {
    Error::new(ErrorKind::Unsupported, op, "the only file of an export is fixed")
}

fn now<'a, T: Send + 'a>(done: Result<T>) -> BoxFuture<'a, Result<T>> {
    Box::pin(std::future::ready(done))
}

impl FileSystem for Disk {
    crate::delegate_file_system!(
        (no)
        setattr mknod mkdir symlink create link unlink rmdir rename readlink setxattr removexattr
    );

    fn statfs(&self) -> BoxFuture<'_, Result<StatFs>> {
        now(Ok(StatFs {
            block_size: 4096,
            blocks: self.export.size().div_ceil(4096),
            blocks_free: 0,
            blocks_available: 0,
            files: 2,
            files_free: 0,
            name_max: NAME.len() as u32,
        }))
    }

    fn lookup<'a>(&'a self, dir: Ino, name: Name<'a>) -> BoxFuture<'a, Result<Attr>> {
        now(match dir == Ino::ROOT && name.as_bytes() == NAME.as_bytes() {
            true => self.attr(FILE),
            false => Err(Error::new(ErrorKind::NotFound, "lookup", format!("`{name}`"))),
        })
    }

    fn parent(&self, _: Ino) -> BoxFuture<'_, Result<Ino>> {
        now(Ok(Ino::ROOT))
    }

    fn getattr(&self, ino: Ino) -> BoxFuture<'_, Result<Attr>> {
        now(self.attr(ino))
    }

    fn readdir(&self, dir: Ino, after: Cookie, _: usize) -> BoxFuture<'_, Result<Vec<DirEntry>>> {
        let entry = DirEntry {
            cookie: Cookie::FIRST,
            ino: FILE,
            kind: FileKind::File,
            name: NAME.as_bytes().into(),
        };
        now(match dir {
            Ino::ROOT if after < entry.cookie => Ok(vec![entry]),
            Ino::ROOT => Ok(Vec::new()),
            _ => Err(Error::new(ErrorKind::NotDirectory, "list", format!("{dir:?}"))),
        })
    }

    fn getxattr<'a>(&'a self, _: Ino, _: XattrName<'a>) -> BoxFuture<'a, Result<Vec<u8>>> {
        now(Err(Error::new(ErrorKind::NoAttribute, "getxattr", "there are none")))
    }

    fn listxattr(&self, _: Ino) -> BoxFuture<'_, Result<Vec<Box<[u8]>>>> {
        now(Ok(Vec::new()))
    }

    fn open(&self, ino: Ino, flags: OpenFlags) -> BoxFuture<'_, Result<OpenFileRef>> {
        let changes = flags.contains(OpenFlags::WRITE);
        now(match self.attr(ino) {
            Err(e) => Err(e),
            Ok(_) if flags.contains(OpenFlags::TRUNCATE) => Err(no("truncate")),
            Ok(_) if changes && self.export.info().read_only => {
                Err(Error::new(ErrorKind::ReadOnly, "open", "served to be read only"))
            }
            Ok(_) => {
                let export = self.export.for_client().unwrap_or_else(|| self.export.clone());
                let file: OpenFileRef = Arc::new(Opened { export, ino, flags });
                Ok(file)
            }
        })
    }

    fn syncfs(&self) -> BoxFuture<'_, Result<()>> {
        self.export.clone().flush()
    }
}

/// The open file, or the open directory.
struct Opened {
    export: Arc<dyn Export>,
    ino: Ino,
    flags: OpenFlags,
}

impl Opened {
    /// Number of bytes of a read that lie before the end of the file. Errors: `IsDirectory` for the
    /// directory, `BadHandle`.
    fn readable(&self, offset: u64, len: usize) -> Result<usize> {
        self.check("read", OpenFlags::READ)?;
        let left = self.export.size().saturating_sub(offset);
        Ok(len.min(usize::try_from(left).unwrap_or(usize::MAX)))
    }

    fn check(&self, op: &'static str, flags: OpenFlags) -> Result<()> {
        match (self.ino, self.flags.contains(flags)) {
            (FILE, true) => Ok(()),
            (FILE, false) => Err(Error::new(ErrorKind::BadHandle, op, "not opened for that")),
            _ => Err(Error::new(ErrorKind::IsDirectory, op, "the root")),
        }
    }

    /// Checks that a range to change lies within the size (O1).
    fn check_range(&self, op: &'static str, offset: u64, len: u64) -> Result<()> {
        self.check(op, OpenFlags::WRITE)?;
        match offset.checked_add(len).is_some_and(|end| end <= self.export.size()) {
            true => Ok(()),
            false => {
                Err(Error::new(ErrorKind::NoSpace, op, "past the end").with_range(offset, len))
            }
        }
    }
}

/// The flags that are passed to the export (O2).
fn passed(flags: IoFlags) -> IoFlags {
    flags - (IoFlags::DIRECT | IoFlags::FALLBACK)
}

impl OpenFile for Opened {
    fn ino(&self) -> Ino {
        self.ino
    }

    fn flags(&self) -> OpenFlags {
        self.flags
    }

    fn try_read(&self, offset: u64, dst: &mut [u8], flags: IoFlags) -> Option<Result<usize>> {
        match self.readable(offset, dst.len()) {
            Err(e) => Some(Err(e)),
            Ok(0) => Some(Ok(0)),
            Ok(len) => {
                let done = self.export.try_read(offset, &mut dst[..len], passed(flags))?;
                Some(done.map(|()| len))
            }
        }
    }

    fn read(&self, offset: u64, mut buf: AlignedBuf, flags: IoFlags) -> BoxFuture<'_, ReadResult> {
        Box::pin(async move {
            let len = match self.readable(offset, buf.len()) {
                Err(e) => return (buf, Err(e)),
                Ok(0) => return (buf, Ok(0)),
                Ok(len) => len,
            };
            if len == buf.len() {
                let (buf, done) = self.export.clone().read(offset, buf, passed(flags)).await;
                return (buf, done.map(|()| len));
            }
            // The range crosses the end, and exports refuse such requests.
            let part = AlignedBuf::new(len);
            let (part, done) = self.export.clone().read(offset, part, passed(flags)).await;
            buf[..len].copy_from_slice(&part);
            (buf, done.map(|()| len))
        })
    }

    fn try_write(
        &self,
        offset: u64,
        src: &[u8],
        flags: IoFlags,
        _: Privileges,
    ) -> Option<Result<Wrote>> {
        if let Err(e) = self.check_range("write", offset, src.len() as u64) {
            return Some(Err(e));
        }
        let done = self.export.try_write(offset, src, passed(flags))?;
        Some(done.map(|()| Wrote { offset, len: src.len() }))
    }

    fn write(
        &self,
        offset: u64,
        buf: AlignedBuf,
        flags: IoFlags,
        _: Privileges,
    ) -> BoxFuture<'_, WriteResult> {
        Box::pin(async move {
            let len = buf.len();
            if let Err(e) = self.check_range("write", offset, len as u64) {
                return (buf, Err(e));
            }
            let (buf, done) = self.export.clone().write(offset, buf, passed(flags)).await;
            (buf, done.map(|()| Wrote { offset, len }))
        })
    }

    fn fallocate(
        &self,
        how: Fallocate,
        offset: u64,
        len: u64,
        _: Privileges,
    ) -> BoxFuture<'_, Result<()>> {
        if let Err(e) = self.check_range("fallocate", offset, len) {
            return now(Err(e));
        }
        let export = self.export.clone();
        match how {
            Fallocate::Allocate { .. } => now(Ok(())),
            Fallocate::PunchHole => export.zero(offset, len, ZeroMode::default()),
            Fallocate::ZeroRange { .. } => {
                export.zero(offset, len, ZeroMode { keep_allocated: true, ..ZeroMode::default() })
            }
        }
    }

    fn seek(&self, what: Seek, offset: u64) -> BoxFuture<'_, Result<u64>> {
        let size = self.export.size();
        now(match what {
            _ if offset >= size => Err(Error::new(ErrorKind::PastEnd, "seek", "past the end")),
            Seek::Data => Ok(offset),
            Seek::Hole => Ok(size),
        })
    }

    fn sync(&self, _: bool) -> BoxFuture<'_, Result<()>> {
        self.export.clone().flush()
    }
}
