//! The host's file tree as a side of a copy. Files are named by paths; a symbolic link at the end
//! of a path is not followed.

use super::side::{Content, Meta, Side, Xattrs};
use forebay_base::{Error, ErrorKind, Result};
use forebay_vfs::{FileKind, Timestamp};
use rustix::fs::{
    AtFlags, CWD, FileType, Gid, Mode, SeekFrom, Timespec, Timestamps, Uid, XattrFlags,
};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// The host's file tree, with the rights of this process.
pub struct Host {
    /// This process can change owners.
    root: bool,
}

impl Host {
    /// Finds out whether this process is root, which alone can change owners.
    pub fn new() -> Self {
        Self { root: rustix::process::geteuid().is_root() }
    }
}

fn failed<T>(op: &'static str, path: &Path, e: impl Into<std::io::Error>) -> Result<T> {
    Err(Error::from_io(op, e.into()).with_path(path))
}

fn done<T, E: Into<std::io::Error>>(
    op: &'static str,
    path: &Path,
    result: std::result::Result<T, E>,
) -> Result<T> {
    result.or_else(|e| failed(op, path, e))
}

fn name_of(name: &[u8]) -> &OsStr {
    OsStr::from_bytes(name)
}

fn time(sec: i64, nsec: i64) -> Timestamp {
    Timestamp::new(sec, u32::try_from(nsec).unwrap_or(0))
}

/// Repeats a call with a larger buffer while it fails with ERANGE.
fn filled(call: impl Fn(&mut [u8]) -> rustix::io::Result<usize>) -> rustix::io::Result<Vec<u8>> {
    let mut bytes = vec![0; 1 << 10];
    loop {
        match call(&mut bytes) {
            Ok(len) => {
                bytes.truncate(len);
                return Ok(bytes);
            }
            Err(Errno::RANGE) if bytes.len() < 1 << 20 => bytes.resize(bytes.len() * 8, 0),
            Err(e) => return Err(e),
        }
    }
}

impl Side for Host {
    type Node = PathBuf;
    type Content = Plain;

    fn show(&self, node: &PathBuf) -> String {
        node.display().to_string()
    }

    fn meta(&self, node: &PathBuf) -> Result<Meta> {
        let found = done("look at", node, std::fs::symlink_metadata(node))?;
        let Some(kind) = FileKind::of_mode(found.mode()) else {
            let error = Error::new(ErrorKind::Unsupported, "look at", "a file of no known kind");
            return Err(error.with_path(node));
        };
        Ok(Meta {
            kind,
            perm: (found.mode() & 0o7777) as u16,
            uid: found.uid(),
            gid: found.gid(),
            rdev: u32::try_from(found.rdev()).unwrap_or(0),
            size: found.size(),
            nlink: found.nlink(),
            id: (found.dev(), found.ino()),
            atime: time(found.atime(), found.atime_nsec()),
            mtime: time(found.mtime(), found.mtime_nsec()),
        })
    }

    fn names(&self, dir: &PathBuf, names: &mut Vec<Vec<u8>>) -> Result<()> {
        for entry in done("list", dir, std::fs::read_dir(dir))? {
            names.push(done("list", dir, entry)?.file_name().into_vec());
        }
        Ok(())
    }

    fn child(&self, dir: &PathBuf, name: &[u8]) -> Result<Option<PathBuf>> {
        let path = dir.join(name_of(name));
        match std::fs::symlink_metadata(&path) {
            Ok(_) => Ok(Some(path)),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(e) => failed("look at", &path, e),
        }
    }

    fn read_link(&self, node: &PathBuf) -> Result<Vec<u8>> {
        let target = done("read the link", node, std::fs::read_link(node))?;
        Ok(target.into_os_string().into_vec())
    }

    fn xattrs(&self, node: &PathBuf) -> Result<Xattrs> {
        let list = match filled(|buf| rustix::fs::llistxattr(node, buf)) {
            // A file system without any.
            Err(Errno::OPNOTSUPP) => Vec::new(),
            list => done("list the attributes of", node, list)?,
        };
        let mut all = Xattrs::new();
        for name in list.split(|b| *b == 0).filter(|name| !name.is_empty()) {
            let value = filled(|buf| rustix::fs::lgetxattr(node, name_of(name), buf));
            all.push((name.to_vec(), done("read an attribute of", node, value)?));
        }
        Ok(all)
    }

    fn open(&self, node: &PathBuf) -> Result<Plain> {
        let mut options = std::fs::OpenOptions::new();
        options.read(true).custom_flags(rustix::fs::OFlags::NOFOLLOW.bits() as i32);
        let file = done("open", node, options.open(node))?;
        Ok(Plain { file, path: node.clone() })
    }

    fn make(&self, dir: &PathBuf, name: &[u8], meta: &Meta, target: &[u8]) -> Result<PathBuf> {
        let path = dir.join(name_of(name));
        match meta.kind {
            FileKind::Directory => {
                // Its entries are copied first; then it gets its own permissions.
                let made = std::fs::DirBuilder::new().mode(0o700).create(&path);
                done("make", &path, made)?;
            }
            FileKind::Symlink => {
                done("make", &path, std::os::unix::fs::symlink(name_of(target), &path))?;
            }
            kind => {
                let kind = FileType::from_raw_mode(kind.mode_bits());
                let mode = Mode::from_raw_mode(0o600);
                let made = rustix::fs::mknodat(CWD, &path, kind, mode, meta.rdev.into());
                done("make", &path, made)?;
            }
        }
        Ok(path)
    }

    fn create(&self, dir: &PathBuf, name: &[u8]) -> Result<(PathBuf, Plain)> {
        let path = dir.join(name_of(name));
        let mut options = std::fs::OpenOptions::new();
        let file = options.read(true).write(true).create_new(true).mode(0o600).open(&path);
        let file = done("make", &path, file)?;
        Ok((path.clone(), Plain { file, path }))
    }

    fn link(&self, node: &PathBuf, dir: &PathBuf, name: &[u8]) -> Result<()> {
        let path = dir.join(name_of(name));
        done("link", &path, rustix::fs::linkat(CWD, node, CWD, &path, AtFlags::empty()))
    }

    fn remove(&self, dir: &PathBuf, name: &[u8]) -> Result<()> {
        let path = dir.join(name_of(name));
        done("remove", &path, std::fs::remove_file(&path))
    }

    fn set_xattr(&self, node: &PathBuf, name: &[u8], value: &[u8]) -> Result<()> {
        let set = rustix::fs::lsetxattr(node, name_of(name), value, XattrFlags::empty());
        match set {
            Err(Errno::OPNOTSUPP | Errno::PERM) => {
                let text = format!("attribute {}", String::from_utf8_lossy(name));
                Err(Error::new(ErrorKind::Unsupported, "set", text).with_path(node))
            }
            set => done("set an attribute of", node, set),
        }
    }

    fn set_meta(&self, node: &PathBuf, meta: &Meta) -> Result<()> {
        let link = AtFlags::SYMLINK_NOFOLLOW;
        if self.root {
            let owner = (Some(Uid::from_raw(meta.uid)), Some(Gid::from_raw(meta.gid)));
            let set = rustix::fs::chownat(CWD, node, owner.0, owner.1, link);
            done("set the owner of", node, set)?;
        }
        if meta.kind != FileKind::Symlink {
            let mode = Mode::from_raw_mode(meta.perm.into());
            let set = rustix::fs::chmodat(CWD, node, mode, AtFlags::empty());
            done("set the mode of", node, set)?;
        }
        let spec = |time: Timestamp| Timespec { tv_sec: time.sec, tv_nsec: time.nsec.into() };
        let times =
            Timestamps { last_access: spec(meta.atime), last_modification: spec(meta.mtime) };
        done("set the times of", node, rustix::fs::utimensat(CWD, node, &times, link))
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }
}

/// An open file of the host.
pub struct Plain {
    file: File,
    path: PathBuf,
}

impl Content for Plain {
    fn read(&mut self, buf: &mut [u8], offset: u64) -> Result<usize> {
        let mut total = 0;
        while total < buf.len() {
            match self.file.read_at(&mut buf[total..], offset + total as u64) {
                Ok(0) => break,
                Ok(read) => total += read,
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                Err(e) => {
                    let error = Error::from_io("read", e).with_path(&self.path);
                    return Err(error.with_range(offset, buf.len() as u64));
                }
            }
        }
        Ok(total)
    }

    fn data(&mut self, offset: u64, size: u64) -> Result<Option<(u64, u64)>> {
        if offset >= size {
            return Ok(None);
        }
        let start = match rustix::fs::seek(&self.file, SeekFrom::Data(offset)) {
            Ok(start) => start,
            Err(Errno::NXIO) => return Ok(None),
            // The file system does not report holes.
            Err(Errno::INVAL | Errno::OPNOTSUPP) => return Ok(Some((offset, size))),
            Err(e) => return failed("seek", &self.path, e),
        };
        let end = done("seek", &self.path, rustix::fs::seek(&self.file, SeekFrom::Hole(start)))?;
        Ok((start < size).then_some((start, end.min(size))))
    }

    fn write(&mut self, buf: &[u8], offset: u64) -> Result<()> {
        done("write", &self.path, self.file.write_all_at(buf, offset))
    }

    fn set_len(&mut self, size: u64) -> Result<()> {
        done("set the size of", &self.path, self.file.set_len(size))
    }
}
