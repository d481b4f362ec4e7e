//! Attributes, plain and extended, of the file system in memory.
//!
//! Locks: as in [`super::state`].

use super::state::{Body, State, refuse};
use crate::name::{XATTR_LIST_MAX, XATTR_SIZE_MAX, XattrName};
use crate::types::{
    Attr, FileKind, Ino, Privileges, SetAttr, SetTime, SetXattr, Timestamp, XATTR_CAPABILITY,
    check_range, without_set_id,
};
use forebay_base::{ErrorKind, Result};

impl State {
    pub fn setattr(&mut self, ino: Ino, set: &SetAttr) -> Result<Attr> {
        let attr = self.get("setattr", ino)?.attr;
        if let Some(size) = set.size {
            self.check_regular("setattr", ino)?;
            check_range("setattr", size, 0)?;
        }
        if set.perm.is_some() && attr.kind == FileKind::Symlink {
            return refuse(ErrorKind::Unsupported, "setattr", "mode of a symbolic link");
        }
        if set.is_empty() {
            return self.attr("setattr", ino);
        }
        let now = self.now();
        if let Some(size) = set.size {
            self.set_size(ino, size, now, set.privileges);
        }
        let inode = self.inode(ino);
        if set.uid.is_some() || set.gid.is_some() {
            inode.attr.uid = set.uid.unwrap_or(inode.attr.uid);
            inode.attr.gid = set.gid.unwrap_or(inode.attr.gid);
            if attr.kind != FileKind::Directory {
                inode.attr.perm = without_set_id(inode.attr.perm);
                inode.xattrs.remove(XATTR_CAPABILITY);
            }
        }
        let perm = set.perm.map(|perm| perm & 0o7777);
        inode.attr.perm = perm.unwrap_or(inode.attr.perm);
        let time = |set: SetTime| match set {
            SetTime::Now => now,
            SetTime::To(time) => time,
        };
        inode.attr.atime = set.atime.map_or(inode.attr.atime, time);
        inode.attr.mtime = set.mtime.map_or(inode.attr.mtime, time);
        inode.attr.ctime = now;
        self.attr("setattr", ino)
    }

    /// `IsDirectory` or `InvalidInput` for what has no content.
    pub fn check_regular(&self, op: &'static str, ino: Ino) -> Result<()> {
        match self.get(op, ino)?.attr.kind {
            FileKind::File => Ok(()),
            FileKind::Directory => refuse(ErrorKind::IsDirectory, op, format!("{ino:?}")),
            kind => refuse(ErrorKind::InvalidInput, op, format!("{ino:?} is a {kind:?}")),
        }
    }

    /// Of a regular file.
    pub fn set_size(&mut self, ino: Ino, size: u64, now: Timestamp, privileges: Privileges) {
        let old = self.inode(ino).attr.size;
        if size < old {
            self.change_data(ino, |data| data.zero(size, crate::types::FILE_SIZE_MAX + 1));
        }
        self.inode(ino).attr.size = size;
        self.touch_content(ino, now, privileges);
    }

    pub fn getxattr(&self, ino: Ino, name: XattrName<'_>) -> Result<Vec<u8>> {
        match self.get("getxattr", ino)?.xattrs.get(name.as_bytes()) {
            Some(value) => Ok(value.to_vec()),
            None => refuse(ErrorKind::NoAttribute, "getxattr", format!("{name:?}")),
        }
    }

    pub fn setxattr(
        &mut self,
        ino: Ino,
        name: XattrName<'_>,
        value: &[u8],
        how: SetXattr,
    ) -> Result<()> {
        let inode = self.get("setxattr", ino)?;
        if value.len() > XATTR_SIZE_MAX {
            return refuse(ErrorKind::TooBig, "setxattr", format!("{} bytes", value.len()));
        }
        match (how, inode.xattrs.contains_key(name.as_bytes())) {
            (SetXattr::Create, true) => {
                return refuse(ErrorKind::Exists, "setxattr", format!("{name:?}"));
            }
            (SetXattr::Replace, false) => {
                return refuse(ErrorKind::NoAttribute, "setxattr", format!("{name:?}"));
            }
            (_, true) => {}
            (_, false) => {
                let list: usize = inode.xattrs.keys().map(|name| name.len() + 1).sum();
                if list + name.as_bytes().len() + 1 > XATTR_LIST_MAX {
                    return refuse(ErrorKind::NoSpace, "setxattr", "the list of names is full");
                }
            }
        }
        let now = self.now();
        let inode = self.inode(ino);
        inode.xattrs.insert(name.as_bytes().into(), value.into());
        inode.attr.ctime = now;
        Ok(())
    }

    pub fn listxattr(&self, ino: Ino) -> Result<Vec<Box<[u8]>>> {
        Ok(self.get("listxattr", ino)?.xattrs.keys().cloned().collect())
    }

    pub fn removexattr(&mut self, ino: Ino, name: XattrName<'_>) -> Result<()> {
        if !self.get("removexattr", ino)?.xattrs.contains_key(name.as_bytes()) {
            return refuse(ErrorKind::NoAttribute, "removexattr", format!("{name:?}"));
        }
        let now = self.now();
        let inode = self.inode(ino);
        inode.xattrs.remove(name.as_bytes());
        inode.attr.ctime = now;
        Ok(())
    }

    /// Content of a regular file, as it was checked to be.
    pub fn data(&self, op: &'static str, ino: Ino) -> Result<&super::data::Data> {
        self.check_regular(op, ino)?;
        match &self.get(op, ino)?.body {
            Body::File(data) => Ok(data),
            _ => refuse(ErrorKind::Corrupt, op, format!("{ino:?} has no content")),
        }
    }
}
