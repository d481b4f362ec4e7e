//! The calls of a volume by path, in the manner of [`std::fs`]. Paths begin at the volume's root,
//! with or without a leading slash; `..` of the root is the root.
//!
//! No locks: each component of a path is one lookup, see [`forebay_vfs::path`].

use crate::volume::Volume;
use forebay_base::task::block_on;
use forebay_base::{Error, ErrorKind, Result};
use forebay_vfs::path::{Last, resolve, resolve_parent};
use forebay_vfs::{
    Attr, Cookie, DirEntry, FileKind, FileSystem, Ino, Name, NewInode, RenameFlags, SetAttr,
    SetXattr, XattrName,
};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// Directory entries that a listing reads at a time.
const ENTRIES_STEP: usize = 256;
/// The directory and the name that a path leads to, whether or not the name exists.
type At = (Ino, Box<[u8]>);

impl Volume {
    fn fs(&self) -> &dyn FileSystem {
        &*self.open.fs
    }

    fn at<T>(&self, path: &Path, op: impl FnOnce(&[u8]) -> Result<T>) -> Result<T> {
        op(path.as_os_str().as_bytes()).map_err(|e| e.with_path(path))
    }

    fn find(&self, path: &[u8], last: Last) -> Result<Attr> {
        block_on(resolve(self.fs(), Ino::ROOT, path, last))
    }

    fn place(&self, path: &[u8]) -> Result<At> {
        let place = block_on(resolve_parent(self.fs(), Ino::ROOT, path))?;
        let none = || Error::new(ErrorKind::InvalidInput, "resolve", "no name at the end");
        Ok((place.dir, place.name.ok_or_else(none)?))
    }

    fn new_inode(&self, kind: FileKind, perm: u16) -> NewInode {
        let (uid, gid) = self.open.owner;
        NewInode { uid, gid, ..NewInode::of(kind, perm) }
    }

    /// Makes a directory of mode 0o755.
    pub fn create_dir(&self, path: impl AsRef<Path>) -> Result<()> {
        self.create_dir_with(path, 0o755)
    }

    /// Makes a directory with these permission bits; no umask applies.
    pub fn create_dir_with(&self, path: impl AsRef<Path>, mode: u16) -> Result<()> {
        self.at(path.as_ref(), |path| {
            let (dir, name) = self.place(path)?;
            let new = self.new_inode(FileKind::Directory, mode);
            block_on(self.fs().mkdir(dir, Name::new(&name)?, &new)).map(drop)
        })
    }

    /// Makes a directory and its missing parents.
    pub fn create_dir_all(&self, path: impl AsRef<Path>) -> Result<()> {
        let mut at = PathBuf::from("/");
        for part in path.as_ref().components() {
            at.push(part);
            match self.create_dir(&at) {
                Err(_) if self.metadata(&at)?.kind == FileKind::Directory => {}
                done => done?,
            }
        }
        Ok(())
    }

    /// The entries of a directory, without `.` and `..`. Entries that are made, renamed or removed
    /// meanwhile may be missing; all others are listed once.
    pub fn read_dir(&self, path: impl AsRef<Path>) -> Result<ReadDir> {
        self.at(path.as_ref(), |path| {
            let dir = self.find(path, Last::Follow)?.ino;
            let (at, volume) = (Cookie::START, self.clone());
            let mut list = ReadDir { volume, dir, at, ready: Vec::new().into_iter(), over: false };
            // Refuses anything but a directory at once.
            list.fill()?;
            Ok(list)
        })
    }

    /// Attributes of the inode that a path leads to; symbolic links are followed.
    pub fn metadata(&self, path: impl AsRef<Path>) -> Result<Attr> {
        self.at(path.as_ref(), |path| self.find(path, Last::Follow))
    }

    /// Attributes of the inode that a path names; a symbolic link at its end is not followed.
    pub fn symlink_metadata(&self, path: impl AsRef<Path>) -> Result<Attr> {
        self.at(path.as_ref(), |path| self.find(path, Last::NoFollow))
    }

    /// Sets attributes of the inode that a path leads to: permissions, owner, size, times.
    pub fn set_attr(&self, path: impl AsRef<Path>, set: &SetAttr) -> Result<Attr> {
        self.at(path.as_ref(), |path| {
            let ino = self.find(path, Last::Follow)?.ino;
            block_on(self.fs().setattr(ino, set))
        })
    }

    /// Renames, and replaces a file at the new name in one step.
    pub fn rename(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<()> {
        self.rename_with(from, to, RenameFlags::empty())
    }

    /// Renames, with flags: `NOREPLACE` or `EXCHANGE`.
    pub fn rename_with(
        &self,
        from: impl AsRef<Path>,
        to: impl AsRef<Path>,
        flags: RenameFlags,
    ) -> Result<()> {
        let (dir, name) = self.at(from.as_ref(), |path| self.place(path))?;
        self.at(to.as_ref(), |path| {
            let (new_dir, new_name) = self.place(path)?;
            let (name, new_name) = (Name::new(&name)?, Name::new(&new_name)?);
            block_on(self.fs().rename(dir, name, new_dir, new_name, flags))
        })
    }

    /// Removes the name of a file; directories are refused.
    pub fn remove_file(&self, path: impl AsRef<Path>) -> Result<()> {
        self.at(path.as_ref(), |path| {
            let (dir, name) = self.place(path)?;
            block_on(self.fs().unlink(dir, Name::new(&name)?))
        })
    }

    /// Removes an empty directory.
    pub fn remove_dir(&self, path: impl AsRef<Path>) -> Result<()> {
        self.at(path.as_ref(), |path| {
            let (dir, name) = self.place(path)?;
            block_on(self.fs().rmdir(dir, Name::new(&name)?))
        })
    }

    /// Removes a directory and everything in it; symbolic links are not followed.
    pub fn remove_dir_all(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        if self.symlink_metadata(path)?.kind != FileKind::Directory {
            return self.remove_file(path);
        }
        // Depth first, without a call for each level.
        let mut stack = vec![(path.to_path_buf(), false)];
        while let Some((at, emptied)) = stack.pop() {
            if emptied {
                self.remove_dir(&at)?;
                continue;
            }
            stack.push((at.clone(), true));
            for entry in self.read_dir(&at)? {
                let entry = entry?;
                let child = at.join(OsStr::from_bytes(&entry.name));
                match entry.kind {
                    FileKind::Directory => stack.push((child, false)),
                    _ => self.remove_file(&child)?,
                }
            }
        }
        Ok(())
    }

    /// Makes a symbolic link at `link` with this text.
    pub fn symlink(&self, target: impl AsRef<OsStr>, link: impl AsRef<Path>) -> Result<()> {
        self.at(link.as_ref(), |path| {
            let (dir, name) = self.place(path)?;
            let new = self.new_inode(FileKind::Symlink, 0o777);
            let text = target.as_ref().as_bytes();
            block_on(self.fs().symlink(dir, Name::new(&name)?, text, &new)).map(drop)
        })
    }

    /// The text of a symbolic link.
    pub fn read_link(&self, path: impl AsRef<Path>) -> Result<PathBuf> {
        self.at(path.as_ref(), |path| {
            let ino = self.find(path, Last::NoFollow)?.ino;
            let text = block_on(self.fs().readlink(ino))?;
            Ok(PathBuf::from(OsString::from_vec(text)))
        })
    }

    /// Adds another name to a file.
    pub fn hard_link(&self, original: impl AsRef<Path>, link: impl AsRef<Path>) -> Result<()> {
        let ino = self.at(original.as_ref(), |path| self.find(path, Last::NoFollow))?.ino;
        self.at(link.as_ref(), |path| {
            let (dir, name) = self.place(path)?;
            block_on(self.fs().link(ino, dir, Name::new(&name)?)).map(drop)
        })
    }

    /// The value of an extended attribute, such as `user.colour`, of the inode that a path leads
    /// to.
    pub fn xattr(&self, path: impl AsRef<Path>, name: &str) -> Result<Vec<u8>> {
        self.at(path.as_ref(), |path| {
            let ino = self.find(path, Last::Follow)?.ino;
            block_on(self.fs().getxattr(ino, XattrName::new(name.as_bytes())?))
        })
    }

    /// Sets an extended attribute.
    pub fn set_xattr(&self, path: impl AsRef<Path>, name: &str, value: &[u8]) -> Result<()> {
        self.at(path.as_ref(), |path| {
            let (ino, name) =
                (self.find(path, Last::Follow)?.ino, XattrName::new(name.as_bytes())?);
            block_on(self.fs().setxattr(ino, name, value, SetXattr::Any))
        })
    }

    /// The names of all extended attributes.
    pub fn xattrs(&self, path: impl AsRef<Path>) -> Result<Vec<OsString>> {
        self.at(path.as_ref(), |path| {
            let names = block_on(self.fs().listxattr(self.find(path, Last::Follow)?.ino))?;
            Ok(names.into_iter().map(|name| OsString::from_vec(name.into())).collect())
        })
    }

    /// Removes an extended attribute.
    pub fn remove_xattr(&self, path: impl AsRef<Path>, name: &str) -> Result<()> {
        self.at(path.as_ref(), |path| {
            let (ino, name) =
                (self.find(path, Last::Follow)?.ino, XattrName::new(name.as_bytes())?);
            block_on(self.fs().removexattr(ino, name))
        })
    }
}

/// Iterator over the entries of a directory; see [`Volume::read_dir`].
pub struct ReadDir {
    volume: Volume,
    dir: Ino,
    at: Cookie,
    ready: std::vec::IntoIter<DirEntry>,
    over: bool,
}

impl ReadDir {
    fn fill(&mut self) -> Result<()> {
        let more = block_on(self.volume.fs().readdir(self.dir, self.at, ENTRIES_STEP))?;
        self.over = more.is_empty();
        self.at = more.last().map_or(self.at, |last| last.cookie);
        self.ready = more.into_iter();
        Ok(())
    }
}

impl Iterator for ReadDir {
    type Item = Result<DirEntry>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ready.len() == 0
            && !self.over
            && let Err(error) = self.fill()
        {
            self.over = true;
            return Some(Err(error));
        }
        self.ready.next().map(Ok)
    }
}
