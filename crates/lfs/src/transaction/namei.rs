//! Operations on names: create, link, remove, rename, list. The results of [`rules`] become changes
//! while the state lock is held once.
//!
//! Lock: the state lock, held by the caller.

use crate::format::change::{Change, Entry, Rename};
use crate::format::inode::Inode;
use crate::format::key::Cookie as Entered;
use crate::names::inode::{time, type_of};
use crate::names::lookup::Tried;
use crate::space::Need;
use crate::transaction::state::State;
use forebay_vfs::rules::names::{Created, Fate, Made, Removed};
use forebay_vfs::rules::rename::Moved;
use forebay_vfs::rules::{self, At, Child};
use forebay_vfs::{Attr, FileKind, Ino, KeepInode, NewInode, OpenFlags, RenameFlags, Timestamp};

/// A directory entry in the form of a change.
fn entry_at<'a>((dir, name): At<'a>, cookie: Entered, (child, kind): Child) -> Entry<'a> {
    Entry { dir: dir.0, cookie, child: child.0, kind: type_of(kind), name: name.as_bytes() }
}

impl State {
    pub fn lookup(&self, at: At<'_>) -> Tried<Attr> {
        let (ino, _) = rules::find(self, "lookup", at)?;
        self.attr("lookup", ino)
    }

    /// The cookie of a name: of its existing entry, or of the entry that it will get.
    fn cookie_at(&self, at: At<'_>) -> Tried<Entered> {
        match self.entry_of(at)? {
            Some((cookie, _)) => Ok(cookie),
            None => self.cookie_for(at),
        }
    }

    pub fn parent(&self, dir: Ino) -> Tried<Ino> {
        rules::names::parent(self, dir)
    }

    /// The inode of a new object in `dir`.
    fn new_inode(&self, dir: Ino, made: &Made, size: u64, now: Timestamp) -> Inode {
        let (kind, now) = (type_of(made.kind), time(now));
        Inode {
            mode: (kind as u32) << 12 | u32::from(made.perm),
            uid: made.uid,
            gid: made.gid,
            nlink: made.nlink,
            flags: 0,
            data_id: if made.kind == FileKind::File {
                self.names.counters().next_data_id()
            } else {
                0
            },
            size,
            stored_bytes: 0,
            rdev: u64::from(made.rdev),
            parent: if made.kind == FileKind::Directory { dir.0 } else { 0 },
            version: 0,
            atime: now,
            mtime: now,
            ctime: now,
            btime: now,
        }
    }

    /// Creates an inode with one name.
    fn make(&mut self, at: At<'_>, made: &Made, target: &[u8], now: Timestamp) -> Tried<Attr> {
        let (cookie, ino) = (self.cookie_for(at)?, Ino(self.names.counters().next_ino()));
        let inode = self.new_inode(at.0, made, target.len() as u64, now);
        let mut changes = vec![
            Change::CreateInode(ino.0, inode, target),
            Change::InsertEntry(entry_at(at, cookie, (ino, made.kind))),
        ];
        self.patched(at.0, &made.directory, &mut changes)?;
        self.try_append(&changes, Need::New)?;
        self.attr("make", ino)
    }

    pub fn mknod(&mut self, at: At<'_>, new: &NewInode, now: Timestamp) -> Tried<Attr> {
        let made = rules::names::mknod(self, at, new, now)?;
        self.make(at, &made, &[], now)
    }

    pub fn mkdir(&mut self, at: At<'_>, new: &NewInode, now: Timestamp) -> Tried<Attr> {
        let made = rules::names::mkdir(self, at, new, now)?;
        self.make(at, &made, &[], now)
    }

    pub fn symlink(
        &mut self,
        at: At<'_>,
        target: &[u8],
        new: &NewInode,
        now: Timestamp,
    ) -> Tried<Attr> {
        let made = rules::names::symlink(self, at, target, new, now)?;
        self.make(at, &made, target, now)
    }

    /// Creates a regular file, or finds an existing one, to open it. True: it existed already.
    pub fn create_file(
        &mut self,
        at: At<'_>,
        new: &NewInode,
        flags: OpenFlags,
        now: Timestamp,
    ) -> Tried<(Child, bool)> {
        match rules::names::create(self, at, new, flags, now)? {
            Created::New(made) => Ok(((self.make(at, &made, &[], now)?.ino, made.kind), false)),
            Created::Old(child) => Ok((child, true)),
        }
    }

    /// Creates a regular file without a name: an orphan from the start.
    pub fn tmpfile(
        &mut self,
        dir: Ino,
        new: &NewInode,
        flags: OpenFlags,
        now: Timestamp,
    ) -> Tried<Ino> {
        let made = rules::names::tmpfile(self, dir, new, flags, now)?;
        let (ino, inode) = (self.names.counters().next_ino(), self.new_inode(dir, &made, 0, now));
        let changes = [Change::CreateInode(ino, inode, &[]), Change::AddOrphan(ino)];
        self.try_append(&changes, Need::New)?;
        self.names.update(ino, |node| node.linkable = made.is_linkable);
        Ok(Ino(ino))
    }

    pub fn link(&mut self, ino: Ino, at: At<'_>, now: Timestamp) -> Tried<Attr> {
        let linked = rules::names::link(self, ino, at, now)?;
        let cookie = self.cookie_for(at)?;
        let mut changes = Vec::new();
        self.patched(ino, &linked.inode, &mut changes)?;
        changes.push(Change::InsertEntry(entry_at(at, cookie, (ino, linked.kind))));
        self.patched(at.0, &linked.directory, &mut changes)?;
        if linked.is_first {
            changes.push(Change::RemoveOrphan(ino.0));
        }
        self.try_append(&changes, Need::New)?;
        self.names.update(ino.0, |node| node.linkable = false);
        self.attr("link", ino)
    }

    /// Appends the changes for an inode that has lost a link.
    fn meet(&mut self, (ino, _): Child, fate: Fate, changes: &mut Vec<Change<'_>>) -> Tried<()> {
        match fate {
            Fate::Stays(patch) => self.patched(ino, &patch, changes),
            Fate::Orphan(patch) => {
                self.patched(ino, &patch, changes)?;
                changes.push(Change::AddOrphan(ino.0));
                Ok(())
            }
            Fate::Goes => {
                let data_id = self.look(ino.0)?.map_or(0, |node| node.inode.data_id);
                let sequence = self.draw();
                changes.push(Change::RemoveInode(ino.0, data_id, sequence));
                Ok(())
            }
        }
    }

    pub fn unlink(&mut self, at: At<'_>, now: Timestamp) -> Tried<()> {
        let removed = rules::names::unlink(self, at, now)?;
        self.remove(at, &removed)
    }

    pub fn rmdir(&mut self, at: At<'_>, now: Timestamp) -> Tried<()> {
        let removed = rules::names::rmdir(self, at, now)?;
        self.remove(at, &removed)
    }

    /// Runs `op`, which removes or replaces the name `at`. If an inode loses its last name by that
    /// and `keeps` names it, it is counted as open and returned: in the hold of the lock in which
    /// it loses the name.
    pub fn keeping(
        &mut self,
        at: At<'_>,
        keeps: KeepInode<'_>,
        op: impl FnOnce(&mut Self) -> Tried<()>,
    ) -> Tried<Option<Ino>> {
        let held = match rules::View::entry(self, at)? {
            Some((ino, kind)) => {
                let is_directory = kind == FileKind::Directory;
                let seen = rules::View::inode(self, ino)?;
                let is_last = seen.is_some_and(|seen| seen.nlink <= 1 || is_directory);
                Some(ino).filter(|ino| is_last && keeps(*ino))
            }
            None => None,
        };
        let Some(ino) = held else { return op(self).map(|()| None) };
        self.names.update(ino.0, |node| node.opens += 1);
        let done = op(self);
        let is_unnamed = self.names.node(ino.0).is_some_and(|node| node.inode.nlink == 0);
        if done.is_ok() && is_unnamed {
            return Ok(Some(ino));
        }
        // The name and the inode are as before.
        self.names.update(ino.0, |node| node.opens -= 1);
        done.map(|()| None)
    }

    fn remove(&mut self, at: At<'_>, removed: &Removed) -> Tried<()> {
        let entry = entry_at(at, self.cookie_at(at)?, removed.child);
        let mut changes = vec![Change::RemoveEntry(entry)];
        self.patched(at.0, &removed.directory, &mut changes)?;
        self.meet(removed.child, removed.fate, &mut changes)?;
        self.try_append(&changes, Need::Urgent).map(drop)
    }

    pub fn readlink(&self, ino: Ino) -> Tried<Vec<u8>> {
        rules::names::readlink(self, ino)?;
        Ok(self.get("readlink", ino)?.target.to_vec())
    }

    pub fn rename(
        &mut self,
        from: At<'_>,
        to: At<'_>,
        flags: RenameFlags,
        now: Timestamp,
    ) -> Tried<()> {
        let moved = rules::rename::rename(self, from, to, flags, now)?;
        if moved == Moved::Nothing {
            return Ok(());
        }
        let cookies = (self.cookie_at(from)?, self.cookie_at(to)?);
        let entries =
            |source, target| (entry_at(from, cookies.0, source), entry_at(to, cookies.1, target));
        let mut changes = Vec::new();
        let touched = match moved {
            Moved::Nothing => return Ok(()),
            Moved::Exchanged { source, target, touched } => {
                let (from, to) = entries(source, target);
                let rename = Rename { from, to, replaced: 0, exchange: true };
                changes.push(Change::Rename(rename));
                touched
            }
            Moved::Replaced { source, replaced, touched } => {
                let (from, to) = entries(source, source);
                let gone = replaced.map_or(0, |((ino, _), _)| ino.0);
                let rename = Rename { from, to, replaced: gone, exchange: false };
                changes.push(Change::Rename(rename));
                if let Some((child, fate)) = replaced {
                    self.meet(child, fate, &mut changes)?;
                }
                touched
            }
        };
        for (ino, patch) in &touched {
            self.patched(*ino, patch, &mut changes)?;
        }
        self.try_append(&changes, Need::New).map(drop)
    }
}
