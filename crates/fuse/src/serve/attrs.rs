//! Attributes of inodes, extended ones, and of the file system.
//!
//! No locks.

use super::{BLOCK_BYTES, Core, Outcome, fail, policy, privileges};
use crate::proto::consts::Valid as Set;
use crate::proto::reply::Body;
use crate::proto::request::{Header, SetAttrIn};
use crate::{CONTROL_ATTRIBUTE, PID_ATTRIBUTE};
use forebay_base::{ErrorKind, Result};
use forebay_vfs::{Attr, Ino, SetAttr, SetTime, SetXattr, Timestamp, XattrName};
use std::os::unix::ffi::OsStrExt;

/// With SELinux the kernel answers this attribute itself. Without SELinux, `ls -l` asks for the
/// attribute on each file until a file system answers "not supported".
const LABEL: &[u8] = b"security.selinux";
const XATTR_CREATE: u32 = 1;
const XATTR_REPLACE: u32 = 2;

fn set_of(set: &SetAttrIn) -> SetAttr {
    let has = |flag| set.valid.contains(flag);
    let time = |now, to, (sec, nsec): (u64, u32)| match (has(now), has(to)) {
        (true, _) => Some(SetTime::Now),
        (false, true) => Some(SetTime::To(Timestamp::new(sec as i64, nsec))),
        (false, false) => None,
    };
    SetAttr {
        perm: has(Set::MODE).then_some((set.mode & 0o7777) as u16),
        uid: has(Set::UID).then_some(set.uid),
        gid: has(Set::GID).then_some(set.gid),
        size: has(Set::SIZE).then_some(set.size),
        atime: time(Set::ATIME_NOW, Set::ATIME, set.atime),
        mtime: time(Set::MTIME_NOW, Set::MTIME, set.mtime),
        privileges: privileges(has(Set::KILL_SUIDGID)),
    }
}

fn is_trusted(name: &[u8]) -> bool {
    name.starts_with(b"trusted.")
}

/// The reply to a request for `size` bytes of a value: its length if `size` is 0, else the value.
fn sized(value: &[u8], size: u32) -> Result<Outcome> {
    let mut body = Body::new();
    match size as usize {
        0 => body.size_out(value.len() as u32),
        room if room < value.len() => return fail(ErrorKind::DoesNotFit, "getxattr", "no room"),
        _ => body.bytes(value),
    };
    Ok(Outcome::body(body))
}

impl Core {
    fn attr_out(&self, attr: &Attr, seen: u64) -> Outcome {
        let mut body = Body::with_capacity(112);
        body.attr_out(attr, &self.valid(attr, seen), BLOCK_BYTES);
        Outcome::body(body)
    }

    pub(super) async fn getattr(&self, node: Ino) -> Result<Outcome> {
        let seen = self.epoch();
        Ok(self.attr_out(&self.fs.getattr(node).await?, seen))
    }

    pub(super) async fn statx(&self, node: Ino) -> Result<Outcome> {
        let seen = self.epoch();
        let attr = self.fs.getattr(node).await?;
        let mut body = Body::with_capacity(288);
        body.statx_out(&attr, &self.valid(&attr, seen), BLOCK_BYTES);
        Ok(Outcome::body(body))
    }

    pub(super) async fn setattr(&self, node: Ino, set: &SetAttrIn) -> Result<Outcome> {
        let seen = self.epoch();
        let attr = self.fs.setattr(node, &set_of(set)).await?;
        if set.valid.contains(Set::SIZE) {
            // The kernel drops pages behind the end, with stores into maps that were not written
            // back (ret.R4).
            self.notifier.retriever().count_store_write(node.0);
        }
        Ok(self.attr_out(&attr, seen))
    }

    pub(super) async fn statfs(&self) -> Result<Outcome> {
        let mut body = Body::with_capacity(80);
        body.statfs_out(&self.fs.statfs().await?);
        Ok(Outcome::body(body))
    }

    pub(super) async fn getxattr(&self, node: Ino, name: &[u8], size: u32) -> Result<Outcome> {
        if node == Ino::ROOT && name == PID_ATTRIBUTE.as_bytes() {
            return sized(std::process::id().to_string().as_bytes(), size);
        }
        if node == Ino::ROOT && name == CONTROL_ATTRIBUTE.as_bytes() {
            return match &self.control {
                Some(path) => sized(path.as_os_str().as_bytes(), size),
                None => fail(ErrorKind::NoAttribute, "getxattr", "no control socket"),
            };
        }
        match self.fs.getxattr(node, XattrName::new(name)?).await {
            Err(e) if e.kind() == ErrorKind::NoAttribute && name == LABEL => {
                fail(ErrorKind::Unsupported, "getxattr", "no labels")
            }
            value => sized(&value?, size),
        }
    }

    pub(super) async fn listxattr(&self, header: &Header, size: u32) -> Result<Outcome> {
        let names = self.fs.listxattr(Ino(header.node)).await?;
        let mut list = Vec::new();
        // `trusted.*` names are listed for root only, as other file systems do.
        for name in names.iter().filter(|name| header.uid == 0 || !is_trusted(name)) {
            list.extend_from_slice(name);
            list.push(0);
        }
        sized(&list, size)
    }

    pub(super) async fn setxattr(
        &self,
        node: Ino,
        name: &[u8],
        value: &[u8],
        flags: u32,
    ) -> Result<Outcome> {
        let how = match flags {
            0 => SetXattr::Any,
            XATTR_CREATE => SetXattr::Create,
            XATTR_REPLACE => SetXattr::Replace,
            _ => return fail(ErrorKind::InvalidInput, "setxattr", "no such flags"),
        };
        policy::check(name, value)?;
        self.fs.setxattr(node, XattrName::new(name)?, value, how).await?;
        Ok(Outcome::done())
    }

    pub(super) async fn removexattr(&self, node: Ino, name: &[u8]) -> Result<Outcome> {
        self.fs.removexattr(node, XattrName::new(name)?).await?;
        Ok(Outcome::done())
    }
}
