//! Names of the file system in memory: making, linking, removing, renaming, listing. Carries out
//! what [`rules`] answers.
//!
//! Locks: as in [`super::state`].

use super::data::Data;
use super::dir::Directory;
use super::state::{Body, State};
use forebay_base::Result;
use forebay_vfs::name::Name;
use forebay_vfs::rules::names::{Created, Fate, Made, Removed};
use forebay_vfs::rules::rename::Moved;
use forebay_vfs::rules::{self, At, Child};
use forebay_vfs::types::{
    Attr, Cookie, DirEntry, FileKind, Ino, NewInode, OpenFlags, Privileges, RenameFlags, SetAttr,
};

impl State {
    pub fn lookup(&self, at: At<'_>) -> Result<Attr> {
        let (ino, _) = rules::find(self, "lookup", at)?;
        self.attr("lookup", ino)
    }

    pub fn parent(&self, dir: Ino) -> Result<Ino> {
        rules::names::parent(self, dir)
    }

    /// `NoSpace` if no cookie is free for `name`. The caller has checked the directory.
    fn check_room(&self, (dir, name): At<'_>) -> Result<()> {
        self.entries(dir).check_room(name, self.options.cookie_bits)
    }

    /// Makes an inode with one name.
    fn make(&mut self, (dir, name): At<'_>, made: Made, body: Body) -> Result<Attr> {
        self.check_room((dir, name))?;
        self.check_inodes("make")?;
        let ino = self.add(&made, body, dir);
        self.set_entry(dir, name, ino);
        self.patch(dir, &made.directory);
        self.attr("make", ino)
    }

    pub fn mknod(&mut self, at: At<'_>, new: &NewInode) -> Result<Attr> {
        let made = rules::names::mknod(self, at, new, self.now())?;
        let body = match made.kind {
            FileKind::File => Body::File(Data::default()),
            _ => Body::Special,
        };
        self.make(at, made, body)
    }

    pub fn mkdir(&mut self, at: At<'_>, new: &NewInode) -> Result<Attr> {
        let made = rules::names::mkdir(self, at, new, self.now())?;
        self.make(at, made, Body::Directory(Directory::default()))
    }

    pub fn symlink(&mut self, at: At<'_>, target: &[u8], new: &NewInode) -> Result<Attr> {
        let made = rules::names::symlink(self, at, target, new, self.now())?;
        self.make(at, made, Body::Symlink(target.into()))
    }

    /// Makes or finds a regular file to open, and counts it as open.
    pub fn create(&mut self, at: At<'_>, new: &NewInode, flags: OpenFlags) -> Result<Attr> {
        match rules::names::create(self, at, new, flags, self.now())? {
            Created::New(made) => {
                let attr = self.make(at, made, Body::File(Data::default()))?;
                self.opened(attr.ino);
                Ok(attr)
            }
            Created::Old((ino, _)) => {
                self.open(ino, flags)?;
                self.attr("create", ino)
            }
        }
    }

    /// A regular file without a name, counted as open.
    pub fn tmpfile(&mut self, dir: Ino, new: &NewInode, flags: OpenFlags) -> Result<Attr> {
        let made = rules::names::tmpfile(self, dir, new, flags, self.now())?;
        self.check_inodes("tmpfile")?;
        let ino = self.add(&made, Body::File(Data::default()), dir);
        self.opened(ino);
        self.attr("tmpfile", ino)
    }

    /// Opens, and counts it.
    pub fn open(&mut self, ino: Ino, flags: OpenFlags) -> Result<()> {
        let kind = rules::names::open(self, ino, flags)?;
        if kind == FileKind::File && flags.contains(OpenFlags::TRUNCATE) {
            let privileges = Privileges::of_open(flags);
            self.setattr(ino, &SetAttr { privileges, ..SetAttr::size(0) })?;
        }
        self.opened(ino);
        Ok(())
    }

    pub fn link(&mut self, ino: Ino, at: At<'_>) -> Result<Attr> {
        let linked = rules::names::link(self, ino, at, self.now())?;
        self.check_room(at)?;
        self.patch(ino, &linked.inode);
        self.inode(ino).linkable = false;
        self.set_entry(at.0, at.1, ino);
        self.patch(at.0, &linked.directory);
        self.attr("link", ino)
    }

    pub fn unlink(&mut self, at: At<'_>) -> Result<()> {
        let removed = rules::names::unlink(self, at, self.now())?;
        self.remove(at, &removed);
        Ok(())
    }

    pub fn rmdir(&mut self, at: At<'_>) -> Result<()> {
        let removed = rules::names::rmdir(self, at, self.now())?;
        self.remove(at, &removed);
        Ok(())
    }

    fn remove(&mut self, at: At<'_>, removed: &Removed) {
        self.remove_entry(at.0, at.1);
        self.patch(at.0, &removed.directory);
        self.meet(removed.child, removed.fate);
    }

    /// Carries out what the rules decide for an inode that has lost a link.
    fn meet(&mut self, (ino, _): Child, fate: Fate) {
        match fate {
            Fate::Stays(patch) | Fate::Orphan(patch) => self.patch(ino, &patch),
            Fate::Goes => self.take_out(ino),
        }
    }

    pub fn readlink(&mut self, ino: Ino) -> Result<Vec<u8>> {
        rules::names::readlink(self, ino)?;
        let target = match &self.inode(ino).body {
            Body::Symlink(target) => target.to_vec(),
            _ => unreachable!("the body is that of the kind"),
        };
        self.touch_atime(ino);
        Ok(target)
    }

    pub fn readdir(&mut self, dir: Ino, after: Cookie, max: usize) -> Result<Vec<DirEntry>> {
        rules::live_directory(self, "readdir", dir)?;
        let entries = self.entries(dir).list(after, max.max(1));
        self.touch_atime(dir);
        Ok(entries)
    }

    pub fn rename(&mut self, from: At<'_>, to: At<'_>, flags: RenameFlags) -> Result<()> {
        match rules::rename::rename(self, from, to, flags, self.now())? {
            Moved::Nothing => {}
            Moved::Replaced { source, replaced, touched } => {
                if replaced.is_none() {
                    self.check_room(to)?;
                }
                self.remove_entry(from.0, from.1);
                self.set_entry(to.0, to.1, source.0);
                touched.iter().for_each(|(ino, patch)| self.patch(*ino, patch));
                if let Some((child, fate)) = replaced {
                    self.meet(child, fate);
                }
            }
            Moved::Exchanged { source, target, touched } => {
                self.set_entry(to.0, to.1, source.0);
                self.set_entry(from.0, from.1, target.0);
                touched.iter().for_each(|(ino, patch)| self.patch(*ino, patch));
            }
        }
        Ok(())
    }
}

impl rules::View for State {
    type Stop = forebay_base::Error;

    fn inode(&self, ino: Ino) -> Result<Option<rules::Seen>> {
        let seen = |inode: &super::state::Inode| rules::Seen {
            kind: inode.attr.kind,
            perm: inode.attr.perm,
            nlink: inode.attr.nlink,
            gid: inode.attr.gid,
            parent: inode.parent,
            is_open: self.opens.contains_key(&ino),
            is_linkable: inode.linkable,
        };
        Ok(self.inodes.get(&ino).map(|inode| seen(inode)))
    }

    fn entry(&self, (dir, name): (Ino, Name<'_>)) -> Result<Option<Child>> {
        Ok(self.entries(dir).get(name))
    }

    fn has_entries(&self, dir: Ino) -> Result<bool> {
        Ok(self.entries(dir).len() > 0)
    }

    fn links_max(&self) -> u32 {
        self.options.links_max
    }
}
