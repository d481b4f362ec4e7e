//! Names: making, linking, removing, renaming, listing. Each is looked at, then said in changes, in one hold
//! of the state lock; the order of refusals is the contract's.
//!
//! Lock: the state lock, held by the caller.

use crate::format::change::{Change, Entry, Rename};
use crate::format::inode::{FileType, Inode, SetAttributes, Time};
use crate::format::key::Cookie as Entered;
use crate::inode::{kind_of, refuse, time, type_of};
use crate::space::Need;
use crate::state::State;
use forebay_base::{ErrorKind, Result};
use forebay_vfs::types::{LINK_MAX, SYMLINK_MAX};
use forebay_vfs::{Attr, Cookie, DirEntry, FileKind, Ino, Name, NewInode, OpenFlags, RenameFlags};

/// A directory and a name in it.
pub(crate) type At<'a> = (Ino, Name<'a>);

/// What an operation is given beside its arguments.
#[derive(Clone, Copy)]
pub(crate) struct Call {
    /// Now.
    pub now: Time,
    /// Secret of the volume: seeds the hashes of names.
    pub nonce: [u8; 16],
}

/// An inode that a name denotes.
type Child = (u64, FileType);

fn is_dir(child: Child) -> bool {
    child.1 == FileType::Directory
}

/// `dir`'s entries have changed; `links` directories more.
fn touched(state: &State, dir: Ino, links: i32, call: Call) -> Change<'static> {
    let nlink = state.nodes.get(&dir.0).map_or(0, |node| node.inode.nlink);
    let set = SetAttributes {
        nlink: (links != 0).then(|| nlink.saturating_add_signed(links)),
        mtime: Some(call.now),
        ctime: Some(call.now),
        ..SetAttributes::default()
    };
    Change::SetAttributes(dir.0, set)
}

fn ctime(ino: u64, now: Time) -> Change<'static> {
    Change::SetAttributes(ino, SetAttributes { ctime: Some(now), ..SetAttributes::default() })
}

fn check_open_flags(flags: OpenFlags) -> Result<()> {
    let unknown = flags.bits() & !OpenFlags::all().bits();
    if unknown != 0 {
        return refuse(ErrorKind::Unsupported, "open", format!("unknown flag bits {unknown:#x}"));
    }
    match flags.contains(OpenFlags::TRUNCATE) && !flags.contains(OpenFlags::WRITE) {
        true => refuse(ErrorKind::InvalidInput, "open", "to truncate and not to write"),
        false => Ok(()),
    }
}

impl State {
    pub fn lookup(&self, at: At<'_>) -> Result<Attr> {
        let (_, (ino, _)) = self.find("lookup", at)?;
        self.attr("lookup", Ino(ino))
    }

    /// Cookie and inode of a name.
    fn find(&self, op: &'static str, (dir, name): At<'_>) -> Result<(Entered, Child)> {
        match self.live_dir(op, dir)?.entries.get(name.as_bytes()) {
            Some(found) => Ok(found),
            None => refuse(ErrorKind::NotFound, op, format!("{name:?} in {dir:?}")),
        }
    }

    /// The inode that a name denotes, if there is one.
    pub fn peek(&self, (dir, name): At<'_>) -> Option<(Ino, FileKind)> {
        let (_, (ino, kind)) = self.nodes.get(&dir.0)?.entries.get(name.as_bytes())?;
        Some((Ino(ino), kind_of(kind)))
    }

    pub fn parent(&self, dir: Ino) -> Result<Ino> {
        Ok(Ino(self.live_dir("parent", dir)?.inode.parent))
    }

    /// A cookie for a name that is free.
    fn check_free(&self, op: &'static str, (dir, name): At<'_>, call: Call) -> Result<Entered> {
        let node = self.live_dir(op, dir)?;
        if node.entries.get(name.as_bytes()).is_some() {
            return refuse(ErrorKind::Exists, op, format!("{name:?} in {dir:?}"));
        }
        node.entries.cookie_for(name.as_bytes(), &call.nonce)
    }

    fn check_links(&self, op: &'static str, ino: Ino) -> Result<()> {
        match self.get(op, ino)?.inode.nlink < LINK_MAX {
            true => Ok(()),
            false => refuse(ErrorKind::TooManyLinks, op, format!("{ino:?}")),
        }
    }

    /// The inode of something new in `dir`.
    fn new_inode(&self, dir: Ino, new: &NewInode, now: Time) -> Result<Inode> {
        let kind = type_of(new.kind);
        let (gid, perm) = new.inherit(&self.attr("make", dir)?);
        let device = matches!(new.kind, FileKind::CharDevice | FileKind::BlockDevice);
        let directory = new.kind == FileKind::Directory;
        Ok(Inode {
            mode: (kind as u32) << 12 | u32::from(perm),
            uid: new.uid,
            gid,
            nlink: if directory { 2 } else { 1 },
            flags: 0,
            data_id: if new.kind == FileKind::File { self.next_data_id } else { 0 },
            size: 0,
            stored_bytes: 0,
            rdev: if device { u64::from(new.rdev) } else { 0 },
            parent: if directory { dir.0 } else { 0 },
            version: 0,
            atime: now,
            mtime: now,
            ctime: now,
            btime: now,
        })
    }

    /// Makes an inode with one name.
    fn make(
        &mut self,
        op: &'static str,
        (dir, name): At<'_>,
        new: &NewInode,
        target: &[u8],
        call: Call,
    ) -> Result<Attr> {
        let cookie = self.check_free(op, (dir, name), call)?;
        let mut inode = self.new_inode(dir, new, call.now)?;
        inode.size = target.len() as u64;
        let (ino, kind, name) = (self.next_ino, type_of(new.kind), name.as_bytes());
        let links = i32::from(kind == FileType::Directory);
        let changes = [
            Change::CreateInode(ino, inode, target),
            Change::InsertEntry(Entry { dir: dir.0, cookie, child: ino, kind, name }),
            touched(self, dir, links, call),
        ];
        self.append(&changes, Need::New)?;
        self.attr(op, Ino(ino))
    }

    pub fn mknod(&mut self, at: At<'_>, new: &NewInode, call: Call) -> Result<Attr> {
        self.check_free("mknod", at, call)?;
        match new.kind {
            FileKind::Directory | FileKind::Symlink => {
                refuse(ErrorKind::InvalidInput, "mknod", format!("{:?}", new.kind))
            }
            _ => self.make("mknod", at, new, &[], call),
        }
    }

    pub fn mkdir(&mut self, at: At<'_>, new: &NewInode, call: Call) -> Result<Attr> {
        self.check_free("mkdir", at, call)?;
        self.check_links("mkdir", at.0)?;
        let new = NewInode { kind: FileKind::Directory, ..*new };
        self.make("mkdir", at, &new, &[], call)
    }

    pub fn symlink(
        &mut self,
        at: At<'_>,
        target: &[u8],
        new: &NewInode,
        call: Call,
    ) -> Result<Attr> {
        match target.len() {
            0 => return refuse(ErrorKind::NotFound, "symlink", "an empty target"),
            len if len > SYMLINK_MAX => {
                return refuse(ErrorKind::NameTooLong, "symlink", format!("{len} bytes"));
            }
            _ if target.contains(&0) => {
                return refuse(ErrorKind::InvalidInput, "symlink", "NUL in the target");
            }
            _ => {}
        }
        let new = NewInode { kind: FileKind::Symlink, perm: 0o777, ..*new };
        self.make("symlink", at, &new, target, call)
    }

    /// Makes or finds a regular file to open. True: it was there.
    pub fn create_file(
        &mut self,
        at: At<'_>,
        new: &NewInode,
        flags: OpenFlags,
        call: Call,
    ) -> Result<(Ino, bool)> {
        let found = self.live_dir("create", at.0)?.entries.get(at.1.as_bytes());
        match found {
            None => {
                check_open_flags(flags)?;
                let new = NewInode { kind: FileKind::File, ..*new };
                Ok((self.make("create", at, &new, &[], call)?.ino, false))
            }
            Some(_) if flags.contains(OpenFlags::EXCLUSIVE) => {
                refuse(ErrorKind::Exists, "create", format!("{:?}", at.1))
            }
            Some((_, (_, FileType::Symlink))) => {
                refuse(ErrorKind::SymlinkLoop, "create", "the name of a symbolic link")
            }
            Some((_, (_, FileType::Directory))) => {
                refuse(ErrorKind::IsDirectory, "create", format!("{:?}", at.1))
            }
            Some((_, (ino, _))) => {
                self.check_open(Ino(ino), flags)?;
                Ok((Ino(ino), true))
            }
        }
    }

    /// A regular file without a name: an orphan from the start.
    pub fn tmpfile(
        &mut self,
        dir: Ino,
        new: &NewInode,
        flags: OpenFlags,
        call: Call,
    ) -> Result<Ino> {
        self.live_dir("tmpfile", dir)?;
        check_open_flags(flags)?;
        let new = NewInode { kind: FileKind::File, ..*new };
        let inode = Inode { nlink: 0, ..self.new_inode(dir, &new, call.now)? };
        let ino = self.next_ino;
        let changes = [Change::CreateInode(ino, inode, &[]), Change::AddOrphan(ino)];
        self.append(&changes, Need::New)?;
        if let Some(node) = self.nodes.get_mut(&ino) {
            node.linkable = !flags.contains(OpenFlags::EXCLUSIVE);
        }
        Ok(Ino(ino))
    }

    /// Whether an inode can be opened so.
    pub fn check_open(&self, ino: Ino, flags: OpenFlags) -> Result<FileKind> {
        let kind = self.get("open", ino)?.kind();
        check_open_flags(flags)?;
        match kind == FileKind::Directory && flags.contains(OpenFlags::WRITE) {
            true => refuse(ErrorKind::IsDirectory, "open", format!("{ino:?}")),
            false => Ok(kind),
        }
    }

    pub fn link(&mut self, ino: Ino, at: At<'_>, call: Call) -> Result<Attr> {
        let node = self.get("link", ino)?;
        let (kind, nlink, linkable) = (node.kind(), node.inode.nlink, node.linkable);
        let cookie = self.check_free("link", at, call)?;
        if kind == FileKind::Directory {
            return refuse(ErrorKind::NotPermitted, "link", format!("{ino:?} is a directory"));
        }
        if nlink == 0 && !linkable {
            return refuse(ErrorKind::NotFound, "link", format!("{ino:?} was removed"));
        }
        self.check_links("link", ino)?;
        let (dir, name) = (at.0.0, at.1.as_bytes());
        let set = SetAttributes {
            nlink: Some(nlink + 1),
            ctime: Some(call.now),
            ..SetAttributes::default()
        };
        let entry = Entry { dir, cookie, child: ino.0, kind: type_of(kind), name };
        let mut changes = vec![
            Change::SetAttributes(ino.0, set),
            Change::InsertEntry(entry),
            touched(self, at.0, 0, call),
        ];
        if nlink == 0 {
            changes.push(Change::RemoveOrphan(ino.0));
        }
        self.append(&changes, Need::New)?;
        if let Some(node) = self.nodes.get_mut(&ino.0) {
            node.linkable = false;
        }
        self.attr("link", ino)
    }

    /// What follows when `ino` loses a link.
    fn drop_link(&mut self, ino: u64, now: Time, changes: &mut Vec<Change<'static>>) {
        let Some(node) = self.nodes.get(&ino) else { return };
        let (open, data_id) = (node.opens > 0, node.inode.data_id);
        let nlink = if node.is_dir() { 0 } else { node.inode.nlink.saturating_sub(1) };
        if nlink == 0 && !open {
            let sequence = self.draw();
            changes.push(Change::RemoveInode(ino, data_id, sequence));
            return;
        }
        let set =
            SetAttributes { nlink: Some(nlink), ctime: Some(now), ..SetAttributes::default() };
        changes.push(Change::SetAttributes(ino, set));
        if nlink == 0 {
            changes.push(Change::AddOrphan(ino));
        }
    }

    pub fn unlink(&mut self, at: At<'_>, call: Call) -> Result<()> {
        let (cookie, child) = self.find("unlink", at)?;
        if is_dir(child) {
            return refuse(ErrorKind::IsDirectory, "unlink", format!("{:?}", at.1));
        }
        self.remove(at, cookie, child, call)
    }

    pub fn rmdir(&mut self, at: At<'_>, call: Call) -> Result<()> {
        let (cookie, child) = self.find("rmdir", at)?;
        if self.dir("rmdir", Ino(child.0))?.entries.len() > 0 {
            return refuse(ErrorKind::NotEmpty, "rmdir", format!("{:?}", at.1));
        }
        self.remove(at, cookie, child, call)
    }

    fn remove(&mut self, at: At<'_>, cookie: Entered, child: Child, call: Call) -> Result<()> {
        let entry =
            Entry { dir: at.0.0, cookie, child: child.0, kind: child.1, name: at.1.as_bytes() };
        let mut more = Vec::new();
        self.drop_link(child.0, call.now, &mut more);
        let mut changes =
            vec![Change::RemoveEntry(entry), touched(self, at.0, -i32::from(is_dir(child)), call)];
        changes.extend(more);
        self.append(&changes, Need::Urgent).map(drop)
    }

    pub fn readlink(&self, ino: Ino) -> Result<Vec<u8>> {
        let node = self.get("readlink", ino)?;
        match node.kind() {
            FileKind::Symlink => Ok(node.target.to_vec()),
            _ => refuse(ErrorKind::InvalidInput, "readlink", format!("{ino:?} is none")),
        }
    }

    pub fn readdir(&self, dir: Ino, after: Cookie, max: usize) -> Result<Vec<DirEntry>> {
        let entries = self.live_dir("readdir", dir)?.entries.list(after.0, max.max(1));
        let entry = |(cookie, name, (ino, kind)): (u64, &[u8], Child)| DirEntry {
            cookie: Cookie(cookie),
            ino: Ino(ino),
            kind: kind_of(kind),
            name: name.into(),
        };
        Ok(entries.map(entry).collect())
    }

    /// Whether `ino` is `below` or a directory above it.
    fn is_above(&self, ino: u64, below: Ino) -> bool {
        let mut at = below.0;
        // A damaged volume may have a loop.
        for _ in 0..self.nodes.len() {
            if at == ino {
                return true;
            }
            match self.nodes.get(&at) {
                Some(node) if at != Ino::ROOT.0 => at = node.inode.parent,
                _ => return false,
            }
        }
        false
    }

    pub fn rename(
        &mut self,
        from: At<'_>,
        to: At<'_>,
        flags: RenameFlags,
        call: Call,
    ) -> Result<()> {
        flags.check()?;
        self.live_dir("rename", to.0)?;
        let source = self.find("rename", from)?;
        let target = self.live_dir("rename", to.0)?.entries.get(to.1.as_bytes());
        let exchange = flags.contains(RenameFlags::EXCHANGE);
        match target {
            Some(_) if flags.contains(RenameFlags::NOREPLACE) => {
                return refuse(ErrorKind::Exists, "rename", format!("{:?}", to.1));
            }
            None if exchange => {
                return refuse(ErrorKind::NotFound, "rename", format!("{:?}", to.1));
            }
            _ => {}
        }
        let sides = Sides { from, to, source, target, exchange };
        self.check_rename(&sides)?;
        match target {
            Some((_, target)) if target.0 == source.1.0 => Ok(()),
            Some(target) if exchange => self.exchange(&sides, target, call),
            _ => self.replace(&sides, call),
        }
    }

    fn check_rename(&self, sides: &Sides<'_>) -> Result<()> {
        let Sides { from, to, source: (_, source), exchange, .. } = *sides;
        let target = sides.target.map(|(_, target)| target);
        let no = |kind| refuse(kind, "rename", format!("{:?} to {:?}", from.1, to.1));
        if is_dir(source) && self.is_above(source.0, to.0) {
            return no(ErrorKind::InvalidInput);
        }
        if target.is_some_and(|target| is_dir(target) && self.is_above(target.0, from.0)) {
            return no(if exchange { ErrorKind::InvalidInput } else { ErrorKind::NotEmpty });
        }
        let comes = is_dir(source) && !target.is_some_and(is_dir) && from.0 != to.0;
        if let Some(target) = target {
            if target.0 == source.0 {
                return Ok(());
            }
            if !exchange {
                match (is_dir(source), is_dir(target)) {
                    (true, false) => return no(ErrorKind::NotDirectory),
                    (false, true) => return no(ErrorKind::IsDirectory),
                    (true, true) if self.dir("rename", Ino(target.0))?.entries.len() > 0 => {
                        return no(ErrorKind::NotEmpty);
                    }
                    _ => {}
                }
            }
            if exchange && is_dir(target) && !is_dir(source) && from.0 != to.0 {
                self.check_links("rename", from.0)?;
            }
        }
        if comes { self.check_links("rename", to.0) } else { Ok(()) }
    }

    fn replace(&mut self, sides: &Sides<'_>, call: Call) -> Result<()> {
        let Sides { from, to, source: (from_cookie, source), .. } = *sides;
        let to_cookie = match sides.target {
            Some((cookie, _)) => cookie,
            None => {
                self.live_dir("rename", to.0)?.entries.cookie_for(to.1.as_bytes(), &call.nonce)?
            }
        };
        let target = sides.target.map(|(_, target)| target);
        let rename = Rename {
            from: entry_at(from, from_cookie, source),
            to: entry_at(to, to_cookie, source),
            replaced: target.map_or(0, |target| target.0),
            exchange: false,
        };
        let moves = i32::from(is_dir(source));
        let replaced = i32::from(target.is_some_and(is_dir));
        let mut changes = vec![Change::Rename(rename)];
        self.touch_both(sides, -moves, moves - replaced, call, &mut changes);
        if let Some(target) = target {
            let mut more = Vec::new();
            self.drop_link(target.0, call.now, &mut more);
            changes.extend(more);
        }
        changes.push(ctime(source.0, call.now));
        self.append(&changes, Need::New).map(drop)
    }

    fn exchange(&mut self, sides: &Sides<'_>, target: (Entered, Child), call: Call) -> Result<()> {
        let Sides { from, to, source, .. } = *sides;
        let rename = Rename {
            from: entry_at(from, source.0, source.1),
            to: entry_at(to, target.0, target.1),
            replaced: 0,
            exchange: true,
        };
        let more = i32::from(is_dir(target.1)) - i32::from(is_dir(source.1));
        let mut changes = vec![Change::Rename(rename)];
        self.touch_both(sides, more, -more, call, &mut changes);
        changes.extend([ctime(source.1.0, call.now), ctime(target.1.0, call.now)]);
        self.append(&changes, Need::New).map(drop)
    }

    /// Both directories of a rename have changed; so many directories more in each.
    fn touch_both(
        &self,
        sides: &Sides<'_>,
        from: i32,
        to: i32,
        call: Call,
        changes: &mut Vec<Change<'_>>,
    ) {
        if sides.from.0 == sides.to.0 {
            changes.push(touched(self, sides.from.0, from + to, call));
        } else {
            changes.push(touched(self, sides.from.0, from, call));
            changes.push(touched(self, sides.to.0, to, call));
        }
    }
}

/// Both sides of a rename, looked at.
struct Sides<'a> {
    from: At<'a>,
    to: At<'a>,
    source: (Entered, Child),
    target: Option<(Entered, Child)>,
    exchange: bool,
}

fn entry_at<'a>((dir, name): At<'a>, cookie: Entered, child: Child) -> Entry<'a> {
    Entry { dir: dir.0, cookie, child: child.0, kind: child.1, name: name.as_bytes() }
}

/// The call's time.
pub(crate) fn call(now: forebay_vfs::Timestamp, nonce: [u8; 16]) -> Call {
    Call { now: time(now), nonce }
}
