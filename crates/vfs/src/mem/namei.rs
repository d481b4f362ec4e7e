//! Names of the file system in memory: making, linking, removing, renaming, listing.
//!
//! Locks: as in [`super::state`]. Order of refusals: the contract's ([`crate::fs`]).

use super::data::Data;
use super::dir::{Directory, Target};
use super::state::{Body, State, refuse};
use crate::name::Name;
use crate::types::{
    Attr, Cookie, DirEntry, FileKind, Ino, NewInode, OpenFlags, RenameFlags, SYMLINK_MAX, SetAttr,
};
use forebay_base::{ErrorKind, Result};

/// A directory and a name in it.
pub type At<'a> = (Ino, Name<'a>);

/// Both sides of a rename, looked at.
struct Rename<'a> {
    from: At<'a>,
    to: At<'a>,
    source: Target,
    target: Option<Target>,
    exchange: bool,
}

fn is_dir((_, kind): Target) -> bool {
    kind == FileKind::Directory
}

impl State {
    pub fn lookup(&self, (dir, name): At<'_>) -> Result<Attr> {
        let (ino, _) = self.find("lookup", (dir, name))?;
        self.attr("lookup", ino)
    }

    fn find(&self, op: &'static str, (dir, name): At<'_>) -> Result<Target> {
        match self.live_entries(op, dir)?.get(name) {
            Some(target) => Ok(target),
            None => refuse(ErrorKind::NotFound, op, format!("{name:?} in {dir:?}")),
        }
    }

    pub fn parent(&self, dir: Ino) -> Result<Ino> {
        self.live_entries("parent", dir)?;
        Ok(self.get("parent", dir)?.parent)
    }

    /// Whether `name` can be made.
    fn check_free(&self, op: &'static str, (dir, name): At<'_>) -> Result<()> {
        let entries = self.live_entries(op, dir)?;
        if entries.get(name).is_some() {
            return refuse(ErrorKind::Exists, op, format!("{name:?} in {dir:?}"));
        }
        entries.check_room(name, self.options.cookie_bits)
    }

    fn check_links(&self, op: &'static str, ino: Ino) -> Result<()> {
        match self.get(op, ino)?.attr.nlink < self.options.links_max {
            true => Ok(()),
            false => refuse(ErrorKind::TooManyLinks, op, format!("{ino:?}")),
        }
    }

    /// Makes an inode with one name, which is known to be free.
    fn make(&mut self, (dir, name): At<'_>, new: &NewInode, body: Body) -> Result<Attr> {
        self.check_inodes("make")?;
        let now = self.now();
        let inherited = new.inherit(&self.get("make", dir)?.attr);
        let ino = self.add(new, inherited, body, dir, now);
        match new.kind {
            FileKind::Directory => self.inode(dir).attr.nlink += 1,
            _ => self.inode(ino).attr.nlink = 1,
        }
        self.set_entry(dir, name, ino);
        self.touch_entries(dir, now);
        self.attr("make", ino)
    }

    pub fn mknod(&mut self, at: At<'_>, new: &NewInode) -> Result<Attr> {
        self.check_free("mknod", at)?;
        match new.kind {
            FileKind::Directory | FileKind::Symlink => {
                refuse(ErrorKind::InvalidInput, "mknod", format!("{:?}", new.kind))
            }
            FileKind::File => self.make(at, new, Body::File(Data::default())),
            _ => self.make(at, new, Body::Special),
        }
    }

    pub fn mkdir(&mut self, at: At<'_>, new: &NewInode) -> Result<Attr> {
        self.check_free("mkdir", at)?;
        self.check_links("mkdir", at.0)?;
        let new = NewInode { kind: FileKind::Directory, ..*new };
        self.make(at, &new, Body::Directory(Directory::default()))
    }

    pub fn symlink(&mut self, at: At<'_>, target: &[u8], new: &NewInode) -> Result<Attr> {
        match target.len() {
            0 => return refuse(ErrorKind::NotFound, "symlink", "an empty target"),
            len if len > SYMLINK_MAX => {
                return refuse(ErrorKind::NameTooLong, "symlink", format!("{len} bytes"));
            }
            _ if target.contains(&0) => {
                return refuse(ErrorKind::InvalidInput, "symlink", "NUL in the target");
            }
            _ => self.check_free("symlink", at)?,
        }
        let new = NewInode { kind: FileKind::Symlink, perm: 0o777, ..*new };
        self.make(at, &new, Body::Symlink(target.into()))
    }

    /// Makes or finds a regular file to open, and counts it as open.
    pub fn create(&mut self, at: At<'_>, new: &NewInode, flags: OpenFlags) -> Result<Attr> {
        let found = self.live_entries("create", at.0)?.get(at.1);
        match found {
            None => {
                check_open_flags(flags)?;
                self.check_free("create", at)?;
                let new = NewInode { kind: FileKind::File, ..*new };
                let attr = self.make(at, &new, Body::File(Data::default()))?;
                self.opened(attr.ino);
                Ok(attr)
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
            Some((ino, _)) => {
                self.open(ino, flags)?;
                self.attr("create", ino)
            }
        }
    }

    /// A regular file without a name, counted as open.
    pub fn tmpfile(&mut self, dir: Ino, new: &NewInode, flags: OpenFlags) -> Result<Attr> {
        self.live_entries("tmpfile", dir)?;
        check_open_flags(flags)?;
        self.check_inodes("tmpfile")?;
        let (now, new) = (self.now(), NewInode { kind: FileKind::File, ..*new });
        let inherited = new.inherit(&self.get("tmpfile", dir)?.attr);
        let ino = self.add(&new, inherited, Body::File(Data::default()), dir, now);
        self.inode(ino).linkable = !flags.contains(OpenFlags::EXCLUSIVE);
        self.opened(ino);
        self.attr("tmpfile", ino)
    }

    /// Opens, and counts it.
    pub fn open(&mut self, ino: Ino, flags: OpenFlags) -> Result<()> {
        let kind = self.get("open", ino)?.attr.kind;
        check_open_flags(flags)?;
        if kind == FileKind::Directory && flags.contains(OpenFlags::WRITE) {
            return refuse(ErrorKind::IsDirectory, "open", format!("{ino:?}"));
        }
        if kind == FileKind::File && flags.contains(OpenFlags::TRUNCATE) {
            let keep = flags.contains(OpenFlags::KEEP_PRIVILEGES);
            let privileges = if keep { crate::Privileges::Keep } else { crate::Privileges::Drop };
            self.setattr(ino, &SetAttr { privileges, ..SetAttr::size(0) })?;
        }
        self.opened(ino);
        Ok(())
    }

    pub fn link(&mut self, ino: Ino, at: At<'_>) -> Result<Attr> {
        let attr = self.get("link", ino)?.attr;
        self.check_free("link", at)?;
        if attr.kind == FileKind::Directory {
            return refuse(ErrorKind::NotPermitted, "link", format!("{ino:?} is a directory"));
        }
        if attr.nlink == 0 && !self.get("link", ino)?.linkable {
            return refuse(ErrorKind::NotFound, "link", format!("{ino:?} was removed"));
        }
        self.check_links("link", ino)?;
        let now = self.now();
        let inode = self.inode(ino);
        (inode.attr.nlink, inode.attr.ctime, inode.linkable) = (attr.nlink + 1, now, false);
        self.set_entry(at.0, at.1, ino);
        self.touch_entries(at.0, now);
        self.attr("link", ino)
    }

    pub fn unlink(&mut self, at: At<'_>) -> Result<()> {
        let target = self.find("unlink", at)?;
        if is_dir(target) {
            return refuse(ErrorKind::IsDirectory, "unlink", format!("{:?}", at.1));
        }
        let now = self.now();
        self.remove_entry(at.0, at.1);
        self.touch_entries(at.0, now);
        self.drop_link(target.0, now);
        Ok(())
    }

    pub fn rmdir(&mut self, at: At<'_>) -> Result<()> {
        let (ino, _) = self.find("rmdir", at)?;
        if self.entries("rmdir", ino)?.len() > 0 {
            return refuse(ErrorKind::NotEmpty, "rmdir", format!("{:?}", at.1));
        }
        let now = self.now();
        self.remove_entry(at.0, at.1);
        self.inode(at.0).attr.nlink -= 1;
        self.touch_entries(at.0, now);
        self.drop_link(ino, now);
        Ok(())
    }

    pub fn readlink(&mut self, ino: Ino) -> Result<Vec<u8>> {
        let Body::Symlink(target) = &self.get("readlink", ino)?.body else {
            return refuse(ErrorKind::InvalidInput, "readlink", format!("{ino:?} is none"));
        };
        let target = target.to_vec();
        self.touch_atime(ino);
        Ok(target)
    }

    pub fn readdir(&mut self, dir: Ino, after: Cookie, max: usize) -> Result<Vec<DirEntry>> {
        let entries = self.live_entries("readdir", dir)?.list(after, max.max(1));
        self.touch_atime(dir);
        Ok(entries)
    }

    /// Whether `ino` is `below` or a directory above it.
    fn is_above(&self, ino: Ino, below: Ino) -> bool {
        let mut at = below;
        loop {
            if at == ino {
                return true;
            }
            match self.inodes.get(&at) {
                Some(inode) if at != Ino::ROOT => at = inode.parent,
                _ => return false,
            }
        }
    }

    pub fn rename(&mut self, from: At<'_>, to: At<'_>, flags: RenameFlags) -> Result<()> {
        flags.check()?;
        self.live_entries("rename", to.0)?;
        let source = self.find("rename", from)?;
        let target = self.live_entries("rename", to.0)?.get(to.1);
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
        let rename = Rename { from, to, source, target, exchange };
        self.check_rename(&rename)?;
        match target {
            Some(target) if target.0 == source.0 => {}
            Some(target) if exchange => self.exchange(&rename, target),
            _ => self.replace(&rename),
        }
        Ok(())
    }

    fn check_rename(&self, rename: &Rename<'_>) -> Result<()> {
        let Rename { from, to, source, target, exchange } = *rename;
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
                    (true, true) if self.entries("rename", target.0)?.len() > 0 => {
                        return no(ErrorKind::NotEmpty);
                    }
                    _ => {}
                }
            }
            let goes = exchange && is_dir(target) && !is_dir(source) && from.0 != to.0;
            if goes {
                self.check_links("rename", from.0)?;
            }
        } else {
            self.entries("rename", to.0)?.check_room(to.1, self.options.cookie_bits)?;
        }
        if comes { self.check_links("rename", to.0) } else { Ok(()) }
    }

    fn replace(&mut self, rename: &Rename<'_>) {
        let Rename { from, to, source, target, .. } = *rename;
        let now = self.now();
        self.remove_entry(from.0, from.1);
        self.set_entry(to.0, to.1, source.0);
        if is_dir(source) {
            self.inode(from.0).attr.nlink -= 1;
            self.inode(to.0).attr.nlink += 1;
        }
        if let Some(target) = target {
            if is_dir(target) {
                self.inode(to.0).attr.nlink -= 1;
            }
            self.drop_link(target.0, now);
        }
        self.inode(source.0).attr.ctime = now;
        self.touch_entries(from.0, now);
        self.touch_entries(to.0, now);
    }

    fn exchange(&mut self, rename: &Rename<'_>, target: Target) {
        let Rename { from, to, source, .. } = *rename;
        let now = self.now();
        self.set_entry(to.0, to.1, source.0);
        self.set_entry(from.0, from.1, target.0);
        for (moved, left, entered) in [(source, from.0, to.0), (target, to.0, from.0)] {
            if is_dir(moved) {
                self.inode(left).attr.nlink -= 1;
                self.inode(entered).attr.nlink += 1;
            }
            self.inode(moved.0).attr.ctime = now;
        }
        self.touch_entries(from.0, now);
        self.touch_entries(to.0, now);
    }
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
