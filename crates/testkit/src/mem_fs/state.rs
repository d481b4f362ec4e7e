//! Inodes of the file system in memory, and what every operation on them needs.
//!
//! Invariants: M1 an inode is in the table as long as it has a name or is open. M2 `used_blocks` is
//! the sum of the blocks of all inodes. M3 an operation checks everything that can refuse it before
//! it changes anything.
//!
//! Lock: that of [`Shared`], around every call.

use super::data::{BLOCK, Data};
use super::dir::Directory;
use super::options::MemOptions;
use forebay_base::sync::Mutex;
use forebay_base::{ErrorKind, Result};
use forebay_vfs::name::Name;
use forebay_vfs::rules::names::Made;
use forebay_vfs::rules::{Patch, refuse};
use forebay_vfs::types::{Attr, FileKind, Ino, Timestamp, relatime};
use std::collections::BTreeMap;
use std::sync::Arc;

/// What an inode holds.
#[derive(Clone)]
pub enum Body {
    /// Content of a regular file.
    File(Data),
    /// Entries.
    Directory(Directory),
    /// Target.
    Symlink(Box<[u8]>),
    /// Nothing.
    Special,
}

/// An inode.
#[derive(Clone)]
pub struct Inode {
    pub attr: Attr,
    pub body: Body,
    pub xattrs: BTreeMap<Box<[u8]>, Box<[u8]>>,
    /// Of a directory: where its entry is.
    pub parent: Ino,
    /// Without a name, but may get one.
    pub linkable: bool,
}

/// Everything, under one lock.
#[derive(Clone)]
pub struct State {
    pub options: MemOptions,
    /// Shared with snapshots until changed.
    pub inodes: BTreeMap<Ino, Arc<Inode>>,
    pub opens: BTreeMap<Ino, u32>,
    pub next_ino: u64,
    pub used_blocks: u64,
}

/// What the file system and its open files share.
pub struct Shared {
    pub state: Mutex<State>,
}

impl State {
    pub fn new(options: MemOptions) -> Self {
        let mut state = Self {
            options,
            inodes: BTreeMap::new(),
            opens: BTreeMap::new(),
            next_ino: Ino::ROOT.0,
            used_blocks: 0,
        };
        let root = Made {
            kind: FileKind::Directory,
            perm: 0o755,
            uid: 0,
            gid: 0,
            rdev: 0,
            nlink: 2,
            is_linkable: false,
            directory: Patch::default(),
        };
        state.add(&root, Body::Directory(Directory::default()), Ino::ROOT);
        state
    }

    pub fn now(&self) -> Timestamp {
        self.options.clock.now()
    }

    /// `Stale` for an inode that is gone.
    pub fn get(&self, op: &'static str, ino: Ino) -> Result<&Inode> {
        match self.inodes.get(&ino) {
            Some(inode) => Ok(inode),
            None => refuse(ErrorKind::Stale, op, format!("{ino:?}")),
        }
    }

    /// An inode that is known to be there (M1).
    pub fn inode(&mut self, ino: Ino) -> &mut Inode {
        Arc::make_mut(self.inodes.get_mut(&ino).expect("M1: named or open inodes are there"))
    }

    pub fn attr(&self, op: &'static str, ino: Ino) -> Result<Attr> {
        let inode = self.get(op, ino)?;
        let allocated_bytes = match &inode.body {
            Body::File(data) => data.blocks() * BLOCK,
            _ => 0,
        };
        Ok(Attr { allocated_bytes, ..inode.attr })
    }

    /// The entries of an inode that the caller has checked to be a directory.
    pub fn entries(&self, dir: Ino) -> &Directory {
        match self.inodes.get(&dir).map(|inode| &inode.body) {
            Some(Body::Directory(entries)) => entries,
            _ => unreachable!("M3: checked to be a directory before"),
        }
    }

    /// [`State::entries`], to change them.
    fn entries_mut(&mut self, dir: Ino) -> &mut Directory {
        match &mut self.inode(dir).body {
            Body::Directory(entries) => entries,
            _ => unreachable!("M3: checked to be a directory before anything changed"),
        }
    }

    /// Puts an entry into a directory. The caller has checked that a cookie is free for it.
    pub fn set_entry(&mut self, dir: Ino, name: Name<'_>, ino: Ino) {
        let (kind, bits) = (self.inode(ino).attr.kind, self.options.cookie_bits);
        self.entries_mut(dir).set(name, (ino, kind), bits).expect("M3: room was checked before");
        if kind == FileKind::Directory {
            self.inode(ino).parent = dir;
        }
    }

    pub fn remove_entry(&mut self, dir: Ino, name: Name<'_>) {
        self.entries_mut(dir).remove(name);
    }

    /// Whether one more inode may be made.
    pub fn check_inodes(&self, op: &'static str) -> Result<()> {
        match (self.inodes.len() as u64) < self.options.inodes_max {
            true => Ok(()),
            false => refuse(ErrorKind::NoSpace, op, "no inodes left"),
        }
    }

    /// Whether `blocks` more fit.
    pub fn check_blocks(&self, op: &'static str, blocks: u64) -> Result<()> {
        let free = (self.options.capacity_bytes / BLOCK).saturating_sub(self.used_blocks);
        match blocks <= free {
            true => Ok(()),
            false => refuse(ErrorKind::NoSpace, op, format!("{blocks} blocks wanted, {free} free")),
        }
    }

    /// A new inode.
    pub fn add(&mut self, made: &Made, body: Body, parent: Ino) -> Ino {
        let (ino, now) = (Ino(self.next_ino), self.now());
        self.next_ino += 1;
        let attr = Attr {
            ino,
            generation: 1,
            kind: made.kind,
            perm: made.perm,
            nlink: made.nlink,
            uid: made.uid,
            gid: made.gid,
            rdev: made.rdev,
            size: if let Body::Symlink(target) = &body { target.len() as u64 } else { 0 },
            allocated_bytes: 0,
            atime: now,
            mtime: now,
            ctime: now,
            btime: now,
        };
        let linkable = made.is_linkable;
        let inode = Inode { attr, body, xattrs: BTreeMap::new(), parent, linkable };
        self.inodes.insert(ino, Arc::new(inode));
        ino
    }

    /// Something read `ino`.
    pub fn touch_atime(&mut self, ino: Ino) {
        let now = self.now();
        if !self.options.noatime && relatime(&self.inode(ino).attr, now) {
            self.inode(ino).attr.atime = now;
        }
    }

    /// Changes content, and keeps `used_blocks` right (M2).
    pub fn change_data<T>(&mut self, ino: Ino, change: impl FnOnce(&mut Data) -> T) -> T {
        let Body::File(data) = &mut self.inode(ino).body else {
            unreachable!("M3: checked to be a regular file before anything changed")
        };
        let before = data.blocks();
        let result = change(data);
        let after = data.blocks();
        self.used_blocks = self.used_blocks + after - before;
        result
    }

    pub fn opened(&mut self, ino: Ino) {
        *self.opens.entry(ino).or_default() += 1;
    }

    pub fn released(&mut self, ino: Ino) {
        let count = self.opens.get_mut(&ino).expect("M1: an open inode is counted");
        *count -= 1;
        if *count == 0 {
            self.opens.remove(&ino);
            self.reap(ino);
        }
    }

    /// Takes an inode out of the table if it has no name and is not open (M1).
    fn reap(&mut self, ino: Ino) {
        let named = self.inodes.get(&ino).is_none_or(|inode| inode.attr.nlink > 0);
        if !named && !self.opens.contains_key(&ino) {
            self.take_out(ino);
        }
    }

    /// Takes an inode out of the table.
    pub fn take_out(&mut self, ino: Ino) {
        if let Some(inode) = self.inodes.remove(&ino)
            && let Body::File(data) = &inode.body
        {
            self.used_blocks -= data.blocks();
        }
    }

    /// Forgets who has what open.
    pub fn forget_opens(&mut self) {
        let open: Vec<Ino> = std::mem::take(&mut self.opens).into_keys().collect();
        open.into_iter().for_each(|ino| self.reap(ino));
    }

    /// Checks M1 and M2, and of the contract fs.F1 and fs.F2. For tests.
    pub fn check(&self) {
        let mut links: BTreeMap<Ino, u32> = BTreeMap::new();
        let mut blocks = 0;
        for (ino, inode) in &self.inodes {
            match &inode.body {
                Body::File(data) => blocks += data.blocks(),
                Body::Directory(entries) => {
                    let alive = inode.attr.nlink > 0;
                    assert!(alive || entries.len() == 0, "F2: {ino:?} was removed with entries");
                    *links.entry(*ino).or_default() += if alive { 2 } else { 0 };
                    for (_, child) in entries.names() {
                        let child = self.inodes.get(&child).expect("M1: an entry has an inode");
                        let directory = child.attr.kind == FileKind::Directory;
                        assert!(
                            !directory || child.parent == *ino,
                            "F1: one entry for a directory"
                        );
                        let counted = if directory { *ino } else { child.attr.ino };
                        *links.entry(counted).or_default() += 1;
                    }
                }
                _ => {}
            }
        }
        for (ino, inode) in &self.inodes {
            let counted = links.get(ino).copied().unwrap_or_default();
            assert_eq!(counted, inode.attr.nlink, "F2: links of {ino:?}");
            assert!(
                counted > 0 || self.opens.contains_key(ino),
                "M1: {ino:?} has no name and is not open"
            );
        }
        assert_eq!(blocks, self.used_blocks, "M2: blocks in use");
    }
}
