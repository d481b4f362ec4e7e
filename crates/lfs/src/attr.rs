//! Attributes, plain and extended.
//!
//! Lock: the state lock, held by the caller.

use crate::format::change::Change;
use crate::format::inode::SetAttributes;
use crate::inode::{refuse, time};
use crate::namei::Call;
use crate::space::Need;
use crate::state::State;
use forebay_base::{ErrorKind, Result};
use forebay_vfs::name::{XATTR_LIST_MAX, XATTR_SIZE_MAX};
use forebay_vfs::types::{XATTR_CAPABILITY, relatime, without_set_id};
use forebay_vfs::{FileKind, Ino, Privileges, SetAttr, SetTime, SetXattr, XattrName};

impl State {
    /// What can be refused of setting attributes, the size included.
    pub fn check_setattr(&self, ino: Ino, set: &SetAttr) -> Result<()> {
        let kind = self.get("setattr", ino)?.kind();
        if let Some(size) = set.size {
            self.regular("setattr", ino)?;
            forebay_vfs::types::check_range("setattr", size, 0)?;
        }
        if set.perm.is_some() && kind == FileKind::Symlink {
            return refuse(ErrorKind::Unsupported, "setattr", "mode of a symbolic link");
        }
        Ok(())
    }

    /// Sets everything but the size, as one record; what a new size does to attributes included.
    pub fn setattr(&mut self, ino: Ino, set: &SetAttr, call: Call) -> Result<()> {
        self.check_setattr(ino, set)?;
        let node = self.get("setattr", ino)?;
        let mut perm = node.perm();
        let mut capability = false;
        let mut attributes = SetAttributes { ctime: Some(call.now), ..SetAttributes::default() };
        if set.size.is_some() {
            attributes.mtime = Some(call.now);
            capability = true;
            if set.privileges == Privileges::Drop {
                perm = without_set_id(perm);
            }
        }
        if set.uid.is_some() || set.gid.is_some() {
            (attributes.uid, attributes.gid) = (set.uid, set.gid);
            if node.kind() != FileKind::Directory {
                perm = without_set_id(perm);
                capability = true;
            }
        }
        let perm = set.perm.map_or(perm, |perm| perm & 0o7777);
        if perm != node.perm() {
            attributes.mode = Some(node.mode_with(perm));
        }
        let at = |set: SetTime| match set {
            SetTime::Now => call.now,
            SetTime::To(at) => time(at),
        };
        attributes.atime = set.atime.map(at);
        attributes.mtime = set.mtime.map(at).or(attributes.mtime);
        let mut changes = vec![Change::SetAttributes(ino.0, attributes)];
        if capability && node.xattrs.contains_key(XATTR_CAPABILITY) {
            changes.push(Change::RemoveXattr(ino.0, XATTR_CAPABILITY));
        }
        let need = if set.size.is_some() { Need::Urgent } else { Need::New };
        self.append(&changes, need).map(drop)
    }

    /// The content of a regular file has changed: times move, privileges go.
    pub fn touch_content(&mut self, ino: Ino, call: Call, privileges: Privileges) -> Result<()> {
        let node = self.get("write", ino)?;
        let perm = match privileges {
            Privileges::Drop => without_set_id(node.perm()),
            Privileges::Keep => node.perm(),
        };
        let mut changes = Vec::new();
        if perm != node.perm() {
            let mode = Some(node.mode_with(perm));
            let set = SetAttributes { mode, ..SetAttributes::default() };
            changes.push(Change::SetAttributes(ino.0, set));
        }
        if node.xattrs.contains_key(XATTR_CAPABILITY) {
            changes.push(Change::RemoveXattr(ino.0, XATTR_CAPABILITY));
        }
        if !changes.is_empty() {
            self.append(&changes, Need::Urgent)?;
        }
        self.move_times(ino, |inode| (inode.mtime, inode.ctime) = (call.now, call.now));
        Ok(())
    }

    /// Something read `ino`.
    pub fn touch_atime(&mut self, ino: Ino, call: Call, noatime: bool) {
        let Ok(attr) = self.attr("read", ino) else { return };
        if !noatime && relatime(&attr, crate::inode::timestamp(call.now)) {
            self.move_times(ino, |inode| inode.atime = call.now);
        }
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
        call: Call,
    ) -> Result<()> {
        let node = self.get("setxattr", ino)?;
        if value.len() > XATTR_SIZE_MAX {
            return refuse(ErrorKind::TooBig, "setxattr", format!("{} bytes", value.len()));
        }
        match (how, node.xattrs.contains_key(name.as_bytes())) {
            (SetXattr::Create, true) => {
                return refuse(ErrorKind::Exists, "setxattr", format!("{name:?}"));
            }
            (SetXattr::Replace, false) => {
                return refuse(ErrorKind::NoAttribute, "setxattr", format!("{name:?}"));
            }
            (_, true) => {}
            (_, false) => {
                let list: usize = node.xattrs.keys().map(|name| name.len() + 1).sum();
                if list + name.as_bytes().len() + 1 > XATTR_LIST_MAX {
                    return refuse(ErrorKind::NoSpace, "setxattr", "the list of names is full");
                }
            }
        }
        let set = SetAttributes { ctime: Some(call.now), ..SetAttributes::default() };
        let changes =
            [Change::SetXattr(ino.0, name.as_bytes(), value), Change::SetAttributes(ino.0, set)];
        self.append(&changes, Need::New).map(drop)
    }

    pub fn listxattr(&self, ino: Ino) -> Result<Vec<Box<[u8]>>> {
        Ok(self.get("listxattr", ino)?.xattrs.keys().cloned().collect())
    }

    pub fn removexattr(&mut self, ino: Ino, name: XattrName<'_>, call: Call) -> Result<()> {
        if !self.get("removexattr", ino)?.xattrs.contains_key(name.as_bytes()) {
            return refuse(ErrorKind::NoAttribute, "removexattr", format!("{name:?}"));
        }
        let set = SetAttributes { ctime: Some(call.now), ..SetAttributes::default() };
        let changes =
            [Change::RemoveXattr(ino.0, name.as_bytes()), Change::SetAttributes(ino.0, set)];
        self.append(&changes, Need::Urgent).map(drop)
    }

    /// Appends the times that have moved: of one inode, or of all.
    pub fn write_times(&mut self, of: Option<Ino>) -> Result<()> {
        let inodes: Vec<u64> = match of {
            Some(ino) => vec![ino.0],
            None => self.moved.iter().copied().collect(),
        };
        for ino in inodes {
            if let Some(set) = self.moved_times(ino)
                && let Err(error) = self.append(&[Change::SetAttributes(ino, set)], Need::Urgent)
            {
                self.move_times(Ino(ino), |_| ());
                return Err(error);
            }
        }
        Ok(())
    }
}
