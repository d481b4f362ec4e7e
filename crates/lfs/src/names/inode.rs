//! Converts inodes between their stored form and the file-system interface.
//!
//! Lock: the state lock, held by the caller.

use crate::format::inode::{FileType, Inode, SetAttributes, Time};
use crate::names::node::Node;
use forebay_vfs::{Attr, FileKind, Ino, Timestamp};

/// A time in stored form.
pub(crate) fn time(at: Timestamp) -> Time {
    Time { seconds: at.sec, nanos: at.nsec }
}

/// A time of the interface.
pub(crate) fn timestamp(at: Time) -> Timestamp {
    Timestamp::new(at.seconds, at.nanos)
}

/// The stored type of a kind.
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

/// The kind of an inode. A mode without a file type is refused when it is decoded.
fn kind_of_inode(inode: &Inode) -> FileKind {
    inode.file_type().map_or(FileKind::File, kind_of)
}

fn perm_of(inode: &Inode) -> u16 {
    (inode.mode & 0o7777) as u16
}

pub(crate) fn attr_of(ino: Ino, inode: &Inode, allocated_bytes: u64) -> Attr {
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

/// Sets the attributes that a record contains.
pub(crate) fn assign(inode: &mut Inode, set: &SetAttributes) {
    inode.mode = set.mode.unwrap_or(inode.mode);
    inode.uid = set.uid.unwrap_or(inode.uid);
    inode.gid = set.gid.unwrap_or(inode.gid);
    inode.nlink = set.nlink.unwrap_or(inode.nlink);
    inode.flags = set.flags.unwrap_or(inode.flags);
    inode.parent = set.parent.unwrap_or(inode.parent);
    inode.version = set.version.unwrap_or(inode.version);
    inode.atime = set.atime.unwrap_or(inode.atime);
    inode.mtime = set.mtime.unwrap_or(inode.mtime);
    inode.ctime = set.ctime.unwrap_or(inode.ctime);
    inode.btime = set.btime.unwrap_or(inode.btime);
}
