//! Inodes of the file system in memory, and what every operation on them needs.
//!
//! Invariants: M1 an inode is in the table as long as it has a name or is open. M2 `used_blocks` is
//! the sum over all inodes. M3 an operation checks everything that can refuse it before it changes
//! anything.
//!
//! No locks: [`super::MemFs`] holds its one around every call.

use super::MemOptions;
use super::data::{BLOCK, Data};
use super::dir::Directory;
use crate::name::Name;
use crate::types::{
    Attr, FileKind, Ino, NewInode, Privileges, Timestamp, XATTR_CAPABILITY, relatime,
    without_set_id,
};
use forebay_base::{Error, ErrorKind, Result};
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

/// An error of `kind` in `op` about `what`.
pub fn refuse<T>(kind: ErrorKind, op: &'static str, what: impl ToString) -> Result<T> {
    Err(Error::new(kind, op, what.to_string()))
}

impl State {
    pub fn new(options: MemOptions) -> Self {
        let now = options.clock.now();
        let mut state = Self {
            options,
            inodes: BTreeMap::new(),
            opens: BTreeMap::new(),
            next_ino: Ino::ROOT.0,
            used_blocks: 0,
        };
        let new = NewInode::of(FileKind::Directory, 0o755);
        let body = Body::Directory(Directory::default());
        state.add(&new, (new.gid, new.perm), body, Ino::ROOT, now);
        state
    }

    pub fn now(&self) -> Timestamp {
        self.options.clock.now()
    }

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

    /// The entries of `dir`: `Stale`, `NotDirectory`.
    pub fn entries(&self, op: &'static str, dir: Ino) -> Result<&Directory> {
        match &self.get(op, dir)?.body {
            Body::Directory(entries) => Ok(entries),
            _ => refuse(ErrorKind::NotDirectory, op, format!("{dir:?}")),
        }
    }

    /// The entries of a directory that is in the tree: also `NotFound`.
    pub fn live_entries(&self, op: &'static str, dir: Ino) -> Result<&Directory> {
        let entries = self.entries(op, dir)?;
        match self.get(op, dir)?.attr.nlink {
            0 => refuse(ErrorKind::NotFound, op, format!("{dir:?} was removed")),
            _ => Ok(entries),
        }
    }

    /// The same, to change; for a directory that was looked at before.
    fn entries_mut(&mut self, dir: Ino) -> &mut Directory {
        match &mut self.inode(dir).body {
            Body::Directory(entries) => entries,
            _ => unreachable!("M3: checked to be a directory before anything changed"),
        }
    }

    /// Puts an entry into a directory that has room for it.
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

    /// A new inode; without links, but for a directory's own two.
    pub fn add(
        &mut self,
        new: &NewInode,
        (gid, perm): (u32, u16),
        body: Body,
        parent: Ino,
        now: Timestamp,
    ) -> Ino {
        let ino = Ino(self.next_ino);
        self.next_ino += 1;
        let device = matches!(new.kind, FileKind::CharDevice | FileKind::BlockDevice);
        let attr = Attr {
            ino,
            generation: 1,
            kind: new.kind,
            perm,
            nlink: if new.kind == FileKind::Directory { 2 } else { 0 },
            uid: new.uid,
            gid,
            rdev: if device { new.rdev } else { 0 },
            size: if let Body::Symlink(target) = &body { target.len() as u64 } else { 0 },
            allocated_bytes: 0,
            atime: now,
            mtime: now,
            ctime: now,
            btime: now,
        };
        let inode = Inode { attr, body, xattrs: BTreeMap::new(), parent, linkable: false };
        self.inodes.insert(ino, Arc::new(inode));
        ino
    }

    /// The entries of `dir` have changed.
    pub fn touch_entries(&mut self, dir: Ino, now: Timestamp) {
        let attr = &mut self.inode(dir).attr;
        (attr.mtime, attr.ctime) = (now, now);
    }

    /// Something read `ino`.
    pub fn touch_atime(&mut self, ino: Ino) {
        let now = self.now();
        if !self.options.noatime && relatime(&self.inode(ino).attr, now) {
            self.inode(ino).attr.atime = now;
        }
    }

    /// The content of a regular file has changed.
    pub fn touch_content(&mut self, ino: Ino, now: Timestamp, privileges: Privileges) {
        let inode = self.inode(ino);
        (inode.attr.mtime, inode.attr.ctime) = (now, now);
        inode.xattrs.remove(XATTR_CAPABILITY);
        if privileges == Privileges::Drop {
            inode.attr.perm = without_set_id(inode.attr.perm);
        }
    }

    /// Changes content, and keeps count (M2).
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

    /// One link less; the inode goes with its last one unless it is open.
    pub fn drop_link(&mut self, ino: Ino, now: Timestamp) {
        let attr = &mut self.inode(ino).attr;
        attr.ctime = now;
        attr.nlink = match attr.kind {
            FileKind::Directory => 0,
            _ => attr.nlink - 1,
        };
        self.reap(ino);
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

    /// Takes an inode out of the table that has no name and is not open (M1).
    fn reap(&mut self, ino: Ino) {
        let named = self.inodes.get(&ino).is_none_or(|inode| inode.attr.nlink > 0);
        if named || self.opens.contains_key(&ino) {
            return;
        }
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

    /// M1 and M2, and the tree's own: F1 and F2 of the contract. For tests.
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
            assert!(counted > 0 || self.opens.contains_key(ino), "M1: {ino:?} is nobody's");
        }
        assert_eq!(blocks, self.used_blocks, "M2: blocks in use");
    }
}
