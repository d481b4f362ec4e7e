//! A rule as a case, and the file system under test, with calls that block and take paths.
//!
//! No locks.

use crate::fs_check::run::Times;
use crate::fs_check::tree::Tree;
use forebay_base::task::block_on;
use forebay_base::{Error, ErrorKind, IoFlags, Result};
use forebay_vfs::clock::ManualClock;
use forebay_vfs::fs::{FileSystem, OpenFileRef};
use forebay_vfs::name::Name;
use forebay_vfs::path::{Last, resolve, resolve_parent};
use forebay_vfs::types::{
    Attr, FileKind, Ino, NewInode, OpenFlags, Privileges, RenameFlags, SetAttr,
};
use std::sync::Arc;

/// A rule, and how to see whether it holds.
#[derive(Clone, Copy)]
pub struct Case {
    /// What it is about.
    pub name: &'static str,
    /// Needs to move the file system's clock.
    pub needs_clock: bool,
    /// Has a hundred thousand entries: not for a file system that needs long to find a cookie.
    pub is_large: bool,
    /// Checks the rule. The file system is empty.
    pub run: fn(&Subject) -> Result<()>,
}

pub(super) const fn case(name: &'static str, run: fn(&Subject) -> Result<()>) -> Case {
    Case { name, needs_clock: false, is_large: false, run }
}

/// The file system under test, with calls that block and take paths.
pub struct Subject {
    /// The file system.
    pub fs: Arc<dyn FileSystem>,
    /// Its clock, if it can be moved.
    pub clock: Option<Arc<ManualClock>>,
}

/// To read and to write.
pub(super) const BOTH: OpenFlags = OpenFlags::READ.union(OpenFlags::WRITE);

/// Panics unless `result` was refused as `kind`.
#[track_caller]
pub(super) fn refused<T>(result: Result<T>, kind: ErrorKind, what: &str) {
    match result {
        Ok(_) => panic!("{what}: done, and not refused as {kind:?}"),
        Err(e) => assert_eq!(e.kind(), kind, "{what}: {e}"),
    }
}

/// The name `text`, which must be a valid one.
pub(super) fn name(text: &str) -> Name<'_> {
    Name::new(text.as_bytes()).expect("a name in a test is one")
}

pub(super) fn new(kind: FileKind) -> NewInode {
    NewInode::of(kind, 0o755)
}

impl Subject {
    pub(super) fn attr(&self, path: &str) -> Result<Attr> {
        block_on(resolve(&*self.fs, Ino::ROOT, path.as_bytes(), Last::NoFollow))
    }

    pub(super) fn ino(&self, path: &str) -> Result<Ino> {
        Ok(self.attr(path)?.ino)
    }

    /// The attributes of an inode by its number.
    pub(super) fn attr_of(&self, ino: Ino) -> Result<Attr> {
        block_on(self.fs.getattr(ino))
    }

    pub(super) fn at<T>(
        &self,
        path: &str,
        op: impl FnOnce(Ino, Name<'_>) -> Result<T>,
    ) -> Result<T> {
        let place = block_on(resolve_parent(&*self.fs, Ino::ROOT, path.as_bytes()))?;
        match &place.name {
            Some(name) => op(place.dir, Name::new(name)?),
            None => Err(Error::new(ErrorKind::InvalidInput, "place", "no name in the path")),
        }
    }

    pub(super) fn mkdir(&self, path: &str) -> Result<Attr> {
        let new = new(FileKind::Directory);
        self.at(path, |dir, name| block_on(self.fs.mkdir(dir, name, &new)))
    }

    pub(super) fn mknod(&self, path: &str, kind: FileKind) -> Result<Attr> {
        self.at(path, |dir, name| block_on(self.fs.mknod(dir, name, &new(kind))))
    }

    pub(super) fn file(&self, path: &str) -> Result<Attr> {
        self.mknod(path, FileKind::File)
    }

    pub(super) fn symlink(&self, path: &str, target: &str) -> Result<Attr> {
        let new = new(FileKind::Symlink);
        self.at(path, |dir, name| block_on(self.fs.symlink(dir, name, target.as_bytes(), &new)))
    }

    /// Makes an inode of a kind at `path`. `filled`: a directory gets an entry.
    pub(super) fn put(&self, path: &str, kind: FileKind, filled: bool) -> Result<Attr> {
        match kind {
            FileKind::Directory => {
                let made = self.mkdir(path)?;
                if filled {
                    self.mkdir(&format!("{path}/inside"))?;
                }
                self.attr_of(made.ino)
            }
            FileKind::Symlink => self.symlink(path, "target"),
            kind => self.mknod(path, kind),
        }
    }

    pub(super) fn create(&self, path: &str, flags: OpenFlags) -> Result<OpenFileRef> {
        let new = new(FileKind::File);
        self.at(path, |dir, name| Ok(block_on(self.fs.create(dir, name, &new, flags))?.1))
    }

    pub(super) fn open(&self, path: &str, flags: OpenFlags) -> Result<OpenFileRef> {
        block_on(self.fs.open(self.ino(path)?, flags))
    }

    pub(super) fn unlink(&self, path: &str) -> Result<()> {
        self.at(path, |dir, name| block_on(self.fs.unlink(dir, name)))
    }

    pub(super) fn rmdir(&self, path: &str) -> Result<()> {
        self.at(path, |dir, name| block_on(self.fs.rmdir(dir, name)))
    }

    pub(super) fn link(&self, from: &str, to: &str) -> Result<Attr> {
        let ino = self.ino(from)?;
        self.at(to, |dir, name| block_on(self.fs.link(ino, dir, name)))
    }

    pub(super) fn rename(&self, from: &str, to: &str, flags: RenameFlags) -> Result<()> {
        self.at(from, |dir, name| {
            self.at(to, |new_dir, new_name| {
                block_on(self.fs.rename(dir, name, new_dir, new_name, flags))
            })
        })
    }

    pub(super) fn set(&self, ino: Ino, set: &SetAttr) -> Result<Attr> {
        block_on(self.fs.setattr(ino, set))
    }

    pub(super) fn write(&self, file: &OpenFileRef, offset: u64, src: &[u8]) -> Result<()> {
        let wrote = file.write_slice(offset, src, IoFlags::empty(), Privileges::Keep)?;
        assert_eq!((wrote.offset, wrote.len), (offset, src.len()), "a write is whole");
        Ok(())
    }

    pub(super) fn read(&self, file: &OpenFileRef, offset: u64, len: usize) -> Result<Vec<u8>> {
        let mut bytes = vec![0xee; len];
        let read = file.read_slice(offset, &mut bytes, IoFlags::empty())?;
        bytes.truncate(read);
        Ok(bytes)
    }

    /// The complete tree. Panics if the tree contradicts itself.
    pub(super) fn tree(&self) -> Tree {
        let times = if self.clock.is_some() { Times::Exact } else { Times::Ignore };
        match block_on(Tree::read(&*self.fs, times)) {
            Ok(mut tree) => {
                // Reading a tree moves `atime`.
                for node in tree.nodes.values_mut() {
                    if let Some(times) = &mut node.shape.times {
                        times[0] = times[3];
                    }
                }
                tree
            }
            Err(what) => panic!("{what}"),
        }
    }

    /// Removes a directory and everything in it.
    pub(super) fn remove_all(&self, path: &str) -> Result<()> {
        let (tree, below) = (self.tree(), format!("{path}/"));
        let inside = |found: &[u8]| found == path.as_bytes() || found.starts_with(below.as_bytes());
        for (found, node) in tree.nodes.iter().rev().filter(|(found, _)| inside(found)) {
            let found = String::from_utf8_lossy(found);
            match node.shape.kind {
                FileKind::Directory => self.rmdir(&found)?,
                _ => self.unlink(&found)?,
            }
        }
        Ok(())
    }

    /// Moves the clock, if it can be moved.
    pub(super) fn tick(&self) {
        if let Some(clock) = &self.clock {
            clock.advance(1_000_000_001);
        }
    }

    /// Panics if `op` is not refused as `kind`, or changes anything (fs.F7).
    #[track_caller]
    pub(super) fn refused_without_trace<T>(
        &self,
        kind: ErrorKind,
        what: &str,
        op: impl FnOnce() -> Result<T>,
    ) {
        let before = self.tree();
        self.tick();
        refused(op(), kind, what);
        let changed = before.difference(&self.tree());
        assert_eq!(changed, None, "F7: refused, and changed: {what}");
    }
}
