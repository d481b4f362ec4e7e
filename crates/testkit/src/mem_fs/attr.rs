//! Attributes, plain and extended, of the file system in memory. Carries out what [`rules`] answer.
//!
//! Locks: as in [`super::state`].

use super::data::Data;
use super::state::{Body, State};
use forebay_base::Result;
use forebay_vfs::name::XattrName;
use forebay_vfs::rules::{self, Patch};
use forebay_vfs::types::{
    Attr, FILE_SIZE_MAX, Ino, Privileges, SetAttr, SetXattr, Timestamp, XATTR_CAPABILITY,
};

impl State {
    pub fn setattr(&mut self, ino: Ino, set: &SetAttr) -> Result<Attr> {
        let seen = rules::attrs::check_set(self, ino, set)?;
        if let Some(patch) = rules::attrs::set(&seen, set, self.now()) {
            if let Some(size) = set.size {
                self.set_size(ino, size);
            }
            self.patch(ino, &patch);
        }
        self.attr("setattr", ino)
    }

    /// Of a regular file.
    fn set_size(&mut self, ino: Ino, size: u64) {
        if size < self.inode(ino).attr.size {
            self.change_data(ino, |data| data.zero(size, FILE_SIZE_MAX + 1));
        }
        self.inode(ino).attr.size = size;
    }

    /// Changes attributes of an inode that is known to be there.
    pub fn patch(&mut self, ino: Ino, patch: &Patch) {
        let inode = self.inode(ino);
        patch.apply(&mut inode.attr);
        if patch.drops_capability {
            inode.xattrs.remove(XATTR_CAPABILITY);
        }
    }

    /// The content of a regular file has changed.
    pub fn touch_content(
        &mut self,
        ino: Ino,
        now: Timestamp,
        privileges: Privileges,
    ) -> Result<()> {
        let seen = rules::inode(self, "write", ino)?;
        self.patch(ino, &rules::attrs::content_changed(&seen, privileges, now));
        Ok(())
    }

    pub fn getxattr(&self, ino: Ino, name: XattrName<'_>) -> Result<Vec<u8>> {
        let value = self.get("getxattr", ino)?.xattrs.get(name.as_bytes());
        rules::attrs::xattr("getxattr", name, value).map(|value| value.to_vec())
    }

    pub fn setxattr(
        &mut self,
        ino: Ino,
        name: XattrName<'_>,
        value: &[u8],
        how: SetXattr,
    ) -> Result<()> {
        let xattrs = &self.get("setxattr", ino)?.xattrs;
        let is_there = xattrs.contains_key(name.as_bytes());
        let names = xattrs.keys().map(|name| &**name);
        rules::attrs::check_set_xattr(name, value, how, is_there, names)?;
        let patch = rules::attrs::xattr_changed(self.now());
        self.inode(ino).xattrs.insert(name.as_bytes().into(), value.into());
        self.patch(ino, &patch);
        Ok(())
    }

    pub fn listxattr(&self, ino: Ino) -> Result<Vec<Box<[u8]>>> {
        Ok(self.get("listxattr", ino)?.xattrs.keys().cloned().collect())
    }

    pub fn removexattr(&mut self, ino: Ino, name: XattrName<'_>) -> Result<()> {
        let value = self.get("removexattr", ino)?.xattrs.get(name.as_bytes());
        rules::attrs::xattr("removexattr", name, value)?;
        let patch = rules::attrs::xattr_changed(self.now());
        self.inode(ino).xattrs.remove(name.as_bytes());
        self.patch(ino, &patch);
        Ok(())
    }

    /// Content of an inode that the caller has checked to be a regular file.
    pub fn data(&self, op: &'static str, ino: Ino) -> Result<&Data> {
        match &self.get(op, ino)?.body {
            Body::File(data) => Ok(data),
            _ => unreachable!("M3: checked to be a regular file before"),
        }
    }
}
