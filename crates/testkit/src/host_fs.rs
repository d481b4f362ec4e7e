//! The host's own file system behind the contract, with one of its directories as the root. Uses
//! system calls on `O_PATH` descriptors, so that inodes have numbers and stay while they are
//! needed.
//!
//! Not passed on to the host: syncs (no test cuts the power here) and cookies (here they are
//! positions in one listing).
//!
//! Open files are in [`file`].
//!
//! Locks: one for the table of descriptors; not held across system calls that may wait.

use forebay_base::task::BoxFuture;
use forebay_base::{ErrorKind, Result};
use forebay_vfs::fs::{FileSystem, OpenFileRef};
use forebay_vfs::{
    Attr, Cookie, DirEntry, FileKind, Ino, Name, NewInode, OpenFlags, RenameFlags, SetAttr,
    SetTime, SetXattr, StatFs, XattrName,
};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, XattrFlags};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

mod descriptors;
mod file;

use descriptors::{Shared, fail, kind_of, open_bits, proc_path, refuse, stat};
use file::HostFile;

/// A directory of the host as a file system. Removed with everything in it on drop.
pub struct HostFs {
    shared: Arc<Shared>,
    folder: PathBuf,
}

impl HostFs {
    /// An empty directory in `parent`.
    pub fn new(parent: &Path, name: &str) -> Self {
        let folder = parent.join(format!("forebay-vfs-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir(&folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
        let root = rustix::fs::open(&folder, OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
        let root = Arc::new(root.unwrap());
        rustix::fs::chmod(&folder, Mode::from_raw_mode(0o755)).unwrap();
        let root_number = stat(&root).unwrap().stx_ino;
        let shared = Shared { root, root_number, table: Mutex::default() };
        Self { shared: Arc::new(shared), folder }
    }

    fn child(&self, dir: Ino, name: Name<'_>) -> Result<Attr> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let dir = self.shared.fd(dir)?;
        let fd = rustix::fs::openat(&dir, name.as_bytes(), flags, Mode::empty());
        self.shared.know(fd.map_err(|e| fail("lookup", e))?)
    }

    /// Gives a new inode the owner and the permissions that the contract says.
    fn adopt(&self, dir: Ino, name: Name<'_>, new: &NewInode) -> Result<Attr> {
        let attr = self.child(dir, name)?;
        let fd = self.shared.fd(attr.ino)?;
        self.own(&fd, dir, new)?;
        self.shared.attr(&fd)
    }

    fn own(&self, fd: &OwnedFd, dir: Ino, new: &NewInode) -> Result<()> {
        let parent = self.shared.attr(&*self.shared.fd(dir)?)?;
        let (gid, perm) = new.inherit((parent.gid, parent.perm));
        let (uid, gid) = (rustix::fs::Uid::from_raw(new.uid), rustix::fs::Gid::from_raw(gid));
        rustix::fs::chownat(fd, "", Some(uid), Some(gid), AtFlags::EMPTY_PATH)
            .map_err(|e| fail("chown", e))?;
        if new.kind == FileKind::Symlink {
            return Ok(());
        }
        let mode = Mode::from_raw_mode(perm.into());
        rustix::fs::chmod(proc_path(fd), mode).map_err(|e| fail("chmod", e))
    }

    fn opened(&self, ino: Ino, fd: OwnedFd, flags: OpenFlags) -> OpenFileRef {
        self.shared.count(ino, true);
        Arc::new(HostFile { shared: self.shared.clone(), ino, fd, flags })
    }

    fn open_now(&self, ino: Ino, flags: OpenFlags) -> Result<OpenFileRef> {
        let fd = self.shared.fd(ino)?;
        if flags.contains(OpenFlags::TRUNCATE) && !flags.contains(OpenFlags::WRITE) {
            // Unspecified on the host.
            return refuse(ErrorKind::InvalidInput, "open");
        }
        let plain = matches!(kind_of(&fd)?, FileKind::File | FileKind::Directory);
        let own = match plain {
            true => rustix::fs::open(proc_path(&fd), open_bits(flags), Mode::empty()),
            false => rustix::io::dup(&*fd),
        };
        Ok(self.opened(ino, own.map_err(|e| fail("open", e))?, flags))
    }

    fn create_now(
        &self,
        dir: Ino,
        name: Name<'_>,
        new: &NewInode,
        flags: OpenFlags,
    ) -> Result<(Attr, OpenFileRef)> {
        let there = self.child(dir, name);
        if let Ok(attr) = &there
            && !flags.contains(OpenFlags::EXCLUSIVE)
        {
            // Without O_CREAT: with it, fs.protected_regular and the like refuse some files in
            // sticky directories. The contract checks no permissions.
            match attr.kind {
                FileKind::Directory => return refuse(ErrorKind::IsDirectory, "create"),
                FileKind::Symlink => return refuse(ErrorKind::SymlinkLoop, "create"),
                _ => {}
            }
            let file = self.open_now(attr.ino, flags)?;
            return Ok((self.shared.attr(&*self.shared.fd(attr.ino)?)?, file));
        }
        let exclusive = flags.contains(OpenFlags::EXCLUSIVE);
        let more = if exclusive { OFlags::EXCL } else { OFlags::empty() };
        let bits = open_bits(flags) | OFlags::CREATE | OFlags::NOFOLLOW | more;
        let parent = self.shared.fd(dir)?;
        let fd = rustix::fs::openat(&parent, name.as_bytes(), bits, Mode::from_raw_mode(0o600))
            .map_err(|e| fail("create", e))?;
        let attr = self.adopt(dir, name, &NewInode { kind: FileKind::File, ..*new })?;
        Ok((attr, self.opened(attr.ino, fd, flags)))
    }

    fn set(&self, ino: Ino, set: &SetAttr) -> Result<Attr> {
        let fd = self.shared.fd(ino)?;
        let kind = kind_of(&fd)?;
        if let Some(size) = set.size {
            match kind {
                FileKind::File => {}
                FileKind::Directory => return refuse(ErrorKind::IsDirectory, "truncate"),
                _ => return refuse(ErrorKind::InvalidInput, "truncate"),
            }
            let own = rustix::fs::open(proc_path(&fd), OFlags::WRONLY, Mode::empty());
            let own = own.map_err(|e| fail("truncate", e))?;
            rustix::fs::ftruncate(own, size).map_err(|e| fail("truncate", e))?;
        }
        if set.perm.is_some() && kind == FileKind::Symlink {
            return refuse(ErrorKind::Unsupported, "chmod");
        }
        if set.uid.is_some() || set.gid.is_some() {
            let uid = set.uid.map(rustix::fs::Uid::from_raw);
            let gid = set.gid.map(rustix::fs::Gid::from_raw);
            rustix::fs::chownat(&fd, "", uid, gid, AtFlags::EMPTY_PATH)
                .map_err(|e| fail("chown", e))?;
        }
        if let Some(perm) = set.perm {
            let mode = Mode::from_raw_mode(perm.into());
            rustix::fs::chmod(proc_path(&fd), mode).map_err(|e| fail("chmod", e))?;
        }
        if set.atime.is_some() || set.mtime.is_some() {
            let spec = |time: Option<SetTime>| match time {
                None => rustix::fs::Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_OMIT },
                Some(SetTime::Now) => {
                    rustix::fs::Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_NOW }
                }
                Some(SetTime::To(t)) => {
                    rustix::fs::Timespec { tv_sec: t.sec, tv_nsec: t.nsec.into() }
                }
            };
            let times = rustix::fs::Timestamps {
                last_access: spec(set.atime),
                last_modification: spec(set.mtime),
            };
            rustix::fs::utimensat(&fd, "", &times, AtFlags::EMPTY_PATH)
                .map_err(|e| fail("utimens", e))?;
        }
        self.shared.attr(&fd)
    }

    fn list(&self, dir: Ino, after: Cookie, max: usize) -> Result<Vec<DirEntry>> {
        let fd = self.shared.fd(dir)?;
        if kind_of(&fd)? != FileKind::Directory {
            return refuse(ErrorKind::NotDirectory, "readdir");
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let own = rustix::fs::openat(&fd, ".", flags, Mode::empty());
        let own = own.map_err(|e| fail("readdir", e))?;
        let mut all = Vec::new();
        for entry in rustix::fs::Dir::read_from(own).map_err(|e| fail("readdir", e))? {
            let entry = entry.map_err(|e| fail("readdir", e))?;
            let name = entry.file_name().to_bytes();
            if matches!(name, b"." | b"..") {
                continue;
            }
            all.push(DirEntry {
                cookie: Cookie(Cookie::FIRST.0 + all.len() as u64),
                ino: self.shared.number(entry.ino()),
                kind: match entry.file_type() {
                    FileType::RegularFile => FileKind::File,
                    FileType::Directory => FileKind::Directory,
                    FileType::Symlink => FileKind::Symlink,
                    FileType::Fifo => FileKind::Fifo,
                    FileType::Socket => FileKind::Socket,
                    FileType::CharacterDevice => FileKind::CharDevice,
                    FileType::BlockDevice => FileKind::BlockDevice,
                    FileType::Unknown => panic!("the host does not say kinds in listings"),
                },
                name: name.into(),
            });
        }
        Ok(all.into_iter().filter(|entry| entry.cookie > after).take(max).collect())
    }

    fn call<'a, T: Send + 'a>(
        &'a self,
        op: impl FnOnce(&Self) -> Result<T> + Send + 'a,
    ) -> BoxFuture<'a, Result<T>> {
        Box::pin(async move { op(self) })
    }
}

impl Drop for HostFs {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

impl FileSystem for HostFs {
    fn statfs(&self) -> BoxFuture<'_, Result<StatFs>> {
        self.call(|_| refuse(ErrorKind::Unsupported, "statfs"))
    }

    fn lookup<'a>(&'a self, dir: Ino, name: Name<'a>) -> BoxFuture<'a, Result<Attr>> {
        self.call(move |fs| fs.child(dir, name))
    }

    fn parent(&self, dir: Ino) -> BoxFuture<'_, Result<Ino>> {
        self.call(move |fs| {
            if dir == Ino::ROOT {
                return Ok(dir);
            }
            let flags = OFlags::PATH | OFlags::CLOEXEC;
            let up = rustix::fs::openat(&*fs.shared.fd(dir)?, "..", flags, Mode::empty());
            Ok(fs.shared.attr(&up.map_err(|e| fail("parent", e))?)?.ino)
        })
    }

    fn getattr(&self, ino: Ino) -> BoxFuture<'_, Result<Attr>> {
        self.call(move |fs| {
            let attr = fs.shared.attr(&*fs.shared.fd(ino)?)?;
            match attr.nlink == 0 && !fs.shared.is_open(ino) {
                true => refuse(ErrorKind::Stale, "getattr"),
                false => Ok(attr),
            }
        })
    }

    fn setattr<'a>(&'a self, ino: Ino, set: &'a SetAttr) -> BoxFuture<'a, Result<Attr>> {
        self.call(move |fs| fs.set(ino, set))
    }

    fn mknod<'a>(
        &'a self,
        dir: Ino,
        name: Name<'a>,
        new: &'a NewInode,
    ) -> BoxFuture<'a, Result<Attr>> {
        self.call(move |fs| {
            let kind = FileType::from_raw_mode(new.kind.mode_bits());
            let (parent, mode) = (fs.shared.fd(dir)?, Mode::from_raw_mode(0o600));
            rustix::fs::mknodat(&parent, name.as_bytes(), kind, mode, new.rdev.into())
                .map_err(|e| fail("mknod", e))?;
            fs.adopt(dir, name, new)
        })
    }

    fn mkdir<'a>(
        &'a self,
        dir: Ino,
        name: Name<'a>,
        new: &'a NewInode,
    ) -> BoxFuture<'a, Result<Attr>> {
        self.call(move |fs| {
            let parent = fs.shared.fd(dir)?;
            rustix::fs::mkdirat(&parent, name.as_bytes(), Mode::from_raw_mode(0o700))
                .map_err(|e| fail("mkdir", e))?;
            fs.adopt(dir, name, &NewInode { kind: FileKind::Directory, ..*new })
        })
    }

    fn symlink<'a>(
        &'a self,
        dir: Ino,
        name: Name<'a>,
        target: &'a [u8],
        new: &'a NewInode,
    ) -> BoxFuture<'a, Result<Attr>> {
        self.call(move |fs| {
            rustix::fs::symlinkat(target, &*fs.shared.fd(dir)?, name.as_bytes())
                .map_err(|e| fail("symlink", e))?;
            fs.adopt(dir, name, &NewInode { kind: FileKind::Symlink, ..*new })
        })
    }

    fn create<'a>(
        &'a self,
        dir: Ino,
        name: Name<'a>,
        new: &'a NewInode,
        flags: OpenFlags,
    ) -> BoxFuture<'a, Result<(Attr, OpenFileRef)>> {
        self.call(move |fs| fs.create_now(dir, name, new, flags))
    }

    fn tmpfile<'a>(
        &'a self,
        dir: Ino,
        new: &'a NewInode,
        flags: OpenFlags,
    ) -> BoxFuture<'a, Result<(Attr, OpenFileRef)>> {
        self.call(move |fs| {
            let exclusive = flags.contains(OpenFlags::EXCLUSIVE);
            let more = if exclusive { OFlags::EXCL } else { OFlags::empty() };
            let bits = open_bits(flags) | OFlags::TMPFILE | more;
            let parent = fs.shared.fd(dir)?;
            let fd = rustix::fs::openat(&parent, ".", bits, Mode::from_raw_mode(0o600))
                .map_err(|e| fail("tmpfile", e))?;
            fs.own(&fd, dir, new)?;
            let attr = fs.shared.know(rustix::io::dup(&fd).map_err(|e| fail("tmpfile", e))?)?;
            Ok((attr, fs.opened(attr.ino, fd, flags)))
        })
    }

    fn link<'a>(&'a self, ino: Ino, dir: Ino, name: Name<'a>) -> BoxFuture<'a, Result<Attr>> {
        self.call(move |fs| {
            let (fd, parent) = (fs.shared.fd(ino)?, fs.shared.fd(dir)?);
            let follow = AtFlags::SYMLINK_FOLLOW;
            rustix::fs::linkat(rustix::fs::CWD, proc_path(&fd), &parent, name.as_bytes(), follow)
                .map_err(|e| fail("link", e))?;
            fs.shared.attr(&fd)
        })
    }

    fn unlink<'a>(&'a self, dir: Ino, name: Name<'a>) -> BoxFuture<'a, Result<()>> {
        self.call(move |fs| {
            rustix::fs::unlinkat(&*fs.shared.fd(dir)?, name.as_bytes(), AtFlags::empty())
                .map_err(|e| fail("unlink", e))
        })
    }

    fn rmdir<'a>(&'a self, dir: Ino, name: Name<'a>) -> BoxFuture<'a, Result<()>> {
        self.call(move |fs| {
            rustix::fs::unlinkat(&*fs.shared.fd(dir)?, name.as_bytes(), AtFlags::REMOVEDIR)
                .map_err(|e| fail("rmdir", e))
        })
    }

    fn rename<'a>(
        &'a self,
        dir: Ino,
        name: Name<'a>,
        new_dir: Ino,
        new_name: Name<'a>,
        flags: RenameFlags,
    ) -> BoxFuture<'a, Result<()>> {
        self.call(move |fs| {
            let (from, to) = (fs.shared.fd(dir)?, fs.shared.fd(new_dir)?);
            let flags = rustix::fs::RenameFlags::from_bits_retain(flags.bits());
            rustix::fs::renameat_with(&from, name.as_bytes(), &to, new_name.as_bytes(), flags)
                .map_err(|e| fail("rename", e))
        })
    }

    fn readlink(&self, ino: Ino) -> BoxFuture<'_, Result<Vec<u8>>> {
        self.call(move |fs| {
            let fd = fs.shared.fd(ino)?;
            if kind_of(&fd)? != FileKind::Symlink {
                return refuse(ErrorKind::InvalidInput, "readlink");
            }
            let target = rustix::fs::readlinkat(&fd, "", Vec::new());
            Ok(target.map_err(|e| fail("readlink", e))?.into_bytes())
        })
    }

    fn readdir(&self, dir: Ino, after: Cookie, max: usize) -> BoxFuture<'_, Result<Vec<DirEntry>>> {
        self.call(move |fs| fs.list(dir, after, max))
    }

    fn getxattr<'a>(&'a self, ino: Ino, name: XattrName<'a>) -> BoxFuture<'a, Result<Vec<u8>>> {
        self.call(move |fs| {
            let mut value = vec![0; 64 << 10];
            let path = proc_path(&*fs.shared.fd(ino)?);
            let len = rustix::fs::getxattr(path, name.as_bytes(), &mut value[..])
                .map_err(|e| fail("getxattr", e))?;
            value.truncate(len);
            Ok(value)
        })
    }

    fn setxattr<'a>(
        &'a self,
        ino: Ino,
        name: XattrName<'a>,
        value: &'a [u8],
        how: SetXattr,
    ) -> BoxFuture<'a, Result<()>> {
        self.call(move |fs| {
            let flags = match how {
                SetXattr::Any => XattrFlags::empty(),
                SetXattr::Create => XattrFlags::CREATE,
                SetXattr::Replace => XattrFlags::REPLACE,
            };
            let path = proc_path(&*fs.shared.fd(ino)?);
            rustix::fs::setxattr(path, name.as_bytes(), value, flags)
                .map_err(|e| fail("setxattr", e))
        })
    }

    fn listxattr(&self, ino: Ino) -> BoxFuture<'_, Result<Vec<Box<[u8]>>>> {
        self.call(move |fs| {
            let fd = fs.shared.fd(ino)?;
            if !matches!(kind_of(&fd)?, FileKind::File | FileKind::Directory) {
                return Ok(Vec::new());
            }
            let mut list = vec![0; 64 << 10];
            let len = rustix::fs::listxattr(proc_path(&fd), &mut list[..])
                .map_err(|e| fail("listxattr", e))?;
            let names = list[..len].split(|b| *b == 0).filter(|name| !name.is_empty());
            Ok(names.map(Into::into).collect())
        })
    }

    fn removexattr<'a>(&'a self, ino: Ino, name: XattrName<'a>) -> BoxFuture<'a, Result<()>> {
        self.call(move |fs| {
            rustix::fs::removexattr(proc_path(&*fs.shared.fd(ino)?), name.as_bytes())
                .map_err(|e| fail("removexattr", e))
        })
    }

    fn open(&self, ino: Ino, flags: OpenFlags) -> BoxFuture<'_, Result<OpenFileRef>> {
        self.call(move |fs| fs.open_now(ino, flags))
    }

    fn syncfs(&self) -> BoxFuture<'_, Result<()>> {
        self.call(|_| Ok(()))
    }
}
