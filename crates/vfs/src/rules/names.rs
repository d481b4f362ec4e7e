//! Rules of creating, opening, linking and removing.
//!
//! Invariants: as in [`super`].
//!
//! No locks.

use super::{
    At, Child, Look, Patch, Seen, View, check_free, check_links, check_open_flags, directory, find,
    inode, is_dir, live_directory, refuse,
};
use crate::types::{FileKind, Ino, NewInode, OpenFlags, SYMLINK_MAX, Timestamp};
use forebay_base::ErrorKind;

/// A new inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Made {
    /// The kind of the file.
    pub kind: FileKind,
    /// Permission bits.
    pub perm: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number; 0 for other kinds.
    pub rdev: u32,
    /// Number of its names.
    pub nlink: u32,
    /// It has no name yet, and may get one.
    pub is_linkable: bool,
    /// Changes of its directory, if it has a name.
    pub directory: Patch,
}

/// State of an inode that has lost a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// It has other names.
    Stays(Patch),
    /// It has no name, and is open.
    Orphan(Patch),
    /// It is freed.
    Goes,
}

/// The result of resolving a name that is to be created.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Created {
    /// A new file is created.
    New(Made),
    /// An existing inode is opened.
    Old(Child),
}

/// Result of adding a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Linked {
    /// Kind of the inode.
    pub kind: FileKind,
    /// It had no name before.
    pub is_first: bool,
    /// Changes of the inode.
    pub inode: Patch,
    /// Changes of the new name's directory.
    pub directory: Patch,
}

/// Result of removing a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Removed {
    /// The inode that it denoted.
    pub child: Child,
    /// State of that inode.
    pub fate: Fate,
    /// Changes of its directory.
    pub directory: Patch,
}

/// A new inode in a directory: the attributes that it inherits, and the changes of the directory.
fn make(new: &NewInode, dir: Seen, now: Timestamp) -> Made {
    let device = matches!(new.kind, FileKind::CharDevice | FileKind::BlockDevice);
    let is_directory = new.kind == FileKind::Directory;
    let (gid, perm) = new.inherit((dir.gid, dir.perm));
    Made {
        kind: new.kind,
        perm: if new.kind == FileKind::Symlink { 0o777 } else { perm },
        uid: new.uid,
        gid,
        rdev: if device { new.rdev } else { 0 },
        nlink: if is_directory { 2 } else { 1 },
        is_linkable: false,
        directory: Patch::of_directory(dir.nlink, i32::from(is_directory), now),
    }
}

/// [`crate::FileSystem::mknod`].
pub fn mknod<V: View + ?Sized>(
    view: &V,
    at: At<'_>,
    new: &NewInode,
    now: Timestamp,
) -> Look<Made, V> {
    let dir = check_free(view, "mknod", at)?;
    match new.kind {
        FileKind::Directory | FileKind::Symlink => {
            refuse(ErrorKind::InvalidInput, "mknod", format!("{:?}", new.kind))
        }
        _ => Ok(make(new, dir, now)),
    }
}

/// [`crate::FileSystem::mkdir`].
pub fn mkdir<V: View + ?Sized>(
    view: &V,
    at: At<'_>,
    new: &NewInode,
    now: Timestamp,
) -> Look<Made, V> {
    let dir = check_free(view, "mkdir", at)?;
    check_links(view, "mkdir", at.0, dir.nlink)?;
    Ok(make(&NewInode { kind: FileKind::Directory, ..*new }, dir, now))
}

/// [`crate::FileSystem::symlink`].
pub fn symlink<V: View + ?Sized>(
    view: &V,
    at: At<'_>,
    target: &[u8],
    new: &NewInode,
    now: Timestamp,
) -> Look<Made, V> {
    let dir = match target.len() {
        0 => return refuse(ErrorKind::NotFound, "symlink", "an empty target"),
        len if len > SYMLINK_MAX => {
            return refuse(ErrorKind::NameTooLong, "symlink", format!("{len} bytes"));
        }
        _ if target.contains(&0) => {
            return refuse(ErrorKind::InvalidInput, "symlink", "NUL in the target");
        }
        _ => check_free(view, "symlink", at)?,
    };
    Ok(make(&NewInode { kind: FileKind::Symlink, ..*new }, dir, now))
}

/// [`crate::FileSystem::create`].
pub fn create<V: View + ?Sized>(
    view: &V,
    at: At<'_>,
    new: &NewInode,
    flags: OpenFlags,
    now: Timestamp,
) -> Look<Created, V> {
    let dir = live_directory(view, "create", at.0)?;
    match view.entry(at)? {
        None => {
            check_open_flags(flags)?;
            Ok(Created::New(make(&NewInode { kind: FileKind::File, ..*new }, dir, now)))
        }
        Some(_) if flags.contains(OpenFlags::EXCLUSIVE) => {
            refuse(ErrorKind::Exists, "create", format!("{:?}", at.1))
        }
        Some((_, FileKind::Symlink)) => {
            refuse(ErrorKind::SymlinkLoop, "create", "the name of a symbolic link")
        }
        Some((_, FileKind::Directory)) => {
            refuse(ErrorKind::IsDirectory, "create", format!("{:?}", at.1))
        }
        Some(child) => {
            open(view, child.0, flags)?;
            Ok(Created::Old(child))
        }
    }
}

/// [`crate::FileSystem::tmpfile`]. The file has no name, so its directory does not change.
pub fn tmpfile<V: View + ?Sized>(
    view: &V,
    dir: Ino,
    new: &NewInode,
    flags: OpenFlags,
    now: Timestamp,
) -> Look<Made, V> {
    let seen = live_directory(view, "tmpfile", dir)?;
    check_open_flags(flags)?;
    let made = make(&NewInode { kind: FileKind::File, ..*new }, seen, now);
    let is_linkable = !flags.contains(OpenFlags::EXCLUSIVE);
    Ok(Made { nlink: 0, is_linkable, directory: Patch::default(), ..made })
}

/// [`crate::FileSystem::open`]: returns the kind. The caller then truncates a regular file if the
/// flags say so.
pub fn open<V: View + ?Sized>(view: &V, ino: Ino, flags: OpenFlags) -> Look<FileKind, V> {
    let kind = inode(view, "open", ino)?.kind;
    check_open_flags(flags)?;
    match kind == FileKind::Directory && flags.contains(OpenFlags::WRITE) {
        true => refuse(ErrorKind::IsDirectory, "open", format!("{ino:?}")),
        false => Ok(kind),
    }
}

/// [`crate::FileSystem::link`].
pub fn link<V: View + ?Sized>(view: &V, ino: Ino, at: At<'_>, now: Timestamp) -> Look<Linked, V> {
    let seen = inode(view, "link", ino)?;
    let dir = check_free(view, "link", at)?;
    if seen.kind == FileKind::Directory {
        return refuse(ErrorKind::NotPermitted, "link", format!("{ino:?} is a directory"));
    }
    if seen.nlink == 0 && !seen.is_linkable {
        return refuse(ErrorKind::NotFound, "link", format!("{ino:?} was removed"));
    }
    check_links(view, "link", ino, seen.nlink)?;
    Ok(Linked {
        kind: seen.kind,
        is_first: seen.nlink == 0,
        inode: Patch { nlink: Some(seen.nlink + 1), ..Patch::ctime(now) },
        directory: Patch::of_directory(dir.nlink, 0, now),
    })
}

/// State of an inode that loses a link; a directory has only one.
pub(super) fn fate(seen: Seen, now: Timestamp) -> Fate {
    let nlink = if seen.kind == FileKind::Directory { 0 } else { seen.nlink.saturating_sub(1) };
    let patch = Patch { nlink: Some(nlink), ..Patch::ctime(now) };
    match (nlink, seen.is_open) {
        (0, false) => Fate::Goes,
        (0, true) => Fate::Orphan(patch),
        _ => Fate::Stays(patch),
    }
}

fn remove<V: View + ?Sized>(
    view: &V,
    op: &'static str,
    dir: Ino,
    child: Child,
    now: Timestamp,
) -> Look<Removed, V> {
    let (directory, seen) = (inode(view, op, dir)?, inode(view, op, child.0)?);
    let less = -i32::from(is_dir(child));
    let directory = Patch::of_directory(directory.nlink, less, now);
    Ok(Removed { child, fate: fate(seen, now), directory })
}

/// [`crate::FileSystem::unlink`].
pub fn unlink<V: View + ?Sized>(view: &V, at: At<'_>, now: Timestamp) -> Look<Removed, V> {
    let child = find(view, "unlink", at)?;
    if is_dir(child) {
        return refuse(ErrorKind::IsDirectory, "unlink", format!("{:?}", at.1));
    }
    remove(view, "unlink", at.0, child, now)
}

/// [`crate::FileSystem::rmdir`].
pub fn rmdir<V: View + ?Sized>(view: &V, at: At<'_>, now: Timestamp) -> Look<Removed, V> {
    let child = find(view, "rmdir", at)?;
    directory(view, "rmdir", child.0)?;
    if view.has_entries(child.0)? {
        return refuse(ErrorKind::NotEmpty, "rmdir", format!("{:?}", at.1));
    }
    remove(view, "rmdir", at.0, child, now)
}

/// [`crate::FileSystem::readlink`], before the target is read.
pub fn readlink<V: View + ?Sized>(view: &V, ino: Ino) -> Look<(), V> {
    match inode(view, "readlink", ino)?.kind {
        FileKind::Symlink => Ok(()),
        _ => refuse(ErrorKind::InvalidInput, "readlink", format!("{ino:?} is none")),
    }
}

/// [`crate::FileSystem::parent`].
pub fn parent<V: View + ?Sized>(view: &V, dir: Ino) -> Look<Ino, V> {
    Ok(live_directory(view, "parent", dir)?.parent)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// types.T2: permission bits are masked; group and set-group-id bit are inherited from the
    /// directory.
    #[test]
    fn t2_new_inode_inherits_group_and_set_gid() {
        let (parent, now) = (Ino::ROOT, Timestamp::default());
        let kind = FileKind::Directory;
        let (is_open, is_linkable) = (false, false);
        let plain = Seen { kind, perm: 0o755, nlink: 2, gid: 7, parent, is_open, is_linkable };
        let set_gid = Seen { perm: 0o2755, ..plain };
        let new = NewInode::of(FileKind::File, 0o17_644);
        let made = |new: &NewInode, dir| {
            let made = make(new, dir, now);
            (made.gid, made.perm, made.directory.nlink)
        };
        assert_eq!(made(&new, plain), (0, 0o7644, None));
        assert_eq!(made(&new, set_gid), (7, 0o7644, None));
        assert_eq!(made(&NewInode::of(kind, 0o700), set_gid), (7, 0o2700, Some(3)));
    }
}
