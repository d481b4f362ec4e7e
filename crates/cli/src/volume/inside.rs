//! A volume as a side of a copy, here or through the process that has it open.

use super::at::OpenVolume;
use super::side::{Content, Meta, Side, Xattrs};
use forebay_base::buf::AlignedBuf;
use forebay_base::task::block_on;
use forebay_base::{Error, ErrorKind, IoFlags, Result};
use forebay_vfs::{
    Cookie, FileKind, FileSystem, Ino, Name, NewInode, OpenFileRef, OpenFlags, Privileges, Seek,
    SetAttr, SetTime, SetXattr, XattrName,
};
use std::sync::Arc;

/// Entries of a listing at a time.
const ENTRIES_STEP: usize = 1024;

/// The file tree of an open volume.
pub struct Inside<'a>(pub &'a OpenVolume);

/// Something in a volume.
#[derive(Clone)]
pub struct Node {
    /// Its number.
    pub ino: Ino,
    /// A path to it.
    pub path: Vec<u8>,
}

impl Inside<'_> {
    fn fs(&self) -> &dyn FileSystem {
        &*self.0.fs
    }

    /// Adds the path of a node to an error.
    fn named<T>(&self, node: &Node, result: Result<T>) -> Result<T> {
        result.map_err(|e| e.with_path(self.0.show(&node.path)))
    }

    fn below(dir: &Node, name: &[u8], ino: Ino) -> Node {
        let mut path = dir.path.clone();
        if !path.ends_with(b"/") {
            path.push(b'/');
        }
        path.extend_from_slice(name);
        Node { ino, path }
    }
}

impl Side for Inside<'_> {
    type Node = Node;
    type Content = Stored;

    fn show(&self, node: &Node) -> String {
        self.0.show(&node.path)
    }

    fn meta(&self, node: &Node) -> Result<Meta> {
        let attr = self.named(node, block_on(self.fs().getattr(node.ino)))?;
        Ok(Meta::from(&attr))
    }

    fn names(&self, dir: &Node, names: &mut Vec<Vec<u8>>) -> Result<()> {
        let mut after = Cookie::START;
        loop {
            let more = block_on(self.fs().readdir(dir.ino, after, ENTRIES_STEP));
            let more = self.named(dir, more)?;
            let Some(last) = more.last() else { return Ok(()) };
            after = last.cookie;
            names.extend(more.into_iter().map(|entry| entry.name.into()));
        }
    }

    fn child(&self, dir: &Node, name: &[u8]) -> Result<Option<Node>> {
        let found = Name::new(name).and_then(|name| block_on(self.fs().lookup(dir.ino, name)));
        match found {
            Ok(attr) => Ok(Some(Self::below(dir, name, attr.ino))),
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
            Err(e) => self.named(&Self::below(dir, name, dir.ino), Err(e)),
        }
    }

    fn read_link(&self, node: &Node) -> Result<Vec<u8>> {
        self.named(node, block_on(self.fs().readlink(node.ino)))
    }

    fn xattrs(&self, node: &Node) -> Result<Xattrs> {
        let all = block_on(async {
            let mut all = Xattrs::new();
            for name in self.fs().listxattr(node.ino).await? {
                let value = self.fs().getxattr(node.ino, XattrName::new(&name)?).await?;
                all.push((name.into(), value));
            }
            Ok(all)
        });
        self.named(node, all)
    }

    fn open(&self, node: &Node) -> Result<Stored> {
        let file = self.named(node, block_on(self.fs().open(node.ino, OpenFlags::READ)))?;
        Ok(Stored { fs: self.0.fs.clone(), file, show: self.show(node) })
    }

    fn make(&self, dir: &Node, name: &[u8], meta: &Meta, target: &[u8]) -> Result<Node> {
        let new = new_inode(meta);
        let made = Name::new(name).and_then(|name| {
            block_on(async {
                match meta.kind {
                    FileKind::Directory => self.fs().mkdir(dir.ino, name, &new).await,
                    FileKind::Symlink => self.fs().symlink(dir.ino, name, target, &new).await,
                    _ => self.fs().mknod(dir.ino, name, &new).await,
                }
            })
        });
        let there = Self::below(dir, name, dir.ino);
        let attr = self.named(&there, made)?;
        Ok(Node { ino: attr.ino, ..there })
    }

    fn create(&self, dir: &Node, name: &[u8]) -> Result<(Node, Stored)> {
        let new = NewInode::of(FileKind::File, 0o600);
        let flags = OpenFlags::READ | OpenFlags::WRITE | OpenFlags::EXCLUSIVE;
        let made =
            Name::new(name).and_then(|name| block_on(self.fs().create(dir.ino, name, &new, flags)));
        let there = Self::below(dir, name, dir.ino);
        let (attr, file) = self.named(&there, made)?;
        let node = Node { ino: attr.ino, ..there };
        let show = self.show(&node);
        Ok((node, Stored { fs: self.0.fs.clone(), file, show }))
    }

    fn link(&self, node: &Node, dir: &Node, name: &[u8]) -> Result<()> {
        let there = Self::below(dir, name, node.ino);
        let done =
            Name::new(name).and_then(|name| block_on(self.fs().link(node.ino, dir.ino, name)));
        self.named(&there, done).map(drop)
    }

    fn remove(&self, dir: &Node, name: &[u8]) -> Result<()> {
        let there = Self::below(dir, name, dir.ino);
        let done = Name::new(name).and_then(|name| block_on(self.fs().unlink(dir.ino, name)));
        self.named(&there, done)
    }

    fn set_xattr(&self, node: &Node, name: &[u8], value: &[u8]) -> Result<()> {
        let name = XattrName::new(name)?;
        let how = SetXattr::Any;
        self.named(node, block_on(self.fs().setxattr(node.ino, name, value, how)))
    }

    fn set_meta(&self, node: &Node, meta: &Meta) -> Result<()> {
        let set = SetAttr {
            perm: (meta.kind != FileKind::Symlink).then_some(meta.perm),
            uid: Some(meta.uid),
            gid: Some(meta.gid),
            size: None,
            atime: Some(SetTime::To(meta.atime)),
            mtime: Some(SetTime::To(meta.mtime)),
            privileges: Privileges::Keep,
        };
        self.named(node, block_on(self.fs().setattr(node.ino, &set))).map(drop)
    }

    fn sync(&self) -> Result<()> {
        block_on(self.fs().syncfs()).map_err(|e| e.with_path(&self.0.image))
    }
}

fn new_inode(meta: &Meta) -> NewInode {
    NewInode { kind: meta.kind, perm: meta.perm, uid: meta.uid, gid: meta.gid, rdev: meta.rdev }
}

/// An open file of a volume.
pub struct Stored {
    fs: Arc<dyn FileSystem>,
    file: OpenFileRef,
    show: String,
}

impl Stored {
    fn named<T>(&self, result: Result<T>) -> Result<T> {
        result.map_err(|e| e.with_path(&self.show))
    }
}

impl Content for Stored {
    fn read(&mut self, buf: &mut [u8], offset: u64) -> Result<usize> {
        let read = self.file.read_slice(offset, buf, IoFlags::UNCACHED);
        self.named(read)
    }

    fn data(&mut self, offset: u64, size: u64) -> Result<Option<(u64, u64)>> {
        if offset >= size {
            return Ok(None);
        }
        let start = match block_on(self.file.seek(Seek::Data, offset)) {
            Err(e) if e.kind() == ErrorKind::PastEnd => return Ok(None),
            found => self.named(found)?,
        };
        let end = self.named(block_on(self.file.seek(Seek::Hole, start)))?;
        Ok((start < size).then_some((start, end.min(size))))
    }

    fn write(&mut self, buf: &[u8], offset: u64) -> Result<()> {
        let buf = AlignedBuf::copy_of(buf);
        let flags = IoFlags::UNCACHED;
        let (buf, wrote) = block_on(self.file.write(offset, buf, flags, Privileges::Keep));
        if self.named(wrote)?.len == buf.len() {
            return Ok(());
        }
        self.named(Err(Error::new(ErrorKind::NoSpace, "write", "room for a part of it")))
    }

    fn set_len(&mut self, size: u64) -> Result<()> {
        let set = SetAttr::size(size);
        let done = block_on(self.fs.setattr(self.file.ino(), &set));
        self.named(done).map(drop)
    }
}
