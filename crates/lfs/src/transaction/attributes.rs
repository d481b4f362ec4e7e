//! Attributes and extended attributes: turns the results of [`rules`] into changes.
//!
//! Lock: the state lock, held by the caller.

use crate::format::change::Change;
use crate::format::inode::SetAttributes;
use crate::names::inode::time;
use crate::names::lookup::Tried;
use crate::names::times_wanted::TimesWanted;
use crate::space::Need;
use crate::transaction::state::State;
use forebay_base::Result;
use forebay_vfs::rules::attrs;
use forebay_vfs::rules::{self, Patch};
use forebay_vfs::types::{XATTR_CAPABILITY, relatime};
use forebay_vfs::{Ino, Privileges, SetAttr, SetXattr, Timestamp, XattrName};

/// The number of inodes whose times share a record. A record for each inode would take a device
/// block and two blocks of padding. On a full volume a sync would then find no space for the times
/// of many files.
const TIMES_AT_ONCE: usize = 64;

impl State {
    /// Appends the changes for a patch of attributes. It appends nothing if the patch changes
    /// nothing.
    pub fn patched(&self, ino: Ino, patch: &Patch, changes: &mut Vec<Change<'_>>) -> Tried<()> {
        let node = self.get("set attributes", ino)?;
        let Patch { perm, uid, gid, nlink, atime, mtime, ctime, drops_capability } = *patch;
        let mode = perm.map(|perm| node.mode_with(perm));
        let (atime, mtime, ctime) = (atime.map(time), mtime.map(time), ctime.map(time));
        let set = SetAttributes {
            mode,
            uid,
            gid,
            nlink,
            atime,
            mtime,
            ctime,
            ..SetAttributes::default()
        };
        if set != SetAttributes::default() {
            changes.push(Change::SetAttributes(ino.0, set));
        }
        if drops_capability && node.xattrs.contains_key(XATTR_CAPABILITY) {
            changes.push(Change::RemoveXattr(ino.0, XATTR_CAPABILITY));
        }
        Ok(())
    }

    /// Sets everything except the size, as one record. It includes the changes of attributes that a
    /// new size causes.
    pub fn setattr(&mut self, ino: Ino, set: &SetAttr, now: Timestamp) -> Tried<()> {
        let seen = attrs::check_set(self, ino, set)?;
        let Some(patch) = attrs::set(&seen, set, now) else { return Ok(()) };
        let mut changes = Vec::new();
        self.patched(ino, &patch, &mut changes)?;
        let need = if set.size.is_some() { Need::Urgent } else { Need::New };
        self.try_append(&changes, need).map(drop)
    }

    /// Notes that the content of a regular file changed: this updates its times and drops
    /// privileges.
    pub fn touch_content(&mut self, ino: Ino, now: Timestamp, kept: Privileges) -> Tried<()> {
        let seen = rules::inode(self, "write", ino)?;
        let patch = attrs::content_changed(&seen, kept, now);
        let mut changes = Vec::new();
        // A later sync writes the times (state.S14).
        self.patched(ino, &Patch { mtime: None, ctime: None, ..patch }, &mut changes)?;
        if !changes.is_empty() {
            self.try_append(&changes, Need::Urgent)?;
        }
        let moved = time(now);
        self.move_times(ino, |inode| (inode.mtime, inode.ctime) = (moved, moved));
        let has_privileges = attrs::content_changed(&seen, Privileges::Drop, now).perm.is_some();
        if let Some(node) = self.names.node(ino.0)
            && let Some(content) = &node.content
            && !has_privileges
            && !node.xattrs.contains_key(XATTR_CAPABILITY)
        {
            content.times.arm_writes(now);
        }
        Ok(())
    }

    /// Notes a read of `ino`, which is in memory, and may update its access time.
    pub fn touch_atime(&mut self, ino: Ino, now: Timestamp, noatime: bool) {
        let Ok(mut attr) = self.attr("read", ino) else { return };
        if noatime || self.life.is_read_only() || self.life.is_closed() {
            return;
        }
        if relatime(&attr, now) {
            self.names.move_atime(ino.0, time(now));
            attr.atime = now;
        }
        let content = self.names.node(ino.0).and_then(|node| node.content.as_ref());
        if let Some(content) = content.filter(|_| !relatime(&attr, now)) {
            content.times.arm_reads(attr.atime);
        }
    }

    pub fn getxattr(&self, ino: Ino, name: XattrName<'_>) -> Tried<Vec<u8>> {
        let value = self.get("getxattr", ino)?.xattrs.get(name.as_bytes());
        Ok(attrs::xattr("getxattr", name, value)?.to_vec())
    }

    pub fn setxattr(
        &mut self,
        ino: Ino,
        name: XattrName<'_>,
        value: &[u8],
        how: SetXattr,
        now: Timestamp,
    ) -> Tried<()> {
        let xattrs = &self.get("setxattr", ino)?.xattrs;
        let is_there = xattrs.contains_key(name.as_bytes());
        attrs::check_set_xattr(name, value, how, is_there, xattrs.keys().map(|name| &**name))?;
        let mut changes = vec![Change::SetXattr(ino.0, name.as_bytes(), value)];
        self.patched(ino, &attrs::xattr_changed(now), &mut changes)?;
        self.try_append(&changes, Need::New).map(drop)
    }

    pub fn listxattr(&self, ino: Ino) -> Tried<Vec<Box<[u8]>>> {
        Ok(self.get("listxattr", ino)?.xattrs.keys().cloned().collect())
    }

    pub fn removexattr(&mut self, ino: Ino, name: XattrName<'_>, now: Timestamp) -> Tried<()> {
        let value = self.get("removexattr", ino)?.xattrs.get(name.as_bytes());
        attrs::xattr("removexattr", name, value)?;
        let mut changes = vec![Change::RemoveXattr(ino.0, name.as_bytes())];
        self.patched(ino, &attrs::xattr_changed(now), &mut changes)?;
        self.try_append(&changes, Need::Urgent).map(drop)
    }

    /// Appends the moved times of one inode, or of all inodes. After an error the remaining inodes
    /// still have moved times, so a caller can call it again.
    pub fn write_times(&mut self, of: Option<Ino>) -> Result<()> {
        let inodes: Vec<u64> = match of {
            Some(ino) => vec![ino.0],
            None => self.names.moved().collect(),
        };
        for some in inodes.chunks(TIMES_AT_ONCE) {
            let moved =
                |ino: &u64| Some(Change::SetAttributes(*ino, self.names.take_moved_times(*ino)?));
            let changes: Vec<Change<'_>> = some.iter().filter_map(moved).collect();
            if changes.is_empty() {
                continue;
            }
            if let Err(error) = self.append(&changes, Need::Urgent) {
                for change in changes {
                    if let Change::SetAttributes(ino, _) = change {
                        self.move_times(Ino(ino), |_| ());
                    }
                }
                return Err(error);
            }
        }
        Ok(())
    }

    /// Records the times of an inode if syncs of it want them (times_wanted.S23). If there is no
    /// space, these syncs make some, and record the times themselves.
    pub fn record_wanted_times(&mut self, ino: Ino, times: &TimesWanted) {
        let Some(number) = times.due() else { return };
        match self.write_times(Some(ino)) {
            Ok(()) => times.note_recorded(number),
            Err(error) => log::debug!("{ino:?}: its times are not recorded yet: {error}"),
        }
    }
}
