//! Inodes as the file-system contract sees them, and what every operation on one checks first.
//!
//! Lock: the state lock, held by the caller.

use crate::format::inode::{FileType, Inode, SetAttributes, Time};
use crate::names::lookup::Tried;
use crate::names::node::Node;
use crate::transaction::state::State;
use forebay_base::ErrorKind;
use forebay_vfs::rules::refuse;
use forebay_vfs::{Attr, FileKind, Ino, Timestamp};

/// As it is stored.
pub(crate) fn time(at: Timestamp) -> Time {
    Time { seconds: at.sec, nanos: at.nsec }
}

/// As the contract has it.
pub(crate) fn timestamp(at: Time) -> Timestamp {
    Timestamp::new(at.seconds, at.nanos)
}

/// The type that is stored for a kind.
pub(crate) fn type_of(kind: FileKind) -> FileType {
    match kind {
        FileKind::File => FileType::Regular,
        FileKind::Directory => FileType::Directory,
        FileKind::Symlink => FileType::Symlink,
        FileKind::Fifo => FileType::Fifo,
        FileKind::Socket => FileType::Socket,
        FileKind::CharDevice => FileType::CharDevice,
        FileKind::BlockDevice => FileType::BlockDevice,
    }
}

/// The kind of a stored type.
pub(crate) fn kind_of(kind: FileType) -> FileKind {
    match kind {
        FileType::Regular => FileKind::File,
        FileType::Directory => FileKind::Directory,
        FileType::Symlink => FileKind::Symlink,
        FileType::Fifo => FileKind::Fifo,
        FileType::Socket => FileKind::Socket,
        FileType::CharDevice => FileKind::CharDevice,
        FileType::BlockDevice => FileKind::BlockDevice,
    }
}

/// What it is. A mode without a type does not decode.
fn kind_of_inode(inode: &Inode) -> FileKind {
    inode.file_type().map_or(FileKind::File, kind_of)
}

fn perm_of(inode: &Inode) -> u16 {
    (inode.mode & 0o7777) as u16
}

fn attr_of(ino: Ino, inode: &Inode, allocated_bytes: u64) -> Attr {
    Attr {
        ino,
        generation: 1,
        kind: kind_of_inode(inode),
        perm: perm_of(inode),
        nlink: inode.nlink,
        uid: inode.uid,
        gid: inode.gid,
        rdev: inode.rdev as u32,
        size: inode.size,
        allocated_bytes,
        atime: timestamp(inode.atime),
        mtime: timestamp(inode.mtime),
        ctime: timestamp(inode.ctime),
        btime: timestamp(inode.btime),
    }
}

impl Node {
    /// What it is.
    pub fn kind(&self) -> FileKind {
        kind_of_inode(&self.inode)
    }

    /// Permission bits.
    pub fn perm(&self) -> u16 {
        perm_of(&self.inode)
    }

    /// A mode with other permission bits.
    pub fn mode_with(&self, perm: u16) -> u32 {
        self.inode.mode & !0o7777 | u32::from(perm & 0o7777)
    }
}

impl State {
    /// `Stale` for an inode that is gone.
    pub fn get(&self, op: &'static str, ino: Ino) -> Tried<&Node> {
        match self.look(ino.0)? {
            Some(node) => Ok(node),
            None => refuse(ErrorKind::Stale, op, format!("{ino:?}")),
        }
    }

    /// Attributes, with the size that is not written out yet.
    pub fn attr(&self, op: &'static str, ino: Ino) -> Tried<Attr> {
        let node = match self.nodes.get(&ino.0) {
            Some(node) => {
                node.looked_at.set(true);
                node
            }
            None => match self.in_window(ino.0) {
                Some(inode) => return Ok(attr_of(ino, &inode, self.stored_of(&inode, inode.size))),
                None => self.get(op, ino)?,
            },
        };
        let attr = attr_of(ino, &node.inode, self.stored_bytes(node));
        Ok(Attr { size: node.live_size().unwrap_or(attr.size), ..attr })
    }

    /// Times of an inode that a later sync has to write (S14).
    pub fn move_times(&mut self, ino: Ino, set: impl FnOnce(&mut Inode)) {
        if let Some(node) = self.nodes.get_mut(&ino.0) {
            set(&mut node.inode);
            node.times_moved = true;
            self.moved.insert(ino.0);
        }
    }

    /// What is to be written of moved times, of one inode.
    pub fn moved_times(&mut self, ino: u64) -> Option<SetAttributes> {
        self.moved.remove(&ino);
        let node = self.nodes.get_mut(&ino)?;
        std::mem::take(&mut node.times_moved).then(|| SetAttributes {
            atime: Some(node.inode.atime),
            mtime: Some(node.inode.mtime),
            ctime: Some(node.inode.ctime),
            ..SetAttributes::default()
        })
    }
}
