//! Rules of attributes, extended attributes, and of the effect of content changes on them.
//!
//! Invariants: as in [`super`].
//!
//! No locks.

use super::{Look, Patch, Seen, View, check_handle, inode, refuse, regular};
use crate::name::{XATTR_LIST_MAX, XATTR_SIZE_MAX, XattrName};
use crate::types::{
    FILE_SIZE_MAX, FileKind, Ino, OpenFlags, Privileges, SetAttr, SetTime, SetXattr, Timestamp,
    check_range, without_set_id,
};
use forebay_base::{ErrorKind, Result};

/// Checks a change of attributes, including the size.
pub fn check_set<V: View + ?Sized>(view: &V, ino: Ino, set: &SetAttr) -> Look<Seen, V> {
    let seen = inode(view, "setattr", ino)?;
    if let Some(size) = set.size {
        regular(view, "setattr", ino)?;
        check_range("setattr", size, 0)?;
    }
    match set.perm.is_some() && seen.kind == FileKind::Symlink {
        true => refuse(ErrorKind::Unsupported, "setattr", "mode of a symbolic link"),
        false => Ok(seen),
    }
}

/// The changes of `setattr`, except for the size itself; `None`: nothing changes.
pub fn set(seen: &Seen, set: &SetAttr, now: Timestamp) -> Option<Patch> {
    if set.is_empty() {
        return None;
    }
    let mut patch = match set.size {
        Some(_) => content_changed(seen, set.privileges, now),
        None => Patch { ctime: Some(now), ..Patch::default() },
    };
    let mut perm = patch.perm.unwrap_or(seen.perm);
    if set.uid.is_some() || set.gid.is_some() {
        (patch.uid, patch.gid) = (set.uid, set.gid);
        if seen.kind != FileKind::Directory {
            perm = without_set_id(perm);
            patch.drops_capability = true;
        }
    }
    // Explicit permission bits take precedence.
    let perm = set.perm.map_or(perm, |perm| perm & 0o7777);
    patch.perm = (perm != seen.perm).then_some(perm);
    let time = |set: SetTime| match set {
        SetTime::Now => now,
        SetTime::To(time) => time,
    };
    patch.atime = set.atime.map(time);
    patch.mtime = set.mtime.map(time).or(patch.mtime);
    Some(patch)
}

/// The changes of attributes when the content or size of a regular file has changed.
pub fn content_changed(seen: &Seen, privileges: Privileges, now: Timestamp) -> Patch {
    let perm = match privileges {
        Privileges::Drop => without_set_id(seen.perm),
        Privileges::Keep => seen.perm,
    };
    Patch {
        perm: (perm != seen.perm).then_some(perm),
        mtime: Some(now),
        ctime: Some(now),
        drops_capability: true,
        ..Patch::default()
    }
}

/// Number of bytes out of `len` that can be written at `offset`: up to the largest file size.
/// `FileTooLarge` if none can.
pub fn write_len(offset: u64, len: usize) -> Result<usize> {
    check_range("write", offset, u64::from(len > 0))?;
    Ok((len as u64).min(FILE_SIZE_MAX - offset) as usize)
}

/// Checks a call of [`crate::OpenFile::fallocate`].
pub fn check_fallocate<V: View + ?Sized>(
    view: &V,
    (ino, flags): (Ino, OpenFlags),
    offset: u64,
    len: u64,
) -> Look<Seen, V> {
    let seen = regular(view, "fallocate", ino)?;
    if len == 0 {
        return refuse(ErrorKind::InvalidInput, "fallocate", "no bytes");
    }
    check_handle("fallocate", ino, flags, OpenFlags::WRITE)?;
    check_range("fallocate", offset, len)?;
    Ok(seen)
}

/// Checks whether an extended attribute may be set to `value`. `is_there`: it exists. `names`: all
/// names of the inode.
pub fn check_set_xattr<'a>(
    name: XattrName<'_>,
    value: &[u8],
    how: SetXattr,
    is_there: bool,
    names: impl Iterator<Item = &'a [u8]>,
) -> Result<()> {
    if value.len() > XATTR_SIZE_MAX {
        return refuse(ErrorKind::TooBig, "setxattr", format!("{} bytes", value.len()));
    }
    match (how, is_there) {
        (SetXattr::Create, true) => refuse(ErrorKind::Exists, "setxattr", format!("{name:?}")),
        (SetXattr::Replace, false) => {
            refuse(ErrorKind::NoAttribute, "setxattr", format!("{name:?}"))
        }
        (_, true) => Ok(()),
        (_, false) => {
            let list: usize = names.map(|name| name.len() + 1).sum();
            match list + name.as_bytes().len() < XATTR_LIST_MAX {
                true => Ok(()),
                false => refuse(ErrorKind::NoSpace, "setxattr", "the list of names is full"),
            }
        }
    }
}

/// Checks that an extended attribute exists, for reading or removing it.
pub fn xattr<T>(op: &'static str, name: XattrName<'_>, found: Option<T>) -> Result<T> {
    match found {
        Some(found) => Ok(found),
        None => refuse(ErrorKind::NoAttribute, op, format!("{name:?}")),
    }
}

/// The changes of other attributes when an extended attribute changes.
pub fn xattr_changed(now: Timestamp) -> Patch {
    Patch { ctime: Some(now), ..Patch::default() }
}
