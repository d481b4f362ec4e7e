//! A complete file system, sorted: to compare two, or one with its past.
//!
//! Reading it also checks what must always hold of a tree: listings and lookups agree, cookies
//! rise, link counts are those of the tree, and a range that is called a hole reads as zeros.
//!
//! No locks.

use super::run::{Shape, Times};
use forebay_base::buf::AlignedBuf;
use forebay_base::checksum::crc32c;
use forebay_base::{ErrorKind, IoFlags};
use forebay_vfs::fs::FileSystem;
use forebay_vfs::name::{Name, XattrName};
use forebay_vfs::types::{Attr, Cookie, DirEntry, FileKind, Ino, OpenFlags, Seek};
use std::collections::BTreeMap;
use std::fmt::Write;

/// Content is compared in units of this many bytes.
const UNIT_BYTES: u64 = 4096;
/// Entries asked for at a time.
const BATCH: usize = 5;

/// An inode, by its first path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// Attributes.
    pub shape: Shape,
    /// The first path of the same inode, in the order of paths; the node's own path if it has one
    /// name.
    pub first_path: Vec<u8>,
    /// Target of a symbolic link.
    pub target: Option<Vec<u8>>,
    /// Extended attributes.
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Content: hash of each unit that is not all zeros, by its number.
    pub units: BTreeMap<u64, u64>,
}

/// All paths of a file system, and their inodes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Tree {
    /// By path from the root, whose own path is empty.
    pub nodes: BTreeMap<Vec<u8>, Node>,
}

/// A result. Its error is a sentence that says what is wrong.
type Checked<T> = Result<T, String>;

fn fnv(bytes: &[u8], hash: u64) -> u64 {
    bytes.iter().fold(hash, |hash, b| (hash ^ u64::from(*b)).wrapping_mul(0x0100_0000_01b3))
}

/// Two checksums, of the halves.
fn hash(bytes: &[u8]) -> u64 {
    let (front, back) = bytes.split_at(bytes.len() / 2);
    u64::from(crc32c(front)) << 32 | u64::from(crc32c(back))
}

const FNV_START: u64 = 0xcbf2_9ce4_8422_2325;

impl Tree {
    /// Reads all of `fs`. Says what is wrong if it contradicts itself.
    pub async fn read(fs: &dyn FileSystem, times: Times) -> Checked<Self> {
        Self::walk(fs, times, true).await
    }

    /// Reads all of `fs` but the content of its files.
    pub async fn read_names(fs: &dyn FileSystem, times: Times) -> Checked<Self> {
        Self::walk(fs, times, false).await
    }

    async fn walk(fs: &dyn FileSystem, times: Times, content: bool) -> Checked<Self> {
        let mut walk = Walk { fs, times, content, tree: Self::default(), first: BTreeMap::new() };
        let root = fs.getattr(Ino::ROOT).await.map_err(|e| format!("the root: {e}"))?;
        walk.add(Vec::new(), &root).await?;
        let mut left = vec![(Vec::new(), root)];
        while let Some((path, directory)) = left.pop() {
            let children = walk.directory(&path, &directory).await?;
            left.extend(children);
        }
        walk.finish()
    }

    /// A hash of the complete tree.
    pub fn digest(&self) -> u64 {
        let mut text = String::new();
        for (path, node) in &self.nodes {
            write!(text, "{path:?} {node:?};").expect("a string takes everything");
        }
        fnv(text.as_bytes(), FNV_START)
    }

    /// The first difference, in words.
    pub fn difference(&self, other: &Self) -> Option<String> {
        let paths: std::collections::BTreeSet<_> =
            self.nodes.keys().chain(other.nodes.keys()).collect();
        for path in paths {
            let shown = path.escape_ascii();
            match (self.nodes.get(path), other.nodes.get(path)) {
                (Some(a), Some(b)) if a == b => {}
                (Some(a), Some(b)) => {
                    return Some(format!("/{shown} is\n  {a:?}\n  {b:?}"));
                }
                (a, _) => {
                    let side = if a.is_some() { "first" } else { "second" };
                    return Some(format!("/{shown} is only in the {side}"));
                }
            }
        }
        None
    }
}

struct Walk<'a> {
    fs: &'a dyn FileSystem,
    times: Times,
    /// Content is read.
    content: bool,
    tree: Tree,
    /// Of each inode that may have several paths: the first one, how many were seen, its link
    /// count.
    first: BTreeMap<Ino, (Vec<u8>, u32, u32)>,
}

impl Walk<'_> {
    async fn directory(&mut self, path: &[u8], directory: &Attr) -> Checked<Vec<(Vec<u8>, Attr)>> {
        let shown = path.escape_ascii().to_string();
        let mut children = Vec::new();
        for entry in self.list(&shown, directory.ino).await? {
            let name = Name::new(&entry.name).map_err(|e| format!("/{shown}: {e}"))?;
            let found = self.fs.lookup(directory.ino, name).await;
            let attr = found.map_err(|e| format!("/{shown} lists {name:?}: {e}"))?;
            if (attr.ino, attr.kind) != (entry.ino, entry.kind) {
                return Err(format!("/{shown}: lists {entry:?}, looks up {attr:?}"));
            }
            let mut child = path.to_vec();
            if !child.is_empty() {
                child.push(b'/');
            }
            child.extend_from_slice(&entry.name);
            self.add(child.clone(), &attr).await?;
            if attr.kind == FileKind::Directory {
                let up = self.fs.parent(attr.ino).await.map_err(|e| e.to_string())?;
                if up != directory.ino {
                    return Err(format!("{}: its parent is {up:?}", child.escape_ascii()));
                }
                children.push((child, attr));
            }
        }
        if directory.nlink as usize != 2 + children.len() {
            let (links, dirs) = (directory.nlink, children.len());
            return Err(format!("/{shown} has {links} links and {dirs} directories"));
        }
        Ok(children)
    }

    async fn list(&self, shown: &str, dir: Ino) -> Checked<Vec<DirEntry>> {
        let (mut all, mut after) = (Vec::new(), Cookie::START);
        loop {
            let batch = self.fs.readdir(dir, after, BATCH).await;
            let batch = batch.map_err(|e| format!("/{shown}: {e}"))?;
            if batch.is_empty() {
                return Ok(all);
            }
            for entry in batch {
                if entry.cookie <= after || entry.cookie < Cookie::FIRST {
                    return Err(format!("/{shown}: {entry:?} comes after {after:?}"));
                }
                after = entry.cookie;
                all.push(entry);
            }
        }
    }

    async fn add(&mut self, path: Vec<u8>, attr: &Attr) -> Checked<()> {
        if attr.kind != FileKind::Directory {
            let seen = self.first.entry(attr.ino).or_insert((path.clone(), 0, attr.nlink));
            seen.1 += 1;
            seen.0 = path.clone().min(std::mem::take(&mut seen.0));
        }
        let shown = path.escape_ascii().to_string();
        let fail = |e: forebay_base::Error| format!("/{shown}: {e}");
        let target = match attr.kind {
            FileKind::Symlink => Some(self.fs.readlink(attr.ino).await.map_err(fail)?),
            _ => None,
        };
        let mut xattrs = BTreeMap::new();
        for name in self.fs.listxattr(attr.ino).await.map_err(fail)? {
            let value = match XattrName::new(&name) {
                Ok(name) => self.fs.getxattr(attr.ino, name).await.map_err(fail)?,
                Err(e) => return Err(fail(e)),
            };
            xattrs.insert(name.to_vec(), value);
        }
        let units = match attr.kind {
            FileKind::File if self.content => {
                self.units(attr).await.map_err(|e| format!("/{shown}: {e}"))?
            }
            _ => BTreeMap::new(),
        };
        let shape = Shape::of(attr, self.times);
        // The number of the inode stands in until all paths of it are known.
        let first_path = attr.ino.0.to_be_bytes().to_vec();
        self.tree.nodes.insert(path, Node { shape, first_path, target, xattrs, units });
        Ok(())
    }

    /// Hashes the units that are not zero; seeks skip the holes.
    async fn units(&self, attr: &Attr) -> Checked<BTreeMap<u64, u64>> {
        let text = |e: forebay_base::Error| e.to_string();
        let file = self.fs.open(attr.ino, OpenFlags::READ).await.map_err(text)?;
        let (mut units, mut at) = (BTreeMap::new(), 0);
        while at < attr.size {
            at = match file.seek(Seek::Data, at).await {
                Ok(data) if data >= at && data < attr.size => data / UNIT_BYTES * UNIT_BYTES,
                Ok(data) => return Err(format!("data at {data} after {at} of {}", attr.size)),
                Err(e) if e.kind() == ErrorKind::PastEnd => break,
                Err(e) => return Err(text(e)),
            };
            let buf = AlignedBuf::new(UNIT_BYTES as usize);
            let (buf, read) = file.read(at, buf, IoFlags::empty()).await;
            let read = read.map_err(text)?;
            if read as u64 != UNIT_BYTES.min(attr.size - at) {
                return Err(format!("{read} bytes at {at} of {}", attr.size));
            }
            if buf[..read].iter().any(|b| *b != 0) {
                units.insert(at / UNIT_BYTES, hash(&buf[..read]));
            }
            at += UNIT_BYTES;
        }
        Ok(units)
    }

    /// Puts the first paths in, and compares link counts with the number of paths seen.
    fn finish(mut self) -> Checked<Tree> {
        for (ino, (path, seen, links)) in &self.first {
            if seen != links {
                let shown = path.escape_ascii();
                return Err(format!("/{shown} ({ino:?}) has {links} links, the tree has {seen}"));
            }
        }
        for (path, node) in &mut self.tree.nodes {
            let ino = node.first_path.as_slice().try_into().map_or(0, u64::from_be_bytes);
            let first = self.first.get(&Ino(ino)).map(|(first, ..)| first.clone());
            node.first_path = first.unwrap_or_else(|| path.clone());
        }
        Ok(self.tree)
    }
}
